"""Quality settings: what a person may write, what it becomes, and how what is wrong is named."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.delivery.identity import canonical
from airflow_dpone.delivery.table_checks import fitted
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.quality_settings import MinMax, Quality, TableCheck
from airflow_dpone.wire.sql_type import SqlType
from airflow_dpone.wire.threshold import typed_threshold

EVERYTHING: dict[str, Any] = {
    "row_count": {"min_rows": 1, "max_rows": None},
    "not_null": ["id", "note"],
    "unique": ["id", ["customer", "day"]],
    "min_max": {"amount": {"min": 0, "max": "1e6"}, "day": {"min": date(2025, 1, 31)}},
    "max_shrink_ratio": 0.2,
    "severity": {"unique(customer, day)": "warn", "max_shrink_ratio": "error", "row_count": "warn"},
}


def problems_of(**quality: Any) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        Quality(**quality)
    return {problem.where: problem.message for problem in caught.value.problems}


def test_the_checks_stand_in_the_order_of_the_settings() -> None:
    quality = Quality(**EVERYTHING)
    assert [check.name for check in quality.table_checks] == [
        "not_null(id)", "not_null(note)", "unique(id)", "unique(customer, day)",
        "min(amount)", "max(amount)", "min(day)",
    ]  # fmt: skip
    assert [check.threshold for check in quality.table_checks][4:] == ["0", "1E+6", "2025-01-31"]
    assert quality.max_shrink_ratio == Decimal("0.2")
    assert [quality.severity_of(name) for name in ("row_count", "max_shrink_ratio", "not_null(id)")] == [
        "warn", "error", "error",
    ]  # fmt: skip


def test_what_is_stored_reads_back_and_holds_no_float() -> None:
    quality = Quality(**EVERYTHING)
    stored = json.loads(canonical(quality.stored()))
    assert stored == quality.stored()
    assert Quality.of_stored(stored) == quality
    assert "0.2" in json.dumps(stored)


def test_settings_of_the_first_version_are_stored_as_they_were() -> None:
    """Plans that exist must keep their bytes, and read as they did."""
    old = {"row_count": {"min_rows": 1, "max_rows": None}, "not_null": ["id"]}
    quality = Quality(**old)
    assert canonical(quality.stored()) == canonical(old)
    assert Quality.of_stored(old) == quality
    assert quality.is_plain
    assert Quality().stored() == {"row_count": None, "not_null": []}
    assert not any(
        Quality(**{name: value}).is_plain
        for name, value in EVERYTHING.items()
        if name in ("unique", "min_max", "max_shrink_ratio")
    )
    assert not Quality(**old, severity={"row_count": "warn"}).is_plain


@pytest.mark.parametrize(
    ("given_", "stored"),
    [
        (0, "0"),
        (-1.5, "-1.5"),
        (Decimal("0.10"), "0.10"),
        ("1e3", "1E+3"),
        ("2025-01-31", "2025-01-31"),
        (date(2025, 1, 31), "2025-01-31"),
        ("2025-01-31T02:00:00+02:00", "2025-01-31T00:00:00.000000Z"),
        (datetime(2025, 1, 31, tzinfo=UTC), "2025-01-31T00:00:00.000000Z"),
    ],
)
def test_a_threshold_has_one_text(given_: object, stored: str) -> None:
    assert MinMax(column="c", min=given_).min == stored


@pytest.mark.parametrize(
    "value",
    [True, float("nan"), "inf", "abc", "", "2025-13-01", "2025-01-31T00:00:00", datetime(2025, 1, 1), [1],
     "9" * 61, "0001-01-01T00:00:00+05:00", "2025-01-31T23:59:59.9999999Z"],
    ids=repr,
)  # fmt: skip
def test_what_is_no_threshold_is_refused(value: object) -> None:
    (where,) = problems_of(min_max={"c": {"min": value}})
    assert where == "min_max.0.min"


def test_every_problem_is_named_at_once() -> None:
    found = problems_of(
        row_count={"min_rows": 5, "max_rows": 4},
        unique=["id", []],
        min_max={"a": {}, "b": {"min": 2, "max": 1}, "c": {"min": 2, "max": "2025-01-01"}, "d": {"least": 1}},
        max_shrink_ratio=1.5,
        severity={"anything": "fatal"},
    )
    assert set(found) == {
        "row_count.max_rows", "unique", "min_max.0.max", "min_max.1.max", "min_max.2.max",
        "min_max.3.least", "min_max.3.max", "max_shrink_ratio", "severity.0.1",
    }  # fmt: skip


@pytest.mark.parametrize("unique", ["id", [["a", "a"]], [[]], [1]], ids=repr)
def test_what_is_no_key_is_refused(unique: object) -> None:
    assert problems_of(unique=unique)


def test_severity_names_checks_of_the_route_and_shows_near_ones() -> None:
    found = problems_of(not_null=["note"], severity={"not_null(nota)": "warn"})
    assert "not_null(note)" in found["severity"]
    assert "there are: none" in problems_of(severity={"row_count": "warn"})["severity"]


TYPES = [
    "bigint", "int", "smallint", "tinyint", "real", "float(53)", "decimal(18,2)", "date", "datetime2(0)",
    "datetime2(3)", "datetime2(7)",
]  # fmt: skip


HUGE_AND_TINY = ["1E+999999", "1E+1000000", "-1E+99999999", "1E-41", "1E-2000000", "-1E-99999999"]
"""Beyond what Python's own contexts of Decimal hold, too."""


@pytest.mark.parametrize(
    ("text", "kind", "typed"),
    [
        ("0", "bigint", "0"),
        ("-0", "int", "0"),
        ("1E+3", "int", "1000"),
        ("5.00", "tinyint", "5"),
        ("5.5", "int", None),
        ("-1", "tinyint", None),
        ("256", "tinyint", None),
        ("9223372036854775807", "bigint", "9223372036854775807"),
        ("9223372036854775808", "bigint", None),
        ("0.10", "decimal(18,2)", "0.1"),
        ("0.005", "decimal(18,2)", None),
        ("1E+15", "decimal(18,2)", "1" + "0" * 15),
        ("1E+16", "decimal(18,2)", None),
        *[(text, kind, None) for text in HUGE_AND_TINY for kind in ("decimal(38,0)", "bigint", "real")],
        ("0E-2000000", "bigint", "0"),
        ("99999999999999999999999999999999999999", "decimal(38,0)", "9" * 38),
        ("0.1", "real", "0.1"),
        ("1E+39", "real", None),
        ("1E+308", "float(53)", "1e+308"),
        ("1E-310", "float(53)", None),
        ("1E+999", "float(53)", None),
        ("1E-999", "float(53)", None),
        ("-0.0", "float(53)", "0.0"),
        ("2025-01-31", "date", "2025-01-31"),
        ("2025-01-31T00:00:00.000000Z", "date", "2025-01-31"),
        ("2025-01-31T00:00:01.000000Z", "date", None),
        ("2025-01-31", "datetime2(0)", "2025-01-31T00:00:00"),
        ("2025-01-31T00:00:00.001000Z", "datetime2(3)", "2025-01-31T00:00:00.001"),
        ("2025-01-31T00:00:00.000100Z", "datetime2(3)", None),
        ("2025-01-31T00:00:00.000001Z", "datetime2(7)", "2025-01-31T00:00:00.000001"),
        ("1", "date", None),
        ("2025-01-31", "int", None),
        ("1", "nvarchar(20)", None),
        ("1", "bit", None),
        ("1", "uniqueidentifier", None),
    ],
)
def test_a_threshold_is_a_value_of_its_column_or_refused(text: str, kind: str, typed: str | None) -> None:
    if typed is None:
        with pytest.raises(ValueError, match=r"column is|does not hold"):
            typed_threshold(text, SqlType.parse(kind))
    else:
        assert typed_threshold(text, SqlType.parse(kind)) == typed


@given(number=st.decimals(allow_nan=False, allow_infinity=False, places=4), kind=st.sampled_from(TYPES))
def test_a_typed_number_means_the_number(number: Decimal, kind: str) -> None:
    sql_type = SqlType.parse(kind)
    try:
        typed = typed_threshold(str(number), sql_type)
    except ValueError:
        return
    if sql_type.name in ("real", "float"):
        assert float(typed) == float(number)
    else:
        assert Decimal(typed) == number


COLUMNS = {
    "id": SqlType.parse("bigint"),
    "ratio": SqlType.parse("real"),
    "note": SqlType.parse("nvarchar(9)"),
}


@pytest.mark.parametrize(
    ("check", "code", "said"),
    [
        (TableCheck("not_null", ("nota",)), "dpone.config.unknown_column", "close names: note"),
        (TableCheck("unique", ("id", "x")), "dpone.config.unknown_column", "quality.unique"),
        (TableCheck("min", ("amount",), "0"), "dpone.config.unknown_column", "quality.min_max"),
        (TableCheck("unique", ("id", "ratio")), "dpone.config.field", "approximate"),
        (TableCheck("max", ("note",), "0"), "dpone.config.field", "nvarchar(9)"),
        (TableCheck("min", ("id",), "0.5"), "dpone.config.field", "does not hold exactly: 0.5"),
    ],
)
def test_a_check_that_cannot_be_asked_is_named(check: TableCheck, code: str, said: str) -> None:
    found, (problem,) = fitted([check], COLUMNS, COLUMNS)
    assert found == []
    assert problem.code == code
    assert said in problem.message


def test_a_check_of_a_column_that_has_its_own_problem_is_left_to_that() -> None:
    assert fitted([TableCheck("unique", ("id", "note"))], COLUMNS, {"id": COLUMNS["id"]}) == ([], [])
