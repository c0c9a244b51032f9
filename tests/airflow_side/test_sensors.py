"""Sensors inside Airflow: real DAG runs (``dag.test``) on the embedded engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery.deliver import deliver
from airflow_dpone.delivery.run import Request
from tests.airflow_side.dag_home import registered
from tests.conftest import AIRFLOW_HOME

DAG_FILE = AIRFLOW_HOME / "dags" / "sensors_for_tests.py"
DAGS = """
from datetime import timedelta
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow_dpone.operators import DeliverWindowOperator
from airflow_dpone.sensors import (
    CustodyClearSensor, SourceSettledSensor, WindowDeliveredSensor, WindowsCoveredSensor)

HOME = {home!r}
SOURCE = dict(source=f"chdb://{{HOME}}/shop", source_table=("shop", "orders"), window_column="ordered")
TARGET = dict(target=f"duckdb://{{HOME}}/warehouse.duckdb", target_table=("sales", "orders"),
              journal=f"{{HOME}}/journal.db")
SHORT = dict(timeout=0.5, poke_interval=0.1)
daily = CronDataIntervalTimetable("@daily", timezone="UTC")

with DAG("deliver", schedule=daily):
    DeliverWindowOperator(task_id="task", **SOURCE, **TARGET, spool=f"{{HOME}}/spool", retries=0)
with DAG("delivered", schedule=daily):
    WindowDeliveredSensor(task_id="task", **TARGET, **SHORT)
with DAG("not_delivered", schedule=daily):
    WindowDeliveredSensor(task_id="task", **TARGET, **SHORT)
with DAG("delivered_by_a_route", schedule=daily):
    WindowDeliveredSensor(task_id="task", route_source="chdb", route_table=("shop", "orders"),
                          route_column="ordered", **TARGET, **SHORT)
with DAG("delivered_whole", schedule=None):
    WindowDeliveredSensor(task_id="task", full_refresh=True, soft_fail=True, **TARGET, **SHORT)
with DAG("covered", schedule=None):
    WindowsCoveredSensor(task_id="task", window_start="{{{{ params.start }}}}",
                         window_end="2026-03-04T00:00:00Z", params={{"start": "2026-03-02T00:00:00Z"}},
                         **TARGET, **SHORT)
with DAG("custody", schedule=None):
    CustodyClearSensor(task_id="task", **TARGET, **SHORT)
with DAG("custody_by_connection", schedule=None):
    CustodyClearSensor(task_id="task", **(TARGET | dict(journal=None)), **SHORT)
with DAG("settled", schedule=daily):
    SourceSettledSensor(task_id="task", quiet=timedelta(seconds=1), timeout=120, poke_interval=0.2, **SOURCE)
with DAG("busy", schedule=daily):
    SourceSettledSensor(task_id="task", quiet=3600, **SOURCE, **SHORT)
with DAG("empty", schedule=None):
    SourceSettledSensor(task_id="task", quiet=0, allow_empty=False, window_start="2020-01-01T00:00:00Z",
                        window_end="2020-01-02T00:00:00Z", **SOURCE, **SHORT)
with DAG("wrong_source", schedule=daily):
    SourceSettledSensor(task_id="task", quiet=-1, retries=3, **(SOURCE | dict(window_column=None)), **SHORT)
with DAG("wrong", schedule=None):
    CustodyClearSensor(task_id="task", target="duckdb://me:hunter2@/x", target_table=("a",), retries=3,
                       journal="postgresql://me:hunter2@host/x", **SHORT)
with DAG("no_table", schedule=daily):
    WindowDeliveredSensor(task_id="task", **(TARGET | dict(target_table=("sales", "nothing"))), retries=3,
                          **SHORT)
"""
SECOND = datetime(2026, 3, 3, tzinfo=UTC)
THIRD = datetime(2026, 3, 4, tzinfo=UTC)
_hours = count()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A shop with its warehouse, the DAG file that looks at it, and Airflow's own database."""
    home = tmp_path_factory.mktemp("home")
    with registered(home, DAG_FILE, DAGS.format(home=str(home))):
        yield home


def run_dag(dag_id: str, day: datetime | None = None) -> Any:
    """One DAG run; its only task's state, tries and result."""
    from airflow.dag_processing.dagbag import DagBag

    dag = DagBag(dag_folder=str(DAG_FILE)).get_dag(dag_id)
    run = dag.test(logical_date=day, run_after=day or datetime(2026, 3, 5, next(_hours), tzinfo=UTC))
    task = run.get_task_instance("task")
    return str(task.state), task.try_number, task.xcom_pull(task_ids="task")


@pytest.mark.usefixtures("home")
class TestSensors:
    """In order: each finds what the ones before have delivered."""

    def test_an_undelivered_window_times_out_and_is_named(self, capfd: pytest.CaptureFixture[str]) -> None:
        """Also in a warehouse into which nobody has ever delivered."""
        assert run_dag("not_delivered", SECOND)[0] == "failed"
        said = "".join(capfd.readouterr())
        assert "1 gap(s): 2026-03-02T00:00:00.000000Z/2026-03-03T00:00:00.000000Z" in said

    def test_a_delivered_window_is_found_by_interval_and_by_route(self) -> None:
        assert run_dag("deliver", SECOND)[0] == "success"
        state, _, found = run_dag("delivered", SECOND)
        assert (state, found) == ("success", {"status": "delivered", "gaps": [], "gap_count": 0})
        assert run_dag("delivered_by_a_route", SECOND)[0] == "success"

    def test_days_cover_an_interval_when_the_last_one_is_there(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert run_dag("covered")[0] == "failed"
        assert "gap(s): 2026-03-03T00:00:00.000000Z/2026-03-04T00:00:00.000000Z" in "".join(
            capfd.readouterr()
        )
        assert run_dag("deliver", THIRD)[0] == "success"
        assert run_dag("covered")[0] == "success"

    def test_soft_fail_skips(self) -> None:
        assert run_dag("delivered_whole")[0] == "skipped"

    def test_custody_is_clear_until_a_delivery_is_left_unfinished(
        self, home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert run_dag("custody")[:1] == ("success",)
        stored = json.dumps({"conn_type": "sqlite", "host": f"{home}/journal.db"})
        monkeypatch.setenv("AIRFLOW_CONN_DPONE_JOURNAL", stored)
        assert run_dag("custody_by_connection")[0] == "success"
        leave_unfinished(home)
        assert run_dag("custody")[0] == "failed"
        assert "the target is owned by DAG shop, run left, task deliver (generation 1, PLANNED" in "".join(
            capfd.readouterr()
        )

    def test_a_quiet_window_is_settled_and_a_busy_one_is_not(self, capfd: pytest.CaptureFixture[str]) -> None:
        state, _, found = run_dag("settled", SECOND)
        assert (state, found["status"], found["partitions"], found["busy"]) == ("success", "settled", 1, {})
        assert run_dag("busy", SECOND)[0] == "failed"
        assert "partitions that were quiet too shortly: all for " in "".join(capfd.readouterr())

    def test_a_window_without_rows_may_be_waited_for(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert run_dag("empty")[0] == "failed"
        assert "the source has no row of the window" in "".join(capfd.readouterr())

    @pytest.mark.parametrize(
        ("dag_id", "said"),
        [
            ("wrong_source", ["2 problems", "window_column: is needed", "quiet: must be"]),
            ("wrong", ["target:", "target_table", "journal: the URL carries a password"]),
            ("no_table", ["nothing"]),
        ],
    )
    def test_what_no_retry_mends_fails_at_once(
        self, dag_id: str, said: list[str], capfd: pytest.CaptureFixture[str]
    ) -> None:
        assert run_dag(dag_id, SECOND)[:2] == ("failed", 1)
        told = "".join(capfd.readouterr())
        assert all(text in told for text in said), told
        assert "hunter2" not in told


@pytest.mark.parametrize(
    "journal",
    [
        "journal.db",
        "mysql://host/x",
        "postgresql://me:hunter2@host:port/x",
        "postgresql://host/x?sslpassword=hunter2",
    ],
)
def test_what_cannot_be_a_journal_is_refused_before_a_trigger_is_stored(journal: str) -> None:
    from airflow_dpone.errors import ConfigurationError
    from airflow_dpone.sensors import CustodyClearSensor

    sensor = CustodyClearSensor(
        task_id="x", target="duckdb:///x", target_table=("sales", "orders"), journal=journal
    )
    with pytest.raises(ConfigurationError, match="- journal: ") as refused:
        sensor.trigger({}, 0.0)
    assert "hunter2" not in str(refused.value)


def leave_unfinished(home: Path) -> None:
    """A delivery of somebody else that has planned and then lost its worker."""
    leave_unfinished_in(home, "deliver")


def leave_unfinished_in(home: Path, task_id: str, **changes: Any) -> None:
    """The same in a home with other tables."""
    from airflow_dpone import Requester, wiring
    from airflow_dpone.call_checks import Places
    from tests.crash import embedded_world

    class Gone(BaseException):
        pass

    def die(point: str) -> None:
        if point == "before_target_claim_gate":
            raise Gone

    places = Places(home / "journal.db", home / "spool")
    route = embedded_world.route(home, **changes)
    asked = Request(route, embedded_world.WINDOW, Requester("shop", "left", task_id))
    with wiring.open_ports(route, places, observer=die) as ports, pytest.raises(Gone):
        deliver(ports, asked)


@pytest.mark.parametrize(("part", "base"), [("sensors", "BaseSensorOperator"), ("triggers", "BaseTrigger")])
def test_airflow_is_told_of_every_module_that_holds_one(part: str, base: str) -> None:
    """The provider's description names modules; whoever adds one has to name it."""
    from importlib import import_module

    from airflow.sdk import BaseSensorOperator
    from airflow.triggers.base import BaseTrigger

    from airflow_dpone.provider_info import get_provider_info

    kind = {"BaseSensorOperator": BaseSensorOperator, "BaseTrigger": BaseTrigger}[base]
    folder = Path(import_module(f"airflow_dpone.{part}").__file__ or "").parent
    holds = set()
    for path in folder.glob("*.py"):
        module = import_module(f"airflow_dpone.{part}.{path.stem}")
        own = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
        if any(isinstance(one, type) and issubclass(one, kind) and is_usable(one) for one in own):
            holds.add(module.__name__)
    ((entry),) = get_provider_info()[part]
    assert set(entry["python-modules"]) == holds
    assert entry["integration-name"] in {
        one["integration-name"] for one in get_provider_info()["integrations"]
    }


def is_usable(kind: type) -> bool:
    """Whether it can be made: nothing of it is left to a subclass."""
    missing = [
        name
        for name in ("trigger", "late", "look")
        if getattr(getattr(kind, name, None), "__isabstractmethod__", False)
    ]
    return not missing
