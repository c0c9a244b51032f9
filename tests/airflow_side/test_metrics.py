"""Every metric of docs/operators.md, as Airflow's own backend gets it: value, tags, and when."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics import stats
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

from airflow_dpone import wiring
from airflow_dpone.errors import DponeError
from airflow_dpone.operators import admitting
from tests.airflow_side.dag_home import DagHome, dag_home, resume_like_the_triggerer, states, xcom
from tests.airflow_side.other_delivery import Holder
from tests.fakes.world import World
from tests.standalone.holding import HeldPorts

pytestmark = pytest.mark.timeout(600)  # a busy machine takes a minute for Airflow's first task
DAY = datetime(2026, 3, 3, tzinfo=UTC)
PHASES = ("admit", "extract", "stage", "verify", "publish", "evidence", "checkpoint")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "operators.md"
DAGS = """
with DAG("measured", schedule=daily):
    deliver_window("orders", **ROUTE)
with DAG("patient", schedule=daily):
    DeliverWindowOperator(task_id="orders", custody_wait_sec=100, **ROUTE)
with DAG("impatient", schedule=daily):
    DeliverWindowOperator(task_id="orders", custody_wait_sec=1, **(ROUTE | dict(retries=0)))
with DAG("hurried", schedule=daily):
    DeliverWindowOperator(task_id="orders", on_custody_held="fail", **(ROUTE | dict(retries=1)))
with DAG("secretive", schedule=daily):
    DeliverWindowOperator(task_id="orders", **(ROUTE | dict(
        source="chdb://me:hunter2@/x", journal="postgresql://me:hunter2@host/x")))
with DAG("unknown", schedule=None):
    DeliverWindowOperator(
        task_id="orders", window_start="2025-01-01T00:00:00Z", window_end="2025-01-02T00:00:00Z",
        **(ROUTE | dict(target_table=("dbo", "orders"), window_column="at", host_id="test-host",
                        journal=f"{HOME}/fakes/journal.db", spool=f"{HOME}/fakes/spool")))
"""


class Recorder(NoStatsLogger):
    """A backend of Airflow's metrics that keeps ours: (kind, name, value, tags)."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str, float, dict[str, str]]] = []

    def incr(self, stat: str, count: int = 1, *_: Any, tags: Any = None, **__: Any) -> None:
        self._keep("counter", stat, count, tags)

    def timing(self, stat: str, dt: Any, *, tags: Any = None, **_: Any) -> None:
        self._keep("timer", stat, dt.total_seconds() if isinstance(dt, timedelta) else dt, tags)

    def _keep(self, kind: str, stat: str, value: float, tags: Any) -> None:
        if stat.startswith("dpone."):
            self.kept.append((kind, stat, value, tags))

    def values(self, name: str) -> list[float]:
        """What was said under a name, in order."""
        return [value for _, stat, value, _ in self.kept if stat == name]

    def counters(self) -> dict[str, float]:
        """The sum of each counter."""
        names = {stat for kind, stat, _, _ in self.kept if kind == "counter"}
        return {name: sum(self.values(name)) for name in names}


@pytest.fixture(scope="module")
def seen() -> dict[str, str]:
    """Kind by name, of all tests of this file."""
    return {}


@pytest.fixture
def metrics(seen: dict[str, str]) -> Iterator[Recorder]:
    """What is reported to Airflow's own metrics; no tag says more than the two that are documented."""
    recorder = Recorder()
    kept = (stats._factory, stats._export_legacy_names)
    stats.initialize(factory=lambda: recorder, export_legacy_names=False)
    yield recorder
    stats.initialize(factory=kept[0] or NoStatsLogger, export_legacy_names=kept[1])
    seen.update({name: kind for kind, name, _, _ in recorder.kept})
    for _, name, _, tags in recorder.kept:
        assert set(tags) == ({"dag_id", "code"} if name == "dpone.failures" else {"dag_id"}), name


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagHome]:
    """All DAGs of this file."""
    with dag_home(tmp_path_factory.mktemp("metrics"), "metrics", DAGS) as found:
        yield found


@pytest.fixture(autouse=True)
def resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waited knows since when."""
    resume_like_the_triggerer(monkeypatch)


@pytest.fixture
def holder(dags: DagHome) -> Iterator[Holder]:
    """The target is taken; afterwards it is free."""
    found = Holder(dags.home)
    yield found
    found.finish()


class Calls:
    """Calls of the engine by the operators: when each began, when the first one found the target taken.

    :param before: does something before a call, given its number (1, 2, ...). A call that delivers takes
        ``work_sec`` longer than it needs.
    """

    work_sec = 3.0

    def __init__(self, before: Callable[[int], None]) -> None:
        self.began: list[float] = []
        self.refused_at = 0.0
        self._before, self._run = before, wiring.run_phases

    def __call__(self, *args: Any, **asked: Any) -> Any:
        self.began.append(time.time())
        self._before(len(self.began))
        try:
            done = self._run(*args, **asked)
        except DponeError:
            self.refused_at = self.refused_at or time.time()
            raise
        time.sleep(self.work_sec)
        return done


def later(seconds: float, work: Callable[[], None]) -> threading.Thread:
    """Does it beside the test."""
    thread = threading.Timer(seconds, work)
    thread.start()
    return thread


def is_free(dags: DagHome, monkeypatch: pytest.MonkeyPatch, *holders: float) -> Calls:
    """The target is taken before each of the first calls, and free so many seconds after each."""
    monkeypatch.setattr(admitting, "POLL_SEC", 0.1)
    waiting = list(holders)

    def before(_: int) -> None:
        if waiting:
            later(waiting.pop(0), Holder(dags.home).finish)

    calls = Calls(before)
    monkeypatch.setattr(wiring, "run_phases", calls)
    return calls


class TestMetrics:
    """In order: the last one looks at what all of them have seen."""

    def test_a_delivery_counts_rows_and_bytes_once_and_times_each_phase(
        self, dags: DagHome, metrics: Recorder
    ) -> None:
        began = time.monotonic()
        run = dags.run("measured", DAY)
        took = time.monotonic() - began
        result = xcom(run, "orders.checkpoint")
        assert result["rows"] == 12
        delivered = {"dpone.deliveries": 1, "dpone.rows": 12, "dpone.bytes": result["bytes"]}
        assert metrics.counters() == delivered
        timed = [metrics.values(f"dpone.phase.{phase}") for phase in PHASES]
        # A task admits itself again before its phase, except where nothing is left to do.
        assert [len(values) for values in timed] == [7, *[1] * 6]
        assert all(0 < value < took for values in timed for value in values)
        assert {tags["dag_id"] for *_, tags in metrics.kept} == {"measured"}
        dags.clear(run, "orders.checkpoint", "orders.verify")
        assert metrics.counters() == delivered, "nothing was delivered by a clear that had nothing to do"

    def test_a_wait_is_told_once_when_it_is_over_and_without_the_work_after_it(
        self, dags: DagHome, metrics: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = is_free(dags, monkeypatch, 1.5)
        run = dags.run("patient", DAY)
        assert set(states(run).values()) == {"success"}
        assert len(calls.began) == 2
        (waited,) = metrics.values("dpone.custody_wait")
        assert 0.5 < waited <= calls.began[1] - calls.refused_at + 0.1
        assert metrics.counters().keys() == {"dpone.deliveries", "dpone.rows", "dpone.bytes"}

    def test_a_wait_that_goes_on_behind_a_faster_one_is_still_one_wait(
        self, dags: DagHome, metrics: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = is_free(dags, monkeypatch, 1.5, 1.5)
        run = dags.run("patient", datetime(2026, 3, 4, tzinfo=UTC))
        assert set(states(run).values()) == {"success"}
        assert len(calls.began) == 3
        (waited,) = metrics.values("dpone.custody_wait")
        assert calls.began[1] - calls.refused_at < waited <= calls.began[2] - calls.refused_at + 0.1

    def test_a_wait_in_vain_is_a_wait_and_a_failure(
        self, dags: DagHome, metrics: Recorder, holder: Holder
    ) -> None:
        run = dags.run("impatient", DAY)
        assert states(run) == {"orders": "failed"}
        (waited,) = metrics.values("dpone.custody_wait")
        assert waited >= 1
        assert metrics.counters() == {"dpone.failures": 1}
        assert metrics.kept[-1][3] == {"dag_id": "impatient", "code": "dpone.custody.held"}

    def test_whoever_does_not_wait_tells_no_wait_and_each_try_is_a_failure(
        self, dags: DagHome, metrics: Recorder, holder: Holder
    ) -> None:
        dags.run("hurried", DAY)
        assert metrics.counters() == {"dpone.failures": 2}
        assert metrics.values("dpone.custody_wait") == []

    def test_a_wait_that_the_triggerer_gave_up_is_told_too(self, dags: DagHome, metrics: Recorder) -> None:
        task = dags.dag("patient").task_dict["orders"]
        event = {
            "status": "failed",
            "error": {"code": "dpone.journal.missing", "message": "It is gone.", "next_action": "Look."},
        }
        context: Any = {"task": task, "ti": SimpleNamespace(xcom_push=lambda **_: None)}
        with pytest.raises(DponeError, match="It is gone"):
            task.go_on_after_custody(context, event, time.time() - 7)
        (waited,) = metrics.values("dpone.custody_wait")
        assert 7 <= waited < 60
        assert metrics.kept[-1] == (
            "counter",
            "dpone.failures",
            1,
            {"dag_id": "patient", "code": "dpone.journal.missing"},
        )

    def test_an_unknown_outcome_is_counted_once_and_what_it_came_to_as_a_delivery(
        self, dags: DagHome, metrics: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = World.create(dags.home / "fakes")
        world.target.arm("publish", "lost_answer")
        world.target.arm("probe", "unreachable")
        monkeypatch.setattr(wiring, "open_ports", HeldPorts)
        run = dags.run("unknown")
        assert states(run) == {"orders": "failed"}
        assert run.get_task_instance("orders").try_number == 1
        assert metrics.counters() == {"dpone.failures": 1, "dpone.unknown_outcomes": 1}
        codes = [tags.get("code") for *_, tags in metrics.kept]
        assert codes == ["dpone.publish.outcome_unknown", None]
        run = dags.clear(run, "orders")
        assert xcom(run, "orders")["resumed_from"] == "UNKNOWN"
        counted = metrics.counters()
        assert (counted["dpone.unknown_outcomes"], counted["dpone.failures"]) == (1, 1)
        assert (counted["dpone.deliveries"], counted["dpone.rows"]) == (1, 6)

    def test_no_metric_says_a_secret(self, dags: DagHome, metrics: Recorder) -> None:
        dags.run("secretive", DAY)
        assert metrics.counters() == {"dpone.failures": 1}
        assert metrics.kept[0][3] == {"dag_id": "secretive", "code": "dpone.config.invalid"}
        assert "hunter2" not in repr(metrics.kept)

    def test_every_metric_of_the_docs_was_seen_as_the_kind_that_it_says(self, seen: dict[str, str]) -> None:
        told = {}
        for names, kind in re.findall(r"^\| (`dpone\..*?) \| (counter|timer) \|", DOCS.read_text(), re.M):
            told.update(dict.fromkeys(re.findall(r"`(dpone\.[a-z_.]+)`", names), kind))
        told.update({f"dpone.phase.{phase}": "timer" for phase in PHASES})
        assert seen == told
