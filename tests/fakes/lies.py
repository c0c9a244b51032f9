"""Writers that lie, as functions from the rows that were sealed to the rows that they write (B76).

Every lie changes :data:`ROWS`; a row is a dict of column to value as Arrow gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve

Row = dict[str, Any]
Lie = Callable[[list[Row]], list[Row]]

# name, ClickHouse type, T-SQL type, target nullable, DuckDB column
COLUMNS = (
    ("id", "Int64", "bigint", False, "BIGINT NOT NULL"),
    ("other", "Int64", "bigint", False, "BIGINT NOT NULL"),
    ("amount", "Decimal(18, 4)", "decimal(18,4)", False, "DECIMAL(18,4) NOT NULL"),
    ("count", "Nullable(Int32)", "int", True, "INTEGER DEFAULT 7"),
    ("price", "Float64", "float(53)", False, "DOUBLE NOT NULL"),
    ("note", "Nullable(String)", "nvarchar(max)", True, "VARCHAR"),
    ("name", "String", "nvarchar(20)", False, "VARCHAR NOT NULL"),
    ("ref", "UUID", "uniqueidentifier", False, "UUID NOT NULL"),
    ("mark", "FixedString(5)", "varbinary(9)", False, "BLOB NOT NULL"),
    ("at", "DateTime64(6)", "datetime2(6)", False, "TIMESTAMP NOT NULL"),
)


def _row(number: int, note: str | None, name: str, at: datetime, **more: Any) -> Row:
    row = {
        "id": number,
        "other": -number,
        "amount": Decimal(number * 37 - 50).scaleb(-4),
        "count": None if number % 2 else number,
        "price": -0.0 if number == 3 else number / 3,
        "note": note,
        "name": name,
        "ref": UUID(int=0x00112233_4455_6677_8899_AABBCCDDEEFF + number).bytes,
        "mark": bytes((number, 0, 0xFF, 0, 0)),
        "at": at,
    }
    return row | more


_DAY = datetime(2025, 1, 1, 10)
ROWS: list[Row] = [
    _row(1, None, "Ann", _DAY + timedelta(microseconds=230_001)),
    _row(2, "", "Блок ", _DAY),
    _row(3, "NULL", "Ann", _DAY + timedelta(seconds=1)),
    _row(4, "a\0b\0", "é", _DAY + timedelta(milliseconds=123)),
    _row(4, "a\0b\0", "é", _DAY + timedelta(milliseconds=123)),
    _row(6, "\u2160 😀", "ann", _DAY + timedelta(hours=2)),
]
"""Two of them are equal. No note and an empty one, a zero with a sign, NULs at ends, blanks at ends."""


def layout() -> WireLayout:
    """The layout of :data:`ROWS`."""
    return WireLayout(tuple(WireColumn(name, _pair(s, t, null)) for name, s, t, null, _ in COLUMNS))


def _pair(source: str, target: str, nullable: bool) -> TypePair:
    found = resolve("c", source, target, nullable)
    if isinstance(found, TypePair):
        return found
    raise ValueError(str(found))


def _each(column: str, change: Callable[[Any], Any], *, nulls: bool = False) -> Lie:
    """A lie about every value of a column, or about every NULL of it."""

    def lie(rows: list[Row]) -> list[Row]:
        return [
            {**row, column: change(row[column])} if (row[column] is None) is nulls else row for row in rows
        ]

    return lie


def _swapped(rows: list[Row]) -> list[Row]:
    return [{**row, "id": row["other"], "other": row["id"]} for row in rows]


def _without_duplicates(rows: list[Row]) -> list[Row]:
    return [row for n, row in enumerate(rows) if row not in rows[:n]]


def _milliseconds_as_microseconds(moment: datetime) -> datetime:
    return datetime(1970, 1, 1) + (moment - datetime(1970, 1, 1)) / 1_000


LIES: dict[str, Lie] = {
    "the fraction of the second is dropped": _each("at", lambda at: at.replace(microsecond=0)),
    "milliseconds are taken for microseconds": _each("at", _milliseconds_as_microseconds),
    "NULs at the end of a text are trimmed": _each("note", lambda text: text.rstrip("\0")),
    "NULs at the end of bytes are trimmed": _each("mark", lambda octets: octets.rstrip(b"\0")),
    "the byte order of a GUID is swapped": _each("ref", lambda octets: UUID(bytes_le=octets).bytes),
    "NULL is replaced by a default": _each("count", lambda _: 7, nulls=True),
    "NULL is replaced by an empty text": _each("note", lambda _: "", nulls=True),
    "NULL is replaced by its name": _each("note", lambda _: "NULL", nulls=True),
    "an empty text becomes NULL": _each("note", lambda text: text or None),
    "a duplicate is dropped": _without_duplicates,
    "a row is doubled": lambda rows: [*rows, rows[0]],
    "one row is dropped and another doubled": lambda rows: [*rows[:-1], rows[0]],
    "text is in lower case": _each("name", str.lower),
    "blanks at the end are trimmed": _each("name", lambda text: text.rstrip(" ")),
    "UTF-8 is taken for another code page": _each("name", lambda text: text.encode().decode("latin-1")),
    "two columns of equal type are swapped": _swapped,
    "a zero loses its sign": _each("price", lambda number: number + 0.0),
    "a decimal is rounded": _each("amount", lambda number: round(number, 2)),
    "nothing is written": lambda rows: [],
}
