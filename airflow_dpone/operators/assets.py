"""The target table as an Airflow asset."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import SplitResult, quote, urlsplit

from airflow.sdk import Asset

SCHEME = "dpone"
SHAPE = f"{SCHEME}://TARGET/SCHEMA/TABLE"


def target_asset(target: str, target_table: Sequence[str], *, group: str = "asset") -> Asset:
    """The asset of a target table: ``outlets=[target_asset("warehouse", ("sales", "orders"))]``.

    Its URI is ``dpone://<target>/<schema>/<table>``, where ``<target>`` is the connection's id, or host and
    path of a URI without user and parameters (``localhost`` for a file). No connection is read: a DAG file
    may call it.

    :param target: as the operator's. :param target_table: ``(schema, table)``, spelled alike everywhere.
    """
    schema, table = target_table
    uri = urlsplit(target)
    host = uri.netloc.rpartition("@")[2] or "localhost"
    place = f"{host}{quote(uri.path)}" if uri.scheme else quote(target, safe="")
    return Asset(
        name=f"{_part(schema)}.{_part(table)} in {place or target}",
        uri=f"{SCHEME}://{place}/{quote(schema, safe='')}/{quote(table, safe='')}",
        group=group,
    )


def _part(name: str) -> str:
    """In brackets where it would not be one part: Airflow refuses two assets of one name."""
    return f"[{name.replace(']', ']]')}]" if set(name) & set(".[]") else name


def checked_uri(parts: SplitResult) -> SplitResult:
    """What Airflow asks about each asset of our scheme. Raises ValueError for one that names no table."""
    names = [name for name in (parts.netloc, *parts.path.split("/")) if name]
    if len(names) < 3 or parts.query or "@" in parts.netloc:
        raise ValueError(f"the URI of a delivered table is {SHAPE}, where TARGET is a connection's id")
    return parts
