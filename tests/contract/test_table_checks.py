"""The quality checks on every target: the same rows, the same numbers, whatever the engine compares."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.contract.table_check_cases import (
    CHECKS,
    COLUMNS,
    EVERYTHING,
    NOTHING_KNOWN,
    ROWS,
    TABLE,
    answers,
    compare,
)
from tests.contract.target_cases import LABS, Delivery, Lab, Row


@pytest.fixture(params=sorted(LABS))
def empty_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """A database without a table."""
    return LABS[request.param](tmp_path)


@pytest.fixture
def target(empty_lab: Lab) -> Iterator[Any]:
    empty_lab.create_table(TABLE, COLUMNS)
    with empty_lab.open() as opened:
        yield opened


def test_an_empty_table_breaks_nothing(target: Any) -> None:
    assert answers(target, [], "empty") == [0] * len(CHECKS)


def test_null_is_no_value_no_key_and_breaks_not_null_only(target: Any) -> None:
    compare(target, NOTHING_KNOWN, "nulls")


def test_every_kind_of_value_is_compared_as_what_it_is(target: Any) -> None:
    """Case, accents, blanks at the end and zero bytes make keys different; days and numbers have an order."""
    compare(target, [*EVERYTHING, *EVERYTHING[:5]], "everything")


def test_checks_change_nothing_and_may_be_asked_again(target: Any, empty_lab: Lab) -> None:
    first = answers(target, EVERYTHING, "again")
    names = empty_lab.stage_names()
    delivery = Delivery(target, COLUMNS, TABLE, window_column="at", invocation="again")
    prepared = target.find_stage(*delivery.names("prepared"))
    assert list(target.count_violations(prepared, delivery.layout, [])) == []
    assert empty_lab.stage_names() == names
    assert first == answers(target, EVERYTHING, "once more")


def random_rows(target: Any, rows: list[Row]) -> None:
    compare(target, rows, uuid.uuid4().hex)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_any_rows_have_the_numbers_of_the_definition(target: Any, rows: list[Row]) -> None:
    random_rows(target, rows)
