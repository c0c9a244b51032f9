"""``recovery writer``: the server's sessions of writers that a delivery cannot tell to have ended.

A writer may be gone while the server still believes in its session: it then holds its staging table, and the
delivery keeps the target until it has ended. The session is found by the digest of its attempt's grant, which
it carries as its context: a writer that died may never have said which session it had. The digest is of the
attempt alone and is made directly before the grant, so what carries it has logged in after that.

Looking changes nothing. Ending a session needs the delivery's lease, so no process of it is at work, and the
session must still be exactly the one that was seen. The journal is not told: what the attempt's table holds
is decided by the barrier, when the task is cleared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.governed import refuse_foreign_gate
from airflow_dpone.delivery.history import Attempt, History
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.delivery.states import AttemptEvent, DeliveryState
from airflow_dpone.errors import ConfigurationError

log = logging.getLogger(__name__)
A = AttemptEvent
LEASE_TTL_SEC = 60.0
COMMAND = "python -m airflow_dpone recovery writer"
WRITER_LIVES = "dpone.target.writer_lives"
IN_DOUBT = frozenset({A.WRITING, A.WRITER_TERMINAL, A.UNKNOWN, A.INCIDENT_RETAINED})
"""A writer was started, and no barrier has proved it gone since."""


@dataclass(frozen=True)
class WriterSession:
    """A session of the server, as it was seen.

    :param login_time: by the server's clock, as its text: it is compared as it is. :param context_info: hex;
        it begins with the digest of the writer's grant, which names an attempt and is no secret.
    :param kill: the statement that ends the session with this number.
    """

    session_id: int
    login_time: str
    context_info: str
    program_name: str
    host_name: str
    login_name: str
    status: str
    kill: str


@dataclass(frozen=True)
class WriterSessions:
    """Every session of a bulk writer on the server. :param login: who asked. :param may_end: whether that
    login may end sessions."""

    login: str
    may_end: bool
    found: tuple[WriterSession, ...]


class SessionsPort(AbstractContextManager["SessionsPort"], Protocol):
    """A target whose writers have sessions."""

    def identify(
        self, schema: str, table: str, *, initialise: bool, may_be_missing: bool = False
    ) -> tr.TargetIdentity:
        """As of the target's port."""

    def writer_sessions(self) -> WriterSessions:
        """Sessions of writers of every delivery and database of the server. Raises ConfigurationError
        ``dpone.recovery.sessions_hidden`` when the login does not see them."""

    def end_writer(self, session: WriterSession) -> None:
        """Ends exactly this session. Raises ConfigurationError ``dpone.recovery.session_changed`` when it is
        not the one any more; then nothing was ended."""


@dataclass(frozen=True)
class LostWriter:
    """A session that carries the grant of an attempt. :param ended: the server was told to end it."""

    attempt_id: str
    ordinal: int
    stage_name: str
    attempt: str
    session: WriterSession
    ended: bool = False


@dataclass(frozen=True)
class WriterSearch:
    """What the command found, and did.

    :param in_doubt: attempts whose writers are not known to have ended; without any the server is not asked.
    :param login: who asked the server; None when it was not asked. :param may_end: likewise, whether that
        login may end sessions.
    """

    invocation_key: str
    state: str
    target: tuple[str, str]
    in_doubt: int
    login: str | None
    may_end: bool | None
    writers: tuple[LostWriter, ...]

    def to_json(self) -> r.Json:
        """``dpone.recovery-writer.v1``."""
        return {"schema": "dpone.recovery-writer.v1", **asdict(self), "target": list(self.target)}


def find_writers(journal: JournalPort, target: SessionsPort, invocation_key: str) -> WriterSearch:
    """Looks for the sessions, and changes nothing.

    Raises ConfigurationError for a delivery that the journal does not know, for a database that is not its
    target's, and for a login that does not see sessions.
    """
    return _search(journal, target, _known(journal, invocation_key))


def end_writers(journal: JournalPort, target: SessionsPort, invocation_key: str) -> WriterSearch:
    """Looks for the sessions and ends each that is still exactly the one that was seen.

    Raises as :func:`find_writers`; LeaseHeld while a process works on the delivery, CustodyHeld when another
    delivery has the target by now; JournalError when another journal governs the table, or this one has lost
    its end: the fence that the lease takes would hide that. A crash in between has ended some of them: the
    next call finds the others.
    """
    found = _known(journal, invocation_key)
    seen = _search(journal, target, found, ends=True)
    if not seen.writers:
        return seen
    with _lease(journal, found):
        seen = _search(journal, target, found, ends=True)
        with target:
            return replace(seen, writers=tuple(_ended(target, writer) for writer in seen.writers))


def command_line(invocation_key: str) -> str:
    """What a person runs to see the session that a delivery waits for."""
    return f"{COMMAND} --target URI_OR_ID --delivery {invocation_key}"


def _ended(target: SessionsPort, writer: LostWriter) -> LostWriter:
    target.end_writer(writer.session)
    log.warning(
        "session %d of the writer of %s was ended by a person's command",
        writer.session.session_id,
        writer.stage_name,
    )
    return replace(writer, ended=True)


def _known(journal: JournalPort, invocation_key: str) -> jr.Invocation:
    found = journal.invocation(invocation_key)
    if found is None:
        text = f"the journal knows no delivery {invocation_key}"
        raise ConfigurationError("dpone.recovery.no_delivery", text, invocation_key=invocation_key)
    return found


def _search(
    journal: JournalPort, target: SessionsPort, found: jr.Invocation, *, ends: bool = False
) -> WriterSearch:
    history = History.of(found.invocation_key, journal.events(found.invocation_key))
    planned = FrozenPlan.from_json(history.required(DeliveryState.PLANNED)).target
    by_grant = _in_doubt(history)
    search = WriterSearch(
        invocation_key=found.invocation_key,
        state=str(history.state),
        target=(planned.schema, planned.table),
        in_doubt=len(by_grant),
        login=None,
        may_end=None,
        writers=(),
    )
    if not by_grant:
        return search
    with target:
        gate = _gate_of(target, planned)
        if ends and gate is not None:
            refuse_foreign_gate(journal, planned, gate)
        sessions = target.writer_sessions()
    writers = tuple(
        _lost(by_grant[grant], session)
        for session in sessions.found
        if (grant := session.context_info[:64]) in by_grant
    )
    return replace(search, login=sessions.login, may_end=sessions.may_end, writers=writers)


def _in_doubt(history: History) -> dict[str, Attempt]:
    """The attempts whose writers may live, by the digest that such a writer's session carries."""
    found = [a for a in history.attempts.values() if a.event in IN_DOUBT]
    return {str(a.writer_binding["grant_token_sha256"]): a for a in found if a.writer_binding is not None}


def _lost(attempt: Attempt, session: WriterSession) -> LostWriter:
    return LostWriter(
        attempt.attempt_id,
        attempt.ordinal,
        attempt.stage_binding["stage_name"],
        str(attempt.event),
        session,
    )


def _gate_of(target: SessionsPort, planned: tr.TargetRef) -> tr.GateRow | None:
    """The delivery's own database is asked: on another server no such session would say nothing."""
    found = target.identify(planned.schema, planned.table, initialise=False, may_be_missing=True)
    if found.installation_id is None or found.target_key != planned.target_key:
        text = f"this database does not know {planned.schema}.{planned.table} as this delivery's target"
        own = "Name the delivery's own database with --target."
        raise ConfigurationError("dpone.recovery.target_unknown", text, next_action=own)
    return found.gate


@contextmanager
def _lease(journal: JournalPort, found: jr.Invocation) -> Iterator[None]:
    """If it expires meanwhile nothing is lost: the sessions are of attempts that were there before."""
    asked = r.Requester(
        found.dag_id,
        found.run_id,
        "recovery writer",
        map_index=found.map_index,
        ti_id="recovery writer",
        delivery_task_id=found.delivery_task_id,
    )
    lease = journal.acquire(found.target_key, asked, ttl_sec=LEASE_TTL_SEC, gate_fence=0)
    try:
        yield
    finally:
        journal.release(lease)
