"""Orders from ClickHouse to the warehouse: each day as a window, and the whole table on demand."""

import os
from datetime import timedelta

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_dpone.operators import DeliverWindowOperator

HOME = os.environ.get("DPONE_EXAMPLE_HOME", "/var/lib/dpone-example")
ROUTE = {
    "source": f"chdb://{HOME}/shop",
    "source_table": ("shop", "orders"),
    "target": f"duckdb://{HOME}/warehouse.duckdb",
    "target_table": ("sales", "orders"),
    "window_column": "ordered_at",
    "journal": f"{HOME}/journal.db",
    "spool": f"{HOME}/spool",
    "retries": 3,  # an error that a retry cannot mend fails the task at once
    "retry_delay": timedelta(seconds=30),
}

daily = CronDataIntervalTimetable("@daily", timezone="UTC")

with DAG("deliver_orders", schedule=daily, catchup=False) as deliver_orders_dag:
    DeliverWindowOperator(task_id="deliver", quality={"not_null": ["order_id"]}, **ROUTE)

with DAG("refresh_orders", schedule=None) as refresh_orders_dag:
    DeliverWindowOperator(task_id="deliver", strategy="full_refresh", **ROUTE)
