"""Each day's orders as seven tasks, one for each phase: each has its own log, and may be cleared alone.

Connections: `shop_clickhouse` (type clickhouse, native port), `warehouse` (type mssql), and the journal's,
`dpone_journal`.
"""

from datetime import timedelta

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_dpone.operators import deliver_window

with DAG(
    "orders_in_seven_tasks",
    schedule=CronDataIntervalTimetable("@daily", timezone="UTC"),
    catchup=False,
):
    deliver_window(
        "deliver",
        source="shop_clickhouse",
        source_table=("shop", "orders"),
        target="warehouse",
        target_table=("sales", "orders"),
        window_column="ordered_at",
        retries=3,
        retry_delay=timedelta(seconds=30),
    )
