"""The embedded source: chDB, the ClickHouse engine inside this process. For trying the product and for tests.

The engine opens one directory per process, and one process per directory; it is open only inside ``with``,
behind our own lock file. It survives no fork: a child that was forked while it is open must not use it.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import pyarrow as pa

from airflow_dpone.delivery.ports import Deadline, effect
from airflow_dpone.delivery.records import SourceQuery, SourceSnapshot, SourceTable
from airflow_dpone.delivery.window import Window
from airflow_dpone.embedded_lock import EmbeddedLock, EmbeddedLockBusy
from airflow_dpone.errors import ConfigurationError, DponeError, Problem, SourceUnavailable
from airflow_dpone.source_clickhouse import introspect, query_settings, statements
from airflow_dpone.source_clickhouse.block_stream import BlockStream, remaining_sec
from airflow_dpone.source_clickhouse.error_map import UNKNOWN_SETTING, error_of
from airflow_dpone.wire.types import WireLayout

LOCK_NAME = "dpone.lock"
_open_here: dict[str, int] = {}
"""Directories that this process has open, with the number of sources on each: the engine takes one only."""


_forked = threading.Event()


def _note_fork() -> None:
    """chDB leaves state behind even when it is closed: a query in a forked child never returns."""
    if "chdb" in sys.modules:
        _forked.set()


os.register_at_fork(after_in_child=_note_fork)


class EmbeddedSource:
    """A :class:`~airflow_dpone.delivery.ports.SourcePort` over a chDB directory.

    :param path: the directory; it must exist and hold chDB's data.
    :param lock_wait_sec: how long to wait for another process that has it open.
    """

    capabilities: Mapping[str, str] = {
        "row_policies": "absent",
        "server_identity": "absent",
        "query_log": "absent",
    }

    def __init__(self, path: str, *, lock_wait_sec: float) -> None:
        self._path = path
        self._lock = EmbeddedLock(os.path.join(path, LOCK_NAME), lock_wait_sec)
        self._directory = ""
        self._session: Any = None
        self._pid = 0
        self._sent: dict[str, str] = {}
        self._streams: list[BlockStream] = []

    # ---- open and close --------------------------------------------------------------------------------

    def __enter__(self) -> EmbeddedSource:
        if _forked.is_set():
            text = "this process was forked from one that had loaded chDB; the engine would hang in it"
            raise SourceUnavailable("dpone.source.forked", text, path=self._path)
        self._check_directory()
        directory = os.path.realpath(self._path)
        others = [other for other in _open_here if other != directory]
        if others:
            raise SourceUnavailable(
                "dpone.source.other_directory",
                f"This process has the chDB directory {others[0]!r} open, so it cannot open {self._path!r}.",
                path=self._path,
            )
        self._take_lock()
        self._directory, self._pid = directory, os.getpid()
        _open_here[directory] = _open_here.get(directory, 0) + 1
        try:
            self._session = self._new_session()
            self._sent = self._settings_of_engine()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        session, self._session = self._session, None
        streams, self._streams = self._streams, []
        try:
            # Each has a session of its own, and the engine stays open until the last one is closed.
            for stream in streams:
                stream.close()
            if session is not None:
                session.close()
        finally:
            if _open_here.get(self._directory):
                _open_here[self._directory] -= 1
                if not _open_here[self._directory]:
                    del _open_here[self._directory]
            self._lock.release()

    def _check_directory(self) -> None:
        if not os.path.isdir(self._path):
            text = (
                f"{self._path!r} is no directory; it is not created, because an empty source is never meant"
            )
        elif not os.path.isdir(os.path.join(self._path, "metadata")):
            text = f"{self._path!r} holds no chDB data: it has no 'metadata' directory"
        elif "?" in self._path:
            text = f"{self._path!r} has a '?' in its name, which chDB reads as options"
        else:
            return
        raise ConfigurationError.of([Problem("dpone.source.directory", "source", text)])

    def _take_lock(self) -> None:
        try:
            self._lock.__enter__()
        except EmbeddedLockBusy as busy:
            raise SourceUnavailable(
                "dpone.source.locked",
                f"The chDB directory {self._path!r} is in use by {busy.holder}; waited "
                f"{self._lock.wait_sec:g} s.",
                path=self._path,
                holder_pid=busy.holder_pid,
            ) from None
        except OSError as error:
            text = f"{self._lock.path!r} cannot be opened: {error.strerror}"
            raise ConfigurationError.of([Problem("dpone.source.directory", "source", text)]) from None

    def _new_session(self) -> Any:
        """A session of the engine; each read has one of its own, so that no other query ends its stream."""
        from chdb.session import Session

        open_session: Any = Session
        try:
            return open_session(self._directory)
        except RuntimeError as error:
            raise self._open_error(str(error)) from None

    def _open_error(self, text: str) -> DponeError:
        if "already initialized with path" in text:
            return SourceUnavailable(
                "dpone.source.other_directory",
                f"chDB is open in this process with another directory, so it cannot open {self._path!r}.",
                path=self._path,
            )
        return SourceUnavailable(
            "dpone.source.locked",
            f"chDB could not open {self._path!r}; another program may have it open without our lock.",
            path=self._path,
        )

    # ---- metadata --------------------------------------------------------------------------------------

    def describe(self, database: str, table: str) -> SourceTable:
        """Introspection; see the port. Settings of the session that would change results are problems."""
        problems = tuple(self._setting_problems(self._session))
        return introspect.describe(
            self._ask, database, table, capabilities=self.capabilities, problems=problems
        )

    def compile(
        self,
        table: SourceTable,
        layout: WireLayout,
        source_columns: Sequence[str],
        window_column: str | None,
        window: Window,
    ) -> SourceQuery:
        """The statement that reads the window; see the port."""
        return statements.compile_query(table, layout, source_columns, window_column, window)

    def find_rows_hint(self, query: SourceQuery, column: str, code: str) -> str:
        """A query that finds the rows of a data error; ``column`` is the source's name."""
        return statements.find_rows(query, column, code)

    def snapshot(self, query: SourceQuery) -> SourceSnapshot:
        """The table now; see the port."""
        return introspect.snapshot(self._ask, query, self._settings_of(query))

    def _settings_of(self, query: SourceQuery) -> dict[str, str]:
        """The closed list for a query, with blocks that fit the table's rows."""
        names = {"database": query.database, "table": query.table}
        ((row_bytes,),) = self._ask(statements.render(statements.ROW_BYTES, **names))
        return {**self._sent, "max_block_size": str(query_settings.block_rows(int(row_bytes)))}

    def _ask(self, statement: str) -> list[list[str]]:
        return self._rows(self._session, statement, self._sent)

    def _settings_of_engine(self) -> dict[str, str]:
        """The closed list as far as this engine knows it; already the first question carries it."""
        everything = query_settings.settings_to_send(query_settings.SENT_IF_KNOWN)
        statement = statements.known_settings(tuple(everything))
        try:
            known = self._rows(self._session, statement, everything)
        except DponeError as error:
            if error.fields.get("clickhouse_code") != UNKNOWN_SETTING:
                raise
            known = self._rows(self._session, statement, query_settings.ALWAYS_SENT)
        return query_settings.settings_to_send({name for (name,) in known})

    def _setting_problems(self, session: Any) -> list[Problem]:
        sent = {**self._sent, **query_settings.ARROW_SENT}
        rows = self._rows(session, statements.CHANGED_SETTINGS, sent)
        changed = [(name, value) for name, value in rows]
        return query_settings.setting_problems(changed, sent, query_settings.EMBEDDED_OWN)

    def _rows(self, session: Any, statement: str, settings: Mapping[str, str]) -> list[list[str]]:
        self._check_process()
        text = statements.with_settings(statement, settings)
        try:
            answer = session.query(text, "JSONCompactStrings").bytes()
        except RuntimeError as error:
            raise error_of(str(error), "reading the catalog") from None
        rows: list[list[str]] = json.loads(answer)["data"] if answer else []
        return rows

    def _check_process(self) -> None:
        if self._session is None:
            raise SourceUnavailable("dpone.source.closed", f"The chDB directory {self._path!r} is not open.")
        if self._pid != os.getpid():
            raise SourceUnavailable(
                "dpone.source.closed",
                "chDB was opened before this process was forked and cannot be used here.",
            )

    # ---- the read --------------------------------------------------------------------------------------

    @effect
    def read(self, query: SourceQuery, *, nonce: str, deadline: Deadline) -> Iterator[pa.RecordBatch]:
        """Runs the query once and yields raw batches; see the port. Leaving ``with`` ends it.

        :raises SourceUnavailable: the stream ended early, for whatever reason, or the deadline is over.
        :raises SourceDataError: the engine cannot read its own data.
        """
        self._check_process()
        seconds = math.ceil(remaining_sec(deadline))
        session = self._new_session()
        try:
            problems = self._setting_problems(session)
            if problems:
                raise ConfigurationError.of(problems)
        except BaseException:
            session.close()
            raise
        settings = {
            **self._settings_of(query),
            **query_settings.ARROW_SENT,
            "max_execution_time": str(seconds),
            "log_comment": nonce,
        }
        stream = BlockStream(session, statements.with_settings(query.text, settings), deadline)
        self._streams.append(stream)
        return stream
