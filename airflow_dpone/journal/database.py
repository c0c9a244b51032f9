"""The journal's database: transactions that are durable and whole, and the few words in which databases
differ.

What commits here survives the loss of power. SQLite takes its write lock when a write transaction begins; on
PostgreSQL the lease row, which every write locks first, does the same for one target. So what was read under
the lock is still true when it is written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, String, Table, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from airflow_dpone.errors import ConfigurationError, JournalError
from airflow_dpone.journal.address import JournalAddress, PostgresqlDatabase, SqliteFile

INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


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


def insert_missing(connection: Connection, table: Table, **values: Any) -> None:
    """Inserts a row unless one of its key is there, also one that another session inserts right now."""
    statement = INSERTS[connection.dialect.name](table).values(**values)
    connection.execute(statement.on_conflict_do_nothing())


def lock_name(connection: Connection, name: str) -> None:
    """Waits until no other write transaction has locked this name; holds it until the end of this one.

    For what no lease row guards. SQLite's write transactions exclude each other anyway.
    """
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        connection.execute(select(func.pg_advisory_xact_lock(number)))


class Sessions(Protocol):
    """One kind of database: its engine, how its transactions begin, and what its errors mean."""

    engine: Engine
    begin_read: str
    begin_write: str

    def explain(self, error: DBAPIError) -> tuple[str, str, str]:
        """(code, the database's name for it, text without any value), by number and never by text."""


class Database:
    """An engine with this journal's rules. Thread-safe.

    A forked process opens connections of its own; those of its parent stay the parent's. A fork in the middle
    of a transaction is not supported.

    :param create: whether a missing SQLite file is created; a server's database never is.
    """

    def __init__(self, address: JournalAddress, *, create: bool = False) -> None:
        self.address = address
        self._sessions = _sessions(address, create=create)
        self._pid = os.getpid()

        @event.listens_for(self._sessions.engine, "begin")
        def begin(connection: Connection) -> None:
            words = connection.get_execution_options()["dpone_begin"]
            connection.exec_driver_sql(words, execution_options={"no_parameters": True})

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One moment of the database: everything read inside belongs together."""
        with self._transaction(self._sessions.begin_read) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: lands whole and durable, or not at all. Waits for others up to 30 s.

        ``dpone.journal.unavailable`` from its end is the one error that leaves open which of the two it was:
        the server's answer to the commit was lost.
        """
        with self._transaction(self._sessions.begin_write) as connection:
            yield connection

    def close(self) -> None:
        """Closes every connection; the next use opens new ones."""
        self._sessions.engine.dispose()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[Connection]:
        if os.getpid() != self._pid:
            self._sessions.engine.dispose(close=False)
            self._pid = os.getpid()
        try:
            with self._sessions.engine.connect() as connection:
                connection.execution_options(dpone_begin=begin)
                with connection.begin():
                    yield connection
        except SQLAlchemyError as error:
            # Without its cause: a server's own text quotes values.
            raise self.translated(error) from None

    def translated(self, error: SQLAlchemyError) -> JournalError:
        """The database's error as ours."""
        code, name, text = "dpone.journal.failed", type(error).__name__, ""
        if isinstance(error, DBAPIError):
            code, name, text = self._sessions.explain(error)
        elif isinstance(error, NoConnectionFree):
            code = "dpone.journal.unavailable"
        message = f"The journal {self.address} answered {name}{': ' if text else ''}{text.rstrip('.')}."
        return JournalError(code, message, journal=str(self.address), database_error=name)


def _sessions(address: JournalAddress, *, create: bool) -> Sessions:
    if isinstance(address, PostgresqlDatabase):
        try:
            from airflow_dpone.journal.postgresql_sessions import PostgresqlSessions
        except ImportError as error:
            text = f"The journal {address} needs psycopg 3.3.6 or newer, which cannot be loaded here."
            raise ConfigurationError("dpone.journal.driver_missing", text) from error
        return PostgresqlSessions(address)
    if isinstance(address, SqliteFile):
        from airflow_dpone.journal.sqlite_sessions import SqliteSessions

        return SqliteSessions(address.path, create=create)
    raise TypeError(f"{type(address).__name__} is no kind of journal")
