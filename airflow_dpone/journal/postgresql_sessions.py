"""Sessions on PostgreSQL: commits that are flushed whatever the server's default, and no wait without end.

The session trusts no default of server, database or role: each transaction says its isolation, its durability
and its limits itself. A server that may forget what it has confirmed is refused.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError

from airflow_dpone.errors import JournalError
from airflow_dpone.journal.address import PostgresqlDatabase

log = logging.getLogger(__name__)

if "timeout" not in inspect.signature(psycopg.Connection.wait).parameters:
    raise ImportError("psycopg is older than 3.3.6: its waits cannot be limited")

OLDEST_VERSION = 13
CONNECT_SEC = 10
LOCK_SEC = 30
STATEMENT_SEC = 45
IDLE_SEC = 30
"""A process that was stopped inside a transaction loses it, so that nobody waits for it for ever."""
ANSWER_SEC = 60
"""When the server does not even say that a limit was reached, the connection is given up."""

CODES = {
    "08": "dpone.journal.unavailable",  # connection
    "22": "dpone.journal.write_refused",  # a value that its column cannot hold
    "23": "dpone.journal.write_refused",  # constraints
    "25006": "dpone.journal.standby",  # read-only transaction
    "25P03": "dpone.journal.unavailable",  # idle in transaction for too long
    "25P04": "dpone.journal.unavailable",  # transaction timeout
    "40": "dpone.journal.unavailable",  # serialisation, deadlock
    "53": "dpone.journal.unavailable",  # disk, memory, connections
    "55006": "dpone.journal.unavailable",  # object in use
    "55P03": "dpone.journal.unavailable",  # lock not available
    "57": "dpone.journal.unavailable",  # cancelled, shut down, starting
    "58": "dpone.journal.unavailable",  # the server's file system
    "XX001": "dpone.journal.damaged",
    "XX002": "dpone.journal.damaged",
}
"""By SQLSTATE, else by its class; one that is not here is ``dpone.journal.failed``, which is not retried."""
SAYS_NO_VALUE = frozenset({"08", "25", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58"})
"""Classes whose first line names objects and limits only."""

_LOOK = (
    "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('fsync'), "
    "current_setting('full_page_writes'), current_setting('server_encoding')"
)


class PostgresqlSessions:
    """The engine of a server's database.

    It keeps at most two idle connections for a process: a worker needs one, and one for its second thread. A
    connection that the server has closed meanwhile is noticed and replaced before a transaction begins.
    """

    begin_read = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; "
    begin_write = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on; "

    def __init__(self, address: PostgresqlDatabase) -> None:
        self._address = address
        limits = {
            "lock_timeout": LOCK_SEC,
            "statement_timeout": STATEMENT_SEC,
            "idle_in_transaction_session_timeout": IDLE_SEC,
        }
        words = "; ".join(f"SET LOCAL {name} = '{seconds}s'" for name, seconds in limits.items())
        self.begin_read += words
        self.begin_write += words
        self.engine: Engine = create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            pool_size=2,
            max_overflow=8,
            pool_pre_ping=True,
            hide_parameters=True,
            use_native_hstore=False,
        )

    def explain(self, error: DBAPIError) -> tuple[str, str, str]:
        """By SQLSTATE. libpq gives none when no connection was made, or it broke: then by the driver's
        class."""
        original = error.orig
        name = type(original).__name__
        state = getattr(original, "sqlstate", None)
        if state is not None and isinstance(original, psycopg.Error):
            code = CODES.get(state) or CODES.get(state[:2], "dpone.journal.failed")
            text = (original.diag.message_primary or "") if state[:2] in SAYS_NO_VALUE else ""
            if original.diag.constraint_name:
                text = f"constraint {original.diag.constraint_name}"
            return code, f"{state} {name}", text
        if isinstance(original, psycopg.OperationalError | psycopg.InterfaceError):
            return "dpone.journal.unavailable", name, self._said(original)
        code = "write_refused" if isinstance(original, psycopg.DataError) else "failed"
        return f"dpone.journal.{code}", name, ""

    def _said(self, error: Exception) -> str:
        """libpq's words about a connection; they hold addresses and names."""
        text = " ".join(str(error).split())
        password = self._address.url.password
        return "" if password and str(password) in text else text

    def _connect(self) -> psycopg.Connection[Any]:
        connection = _BoundedConnection.connect(**connect_arguments(self._address))
        try:
            self._refuse_unfit(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _refuse_unfit(self, connection: psycopg.Connection[Any]) -> None:
        row = connection.execute(_LOOK).fetchone()
        version, is_standby, fsync, full_page_writes, encoding = row or (0, False, "off", "off", "")
        where = {"journal": str(self._address)}
        if is_standby:
            text = f"The server of the journal {self._address} is a standby: it takes no writes."
            raise JournalError("dpone.journal.standby", text, **where)
        unfit = {
            f"it is of version {version // 10_000}, {OLDEST_VERSION} is the oldest that serves": version
            < OLDEST_VERSION * 10_000,
            "its fsync is off, so it may forget what it has confirmed": fsync == "off",
            f"the database's encoding is {encoding}, not UTF8": encoding != "UTF8",
        }
        reasons = [reason for reason, is_so in unfit.items() if is_so]
        if reasons:
            text = f"The server of the journal {self._address} cannot keep one: {'; '.join(reasons)}."
            raise JournalError("dpone.journal.server_unfit", text, **where)
        if full_page_writes == "off":
            log.warning(
                "full_page_writes is off at the server of the journal %s: safe only where the file system "
                "never writes half a page",
                self._address,
            )


class _BoundedConnection(psycopg.Connection[Any]):
    """A connection that waits for no answer longer than ``ANSWER_SEC``; then it is closed, and so is its
    transaction."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """As psycopg's own, with a limit."""
        try:
            return super().wait(gen, interval, ANSWER_SEC if timeout is None else timeout)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.close()
            raise


def connect_arguments(address: PostgresqlDatabase) -> dict[str, Any]:
    """What psycopg is asked for: the address, and what holds for every journal."""
    url = address.url
    defaults = {
        "application_name": "airflow-dpone",
        "connect_timeout": CONNECT_SEC,
        # A peer that vanished without a word is noticed in about 30 s.
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 4,
        "tcp_user_timeout": 30_000,
    }
    named = {
        "host": url.host,
        "port": url.port,
        "dbname": url.database,
        "user": url.username,
        "password": url.password,
    }
    given = {name: value for name, value in named.items() if value not in (None, "")}
    fixed = {
        "client_encoding": "UTF8",
        # BEGIN is said in our own words; a statement cache would not survive a pooler between us and the
        # server.
        "autocommit": True,
        "prepare_threshold": None,
    }
    return {**defaults, **url.query, **given, **fixed}
