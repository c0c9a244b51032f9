"""Operators inside Airflow: waiting for the target, windows that roll or are mapped, and events."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_dpone.journal.store import open_journal
from airflow_dpone.operators import admitting
from tests.airflow_side.dag_home import DagHome, dag_home, states, xcom
from tests.airflow_side.other_delivery import Holder
from tests.crash import embedded_world

pytestmark = pytest.mark.timeout(600)  # a busy machine takes a minute for Airflow's first task
DAGS = """
import os
SWITCH = os.environ.get("TEST_SWITCH", "")
with DAG("waiting", schedule=daily):
    deliver_window("orders", custody_wait_sec=100, **ROUTE)
with DAG("in_vain", schedule=daily):
    DeliverWindowOperator(task_id="orders", custody_wait_sec=0.5, **(ROUTE | dict(retries=0)))
with DAG("not_waiting", schedule=daily):
    DeliverWindowOperator(task_id="orders", on_custody_held="fail", **(ROUTE | dict(retries=1)))
with DAG("rolling", schedule=None):
    DeliverWindowOperator(
        task_id="orders", rolling=Rolling("2026-03-03T00:30:00Z" if SWITCH else "run_after",
            timedelta(days=1), lookback=timedelta(hours=6), precision=timedelta(hours=6)),
        quality={"row_count": {"min_rows": 0 if SWITCH else 1000}}, **ROUTE)
with DAG("history", schedule=None):
    DeliverWindowOperator.partial(
        task_id="orders", max_active_tis_per_dagrun=1, map_index_template="{{ task.window_start }}",
        outlets=[target_asset("warehouse", ("sales", "orders"))], **ROUTE
    ).expand_kwargs(windows_between(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 4, tzinfo=UTC),
                                    timedelta(days=1)))
with DAG("history_of_groups", schedule=None):
    @task_group
    def one_day(window_start, window_end, target_table):
        deliver_window("orders", window_start=window_start, window_end=window_end,
                       **(ROUTE | dict(target_table=target_table)))
    # Two tables: dag.test runs a trigger inline, so one delivery of a run cannot wait there for another one.
    first = datetime(2026, 3, 2, tzinfo=UTC)
    days = windows_between(first, first + timedelta(days=2), timedelta(days=1))
    tables = [["sales", "orders"], ["sales", "orders_too"]]
    one_day.expand_kwargs([dict(target_table=table, **day) for table, day in zip(tables, days)])
with DAG("telling", schedule=daily):
    deliver_window("orders", outlets=[target_asset("warehouse", ("sales", "orders")), Asset("another")],
                   **ROUTE)
with DAG("plain_cron", schedule="0 0 * * *"):
    DeliverWindowOperator(task_id="orders", **ROUTE)
"""


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagHome]:
    """All DAGs of this file."""
    with dag_home(tmp_path_factory.mktemp("waits"), "windows_and_waits", DAGS) as found:
        embedded_world.in_warehouse(found.home, "CREATE TABLE sales.orders_too AS FROM sales.orders LIMIT 0")
        yield found


@pytest.fixture
def holder(dags: DagHome) -> Iterator[Holder]:
    """The target is taken; afterwards it is free."""
    found = Holder(dags.home)
    yield found
    found.finish()


def test_admit_waits_in_the_triggerer_and_the_same_try_goes_on(
    dags: DagHome, holder: Holder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admitting, "POLL_SEC", 0.2)
    caplog.set_level("INFO")

    def free_it() -> None:
        deadline = time.monotonic() + 90
        while "running trigger in line" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.1)
        holder.finish()

    other = threading.Thread(target=free_it, daemon=True)
    other.start()
    run = dags.run("waiting", datetime(2026, 3, 3, tzinfo=UTC))
    other.join(60)
    assert "running trigger in line" in caplog.text
    assert set(states(run).values()) == {"success"}
    admitted = next(ti for ti in run.get_task_instances() if ti.task_id == "orders.admit")
    assert admitted.try_number == 1
    assert xcom(run, "orders.checkpoint")["rows"] == 12


@pytest.mark.parametrize(("dag_id", "tries"), [("in_vain", 1), ("not_waiting", 2)])
def test_whoever_does_not_wait_or_waits_in_vain_says_who_owns_the_target(
    dag_id: str, tries: int, dags: DagHome, holder: Holder
) -> None:
    run = dags.run(dag_id, datetime(2026, 3, 3, tzinfo=UTC))
    assert states(run) == {"orders": "failed"}
    assert run.get_task_instance("orders").try_number == tries
    failure = xcom(run, "orders", "dpone_failure")
    assert (failure["code"], failure["retry"]) == ("dpone.custody.held", "backoff")
    assert f"DAG elsewhere, run {holder.who.run_id}, task load" in failure["reason"]


@pytest.mark.filterwarnings("ignore:Multiple rows returned with uselist=False")  # Airflow's, of two versions
def test_a_rolling_window_is_resolved_once_and_a_clear_delivers_the_stored_one(
    dags: DagHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dags.run("rolling", at=datetime(2026, 3, 2, 19, 59, tzinfo=UTC))
    assert states(run) == {"orders": "failed"}
    assert xcom(run, "orders", "dpone_failure")["code"] == "dpone.quality.failed"
    monkeypatch.setenv("TEST_SWITCH", "another anchor, no check")
    run = dags.clear(run, "orders")
    result = xcom(run, "orders")
    assert result["window"] == "2026-03-01T12:00:00.000000Z/2026-03-02T18:00:00.000000Z"
    assert (result["generation"], result["rows"]) == (2, 11)
    run = dags.clear(run, "orders")
    assert xcom(run, "orders")["window"] == result["window"]
    assert xcom(run, "orders")["generation"] == 3
    another = dags.run("rolling", at=datetime(2026, 3, 12, tzinfo=UTC))
    assert xcom(another, "orders")["window"] == "2026-03-01T18:00:00.000000Z/2026-03-03T00:00:00.000000Z"


def test_a_history_is_loaded_by_mapping_one_task(dags: DagHome) -> None:
    run = dags.run("history")
    assert set(states(run).values()) == {"success"}
    loaded = [xcom(run, "orders", map_index=index) for index in range(3)]
    assert [one["window"][:10] for one in loaded] == ["2026-03-01", "2026-03-02", "2026-03-03"]
    assert len({one["delivery_key"] for one in loaded}) == 3
    assert [one["generation"] for one in loaded] == [1, 1, 1]


def test_a_history_is_loaded_by_mapping_the_group(dags: DagHome) -> None:
    run = dags.run("history_of_groups")
    assert set(states(run).values()) == {"success"}
    loaded = [xcom(run, "one_day.orders.checkpoint", map_index=index) for index in range(2)]
    assert [one["window"][:10] for one in loaded] == ["2026-03-02", "2026-03-03"]
    with open_journal(dags.home / "journal.db") as journal:
        found = [journal.invocation(one["invocation_key"]) for one in loaded]
    assert [(one.delivery_task_id, one.map_index) for one in found if one] == [
        ("one_day.orders", 0),
        ("one_day.orders", 1),
    ]


def test_each_asset_of_outlets_gets_the_ids_and_a_clear_says_it_again(dags: DagHome) -> None:
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    from sqlalchemy import select

    def told(run: Any) -> list[tuple[str, dict[str, Any]]]:
        with create_session() as session:
            mine = select(AssetEvent).where(AssetEvent.source_run_id == run.run_id).order_by(AssetEvent.id)
            mine = mine.where(AssetEvent.source_dag_id == run.dag_id)
            return [(event.asset.uri, event.extra) for event in session.scalars(mine)]

    run = dags.run("telling", datetime(2026, 3, 3, tzinfo=UTC))
    result = xcom(run, "orders.checkpoint")
    events = told(run)
    assert sorted(uri for uri, _ in events) == ["another", "dpone://warehouse/sales/orders"]
    for _, extra in events:
        for name in ("delivery_key", "generation", "window", "receipt_sha256", "evidence_sha256", "rows"):
            assert extra[name] == result[name], name
    run = dags.clear(run, "orders.checkpoint")
    again = told(run)
    assert len(again) == 4
    assert {(extra["already"], extra["receipt_sha256"]) for _, extra in again[2:]} == {
        (True, result["receipt_sha256"])
    }


def test_a_plain_cron_string_is_refused_with_the_timetable_that_is_needed(dags: DagHome) -> None:
    run = dags.run("plain_cron", datetime(2026, 3, 3, tzinfo=UTC))
    failure = xcom(run, "orders", "dpone_failure")
    assert failure["code"] == "dpone.config.window"
    assert "CronDataIntervalTimetable" in failure["reason"]
