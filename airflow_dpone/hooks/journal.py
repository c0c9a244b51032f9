"""An Airflow connection as the journal's address.

Extras are read by name: those that a journal's URL may carry too. All others belong to somebody else's use of
the connection and are left alone.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.journal.address import POSTGRESQL_PARAMETERS, JournalAddress, postgresql_address

POSTGRESQL_TYPES = frozenset({"postgres", "postgresql"})


def journal_address(conn_id: str) -> JournalAddress:
    """The address that a connection holds: of type ``postgres``, or ``sqlite`` with the file's path as host.

    Raises ConfigurationError: there is no such connection, or it is of another type.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise _missing(conn_id) from None
    return _read(connection, conn_id)


async def async_journal_address(conn_id: str) -> JournalAddress:
    """The same inside an event loop, which it does not block: for the triggerer."""
    try:
        connection = await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException:
        raise _missing(conn_id) from None
    return _read(connection, conn_id)


def _missing(conn_id: str) -> ConfigurationError:
    text = (
        f"there is no connection {conn_id!r} (a command sees those of the environment and of secrets "
        "backends, not those in Airflow's database)"
    )
    return _refused(text)


def _read(connection: Any, conn_id: str) -> JournalAddress:
    try:
        return _address(connection, conn_id)
    except ConfigurationError as error:
        raise _refused(f"connection {conn_id!r}: {error.message}") from None


def _address(connection: Any, conn_id: str) -> JournalAddress:
    # Without the provider of PostgreSQL Airflow stores its connections as generic ones.
    generic = connection.conn_type == "generic" and connection.host and connection.schema
    if connection.conn_type in POSTGRESQL_TYPES or generic:
        extras = connection.extra_dejson
        return postgresql_address(
            conn_id=conn_id,
            host=connection.host,
            port=connection.port,
            user=connection.login,
            password=connection.password,
            database=connection.schema,
            parameters={name: extras[name] for name in POSTGRESQL_PARAMETERS & set(extras)},
        )
    if connection.conn_type == "sqlite":
        path = connection.host or connection.schema or ""
        if path and not os.path.isabs(path):
            raise ConfigurationError("dpone.config.field", "its host must be the absolute path of a file")
        return JournalAddress.of(path).named(conn_id)
    text = f"type {connection.conn_type!r} is not supported; use postgres or sqlite"
    raise ConfigurationError("dpone.config.field", text)


def _refused(text: str) -> ConfigurationError:
    return ConfigurationError.of([Problem("dpone.config.field", "journal_conn_id", text)])
