"""Orders that must pass checks before anybody sees them; a window that fails leaves the target as it was.

The checks are asked inside the target, of the rows that are about to be published. A `warn` goes on, and is
in the evidence. Connections: `shop_clickhouse` (type clickhouse, native port), `warehouse` (type mssql), and
the journal's, `dpone_journal`.
"""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_dpone.operators import DeliverWindowOperator, Rolling

CHECKS = {
    "row_count": {"min_rows": 1},
    "not_null": ["order_id", "customer"],
    "unique": ["order_id"],
    "min_max": {"amount": {"min": 0}},
    "max_shrink_ratio": 0.5,  # the window may lose half of its rows, not more
    "severity": {"min(amount)": "warn"},
}

with DAG("checked_orders", schedule=timedelta(hours=1), catchup=False):
    DeliverWindowOperator(
        task_id="deliver",
        source="shop_clickhouse",
        source_table=("shop", "orders"),
        target="warehouse",
        target_table=("sales", "orders"),
        window_column="ordered_at",
        # The last two whole days, again with each run: rows that come late are delivered, too.
        rolling=Rolling(
            "run_after", duration=timedelta(days=1), lookback=timedelta(days=1), precision=timedelta(days=1)
        ),
        quality=CHECKS,
        retries=3,
    )
