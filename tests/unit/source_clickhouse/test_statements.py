"""The text of the statements: quoting, projections, bounds. What they mean is tested on an engine."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from airflow_dpone.delivery.records import SourceColumn, SourceQuery, SourceTable
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import CATALOGUE, ConfigurationError
from airflow_dpone.source_clickhouse import statements
from airflow_dpone.source_clickhouse.statements import compile_query, find_rows, quote_name, quote_text
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve

JANUARY = Window(datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 2, 1, tzinfo=UTC))
TARGETS = {
    "Int64": "bigint",
    "Float32": "real",
    "Bool": "bit",
    "String": "nvarchar(9)",
    "FixedString(7)": "binary(7)",
    "UUID": "uniqueidentifier",
    "Date": "date",
    "Date32": "date",
    "DateTime": "datetime2(0)",
    "DateTime64(6, 'Asia/Tokyo')": "datetime2(6)",
    "Decimal(9, 2)": "decimal(9,2)",
    "Decimal(18, 2)": "decimal(18,2)",
    "Decimal(38, 2)": "decimal(38,2)",
    "Enum8('a' = 1)": "nvarchar(9)",
}


def table_of(*types: str, database: str = "shop", table: str = "orders") -> SourceTable:
    columns = tuple(SourceColumn(f"col {i}", text) for i, text in enumerate(types))
    return SourceTable(database, table, "", "MergeTree", columns, {})


def layout_of(*types: str) -> WireLayout:
    columns = []
    for i, text in enumerate(types):
        inner = re.sub(r"^(LowCardinality|Nullable)\((.*)\)$", r"\2", text)
        pair = resolve("c", text, TARGETS[inner], True)
        assert isinstance(pair, TypePair)
        columns.append(WireColumn(f"t{i}", pair))
    return WireLayout(tuple(columns))


def query_of(*types: str, window_column: str | None = None, window: Window | None = None) -> SourceQuery:
    table = table_of(*types)
    names = [column.name for column in table.columns]
    return compile_query(table, layout_of(*types), names, window_column, window or Window.full())


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("orders", "`orders`"),
        ("a`b", "`a\\`b`"),
        ("a\\", "`a\\\\`"),
        ("a\\`b", "`a\\\\\\`b`"),
        ("a.b", "`a.b`"),
        ("'; DROP", "`'; DROP`"),
        ("é", "`é`"),
    ],
)
def test_a_name_cannot_leave_its_quotes(name: str, quoted: str) -> None:
    assert quote_name(name) == quoted


@pytest.mark.parametrize(("text", "quoted"), [("a'b", "'a\\'b'"), ("a\\", "'a\\\\'"), ("\\'", "'\\\\\\''")])
def test_a_text_cannot_leave_its_quotes(text: str, quoted: str) -> None:
    assert quote_text(text) == quoted


@pytest.mark.parametrize(
    ("source_type", "projection"),
    [
        ("Int64", "{c} AS c0"),
        ("Nullable(Int64)", "assumeNotNull({c}) AS c0,\n       isNull({c}) AS c0_null"),
        ("Bool", "toUInt8({c}) AS c0"),
        ("FixedString(7)", "substring({c}, 1, 7) AS c0"),
        ("UUID", "substring(UUIDToNum({c}), 1, 16) AS c0"),
        ("Date", "toUInt16({c}) AS c0"),
        ("Date32", "toInt32({c}) AS c0"),
        ("DateTime", "toUInt32({c}) AS c0"),
        ("DateTime64(6, 'Asia/Tokyo')", "reinterpretAsInt64({c}) AS c0"),
        ("Decimal(9, 2)", "reinterpretAsInt32({c}) AS c0"),
        ("Decimal(18, 2)", "reinterpretAsInt64({c}) AS c0"),
        (
            "Decimal(38, 2)",
            "reinterpretAsUInt64(reinterpretAsInt128({c})) AS c0,\n"
            "       toInt64(bitShiftRight(reinterpretAsInt128({c}), 64)) AS c0_hi",
        ),
        ("Enum8('a' = 1)", "toString({c}) AS c0"),
        ("Nullable(Enum8('a' = 1))", "ifNull(toString({c}), '') AS c0,\n       isNull({c}) AS c0_null"),
        ("LowCardinality(String)", "{c} AS c0"),
    ],
)
def test_each_type_is_projected_to_its_raw_form(source_type: str, projection: str) -> None:
    """[F3, settled 2.9]"""
    assert query_of(source_type).projection == projection.format(c="dpone_rows.`col 0`")


def test_the_aliases_are_the_raw_columns_of_the_layout() -> None:
    types = [wrapped for text in TARGETS for wrapped in (text, f"Nullable({text})")]
    aliases = re.findall(r" AS (\w+)", query_of(*types).projection)
    assert aliases == layout_of(*types).raw_schema.names


def test_the_whole_statement() -> None:
    query = query_of("Int64", "DateTime", window_column="col 1", window=JANUARY)
    assert query.text == (
        "SELECT dpone_rows.`col 0` AS c0,\n"
        "       toUInt32(dpone_rows.`col 1`) AS c1\n"
        "FROM `shop`.`orders` AS dpone_rows\n"
        "WHERE dpone_rows.`col 1` >= toDateTime(1735689600, 'UTC')"
        " AND dpone_rows.`col 1` < toDateTime(1738368000, 'UTC')"
    )


@pytest.mark.parametrize(
    ("source_type", "predicate"),
    [
        ("Date", "{c} >= toDate(20089) AND {c} < toDate(20120)"),
        ("Date32", "{c} >= toDate32(20089) AND {c} < toDate32(20120)"),
        ("Nullable(Date)", "{c} >= toDate(20089) AND {c} < toDate(20120)"),
        (
            "DateTime64(6, 'Asia/Tokyo')",
            "{c} >= fromUnixTimestamp64Micro(toInt64(1735689600000000), 'UTC')"
            " AND {c} < fromUnixTimestamp64Micro(toInt64(1738368000000000), 'UTC')",
        ),
    ],
)
def test_bounds_are_integers(source_type: str, predicate: str) -> None:
    """[F1, B11, B17] Day numbers, seconds, microseconds: no text, no float, nothing that a zone changes."""
    query = query_of(source_type, window_column="col 0", window=JANUARY)
    assert query.predicate == predicate.format(c="dpone_rows.`col 0`")
    bare = query.predicate.replace("'UTC'", "").replace("`col 0`", "")
    assert "'" not in bare
    assert re.search(r"\d\.\d|\de\d", bare) is None
    assert all(abs(int(number)) < 2**63 for number in re.findall(r"\d+", bare))


def test_bounds_before_1970_are_negative_numbers() -> None:
    window = Window(datetime(1950, 1, 1, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC))
    assert "toDate32(-7305)" in query_of("Date32", window_column="col 0", window=window).predicate
    text = query_of("DateTime64(6, 'Asia/Tokyo')", window_column="col 0", window=window).predicate
    assert "toInt64(-631152000000000)" in text


def test_all_bad_bounds_are_named_at_once() -> None:
    odd = Window(datetime(2025, 1, 1, 1, tzinfo=UTC), datetime(2025, 1, 2, 1, tzinfo=UTC))
    with pytest.raises(ConfigurationError) as caught:
        query_of("Date", window_column="col 0", window=odd)
    assert [p.where for p in caught.value.problems] == ["window.start", "window.end"]


def test_a_full_window_has_no_predicate() -> None:
    """[F10] Even with a window column: rows without a time belong to the whole table."""
    query = query_of("DateTime", window_column="col 0")
    assert query.predicate == ""
    assert "WHERE" not in query.text


def test_all_missing_columns_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        compile_query(table_of("Int64"), layout_of("Int64"), ["gone"], "lost", JANUARY)
    assert [p.where for p in caught.value.problems] == ["gone", "lost"]


def test_settings_are_rendered_as_their_kind() -> None:
    text = statements.with_settings("SELECT 1", {"limit": "0", "a": "{}", "b": "", "c": "o'k", "d": "throw"})
    assert text == "SELECT 1\nSETTINGS limit = 0, a = {}, b = '', c = 'o\\'k', d = 'throw'"
    assert statements.with_settings("SELECT 1", {}) == "SELECT 1"


def test_a_hint_has_the_window_and_no_value() -> None:
    """[settled 2.18]"""
    query = query_of("Int64", "DateTime", window_column="col 1", window=JANUARY)
    hints = {code: find_rows(query, "col 0", code) for code in CATALOGUE if code.startswith("dpone.source.")}
    assert {code for code, text in hints.items() if text} == {
        f"dpone.source.{what}"
        for what in ("null", "nan", "infinite", "subnormal", "utf8", "too_long", "decimal", "range")
    }
    for text in filter(None, hints.values()):
        assert query.predicate in text
        assert "`shop`.`orders`" in text
    assert "isNull(dpone_rows.`col 0`)" in hints["dpone.source.null"]
    assert find_rows(query_of("Int64"), "col 0", "dpone.source.nan").endswith(
        "WHERE isNaN(dpone_rows.`col 0`)"
    )
