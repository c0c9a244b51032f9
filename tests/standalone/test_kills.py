"""SIGKILL of a task's process in each phase, then a clear through the REST API, on a real Airflow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.standalone.airflow_server import Standalone
from tests.standalone.world import Home, as_they_are_held

IDS = [2, 3, 4, 5, 5, 7, 8, 9, 10, 11, 12, 13, 901, 903, 904]

PHASES = {
    "admit": (("before_target_claim_gate",), "PLANNED"),
    "extract": (("after_chunk_seal",), "PLANNED"),
    "stage": (("after_writer_write",), "EXTRACTED"),
    "verify": (("after_target_build_prepared",), "STAGED"),
    "publish": (("after_target_publish",), "PUBLISHING"),
    "evidence": (("after_target_publish", "after_journal_append", "before_journal_append"), "PUBLISHED"),
    "checkpoint": (("after_target_publish", "before_target_drop_stage"), "CHECKPOINTED"),
}
"""Where each phase is killed, and where the journal says that the delivery stands then."""


GROUP = {
    "admit": ("before_target_claim_gate",),
    "extract": ("after_chunk_seal",),
    "stage": ("after_writer_write",),
    "verify": ("after_target_build_prepared",),
    "publish": ("after_target_publish",),
    "evidence": ("before_journal_append",),
    "checkpoint": ("before_target_drop_stage",),
}
"""Where the task of each phase is killed, in the group."""


@pytest.mark.timeout(900)
def test_each_of_seven_tasks_is_killed_once(airflow: Standalone, new_home: Callable[[str], Home]) -> None:
    """One run: every task dies in its phase, Airflow tries it again, and it goes on from there."""
    home = new_home("group")
    holds = [
        {"task_id": f"deliver.{name}", "points": points, "try_number": 1} for name, points in GROUP.items()
    ]
    home.hold_each(holds)
    run = airflow.trigger("group", "group", home=str(home.path))
    for name in GROUP:
        assert home.signal_held()["task_id"] == f"deliver.{name}"
    assert run.wait() == "success"
    assert {task["try_number"] for task in run.tasks()} == {2}
    assert [row[0] for row in home.rows()] == IDS
    assert home.receipts() == [1]
    assert home.untidy() == []
    newest = home.invocation(run)
    assert (newest.state, newest.generation) == ("COMPLETED", 1)
    assert home.holder(newest.target_key) == {}
    for name in GROUP:
        task_id = f"deliver.{name}"
        assert len(json.dumps(run.xcom(task_id))) < 2048, name
        assert len(re.findall("resumed at ", run.log(2, task_id))) == 1, name


@pytest.mark.timeout(900)
def test_killed_in_each_phase_and_cleared(airflow: Standalone, new_home: Callable[[str], Home]) -> None:
    """B82: all seven at once, each with a shop and a warehouse of its own, and one that nobody kills."""
    undisturbed = new_home("undisturbed")
    homes = {phase: new_home(phase) for phase in PHASES}
    for phase, (points, _) in PHASES.items():
        homes[phase].hold(*points, try_number=1)
    with airflow.paused("engines"):
        quiet = airflow.trigger("engines", "undisturbed", home=str(undisturbed.path))
        runs = {phase: airflow.trigger("engines", phase, home=str(homes[phase].path)) for phase in PHASES}
    for home in as_they_are_held(homes.values()):
        home.signal_held()
    for phase in PHASES:
        assert runs[phase].wait() == "failed", phase
    with airflow.paused("engines"):
        for run in runs.values():
            run.clear()
    assert quiet.wait() == "success"
    expected = undisturbed.rows()
    assert [row[0] for row in expected] == IDS
    for phase, (_, state) in PHASES.items():
        run, home = runs[phase], homes[phase]
        assert run.wait() == "success", phase
        assert home.rows() == expected, phase
        assert home.receipts() == [1], phase
        assert home.untidy() == [], phase
        newest = home.invocation(run)
        assert (newest.state, newest.generation) == ("COMPLETED", 1), phase
        assert home.holder(newest.target_key) == {}, phase
        said = re.findall(rf"resumed at {state}: try 1 ended without finishing it", run.log(2))
        assert len(said) == 1, phase
        assert run.xcom()["resumed_from"] == state, phase
