"""One session with the server, opened as the protocol demands and asked whether it is so.

Everything that the driver raises leaves as pyodbc.Error; callers map it (``error_map.mapped``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pyodbc

from airflow_dpone.errors import TargetBusy
from airflow_dpone.target_sqlserver import odbc
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.connection import SqlServerConnection

Row = tuple[Any, ...]
LOCK_TIMEOUT_MS = 600_000


class Session:
    """Batches on one connection. An answer is always read to its end: an error may stand behind a result."""

    def __init__(self, connection: pyodbc.Connection) -> None:
        self._connection = connection

    @classmethod
    def open(
        cls,
        where: SqlServerConnection,
        *,
        application: str = "airflow_dpone",
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
        login_timeout_sec: int | None = None,
    ) -> Session:
        """A session with our settings, asserted.

        :raises TargetBusy: ``dpone.target.session``: the server gave another session than was asked for.
        """
        seconds = where.login_timeout_sec if login_timeout_sec is None else login_timeout_sec
        session = cls(odbc.connect(where, application=application, login_timeout_sec=max(1, seconds)))
        try:
            session.execute(sql.session_settings(lock_timeout_ms))
            session.require_state(where.database, lock_timeout_ms)
        except BaseException:
            session.close()
            raise
        return session

    def require_state(self, database: str, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> None:
        """Asserts what :meth:`open` set: login triggers, ``user options`` and drivers differ."""
        facts = self.row(sql.SESSION_FACTS)
        problems = sql.session_problems(facts, database, lock_timeout_ms) if facts else ["it is not listed"]
        if problems:
            raise TargetBusy(
                "dpone.target.session", f"The server gave a session that is not right: {'; '.join(problems)}."
            )

    def close(self) -> None:
        """Ends the session; an open transaction is rolled back by the server. Broken already is fine."""
        with suppress(pyodbc.Error):
            self._connection.close()

    def limit(self, seconds: float) -> None:
        """How long a batch may run from now on; 0 is for ever. Whoever sets it sets it back."""
        self._connection.timeout = 0 if seconds <= 0 else max(1, int(seconds))

    def results(self, text: str, *parameters: object) -> list[list[Row]]:
        """Runs a batch and returns every result set, after reading all of them."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(text, *parameters)
            found: list[list[Row]] = []
            while True:
                if cursor.description is not None:
                    found.append([tuple(row) for row in cursor.fetchall()])
                if not cursor.nextset():
                    return found
        finally:
            with suppress(pyodbc.Error):
                cursor.close()

    def execute(self, text: str, *parameters: object) -> None:
        """Runs a batch for its effect."""
        self.results(text, *parameters)

    def rows(self, text: str, *parameters: object) -> list[Row]:
        """The rows of a batch with one result set."""
        found = self.results(text, *parameters)
        return found[-1] if found else []

    def row(self, text: str, *parameters: object) -> Row | None:
        """The first row, or None."""
        found = self.rows(text, *parameters)
        return found[0] if found else None

    def number(self, text: str, *parameters: object) -> int:
        """The one number of an answer: a count, or how many rows a batch says that it changed."""
        found = self.row(text, *parameters)
        return int(found[0]) if found else 0

    def lock(self, resource: str, timeout_ms: int) -> bool:
        """Takes an application lock until the open transaction ends; False when it is not granted in time."""
        granted = self.row(sql.TAKE_LOCK, resource, max(0, timeout_ms))
        return granted is not None and granted[0] is not None and int(granted[0]) >= 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN and a durable COMMIT around a block; ROLLBACK when it raises.

        A COMMIT without an answer raises like any other error. Whoever uses this does only what can be asked
        for again.
        """
        self.execute(sql.BEGIN)
        try:
            yield
        except BaseException:
            with suppress(pyodbc.Error):
                self.execute(sql.ROLLBACK)
            raise
        self.execute(sql.COMMIT)


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, at least 0."""
    return max(0, int(seconds * 1000))
