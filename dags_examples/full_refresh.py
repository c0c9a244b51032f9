"""A small table as a whole, each night: readers see the old rows until all new ones are there.

Connections: `shop_clickhouse` (type clickhouse, native port), `warehouse` (type mssql), and the journal's,
`dpone_journal`.
"""

from airflow.sdk import DAG

from airflow_dpone.operators import DeliverWindowOperator

with DAG("refresh_customers", schedule="0 3 * * *", catchup=False):
    DeliverWindowOperator(
        task_id="deliver",
        source="shop_clickhouse",
        source_table=("shop", "customers"),
        target="warehouse",
        target_table=("sales", "customers"),
        strategy="full_refresh",
        options={"on_empty": "fail"},  # an empty source is a mistake here, not an empty table
        retries=3,
    )
