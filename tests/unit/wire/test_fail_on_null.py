"""A Nullable source for a NOT NULL target: framed as the target says; the first NULL stops by name (B01)."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.errors import CATALOGUE, Problem, SourceDataError
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.reference_rows import encode_row
from airflow_dpone.wire.types import TypePair, WireLayout, resolve
from tests.unit.wire.batches import PAIRS, layout, pair, raw_of, sliced, values_of


def strict(*columns: tuple[str, str]) -> WireLayout:
    """Nullable sources into NOT NULL targets."""
    return layout(*[(f"Nullable({s})", t, False) for s, t in columns], fail_on_null=True)


def stopped(rows: list[list[Any]], of: WireLayout, first_row: int = 0) -> SourceDataError:
    with pytest.raises(SourceDataError) as caught:
        to_target_batch(raw_of(rows, of), of, first_row=first_row)
    return caught.value


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_pair_is_admitted_with_the_option_only(source: str, target: str) -> None:
    without = resolve("c", f"Nullable({source})", target, False)
    assert isinstance(without, Problem)
    assert without.code == "dpone.types.nullability"
    found = pair(f"Nullable({source})", target, False, fail_on_null=True)
    assert (found.source_nullable, found.target_nullable, found.fails_on_null) == (True, False, True)


@given(st.data(), st.sampled_from(PAIRS), st.integers(0, 3), st.integers(0, 3))
def test_without_a_null_the_rows_are_those_of_a_source_that_has_none(
    data: st.DataObject, names: tuple[str, str], before: int, after: int
) -> None:
    """B01: the length prefix follows the target's NOT NULL, not the source's Nullable."""
    rows = data.draw(st.lists(st.tuples(values_of(names[0])).map(list), max_size=6))
    of, plain = strict(names), layout((*names, False))
    made = to_target_batch(sliced(raw_of(rows, of), before, after), of, first_row=0)
    assert of.sha256 == plain.sha256
    assert made.schema.equals(plain.arrow_schema, check_metadata=True)
    encoded = encode_rows(made, of)
    assert [encoded.row(i) for i in range(len(rows))] == [encode_row(row, plain) for row in rows]


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_first_null_stops_by_column_and_row(source: str, target: str) -> None:
    of = strict((source, target))
    value = _one(source)
    error = stopped([[value], [value], [None], [value], [None]], of, first_row=1_000)
    assert (error.code, error.fields) == ("dpone.source.null", {"column": "k0", "row": 1_002})
    assert "Column 'k0', row 1002" in error.message
    assert CATALOGUE[error.code].retry == "never"


def _one(source: str) -> Any:
    """A value of a source type."""
    found = {
        "Float": 1.5, "Decimal": Decimal(0), "Bool": True, "String": "a", "Enum": "a", "FixedString": b"abc",
        "UUID": UUID(int=1), "DateTime": datetime(2024, 2, 29), "Date": date(2024, 2, 29),
    }  # fmt: skip
    return next((value for name, value in found.items() if source.startswith(name)), 1)


def test_the_first_bad_row_wins_whether_it_is_null_or_another_fault() -> None:
    of = strict(("Float64", "float(53)"), ("String", "nvarchar(2)"))
    nan = float("nan")
    assert stopped([[1.0, "a"], [nan, "a"], [None, "a"]], of).code == "dpone.source.nan"
    assert stopped([[1.0, "a"], [None, "a"], [nan, "a"]], of).code == "dpone.source.null"
    assert stopped([[1.0, "abc"], [None, "a"]], of).code == "dpone.source.too_long"
    both = stopped([[1.0, None], [None, None]], of)
    assert both.fields == {"column": "k1", "row": 0}
    first = stopped([[None, None]], of)
    assert first.fields == {"column": "k0", "row": 0}


def test_a_nullable_column_of_the_same_row_may_hold_null() -> None:
    of = layout(("Nullable(Int32)", "int", False), ("Nullable(Int32)", "int", True), fail_on_null=True)
    assert to_target_batch(raw_of([[1, None]], of), of, first_row=0).to_pylist() == [{"k0": 1, "k1": None}]


def test_a_pair_says_that_it_needs_the_option_and_only_then() -> None:
    """A stored pair resolves again; one that was stored before the option existed reads as it always did."""
    found = pair("Nullable(Int32)", "int", False, fail_on_null=True)
    stored = json.loads(json.dumps(found.to_json()))
    assert stored == {
        "source_type": "Nullable(Int32)",
        "target_type": "int",
        "target_nullable": False,
        "fail_on_null": True,
    }
    assert TypePair.from_json(stored) == found
    for other in (("Int32", "int", False), ("Int32", "int", True), ("Nullable(Int32)", "int", True)):
        assert "fail_on_null" not in pair(*other, fail_on_null=True).to_json()
        assert pair(*other, fail_on_null=True) == pair(*other)
