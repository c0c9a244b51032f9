"""The contract of a source: describe, compile, snapshot, read. Over ClickHouse's engine, reached in two ways:
in this process (chDB), and through the real driver and the native protocol.

Ids in brackets are the rules of the protocol (F1 ...) and the catalogue of known faults (B07 ...).
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_dpone.delivery.ports import Deadline, SourcePort
from airflow_dpone.delivery.records import SourceQuery, SourceSnapshot
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import (
    ConfigurationError,
    DponeError,
    SourceDataError,
    SourceMoved,
    SourceUnavailable,
)
from airflow_dpone.source_clickhouse import query_settings
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.types import WireLayout
from tests.contract.chdb_world import ChdbWorld, EngineWorld, compiled, sql_list
from tests.contract.native_world import NativeWorld

NONCE = "ab" * 32
DAY = datetime(2025, 1, 1, tzinfo=UTC)


@pytest.fixture(params=[ChdbWorld, NativeWorld], ids=["chdb", "native"])
def world(request: pytest.FixtureRequest) -> Iterator[EngineWorld]:
    """A database of its own, so that no test sees the tables of another one."""
    made = request.param()
    yield made
    made.drop()


def soon() -> Deadline:
    return Deadline.after(60)


def raw_batches(source: SourcePort, query: SourceQuery) -> list[pa.RecordBatch]:
    return list(source.read(query, nonce=NONCE, deadline=soon()))


def read_rows(source: SourcePort, query: SourceQuery, layout: WireLayout) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for batch in source.read(query, nonce=NONCE, deadline=soon()):
        made = to_target_batch(batch, layout, first_row=len(rows))
        rows += zip(*(column.to_pylist() for column in made.columns), strict=True)
    return rows


def keys_of(
    world: EngineWorld, window: Window, *, column: str = "at", source: SourcePort | None = None
) -> list[int]:
    """The sorted keys ``k`` of table ``t`` that a window delivers."""
    with source or world.source() as opened:
        table = opened.describe(world.database, "t")
        query, layout = compiled(opened, table, {"k": "bigint"}, column, window)
        return sorted(key for (key,) in read_rows(opened, query, layout))


# ---- values [F3, B07, B09, B17, B31-B35] ------------------------------------------------------------------

_TICK_DAYS = ("1900-01-01 00:00:00", "1925-01-01 00:00:00", "1969-12-31 23:59:59", "1970-01-01 00:00:00")


def _ticks(scale: int) -> list[str]:
    """Extremes of a DateTime64 of a scale as raw numbers, through no parser of dates."""
    last = 10_413_791_999 * 10**scale + 10**scale - 1
    numbers = [
        -2_208_988_800 * 10**scale,
        -1_420_070_400 * 10**scale + 1,
        -1,
        0,
        1,
        1_735_689_600 * 10**scale,
        last,
    ]
    return [f"reinterpret(toInt64({n}), 'DateTime64({scale}, \\'UTC\\')')" for n in numbers]


def _decimals(precision: int, scale: int) -> list[str]:
    digits = "9" * precision
    text = f"{digits[: precision - scale] or '0'}.{digits[precision - scale :]}" if scale else digits
    return [f"toDecimal128('{sign}{text}', {scale})" for sign in ("", "-")] + ["0", "1", "-1"]


UUIDS = (
    "9c0c9eed-feac-474e-9ad7-c5b9280424d1",
    "00112233-4455-6677-8899-aabbccddeeff",
    "00000000-0000-0000-0000-000000000001",
    "ffffffff-ffff-ffff-ffff-fffffffffffe",
)
STRINGS = ["''", "'a'", "unhex('0000780000')", "'é😀\\'\\\\'", "repeat('z', 70000)", "unhex('c280')"]
FIXED = ["'abc'", "unhex('0000000000')", "unhex('0000780000')", "unhex('ff00fe0001')", "'abcde'"]
LABELS8 = "Enum8('a' = 1, 'b' = -2, 'é\\'x' = 127, 'z' = -128)"
LABELS16 = "Enum16('a' = 1, 'zz' = -32768, 'y' = 32767)"

_INTS = {8: "smallint", 16: "smallint", 32: "int", 64: "bigint"}
_UINTS = {8: "tinyint", 16: "int", 32: "bigint", 64: "decimal(20,0)"}
# source type -> target type, values as SQL, export as SQL
MATRIX: dict[str, tuple[str, list[str], str]] = {
    **{
        f"Int{bits}": (
            target,
            [str(-(2 ** (bits - 1))), "-1", "0", str(2 ** (bits - 1) - 1)],
            "toString({c})",
        )
        for bits, target in _INTS.items()
    },
    **{
        f"UInt{bits}": (target, ["0", "1", str(2**bits - 1)], "toString({c})")
        for bits, target in _UINTS.items()
    },
    "Float32": (
        "real",
        ["0", "-0.0", "0.1", "3.4028234663852886e38", "-1.1754943508222875e-38"],
        "toString({c})",
    ),
    "Float64": (
        "float",
        ["0", "-0.0", "0.1", "1.7976931348623157e308", "-2.2250738585072014e-308", "5e300"],
        "toString({c})",
    ),
    "Bool": ("bit", ["false", "true"], "toString(toUInt8({c}))"),
    "String": ("nvarchar(max)", STRINGS, "hex({c})"),
    "FixedString(5)": ("binary(5)", FIXED, "hex({c})"),
    "UUID": ("uniqueidentifier", [f"toUUID('{text}')" for text in UUIDS], "toString({c})"),
    "Date": ("date", ["toDate(0)", "toDate(1)", "toDate(20089)", "toDate(65535)"], "toString({c})"),
    "Date32": (
        "date",
        ["toDate32('1900-01-01')", "toDate32('1969-12-31')", "toDate32(0)", "toDate32('2299-12-31')"],
        "toString({c})",
    ),
    **{
        f"DateTime{zone}": (
            "datetime2(0)",
            ["toDateTime(0)", "toDateTime(1)", "toDateTime(1735689600)", "toDateTime(4294967295)"],
            "toString({c}, 'UTC')",
        )
        for zone in ("", "('Asia/Kolkata')", "('America/Chicago')")
    },
    **{
        f"DateTime64({scale}{zone})": (f"datetime2({scale})", _ticks(scale), "toString({c}, 'UTC')")
        for scale, zone in enumerate(
            ("", ", 'Asia/Tokyo'", "", ", 'Europe/Berlin'", "", "", ", 'America/New_York'")
        )
    },
    "Decimal(1, 0)": ("decimal(1,0)", _decimals(1, 0), "toString({c})"),
    "Decimal(9, 4)": ("decimal(9,4)", _decimals(9, 4), "toString({c})"),
    "Decimal(18, 18)": ("decimal(18,18)", _decimals(18, 18)[:3], "toString({c})"),
    "Decimal(19, 2)": ("decimal(19,2)", _decimals(19, 2), "toString({c})"),
    "Decimal(38, 0)": ("decimal(38,0)", _decimals(38, 0), "toString({c})"),
    "Decimal(38, 10)": ("decimal(38,10)", _decimals(38, 10), "toString({c})"),
    LABELS8: ("nvarchar(10)", ["'a'", "'b'", "'é\\'x'", "'z'"], "toString(toInt16({c}))"),
    LABELS16: ("nvarchar(10)", ["'a'", "'zz'", "'y'"], "toString(toInt16({c}))"),
}
_LABEL_NUMBERS = {"a": "1", "b": "-2", "é'x": "127", "z": "-128", "zz": "-32768", "y": "32767"}
WRAPPERS = ("{}", "Nullable({})", "LowCardinality({})", "LowCardinality(Nullable({}))")
_NO_DICTIONARY = ("Decimal", "Enum", "DateTime64")
CASES = [
    pytest.param(source_type, wrapper, id=wrapper.format(source_type))
    for source_type in MATRIX
    for wrapper in WRAPPERS
    if not (wrapper.startswith("LowCardinality") and source_type.startswith(_NO_DICTIONARY))
]


def as_text(value: Any, source_type: str, target: str) -> str | None:
    """A delivered value in the form in which ClickHouse exports it."""
    if value is None:
        return None
    if source_type.startswith("Enum"):
        return _LABEL_NUMBERS[value]
    if target == "uniqueidentifier":
        digits = value.hex()
        return "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    if isinstance(value, str):
        return value.encode().hex().upper()
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, bool):
        return str(int(value))
    return _number_or_time_as_text(value, source_type)


def _number_or_time_as_text(value: Any, source_type: str) -> str:
    if isinstance(value, datetime):
        scale = int(source_type[len("DateTime64(")]) if source_type.startswith("DateTime64") else 0
        text = value.strftime("%Y-%m-%d %H:%M:%S") + f".{value.microsecond:06d}"
        return text[: 20 + scale] if scale else text[:19]
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    return str(value)


def same_number(found: str | None, exported: str | None, source_type: str) -> bool:
    if found is None or exported is None or not source_type.startswith("Float"):
        return found == exported
    pack = pa.float32() if source_type == "Float32" else pa.float64()
    pair = [pa.array([float(text)]).cast(pack, safe=False).to_pylist()[0] for text in (found, exported)]
    return pair[0] == pair[1] and str(pair[0]) == str(pair[1])


@pytest.mark.parametrize(("source_type", "wrapper"), CASES)
def test_every_value_of_every_type_arrives(world: EngineWorld, source_type: str, wrapper: str) -> None:
    """[F3, B07, B09, B31, B33-B35] Extremes of each row of the matrix, against ClickHouse's own text."""
    target, values, export = MATRIX[source_type]
    column_type = wrapper.format(source_type)
    nullable = "Nullable" in wrapper
    world.execute("SET allow_suspicious_low_cardinality_types = 1, session_timezone = 'UTC'")
    name = world.table(f"k Int64, c {column_type}")
    world.execute(f"INSERT INTO {name} VALUES {sql_list([*values, *(['NULL', 'NULL'] if nullable else [])])}")
    exported = world.rows(f"SELECT {export.format(c='c')} FROM {name} ORDER BY k")
    with world.source() as source:
        query, layout = compiled(source, source.describe(world.database, "t"), {"k": "bigint", "c": target})
        found = sorted(read_rows(source, query, layout), key=lambda row: row[0])
    assert len(found) == len(exported) == len(values) + 2 * nullable
    for (key, value), (text,) in zip(found, exported, strict=True):
        made = as_text(value, source_type, target)
        assert same_number(made, text, source_type), f"row {key}: {made} is not {text}"


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_raw_batches_have_exactly_the_planned_types(world: EngineWorld, wrapper: str) -> None:
    """[F3, B71] Names and types of every raw form, without Arrow nulls."""
    world.execute("SET allow_suspicious_low_cardinality_types = 1")
    types = {
        f"c{i}": (wrapper.format(source_type), target)
        for i, (source_type, (target, _, _)) in enumerate(MATRIX.items())
        if not (wrapper.startswith("LowCardinality") and source_type.startswith(_NO_DICTIONARY))
    }
    name = world.table(", ".join(f"{column} {source_type}" for column, (source_type, _) in types.items()))
    world.execute(f"INSERT INTO {name} (c0) VALUES (1), (2)")
    with world.source() as source:
        query, layout = compiled(
            source, source.describe(world.database, "t"), {c: target for c, (_, target) in types.items()}
        )
        (batch,) = raw_batches(source, query)
    assert [(f.name, f.type) for f in batch.schema] == [(f.name, f.type) for f in layout.raw_schema]
    assert all(column.null_count == 0 for column in batch.columns)
    assert batch.num_rows == 2


@pytest.mark.parametrize("distinct", [1, 127, 128, 129, 300, 70_000])
def test_low_cardinality_is_plain_text(world: EngineWorld, distinct: int) -> None:
    """[B32] No dictionary, whatever its size; '' and NULL stay two things."""
    name = world.table("k Int64, c LowCardinality(Nullable(String))")
    world.execute(f"INSERT INTO {name} SELECT number, toString(number % {distinct}) FROM numbers(80000)")
    world.execute(f"INSERT INTO {name} VALUES (-1, ''), (-2, NULL)")
    with world.source() as source:
        query, layout = compiled(
            source, source.describe(world.database, "t"), {"k": "bigint", "c": "nvarchar(20)"}
        )
        found = dict(read_rows(source, query, layout))
    assert found == {-1: "", -2: None, **{k: str(k % distinct) for k in range(80_000)}}


def test_sparse_columns_arrive(world: EngineWorld) -> None:
    """[F3] 99 % defaults are stored sparsely; every default and every other value arrives."""
    types = {"i": "Int64", "s": "String", "f": "FixedString(3)", "n": "Nullable(Int32)", "d": "DateTime64(3)"}
    name = world.table(
        "k Int64, " + ", ".join(f"{c} {t}" for c, t in types.items()),
        rest="ORDER BY tuple() SETTINGS ratio_of_defaults_for_sparse_serialization = 0.5",
    )
    world.execute(
        f"INSERT INTO {name} SELECT number, z * number, if(z, 'x', ''), if(z, 'yyy', ''), if(z, 7, NULL),"
        " toDateTime64(z, 3, 'UTC') FROM (SELECT number, number % 100 = 0 AS z FROM numbers(5000))"
    )
    kinds = world.rows(
        "SELECT serialization_kind FROM system.parts_columns"
        f" WHERE database = '{world.database}' AND column = 'i'"
    )
    assert ["Sparse"] in kinds, "the table must be stored sparsely for this test to mean something"
    targets = {
        "k": "bigint",
        "i": "bigint",
        "s": "nvarchar(5)",
        "f": "binary(3)",
        "n": "int",
        "d": "datetime2(3)",
    }
    with world.source() as source:
        query, layout = compiled(source, source.describe(world.database, "t"), targets)
        found = {row[0]: row[1:] for row in read_rows(source, query, layout)}
    epoch = datetime(1970, 1, 1)
    for k in range(5000):
        hit = k % 100 == 0
        expected = (
            (k, "x", b"yyy", 7, epoch + timedelta(seconds=1)) if hit else (0, "", b"\0\0\0", None, epoch)
        )
        assert found[k] == expected


@pytest.mark.parametrize(
    ("value", "code"),
    [("nan", "dpone.source.nan"), ("-inf", "dpone.source.infinite"), ("1e-310", "dpone.source.subnormal")],
)
def test_floats_that_the_target_lacks_arrive_as_they_are(world: EngineWorld, value: str, code: str) -> None:
    """Neither hidden nor changed, so that the wire can refuse them; the hint finds the row [2.18]."""
    name = world.table("k Int64, c Nullable(Float64)")
    world.execute(f"INSERT INTO {name} VALUES (1, 1.5), (2, {value}), (3, NULL)")
    with world.source() as source:
        query, layout = compiled(source, source.describe(world.database, "t"), {"k": "bigint", "c": "float"})
        with pytest.raises(SourceDataError) as caught:
            read_rows(source, query, layout)
        hint = source.find_rows_hint(query, "c", code)
    assert caught.value.code == code
    assert world.rows(hint) == [["1"]]


def test_text_that_is_not_utf8_arrives_as_bytes(world: EngineWorld) -> None:
    """[F3 f] The engine does not check it, so we get the bytes; the hint counts inside the window only."""
    name = world.table("at DateTime, c String")
    world.execute(
        f"INSERT INTO {name} VALUES (1735689600, unhex('ff')), (1735689601, 'ok'), (0, unhex('fe'))"
    )
    window = Window(DAY, DAY + timedelta(days=1))
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"c": "nvarchar(5)"}, "at", window)
        values = {v for batch in raw_batches(source, query) for v in batch.column(0).to_pylist()}
        hint = source.find_rows_hint(query, "c", "dpone.source.utf8")
        length = source.find_rows_hint(query, "c", "dpone.source.too_long")
    assert values == {b"\xff", b"ok"}
    assert world.rows(hint) == [["1"]]
    world.execute(f"TRUNCATE TABLE {name}")
    world.execute(f"INSERT INTO {name} VALUES (1735689600, 'a😀é')")
    assert world.rows(length) == [["4"]]


def test_names_that_need_quoting(world: EngineWorld) -> None:
    """[F3] Backticks, quotes, backslashes and dots in names; columns that are called like our aliases."""
    table = "a`b'c\\d.e"
    quoted = "`a\\`b'c\\\\d.e`"
    world.execute(
        f"CREATE TABLE {world.database}.{quoted} (c1 Int64, c0 String, `x``y.z\\\\` Int32, dpone_rows Int16)"
        " ENGINE = MergeTree ORDER BY c1"
    )
    world.execute(f"INSERT INTO {world.database}.{quoted} VALUES (10, 'ten', 20, 30), (11, 'eleven', 21, 31)")
    targets = {"c0": "nvarchar(9)", "c1": "bigint", "x`y.z\\": "int", "dpone_rows": "smallint"}
    with world.source() as source:
        described = source.describe(world.database, table)
        query, layout = compiled(source, described, targets)
        assert sorted(read_rows(source, query, layout)) == [("eleven", 11, 21, 31), ("ten", 10, 20, 30)]
        assert source.snapshot(query).moved_since(source.snapshot(query)) is None


# ---- windows [F1, B11] ------------------------------------------------------------------------------------

WINDOW_TYPES = {
    "Date": timedelta(days=1),
    "Date32": timedelta(days=1),
    "DateTime": timedelta(seconds=1),
    "DateTime('Asia/Tokyo')": timedelta(seconds=1),
    **{
        f"DateTime64({scale}, 'Europe/Berlin')": timedelta(microseconds=10 ** (6 - scale))
        for scale in range(7)
    },
}
US = timedelta(microseconds=1)


def _insert_instants(world: EngineWorld, column_type: str, instants: list[datetime]) -> None:
    """Rows ``(k, at)`` whose instants pass through raw numbers only."""
    inner = column_type.removeprefix("Nullable(").removeprefix("LowCardinality(").rstrip(")")
    name = world.table(f"k Int64, at {column_type}")
    values = []
    for k, instant in enumerate(instants):
        micros = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // US
        if inner.startswith("DateTime64"):
            scale = int(inner[len("DateTime64(")])
            number = micros // 10 ** (6 - scale)
            values.append(f"({k}, reinterpret(toInt64({number}), 'DateTime64({scale}, \\'UTC\\')'))")
        elif inner.startswith("DateTime"):
            values.append(f"({k}, toDateTime({micros // 10**6}))")
        else:
            values.append(f"({k}, to{inner}({micros // 86_400_000_000}))")
    world.execute(f"INSERT INTO {name} VALUES {', '.join(values)}")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize(
    ("column_type", "wrapper"),
    [
        (column_type, wrapper)
        for column_type in WINDOW_TYPES
        for wrapper in WRAPPERS[:3]
        if not (wrapper.startswith("LowCardinality") and column_type.startswith(_NO_DICTIONARY))
    ],
)
def test_a_window_cuts_exactly(world: EngineWorld, column_type: str, wrapper: str, zone: str) -> None:
    """[F1, B10, B11] Last tick before, first and last inside, first after; in any session zone."""
    world.execute("SET allow_suspicious_low_cardinality_types = 1")
    tick = WINDOW_TYPES[column_type]
    start, end = DAY, DAY + timedelta(days=2)
    instants = [start - tick, start, start + tick, end - tick, end, end + tick]
    _insert_instants(world, wrapper.format(column_type), instants)
    source = world.source_after(f"SET session_timezone = '{zone}'")
    assert keys_of(world, Window(start, end), source=source) == [1, 2, 3]


@pytest.mark.parametrize("scale", range(7))
def test_far_dates_compare_exactly(world: EngineWorld, scale: int) -> None:
    """[B07] Bounds before 1970 and at the end of the type's range, for each scale of DateTime64."""
    tick = timedelta(microseconds=10 ** (6 - scale))
    early, late = datetime(1900, 1, 1, tzinfo=UTC), datetime(2299, 12, 31, 23, 59, 59, tzinfo=UTC)
    _insert_instants(world, f"DateTime64({scale})", [early, early + tick, late - tick, late])
    assert keys_of(world, Window(early, late)) == [0, 1, 2]
    assert keys_of(world, Window(early + tick, late + timedelta(seconds=1))) == [1, 2, 3]
    assert keys_of(world, Window(early - tick, early + tick)) == [0]


@pytest.mark.parametrize(
    "column_type", ["Nullable(DateTime64(3))", "Nullable(Date)", "LowCardinality(Nullable(Date))"]
)
def test_null_is_outside_every_window(world: EngineWorld, column_type: str) -> None:
    """A row without a time belongs to no window, but to the whole table."""
    world.execute("SET allow_suspicious_low_cardinality_types = 1")
    name = world.table(f"k Int64, at {column_type}")
    world.execute(f"INSERT INTO {name} VALUES (1, NULL), (2, toDate(20089)), (3, NULL), (4, toDate(0))")
    assert keys_of(world, Window(DAY, DAY + timedelta(days=1))) == [2]
    assert keys_of(world, Window(datetime(1970, 1, 1, tzinfo=UTC), DAY)) == [4]
    assert keys_of(world, Window.full()) == [1, 2, 3, 4]


def test_duplicates_all_arrive_and_an_empty_window_is_empty(world: EngineWorld) -> None:
    """Multiplicity counts; no row is the right answer for an empty window [F10]."""
    name = world.table("k Int64, at DateTime")
    world.execute(f"INSERT INTO {name} SELECT 7, 1735689600 FROM numbers(1000)")
    assert keys_of(world, Window(DAY, DAY + timedelta(days=1))) == [7] * 1000
    assert keys_of(world, Window(DAY + timedelta(days=1), DAY + timedelta(days=2))) == []


def test_the_window_column_need_not_be_delivered_under_its_name(world: EngineWorld) -> None:
    """The predicate names the table's own column, though an alias of ours is called the same."""
    name = world.table("c0 DateTime, k Int64")
    world.execute(f"INSERT INTO {name} VALUES (1735689600, 5), (0, 6)")
    assert keys_of(world, Window(DAY, DAY + timedelta(days=1)), column="c0") == [5]


@pytest.mark.parametrize(
    ("column_type", "start", "code"),
    [
        ("Date", DAY + timedelta(hours=1), "dpone.source.window_bound"),
        ("Date32", DAY + US, "dpone.source.window_bound"),
        ("DateTime", DAY + US, "dpone.source.window_bound"),
        ("DateTime64(3)", DAY + US, "dpone.source.window_bound"),
        ("DateTime64(5)", DAY + US, "dpone.source.window_bound"),
        ("DateTime", datetime(1969, 12, 31, tzinfo=UTC), "dpone.source.window_bound"),
        ("Date", datetime(1969, 12, 31, tzinfo=UTC), "dpone.source.window_bound"),
        ("Date32", datetime(1899, 12, 31, tzinfo=UTC), "dpone.source.window_bound"),
        ("Int64", DAY, "dpone.source.window_type"),
        ("String", DAY, "dpone.source.window_type"),
        ("DateTime64(9)", DAY, "dpone.source.window_type"),
    ],
)
def test_bounds_that_the_column_cannot_say_are_refused(
    world: EngineWorld, column_type: str, start: datetime, code: str
) -> None:
    """[F1] Refused before anything is read, instead of rounded or wrapped around."""
    world.table(f"k Int64, at {column_type}")
    with world.source() as source:
        table = source.describe(world.database, "t")
        with pytest.raises(ConfigurationError) as caught:
            compiled(source, table, {"k": "bigint"}, "at", Window(start, DAY + timedelta(days=1)))
    assert {problem.code for problem in caught.value.problems} == {code}


def test_an_interval_without_a_window_column_is_refused(world: EngineWorld) -> None:
    world.table("k Int64")
    with world.source() as source:
        table = source.describe(world.database, "t")
        with pytest.raises(ConfigurationError, match="window_column"):
            compiled(source, table, {"k": "bigint"}, None, Window(DAY, DAY + timedelta(days=1)))
        with pytest.raises(ConfigurationError, match="no such column"):
            compiled(source, table, {"k": "bigint"}, "missing", Window(DAY, DAY + timedelta(days=1)))


# ---- settings [F2, B64, B71] ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "setting",
    [
        "limit = 3",
        "offset = 5",
        "extremes = 1",
        "final = 1",
        "filter = 'k < 5'",
        "additional_table_filters = {{'{database}.t': 'k < 5'}}",
        "additional_result_filter = '0'",
        "max_rows_to_read = 1000, read_overflow_mode = 'break'",
        "max_result_rows = 10, result_overflow_mode = 'break'",
        "use_query_cache = 1",
        "apply_deleted_mask = 0",
        "session_timezone = 'Asia/Tokyo'",
        "compatibility = '22.3'",
        "optimize_use_projections = 1",
        "max_block_size = 7",
    ],
)
def test_a_profile_cannot_change_what_arrives(world: EngineWorld, setting: str) -> None:
    """[F2, B64] Complete, or an error: never fewer or other rows with a normal end."""
    name = world.table("k Int64, at DateTime", rest="ORDER BY k")
    world.execute(f"INSERT INTO {name} SELECT number, 1735689600 FROM numbers(20000)")
    world.execute(f"DELETE FROM {name} WHERE k = 17")
    source = world.source_after("SET " + setting.format(database=world.database))
    expected = [k for k in range(20_000) if k != 17]
    window = Window(DAY, DAY + timedelta(days=1))
    if "max_r" in setting:
        with pytest.raises(SourceUnavailable) as caught:
            keys_of(world, window, source=source)
        assert caught.value.code == "dpone.source.limit"
    else:
        assert keys_of(world, window, source=source) == expected


@pytest.mark.parametrize(
    "setting",
    [
        "join_use_nulls = 1",
        "transform_null_in = 1",
        "output_format_arrow_string_as_string = 1, implicit_select = 0",
    ],
)
def test_an_unknown_changed_setting_is_refused_by_name(world: EngineWorld, setting: str) -> None:
    """[F2, B71] What is not known to be harmless is named, in describe and again before the read."""
    world.table("k Int64")
    name = setting.split(" ")[0]
    refused = not name.startswith("output_format")
    with world.source_after("SET " + setting) as source:
        table = source.describe(world.database, "t")
        assert [p.where for p in table.problems] == ([f"setting {name}"] if refused else [])
        query, _ = compiled(source, table, {"k": "bigint"})
        if refused:
            with pytest.raises(ConfigurationError, match=name):
                raw_batches(source, query)
        else:
            assert raw_batches(source, query) == []


def test_the_snapshot_says_which_settings_were_sent(world: EngineWorld) -> None:
    """[F2] The closed list is evidence; on this engine every name of it exists."""
    world.table("k Int64")
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"k": "bigint"})
        sent = source.snapshot(query).settings
    wanted = {
        "session_timezone": "UTC",
        "limit": "0",
        "read_overflow_mode": "throw",
        "apply_patch_parts": "1",
    }
    assert wanted.items() <= sent.items()
    assert "SETTINGS" not in query.text


# ---- the end of the stream [F9, B64, B66] -----------------------------------------------------------------


@pytest.fixture
def many(world: EngineWorld) -> Iterator[tuple[SourcePort, SourceQuery, WireLayout]]:
    """A million rows, an opened source and the query of all of them."""
    name = world.table("k UInt32, s String", rest="ORDER BY k")
    world.execute(f"INSERT INTO {name} SELECT number, toString(number) FROM numbers(1000000)")
    with world.source() as source:
        table = source.describe(world.database, "t")
        query, layout = compiled(source, table, {"k": "bigint", "s": "nvarchar(10)"})
        yield source, query, layout


def throwing(query: SourceQuery, condition: str) -> SourceQuery:
    text = f"{query.text}\nWHERE NOT throwIf({condition})"
    return dataclasses.replace(query, text=text)


@pytest.mark.parametrize("row", [0, 5, 65_409, 500_000, 999_999])
def test_an_exception_at_row_n_is_never_the_end(
    many: tuple[SourcePort, SourceQuery, WireLayout], row: int
) -> None:
    """[F9, B64, B66] Whatever arrived before it, an exception of the engine is an exception here."""
    source, query, _ = many
    stream = source.read(throwing(query, f"k = {row}"), nonce=NONCE, deadline=soon())
    arrived: list[pa.RecordBatch] = []
    with pytest.raises(SourceUnavailable, match="395") as caught:
        arrived.extend(stream)
    assert sum(batch.num_rows for batch in arrived) < 1_000_000
    assert caught.value.code == "dpone.source.failed"
    assert caught.value.retry == "never"
    assert caught.value.fields["clickhouse_code"] == 395
    with pytest.raises(SourceUnavailable):
        next(stream)


def test_an_error_says_nothing_of_the_data(world: EngineWorld) -> None:
    """The engine's text quotes values; ours has the number and the constant's name."""
    name = world.table("s String")
    world.execute(f"INSERT INTO {name} VALUES ('top secret')")
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"s": "nvarchar(50)"})
        bad = dataclasses.replace(
            query, text=query.text.replace("dpone_rows.`s`", "toUInt32(dpone_rows.`s`)")
        )
        with pytest.raises(DponeError) as caught:
            raw_batches(source, bad)
    assert "secret" not in repr(caught.value) + str(caught.value.fields)
    assert "CANNOT_PARSE" in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_killed_query_is_never_the_end(
    many: tuple[SourcePort, SourceQuery, WireLayout], world: EngineWorld
) -> None:
    """[B66] KILL QUERY in the middle of the stream."""
    source, query, _ = many
    slow = dataclasses.replace(query, text=f"{query.text}\nWHERE NOT sleepEachRow(0.00001)")
    stream = source.read(slow, nonce="cd" * 32, deadline=soon())
    next(stream)
    killer = threading.Timer(0.05, world.execute, [KILL])
    killer.start()
    with pytest.raises(SourceUnavailable) as caught:
        for _ in stream:
            pass
    killer.join()
    assert caught.value.code in ("dpone.source.stopped", "dpone.source.incomplete")
    assert caught.value.retry == "backoff"


KILL = "KILL QUERY WHERE query LIKE '%cdcdcdcd%' AND query NOT LIKE '%KILL%' ASYNC"


def test_a_killed_query_that_ends_like_a_whole_one_is_seen_through(
    many: tuple[SourcePort, SourceQuery, WireLayout], world: EngineWorld
) -> None:
    """[F9, B66] The engine lets some killed queries end without an error: at whatever moment it happens, the
    rows are all there, or it is an error."""
    source, query, _ = many
    whole = failed = 0
    for attempt in range(15):
        killer = threading.Timer(attempt * 0.01, world.execute, [KILL])
        killer.start()
        try:
            rows = sum(b.num_rows for b in source.read(query, nonce="cd" * 32, deadline=soon()))
        except SourceUnavailable as error:
            failed += error.retry == "backoff"
        else:
            whole += rows == 1_000_000
        killer.join()
    assert whole + failed == 15


def test_the_nonce_is_in_the_query(
    many: tuple[SourcePort, SourceQuery, WireLayout], world: EngineWorld
) -> None:
    """[2.6 g] chDB has no query log, so the running query is looked at."""
    source, query, _ = many
    stream = source.read(query, nonce=NONCE, deadline=soon())
    next(stream)
    running = world.rows("SELECT Settings['log_comment'], Settings['limit'] FROM system.processes")
    assert [NONCE, "0"] in running
    stream.close()  # type: ignore[attr-defined]
    with pytest.raises(SourceUnavailable, match="before the end"):
        next(stream)


def test_the_deadline_ends_the_read_with_an_error(
    many: tuple[SourcePort, SourceQuery, WireLayout],
) -> None:
    """Between two blocks, and before the first one."""
    source, query, _ = many
    deadline = Deadline.after(0.3)
    stream = source.read(query, nonce=NONCE, deadline=deadline)
    next(stream)
    time.sleep(max(0.0, deadline.remaining_sec()) + 0.01)
    with pytest.raises(SourceUnavailable) as caught:
        list(stream)
    assert caught.value.code == "dpone.source.deadline"
    with pytest.raises(SourceUnavailable, match="deadline"):
        source.read(query, nonce=NONCE, deadline=Deadline.after(0))


def test_the_server_ends_a_read_that_hangs(many: tuple[SourcePort, SourceQuery, WireLayout]) -> None:
    """The deadline is sent along, for a block that never comes."""
    source, query, _ = many
    text = "SELECT toInt64(count()) AS c0 FROM numbers(1000000000000) WHERE sipHash64(number) = 1"
    started = time.monotonic()
    with pytest.raises(SourceUnavailable) as caught:
        list(source.read(dataclasses.replace(query, text=text), nonce=NONCE, deadline=Deadline.after(0.5)))
    assert caught.value.fields["clickhouse_code"] == 159
    assert caught.value.code == "dpone.source.limit"
    assert time.monotonic() - started < 20


def test_leaving_the_source_is_never_the_end(many: tuple[SourcePort, SourceQuery, WireLayout]) -> None:
    """A stream that outlives its source raises, and the directory is free again."""
    source, query, _ = many
    stream = source.read(query, nonce=NONCE, deadline=soon())
    next(stream)
    source.__exit__(None, None, None)
    with pytest.raises(SourceUnavailable, match="before the end"):
        list(stream)
    with pytest.raises(SourceUnavailable, match="not open"):
        source.read(query, nonce=NONCE, deadline=soon())
    with source:
        assert sum(batch.num_rows for batch in raw_batches(source, query)) == 1_000_000


def test_metadata_may_be_asked_during_a_read(many: tuple[SourcePort, SourceQuery, WireLayout]) -> None:
    """Another query on the same session would end the stream without a word."""
    source, query, _ = many
    rows = 0
    for batch in source.read(query, nonce=NONCE, deadline=soon()):
        rows += batch.num_rows
        source.snapshot(query)
    assert rows == 1_000_000


def test_rows_that_are_filtered_far_apart_all_arrive(
    many: tuple[SourcePort, SourceQuery, WireLayout],
) -> None:
    """Blocks that become empty under the predicate do not end the stream."""
    source, query, layout = many
    predicate = "s IN ('3', '999999')"
    asked = dataclasses.replace(query, predicate=predicate, text=f"{query.text}\nWHERE {predicate}")
    assert sorted(read_rows(source, asked, layout)) == [
        (3, "3"),
        (999_999, "999999"),
    ]


def test_blocks_are_bounded_by_bytes(world: EngineWorld) -> None:
    """[F11] Wide rows give small blocks, long before the 2 GiB of one Arrow string column.

    One granule of this table has 190 MiB, and ``preferred_block_size_bytes`` does not cut a granule.
    """
    rest = "ORDER BY k SETTINGS index_granularity_bytes = 0, min_bytes_for_wide_part = 0"
    name = world.table("k Int64, s String", rest=rest)
    world.execute(f"INSERT INTO {name} SELECT number, repeat('x', 100000) FROM numbers(2000)")
    with world.source() as source:
        table = source.describe(world.database, "t")
        query, _ = compiled(source, table, {"k": "bigint", "s": "nvarchar(max)"})
        sizes = [(b.num_rows, b.nbytes) for b in source.read(query, nonce=NONCE, deadline=soon())]
    assert sum(rows for rows, _ in sizes) == 2000
    assert max(size for _, size in sizes) < 32 * 1024 * 1024


# ---- what moves a read [F4, F5, F6, B67, B70] -------------------------------------------------------------

PARTITIONED = "k Int64, at DateTime, v String"
PARTITIONED_REST = (
    "PARTITION BY toYYYYMM(at) ORDER BY k"
    " SETTINGS enable_block_number_column = 1, enable_block_offset_column = 1, old_parts_lifetime = 0"
)
MONTH = Window(DAY, datetime(2025, 2, 1, tzinfo=UTC))


@pytest.fixture
def moving(world: EngineWorld) -> Callable[..., str | None]:
    """Three months of rows; a function that runs statements between two snapshots of January's query."""
    for name in ("t", "other"):
        world.table(PARTITIONED, name=name, rest=PARTITIONED_REST)
        for month in ("2024-12", "2025-01", "2025-02"):
            world.execute(
                f"INSERT INTO {world.database}.{name}"
                f" SELECT number, toDateTime('{month}-10 00:00:00', 'UTC') + number, 'a' FROM numbers(100)"
            )

    def run(*statements: str, window: Window = MONTH) -> str | None:
        with world.source() as source:
            table = source.describe(world.database, "t")
            query, _ = compiled(source, table, {"k": "bigint"}, "at", window)
            before = source.snapshot(query)
            assert before.moved_since(before) is None
            for statement in statements:
                world.execute(statement.format(t=f"{world.database}.t", other=f"{world.database}.other"))
            return source.snapshot(query).moved_since(before)

    return run


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        (["ALTER TABLE {t} UPDATE v = 'b' WHERE k = 1 SETTINGS mutations_sync = 2"], "a mutation ran"),
        (["ALTER TABLE {t} DELETE WHERE k = 1 SETTINGS mutations_sync = 2"], "a mutation ran"),
        (["DELETE FROM {t} WHERE k = 1"], "a mutation ran"),
        (
            ["SET enable_lightweight_update = 1", "UPDATE {t} SET v = 'b' WHERE k = 1"],
            "a lightweight update ran",
        ),
        (
            ["SET lightweight_delete_mode = 'lightweight_update_force'", "DELETE FROM {t} WHERE k = 1"],
            "a lightweight update ran",
        ),
        (["ALTER TABLE {t} DROP PARTITION 202501"], "a partition of the window was dropped or replaced"),
        (["ALTER TABLE {t} DETACH PARTITION 202501"], "a partition of the window was dropped or replaced"),
        (
            ["ALTER TABLE {t} REPLACE PARTITION 202501 FROM {other}"],
            "a partition of the window was dropped or replaced",
        ),
        (
            ["ALTER TABLE {t} DROP PARTITION 202501", "INSERT INTO {t} SELECT * FROM {other}"],
            "a partition of the window was dropped or replaced",
        ),
        (["TRUNCATE TABLE {t}"], "a partition of the window was dropped or replaced"),
        (["EXCHANGE TABLES {t} AND {other}"], "the table was replaced"),
        (["ALTER TABLE {t} ADD COLUMN w Int8"], "the table's columns changed"),
    ],
)
def test_what_moves_a_read(
    moving: Callable[..., str | None], world: EngineWorld, statements: list[str], reason: str
) -> None:
    """[F4, F5, B67, B70]"""
    try:
        assert moving(*statements) == reason
    finally:
        world.execute("SET lightweight_delete_mode = 'alter_update'")


@pytest.mark.parametrize(
    "statements",
    [
        ["OPTIMIZE TABLE {t} FINAL"],
        [
            "INSERT INTO {t} SELECT 900 + number, toDateTime(1735689600), 'n' FROM numbers(5)",
            "OPTIMIZE TABLE {t} FINAL",
        ],
        ["INSERT INTO {t} SELECT 900, toDateTime(1770000000), 'n'"],
        ["ALTER TABLE {t} DROP PARTITION 202412"],
        ["ALTER TABLE {t} DROP PARTITION 202502"],
        ["ALTER TABLE {other} UPDATE v = 'b' WHERE 1 SETTINGS mutations_sync = 2", "TRUNCATE TABLE {other}"],
    ],
)
def test_what_does_not_move_a_read(moving: Callable[..., str | None], statements: list[str]) -> None:
    """[F4] Merges, inserts, other partitions and other tables are normal."""
    assert moving(*statements) is None


def test_a_full_read_moves_with_every_partition(moving: Callable[..., str | None]) -> None:
    assert moving("ALTER TABLE {t} DROP PARTITION 202412", window=Window.full()) is not None


def test_an_unfinished_mutation_moves_and_is_refused(world: EngineWorld) -> None:
    """[F4, F6] Parts of it may be applied already."""
    name = world.table(PARTITIONED, rest=PARTITIONED_REST)
    world.execute(f"INSERT INTO {name} SELECT number, 1735689600, 'a' FROM numbers(10)")
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"k": "bigint"}, "at", MONTH)
        world.execute(f"SYSTEM STOP MERGES {name}")
        world.execute(f"ALTER TABLE {name} UPDATE v = 'b' WHERE 1 SETTINGS mutations_sync = 0")
        try:
            snapshot = source.snapshot(query)
            problems = source.describe(world.database, "t").problems
        finally:
            world.execute(f"SYSTEM START MERGES {name}")
    assert snapshot.unfinished == snapshot.mutations != ()
    assert snapshot.moved_since(snapshot) == "a mutation was running"
    assert [p.code for p in problems] == ["dpone.source.mutation"]


def test_a_snapshot_lists_the_parts_of_the_window_only(
    moving: Callable[..., str | None], world: EngineWorld
) -> None:
    """[F6] Evidence: names, partitions, rows, block ranges."""
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"k": "bigint"}, "at", MONTH)
        found: SourceSnapshot = source.snapshot(query)
    (part,) = found.parts
    assert (part["partition"], part["rows"]) == ("202501", 100)
    assert part["min_block"] <= part["max_block"]
    assert found.schema_sha256 == moving_schema(world)
    assert found.engine == "MergeTree"


def moving_schema(world: EngineWorld) -> str:
    with world.source() as source:
        return source.describe(world.database, "t").schema_sha256


def test_a_dropped_table_has_moved(world: EngineWorld) -> None:
    """[B70] Gone between plan and read, in the snapshot and in the read itself."""
    name = world.table("k Int64")
    world.execute(f"INSERT INTO {name} VALUES (1)")
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"k": "bigint"})
        world.execute(f"DROP TABLE {name} SYNC")
        with pytest.raises(SourceMoved):
            source.snapshot(query)
        with pytest.raises(SourceMoved):
            raw_batches(source, query)


# ---- admission [F7, F11, B68, B70] ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "code", "says"),
    [
        ("CREATE VIEW {db}.t AS SELECT 1 AS k", "dpone.source.engine", "view"),
        (
            "CREATE TABLE {db}.t (k Int64) ENGINE = ReplacingMergeTree ORDER BY k",
            "dpone.source.engine",
            "merge",
        ),
        ("CREATE TABLE {db}.t (k Int64) ENGINE = Memory", "dpone.source.engine", "Memory"),
        ("CREATE TABLE {db}.t (k Int64) ENGINE = Log", "dpone.source.engine", "Log"),
        (
            "CREATE TABLE {db}.t (k Int64, d Date) ENGINE = MergeTree ORDER BY k TTL d + INTERVAL 1 DAY",
            "dpone.source.ttl",
            "rows go",
        ),
        (
            "CREATE TABLE {db}.t (d Date, v String TTL d + INTERVAL 1 DAY) ENGINE = MergeTree ORDER BY d",
            "dpone.source.ttl",
            "values go",
        ),
    ],
)
def test_tables_that_are_refused(world: EngineWorld, statement: str, code: str, says: str) -> None:
    """[F11, B68, B70] Collected as problems, with what would be needed."""
    world.execute(statement.format(db=world.database))
    with world.source() as source:
        table = source.describe(world.database, "t")
    assert [p.code for p in table.problems] == [code]
    assert says in table.problems[0].message


def test_a_column_called_ttl_is_no_ttl(world: EngineWorld) -> None:
    world.table("TTL DateTime, `a TTL b` String", rest="PARTITION BY toYYYYMM(TTL) ORDER BY (TTL, `a TTL b`)")
    with world.source() as source:
        assert source.describe(world.database, "t").problems == ()


def test_a_database_without_uuids_is_refused(world: EngineWorld) -> None:
    """[F7] The old engine of databases."""
    plain = f"{world.database}_ordinary"
    world.execute("SET allow_deprecated_database_ordinary = 1")
    world.execute(f"CREATE DATABASE {plain} ENGINE = Ordinary")
    try:
        world.execute(f"CREATE TABLE {plain}.t (k Int64) ENGINE = MergeTree ORDER BY k")
        with world.source() as source:
            problems = source.describe(plain, "t").problems
    finally:
        world.execute(f"DROP DATABASE {plain} SYNC")
    assert [p.code for p in problems] == ["dpone.source.database"]
    assert "Ordinary" in problems[0].message


def test_describe_tells_kinds_rows_and_gaps(world: EngineWorld) -> None:
    name = world.table(
        "k Int64, d Int64 DEFAULT 5, m String MATERIALIZED 'x', a Int64 ALIAS k, e Int8 EPHEMERAL"
    )
    world.execute(f"INSERT INTO {name} (k) SELECT number FROM numbers(1234)")
    with world.source() as source:
        table = source.describe(world.database, "t")
    assert [(c.name, c.kind) for c in table.columns] == [
        ("k", ""),
        ("d", ""),
        ("m", "MATERIALIZED"),
        ("a", "ALIAS"),
        ("e", "EPHEMERAL"),
    ]
    assert table.estimated_rows == 1234
    assert table.uuid != "00000000-0000-0000-0000-000000000000"
    assert table.capabilities["row_policies"] == "absent"
    assert table.problems == ()


def test_patch_parts_are_a_warning(moving: Callable[..., str | None], world: EngineWorld) -> None:
    """[F5] A snapshot with patch parts is consistent, so they are listed and not refused."""
    world.execute("SET enable_lightweight_update = 1")
    world.execute(f"UPDATE {world.database}.t SET v = 'patched' WHERE k < 10")
    with world.source() as source:
        table = source.describe(world.database, "t")
        query, layout = compiled(source, table, {"v": "nvarchar(9)"}, "at", MONTH)
        assert source.snapshot(query).patch_parts
        values = [v for (v,) in read_rows(source, query, layout)]
    assert "patch part" in table.warnings[0]
    assert table.problems == ()
    assert (values.count("patched"), len(values)) == (10, 100)


@pytest.mark.parametrize(
    ("database", "table", "says"),
    [
        ("{db}", "orderz", "is it 'orders'"),
        ("{db}x", "orders", "is it '{db}'"),
        ("{db}", "qqqq", "does not exist"),
    ],
)
def test_a_missing_table_is_named(world: EngineWorld, database: str, table: str, says: str) -> None:
    world.table("k Int64", name="orders")
    with world.source() as source, pytest.raises(ConfigurationError) as caught:
        source.describe(database.format(db=world.database), table)
    assert caught.value.code == "dpone.source.missing"
    assert says.format(db=world.database) in str(caught.value)


def test_an_engine_without_a_newer_setting_is_served(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[G4] A name that the engine does not know is not sent; the rest still is."""
    monkeypatch.setitem(query_settings.SENT_IF_KNOWN, "a_setting_of_tomorrow", "1")
    world.table("k Int64")
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"k": "bigint"})
        sent = source.snapshot(query).settings
        assert raw_batches(source, query) == []
    assert "a_setting_of_tomorrow" not in sent
    assert {"filter", "apply_patch_parts", "limit"} <= set(sent)
