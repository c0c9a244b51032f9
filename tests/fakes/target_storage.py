"""How the SQLite target keeps values and tables: every value in a form that SQLite hands back unchanged."""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from airflow_dpone.delivery.target_records import StageObservation
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, Problem, SourceDataError
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.reference_rows import encode_row
from airflow_dpone.wire.types import SqlType, WireLayout

STAGE_SCHEMA = "dpone_stage"

TABLES = """
CREATE TABLE IF NOT EXISTS "dpone.installation" (
  only_row INTEGER PRIMARY KEY CHECK (only_row = 1), installation_id TEXT NOT NULL,
  layout_version INTEGER NOT NULL, created_at TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS "dpone.target_gate" (
  target_key TEXT PRIMARY KEY, schema_name TEXT NOT NULL, table_name TEXT NOT NULL,
  target_object_id INTEGER NOT NULL, target_created TEXT NOT NULL, journal_id TEXT NOT NULL,
  route_scope TEXT NOT NULL, fence INTEGER NOT NULL, in_flight_operation_id TEXT,
  last_operation_id TEXT, last_receipt_sha256 TEXT, cycle_id TEXT, cycle_fence INTEGER,
  frontier_sequence INTEGER);
CREATE TABLE IF NOT EXISTS "dpone.delivery_receipt" (
  operation_id TEXT PRIMARY KEY, target_key TEXT NOT NULL, delivery_key TEXT NOT NULL,
  generation INTEGER NOT NULL, invocation_key TEXT NOT NULL, route_scope TEXT NOT NULL,
  journal_id TEXT NOT NULL, receipt_kind TEXT NOT NULL, intent_version INTEGER NOT NULL,
  intent_sha256 TEXT NOT NULL, strategy TEXT NOT NULL, window_key TEXT NOT NULL, row_count INTEGER NOT NULL,
  digest_algorithm TEXT NOT NULL, digest TEXT NOT NULL, wire_layout_sha256 TEXT NOT NULL,
  fence INTEGER NOT NULL, lock_mode TEXT NOT NULL, receipt_sha256 TEXT NOT NULL,
  deleted_rows INTEGER NOT NULL,
  published_at TEXT NOT NULL, recovery_fork_id TEXT, durability TEXT NOT NULL,
  UNIQUE (delivery_key, generation));
CREATE TABLE IF NOT EXISTS "dpone.stage_mark" (
  name TEXT PRIMARY KEY, owner TEXT NOT NULL, object_id INTEGER NOT NULL, state TEXT NOT NULL);
"""

_INCARNATION = re.compile(r"/\* object=([0-9]+) created=([0-9a-f]{16}) \*/")


def connect(path: Path) -> sqlite3.Connection:
    """A connection that begins nothing by itself and waits for others.

    What is committed survives a killed process, not the loss of power: a test needs no more.
    """
    # Threads of one delivery use it in turns.
    connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


@contextmanager
def session(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of its own, closed afterwards."""
    connection = connect(path)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """BEGIN IMMEDIATE to COMMIT, or nothing at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        connection.rollback()
        raise
    connection.execute("COMMIT")


def quoted(name: str) -> str:
    """An identifier."""
    return '"' + name.replace('"', '""') + '"'


def table_name(schema: str, table: str) -> str:
    """One SQLite table stands for schema and table."""
    return quoted(f"{schema}.{table}")


def ddl(schema: str, table: str, columns: Sequence[tuple[str, str, bool]], *, rest: str = "") -> str:
    """CREATE TABLE with a new incarnation in it. ``blob`` in a type keeps SQLite from converting."""
    mark = f"/* object={secrets.randbits(60) + 1} created={secrets.token_hex(8)} */"
    parts = [
        f"{quoted(name)} {quoted('blob ' + sql_type)}{'' if nullable else ' NOT NULL'}"
        for name, sql_type, nullable in columns
    ]
    return f"CREATE TABLE {table_name(schema, table)} ({mark} {', '.join(parts)}{rest})"


def incarnation(connection: sqlite3.Connection, schema: str, table: str) -> tuple[int, str] | None:
    """(object id, created) of a table, None when there is none."""
    row = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (f"{schema}.{table}",)
    ).fetchone()
    if row is None:
        return None
    found = _INCARNATION.search(row[0])
    return (int(found[1]), found[2]) if found else (0, "0" * 16)


def is_there(connection: sqlite3.Connection, schema: str, table: str) -> bool:
    """Whether a table or a view has that name."""
    text = "SELECT count(*) FROM sqlite_master WHERE name = ?"
    return bool(connection.execute(text, (f"{schema}.{table}",)).fetchone()[0])


def must_be_fed(connection: sqlite3.Connection, schema: str, table: str) -> tuple[str, ...]:
    """Columns that are NOT NULL and have no default."""
    found = connection.execute(f"PRAGMA table_info({table_name(schema, table)})")
    return tuple(name for _, name, _, not_null, default, _ in found if not_null and default is None)


def columns_of(connection: sqlite3.Connection, schema: str, table: str) -> list[tuple[str, str, bool]]:
    """(name, T-SQL type, nullable) in order."""
    rows = connection.execute(f"PRAGMA table_info({table_name(schema, table)})").fetchall()
    return [(name, kind.removeprefix("blob "), not not_null) for _, name, kind, not_null, *_ in rows]


# ---- values -----------------------------------------------------------------------------------------


def stored(value: Any, sql_type: SqlType) -> Any:
    """A Python value as SQLite keeps it. Moments and days sort as text; floats keep every bit."""
    if value is None:
        return None
    if sql_type.name in ("float", "real"):
        return struct.pack(">d", value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return value.bytes
    return str(value) if isinstance(value, Decimal) else value


def restored(value: Any, sql_type: SqlType) -> Any:
    """The reverse of :func:`stored`. A value that cannot be one raises SourceDataError."""
    if value is None:
        return None
    try:
        return _READERS.get(sql_type.name, _as_it_is)(value)
    except (ValueError, TypeError, ArithmeticError, struct.error) as error:
        raise SourceDataError("dpone.wire.value", f"A stored {sql_type} cannot be read.") from error


def _as_it_is(value: Any) -> Any:
    return value


_READERS: dict[str, Any] = {
    "float": lambda v: struct.unpack(">d", v)[0],
    "real": lambda v: struct.unpack(">d", v)[0],
    "decimal": Decimal,
    "bit": bool,
    "date": date.fromisoformat,
    "datetime2": datetime.fromisoformat,
    "uniqueidentifier": lambda v: UUID(bytes=v),
}


def window_clause(column: str | None, sql_type: SqlType | None, window: Window) -> tuple[str, list[str]]:
    """WHERE and its two values. Raises ConfigurationError when the column cannot say a bound exactly."""
    if column is None and window.is_full:
        return "", []
    if column is None or window.start is None or window.end is None:
        text = "a full refresh has no window column, and a window needs one"
        raise ConfigurationError.of([Problem("dpone.config.window", "window", text)])
    bounds = [moment.replace(tzinfo=None) for moment in (window.start, window.end)]
    if sql_type is None or any(not _fits(moment, sql_type) for moment in bounds):
        text = f"a {sql_type} does not hold the window's bounds"
        raise ConfigurationError.of([Problem("dpone.config.window_column", column, text)])
    values = [stored(moment.date() if sql_type.name == "date" else moment, sql_type) for moment in bounds]
    return f" WHERE {quoted(column)} >= ? AND {quoted(column)} < ?", values


def _fits(moment: datetime, sql_type: SqlType) -> bool:
    if sql_type.name == "date":
        return moment.time() == time(0)
    return sql_type.name == "datetime2" and moment.microsecond % 10 ** (6 - min(sql_type.scale or 0, 6)) == 0


def count_violations(connection: sqlite3.Connection, path: str, layout: WireLayout, check: TableCheck) -> int:
    """Reads the rows and counts in Python: this is what the databases' answers are compared with."""
    by_name = {column.name: column.pair.sql_type for column in layout.columns}
    types = [by_name[name] for name in check.columns]
    names = ", ".join(map(quoted, check.columns))
    rows = [
        tuple(restored(v, t) for v, t in zip(row, types, strict=True))
        for row in connection.execute(f"SELECT {names} FROM {path}")
    ]
    if check.kind == "not_null":
        return sum(row[0] is None for row in rows)
    asked = [row for row in rows if None not in row]
    if check.kind == "unique":
        return len(asked) - len(set(asked))
    limit = _limit(check.threshold or "", types[0])
    return sum(row[0] < limit if check.kind == "min" else row[0] > limit for row in asked)


def _limit(text: str, sql_type: SqlType) -> Any:
    if sql_type.name == "real":
        return struct.unpack("f", struct.pack("f", float(text)))[0]
    readers = {"float": float, "date": date.fromisoformat, "datetime2": datetime.fromisoformat}
    return readers.get(sql_type.name, Decimal)(text)


def observe(
    connection: sqlite3.Connection,
    path: str,
    layout: WireLayout,
    expected_rows: int,
    where: str = "",
    bounds: Sequence[str] = (),
) -> StageObservation:
    """Reads at most one row more than expected and hashes each with the row-by-row reference."""
    names = ", ".join(quoted(column.name) for column in layout.columns)
    text = f"SELECT {names} FROM {path}{where} LIMIT ?"
    rows = connection.execute(text, (*bounds, expected_rows + 1)).fetchall()
    if len(rows) > expected_rows:
        return StageObservation(len(rows), True, None)
    types = [column.pair.sql_type for column in layout.columns]
    try:
        encoded = [
            encode_row([restored(v, t) for v, t in zip(row, types, strict=True)], layout) for row in rows
        ]
    except SourceDataError:
        return StageObservation(len(rows), False, None)
    return StageObservation(
        len(rows), False, DigestSum.of_hash_iter(hashlib.sha256(row).digest() for row in encoded)
    )
