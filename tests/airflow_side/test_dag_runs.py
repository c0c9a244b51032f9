"""The operator inside Airflow: real DAG runs (``dag.test``) on the embedded engines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.airflow_side.dag_home import registered
from tests.conftest import AIRFLOW_HOME

DAG_FILE = AIRFLOW_HOME / "dags" / "orders_for_tests.py"
DAGS = """
from datetime import timedelta
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow_dpone.operators import DeliverWindowOperator

HOME = {home!r}
ROUTE = dict(
    source=f"chdb://{{HOME}}/shop", source_table=("shop", "orders"),
    target=f"duckdb://{{HOME}}/warehouse.duckdb", target_table=("sales", "orders"),
    window_column="ordered", journal=f"{{HOME}}/journal.db", spool=f"{{HOME}}/spool",
    retries=2, retry_delay=timedelta(0),
)
daily = CronDataIntervalTimetable("@daily", timezone="UTC")
with DAG("daily", schedule=daily):
    DeliverWindowOperator(task_id="deliver", **ROUTE)
with DAG("explicit", schedule=None):
    DeliverWindowOperator(task_id="deliver", window_start="{{{{ params.day }}}}T00:00:00Z",
                          window_end="2026-03-03T00:00:00+00:00", params={{"day": "2026-03-02"}}, **ROUTE)
with DAG("object_storage", schedule=daily):
    DeliverWindowOperator(task_id="deliver", **(ROUTE | dict(
        spool=f"file://{{HOME}}/{{{{{{{{ task.dag_id }}}}}}}}")))
with DAG("wrong", schedule=None):
    DeliverWindowOperator(task_id="deliver", **(ROUTE | dict(
        source="chdb://me:hunter2@/x", journal="postgresql://me:hunter2@host/x", strategy="sideways",
        spool="s3://me:hunter2@bucket/x")))
with DAG("wrong_connections", schedule=None):
    DeliverWindowOperator(task_id="deliver", window_start="then", window_end="now", custody_wait_sec=-1,
        deadline_sec=0, **(ROUTE | dict(
        source="no_shop", target="no_warehouse", journal=None, journal_conn_id="no_journal",
        spool="s3://bucket/x", spool_conn_id="no_store", strategy="sideways", writer="bcp",
        source_table="shop.orders", limits={{"max_rows": 0}}, quality={{"min_rows": 1}},
        options={{"create": True}})))
with DAG("wrong_in_part", schedule=daily):
    DeliverWindowOperator(task_id="deliver", **(ROUTE | dict(
        source="no_shop", strategy="sideways", writer="tds", limits={{"max_rows": 0, "parallelism": 2}})))
with DAG("wrong_tables", schedule=daily):
    DeliverWindowOperator(task_id="deliver", columns=["id", "colour"],
        quality={{"not_null": ["nothing"]}}, options={{"unmapped_columns": ["id"]}}, **(ROUTE | dict(
        target_table=("sales", "order"))))
with DAG("by_connection", schedule=daily):
    DeliverWindowOperator(task_id="deliver", **(ROUTE | dict(journal=None, journal_conn_id="my_journal")))
with DAG("all_by_connection", schedule=daily):
    DeliverWindowOperator(task_id="deliver", **(ROUTE | dict(
        source="my_shop", source_name="chdb", target="my_warehouse", journal=None,
        journal_conn_id="my_journal")))
with DAG("two_journals", schedule=daily):
    DeliverWindowOperator(task_id="deliver", **(ROUTE | dict(journal_conn_id="nobody", deadline_sec=0)))
with DAG("no_connection", schedule=daily):
    DeliverWindowOperator(task_id="deliver", **(ROUTE | dict(journal=None, journal_conn_id="nobody")))
with DAG("unknown_column", schedule=daily):
    DeliverWindowOperator(task_id="deliver", columns=["ordered", "id", "colour"], **ROUTE)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A shop with its warehouse, the DAG file that serves it, and Airflow's own database."""
    home = tmp_path_factory.mktemp("home")
    with registered(home, DAG_FILE, DAGS.format(home=str(home))):
        yield home


def run_dag(dag_id: str, day: datetime | None, conf: dict[str, Any] | None = None) -> Any:
    """One DAG run; its only task's state and result."""
    from airflow.dag_processing.dagbag import DagBag

    dag = DagBag(dag_folder=str(DAG_FILE)).get_dag(dag_id)
    run = dag.test(logical_date=day, run_after=day or datetime(2026, 3, 5, tzinfo=UTC), run_conf=conf)
    task = run.get_task_instance("deliver")
    return str(run.state), task.try_number, task.xcom_pull(task_ids="deliver")


@pytest.mark.usefixtures("home")
class TestDagRuns:
    """In order: each uses what the one before has delivered."""

    def test_a_daily_run_delivers_its_interval_and_returns_a_small_json(self) -> None:
        state, _, result = run_dag("daily", datetime(2026, 3, 3, tzinfo=UTC))
        assert state == "success"
        assert result["window"] == "2026-03-02T00:00:00.000000Z/2026-03-03T00:00:00.000000Z"
        assert (result["rows"], result["deleted_rows"], result["state"]) == (12, 1, "COMPLETED")
        assert len(json.dumps(result)) < 2048

    def test_templates_give_the_window(self) -> None:
        state, _, result = run_dag("explicit", None)
        assert state == "success"
        assert (result["rows"], result["deleted_rows"]) == (12, 12)

    def test_the_spool_may_be_a_templated_url_of_an_object_store(self, home: Path) -> None:
        state, _, result = run_dag("object_storage", datetime(2026, 3, 3, tzinfo=UTC))
        assert state == "success"
        assert (result["rows"], result["chunks"]) == (12, 1)
        assert (home / "object_storage").is_dir()
        assert not [name for _, _, files in os.walk(home / "object_storage") for name in files]

    def test_a_connection_names_the_journal(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        named = json.dumps({"conn_type": "sqlite", "host": f"{home}/journal.db"})
        monkeypatch.setenv("AIRFLOW_CONN_MY_JOURNAL", named)
        state, _, result = run_dag("by_connection", datetime(2026, 3, 3, tzinfo=UTC))
        assert state == "success"
        assert result["rows"] == 12

    def test_connections_name_the_embedded_engines_too(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, kind, host, extra in (
            ("MY_JOURNAL", "dponejournal", f"{home}/journal.db", {}),
            ("MY_SHOP", "dponeembedded", f"{home}/shop", {"engine": "chdb"}),
            ("MY_WAREHOUSE", "dponeembedded", f"{home}/warehouse.duckdb", {"engine": "duckdb"}),
        ):
            named = json.dumps({"conn_type": kind, "host": host, "extra": extra})
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", named)
        state, _, result = run_dag("all_by_connection", datetime(2026, 3, 3, tzinfo=UTC))
        assert state == "success"
        assert (result["rows"], result["deleted_rows"]) == (12, 12)

    @pytest.mark.parametrize(
        ("dag_id", "said"),
        [
            (
                "two_journals",
                ["2 problems", "journal_conn_id: give journal or journal_conn_id", "deadline_sec:"],
            ),
            ("no_connection", ["1 problem", "journal_conn_id: Airflow has no connection 'nobody'"]),
        ],
    )
    def test_a_journal_that_is_not_named_once_fails_at_once(
        self, dag_id: str, said: list[str], capfd: pytest.CaptureFixture[str]
    ) -> None:
        state, tries, _ = run_dag(dag_id, datetime(2026, 3, 3, tzinfo=UTC))
        told = "".join(capfd.readouterr())
        assert (state, tries) == ("failed", 1)
        for text in said:
            assert text in told

    def test_the_runs_configuration_gives_the_window(self) -> None:
        conf = {"window": {"start": "2026-03-02T00:00:00Z", "end": "2026-03-02T06:00:00Z"}}
        state, _, result = run_dag("daily", datetime(2026, 3, 9, tzinfo=UTC), conf)
        assert state == "success"
        assert (result["rows"], result["deleted_rows"]) == (3, 3)

    def test_wrong_parameters_fail_at_once_with_all_problems_and_no_secret(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        state, tries, result = run_dag("wrong", None)
        told = "".join(capfd.readouterr())
        assert (state, tries, result) == ("failed", 1, None)
        assert "5 problems" in told
        for field in ("source:", "strategy:", "window:", "journal:", "spool:"):
            assert f"- {field}" in told
        assert "hunter2" not in told

    @pytest.mark.parametrize(
        ("dag_id", "day", "fields"),
        [
            (
                "wrong_connections",
                None,
                "source target journal_conn_id spool_conn_id strategy writer source_table limits.max_rows "
                "quality.min_rows options.create window_start window_end custody_wait_sec deadline_sec",
            ),
            ("wrong_in_part", 3, "source strategy writer limits.max_rows limits.parallelism"),
            ("wrong_tables", 3, "sales.order colour columns nothing options.unmapped_columns"),
        ],
    )
    def test_everything_that_is_wrong_is_one_error(
        self, dag_id: str, day: int | None, fields: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        state, tries, _ = run_dag(dag_id, datetime(2026, 3, day, tzinfo=UTC) if day else None)
        told = "".join(capfd.readouterr())
        assert (state, tries) == ("failed", 1)
        assert f"{len(fields.split())} problems:" in told
        for field in fields.split():
            assert f"  - {field}: " in told

    def test_a_refused_plan_fails_at_once_and_leaves_the_target_free(self, home: Path) -> None:
        state, tries, _ = run_dag("unknown_column", datetime(2026, 3, 3, tzinfo=UTC))
        assert (state, tries) == ("failed", 1)
        state, _, _ = run_dag("daily", datetime(2026, 3, 4, tzinfo=UTC))
        assert state == "success"
        assert not [name for _, _, files in os.walk(home / "spool") for name in files]
