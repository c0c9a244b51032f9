"""Three seeded tables as raw batches: what a source would send, without a source.

``narrow`` has 4 columns, ``orders`` 12 of mixed types, ``wide100`` 25 each of bigint, float, nvarchar(max)
and datetime2(6). The same seed gives the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_dpone.wire.types import RawForm, TypePair, WireColumn, WireLayout, resolve

SEED = 20_250_101
TEXT_LENGTHS = (0, 1, 31, 255, 4095)
_FOUR = (
    ("Int64", "bigint"),
    ("Float64", "float(53)"),
    ("String", "nvarchar(max)"),
    ("DateTime64(6, 'UTC')", "datetime2(6)"),
)
_ORDERS = (
    ("id", "Int64", "bigint"),
    ("customer", "Int32", "int"),
    ("quantity", "Int16", "smallint"),
    ("price", "Float64", "float(53)"),
    ("amount", "Decimal(18, 4)", "decimal(18,4)"),
    ("paid", "Bool", "bit"),
    ("day", "Date", "date"),
    ("ordered_at", "DateTime64(6, 'UTC')", "datetime2(6)"),
    ("shipped_at", "Nullable(DateTime)", "datetime2(0)"),
    ("status", "Enum8('new' = 1, 'paid' = 2, 'sent' = 3)", "nvarchar(20)"),
    ("note", "Nullable(String)", "nvarchar(max)"),
    ("reference", "UUID", "uniqueidentifier"),
)
_MICROS = (-2_000_000_000_000_000, 4_000_000_000_000_000)
"""1906 to 2096, so that moments before 1970 are among them."""
_ALPHABET = np.frombuffer(
    b"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ.0123456789,", dtype=np.uint8
)
_LABELS = np.array([b"new", b"paid", b"sent"], dtype=object)


@dataclass(frozen=True)
class Table:
    """A layout and one raw batch of it; :attr:`description` is for people."""

    name: str
    description: str
    layout: WireLayout
    raw: pa.RecordBatch


def narrow(rows: int) -> Table:
    """bigint, float, nvarchar(max) of 12 characters, datetime2(6); no NULL."""
    columns = [(f"c{i}", source, target, False) for i, (source, target) in enumerate(_FOUR)]
    layout = _layout(columns)
    made = _arrays(layout, rows, lambda _: np.full(rows, 12), lambda _: np.zeros(rows, dtype=np.bool_))
    return Table("narrow", "4 columns, texts of 12 characters", layout, made)


def orders(rows: int) -> Table:
    """Twelve columns of mixed types; a shipping date is NULL in each third row, a note in each fourth."""
    columns = [(name, source, target, source.startswith("Nullable")) for name, source, target in _ORDERS]
    layout, count = _layout(columns), np.arange(rows)
    made = _arrays(
        layout, rows, lambda _: count * 7 % 61, lambda column: count % (3 if column == 8 else 4) == 0
    )
    return Table("orders", "12 columns of mixed types", layout, made)


def wide100(rows: int) -> Table:
    """A hundred nullable columns; NULL where (row + column) % 11 == 0; a 13th row repeats the one before."""
    columns = [(f"c{i}", f"Nullable({_FOUR[i // 25][0]})", _FOUR[i // 25][1], True) for i in range(100)]
    layout, count = _layout(columns), np.arange(rows)
    lengths = np.array(TEXT_LENGTHS)
    made = _arrays(
        layout,
        rows,
        lambda column: lengths[(count + column) % len(lengths)],
        lambda column: (count + column) % 11 == 0,
    )
    # The last of each 13 rows is the one before it once more.
    repeated = np.where(count % 13 == 12, count - 1, count)
    return Table(
        "wide100",
        "25 each of bigint, float, nvarchar(max), datetime2(6)",
        layout,
        made.take(pa.array(repeated)),
    )


TABLES: dict[str, tuple[Callable[[int], Table], int]] = {
    "narrow": (narrow, 262_144),
    "orders": (orders, 131_072),
    "wide100": (wide100, 2_600),
}
"""Each table with the rows of one pass."""


def _layout(columns: list[tuple[str, str, str, bool]]) -> WireLayout:
    made = []
    for name, source, target, nullable in columns:
        pair = resolve(name, source, target, nullable)
        if not isinstance(pair, TypePair):
            raise ValueError(str(pair))
        made.append(WireColumn(name, pair))
    return WireLayout(tuple(made))


def _arrays(
    layout: WireLayout,
    rows: int,
    text_lengths: Callable[[int], Any],
    nulls: Callable[[int], Any],
) -> pa.RecordBatch:
    random = np.random.default_rng(SEED)
    arrays: list[pa.Array] = []
    for i, column in enumerate(layout.columns):
        mask = nulls(i) if column.pair.source_nullable else np.zeros(rows, dtype=np.bool_)
        # Under a NULL stands the type's default, as ClickHouse stores it.
        arrays.append(_values(column.pair, random, np.where(mask, 0, text_lengths(i)), rows))
        if column.pair.source_nullable:
            arrays.append(pa.array(mask.astype(np.uint8)))
    return pa.RecordBatch.from_arrays(arrays, schema=layout.raw_schema)


def _values(pair: TypePair, random: np.random.Generator, lengths: Any, rows: int) -> pa.Array:
    form, field = pair.raw_form, pair.raw_arrow_fields(0)[0]
    if form is RawForm.TEXT:
        return _strings(random, lengths)
    if form is RawForm.LABEL:
        return pa.array(_LABELS[random.integers(0, len(_LABELS), rows)], type=pa.binary())
    if form is RawForm.UUID_BYTES:
        octets = random.bytes(16 * rows)
        return _binary(np.full(rows, 16), octets)
    if form is RawForm.TICKS:
        return pa.array(random.integers(*_MICROS, rows))
    if form is RawForm.BOOL:
        return pa.array(random.integers(0, 2, rows, dtype=np.uint8))
    if pa.types.is_floating(field.type):
        return pa.array(random.normal(0.0, 1e6, rows).astype(field.type.to_pandas_dtype()))
    top = min(np.iinfo(field.type.to_pandas_dtype()).max, 10**15)
    return pa.array(random.integers(0, top, rows).astype(field.type.to_pandas_dtype()))


def _strings(random: np.random.Generator, lengths: Any) -> pa.Array:
    letters = random.integers(0, len(_ALPHABET), int(lengths.sum()))
    return _binary(lengths, _ALPHABET[letters].tobytes())


def _binary(lengths: Any, data: bytes) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
