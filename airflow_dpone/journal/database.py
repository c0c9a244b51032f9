"""The journal's database session: the one place that knows dialects, durability and drivers' error numbers.

What commits here survives the loss of power: SQLite runs in WAL mode with ``synchronous=FULL``. A write
transaction takes the write lock when it begins, so that what it read is still true when it writes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, String, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import QueuePool
from sqlalchemy.sql.functions import FunctionElement

from airflow_dpone.errors import JournalError
from airflow_dpone.journal.address import JournalAddress

BUSY_TIMEOUT_SEC = 30.0

SQLITE_ERRORS = {
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


class Clock(FunctionElement[str]):
    """The database's clock now, plus its argument in seconds, as canonical text."""

    type = String()
    name = "dpone_clock"
    inherit_cache = True


@compiles(Clock, "sqlite")
def _sqlite_clock(element: Clock, compiler: Any, **options: Any) -> str:
    # SQLite knows milliseconds. 'now' is one moment for the whole statement.
    seconds = compiler.process(element.clauses, **options)
    return f"(strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', {seconds})) || '000Z')"


@compiles(Clock, "postgresql")
def _postgresql_clock(element: Clock, compiler: Any, **options: Any) -> str:
    # clock_timestamp(), since now() is the start of the transaction, which may have waited for a lock.
    seconds = compiler.process(element.clauses, **options)
    moment = f"clock_timestamp() + make_interval(secs => {seconds})"
    return f"to_char(({moment}) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"


class Database:
    """An engine with this journal's rules. Thread-safe; never carry one over a fork.

    :param create: whether a missing SQLite file is created.
    """

    def __init__(self, address: JournalAddress, *, create: bool = False) -> None:
        self.address = address
        self._engine = _sqlite_engine(address.path, create=create)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One moment of the database: everything read inside belongs together."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: lands whole and durable, or not at all. Waits for others up to 30 s."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def close(self) -> None:
        """Closes every connection; the next use opens new ones."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                connection.execution_options(dpone_begin=begin)
                with connection.begin():
                    yield connection
        except SQLAlchemyError as error:
            raise self.translated(error) from error

    def translated(self, error: SQLAlchemyError) -> JournalError:
        """The database's error as ours: by number, never by text, and without any value."""
        original = error.orig if isinstance(error, DBAPIError) else None
        number = getattr(original, "sqlite_errorcode", None)
        code = (
            "dpone.journal.failed"
            if number is None
            else SQLITE_ERRORS.get(number & 0xFF, "dpone.journal.failed")
        )
        name = getattr(original, "sqlite_errorname", type(original or error).__name__)
        text = f"The journal {self.address.path} answered {name}: {original or type(error).__name__}."
        return JournalError(code, text, path=str(self.address.path), database_error=name)


def _sqlite_engine(path: Path, *, create: bool) -> Engine:
    uri = f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}"

    def connect() -> sqlite3.Connection:
        # isolation_level None: the driver begins nothing by itself; the listener below says how.
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_TIMEOUT_SEC, isolation_level=None, check_same_thread=False
        )
        try:
            _configure(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    engine = create_engine(
        "sqlite://", creator=connect, poolclass=QueuePool, pool_size=2, max_overflow=8, hide_parameters=True
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("dpone_begin", "BEGIN"))

    return engine


def _configure(connection: sqlite3.Connection) -> None:
    # Damaged text must reach the chain's check, which names it, instead of failing in the driver.
    connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    if mode != "wal":
        raise sqlite3.OperationalError(f"the write-ahead log cannot be switched on (mode {mode})")
