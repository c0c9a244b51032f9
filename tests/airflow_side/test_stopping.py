"""A task that is told to stop: by a signal, as Airflow's supervisor sends it, or by ``execution_timeout``."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_dpone.operators import DeliverWindowOperator
from tests.airflow_side.dag_home import DagHome, dag_home, states, xcom
from tests.crash import embedded_world

pytestmark = pytest.mark.timeout(600)  # a busy machine takes a minute for Airflow's first task
DAGS = """
import os
with DAG("hasty", schedule=daily):
    patient = os.environ.get("TEST_PATIENT")
    deliver_window("orders", execution_timeout=None if patient else timedelta(milliseconds=20),
                   **(ROUTE | dict(retries=0)))
"""


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagHome]:
    """The DAG of this file, and its shop."""
    with dag_home(tmp_path_factory.mktemp("stopping"), "stopping", DAGS) as found:
        yield found


def operator(home: Path) -> DeliverWindowOperator:
    """Twelve chunks of one row: there is a middle to stop in."""
    return DeliverWindowOperator(
        task_id="deliver",
        source=f"chdb://{home}/shop",
        source_table=("shop", "orders"),
        target=f"duckdb://{home}/warehouse.duckdb",
        target_table=("sales", "orders"),
        window_column="ordered",
        window_start=embedded_world.WINDOW.start,
        window_end=embedded_world.WINDOW.end,
        journal=f"{home}/journal.db",
        spool=f"{home}/spool",
        limits={"max_rows": 1},
    )


def context(task: DeliverWindowOperator, pushed: dict[str, Any]) -> Any:
    """As much of Airflow's context as an operator looks at."""

    def push(key: str, value: Any, **_: Any) -> None:
        pushed[key] = value

    ti = SimpleNamespace(
        dag_id="stopped", run_id="run-1", task_id="deliver", map_index=-1, try_number=1, id="1", max_tries=2,
        xcom_push=push,
    )  # fmt: skip
    return {"task": task, "ti": ti, "dag_run": SimpleNamespace(conf=None)}


def lease_owner(home: Path) -> Any:
    """Who holds the lease now."""
    with sqlite3.connect(home / "journal.db") as journal:
        found = journal.execute("SELECT owner FROM dpone_lease").fetchone()
        return found and found[0]


def test_a_signal_ends_the_work_gives_the_lease_back_and_the_next_call_goes_on(dags: DagHome) -> None:
    home = dags.home
    task, pushed = operator(home), dict[str, Any]()

    def stop_in_the_middle() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with sqlite3.connect(home / "journal.db") as journal:
                query = "SELECT count(*) FROM dpone_event WHERE event = 'CHUNK_SEALED'"
                if journal.execute(query).fetchone()[0]:
                    break
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())  # what Airflow's task runner does
    other = threading.Thread(target=stop_in_the_middle)
    try:
        other.start()
        with pytest.raises(SystemExit, match="told to stop"):
            task.execute(context(task, pushed))
    finally:
        other.join()
        signal.signal(signal.SIGTERM, before)
    assert lease_owner(home) is None
    with sqlite3.connect(home / "journal.db") as journal:
        state = journal.execute("SELECT state FROM dpone_invocation").fetchone()[0]
    assert state in ("PLANNED", "EXTRACTED", "STAGED", "PREPARED")
    again = operator(home)
    result = again.execute(context(again, pushed))
    assert (result["state"], result["generation"], result["rows"]) == ("COMPLETED", 1, 12)
    assert result["resumed_from"] == state


def test_a_signal_before_or_after_the_work_does_nothing(dags: DagHome) -> None:
    operator(dags.home).on_kill()


def test_a_task_that_ran_out_of_time_goes_on_after_a_clear(
    dags: DagHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dags.run("hasty", datetime(2026, 3, 4, tzinfo=UTC))
    assert states(run)["orders.admit"] == "failed"
    assert lease_owner(dags.home) is None
    monkeypatch.setenv("TEST_PATIENT", "1")
    run = dags.clear(run, *states(run))
    assert set(states(run).values()) == {"success"}
    assert xcom(run, "orders.checkpoint")["state"] == "COMPLETED"
