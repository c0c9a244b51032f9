"""The identity of the row bytes: any change of framing, order, name or type gives another layout."""

from __future__ import annotations

import hashlib

import pytest
import rfc8785

from airflow_dpone.wire.sql_type import FRAMING, SqlType, framing_as_data
from airflow_dpone.wire.types import WireColumn, WireLayout
from tests.unit.wire.batches import layout, pair

PUBLISHED = WireLayout(
    (
        WireColumn("id", pair("Int64", "bigint", False)),
        WireColumn("amount", pair("Nullable(Float64)", "float(53)", True)),
        WireColumn("note", pair("String", "nvarchar(max)", False)),
        WireColumn("at", pair("DateTime64(6, 'UTC')", "datetime2(6)", True)),
    )
)

# Frozen: a sealed chunk and a journal name layouts by this value.
GOLDEN = "8bd892b75938acb4b7e81d0b476d3c8b9b99a3eac7cdc17147a37d87d6863d26"

# The length prefixes of `native_rows v1`, written down a second time: (nullable, NOT NULL), payload bytes.
PREFIXES = {
    "bigint": (1, 0, 8),
    "int": (1, 0, 4),
    "smallint": (1, 0, 2),
    "tinyint": (1, 0, 1),
    "bit": (1, 1, 1),
    "real": (1, 0, 4),
    "float(53)": (1, 0, 8),
    "decimal(10,4)": (1, 1, 19),
    "date": (1, 0, 3),
    "datetime2(0)": (1, 0, 8),
    "datetime2(7)": (1, 0, 8),
    "nvarchar(20)": (2, 2, None),
    "nvarchar(max)": (8, 8, None),
    "binary(3)": (2, 2, None),
    "varbinary(9)": (2, 2, None),
    "varbinary(max)": (8, 8, None),
    "uniqueidentifier": (1, 1, 16),
}


def test_golden_sha256() -> None:
    assert PUBLISHED.sha256 == GOLDEN
    assert PUBLISHED.arrow_schema.metadata == {b"dpone.wire_layout_sha256": GOLDEN.encode()}


def test_golden_preimage() -> None:
    identity = {
        "layout": "native_rows v1",
        "framing": framing_as_data(),
        "columns": [
            ["id", "bigint", False],
            ["amount", "float(53)", True],
            ["note", "nvarchar(max)", False],
            ["at", "datetime2(6)", True],
        ],
    }
    assert hashlib.sha256(rfc8785.dumps(identity)).hexdigest() == GOLDEN  # type: ignore[arg-type]


@pytest.mark.parametrize("text", PREFIXES)
def test_framing(text: str) -> None:
    sql_type = SqlType.parse(text)
    nullable, not_null, payload = PREFIXES[text]
    assert (sql_type.prefix_bytes(True), sql_type.prefix_bytes(False)) == (nullable, not_null)
    assert sql_type.payload_bytes == payload


def test_every_framing_row_is_checked() -> None:
    assert {id(SqlType.parse(text).framing) for text in PREFIXES} == {id(row) for row in FRAMING.values()}


def test_columns_know_their_framing() -> None:
    assert [(c.prefix_bytes, c.payload_bytes) for c in PUBLISHED.columns] == [
        (0, 8),
        (1, 8),
        (8, None),
        (1, 8),
    ]


def test_the_source_does_not_change_the_layout() -> None:
    """Two sources may deliver the same rows; only the target decides their bytes."""
    assert layout(("Int8", "int", True)).sha256 == layout(("Nullable(Int32)", "int", True)).sha256


def test_everything_else_does() -> None:
    layouts = [
        layout(),
        layout(("Int32", "int", True)),
        layout(("Int32", "int", False)),
        layout(("Int32", "bigint", True)),
        layout(("Int32", "int", True), ("Int32", "int", True)),
        layout(("Int32", "int", True), ("Int32", "int", False)),
        layout(("Int32", "int", False), ("Int32", "int", True)),
        layout(("String", "nvarchar(20)", True)),
        layout(("String", "nvarchar(21)", True)),
        layout(("String", "nvarchar(max)", True)),
        WireLayout((WireColumn("other", pair("Int32", "int", True)),)),
    ]
    assert len({of.sha256 for of in layouts}) == len(layouts)


def test_schemas() -> None:
    assert PUBLISHED.raw_schema.names == ["c0", "c1", "c1_null", "c2", "c3"]
    assert PUBLISHED.arrow_schema.names == ["id", "amount", "note", "at"]
    assert [field.nullable for field in PUBLISHED.arrow_schema] == [False, True, False, True]
