"""Each day of orders, delivered once nothing more is inserted into it, and a report that waits for the month.

The sensors take no worker while they wait. Connections: `shop_clickhouse` (type clickhouse, native port),
`warehouse` (type mssql), and the journal's, `dpone_journal`.
"""

from datetime import timedelta

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from airflow_dpone.operators import DeliverWindowOperator
from airflow_dpone.sensors import SourceSettledSensor, WindowsCoveredSensor

SOURCE = {"source": "shop_clickhouse", "source_table": ("shop", "orders"), "window_column": "ordered_at"}
TARGET = {"target": "warehouse", "target_table": ("sales", "orders")}

daily = CronDataIntervalTimetable("@daily", timezone="UTC")
monthly = CronDataIntervalTimetable("@monthly", timezone="UTC")

with DAG("deliver_settled_orders", schedule=daily, catchup=False):
    settled = SourceSettledSensor(task_id="settled", quiet=timedelta(minutes=15), **SOURCE)
    settled >> DeliverWindowOperator(task_id="deliver", retries=3, **SOURCE, **TARGET)

with DAG("close_the_month", schedule=monthly, catchup=False):

    @task
    def close_the_books() -> None:
        """Every day of the month is in the warehouse now."""

    WindowsCoveredSensor(task_id="every_day_delivered", **TARGET) >> close_the_books()
