"""One delivery as seven tasks: the same journal, the same result, and each of them may be cleared alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from airflow_dpone import wiring
from airflow_dpone.errors import SourceUnavailable
from tests.airflow_side.dag_home import DagHome, dag_home, states, xcom

PHASES = ("admit", "extract", "stage", "verify", "publish", "evidence", "checkpoint")
DAYS = [datetime(2026, 3, day, tzinfo=UTC) for day in range(1, 20)]
pytestmark = pytest.mark.timeout(600)  # a busy machine takes a minute for Airflow's first task
DAGS = """
with DAG("seven", schedule=daily):
    deliver_window("orders", **ROUTE)
with DAG("picky", schedule=daily):
    deliver_window("orders", quality={"row_count": {"min_rows": PICKY}}, **ROUTE)
with DAG("form", schedule=daily):
    if FORM == "one task":
        DeliverWindowOperator(task_id="orders", quality={"row_count": {"min_rows": PICKY}}, **ROUTE)
    else:
        deliver_window("orders", **ROUTE)
with DAG("by_hand", schedule=daily):
    tasks = [AdmitWindowOperator(task_id="a", delivery_task_id="by hand", **ROUTE)]
    for number, one in enumerate((ExtractWindowOperator, StageWindowOperator, VerifyWindowOperator,
                                  PublishWindowOperator, EvidenceWindowOperator, CheckpointWindowOperator)):
        tasks.append(one(task_id=f"t{number}", delivery_task_id="by hand", **ROUTE))
        tasks[-2] >> tasks[-1]
with DAG("twins", schedule=daily), TaskGroup("both"):
    for name in ("a", "b"):
        admit = AdmitWindowOperator(task_id=name, **ROUTE)
        admit >> ExtractWindowOperator(task_id=f"{name}_extract", **ROUTE)
with DAG("nameless", schedule=daily):
    AdmitWindowOperator(task_id="a", deadline_sec=-1, on_custody_held="pray", custody_wait_sec="long",
                        **ROUTE)
"""
SWITCHES = """
import os
from airflow.sdk import TaskGroup
PICKY, FORM = int(os.environ.get("TEST_PICKY", "0")), os.environ.get("TEST_FORM", "")
"""


@pytest.fixture(autouse=True)
def whole_log(caplog: pytest.LogCaptureFixture) -> None:
    """What the engine tells a task's log."""
    caplog.set_level(logging.INFO, "airflow_dpone")


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagHome]:
    """All DAGs of this file."""
    with dag_home(tmp_path_factory.mktemp("seven"), "seven_tasks", SWITCHES + DAGS) as found:
        yield found


def test_seven_tasks_deliver_what_one_does_and_may_be_cleared(
    dags: DagHome, caplog: pytest.LogCaptureFixture
) -> None:
    run = dags.run("seven", DAYS[2])
    assert states(run) == {f"orders.{phase}": "success" for phase in PHASES}
    told = {phase: xcom(run, f"orders.{phase}") for phase in PHASES}
    assert [told[phase]["state"] for phase in PHASES] == [
        *("PLANNED", "EXTRACTED", "STAGED", "PREPARED", "PUBLISHED", "EVIDENCED", "COMPLETED")
    ]
    assert (told["checkpoint"]["rows"], told["checkpoint"]["deleted_rows"]) == (12, 1)
    assert told["checkpoint"]["window"] == "2026-03-02T00:00:00.000000Z/2026-03-03T00:00:00.000000Z"
    assert max(len(json.dumps(said)) for said in told.values()) < 2048
    said = caplog.text
    day = "[2026-03-02T00:00:00.000000Z, 2026-03-03T00:00:00.000000Z) into sales.orders"
    assert f"generation 1 begins: nothing was delivered by it yet; {day}" in said
    for phase, before, state in zip(PHASES[1:], PHASES, ("PLANNED", "EXTRACTED", "STAGED"), strict=False):
        assert f"resumed at {state}: task orders.{before}, try 1, brought it here" in said, phase

    # A late phase alone has nothing to do; admit alone begins the next generation.
    run = dags.clear(run, "orders.stage")
    assert xcom(run, "orders.stage")["already"] is True
    assert xcom(run, "orders.stage")["generation"] == 1
    assert "nothing to do: generation 1 is COMPLETED" in caplog.text
    run = dags.clear(run, *(f"orders.{phase}" for phase in PHASES))
    assert states(run) == {f"orders.{phase}": "success" for phase in PHASES}
    result = xcom(run, "orders.checkpoint")
    assert (result["generation"], result["rows"], result["deleted_rows"]) == (2, 12, 12)
    said = caplog.text
    assert "generation 2 begins: generation 1 was delivered and the task was cleared since" in said


@pytest.mark.parametrize("number", range(1, 7), ids=PHASES[1:])
def test_each_task_before_one_that_failed_may_be_cleared_alone(
    number: int, dags: DagHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[C11] A state for each task that may fail; every earlier task is cleared in it and changes nothing."""
    run_phases, broken = wiring.run_phases, [PHASES[number]]

    def run_or_fail(*args: Any, **asked: Any) -> Any:
        if asked["last_phase"] in broken:
            raise SourceUnavailable("dpone.source.locked", "a test has broken this phase")
        return run_phases(*args, **asked)

    monkeypatch.setattr(wiring, "run_phases", run_or_fail)
    run = dags.run("seven", DAYS[2] + timedelta(hours=number))
    assert states(run)[f"orders.{PHASES[number]}"] == "failed"
    stands = xcom(run, f"orders.{PHASES[number - 1]}")["state"]
    for phase in PHASES[:number]:
        run = dags.clear(run, f"orders.{phase}")
        result = xcom(run, f"orders.{phase}")
        assert (result["state"], result["generation"]) == (stands, 1), phase
        assert result["already"] == (phase != "admit"), phase
        assert states(run)[f"orders.{phase}"] == "success"
    broken.clear()
    run = dags.clear(run, *(f"orders.{phase}" for phase in PHASES[number:]))
    assert set(states(run).values()) == {"success"}
    assert (xcom(run, "orders.checkpoint")["generation"], receipts(dags, run)) == (1, [1])


def test_each_task_may_be_cleared_alone_after_the_end(dags: DagHome) -> None:
    """[C11] Six have nothing to do; admit begins the next generation, and the others finish it."""
    run = dags.run("seven", DAYS[2] + timedelta(hours=9))
    for phase in PHASES[1:]:
        run = dags.clear(run, f"orders.{phase}")
        result = xcom(run, f"orders.{phase}")
        assert (result["state"], result["generation"], result["already"]) == ("COMPLETED", 1, True), phase
    assert receipts(dags, run) == [1]
    run = dags.clear(run, "orders.admit")
    assert (xcom(run, "orders.admit")["state"], xcom(run, "orders.admit")["generation"]) == ("PLANNED", 2)
    assert receipts(dags, run) == [1]
    run = dags.clear(run, *(f"orders.{phase}" for phase in PHASES[1:]))
    assert set(states(run).values()) == {"success"}
    assert (xcom(run, "orders.checkpoint")["generation"], receipts(dags, run)) == (2, [1, 2])


def receipts(dags: DagHome, run: Any) -> list[int]:
    """The generations of a run's delivery that were published."""
    key = xcom(run, "orders.admit")["delivery_key"]
    query = "SELECT generation FROM dpone.delivery_receipt WHERE lower(hex(delivery_key)) = ? ORDER BY 1"
    with duckdb.connect(str(dags.home / "warehouse.duckdb"), read_only=True) as warehouse:
        return [number for (number,) in warehouse.execute(query, [key]).fetchall()]


def test_a_generation_that_failed_needs_admit_again(dags: DagHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PICKY", "1000")
    run = dags.run("picky", DAYS[3])
    assert states(run)["orders.verify"] == "failed"
    assert states(run)["orders.publish"] == "upstream_failed"
    failure = xcom(run, "orders.verify", "dpone_failure")
    assert (failure["code"], failure["state"], failure["retry"]) == (
        "dpone.quality.failed",
        "FAILED",
        "never",
    )
    assert len(json.dumps(failure)) < 2048
    monkeypatch.setenv("TEST_PICKY", "0")
    run = dags.clear(run, *(f"orders.{phase}" for phase in PHASES[3:]))
    assert states(run)["orders.verify"] == "failed"
    assert "generation 1 of orders ended as FAILED" in xcom(run, "orders.verify", "dpone_failure")["reason"]
    run = dags.clear(run, *(f"orders.{phase}" for phase in PHASES))
    assert set(states(run).values()) == {"success"}
    assert xcom(run, "orders.checkpoint")["generation"] == 2


@pytest.mark.parametrize(("before", "after"), [("one task", "group"), ("group", "one task")])
def test_a_dag_may_change_its_form_between_runs(
    before: str, after: str, dags: DagHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for number, form in enumerate((before, after)):
        monkeypatch.setenv("TEST_FORM", form)
        run = dags.run("form", DAYS[6 + 2 * number + (before == "group")])
        assert set(states(run).values()) == {"success"}
        results.append(xcom(run, "orders" if form == "one task" else "orders.checkpoint"))
    keys = [set(result) for result in results]
    assert keys[0] == keys[1]
    assert [result["generation"] for result in results] == [1, 1]


@pytest.mark.filterwarnings("ignore:Multiple rows returned with uselist=False")  # Airflow's, of two versions
def test_a_run_that_one_task_began_is_finished_by_the_group(
    dags: DagHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has the task's id: it is the same delivery, whatever form the DAG has."""
    monkeypatch.setenv("TEST_FORM", "one task")
    monkeypatch.setenv("TEST_PICKY", "1000")
    first = dags.run("form", DAYS[12])
    assert states(first) == {"orders": "failed"}
    monkeypatch.setenv("TEST_FORM", "group")
    again = dags.run("form", DAYS[12])
    assert again.run_id == first.run_id
    result = xcom(again, "orders.checkpoint")
    assert (result["generation"], result["rows"]) == (2, 0)


def test_the_operators_may_be_wired_by_hand(dags: DagHome) -> None:
    run = dags.run("by_hand", DAYS[2])
    assert set(states(run).values()) == {"success"}
    assert xcom(run, "t5")["rows"] == 12


def test_two_deliveries_under_one_name_are_refused(dags: DagHome) -> None:
    """The second one would replan the first one, and both would look delivered."""
    run = dags.run("twins", DAYS[2])
    assert states(run)["both.a"] == states(run)["both.b"] == "failed"
    told = xcom(run, "both.a", "dpone_failure")["reason"]
    assert "is also that of task both.b: a delivery has one task for each phase" in told


def test_what_is_wrong_with_one_of_seven_is_said_at_once(dags: DagHome) -> None:
    run = dags.run("nameless", DAYS[2])
    assert states(run) == {"a": "failed"}
    told = xcom(run, "a", "dpone_failure")["reason"]
    assert "4 problems" in told
    for field in ("on_custody_held", "custody_wait_sec", "delivery_task_id", "deadline_sec"):
        assert f"- {field}: " in told
