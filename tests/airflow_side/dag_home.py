"""Real DAG runs on the embedded engines: one DAG file, one shop and warehouse, Airflow's own database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import AIRFLOW_HOME

WHENEVER = datetime(2026, 3, 5, tzinfo=UTC)
MANY_TURNS = 100
HEAD = """
from datetime import UTC, datetime, timedelta
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, task_group
from airflow_dpone.operators import *

HOME = {home!r}
ROUTE = dict(
    source=f"chdb://{{HOME}}/shop", source_table=("shop", "orders"),
    target=f"duckdb://{{HOME}}/warehouse.duckdb", target_table=("sales", "orders"),
    window_column="ordered", journal=f"{{HOME}}/journal.db", spool=f"{{HOME}}/spool",
    retries=2, retry_delay=timedelta(0),
)
DAY = dict(window_start="2026-03-02T00:00:00Z", window_end="2026-03-03T00:00:00Z")
daily = CronDataIntervalTimetable("@daily", timezone="UTC")
"""


@dataclass
class DagHome:
    """Where the DAGs of a test file live, and the way to run one."""

    home: Path
    dag_file: Path

    def run(self, dag_id: str, day: datetime | None = None, *, at: datetime = WHENEVER, **asked: Any) -> Any:
        """One DAG run, to its end. The same ``at`` is the same run again."""
        return self.dag(dag_id).test(logical_date=day, run_after=day or at, **asked)

    def dag(self, dag_id: str) -> Any:
        """The DAG as its file says it now."""
        from airflow.dag_processing.dagbag import DagBag

        return DagBag(dag_folder=str(self.dag_file)).get_dag(dag_id)

    def clear(self, run: Any, *task_ids: str) -> Any:
        """Clears tasks as a person does (tries go on counting), then runs what there is to run, like
        ``dag.test``."""
        from airflow.models.dagrun import DagRun
        from airflow.models.taskinstance import clear_task_instances
        from airflow.sdk.definitions.dag import _run_task
        from airflow.serialization.serialized_objects import DagSerialization
        from airflow.utils.session import create_session

        dag = self.dag(run.dag_id)
        with create_session() as session:
            run = session.get(DagRun, run.id)
            found = run.get_task_instances(session=session)
            clear_task_instances([ti for ti in found if ti.task_id in task_ids], session)
            run.dag = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
            run.state = "running"
            session.commit()
            for _ in range(MANY_TURNS):
                session.expire_all()
                ready, _ = run.update_state(session=session)
                for ti in ready:
                    ti.try_number += 1
                    ti.state = "scheduled"
                session.commit()
                if run.state != "running":
                    break
                for ti in run.get_task_instances(session=session):
                    if ti.state == "scheduled":
                        _run_task(ti=ti, task=dag.task_dict[ti.task_id], run_triggerer=True)
            return run


@contextmanager
def dag_home(home: Path, name: str, dags: str) -> Iterator[DagHome]:
    """A shop with its warehouse and journal, and the DAGs of a text behind :data:`HEAD`."""
    dag_file = AIRFLOW_HOME / "dags" / f"{name}.py"
    with registered(home, dag_file, HEAD.format(home=str(home)) + dags):
        yield DagHome(home, dag_file)


@contextmanager
def registered(home: Path, dag_file: Path, text: str) -> Iterator[None]:
    """A shop with its warehouse and journal, and a DAG file, registered as Airflow's own processes would."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.utils.db import initdb

    from tests.crash import embedded_world

    embedded_world.create(home)
    dag_file.write_text(text)
    initdb()
    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(dag_folder=str(dag_file))
    assert bag.import_errors == {}
    sync_bag_to_db(bag, "dags-folder", None)
    yield
    dag_file.unlink()


def resume_like_the_triggerer(patch: pytest.MonkeyPatch) -> None:
    """``dag.test`` forgets what a task has deferred with; from now on it hands that back, by Airflow's own
    code, as a triggerer does."""
    from airflow.models.trigger import handle_event_submit
    from airflow.sdk._shared.module_loading import import_string
    from airflow.sdk.definitions import dag
    from airflow.sdk.execution_time.comms import DeferTask
    from airflow.sdk.serde import deserialize
    from airflow.utils.session import create_session

    run_task = dag._run_task

    def run(*, ti: Any, task: Any, run_triggerer: bool = False) -> Any:
        while True:
            done = run_task(ti=ti, task=task, run_triggerer=False)
            if done is None or not isinstance(done.msg, DeferTask):
                return done
            trigger = import_string(done.msg.classpath)(**deserialize(done.msg.trigger_kwargs))
            event = dag._run_inline_trigger(trigger, done.ti)
            with create_session() as session:
                ti.next_method, ti.next_kwargs = done.msg.next_method, done.msg.next_kwargs
                handle_event_submit(event, task_instance=ti, session=session)
                session.add(ti)

    patch.setattr(dag, "_run_task", run)


def states(run: Any) -> dict[str, str]:
    """State by task id."""
    return {
        ti.task_id + (f"[{ti.map_index}]" if ti.map_index >= 0 else ""): str(ti.state)
        for ti in run.get_task_instances()
    }


def xcom(run: Any, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
    """What a task left."""
    ti = next(ti for ti in run.get_task_instances() if (ti.task_id, ti.map_index) == (task_id, map_index))
    return ti.xcom_pull(task_ids=task_id, key=key, map_indexes=map_index if map_index >= 0 else None)
