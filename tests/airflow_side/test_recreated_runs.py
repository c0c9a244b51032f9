"""[C8] A run that was deleted and made anew under the same name delivers again; a retry never does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from airflow_dpone.operators import telling
from tests.airflow_side.dag_home import WHENEVER, DagHome, dag_home, states, xcom

pytestmark = [
    pytest.mark.timeout(600),  # a busy machine takes a minute for Airflow's first task
    pytest.mark.filterwarnings("ignore:Multiple rows returned with uselist=False"),  # Airflow's, at a delete
]
DAGS = """
JOURNAL = "{{ dag_run.conf['first'] if ti.try_number == 1 else 'journal.db' }}"
BROKEN = "{{ 1 // 0 if ti.try_number == 1 and dag_run.conf['first'] == 'template' else '' }}"
with DAG("again", schedule=daily):
    # Airflow's own rules try everything again, a journal that is missing too.
    DeliverWindowOperator(task_id="orders", retry_policy=None,
                          **(ROUTE | DAY | dict(journal=f"{HOME}/{JOURNAL}", spool=f"{HOME}/spool{BROKEN}")))
"""
ANEW = "generation 2 begins: generation 1 was delivered and its run was deleted and made anew since"


@pytest.fixture(autouse=True)
def whole_log(caplog: pytest.LogCaptureFixture) -> None:
    """What the engine tells a task's log."""
    caplog.set_level(logging.INFO, "airflow_dpone")


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagHome]:
    """The DAG of this file, and its shop."""
    with dag_home(tmp_path_factory.mktemp("again"), "recreated_runs", DAGS) as found:
        yield found


def run_once(dags: DagHome, number: int, first: str = "journal.db") -> Any:
    """A run to its end; the same number is the same run id.

    :param first: what the first try takes for the journal; ``template``: it fails before the operator begins.
    """
    run = dags.run("again", WHENEVER + timedelta(days=number), run_conf={"first": first})
    assert states(run) == {"orders": "success"}
    return run


def die_after_the_end(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The delivery is finished, and Airflow is not told: so many workers in turn."""
    count, deaths = telling.count, [RuntimeError("the worker died")] * times

    def die(*said: Any) -> None:
        if deaths:
            raise deaths.pop()
        count(*said)

    monkeypatch.setattr(telling, "count", die)


def delete(run: Any) -> None:
    """What the API server does when a person deletes a run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        session.delete(session.get(DagRun, run.id))


def tries(run: Any) -> int:
    """The number of the last try."""
    return int(run.get_task_instance("orders").try_number)


def told(run: Any) -> tuple[int, bool]:
    """Generation, and whether it had been delivered before."""
    result = xcom(run, "orders")
    return result["generation"], result["already"]


def test_a_run_that_was_made_anew_delivers_again(dags: DagHome, caplog: pytest.LogCaptureFixture) -> None:
    run = run_once(dags, 1)
    delete(run)
    again = run_once(dags, 1)
    assert (again.run_id, tries(again), told(again)) == (run.run_id, 1, (2, False))
    assert ANEW in caplog.text


def test_also_when_its_first_try_never_reached_the_journal(
    dags: DagHome, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_once(dags, 2)
    delete(run)
    again = run_once(dags, 2, first="gone.db")
    assert (again.run_id, tries(again), told(again)) == (run.run_id, 2, (2, False))
    assert ANEW in caplog.text


def test_a_retry_after_the_end_delivers_nothing(
    dags: DagHome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker dies after the delivery was finished and before Airflow knows; so does the next one."""
    die_after_the_end(monkeypatch, times=2)
    run = run_once(dags, 3)
    assert (tries(run), told(run)) == (3, (1, True))
    assert caplog.text.count("generation 1 begins") == 1
    assert caplog.text.count("nothing to do: generation 1 is COMPLETED; nobody cleared it since") == 2


def test_a_retry_that_follows_a_first_try_without_a_journal_is_no_new_run(
    dags: DagHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try delivers and dies, the third one finds what it did."""
    die_after_the_end(monkeypatch, times=1)
    run = run_once(dags, 4, first="gone.db")
    assert (tries(run), told(run)) == (3, (1, True))


def test_a_first_try_that_fails_before_the_operator_begins_is_not_seen_and_the_log_says_what_to_do(
    dags: DagHome, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_once(dags, 5)
    delete(run)
    again = run_once(dags, 5, first="template")
    assert (again.run_id, tries(again), told(again)) == (run.run_id, 2, (1, True))
    why = "nobody cleared it since (to deliver it again, clear the task"
    assert f"nothing to do: generation 1 is COMPLETED; {why}" in caplog.text
    cleared = dags.clear(again, "orders")
    assert told(cleared) == (2, False)
    assert "generation 2 begins: generation 1 was delivered and the task was cleared since" in caplog.text
