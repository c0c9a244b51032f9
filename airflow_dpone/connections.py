"""Airflow connections, read only where they are needed: their secrets stay out of every record."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_dpone.errors import ConfigurationError, Problem

EMBEDDED_TYPE = "dponeembedded"
ENGINES = ("chdb", "duckdb")
"""What an embedded source and an embedded target are."""


@dataclass(frozen=True)
class AirflowConnection:
    """One connection as Airflow stores it; absent texts are ''."""

    conn_id: str
    conn_type: str
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


def read_connection(conn_id: str, field: str) -> AirflowConnection:
    """The connection of that id: from Airflow's secrets backends, an environment variable or its database.

    :param field: the parameter that names it, for the message.
    :raises ConfigurationError: ``dpone.config.connection``: Airflow does not find it, or its extra is no
        JSON object.
    """
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException
    from airflow.sdk.log import mask_secret

    try:
        found = Connection.get(conn_id)
    except AirflowNotFoundException:
        raise _missing(conn_id, field) from None
    read = _read(found, conn_id, field)
    mask_secret(read.password)
    mask_secret(dict(read.extra))
    return read


async def async_read_connection(conn_id: str, field: str) -> AirflowConnection:
    """The same inside an event loop, which it does not block: for the triggerer. Airflow masks it."""
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        found = await Connection.async_get(conn_id)
    except AirflowNotFoundException:
        raise _missing(conn_id, field) from None
    return _read(found, conn_id, field)


def _missing(conn_id: str, field: str) -> ConfigurationError:
    text = (
        f"Airflow has no connection {conn_id!r}; make it with `airflow connections add`, or correct the id "
        "(where it is looked for depends on this process's AIRFLOW_HOME and environment)"
    )
    return ConfigurationError.of([Problem("dpone.config.connection", field, text)])


def _read(found: Any, conn_id: str, field: str) -> AirflowConnection:
    try:
        extra = json.loads(found.extra) if found.extra else {}
    except ValueError:
        extra = None
    if not isinstance(extra, Mapping):
        text = f"the extra of connection {conn_id!r} is no JSON object"
        raise ConfigurationError.of([Problem("dpone.config.connection", field, text)])
    return AirflowConnection(
        conn_id=conn_id,
        conn_type=found.conn_type or "",
        host=found.host or "",
        port=found.port,
        login=found.login or "",
        password=found.password or "",
        schema=found.schema or "",
        extra=extra,
    )


def embedded_path(found: AirflowConnection, engine: str) -> str:
    """The absolute path in a connection of type ``dponeembedded``: of chDB's directory, or DuckDB's file.

    :param engine: the one that is needed, of :data:`ENGINES`.
    :raises ConfigurationError: ``dpone.config.connection``: every problem of it.
    """
    texts = []
    unknown = sorted(set(found.extra) - {"engine"})
    if unknown:
        texts.append(f"its extra {', '.join(unknown)} is not known; there is engine")
    named = found.extra.get("engine")
    if named not in ENGINES:
        texts.append(f"its extra engine must be one of {', '.join(ENGINES)}")
    elif named != engine:
        texts.append(f"its engine is {named}; here {engine} is needed")
    if not os.path.isabs(found.host) or found.host == "/":
        texts.append("its host must be the absolute path of chDB's directory, or of DuckDB's file")
    if any((found.port, found.login, found.password, found.schema)):
        texts.append("an engine in process has no port, login, password or schema")
    if texts:
        where = f"connection {found.conn_id}"
        raise ConfigurationError.of([Problem("dpone.config.connection", where, text) for text in texts])
    return found.host
