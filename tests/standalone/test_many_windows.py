"""Fifty windows of one target at once, on engines that admit one process at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from tests.standalone.airflow_server import WINDOWS, Standalone
from tests.standalone.world import Home

START = datetime(2026, 3, 1, 20)


@pytest.mark.timeout(3000)
def test_many_mapped_windows_end_exact(airflow: Standalone, new_home: Callable[[str], Home]) -> None:
    """B83, B85: four workers, fifty deliveries: they wait for the target's owner and for the files' locks."""
    home = new_home("many")
    run = airflow.trigger("many", "many", home=str(home.path))
    assert run.wait(patience_sec=2400) == "success"
    assert len(run.tasks("deliver")) == WINDOWS
    results = [run.xcom(map_index=number) for number in range(WINDOWS)]
    assert max(len(json.dumps(result)) for result in results) < 2048
    assert {(result["state"], result["generation"]) for result in results} == {("COMPLETED", 1)}
    end = START + timedelta(hours=WINDOWS)
    source = [(number, START + timedelta(hours=2 * number)) for number in (*range(6), 5, *range(7, 20))]
    expected = sorted(row for row in source if row[1] < end)
    assert sum(result["rows"] for result in results) == len(expected)
    found = home.ask_warehouse("SELECT id, ordered FROM sales.orders ORDER BY ALL")
    assert [row for row in found if row[1] and START <= row[1] < end] == expected
    assert home.receipts() == [1] * WINDOWS
    assert home.untidy() == []
