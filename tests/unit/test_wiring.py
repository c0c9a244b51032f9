"""What ``deliver`` and ``plan`` refuse before they open anything."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone import Requester, Route, Window, deliver, plan
from airflow_dpone.errors import ConfigurationError

DAY = Window(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
ROUTE: dict[str, Any] = {
    "source": "chdb:///nowhere/shop",
    "source_table": ("shop", "orders"),
    "target": "duckdb:///nowhere/warehouse.duckdb",
    "target_table": ("sales", "orders"),
    "window_column": "ordered",
}


def refused(tmp_path: Path, route: dict[str, Any] | None = None, **changed: Any) -> dict[str, str]:
    """Where -> code of the refusal."""
    asked: dict[str, Any] = {
        "journal": tmp_path / "journal.db",
        "spool": tmp_path / "spool",
        "requester": Requester("d", "r", "t"),
        **changed,
    }
    with pytest.raises(ConfigurationError) as caught:
        deliver(Route(**{**ROUTE, **(route or {})}), DAY, **asked)
    return {problem.where: problem.code for problem in caught.value.problems}


def test_the_call_itself_is_checked_all_at_once(tmp_path: Path) -> None:
    found = refused(tmp_path, spool="spool", deadline_sec=0, lease_ttl_sec=1)
    assert set(found) == {"spool", "deadline_sec", "lease_ttl_sec"}


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_connection_id_is_not_read_yet(tmp_path: Path, side: str) -> None:
    assert refused(tmp_path, {side: "my_connection"}) == {side: "dpone.config.uri"}
    with pytest.raises(ConfigurationError, match="later version"):
        plan(Route(**{**ROUTE, side: "my_connection"}), DAY)


def test_a_requester_has_all_its_names() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Requester("", "r", "")
    assert [problem.where for problem in caught.value.problems] == ["requester.dag_id", "requester.task_id"]
