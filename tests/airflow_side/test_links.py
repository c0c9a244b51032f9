"""The extra link: there from the first moment of a task, the same at its end, and it leads somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from airflow_dpone.journal.store import open_journal
from airflow_dpone.links.delivery import DeliveryLink, delivery_page, offer_link
from airflow_dpone.ui.app import _newest
from tests.airflow_side.dag_home import DagHome, dag_home, states, xcom

pytestmark = pytest.mark.timeout(900)

DAGS = """
class Looks(DeliverWindowOperator):
    def work(self, context):
        return {"seen": context["ti"].xcom_pull(task_ids=self.task_id, key="_link_DeliveryLink")}

with DAG("one", schedule=None):
    DeliverWindowOperator(task_id="deliver", **(ROUTE | DAY))
with DAG("group", schedule=None):
    deliver_window("orders", **(ROUTE | DAY))
with DAG("looking", schedule=None):
    Looks(task_id="looks", **(ROUTE | DAY))
with DAG("refused", schedule=None):
    DeliverWindowOperator(task_id="deliver", **(ROUTE | DAY | dict(strategy="sideways")))
"""


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagHome]:
    with dag_home(tmp_path_factory.mktemp("links"), "links", DAGS) as found:
        yield found


def asked(link: str) -> tuple[str, str, str, int]:
    query = dict(parse_qsl(urlsplit(link).query))
    return query["dag_id"], query["run_id"], query["task_id"], int(query["map_index"])


def test_a_task_and_a_group_lead_to_their_deliveries(dags: DagHome) -> None:
    one, group = dags.run("one"), dags.run("group")
    link = xcom(one, "deliver", DeliveryLink().xcom_key)
    assert link == delivery_page("one", one.run_id, "deliver")
    links = {
        xcom(group, f"orders.{phase}", DeliveryLink().xcom_key)
        for phase in ("admit", "publish", "checkpoint")
    }
    assert links == {delivery_page("group", group.run_id, "orders")}
    with open_journal(dags.home / "journal.db") as journal:
        for where, result in (
            (link, xcom(one, "deliver")),
            (links.pop(), xcom(group, "orders.checkpoint")),
        ):
            found = _newest(journal, *asked(where))
            assert found is not None
            assert found.invocation_key == result["invocation_key"]


def test_the_link_is_there_while_the_task_runs(dags: DagHome) -> None:
    run = dags.run("looking")
    assert xcom(run, "looks")["seen"] == delivery_page("looking", run.run_id, "looks")


def test_a_task_that_was_refused_has_its_link_too(dags: DagHome) -> None:
    run = dags.run("refused")
    assert states(run) == {"deliver": "failed"}
    assert xcom(run, "deliver", DeliveryLink().xcom_key) == delivery_page("refused", run.run_id, "deliver")


def test_a_link_that_cannot_be_stored_stops_no_delivery(caplog: pytest.LogCaptureFixture) -> None:
    from airflow_dpone.operators import DeliverWindowOperator

    def refuse(**named: Any) -> None:
        raise OSError("hunter2")

    route: Any = {"source": "s", "source_table": ("a", "b"), "target": "t", "target_table": ("c", "d")}
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=3, xcom_push=refuse)
    context: Any = {"task": DeliverWindowOperator(task_id="t", **route), "ti": ti}
    offer_link(context)
    assert "hunter2" not in caplog.text
    pushed: dict[str, Any] = {}
    ti.xcom_push = lambda **named: pushed.update(named)
    offer_link(context)
    assert pushed == {"key": "_link_DeliveryLink", "value": delivery_page("d", "r", "t", 3)}


def test_names_are_quoted_and_a_server_below_a_path_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = ("a&b", "manual__2026-03-01T00:00:00+00:00", "x y")
    assert delivery_page(*odd).startswith("/dpone/delivery?")
    assert asked(delivery_page(*odd)) == (*odd, -1)
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.test/airflow/")
    assert delivery_page(*odd).startswith("/airflow/dpone/delivery?")
