"""The plugin's pages inside Airflow's own API server application: who may see what, and that nothing runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_dpone.links.delivery import delivery_page
from tests.conftest import AIRFLOW_HOME
from tests.fakes.world import DAY, HOST, TARGET_COLUMNS, World, requester
from tests.servers.two_users import DENIED

pytestmark = pytest.mark.timeout(900)

SCRIPT = "<script>alert('orders')</script>"
PASSWORDS = {"admin": "of-admin", "bob": "of-bob"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Deliveries of three DAGs, one of them with a table that is named like a script."""
    world = World.create(tmp_path_factory.mktemp("world"))
    world.target.add_table("dbo", SCRIPT, TARGET_COLUMNS)
    world.target.add_table("dbo", "salaries", TARGET_COLUMNS)
    world.deliver()
    world.deliver(requester(f"run of {SCRIPT}"), route=world.route(target_table=("dbo", SCRIPT)))
    secret = requester("run-1", dag_id=DENIED, task_id="publish", delivery_task_id="load.orders")
    world.deliver(secret, route=world.route(target_table=("dbo", "salaries")))
    return world


@pytest.fixture(scope="module")
def app(world: World) -> Iterator[Any]:
    """The application that ``airflow api-server`` serves, with its plugins."""
    from airflow.api_fastapi import app as airflow_app
    from airflow.utils.db import initdb

    passwords = AIRFLOW_HOME / "passwords.json"
    passwords.write_text(json.dumps(PASSWORDS))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AIRFLOW__CORE__AUTH_MANAGER": "tests.servers.two_users.TwoUsers",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,bob:viewer",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__API_AUTH__JWT_SECRET": "of this test only " * 4,
            "AIRFLOW__DPONE__JOURNAL_CONN_ID": "audit",
            "AIRFLOW__DPONE__HOST_ID": HOST,
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW_CONN_AUDIT": json.dumps({"conn_type": "dponejournal", "host": str(world.journal_path)}),
            "_AIRFLOW_PROCESS_CONTEXT": "server",
        }.items():
            patch.setenv(name, value)
        initdb()
        airflow_app.purge_cached_app()
        yield airflow_app.create_app("core")
        airflow_app.purge_cached_app()


@pytest.fixture(scope="module")
def clients(app: Any) -> Iterator[dict[str, TestClient]]:
    """Three browsers: of nobody, of admin, of bob."""
    with TestClient(app, raise_server_exceptions=False) as anybody:
        found = {"nobody": anybody}
        for name, password in PASSWORDS.items():
            said = anybody.post("/auth/token", json={"username": name, "password": password})
            assert said.status_code == 201, said.text
            client = TestClient(app, raise_server_exceptions=False)
            client.cookies.set("_token", said.json()["access_token"])
            found[name] = client
        yield found


def key_of(world: World, dag_id: str) -> str:
    query = "SELECT invocation_key FROM dpone_invocation WHERE dag_id = ? AND run_id = 'run-1'"
    with sqlite3.connect(world.journal_path) as journal:
        return str(journal.execute(query, (dag_id,)).fetchone()[0])


SHOP = delivery_page("shop", "run-1", "deliver_orders")


def test_the_page_of_a_task_shows_its_newest_delivery(clients: dict[str, TestClient], world: World) -> None:
    page = clients["admin"].get(SHOP)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    for text in (
        "dbo.orders",
        "COMPLETED",
        "Receipt and evidence",
        "The digests agree",
        "6 rows in 2 chunks",
    ):
        assert text in page.text
    assert key_of(world, "shop") in page.text
    assert str(world.root) not in page.text, "no path of the server"


def test_nobody_sees_nothing(clients: dict[str, TestClient], world: World) -> None:
    key = key_of(world, "shop")
    for address in (SHOP, f"/dpone/delivery/{key}", f"/dpone/delivery/{key}/evidence.json", "/dpone/x"):
        answer = clients["nobody"].get(address)
        assert answer.status_code in (401, 404)
        assert answer.status_code == 401 or address == "/dpone/x"
        assert key not in answer.text.replace(address, "")


def test_a_dag_that_the_user_may_not_see_is_refused(clients: dict[str, TestClient]) -> None:
    bob, admin = clients["bob"], clients["admin"]
    assert bob.get(SHOP).status_code == 200
    there = delivery_page(DENIED, "run-1", "load.orders.publish")
    assert admin.get(there).status_code == 200
    refused = [bob.get(there), bob.get(delivery_page(DENIED, "no such run", "x"))]
    assert [answer.status_code for answer in refused] == [403, 403]
    assert refused[0].text == refused[1].text, "the answer does not tell what exists"
    assert "salaries" not in refused[0].text


def test_the_journal_says_whose_delivery_it_is_not_the_address(
    clients: dict[str, TestClient], world: World
) -> None:
    """An id of another DAG looks like one that nobody has, for the page and for the evidence."""
    bob, key = clients["bob"], key_of(world, DENIED)
    assert clients["admin"].get(f"/dpone/delivery/{key}").status_code == 200
    for tail in ("", "/evidence.json", "?dag_id=shop", "/evidence.json?dag_id=shop"):
        foreign, unknown = (
            bob.get(f"/dpone/delivery/{key}{tail}"),
            bob.get(f"/dpone/delivery/{'0' * 64}{tail}"),
        )
        assert (foreign.status_code, unknown.status_code) == (404, 404)
        assert foreign.text == unknown.text
        assert dict(foreign.headers) == dict(unknown.headers)


def test_a_task_in_a_group_shows_the_groups_delivery(clients: dict[str, TestClient]) -> None:
    for task_id in ("load.orders", "load.orders.publish", "load.orders.deeper.still"):
        page = clients["admin"].get(delivery_page(DENIED, "run-1", task_id))
        assert page.status_code == 200
        assert "dbo.salaries" in page.text
    assert clients["admin"].get(delivery_page(DENIED, "run-1", "load")).status_code == 404


def test_a_placeholder_that_airflow_did_not_fill_is_no_map_index(clients: dict[str, TestClient]) -> None:
    asked = {"dag_id": "shop", "run_id": "run-1", "task_id": "deliver_orders", "map_index": "{MAP_INDEX}"}
    assert clients["admin"].get("/dpone/delivery", params=asked).status_code == 200
    assert clients["admin"].get("/dpone/delivery", params=asked | {"map_index": "0"}).status_code == 404
    assert clients["admin"].get("/dpone/delivery", params={"dag_id": "shop"}).status_code == 422


@pytest.mark.parametrize("index", ["--5", "-", "9" * 16, "\u0663", "1e3", "%00", ""])
def test_a_map_index_that_is_none_is_no_fault_of_the_server(
    clients: dict[str, TestClient], index: str
) -> None:
    asked = {"dag_id": "shop", "run_id": "run-1", "task_id": "deliver_orders", "map_index": index}
    assert clients["admin"].get("/dpone/delivery", params=asked).status_code == 200


@pytest.mark.parametrize("key", ["%00", "x", "A" * 64, "0" * 63, "0" * 65, "'--", "0" * 9999])
def test_what_is_no_key_is_answered_like_a_key_that_nobody_has(
    clients: dict[str, TestClient], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No database is asked for it: PostgreSQL would refuse a text with a zero byte."""
    monkeypatch.setattr("airflow_dpone.journal.store.SqlJournal.invocation", lambda *_: pytest.fail("asked"))
    for tail in ("", "/evidence.json"):
        assert clients["admin"].get(f"/dpone/delivery/{key}{tail}").status_code == 404


def test_a_name_that_is_a_script_is_only_text(clients: dict[str, TestClient]) -> None:
    page = clients["admin"].get(delivery_page("shop", f"run of {SCRIPT}", "deliver_orders"))
    assert page.status_code == 200
    assert "<script" not in page.text
    assert page.text.count("&lt;script&gt;") >= 2


def test_no_page_may_run_or_load_anything(clients: dict[str, TestClient]) -> None:
    answers = [
        clients["admin"].get(SHOP),
        clients["admin"].get("/dpone/delivery/x"),
        clients["nobody"].get(SHOP),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        for rule in (
            "default-src 'none'",
            "form-action 'none'",
            "base-uri 'none'",
            "sandbox allow-downloads",
        ):
            assert rule in policy
        assert "unsafe" not in policy
        assert "allow-scripts" not in policy
        assert "allow-same-origin" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        style = re.search(r"<style>(.*)</style>", answer.text, re.DOTALL)
        assert style is not None
        digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
        assert not re.search(r"<(script|iframe|form|link|img)\b|\sstyle=|\son\w+=", answer.text)


def test_the_evidence_is_the_document_that_the_journal_keeps(
    clients: dict[str, TestClient], world: World
) -> None:
    key = key_of(world, "shop")
    answer = clients["bob"].get(f"/dpone/delivery/{key}/evidence.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-disposition"].startswith("attachment;")
    sha256 = hashlib.sha256(answer.content).hexdigest()
    assert sha256 in clients["bob"].get(SHOP).text
    assert answer.json()["invocation"]["invocation_key"] in (
        key,
        answer.json()["invocation"]["invocation_key"],
    )
    assert answer.json()["window"] == DAY.key


def test_nothing_can_be_changed_and_nothing_else_is_served(clients: dict[str, TestClient]) -> None:
    admin = clients["admin"]
    for method in ("post", "put", "patch", "delete"):
        assert getattr(admin, method)(SHOP).status_code == 405
    for address in ("/dpone/docs", "/dpone/redoc", "/dpone/openapi.json", "/dpone/", "/dpone/static/x"):
        assert admin.get(address).status_code == 404


@pytest.mark.parametrize("place", ["missing.db", "garbage.db"])
def test_a_journal_that_cannot_be_read_is_a_code_and_no_path(
    clients: dict[str, TestClient], tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "garbage.db").write_text("no database" * 100)
    stored = json.dumps({"conn_type": "dponejournal", "host": str(tmp_path / place)})
    monkeypatch.setenv("AIRFLOW_CONN_AUDIT", stored)
    answer = clients["admin"].get(SHOP)
    assert answer.status_code == 503
    assert "dpone.journal." in answer.text
    assert str(tmp_path) not in answer.text


def test_a_damaged_chain_is_not_shown_as_a_delivery(
    clients: dict[str, TestClient], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = world.copy(tmp_path / "copy")
    with sqlite3.connect(copy.journal_path) as journal:
        journal.execute("UPDATE dpone_event SET body = replace(body, '\"rows\":6', '\"rows\":7')")
    stored = json.dumps({"conn_type": "dponejournal", "host": str(copy.journal_path)})
    monkeypatch.setenv("AIRFLOW_CONN_AUDIT", stored)
    answer = clients["admin"].get(SHOP)
    assert answer.status_code == 503
    assert "dpone.journal.chain_broken" in answer.text


# ---- the forms of our connection types, which the same application serves ----------------------------------


def test_the_forms_of_our_connection_types(clients: dict[str, TestClient]) -> None:
    answer = clients["admin"].get("/ui/connections/hook_meta")
    assert answer.status_code == 200
    forms = {form["connection_type"]: form for form in answer.json()}
    journal, embedded = forms["dponejournal"], forms["dponeembedded"]
    assert (journal["hook_name"], embedded["hook_name"]) == ("dpone journal", "dpone embedded engine")
    assert journal["standard_fields"]["host"]["title"] == "Host, or path of a SQLite file"
    assert set(journal["extra_fields"]) == {"sslmode", "sslrootcert", "options"}
    assert {name for name, field in embedded["standard_fields"].items() if field and field["hidden"]} == {
        "url_schema",
        "port",
        "login",
        "password",
    }
    assert embedded["extra_fields"]["engine"]["schema"]["enum"] == ["chdb", "duckdb"]


# Airflow's own route still does what Airflow deprecates.
@pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")
def test_the_button_tries_what_the_form_says(clients: dict[str, TestClient], world: World) -> None:
    form = {"connection_id": "new", "conn_type": "dponejournal", "host": str(world.journal_path)}
    with world.open_journal() as journal:
        journal_id = journal.journal_id
    for extra, good in (
        (None, True),
        (json.dumps({"sslmode": None, "sslrootcert": "", "options": None}), True),
    ):
        answer = clients["admin"].post("/api/v2/connections/test", json=form | {"extra": extra}).json()
        assert (answer["status"], journal_id in answer["message"]) == (good, good), answer
    wrong = form | {"host": str(world.root / "nothing.db")}
    answer = clients["admin"].post("/api/v2/connections/test", json=wrong).json()
    assert answer["status"] is False
    assert "airflow dpone db migrate --journal-conn-id ID" in answer["message"]
