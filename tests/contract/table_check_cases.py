"""Rows that quality checks are easily wrong about, and what the answers must be, counted in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import strategies as st

from airflow_dpone.delivery.table_checks import fitted
from airflow_dpone.quality_settings import TableCheck
from tests.contract.target_cases import Column, Delivery, Row

TABLE = "checked"
COLUMNS = (
    Column("id", "Int64", "bigint"),
    Column("text", "Nullable(String)", "nvarchar(8)", True),
    Column("bytes", "Nullable(FixedString(2))", "varbinary(9)", True),
    Column("day", "Nullable(Date32)", "date", True),
    Column("amount", "Nullable(Decimal(18, 2))", "decimal(18,2)", True),
    Column("at", "Nullable(DateTime64(3))", "datetime2(3)", True),
    Column("ratio", "Nullable(Float32)", "real", True),
    Column("price", "Nullable(Float64)", "float(53)", True),
    Column("tiny", "Nullable(UInt8)", "tinyint", True),
)
NAMES = [column.name for column in COLUMNS]

TEXTS = ["a", "A", "a ", " a", "", "\u00e9", "e\u0301", "ss", "\u00df", "\U0001f600"]
VALUES: dict[str, list[Any]] = {
    "id": [-(2**63), -1, 0, 1, 2**63 - 1],
    "text": TEXTS,
    "bytes": [b"a\0", b"\0a", b"\0\0", b"ab"],
    "day": [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)],
    "amount": [Decimal("-0.01"), Decimal("0.00"), Decimal("0.01"), Decimal("9999999999999999.99")],
    "at": [
        datetime(1, 1, 1),
        datetime(2025, 1, 2),
        datetime(2025, 1, 2, 0, 0, 0, 1000),
        datetime(9999, 1, 1),
    ],
    "ratio": [-0.0, 0.0, float(np.float32(0.1)), -3.4028234663852886e38],
    "price": [-0.0, 0.1, 0.10000000149011612, 1.7976931348623157e308],
    "tiny": [0, 1, 255],
}


def cell(column: Column) -> st.SearchStrategy[Any]:
    values = st.sampled_from(VALUES[column.name])
    return st.none() | values if column.nullable else values


ROWS = st.lists(st.tuples(*map(cell, COLUMNS)), max_size=12)

CHECKS = [
    *[TableCheck("not_null", (name,)) for name in NAMES],
    *[TableCheck("unique", (name,)) for name in NAMES if name not in ("ratio", "price")],
    TableCheck("unique", ("text", "day")),
    TableCheck("unique", ("bytes", "text", "amount", "at", "tiny")),
    *[
        TableCheck(kind, (name,), threshold)
        for kind in ("min", "max")
        for name, threshold in (
            ("id", "0"),
            ("day", "1970-01-01"),
            ("amount", "0"),
            ("amount", "0.01"),
            ("at", "2025-01-02T00:00:00.000000Z"),
            ("at", "2025-01-02"),
            ("ratio", "0.1"),
            ("ratio", "0"),
            ("price", "0.1"),
            ("price", "1E+308"),
            ("tiny", "255"),
        )
    ],
]

THRESHOLDS: dict[tuple[str, str], Any] = {
    ("day", "1970-01-01"): date(1970, 1, 1),
    ("at", "2025-01-02T00:00:00.000000Z"): datetime(2025, 1, 2),
    ("at", "2025-01-02"): datetime(2025, 1, 2),
    ("ratio", "0.1"): float(np.float32(0.1)),
    ("price", "0.1"): 0.1,
}
"""What a threshold means that is no plain number."""


def expected(rows: Sequence[Row], check: TableCheck) -> int:
    """By the definition, one row after the other."""
    places = [NAMES.index(name) for name in check.columns]
    cells = [tuple(row[place] for place in places) for row in rows]
    if check.kind == "not_null":
        return sum(one == (None,) for one in cells)
    whole = [one for one in cells if None not in one]
    if check.kind == "unique":
        return sum(one in whole[:place] for place, one in enumerate(whole))
    key = (check.columns[0], check.threshold or "")
    limit = THRESHOLDS.get(key) if key in THRESHOLDS else Decimal(key[1])
    return sum(one[0] < limit if check.kind == "min" else one[0] > limit for one in whole)


def answers(target: Any, rows: Sequence[Row], invocation: str) -> list[int]:
    """What a target says about a prepared table of these rows."""
    delivery = Delivery(target, COLUMNS, TABLE, window_column="at", invocation=invocation)
    types = {column.name: column.pair.sql_type for column in delivery.layout.columns}
    typed, problems = fitted(CHECKS, types, types)
    assert problems == []
    return list(target.count_violations(delivery.prepare(rows), delivery.layout, typed))


def compare(target: Any, rows: Sequence[Row], invocation: str) -> None:
    found = answers(target, rows, invocation)
    differ = {
        (check.name, check.threshold): (count, right)
        for check, count in zip(CHECKS, found, strict=True)
        if count != (right := expected(rows, check))
    }
    assert differ == {}


EVERYTHING: list[Row] = [
    tuple(VALUES[name][(place + shift) % len(VALUES[name])] for shift, name in enumerate(NAMES))
    for place in range(12)
]
"""Every value in turn, and each of the shorter lists more than once."""
NOTHING_KNOWN: list[Row] = [(1, *[None] * (len(COLUMNS) - 1))] * 2
