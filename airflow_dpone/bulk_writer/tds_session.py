"""One TDS session of a writer: its questions, and what gives it the right to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_dpone.bulk_writer import statements
from airflow_dpone.bulk_writer.messages import Diagnostic, Outcome
from airflow_dpone.target_sqlserver import statements as session_sql
from airflow_dpone.target_sqlserver.marks import Mark

Json = Mapping[str, Any]

_LOCK_TIMEOUT_MS = 30_000  # of statements; the load's own lock is the table's, and nobody else is there


@dataclass
class Stop(Exception):
    """The write ends here, with this outcome and its diagnostic."""

    outcome: Outcome
    why: Diagnostic


class NoAnswer(Exception):
    """The session did not answer, or not as it should; the driver's text stays here."""


@dataclass(frozen=True)
class Custody:
    """What gives a session the right to write; equal before and after a load, or the load proves nothing."""

    spid: int
    login_time: str
    context: bytes | None
    lock_mode: str
    object_id: int | None
    mark: str | None

    def is_of(self, request: Json) -> bool:
        """Whether this session holds the lock, and has the name that the writer gave to its own."""
        token = bytes.fromhex(request["grant_token_sha256"])
        return (bytes(self.context or b""), self.lock_mode) == (token, "Exclusive")

    def admits(self, request: Json) -> bool:
        """Whether the stage is the one, is ours, and is granted to this writer and not sealed."""
        mark = Mark.parse(self.mark)
        if mark is None or not mark.is_granted_to(request["grant_token_sha256"]):
            return False
        asked = (request["owner"], request["object_id"], request["object_id"])
        return (mark.owner, mark.object_id, self.object_id) == asked


class Session:
    """One session of the core: everything happens on one cursor.

    :param connection: it stays referenced here: without it the cursor ends in the middle of a call.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.cursor = connection.cursor()
        self._asked = 0

    def settle(self, database: str) -> None:
        """The opening batch, and the check of what it brought about. Raises :class:`NoAnswer`."""
        self._run(session_sql.session_settings(_LOCK_TIMEOUT_MS))
        facts = self._run(session_sql.SESSION_FACTS)
        if len(facts) != 1 or session_sql.session_problems(facts[0], database, _LOCK_TIMEOUT_MS):
            raise NoAnswer

    def take_lock(self, request: Json) -> bool:
        """Names the session and takes the grant's lock; False if it is not free. Raises :class:`NoAnswer`."""
        self._run(statements.name_session(request["grant_token_sha256"]))
        lock = session_sql.stage_lock(request["grant_token_sha256"])
        (granted,) = self._ask(lambda number: statements.take_lock(number, lock))
        return granted in (0, 1)

    def custody(self, request: Json) -> Custody:
        """What it holds now. Raises :class:`NoAnswer`."""
        lock = session_sql.stage_lock(request["grant_token_sha256"])
        where = (request["stage_schema"], request["stage_name"], request["object_id"])
        return Custody(*self._ask(lambda number: statements.custody(number, lock, *where)))

    def close(self) -> None:
        """Ends the session, and with it the lock."""
        self._connection.close()

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            self.cursor.execute(statement)
            return list(self.cursor.fetchall())
        except Exception as error:
            raise NoAnswer from error

    def _ask(self, question: Callable[[int], str]) -> tuple[Any, ...]:
        self._asked += 1
        rows = self._run(question(self._asked))
        if len(rows) != 1 or rows[0][0] != self._asked:
            raise NoAnswer
        return rows[0][1:]
