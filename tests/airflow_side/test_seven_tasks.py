"""One delivery as seven tasks: the same journal, the same result, and each of them may be cleared alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.airflow_side.dag_home import DagHome, dag_home, states, xcom

PHASES = ("admit", "extract", "stage", "verify", "publish", "evidence", "checkpoint")
DAGS = """
with DAG("seven", schedule=daily):
    deliver_window("orders", **ROUTE)
"""


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagHome]:
    with dag_home(tmp_path_factory.mktemp("seven"), "seven_tasks", DAGS) as found:
        yield found


def test_seven_tasks_deliver_what_one_does(dags: DagHome) -> None:
    run = dags.run("seven", datetime(2026, 3, 3, tzinfo=UTC))
    assert states(run) == {f"orders.{phase}": "success" for phase in PHASES}
    told = {phase: xcom(run, f"orders.{phase}") for phase in PHASES}
    assert [told[phase]["state"] for phase in PHASES] == [
        "PLANNED",
        "EXTRACTED",
        "STAGED",
        "PREPARED",
        "PUBLISHED",
        "EVIDENCED",
        "COMPLETED",
    ]
    assert (told["checkpoint"]["rows"], told["checkpoint"]["deleted_rows"]) == (12, 1)
    assert told["checkpoint"]["window"] == "2026-03-02T00:00:00.000000Z/2026-03-03T00:00:00.000000Z"
    assert max(len(json.dumps(said)) for said in told.values()) < 2048
