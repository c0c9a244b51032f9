"""Airflow's own processes die and are started again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fakes.world import as_set, orders
from tests.standalone.airflow_server import Standalone
from tests.standalone.world import Home

NewHome = Callable[[str], Home]


@pytest.mark.timeout(900)
def test_the_triggerer_dies_while_a_sensor_waits(airflow: Standalone, new_home: NewHome) -> None:
    """B86: nothing that the triggers have to remember is lost. Their connections are in Airflow's tables."""
    home = new_home("watched")
    airflow.connect("watched_journal", "dponejournal", home.path / "journal.db")
    airflow.connect("watched_shop", "dponeembedded", home.path / "shop", engine="chdb")
    watch = airflow.trigger("watch", "watch", home=str(home.path))
    watch.wait_task("deferred", task_id="watch")
    airflow.kill_component("triggerer")
    airflow.start_component("triggerer")
    assert airflow.trigger("engines", "watched", home=str(home.path)).wait() == "success"
    assert watch.wait() == "success"
    assert {task["try_number"] for task in watch.tasks()} == {1}
    assert watch.xcom("watch") == {"status": "delivered", "gaps": [], "gap_count": 0}
    settled = watch.xcom("settled")
    assert (settled["status"], settled["partitions"], settled["unfinished_mutations"]) == ("settled", 1, 0)


@pytest.mark.timeout(900)
def test_the_scheduler_dies_in_the_middle_of_a_publication(airflow: Standalone, new_fakes: NewHome) -> None:
    """What becomes of the task is Airflow's to decide; what became of the delivery is not."""
    home = new_fakes("scheduler")
    home.hold("after_target_publish", try_number=1)
    run = airflow.trigger("fakes_retried", "scheduler", home=str(home.path))
    home.held()
    airflow.kill_component("scheduler")
    airflow.start_component("scheduler")
    home.let_go()
    if run.wait() == "failed":
        run.clear()
        assert run.wait() == "success"
    newest = home.invocation(run)
    assert (newest.state, newest.generation) == ("COMPLETED", 1)
    assert home.fakes.rows() == as_set(orders(6))
    assert home.fake_receipts() == [1]
