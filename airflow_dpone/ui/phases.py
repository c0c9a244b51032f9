"""A delivery's events as lists for reading: its phases, chunks, tries, and the events themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import states as s
from airflow_dpone.delivery.history import Attempt, History
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState
from airflow_dpone.journal.delivery_view import DeliveryView
from airflow_dpone.ui import words

S = DeliveryState
NAMES: Mapping[DeliveryState, tuple[str, str]] = {
    S.PLANNED: ("Admit", "the plan is frozen, the target reserved"),
    S.EXTRACTED: ("Extract", "the window is read into sealed chunks"),
    S.STAGED: ("Stage", "every chunk is proved inside the target"),
    S.PREPARED: ("Verify", "one prepared table is proved and checked"),
    S.PUBLISHED: ("Publish", "one transaction makes it visible, with a receipt"),
    S.EVIDENCED: ("Evidence", "the evidence document is stored"),
    S.COMPLETED: ("Checkpoint", "the checkpoint names the receipt; all is tidied up"),
}
ORDER = tuple(NAMES)


@dataclass(frozen=True)
class Phase:
    """One of the seven.

    :param mark: ``done``, ``now`` (a worker is at it), ``stopped`` or ``open``.
    :param took: how long, or ''. :param share: of the longest phase, 0 to 100.
    """

    name: str
    about: str
    mark: str
    at: str = ""
    took: str = ""
    seconds: float | None = None
    share: int = 0
    said: str = ""


@dataclass(frozen=True)
class ChunkLine:
    """A sealed chunk and what became of it in the target."""

    ordinal: int
    rows: str
    size: str
    digest: str
    attempts: int
    state: str


@dataclass(frozen=True)
class Try:
    """What one try of a task did."""

    task_id: str
    try_number: int
    ti_id: str
    fences: str
    first: str
    last: str
    events: int
    reached: str


@dataclass(frozen=True)
class EventLine:
    """One event."""

    at: str
    event: str
    stream: str
    sequence: int
    fence: str
    sha256: str


def is_at_work(view: DeliveryView) -> bool:
    """Whether a process with a living lease works on this very generation."""
    worker = view.worker
    return (
        worker is not None
        and worker.works
        and worker.delivery_key == view.invocation.delivery_key
        and view.custody.holder_key == view.invocation.invocation_key
    )


def phases_of(view: DeliveryView, history: History) -> list[Phase]:
    """All seven, with what is known of each."""
    reached = _reached(view.events)
    lines: list[Phase] = []
    before: str | None = None
    for state in ORDER:
        name, about = NAMES[state]
        at = reached.get(state)
        if at is None:
            lines.append(Phase(name, about, "open"))
            continue
        seconds = None if before is None else words.seconds_between(before, at)
        took = "" if seconds is None else words.duration(seconds)
        said = _said(state, history)
        lines.append(Phase(name, about, "done", words.instant(at), took, seconds, 0, said))
        before = at
    return _with_shares(_with_place(lines, view, history))


def _reached(events: Sequence[jr.Event]) -> dict[DeliveryState, str]:
    """When each boundary was reached last. One that was gone back behind is not reached any more."""
    reached: dict[DeliveryState, str] = {}
    for event in events:
        if event.stream.startswith("delivery/") and event.event in ORDER:
            state = DeliveryState(event.event)
            reached = {one: at for one, at in reached.items() if ORDER.index(one) < ORDER.index(state)}
            reached[state] = event.body["created_at"]
    return reached


def _with_place(lines: list[Phase], view: DeliveryView, history: History) -> list[Phase]:
    """Marks the phase where it is, or where it stopped."""
    here = next((place for place, line in enumerate(lines) if line.mark == "open"), None)
    if here is None:
        return lines
    mark = "now" if is_at_work(view) else "stopped"
    lines[here] = replace(lines[here], mark=mark, said=_so_far(ORDER[here], view, history))
    return lines


def _with_shares(lines: list[Phase]) -> list[Phase]:
    longest = max((line.seconds or 0.0 for line in lines), default=0.0)
    if not longest:
        return lines
    return [
        replace(line, share=max(1, round(100 * line.seconds / longest))) if line.seconds else line
        for line in lines
    ]


def _said(state: DeliveryState, history: History) -> str:
    payload = history.last(state) or {}
    if state is S.EXTRACTED:
        chunks = payload["chunks"]
        return (
            f"{words.rows(payload['rows'])} in {chunks} chunk{'' if chunks == 1 else 's'}, "
            f"{words.size(payload['encoded_bytes'])}"
        )
    if state is S.STAGED:
        return f"{words.rows(payload['rows'])} proved"
    if state is S.PREPARED:
        passed = [check for check in payload["quality"] if check["passed"]]
        checks = f", {len(passed)} of {len(payload['quality'])} checks passed" if payload["quality"] else ""
        return f"{words.rows(payload['rows'])}{checks}"
    if state is S.PUBLISHED:
        receipt = payload["receipt"]
        sends = len(history.all(S.PUBLISHING))
        again = "" if sends == 1 else f", sent {words.times(sends)}"
        return f"{words.number(receipt['row_count'])} in, {words.number(receipt['deleted_rows'])} out{again}"
    if state is S.EVIDENCED:
        return words.short(payload["evidence_sha256"])
    if state is S.COMPLETED:
        return f"revision {history.required(S.CHECKPOINTED)['revision']}"
    return ""


def _so_far(state: DeliveryState, view: DeliveryView, history: History) -> str:
    """What is known of a phase that is not over."""
    if view.invocation.state in s.IN_DOUBT:
        return f"sent {words.times(len(history.all(S.PUBLISHING)))}; the answer is not known"
    if state is S.EXTRACTED and history.open_epoch is not None:
        sealed = [
            chunk
            for chunk in history.all(DeliveryEvent.CHUNK_SEALED)
            if chunk["extraction_epoch"] == history.open_epoch
        ]
        if not sealed:
            return "reading; no chunk is sealed yet"
        return f"{words.rows(sum(chunk['rows'] for chunk in sealed))} in {len(sealed)} chunks so far"
    if state is S.STAGED:
        chunks = history.chunks
        proved = sum(1 for chunk in chunks if history.verified(chunk) is not None)
        return f"{proved} of {len(chunks)} chunks proved so far"
    return ""


def chunk_lines(history: History) -> list[ChunkLine]:
    """The chunks of the newest extraction, finished or not."""
    epochs = [opened["extraction_epoch"] for opened in history.all(DeliveryEvent.EPOCH_OPENED)]
    sealed = [r.SealedChunk.from_json(body) for body in history.all(DeliveryEvent.CHUNK_SEALED)]
    newest = [chunk for chunk in sealed if epochs and chunk.extraction_epoch == epochs[-1]]
    return [_chunk_line(chunk, history) for chunk in sorted(newest, key=lambda chunk: chunk.ordinal)]


def _chunk_line(chunk: r.SealedChunk, history: History) -> ChunkLine:
    attempts = history.attempts_of(chunk)
    return ChunkLine(
        ordinal=chunk.ordinal,
        rows=words.number(chunk.rows),
        size=words.size(chunk.encoded_bytes),
        digest=chunk.digest_sum.digest,
        attempts=len(attempts),
        state=_became(attempts[-1]) if attempts else "sealed",
    )


def _became(attempt: Attempt) -> str:
    """The last word of an attempt; a proved one that was tidied away stays proved."""
    diagnosis = (attempt.observation or {}).get("diagnostic_code")
    if attempt.event is AttemptEvent.RETIRED and diagnosis == s.DiagnosticCode.PUBLISHED_CLEANUP:
        return "VERIFIED, published"
    return attempt.event.value


def tries_of(events: Iterable[jr.Event]) -> list[Try]:
    """Who wrote the delivery's stream, in order of appearance."""
    found: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
    for event in events:
        if event.stream.startswith("delivery/"):
            asked = event.body["requester"]
            key = (asked["task_id"], asked["try_number"], asked["ti_id"])
            found.setdefault(key, []).append(event.body)
    return [_try(*key, bodies) for key, bodies in found.items()]


def _try(task_id: str, number: int, ti_id: str, bodies: Sequence[Mapping[str, Any]]) -> Try:
    states = [body["event"] for body in bodies if body["event"] in DeliveryState.__members__]
    fences = sorted({int(body["fence"]) for body in bodies})
    return Try(
        task_id=task_id,
        try_number=number,
        ti_id=ti_id,
        fences=", ".join(map(str, fences)),
        first=words.instant(bodies[0]["created_at"]),
        last=words.instant(bodies[-1]["created_at"]),
        events=len(bodies),
        reached=states[-1] if states else "",
    )


def event_lines(events: Iterable[jr.Event]) -> list[EventLine]:
    """Every event by its time; those of one stream stay in their order."""
    lines = [
        EventLine(
            at=event.body["created_at"],
            event=event.event,
            stream="delivery" if event.stream.startswith("delivery/") else f"chunk {event.body['ordinal']}",
            sequence=event.sequence,
            fence=str(event.body.get("fence") or ""),
            sha256=words.short(event.sha256),
        )
        for event in events
    ]
    return sorted(lines, key=lambda line: line.at)
