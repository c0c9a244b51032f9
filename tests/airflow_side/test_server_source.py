"""A delivery from a ClickHouse server into the embedded target: through ``deliver`` and through Airflow.

The server is the repository's test server: chDB behind the native protocol, which changes five settings by
itself and has no row policies to see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone import Requester, Route, Window, deliver, plan
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.journal.store import open_journal
from airflow_dpone.source_clickhouse.query_settings import EMBEDDED_OWN
from airflow_dpone.source_clickhouse.reader import ServerSource
from tests.conftest import AIRFLOW_HOME
from tests.contract.native_world import RunningServer, plain_client
from tests.crash import embedded_world
from tests.crash.embedded_world import WINDOW
from tests.servers.proxy import Proxy

PASSWORD = "hunter2-of-the-shop"
DAG_FILE = AIRFLOW_HOME / "dags" / "server_source_for_tests.py"
DAGS = """
from datetime import timedelta
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow_dpone.operators import DeliverWindowOperator

HOME = {home!r}
ROUTE = dict(
    source_table=("shop", "orders"), target=f"duckdb://{{HOME}}/warehouse.duckdb",
    target_table=("sales", "orders"), window_column="ordered", journal=f"{{HOME}}/journal.db",
    spool=f"{{HOME}}/spool", options={{"accept_unseen_row_policies": True}}, retries=1,
    retry_delay=timedelta(0),
)
daily = CronDataIntervalTimetable("@daily", timezone="UTC")
for name in ("shop_ch", "shop_http", "no_such_connection", "shop_wrong_password", "shop_odd"):
    with DAG(f"from_{{name}}", schedule=daily):
        DeliverWindowOperator(task_id="deliver", source=name, **ROUTE)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The shop, in a server."""
    directory = tmp_path_factory.mktemp("server")
    started = RunningServer.start(directory / "engine", "--user", f"delivery:{PASSWORD}")
    client = plain_client(started.address)
    client.execute("CREATE DATABASE shop ENGINE = Atomic")
    client.execute(embedded_world.SOURCE)
    client.execute(embedded_world.ROWS)
    client.disconnect()
    yield started
    started.stop()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A warehouse and a journal."""
    embedded_world.in_warehouse(tmp_path, embedded_world.TARGET)
    embedded_world.migrate(tmp_path / "journal.db")
    return tmp_path


@pytest.fixture(autouse=True)
def engine_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What chDB changes by itself, and a server does not."""
    monkeypatch.setattr(ServerSource, "own_settings", EMBEDDED_OWN)


def route(home: Path, port: int, **changed: Any) -> Route:
    fields = {
        "source": f"clickhouse://127.0.0.1:{port}?compression=lz4",
        "options": {"accept_unseen_row_policies": True},
        **changed,
    }
    return embedded_world.route(home, **fields)


def run(home: Path, asked: Route, run_id: str = "run-1", **more: Any) -> Any:
    return deliver(
        asked,
        WINDOW,
        journal=home / "journal.db",
        spool=home / "spool",
        requester=Requester("shop", run_id, "deliver", max_tries=2),
        **more,
    )


def ids(home: Path) -> list[int]:
    return [
        number for (number,) in embedded_world.in_warehouse(home, "SELECT id FROM sales.orders ORDER BY id")
    ]


IN_WINDOW = [2, 3, 4, 5, 5, 7, 8, 9, 10, 11, 12, 13]


def evidence(home: Path, sha256: str) -> dict[str, Any]:
    with open_journal(home / "journal.db") as journal:
        document: dict[str, Any] = json.loads(journal.evidence(sha256) or b"{}")
        return document


def test_a_window_comes_from_a_server_with_evidence(server: RunningServer, home: Path) -> None:
    """[F4, F7, F8] Rows, the server's id, the parts that the query itself saw, and what was accepted."""
    result = run(home, route(home, server.port))
    assert (result.rows, result.deleted_rows, result.chunks) == (12, 1, 2)
    assert ids(home) == sorted([*IN_WINDOW, 901, 903, 904])
    source = evidence(home, result.evidence_sha256)["source"]
    assert source["server_id"] == "00000000-0000-4000-8000-000000000001"
    assert sum(part["rows"] for part in source["read_parts"]) == 12
    assert source["accept_unseen_row_policies"] is True
    assert source["settings"]["session_timezone"] == "UTC"


def test_the_plan_says_what_would_be_refused(server: RunningServer, home: Path) -> None:
    asked = route(home, server.port, options={})
    (refusal,) = plan(asked, WINDOW).refusals
    assert (refusal.code, refusal.where) == ("dpone.source.access", "system.row_policies")
    with pytest.raises(ConfigurationError, match=r"system\.row_policies"):
        run(home, asked)
    assert ids(home) == [901, 902, 903, 904]


def test_a_connection_that_breaks_costs_one_epoch(server: RunningServer, home: Path) -> None:
    """[B66] What had arrived, sealed chunks too, is thrown away whole; a new query reads everything."""
    client = plain_client(server.address)
    client.execute(
        "CREATE TABLE shop.letters (id Int64, ordered DateTime64(6, 'UTC'), note String)"
        " ENGINE = MergeTree ORDER BY id"
    )
    client.execute(
        "INSERT INTO shop.letters SELECT number, toDateTime64('2026-03-02 00:00:00', 6, 'UTC'),"
        " repeat(toString(number % 10), 1000000) FROM numbers(60)"
    )
    client.disconnect()
    embedded_world.in_warehouse(
        home, "CREATE TABLE sales.letters (id BIGINT NOT NULL, ordered TIMESTAMP NOT NULL, note VARCHAR)"
    )
    points: list[str] = []
    with Proxy(server.port) as proxy:

        def observer(point: str) -> None:
            points.append(point)
            if point == "before_source_read" and points.count(point) == 1:
                proxy.break_after_bytes = proxy.forwarded_bytes + 40_000_000

        asked = route(
            home,
            proxy.port,
            source=f"clickhouse://127.0.0.1:{proxy.port}",
            source_table=("shop", "letters"),
            target_table=("sales", "letters"),
            limits={"max_rows": 10},
        )
        result = run(home, asked, observer=observer)
    assert proxy.breaks == 1
    assert points.count("before_source_read") == 2
    assert points.count("after_chunk_seal") > result.chunks == 6, "some were sealed before it broke"
    assert evidence(home, result.evidence_sha256)["epoch"]["extraction_epoch"] == 1
    assert embedded_world.in_warehouse(
        home, "SELECT count(*), count(DISTINCT id), sum(length(note)) FROM sales.letters"
    ) == [(60, 60, 60_000_000)]
    assert not list((home / "spool").rglob("*.arrow"))


# ---- through Airflow --------------------------------------------------------------------------------------


@pytest.fixture
def dags(home: Path) -> Iterator[Path]:
    """The DAG file that serves the home, and Airflow's own database."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.utils.db import initdb

    DAG_FILE.write_text(DAGS.format(home=str(home)))
    initdb()
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(DagBag(dag_folder=str(DAG_FILE)), "dags-folder", None)
    yield home
    DAG_FILE.unlink()


def connect(monkeypatch: pytest.MonkeyPatch, server: RunningServer, name: str, **changes: Any) -> None:
    """An Airflow connection in the environment."""
    fields = {
        "conn_type": "clickhouse",
        "host": "127.0.0.1",
        "port": server.port,
        "login": "delivery",
        "password": PASSWORD,
        "extra": {"compress": True, "connect_timeout": 5, "client_name": "airflow"},
        **changes,
    }
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))


def run_dag(dag_id: str) -> tuple[str, int, Any]:
    from airflow.dag_processing.dagbag import DagBag

    day = datetime(2026, 3, 3, tzinfo=UTC)
    dag = DagBag(dag_folder=str(DAG_FILE)).get_dag(dag_id)
    assert dag is not None
    ran = dag.test(logical_date=day, run_after=day)
    task = ran.get_task_instance("deliver")
    assert task is not None
    return str(ran.state), task.try_number, task.xcom_pull(task_ids="deliver")


def test_the_operator_reads_an_airflow_connection(
    server: RunningServer, dags: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By its id; the password is in no log, no journal and no evidence."""
    connect(monkeypatch, server, "shop_ch")
    state, _, result = run_dag("from_shop_ch")
    assert state == "success"
    assert (result["rows"], result["state"]) == (12, "COMPLETED")
    assert ids(dags) == sorted([*IN_WINDOW, 901, 903, 904])
    assert PASSWORD not in "".join(capfd.readouterr())
    assert PASSWORD.encode() not in (dags / "journal.db").read_bytes()
    again = run(
        dags, embedded_world.route(dags, source="shop_ch", options={"accept_unseen_row_policies": True})
    )
    assert again.rows == 12, "the same route, by the same name, from Python"


def test_the_port_of_the_official_provider_is_recognised(
    server: RunningServer, dags: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """8123 is HTTP. With the extra native_port one connection serves both."""
    connect(monkeypatch, server, "shop_http", port=8123)
    assert run_dag("from_shop_http")[:2] == ("failed", 1)
    assert "HTTP interface" in "".join(capfd.readouterr())
    connect(monkeypatch, server, "shop_http", port=8123, extra={"native_port": server.port})
    assert run_dag("from_shop_http")[0] == "success"


def test_a_connection_that_is_wrong_fails_at_once_and_says_how(
    server: RunningServer, dags: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Missing, with unknown extras, or with a wrong password: no retry mends it."""
    connect(monkeypatch, server, "shop_odd", extra={"compres": True, "alt_hosts": "b:9000"}, host="a,b")
    connect(monkeypatch, server, "shop_wrong_password", password="hunter3")
    for name, said in (
        ("no_such_connection", "Airflow has no connection 'no_such_connection'; make it with"),
        ("shop_odd", "compres: is not known; there are secure"),
        ("shop_wrong_password", "dpone.source.access"),
    ):
        assert run_dag(f"from_{name}")[:2] == ("failed", 1), name
        told = "".join(capfd.readouterr())
        assert said in told, name
        assert "hunter" not in told, name


def test_a_full_window_has_no_bounds_to_send(server: RunningServer, home: Path) -> None:
    """The whole table, by the same route."""
    asked = route(home, server.port, strategy="full_refresh")
    result = deliver(
        asked,
        Window.full(),
        journal=home / "journal.db",
        spool=home / "spool",
        requester=Requester("shop", "full", "deliver"),
    )
    assert (result.rows, result.deleted_rows) == (21, 4)
