"""Layouts, target-typed batches and raw batches for the tests of the wire layer.

Everything here goes through plain Python values, so that it cannot share a mistake with the columnar code.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from hypothesis import strategies as st

from airflow_dpone.wire.types import RawForm, SqlType, TypePair, WireColumn, WireLayout, resolve

EPOCH = datetime(1970, 1, 1)


def pair(source: str, target: str, nullable: bool = True, *, fail_on_null: bool = False) -> TypePair:
    """An admitted pair; fails loudly if the matrix refuses it."""
    found = resolve("c", source, target, nullable, fail_on_null=fail_on_null)
    assert isinstance(found, TypePair), found
    return found


def layout(*columns: tuple[str, str, bool], fail_on_null: bool = False) -> WireLayout:
    """A layout of (source type, target type, target nullable), named k0, k1 ..."""
    pairs = [pair(*column, fail_on_null=fail_on_null) for column in columns]
    return WireLayout(tuple(WireColumn(f"k{i}", found) for i, found in enumerate(pairs)))


def target_batch(rows: Sequence[Sequence[Any]], of: WireLayout) -> pa.RecordBatch:
    """A target-typed batch of Python values (UUIDs as UUID)."""
    arrays = []
    for i, field in enumerate(of.arrow_schema):
        values = [row[i].bytes if isinstance(row[i], UUID) else row[i] for row in rows]
        arrays.append(pa.array(values, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=of.arrow_schema)


def raw_batch(columns: dict[str, Any], of: WireLayout, *, large: bool = False) -> pa.RecordBatch:
    """A raw batch; masks that are not given are zero."""
    rows = len(next(iter(columns.values())))
    arrays, fields = [], []
    for field in of.raw_schema:
        wide = large and field.type == pa.binary()
        fields.append(pa.field(field.name, pa.large_binary() if wide else field.type))
        arrays.append(pa.array(columns.get(field.name, [0] * rows), type=fields[-1].type))
    assert columns.keys() <= {f.name for f in fields}
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def sliced(batch: pa.RecordBatch, before: int, after: int) -> pa.RecordBatch:
    """The same rows as a slice of a larger batch whose other rows repeat the first and the last."""
    if batch.num_rows == 0:
        return batch
    rows = [0] * before + list(range(batch.num_rows)) + [batch.num_rows - 1] * after
    longer = pa.RecordBatch.from_arrays([c.take(pa.array(rows)) for c in batch.columns], schema=batch.schema)
    return longer.slice(before, batch.num_rows)


TEXTS = st.one_of(
    st.sampled_from(["", "a ", "\x00", "NULL", "😀", "A\x00Б😀", "\U0010ffff"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)

# (source, target): every rule of the matrix at least once, with a wider target where there is one.
PAIRS: tuple[tuple[str, str], ...] = (
    ("Int8", "smallint"),
    ("Int8", "bigint"),
    ("Int16", "smallint"),
    ("Int16", "int"),
    ("Int32", "int"),
    ("Int64", "bigint"),
    ("UInt8", "tinyint"),
    ("UInt8", "int"),
    ("UInt16", "int"),
    ("UInt32", "bigint"),
    ("UInt64", "decimal(20,0)"),
    ("UInt64", "decimal(38,0)"),
    ("Float32", "real"),
    ("Float32", "float(53)"),
    ("Float64", "float(53)"),
    ("Decimal(4, 2)", "decimal(4,2)"),
    ("Decimal(9, 9)", "decimal(9,9)"),
    ("Decimal(9, 4)", "decimal(38,4)"),
    ("Decimal(18, 4)", "decimal(18,4)"),
    ("Decimal(30, 2)", "decimal(30,2)"),
    ("Decimal(38, 10)", "decimal(38,10)"),
    ("Decimal(38, 38)", "decimal(38,38)"),
    ("Bool", "bit"),
    ("String", "nvarchar(40)"),
    ("String", "nvarchar(max)"),
    ("Enum8('a' = 1, 'b' = -2)", "nvarchar(24)"),
    ("FixedString(3)", "binary(3)"),
    ("FixedString(3)", "varbinary(9)"),
    ("FixedString(3)", "varbinary(max)"),
    ("UUID", "uniqueidentifier"),
    ("Date", "date"),
    ("Date32", "date"),
    ("DateTime", "datetime2(0)"),
    ("DateTime('Asia/Tokyo')", "datetime2(7)"),
    *((f"DateTime64({scale}, 'UTC')", f"datetime2({scale})") for scale in range(7)),
)


def _ranged(source: str) -> st.SearchStrategy[int]:
    bits = int(source.lstrip("UInt"))
    low, high = (0, 2**bits - 1) if source.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.one_of(st.sampled_from([low, 0, 1, high]), st.integers(low, high))


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    top = 10**precision - 1
    unscaled = st.one_of(st.sampled_from([0, 1, -1, top, -top]), st.integers(-top, top))
    return unscaled.map(lambda n: Decimal((int(n < 0), tuple(int(d) for d in str(abs(n))), -scale)))


def _moments(scale: int, low: datetime, high: datetime) -> st.SearchStrategy[datetime]:
    step = 10 ** (6 - scale)
    edges = [low, EPOCH, datetime(1969, 12, 31, 23, 59, 59), high]
    moments = st.one_of(st.sampled_from([m for m in edges if low <= m <= high]), st.datetimes(low, high))
    return moments.map(lambda m: m.replace(microsecond=m.microsecond // step * step))


def values_of(source: str) -> st.SearchStrategy[Any]:
    """Python values that a column of a source type (without wrappers) can hold and its target must take."""
    if "Int" in source:
        return _ranged(source)
    if source.startswith("Decimal"):
        precision, scale = (int(n) for n in source[8:-1].split(","))
        return _decimals(precision, scale)
    if source.startswith("DateTime64"):
        return _moments(int(source[11]), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))
    if source.startswith("DateTime"):
        return _moments(0, EPOCH, datetime(2106, 2, 7, 6, 28, 15))
    return {
        "Float32": st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False),
        "Float64": st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
        "Bool": st.booleans(),
        "String": TEXTS,
        "Enum8": TEXTS,
        "FixedString": st.binary(min_size=3, max_size=3),
        "UUID": st.uuids(allow_nil=True),
        "Date": st.dates(date(1970, 1, 1), date(2149, 6, 6)),
        "Date32": st.dates(date(1, 1, 1), date(9999, 12, 31)),
    }[source.split("(")[0]]


@st.composite
def layouts_with_rows(
    draw: st.DrawFn, max_columns: int = 8, max_rows: int = 12
) -> tuple[WireLayout, list[list[Any]]]:
    """Any layout, and rows of Python values for it."""
    columns, cells = [], []
    for source, target in draw(st.lists(st.sampled_from(PAIRS), min_size=1, max_size=max_columns)):
        target_nullable = draw(st.booleans())
        source_nullable = target_nullable and draw(st.booleans())
        columns.append((f"Nullable({source})" if source_nullable else source, target, target_nullable))
        value = values_of(source)
        cells.append(st.none() | value if source_nullable else value)
    return layout(*columns), draw(st.lists(st.tuples(*cells).map(list), max_size=max_rows))


def raw_of(rows: Sequence[Sequence[Any]], of: WireLayout, *, large: bool = False) -> pa.RecordBatch:
    """The raw batch that a source would send for Python values, with garbage under every NULL."""
    columns: dict[str, list[Any]] = {}
    for i, column in enumerate(of.columns):
        values = [_raw_value(row[i], column.pair) for row in rows]
        if column.pair.raw_form is RawForm.DECIMAL128:
            columns[f"c{i}"] = [value & (2**64 - 1) for value in values]
            columns[f"c{i}_hi"] = [value >> 64 for value in values]
        else:
            columns[f"c{i}"] = values
        if column.pair.source_nullable:
            columns[f"c{i}_null"] = [int(row[i] is None) for row in rows]
    return raw_batch(columns, of, large=large)


_GARBAGE: dict[RawForm, Any] = {
    RawForm.BOOL: 77,
    RawForm.TICKS: -(2**63),
    RawForm.EPOCH_SECONDS: 2**32 - 1,
    RawForm.DAYS: 65_535,
    RawForm.DAYS32: 2**31 - 1,
    RawForm.DECIMAL32: -(2**31),
    RawForm.DECIMAL64: -(2**63),
    RawForm.DECIMAL128: -(2**127),
    RawForm.TEXT: b"\xff\xc3" * 30,
    RawForm.BYTES: b"another length",
    RawForm.UUID_BYTES: b"\x00",
    RawForm.LABEL: b"\xff" * 99,
}


def _raw_value(value: Any, of: TypePair) -> Any:
    if value is None:
        if of.raw_form is not RawForm.PLAIN:
            return _GARBAGE[of.raw_form]
        return float("nan") if of.source.name.startswith("Float") else 1
    match of.raw_form:
        case RawForm.BOOL:
            return int(value)
        case RawForm.TICKS:
            since = value - EPOCH
            micros = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
            return micros // 10 ** (6 - of.source.numbers[0])
        case RawForm.EPOCH_SECONDS:
            return int((value - EPOCH).total_seconds())
        case RawForm.DAYS | RawForm.DAYS32:
            return value.toordinal() - EPOCH.toordinal()
        case RawForm.DECIMAL32 | RawForm.DECIMAL64 | RawForm.DECIMAL128:
            sign, digits, _ = value.as_tuple()
            return int("".join(map(str, digits))) * (-1 if sign else 1)
        case RawForm.TEXT | RawForm.LABEL:
            return value.encode()
        case RawForm.UUID_BYTES:
            return value.bytes
    return value


def python_value(text: str | None, sql_type: SqlType) -> Any:
    """A vector's value as a DB-API reader would give it."""
    if text is None:
        return None
    if sql_type.name == "datetime2":
        day, _, fraction = text.partition(".")
        moment = datetime.fromisoformat(day)
        if len(fraction) > 6:
            raise ValueError("seven digits of the second")
        return moment.replace(microsecond=int(fraction.ljust(6, "0") or "0"))
    readers: dict[str, Any] = {
        "bit": lambda t: t == "1",
        "real": float,
        "float": float,
        "decimal": Decimal,
        "date": date.fromisoformat,
        "nvarchar": str,
        "binary": bytes.fromhex,
        "varbinary": bytes.fromhex,
        "uniqueidentifier": UUID,
    }
    return readers.get(sql_type.name, int)(text)


def source_of(sql_type: SqlType, value: Any, nullable: bool) -> str | None:
    """A source type that can carry a value into a target type; None if there is none."""
    width = len(value) if isinstance(value, bytes) else (sql_type.length or 3)
    if width == 0:
        return None
    source = {
        "bigint": "Int64",
        "int": "Int32",
        "smallint": "Int16",
        "tinyint": "UInt8",
        "bit": "Bool",
        "real": "Float32",
        "float": "Float64",
        "decimal": f"Decimal({sql_type.precision}, {sql_type.scale})",
        "date": "Date32",
        "datetime2": f"DateTime64({min(sql_type.scale or 0, 6)})",
        "nvarchar": "String",
        "binary": f"FixedString({width})",
        "varbinary": f"FixedString({width})",
        "uniqueidentifier": "UUID",
    }[sql_type.name]
    return f"Nullable({source})" if nullable else source
