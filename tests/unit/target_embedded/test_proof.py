"""The proof's own reader: values that DuckDB holds and a column of the target's type does not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

import pytest

from airflow_dpone.target_embedded import proof
from tests.contract.target_cases import Column, Delivery, EmbeddedLab, Row, sum_of

COLUMNS = (
    Column("id", "Int64", "bigint"),
    Column("day", "Nullable(Date32)", "date", True),
    Column("ts", "Nullable(DateTime64(6))", "datetime2(6)", True),
    Column("f", "Nullable(Float64)", "float(53)", True),
    Column("name", "Nullable(String)", "nvarchar(3)", True),
)
LAST: Row = (1, date(9999, 12, 31), datetime(9999, 12, 31, 23, 59, 59, 999999), 1.0, "abc")


@pytest.fixture
def lab(tmp_path: Path) -> EmbeddedLab:
    made = EmbeddedLab(tmp_path)
    made.create_table("orders", COLUMNS)
    return made


@pytest.fixture
def delivery(lab: EmbeddedLab) -> Iterator[Delivery]:
    with lab.open() as target:
        yield Delivery(target, COLUMNS)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("day", "infinity"),  # Python shows it as 9999-12-31
        ("ts", "infinity"),
        ("ts", "-infinity"),
        ("day", "10000-01-01"),
        ("ts", "20000-01-01"),
        ("day", "0044-03-15 (BC)"),
        ("f", "nan"),
        ("f", "infinity"),
        ("f", "5e-324"),
        ("name", "abcd"),
    ],
)
def test_a_value_that_the_type_cannot_hold_has_no_digest(
    lab: EmbeddedLab, delivery: Delivery, column: str, value: str
) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    delivery.write(stage, [LAST])
    lab.run(f"UPDATE dpone_stage.{stage.name} SET {column} = '{value}'")
    seen = delivery.verify(stage, 1)
    assert (seen.rows, seen.overflow, seen.digest_sum) == (1, False, None)
    assert not seen.proves(sum_of([LAST], delivery.layout))


def test_an_overflow_is_one_even_without_a_digest(lab: EmbeddedLab, delivery: Delivery) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    delivery.write(stage, [LAST] * 5)
    lab.run(f"UPDATE dpone_stage.{stage.name} SET day = 'infinity'")
    seen = delivery.verify(stage, 2)
    assert (seen.rows, seen.overflow, seen.digest_sum) == (3, True, None)


def test_many_fetches_add_up(monkeypatch: pytest.MonkeyPatch, delivery: Delivery) -> None:
    monkeypatch.setattr(proof, "_FETCH_ROWS", 7)
    rows = [(i, None, None, float(i), None) for i in range(50)]
    stage = delivery.create()
    delivery.grant(stage)
    delivery.write(stage, rows)
    assert delivery.verify(stage, 50).proves(sum_of(rows, delivery.layout))
    assert not delivery.verify(stage, 50).proves(sum_of([*rows[1:], rows[1]], delivery.layout))


def test_a_stage_whose_columns_were_changed_is_an_incident(lab: EmbeddedLab, delivery: Delivery) -> None:
    from airflow_dpone.errors import Incident

    stage = delivery.create()
    lab.run(f"ALTER TABLE dpone_stage.{stage.name} ALTER COLUMN f SET DATA TYPE FLOAT")
    with pytest.raises(Incident) as caught:
        delivery.verify(stage, 0)
    assert caught.value.code == "dpone.target.stage_state"
