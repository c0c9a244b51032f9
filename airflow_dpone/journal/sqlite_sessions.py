"""Sessions on a SQLite file: write-ahead log, every commit synced, the write lock taken at the beginning."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

BUSY_TIMEOUT_SEC = 30.0

CODES = {
    5: "dpone.journal.unavailable",  # BUSY
    6: "dpone.journal.unavailable",  # LOCKED
    8: "dpone.journal.unavailable",  # READONLY
    10: "dpone.journal.unavailable",  # IOERR
    13: "dpone.journal.unavailable",  # FULL
    14: "dpone.journal.unavailable",  # CANTOPEN
    11: "dpone.journal.damaged",  # CORRUPT
    19: "dpone.journal.write_refused",  # CONSTRAINT
    26: "dpone.journal.not_a_database",  # NOTADB
}
"""By primary result code; a number that is not here is ``dpone.journal.failed``, which is not retried."""


class SqliteSessions:
    """The engine of a file.

    :param create: whether a missing file is created.
    """

    begin_read = "BEGIN"
    begin_write = "BEGIN IMMEDIATE"

    def __init__(self, path: Path, *, create: bool) -> None:
        self._uri = f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}"
        self.engine: Engine = create_engine(
            "sqlite://",
            creator=self._connect,
            poolclass=QueuePool,
            pool_size=2,
            max_overflow=8,
            hide_parameters=True,
        )

    def explain(self, error: DBAPIError) -> tuple[str, str, str]:
        """By the primary result code."""
        original = error.orig
        number = getattr(original, "sqlite_errorcode", None)
        code = "dpone.journal.failed"
        if number is not None:
            code = CODES.get(number & 0xFF, code)
        return code, getattr(original, "sqlite_errorname", type(original).__name__), str(original)

    def _connect(self) -> sqlite3.Connection:
        # isolation_level None: the driver begins nothing by itself; begin_read and begin_write say how.
        connection = sqlite3.connect(
            self._uri, uri=True, timeout=BUSY_TIMEOUT_SEC, isolation_level=None, check_same_thread=False
        )
        try:
            _configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _configure(connection: sqlite3.Connection) -> None:
    # Damaged text must reach the chain's check, which names it, instead of failing in the driver.
    connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    if mode != "wal":
        raise sqlite3.OperationalError(f"the write-ahead log cannot be switched on (mode {mode})")
