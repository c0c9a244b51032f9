"""The quality checks in T-SQL: the same tests, over this folder's lab."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.contract.table_check_cases import ROWS
from tests.contract.target_cases import Row
from tests.contract.test_table_checks import *  # noqa: F403
from tests.contract.test_table_checks import random_rows
from tests.mssql.lab import MssqlLab


@pytest.fixture
def empty_lab(mssql_lab: MssqlLab) -> MssqlLab:
    """Instead of the contract's own labs."""
    return mssql_lab


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_any_rows_have_the_numbers_of_the_definition(target: Any, rows: list[Row]) -> None:
    """Few: the stand-in takes seconds for each."""
    random_rows(target, rows)
