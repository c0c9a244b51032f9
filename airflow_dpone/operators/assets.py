"""The target table as an Airflow asset."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from airflow.sdk import Asset

SCHEME = "dpone"


def target_asset(target: str, target_table: Sequence[str], *, group: str = "asset") -> Asset:
    """The asset of a target table: ``outlets=[target_asset("warehouse", ("sales", "orders"))]``.

    Its URI is ``dpone://<target>/<schema>/<table>``, where ``<target>`` is the connection's id, or host and
    path of a URI without user and parameters. No connection is read: a DAG file may call it.

    :param target: as the operator's. :param target_table: ``(schema, table)``, spelled alike everywhere.
    """
    schema, table = target_table
    uri = urlsplit(target)
    host = uri.netloc.rpartition("@")[2]
    place = f"{host}{quote(uri.path)}" if uri.scheme else quote(target, safe="")
    return Asset(
        name=f"{schema}.{table} in {place or target}",
        uri=f"{SCHEME}://{place}/{quote(schema, safe='')}/{quote(table, safe='')}",
        group=group,
    )
