"""A quarter of orders, week by week, in one run: each week has its own receipt.

A week that fails is cleared by itself. The windows of one target take turns in it, whoever delivers them.
Connections: `shop_clickhouse` (type clickhouse, native port), `warehouse` (type mssql), and the journal's,
`dpone_journal`.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_dpone.operators import DeliverWindowOperator, windows_between

FIRST, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)

with DAG("backfill_orders", schedule=None):
    DeliverWindowOperator.partial(
        task_id="deliver",
        map_index_template="{{ task.window_start }}",
        source="shop_clickhouse",
        source_table=("shop", "orders"),
        target="warehouse",
        target_table=("sales", "orders"),
        window_column="ordered_at",
        max_active_tis_per_dagrun=1,  # more at once would only wait for each other
        retries=3,
        retry_delay=timedelta(seconds=30),
    ).expand_kwargs(windows_between(FIRST, END, step=timedelta(days=7)))
