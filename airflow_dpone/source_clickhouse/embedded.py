"""The embedded source: chDB, the ClickHouse engine inside this process. For trying the product and for tests.

The engine opens one directory per process, and one process per directory; it is open only inside ``with``,
behind our own lock file. It survives no fork: a child that was forked while it is open must not use it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.embedded_lock import EmbeddedLock, EmbeddedLockBusy
from airflow_dpone.errors import ConfigurationError, DponeError, Problem, SourceUnavailable
from airflow_dpone.source_clickhouse import query_settings
from airflow_dpone.source_clickhouse.block_stream import BlockStream
from airflow_dpone.source_clickhouse.error_map import error_of
from airflow_dpone.source_clickhouse.introspect import Admission
from airflow_dpone.source_clickhouse.session import Session
from airflow_dpone.source_clickhouse.source import ClickHouseSource

LOCK_NAME = "dpone.lock"
_open_here: dict[str, int] = {}
"""Directories that this process has open, with the number of sources on each: the engine takes one only."""


_forked = threading.Event()


def _note_fork() -> None:
    """chDB leaves state behind even when it is closed: a query in a forked child never returns."""
    if "chdb" in sys.modules:
        _forked.set()


os.register_at_fork(after_in_child=_note_fork)


class EngineSession:
    """One session of the engine; each read has one of its own, so that no other query ends its stream."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def rows(self, statement: str) -> list[list[str]]:
        """See :class:`~airflow_dpone.source_clickhouse.session.Session`."""
        try:
            answer = self._session.query(statement, "JSONCompactStrings").bytes()
        except RuntimeError as error:
            raise error_of(str(error), "reading the catalog") from None
        rows: list[list[str]] = json.loads(answer)["data"] if answer else []
        return rows

    def stream(self, statement: str, *, query_id: str, deadline: Deadline) -> BlockStream:
        """The stream of a query. The engine takes no id of a query; it finds the nonce in ``log_comment``."""
        return BlockStream(self._session, statement, deadline)

    def close(self) -> None:
        """Doing so twice is fine."""
        self._session.close()


class EmbeddedSource(ClickHouseSource):
    """A :class:`~airflow_dpone.delivery.ports.SourcePort` over a chDB directory.

    :param path: the directory; it must exist and hold chDB's data.
    :param lock_wait_sec: how long to wait for another process that has it open.
    """

    capabilities: Mapping[str, str] = {
        "row_policies": "absent",
        "server_identity": "absent",
        "query_log": "absent",
    }
    own_settings = query_settings.EMBEDDED_OWN
    format_settings = query_settings.ARROW_SENT

    def __init__(self, path: str, *, lock_wait_sec: float, admission: Admission | None = None) -> None:
        super().__init__(admission)
        self._path = path
        self._lock = EmbeddedLock(os.path.join(path, LOCK_NAME), lock_wait_sec)
        self._directory = ""

    @property
    def name(self) -> str:
        """The directory."""
        return f"The chDB directory {self._path!r}"

    # ---- open and close --------------------------------------------------------------------------------

    def _acquire(self) -> None:
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
        self._directory = directory
        _open_here[directory] = _open_here.get(directory, 0) + 1

    def _release(self) -> None:
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

    def _new_session(self) -> Session:
        from chdb.session import Session

        open_session: Any = Session
        try:
            return EngineSession(open_session(self._directory))
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
