"""The matrix: which pairs are admitted, how they travel, and what a refusal tells the user to do."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from airflow_dpone.errors import CATALOGUE, ConfigurationError, Problem
from airflow_dpone.wire.source_type import REFUSED_SOURCES
from airflow_dpone.wire.sql_type import REFUSED_TARGETS
from airflow_dpone.wire.types import RawForm, SqlType, TypePair, resolve
from tests.unit.wire.batches import PAIRS, pair

TARGETS = (
    "bigint", "int", "smallint", "tinyint", "bit", "real", "float(53)", "date", "uniqueidentifier",
    *(f"datetime2({n})" for n in range(8)),
    "decimal(19,0)", "decimal(20,0)", "decimal(38,0)", "decimal(10,4)", "decimal(18,4)", "decimal(38,4)",
    "nvarchar(1)", "nvarchar(4000)", "nvarchar(max)",
    "binary(4)", "binary(5)", "binary(6)", "varbinary(4)", "varbinary(5)", "varbinary(6)", "varbinary(max)",
)  # fmt: skip
ADMITTED: dict[str, set[str]] = {
    "Int8": {"smallint", "int", "bigint"},
    "Int16": {"smallint", "int", "bigint"},
    "Int32": {"int", "bigint"},
    "Int64": {"bigint"},
    "UInt8": {"tinyint", "smallint", "int", "bigint"},
    "UInt16": {"int", "bigint"},
    "UInt32": {"bigint"},
    "UInt64": {"decimal(20,0)", "decimal(38,0)"},
    "Float32": {"real", "float(53)"},
    "Float64": {"float(53)"},
    "Decimal(10, 4)": {"decimal(10,4)", "decimal(18,4)", "decimal(38,4)"},
    "Decimal(18, 4)": {"decimal(18,4)", "decimal(38,4)"},
    "Decimal(38, 4)": {"decimal(38,4)"},
    "Decimal(19, 0)": {"decimal(19,0)", "decimal(20,0)", "decimal(38,0)"},
    "Bool": {"bit"},
    "String": {"nvarchar(1)", "nvarchar(4000)", "nvarchar(max)"},
    "Enum8('a' = 1)": {"nvarchar(1)", "nvarchar(4000)", "nvarchar(max)"},
    "Enum16('it\\'s, (odd)' = 1, 'b' = -2)": {"nvarchar(1)", "nvarchar(4000)", "nvarchar(max)"},
    "FixedString(5)": {"binary(5)", "varbinary(5)", "varbinary(6)", "varbinary(max)"},
    "UUID": {"uniqueidentifier"},
    "Date": {"date"},
    "Date32": {"date"},
    "DateTime": {f"datetime2({n})" for n in range(8)},
    "DateTime('Asia/Kolkata')": {f"datetime2({n})" for n in range(8)},
    **{f"DateTime64({s})": {f"datetime2({n})" for n in range(s, 8)} for s in range(7)},
    "DateTime64(3, 'UTC')": {f"datetime2({n})" for n in range(3, 8)},
}


@pytest.mark.parametrize("source", ADMITTED)
def test_the_matrix(source: str) -> None:
    """B04, B15, B19, B20: what is not exact is refused before any side effect."""
    for target in TARGETS:
        found = resolve("amount", source, target, False)
        assert isinstance(found, TypePair) == (target in ADMITTED[source]), (source, target, found)
        if isinstance(found, Problem):
            assert found.where == "amount"
            assert found.code.startswith("dpone.types.")
            assert CATALOGUE[found.code].error == "ConfigurationError"
            assert source in found.message
            assert "use " in found.message


@pytest.mark.parametrize(
    ("source", "nullable"),
    [
        ("String", False),
        ("Nullable(String)", True),
        ("LowCardinality(String)", False),
        ("LowCardinality(Nullable(String))", True),
        (" LowCardinality( Nullable(String) ) ", True),
    ],
)
def test_wrappers(source: str, nullable: bool) -> None:
    found = resolve("c", source, "nvarchar(20)", True)
    assert isinstance(found, TypePair)
    assert (found.source_nullable, found.raw_form, found.source_type) == (nullable, RawForm.TEXT, source)


def test_nullable_into_not_null_is_refused() -> None:
    """B01: and the message says both ways out."""
    found = resolve("c", "Nullable(Int32)", "int", False)
    assert isinstance(found, Problem)
    assert found.code == "dpone.types.nullability"
    assert "options.fail_on_null=True" in found.message
    assert "int NULL" in found.message


@pytest.mark.parametrize(
    ("source", "target", "code", "words"),
    [
        ("UInt64", "bigint", "dpone.types.pair", "decimal(20,0)"),
        ("Float64", "real", "dpone.types.pair", "float(53)"),
        ("Float64", "float(24)", "dpone.types.pair", "float(53)"),
        ("Float64", "nvarchar(10)", "dpone.types.pair", "float(53)"),
        ("Decimal(18, 4)", "decimal(18,2)", "dpone.types.scale", "decimal(18,4)"),
        ("Decimal(18, 4)", "decimal(38,6)", "dpone.types.scale", "decimal(18,4)"),
        ("Decimal(18, 4)", "decimal(10,4)", "dpone.types.scale", "fewer digits"),
        ("Decimal(18, 4)", "float(53)", "dpone.types.pair", "decimal(18,4)"),
        ("DateTime64(6)", "datetime2(2)", "dpone.types.scale", "datetime2(6) or finer"),
        ("DateTime64(3)", "datetime", "dpone.types.unsupported", "datetime2(n)"),
        ("DateTime64(3)", "date", "dpone.types.pair", "datetime2(3) or finer"),
        ("DateTime", "datetimeoffset(0)", "dpone.types.unsupported", "datetime2(n)"),
        ("FixedString(5)", "binary(6)", "dpone.types.length", "binary(5)"),
        ("FixedString(5)", "varbinary(4)", "dpone.types.length", "exactly 5 bytes"),
        ("FixedString(5)", "nvarchar(5)", "dpone.types.pair", "bytes, not text"),
        ("FixedString(9000)", "varbinary(8000)", "dpone.types.length", "varbinary(max)"),
        ("String", "varbinary(max)", "dpone.types.pair", "nvarchar(max)"),
        ("String", "varchar(20)", "dpone.types.unsupported", "nvarchar(n)"),
        ("Bool", "tinyint", "dpone.types.pair", "use bit"),
        ("UUID", "nvarchar(36)", "dpone.types.pair", "use uniqueidentifier"),
    ],
)
def test_a_refused_pair_says_what_to_use(source: str, target: str, code: str, words: str) -> None:
    found = resolve("c", source, target, True)
    assert isinstance(found, Problem), found
    assert found.code == code
    assert words in found.message


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("Int128", "toDecimal128(c, 0)"),
        ("UInt128", "toDecimal128(c, 0)"),
        ("Int256", "toDecimal128(c, 0)"),
        ("UInt256", "toDecimal128(c, 0)"),
        ("Decimal(76, 10)", "toDecimal128(c, 10)"),
        ("Decimal256(10)", "toDecimal128(c, 10)"),
        ("DateTime64(7)", "toDateTime64(c, 6, 'UTC')"),
        ("DateTime64(8, 'UTC')", "DateTime64(8)"),
        ("DateTime64(9, 'Europe/Berlin')", "toDateTime64(c, 6, 'UTC')"),
        ("Array(Nullable(String))", "toJSONString(c)"),
        ("Map(String, UInt64)", "one column per key"),
        ("Tuple(a UInt8, b String)", "one column per element"),
        ("Nested(a UInt8)", "one row per element"),
        ("JSON", "toJSONString(c)"),
        ("JSON(max_dynamic_paths=16)", "toJSONString(c)"),
        ("Object('json')", "toJSONString(c)"),
        ("Variant(String, UInt64)", "subcolumn"),
        ("Dynamic", "subcolumn"),
        ("IPv4", "nvarchar(15)"),
        ("IPv6", "nvarchar(39)"),
        ("AggregateFunction(sum, UInt64)", "finalizeAggregation(c)"),
        ("SimpleAggregateFunction(sum, UInt64)", "aggregated to plain types"),
        ("Point", "wkt(c)"),
        ("Ring", "wkt(c)"),
        ("MultiPolygon", "wkt(c)"),
        ("IntervalDay", "as Int64"),
        ("Time", "seconds"),
        ("Time64(3)", "seconds"),
        ("BFloat16", "toFloat32(c)"),
        ("Nullable(Nothing)", "a column of a real type"),
        ("LowCardinality(Nullable(IPv4))", "nvarchar(15)"),
        ("Weather", "`python -m airflow_dpone types`"),
        ("FixedString", "has no length"),
        ("", "not a ClickHouse type"),
        ("Nullable(", "not a ClickHouse type"),
    ],
)
def test_a_refused_source_type_says_what_to_do(source: str, words: str) -> None:
    """B06, B16: refused in the plan, with a way out."""
    found = resolve("c", source, "nvarchar(max)", True)
    assert isinstance(found, Problem)
    assert found.code == "dpone.types.unsupported"
    assert any(word in found.message for word in words.split("|")), found.message
    assert "`columns`" in found.message


def test_every_refused_source_type_has_its_reason() -> None:
    for name, reason in REFUSED_SOURCES.items():
        found = resolve("c", name, "nvarchar(max)", True)
        assert isinstance(found, Problem)
        assert found.message.startswith(f"{name} {reason}")
        assert "deliver" in reason or "add a column" in reason


@pytest.mark.parametrize("name", REFUSED_TARGETS)
def test_every_refused_target_type_has_its_reason(name: str) -> None:
    """B02 and the rest of the old types."""
    with pytest.raises(ConfigurationError, match=r"use |leave |declare ") as caught:
        SqlType.parse(name)
    assert caught.value.code == "dpone.types.unsupported"
    assert REFUSED_TARGETS[name] in caught.value.message
    assert isinstance(resolve("c", "String", f"{name}(3)", True), Problem)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("BIGINT", "bigint"),
        ("integer", "int"),
        (" bit ", "bit"),
        ("NVarChar( 20 )", "nvarchar(20)"),
        ("nvarchar(MAX)", "nvarchar(max)"),
        ("varbinary(max)", "varbinary(max)"),
        ("binary(3)", "binary(3)"),
        ("numeric(10, 4)", "decimal(10,4)"),
        ("decimal(38)", "decimal(38,0)"),
        ("decimal", "decimal(18,0)"),
        ("datetime2", "datetime2(7)"),
        ("datetime2(0)", "datetime2(0)"),
        ("float", "float(53)"),
        ("float(25)", "float(53)"),
        ("float(24)", "real"),
        ("double precision", "float(53)"),
        ("uniqueidentifier", "uniqueidentifier"),
    ],
)
def test_sql_type_texts(text: str, canonical: str) -> None:
    parsed = SqlType.parse(text)
    assert str(parsed) == canonical
    assert SqlType.parse(canonical) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "", "nvarchar", "nvarchar(0)", "nvarchar(4001)", "nvarchar(1,2)", "binary(max)", "binary(8001)",
        "int(4)", "decimal(39,0)", "decimal(4,5)", "decimal(max)", "datetime2(8)", "datetime2(3,1)",
        "datetime2(max)", "float(54)", "float(0)", "float(max)", "mood", "int; DROP TABLE t",
        "nvarchar(20) NOT NULL",
    ],
)  # fmt: skip
def test_texts_that_are_no_sql_type(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SqlType.parse(text)
    assert caught.value.code == "dpone.types.unsupported"


def test_sql_type_fields() -> None:
    assert SqlType.parse("nvarchar(20)") == SqlType("nvarchar", length=20)
    assert SqlType.parse("nvarchar(max)").is_max
    assert not SqlType.parse("bigint").is_max
    assert SqlType.parse("decimal(38,10)") == SqlType("decimal", precision=38, scale=10)


@pytest.mark.parametrize(
    ("source", "target", "arrow", "raw"),
    [
        ("Int8", "smallint", pa.int16(), [pa.int8()]),
        ("UInt8", "bigint", pa.int64(), [pa.uint8()]),
        ("UInt64", "decimal(38,0)", pa.decimal128(38, 0), [pa.uint64()]),
        ("Float32", "float(53)", pa.float64(), [pa.float32()]),
        ("Decimal32(2)", "decimal(12,2)", pa.decimal128(12, 2), [pa.int32()]),
        ("Decimal(18, 2)", "decimal(18,2)", pa.decimal128(18, 2), [pa.int64()]),
        ("Decimal64(2)", "decimal(18,2)", pa.decimal128(18, 2), [pa.int64()]),
        ("Decimal128(2)", "decimal(38,2)", pa.decimal128(38, 2), [pa.uint64(), pa.int64()]),
        ("Decimal(19)", "decimal(19,0)", pa.decimal128(19, 0), [pa.uint64(), pa.int64()]),
        ("Bool", "bit", pa.bool_(), [pa.uint8()]),
        ("String", "nvarchar(max)", pa.large_string(), [pa.binary()]),
        ("Enum16('a' = 1)", "nvarchar(9)", pa.large_string(), [pa.binary()]),
        ("FixedString(7)", "varbinary(max)", pa.binary(7), [pa.binary()]),
        ("UUID", "uniqueidentifier", pa.binary(16), [pa.binary()]),
        ("Date", "date", pa.date32(), [pa.uint16()]),
        ("Date32", "date", pa.date32(), [pa.int32()]),
        ("DateTime", "datetime2(7)", pa.timestamp("s"), [pa.uint32()]),
        ("DateTime64(0)", "datetime2(7)", pa.timestamp("s"), [pa.int64()]),
        ("DateTime64(1)", "datetime2(7)", pa.timestamp("ms"), [pa.int64()]),
        ("DateTime64(3)", "datetime2(3)", pa.timestamp("ms"), [pa.int64()]),
        ("DateTime64(4)", "datetime2(6)", pa.timestamp("us"), [pa.int64()]),
        ("DateTime64(6)", "datetime2(6)", pa.timestamp("us"), [pa.int64()]),
    ],
)
def test_arrow_types(source: str, target: str, arrow: pa.DataType, raw: list[pa.DataType]) -> None:
    found = pair(source, target)
    assert found.arrow_type == arrow
    fields = found.raw_arrow_fields(4)
    assert [field.type for field in fields] == raw
    assert [field.name for field in fields] == ["c4", "c4_hi"][: len(raw)]
    masked = pair(f"Nullable({source})", target).raw_arrow_fields(4)
    assert masked[:-1] == fields
    assert (masked[-1].name, masked[-1].type) == ("c4_null", pa.uint8())


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_json_round_trip(source: str, target: str) -> None:
    for wrapped in (source, f"Nullable({source})"):
        found = pair(wrapped, target)
        data = json.loads(json.dumps(found.to_json()))
        assert set(data) == {"source_type", "target_type", "target_nullable"}
        assert TypePair.from_json(data) == found


def test_json_of_a_pair_that_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="decimal\\(20,0\\)"):
        TypePair.from_json({"source_type": "UInt64", "target_type": "bigint", "target_nullable": True})
