"""Whatever ends a task from outside, the next try goes on where the delivery stands."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fakes.world import as_set, order, orders
from tests.standalone.airflow_server import Run, Standalone, until
from tests.standalone.world import Home, as_they_are_held

NewHome = Callable[[str], Home]


def is_exact(home: Home, run: Run, task_id: str = "deliver") -> None:
    """Each row once, one receipt, nothing left, nobody owns the target."""
    newest = home.invocation(run, task_id)
    assert (newest.state, newest.generation) == ("COMPLETED", 1), home.path.name
    assert home.fakes.rows() == as_set(orders(6)), home.path.name
    assert home.fake_receipts() == [1], home.path.name
    assert home.fakes.untidy() == [], home.path.name


def is_gone(pid: int) -> bool:
    with suppress(OSError):
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


@pytest.mark.timeout(900)
def test_marked_by_a_person_terminated_and_out_of_time(airflow: Standalone, new_fakes: NewHome) -> None:
    """B78, B83: mark failed, mark success, SIGTERM, execution timeout; each in the middle of a delivery."""
    dags = {
        "marked_failed": ("fakes", "after_writer_write"),
        "marked_success": ("fakes", "before_target_publish"),
        "sigterm": ("fakes_retried", "after_target_publish"),
        "out_of_time": ("fakes_timed", "after_target_build_prepared"),
    }
    homes = {name: new_fakes(name) for name in dags}
    runs = {}
    for name, (dag_id, point) in dags.items():
        homes[name].hold(point, try_number=1)
        runs[name] = airflow.trigger(dag_id, name, home=str(homes[name].path))
    held = {}
    for home in as_they_are_held(homes.values()):
        name = home.path.name
        held[name] = home.held()
        if name.startswith("marked"):
            runs[name].mark(name.removeprefix("marked_"))
        if name == "sigterm":
            home.signal_held(signal.SIGTERM)
    for name in ("marked_failed", "marked_success"):
        until(f"{name} is gone", lambda name=name: is_gone(held[name]["pid"]))
        assert runs[name].wait() == name.removeprefix("marked_")
        unfinished = homes[name].invocation(runs[name])
        assert unfinished.state not in ("COMPLETED", "FAILED"), name
        assert homes[name].holder(unfinished.target_key)["run_id"] == name
        runs[name].clear()
    for name, run in runs.items():
        run.wait_task("success", least_try=2)
        is_exact(homes[name], run)
        assert "resumed at" in run.log(2), name
        assert len(json.dumps(run.xcom())) < 2048, name


@pytest.mark.timeout(900)
def test_cleared_while_it_runs_and_an_earlier_task_while_another_one_runs(
    airflow: Standalone, new_fakes: NewHome
) -> None:
    """B78, C11: a clear in the middle of a publication; and extract is cleared while publish hangs there:
    it waits for the process that works, and finds its own phase done long ago."""
    alone, group = new_fakes("cleared"), new_fakes("hanging")
    alone.hold("before_target_publish", try_number=1)
    group.hold("before_target_publish", try_number=1, task_id="deliver.publish")
    run = airflow.trigger("fakes_retried", "cleared", home=str(alone.path))
    hanging = airflow.trigger("fakes_group", "hanging", home=str(group.path))
    held = alone.held()
    run.clear()
    group.held()
    hanging.clear("deliver.extract")
    until("extract waits", lambda: "works on this target" in begun(hanging, "deliver.extract"))
    group.let_go()
    assert run.wait() == hanging.wait() == "success"
    assert is_gone(held["pid"])
    is_exact(alone, run)
    is_exact(group, hanging)
    assert "resumed at PUBLISHING: try 1 ended without finishing it" in run.log(2)
    told = hanging.xcom("deliver.extract")
    assert told["generation"] == 1
    assert told["state"] in ("PUBLISHED", "EVIDENCED", "CHECKPOINTED", "COMPLETED")
    tries = {task["task_id"]: task["try_number"] for task in hanging.tasks()}
    assert tries.pop("deliver.extract") == 2
    assert set(tries.values()) == {1}


@pytest.mark.timeout(900)
def test_a_worker_that_was_given_up_wakes_up(airflow: Standalone, new_fakes: NewHome) -> None:
    """B77: the task and its supervisor are stopped before the publication; the scheduler gives them up, a new
    try delivers; then the first one goes on, and nothing of it lands."""
    home = new_fakes("zombie")
    home.hold("before_target_publish", try_number=1)
    run = airflow.trigger("fakes_retried", "zombie", home=str(home.path))
    held = home.held()
    for process in ("supervisor", "pid"):
        os.kill(held[process], signal.SIGSTOP)
    try:
        run.wait_task("success", least_try=2)
        home.let_go()
        os.kill(held["pid"], signal.SIGCONT)
        outcomes = until("the first try has ended", lambda: ended(home, try_number=1))
        assert outcomes[0]["error"] == "dpone.journal.fenced"
        is_exact(home, run)
        assert run.xcom()["resumed_from"] in ("PUBLISHING", "PREPARED")
    finally:
        for process in ("pid", "supervisor"):
            with suppress(ProcessLookupError):
                os.kill(held[process], signal.SIGCONT)
    assert run.wait() == "success"


def begun(run: Run, task_id: str) -> str:
    """The log of the second try, empty before it begins."""
    with suppress(FileNotFoundError):
        return run.log(2, task_id)
    return ""


def ended(home: Home, try_number: int) -> list[dict[str, object]]:
    return [one for one in home.outcomes() if one["try_number"] == try_number]


@pytest.mark.timeout(900)
def test_a_retry_after_the_end_delivers_nothing_whoever_else_was_cleared(
    airflow: Standalone, new_fakes: NewHome
) -> None:
    """C7: one window is delivered and its worker dies before it can say so; a person clears the other one,
    and with it the run. Only the other one is delivered again."""
    home = new_fakes("mapped")
    home.fakes.source.edit(rows=[*orders(6), *orders(3, first=7, day=1)])
    home.hold("after_journal_release", map_index=0, try_number=1)
    run = airflow.trigger("fakes_mapped", "mapped", home=str(home.path))
    home.held()
    run.wait_task("success", map_index=1)
    with airflow.paused("fakes_mapped"):
        home.signal_held()
        run.wait_task("up_for_retry", map_index=0)
        run.clear(("deliver", 1))
    run.wait_task("success", map_index=1, least_try=2)
    run.wait_task("success", map_index=0, least_try=2)
    assert home.invocation(run, map_index=0).generation == 1
    assert home.invocation(run, map_index=1).generation == 2
    first, second = run.xcom(map_index=0), run.xcom(map_index=1)
    assert (first["already"], first["generation"], first["rows"]) == (True, 1, 6)
    assert (second["already"], second["generation"], second["rows"]) == (False, 2, 3)
    assert home.fakes.rows() == as_set([*orders(6), *orders(3, first=7, day=1)])
    assert home.fake_receipts() == [1, 1, 2]


@pytest.mark.timeout(900)
def test_a_run_that_was_deleted_and_made_anew_delivers_again_whichever_try_gets_there(
    airflow: Standalone, new_fakes: NewHome
) -> None:
    """C8: the new run's first try is killed before the journal knows of it; its second one looks like the old
    run's, and is not."""
    home = new_fakes("anew")
    run = airflow.trigger("fakes_retried", "anew", home=str(home.path))
    assert run.wait() == "success"
    home.fakes.source.edit(rows=[*orders(6), order(7)])
    run.delete()
    home.hold("before_journal_acquire", try_number=1)
    run = airflow.trigger("fakes_retried", "anew", home=str(home.path))
    home.signal_held()
    assert run.wait() == "success"
    assert run.task()["try_number"] == 2
    assert (run.xcom()["generation"], run.xcom()["already"]) == (2, False)
    assert "generation 1 was delivered and its run was deleted and made anew since" in run.log(2)
    assert home.fakes.rows() == as_set([*orders(6), order(7)])
    assert home.fake_receipts() == [1, 2]


@pytest.mark.timeout(900)
def test_a_clear_that_leaves_the_run_alone_is_a_clear(airflow: Standalone, new_fakes: NewHome) -> None:
    """C7: ``reset_dag_runs=false`` does not count as a clear of the run, but the task is delivered again."""
    home = new_fakes("beside")
    run = airflow.trigger("fakes_beside_another_task", "beside", home=str(home.path))
    run.wait_task("success")
    home.fakes.source.edit(rows=[*orders(6), order(7)])
    run.clear("deliver", reset_dag_runs=False)
    run.wait_task("success", least_try=2)
    (home.path / "enough").touch()
    assert run.wait() == "success"
    assert home.invocation(run).generation == 2
    assert home.fakes.rows() == as_set([*orders(6), order(7)])
    assert (run.xcom()["generation"], run.xcom()["already"]) == (2, False)
