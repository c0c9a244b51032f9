"""The example DAGs, as they are, on the embedded engines: only their connection ids lead there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_dpone.journal.migrate import migrate
from airflow_dpone.journal.store import open_journal
from tests.airflow_side.test_sensors import leave_unfinished_in

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "dags_examples"
SHOP = (
    "CREATE DATABASE shop ENGINE = Atomic",
    "CREATE TABLE shop.orders (order_id Int64, customer String, amount Decimal(18, 2),"
    " ordered_at DateTime64(3, 'UTC'))"
    " ENGINE = MergeTree PARTITION BY toYYYYMM(ordered_at) ORDER BY order_id",
    # Twenty orders a day, from January to March.
    "INSERT INTO shop.orders SELECT number, concat('c', toString(number % 7)), number / 4,"
    " toDateTime64('2026-01-01 00:00:00', 3, 'UTC') + INTERVAL number * 72 MINUTE FROM numbers(1800)",
    "CREATE TABLE shop.customers (customer String, city Nullable(String))"
    " ENGINE = MergeTree ORDER BY customer",
    "INSERT INTO shop.customers VALUES ('c0', 'Riga'), ('c1', NULL)",
)
WAREHOUSE = """
CREATE SCHEMA sales;
CREATE TABLE sales.orders (order_id BIGINT NOT NULL, customer VARCHAR NOT NULL,
                           amount DECIMAL(18, 2) NOT NULL, ordered_at TIMESTAMP_MS NOT NULL);
CREATE TABLE sales.customers (customer VARCHAR NOT NULL, city VARCHAR);
INSERT INTO sales.customers VALUES ('gone', 'Oslo');
"""
_minutes = count()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A shop and a warehouse behind the examples' connection ids, and Airflow's own database."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import sync_bag_to_db
    from airflow.utils.db import initdb
    from chdb.session import Session

    home = tmp_path_factory.mktemp("home")
    session = Session(str(home / "shop"))
    for statement in SHOP:
        session.query(statement)
    session.close()
    with duckdb.connect(str(home / "warehouse.duckdb")) as warehouse:
        warehouse.execute(WAREHOUSE)
    migrate(home / "journal.db")
    with pytest.MonkeyPatch.context() as patch:
        for conn_id, host, extra in (
            ("SHOP_CLICKHOUSE", f"{home}/shop", {"engine": "chdb"}),
            ("WAREHOUSE", f"{home}/warehouse.duckdb", {"engine": "duckdb"}),
        ):
            stored = {"conn_type": "dponeembedded", "host": host, "extra": extra}
            patch.setenv(f"AIRFLOW_CONN_{conn_id}", json.dumps(stored))
        journal = {"conn_type": "dponejournal", "host": f"{home}/journal.db"}
        patch.setenv("AIRFLOW_CONN_DPONE_JOURNAL", json.dumps(journal))
        patch.setenv("AIRFLOW__DPONE__SPOOL_PATH", str(home / "spool"))
        initdb()
        DagBundlesManager().sync_bundles_to_db()
        sync_bag_to_db(examples(), "dags-folder", None)
        yield home


def examples() -> Any:
    """All of them, read as Airflow reads a DAG folder."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(EXAMPLES))
    assert bag.import_errors == {}
    return bag


def run(dag_id: str, day: datetime | None = None, **changes: Any) -> Any:
    """One run; a change is one of a task's attribute, before the run."""
    dag = examples().get_dag(dag_id)
    for name, value in changes.items():
        task_id, _, field = name.partition("__")
        setattr(dag.get_task(task_id), field, value)
    after = day or datetime(2026, 4, 2, 12, next(_minutes), tzinfo=UTC)
    return dag.test(logical_date=day, run_after=after)


def warehouse(home: Path, statement: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(home / "warehouse.duckdb"), read_only=True) as opened:
        return opened.execute(statement).fetchall()


DAYS = "SELECT min(ordered_at)::DATE::VARCHAR, max(ordered_at)::DATE::VARCHAR, count(*) FROM sales.orders"


class TestExamples:
    """In order: each finds what the ones before have delivered."""

    def test_every_file_is_run_here(self) -> None:
        """deliver_orders.py is the demo's, and is run by it."""
        assert {path.stem for path in EXAMPLES.glob("*.py")} == {
            "deliver_orders",
            "full_refresh",
            "history_backfill",
            "quality_checks",
            "recovery_report",
            "settled_source",
            "task_group",
        }
        for path in EXAMPLES.glob("*.py"):
            assert path.read_text().startswith('"""'), path.name
            assert "password" not in path.read_text().lower(), path.name

    def test_task_group(self, home: Path) -> None:
        ran = run("orders_in_seven_tasks", datetime(2026, 1, 11, tzinfo=UTC))
        assert ran.state == "success"
        assert len(ran.get_task_instances()) == 7
        assert warehouse(home, DAYS) == [("2026-01-10", "2026-01-10", 20)]

    def test_full_refresh(self, home: Path) -> None:
        assert run("refresh_customers").state == "success"
        rows = warehouse(home, "SELECT * FROM sales.customers ORDER BY ALL")
        assert rows == [("c0", "Riga"), ("c1", None)]

    def test_settled_source(self, home: Path) -> None:
        """Fifteen minutes are one second here."""
        day = datetime(2026, 1, 12, tzinfo=UTC)
        ran = run(
            "deliver_settled_orders", day, settled__quiet=timedelta(seconds=1), settled__poke_interval=0.2
        )
        assert ran.state == "success"
        assert warehouse(home, DAYS) == [("2026-01-10", "2026-01-11", 40)]
        month = run(
            "close_the_month",
            datetime(2026, 2, 1, tzinfo=UTC),
            every_day_delivered__timeout=0.5,
            every_day_delivered__poke_interval=0.1,
        )
        assert month.state == "failed"

    @pytest.mark.timeout(600)
    def test_history_backfill(self, home: Path) -> None:
        """Thirteen weeks, the last one shorter; then February can be closed."""
        ran = run("backfill_orders")
        assert ran.state == "success"
        assert len(ran.get_task_instances()) == 13
        assert warehouse(home, DAYS) == [("2026-01-01", "2026-03-31", 1800)]
        assert run("close_the_month", datetime(2026, 3, 1, tzinfo=UTC)).state == "success"

    def test_quality_checks(self, home: Path) -> None:
        """On 2026-03-31 the last two whole days are delivered again."""
        dag = examples().get_dag("checked_orders")
        ran = dag.test(logical_date=None, run_after=datetime(2026, 3, 31, 17, tzinfo=UTC))
        assert ran.state == "success"
        (task,) = ran.get_task_instances()
        result = task.xcom_pull(task_ids="deliver")
        assert result["window"] == "2026-03-29T00:00:00.000000Z/2026-03-31T00:00:00.000000Z"
        assert (result["rows"], result["deleted_rows"]) == (40, 40)

    def test_recovery_report(self, home: Path, caplog: pytest.LogCaptureFixture) -> None:
        """It counts what is at work, and fails when that takes too long."""
        assert run("recovery_report").state == "success"
        leave_unfinished_in(home, "deliver", source_name="shop_clickhouse", window_column="ordered_at")
        ran = run("recovery_report")
        assert ran.state == "success"
        (task,) = ran.get_task_instances()
        assert task.xcom_pull(task_ids="unfinished_deliveries") == 1
        with open_journal(home / "journal.db") as journal:
            assert [one["run_id"] for one in journal.unfinished()] == ["left"]
        assert "shop left deliver is PLANNED for" in caplog.text


def test_the_example_dags_load_no_driver_at_parse() -> None:
    """As for the first example; see test_parse.py."""
    from tests.airflow_side.test_parse import HEAVY, loaded_by

    names = sorted(path.stem for path in EXAMPLES.glob("*.py"))
    added = loaded_by("\n".join(f"import dags_examples.{name}" for name in names))
    assert {name for name in added if name.split(".")[0] in HEAVY} == set()
