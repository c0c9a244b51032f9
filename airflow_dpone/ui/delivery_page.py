"""What the page of a delivery says, in the order in which an engineer on call asks. No HTML here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import states as s
from airflow_dpone.delivery.history import History
from airflow_dpone.delivery.lost_writers import WRITER_LIVES
from airflow_dpone.delivery.states import RULES, DeliveryEvent, DeliveryState
from airflow_dpone.errors import CATALOGUE
from airflow_dpone.journal.delivery_view import DeliveryView
from airflow_dpone.ui import phases as ph
from airflow_dpone.ui import words

S = DeliveryState
MAX_CHUNKS = 200
MAX_EVENTS = 500

_RETRY = {
    "never": "Airflow does not retry it: asking again changes nothing.",
    "backoff": "Airflow retries it by itself, while the task has tries left.",
    "after_clear": "Airflow does not retry it: a person clears the task.",
}
_BECAME_OF_TARGET = {
    **dict.fromkeys(s.BEFORE_PUBLICATION, "was left as it was before. Nothing of this delivery is visible."),
    **dict.fromkeys(s.IN_DOUBT, "has the old rows or the new, never a mixture. Do not repair it by hand."),
    **dict.fromkeys(s.PUBLISHED_OR_LATER, "got the new rows of this window. They were published and proved."),
    S.FAILED: "was left as it was before. Nothing of this delivery remains.",
    S.RETIRED: "was left as it was before. Nothing of this delivery remains.",
    S.INCIDENT: "has rows that a person has to look at: facts contradict each other.",
}
_GIVEN_UP = {
    "replanned": (RULES[S.RETIRED].meaning, _BECAME_OF_TARGET[S.RETIRED]),
    "given_up": (
        "given up by a command, which found no publication of it in the target",
        "was left as it was before, if it is still the same table.",
    ),
    "published_without_proof": (
        "given up by a command, after it was published: the journal cannot prove what",
        "got what this delivery published; it may have been changed since. Clear the task: the window is "
        "delivered again.",
    ),
}
"""What a RETIRED delivery means, by its reason; and what became of the target."""


@dataclass(frozen=True)
class Fact:
    """A label and its value. :param code: whether the value is a name or a hash."""

    label: str
    value: str
    code: bool = False


@dataclass(frozen=True)
class Headline:
    """The first screen: where it stands, what became of the target, what to do.

    :param tone: ``good``, ``busy``, ``wait``, ``doubt`` or ``bad``.
    :param command: a command line that belongs to the action, or ''.
    """

    state: str
    tone: str
    meaning: str
    became_of_target: str
    action: str
    command: str
    worker: str


@dataclass(frozen=True)
class LastError:
    """What stopped it last."""

    code: str
    summary: str
    reason: str
    retry: str
    resume_state: str


@dataclass(frozen=True)
class DeliveryPage:
    """Everything on the page; each list may be empty."""

    title: str
    headline: Headline
    error: LastError | None
    about: Sequence[Fact]
    phases: Sequence[ph.Phase]
    took: str
    counts: Sequence[Fact]
    digests: Sequence[Fact]
    digests_said: str
    quality: Sequence[Mapping[str, Any]]
    chunks: Sequence[ph.ChunkLine]
    chunks_left_out: int
    receipt: Sequence[Fact]
    evidence_sha256: str
    tries: Sequence[ph.Try]
    generations: Sequence[Mapping[str, Any]]
    identifiers: Sequence[Fact]
    columns: Sequence[Mapping[str, Any]]
    query: str
    events: Sequence[ph.EventLine]
    events_left_out: int
    events_total: int
    read_at: str
    invocation_key: str


def page_of(view: DeliveryView, journal_conn_id: str) -> DeliveryPage:
    """The page of a generation. :param journal_conn_id: named in commands."""
    history = History.of(view.invocation.invocation_key, view.events)
    plan = history.required(S.PLANNED)
    target = f"{plan['target']['schema']}.{plan['target']['table']}"
    chunks = ph.chunk_lines(history)
    events = ph.event_lines(view.events)
    digests = _digests(history)
    phases = ph.phases_of(view, history)
    return DeliveryPage(
        title=target,
        headline=_headline(view, history, journal_conn_id),
        error=_error(view),
        about=_about(view, plan),
        phases=phases,
        took=words.duration(sum(phase.seconds or 0.0 for phase in phases)),
        counts=_counts(history),
        digests=digests,
        digests_said=_digests_said(history, digests),
        quality=(history.last(S.PREPARED) or {}).get("quality", ()),
        chunks=chunks[:MAX_CHUNKS],
        chunks_left_out=max(0, len(chunks) - MAX_CHUNKS),
        receipt=_receipt(history),
        evidence_sha256=evidence_sha256(history),
        tries=ph.tries_of(view.events),
        generations=_generations(view),
        identifiers=_identifiers(view, history),
        columns=plan["columns"],
        query=plan["query_text"],
        events=events[-MAX_EVENTS:],
        events_left_out=max(0, len(events) - MAX_EVENTS),
        events_total=len(events),
        read_at=words.instant(view.now),
        invocation_key=view.invocation.invocation_key,
    )


def evidence_sha256(history: History) -> str:
    """Hash and name of the evidence document; '' when there is none yet."""
    return str((history.last(S.EVIDENCED) or {}).get("evidence_sha256", ""))


# ---- the first screen --------------------------------------------------------------------------------------


def _headline(view: DeliveryView, history: History, journal_conn_id: str) -> Headline:
    found = view.invocation
    rule, state = RULES[found.state], found.state
    works = ph.is_at_work(view)
    action = found.next_action or rule.way_out
    if works and state is not S.INCIDENT:
        action = (
            "Wait for the task: a worker holds it. If that process died, the next try takes over; when "
            "Airflow shows the task as failed, clear it, and the clear takes over: at once on the same "
            "machine, else when the lease has ended."
        )
    command = ""
    way_out = _way_out(found, works)
    if way_out:
        command = (
            f"airflow dpone recovery {way_out} --journal-conn-id {journal_conn_id} "
            f"--target URI_OR_CONN_ID --delivery {found.invocation_key}"
        )
    meaning, became_of_target = rule.meaning, _BECAME_OF_TARGET[state]
    if state is S.RETIRED:
        meaning, became_of_target = _GIVEN_UP[str(history.required(state)["reason"])]
    return Headline(
        state=state.value,
        tone=_tone(state, works),
        meaning=meaning,
        became_of_target=became_of_target,
        action=_sentence(action),
        command=command,
        worker=_worker(view, works),
    )


def _way_out(found: jr.Invocation, works: bool) -> str:
    """The recovery command that a person may need, or ''."""
    if found.state is S.INCIDENT:
        return "retire"
    waits = found.last_error_code == WRITER_LIVES and found.state not in s.ENDED and not works
    return "writer" if waits else ""


def _tone(state: DeliveryState, works: bool) -> str:
    if state is S.COMPLETED:
        return "good"
    if state in (S.INCIDENT, S.FAILED):
        return "bad"
    if works:
        return "busy"
    return "doubt" if state in s.IN_DOUBT else "wait"


def _worker(view: DeliveryView, works: bool) -> str:
    worker = view.worker
    if view.invocation.state in s.ENDED:
        return ""
    if worker is None or worker.delivery_key != view.invocation.delivery_key:
        return "No process works on it."
    host = words.short(worker.host.split(" ")[0])  # behind it are the boot and the namespace of the process
    who = f"Process {worker.pid} on {host} (task {worker.task_id}, try {worker.try_number})"
    if works:
        left = words.duration(words.seconds_between(view.now, worker.expires_at))
        return f"{who} works on it; its lease lasts {left} more unless it is renewed."
    silent = words.duration(words.seconds_between(worker.expires_at, view.now))
    return f"{who} held it last; its lease ended {silent} ago without a word."


def _error(view: DeliveryView) -> LastError | None:
    found = view.invocation
    if not found.last_error_code and not found.reason:
        return None
    row = CATALOGUE.get(found.last_error_code or "")
    return LastError(
        code=found.last_error_code or "",
        summary="" if row is None else row.summary,
        reason=found.reason or "",
        retry="" if row is None or found.state is S.INCIDENT else _RETRY[row.retry],
        resume_state=found.resume_state or "",
    )


def _sentence(text: str) -> str:
    text = text.strip()
    if not text or text.endswith((".", "!", "?")):
        return text[:1].upper() + text[1:]
    return f"{text[:1].upper()}{text[1:]}."


def _about(view: DeliveryView, plan: Mapping[str, Any]) -> list[Fact]:
    found, query = view.invocation, plan["identity"]["source_query"]
    task = found.delivery_task_id + ("" if found.map_index < 0 else f" [{found.map_index}]")
    return [
        Fact("Window", words.window(found.window_key)),
        Fact("From", f"{query['database']}.{query['table']}", code=True),
        Fact("Strategy", str(plan["identity"]["strategy"]).replace("_", " ")),
        Fact("DAG", found.dag_id, code=True),
        Fact("Run", found.run_id, code=True),
        Fact("Task", task, code=True),
        Fact("Generation", f"{found.generation} of {view.generations[0].generation}"),
        Fact("Last change", words.instant(view.updated_at)),
    ]


# ---- what was proved ---------------------------------------------------------------------------------------


def _counts(history: History) -> list[Fact]:
    receipt = (history.last(S.PUBLISHED) or {}).get("receipt")
    found = [
        ("Read from the source", (history.last(S.EXTRACTED) or {}).get("rows")),
        ("Proved in raw tables", (history.last(S.STAGED) or {}).get("rows")),
        ("Proved in the prepared table", (history.last(S.PREPARED) or {}).get("rows")),
        ("Published", None if receipt is None else receipt["row_count"]),
        ("Deleted before", None if receipt is None else receipt["deleted_rows"]),
    ]
    return [Fact(label, words.number(value)) for label, value in found if value is not None]


def _digests(history: History) -> list[Fact]:
    receipt = (history.last(S.PUBLISHED) or {}).get("receipt") or {}
    found = [
        ("Read from the source", (history.last(S.EXTRACTED) or {}).get("digest")),
        ("in the prepared table", (history.last(S.PREPARED) or {}).get("digest")),
        ("in the receipt", receipt.get("digest")),
    ]
    known = [(label, value) for label, value in found if value]
    if len({value for _, value in known}) == 1:
        return [Fact(", ".join(label for label, _ in known), known[0][1], code=True)]
    return [Fact(label, value, code=True) for label, value in known]


def _digests_said(history: History, digests: Sequence[Fact]) -> str:
    if len(digests) > 1:
        return "differ"
    return "agree" if history.last(S.PREPARED) is not None else "one"


_RECEIPT = (
    ("Receipt", "receipt_sha256"),
    ("Operation", "operation_id"),
    ("Published at", "published_at"),
    ("Rows", "row_count"),
    ("Deleted rows", "deleted_rows"),
    ("Digest", "digest"),
    ("Fence", "fence"),
    ("Durability", "durability"),
    ("Lock", "lock_mode"),
)


def _receipt(history: History) -> list[Fact]:
    receipt = (history.last(S.PUBLISHED) or {}).get("receipt") or {}
    return [Fact(label, str(receipt[name]), code=True) for label, name in _RECEIPT if name in receipt]


def _identifiers(view: DeliveryView, history: History) -> list[Fact]:
    found = view.invocation
    point = view.checkpoint
    published = history.last(S.PUBLISHING)
    facts = [
        Fact("Delivery (invocation_key)", found.invocation_key, code=True),
        Fact("Requester (delivery_key)", found.delivery_key, code=True),
        Fact("Plan", found.plan_sha256, code=True),
        Fact("Target", found.target_key, code=True),
        Fact("Route", found.route_scope, code=True),
        Fact("Journal", view.journal_id, code=True),
    ]
    if published is not None and point is not None:
        ours = "this delivery" if point.operation_id == published["operation_id"] else "a later delivery"
        facts.append(Fact("Checkpoint", f"revision {point.revision}, of {ours}"))
    if view.custody.held:
        ours = "this delivery" if view.custody.holder_key == found.invocation_key else "another delivery"
        facts.append(Fact("Target reserved", f"for {ours} since {words.instant(view.custody.since or '')}"))
    else:
        facts.append(Fact("Target reserved", "for nobody"))
    tuned = len(history.all(DeliveryEvent.TUNED))
    if tuned:
        facts.append(Fact("Tuned", words.times(tuned)))
    return facts


def _generations(view: DeliveryView) -> list[Mapping[str, Any]]:
    return [
        {
            "generation": one.generation,
            "state": one.state,
            "updated_at": words.instant(one.updated_at),
            "invocation_key": one.invocation_key,
            "is_this": one.invocation_key == view.invocation.invocation_key,
        }
        for one in view.generations
    ]
