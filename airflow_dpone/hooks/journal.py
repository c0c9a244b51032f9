"""An Airflow connection as the journal's address, and the button that tries it.

Extras are read by name: those that a journal's URL may carry too. All others belong to somebody else's use of
the connection and are left alone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_dpone.connections import AirflowConnection, async_read_connection, read_connection
from airflow_dpone.errors import ConfigurationError, DponeError, JournalError, Problem
from airflow_dpone.journal.address import POSTGRESQL_PARAMETERS, JournalAddress, postgresql_address

if TYPE_CHECKING:
    from airflow_dpone.journal.store import SqlJournal

JOURNAL_TYPE = "dponejournal"
POSTGRESQL_TYPES = frozenset({"postgres", "postgresql"})
_NEEDS_MIGRATION = frozenset({"dpone.journal.missing", "dpone.journal.not_migrated"})


class JournalHook(BaseHook):
    """The journal that a connection names.

    :param journal_conn_id: of type ``dponejournal``, ``postgres``, or ``sqlite``.
    """

    conn_name_attr = "journal_conn_id"
    default_conn_name = "dpone_journal"
    conn_type = JOURNAL_TYPE
    hook_name = "dpone journal"

    def __init__(self, journal_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.journal_conn_id = journal_conn_id

    def get_conn(self) -> SqlJournal:
        """The open journal; close it. Raises ConfigurationError, or JournalError as a delivery does."""
        from airflow_dpone.airflow_config import host_id
        from airflow_dpone.journal.store import open_journal

        return open_journal(journal_address(self.journal_conn_id), host=host_id())

    def test_connection(self) -> tuple[bool, str]:
        """Whether this machine can work with the journal, and why not. Nothing is changed."""
        try:
            with self.get_conn() as journal:
                return True, f"It is the journal {journal.journal_id}, at the newest revision."
        except DponeError as error:
            # The button tries a connection under a name that nobody knows, so no command can repeat it.
            advice = f" Next: {error.next_action}"
            if isinstance(error, JournalError) and error.code in _NEEDS_MIGRATION:
                advice = (
                    " Next: save the connection, then run `airflow dpone db migrate --journal-conn-id ID`."
                )
            return False, f"{error.message}{advice} [{error.code}]"


def journal_address(conn_id: str) -> JournalAddress:
    """The address that a connection holds.

    Type ``dponejournal`` or ``postgres``: a server's database. Type ``dponejournal`` or ``sqlite``: a file,
    whose absolute path is the host.

    Raises ConfigurationError: there is no such connection, or it is of another type.
    """
    return _address_of(read_connection(conn_id, "journal_conn_id"))


async def async_journal_address(conn_id: str) -> JournalAddress:
    """The same inside an event loop, which it does not block: for the triggerer."""
    return _address_of(await async_read_connection(conn_id, "journal_conn_id"))


def _address_of(connection: AirflowConnection) -> JournalAddress:
    try:
        return _address(connection)
    except ConfigurationError as error:
        text = f"connection {connection.conn_id!r}: {error.message}"
        raise ConfigurationError.of([Problem("dpone.config.connection", "journal_conn_id", text)]) from None


def _address(connection: AirflowConnection) -> JournalAddress:
    kind = connection.conn_type
    if kind == JOURNAL_TYPE:
        return _file(connection) if os.path.isabs(connection.host) else _server(connection)
    # Without the provider of PostgreSQL Airflow stores its connections as generic ones.
    if kind in POSTGRESQL_TYPES or (kind == "generic" and connection.host and connection.schema):
        return _server(connection)
    if kind == "sqlite":
        return _file(connection)
    text = f"type {kind!r} is not supported; use {JOURNAL_TYPE}, postgres or sqlite"
    raise ConfigurationError("dpone.config.field", text)


def _server(connection: AirflowConnection) -> JournalAddress:
    extras = connection.extra
    return postgresql_address(
        conn_id=connection.conn_id,
        host=connection.host,
        port=connection.port,
        user=connection.login,
        password=connection.password,
        database=connection.schema,
        parameters={name: extras[name] for name in POSTGRESQL_PARAMETERS & set(extras) if extras[name]},
    )


def _file(connection: AirflowConnection) -> JournalAddress:
    if connection.conn_type == JOURNAL_TYPE and (
        connection.port or connection.login or connection.password or connection.schema
    ):
        text = "its host is the path of a SQLite file, which has no port, login, password or database"
        raise ConfigurationError("dpone.config.field", text)
    path = connection.host or connection.schema
    if path and not os.path.isabs(path):
        raise ConfigurationError("dpone.config.field", "its host must be the absolute path of a file")
    return JournalAddress.of(path).named(connection.conn_id)
