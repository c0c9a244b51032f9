"""The DAGs of the standalone tests. Each run says in its configuration where its home is."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_dpone.operators import DeliverWindowOperator, deliver_window, windows_between
from airflow_dpone.sensors import SourceSettledSensor, WindowDeliveredSensor
from tests.standalone import holding
from tests.standalone.airflow_server import WINDOWS

holding.install()

HOME = "{{ dag_run.conf['home'] }}"
PLACES: dict[str, Any] = {
    "source": f"chdb://{HOME}/shop",
    "source_table": ("shop", "orders"),
    "target": f"duckdb://{HOME}/warehouse.duckdb",
    "journal": f"{HOME}/journal.db",
    "spool": f"{HOME}/spool",
    "host_id": "test-host",
}
DAY = {"window_start": "2026-03-02T00:00:00Z", "window_end": "2026-03-03T00:00:00Z"}
ENGINES = {
    **PLACES,
    "target_table": ("sales", "orders"),
    "window_column": "ordered",
    "limits": {"max_rows": 8},
}
FAKES = {**PLACES, "target_table": ("dbo", "orders"), "window_column": "at", "limits": {"max_rows": 4}}
FAKE_DAY = {"window_start": "2025-01-01T00:00:00Z", "window_end": "2025-01-02T00:00:00Z"}
EVENING = datetime(2026, 3, 1, 20, tzinfo=UTC)
SOON = {"retry_delay": timedelta(0)}

with DAG("engines", schedule=None, max_active_runs=16):
    DeliverWindowOperator(task_id="deliver", **ENGINES, **DAY)

with DAG("fakes", schedule=None, max_active_runs=16):
    DeliverWindowOperator(task_id="deliver", **FAKES, **FAKE_DAY)

with DAG("fakes_retried", schedule=None, max_active_runs=16):
    DeliverWindowOperator(task_id="deliver", retries=1, **SOON, **FAKES, **FAKE_DAY)

with DAG("fakes_timed", schedule=None, max_active_runs=16):
    DeliverWindowOperator(
        task_id="deliver", retries=1, execution_timeout=timedelta(seconds=60), **SOON, **FAKES, **FAKE_DAY
    )

with DAG("group", schedule=None):
    deliver_window("deliver", retries=1, **SOON, **ENGINES, **DAY)

with DAG("fakes_group", schedule=None):
    deliver_window("deliver", retries=1, **SOON, **FAKES, **FAKE_DAY)

with DAG("fakes_mapped", schedule=None):
    DeliverWindowOperator.partial(task_id="deliver", retries=1, **SOON, **FAKES).expand_kwargs(
        windows_between(datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 3, tzinfo=UTC), timedelta(days=1))
    )

with DAG("fakes_beside_another_task", schedule=None):
    DeliverWindowOperator(task_id="deliver", retries=1, **SOON, **FAKES, **FAKE_DAY)

    @task
    def other(dag_run: Any = None) -> None:
        """Keeps the run going as long as the home says so."""
        while not Path(dag_run.conf["home"], "enough").exists():
            time.sleep(0.1)

    other()

with DAG("watch", schedule=None):
    WindowDeliveredSensor(
        task_id="watch",
        poke_interval=0.5,
        timeout=900,
        journal_conn_id="watched_journal",
        host_id="test-host",
        target=ENGINES["target"],
        target_table=ENGINES["target_table"],
        **DAY,
    )
    SourceSettledSensor(
        task_id="settled",
        poke_interval=0.5,
        timeout=900,
        quiet=5,
        source="watched_shop",
        source_table=ENGINES["source_table"],
        window_column=ENGINES["window_column"],
        **DAY,
    )

with DAG("many", schedule=None):
    DeliverWindowOperator.partial(
        task_id="deliver", retries=10, max_active_tis_per_dagrun=4, **SOON, **ENGINES
    ).expand_kwargs(windows_between(EVENING, EVENING + timedelta(hours=WINDOWS), timedelta(hours=1)))
