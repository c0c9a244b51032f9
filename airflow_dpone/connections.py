"""Airflow connections, read only where they are needed: their secrets stay out of every record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_dpone.errors import ConfigurationError, Problem


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
        text = f"Airflow has no connection {conn_id!r}; make it, or give a URI"
        raise ConfigurationError.of([Problem("dpone.config.connection", field, text)]) from None
    try:
        extra = json.loads(found.extra) if found.extra else {}
    except ValueError:
        extra = None
    if not isinstance(extra, Mapping):
        text = f"the extra of connection {conn_id!r} is no JSON object"
        raise ConfigurationError.of([Problem("dpone.config.connection", field, text)])
    mask_secret(found.password)
    mask_secret(dict(extra))
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
