"""Many windows of one table of SQL Server at once. A run says in its configuration where its home is."""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_dpone.operators import DeliverWindowOperator, windows_between

WINDOWS = int(os.environ.get("DPONE_TEST_MSSQL_WINDOWS", "8"))
HOME = "{{ dag_run.conf['home'] }}"
EVENING = datetime(2026, 3, 1, 20, tzinfo=UTC)


class Deliver(DeliverWindowOperator):
    """The operator itself; on the stand-in with what the tests do about it."""

    def execute(self, context: Any) -> Any:
        _get_ready()
        return super().execute(context)

    def resume_execution(self, *arguments: Any, **named: Any) -> Any:
        _get_ready()
        return super().resume_execution(*arguments, **named)


def _get_ready() -> None:
    from tests.mssql import server

    if server.is_standin(server.login()):
        server.use_standin()


with DAG("mapped", schedule=None):
    Deliver.partial(
        task_id="deliver",
        retries=10,
        retry_delay=timedelta(0),
        max_active_tis_per_dagrun=4,
        source=f"chdb://{HOME}/shop",
        source_table=("shop", "orders"),
        target="warehouse",
        target_table=("sales", "orders"),
        window_column="ordered",
        journal=f"{HOME}/journal.db",
        spool=f"{HOME}/spool",
        host_id="test-host",
        limits={"max_rows": 8},
    ).expand_kwargs(windows_between(EVENING, EVENING + timedelta(hours=WINDOWS), timedelta(hours=1)))
