"""A person's way in a real browser: sign in, open the task, follow its link, see the delivery, keep it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from airflow_dpone.journal.migrate import migrate
from tests.crash import embedded_world
from tests.servers import chromium
from tests.servers.airflow_home import AirflowHome

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.timeout(1800)

NAMED_LIKE_A_TAG = "<b onclick=alert(1)>orders</b><script>document.title='taken'</script>"
DAGS = """
import os, signal
from airflow.sdk import DAG
from airflow_dpone.operators import DeliverWindowOperator

HOME = {home!r}
ROUTE = dict(source="shop", source_table=("shop", "orders"), target="warehouse", window_column="ordered",
             window_start="2026-03-02T00:00:00Z", window_end="2026-03-03T00:00:00Z",
             limits=dict(max_rows=8), quality=dict(not_null=["id"]))

class Dies(DeliverWindowOperator):
    def work(self, context):
        os.kill(os.getpid(), signal.SIGKILL)

with DAG("orders", schedule=None):
    DeliverWindowOperator(task_id="deliver", target_table=("sales", "orders"), **ROUTE)
with DAG("secret", schedule=None):
    DeliverWindowOperator(task_id="deliver", target_table=("sales", {odd!r}), **ROUTE)
with DAG("killed", schedule=None):
    Dies(task_id="deliver", target_table=("sales", "orders"), **ROUTE)
"""


@dataclass
class Site:
    """A running Airflow with three runs in it."""

    address: str
    home: Path
    runs: dict[str, str]

    def task(self, dag_id: str) -> str:
        """The page of the task instance, at the tab that shows extra links."""
        return f"{self.address}/dags/{dag_id}/runs/{quote(self.runs[dag_id], safe='')}/tasks/deliver/details"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Everything is configured as a user would: connections, section [dpone], two users."""
    lack = chromium.missing()
    if lack is not None:
        pytest.skip(lack)
    root = tmp_path_factory.mktemp("site")
    embedded_world.create(root)
    embedded_world.in_warehouse(root, f'CREATE TABLE sales."{NAMED_LIKE_A_TAG}" AS FROM sales.orders LIMIT 0')
    migrate(root / "journal.db")
    passwords = root / "passwords.json"
    passwords.write_text(json.dumps({"admin": "of-admin", "bob": "of-bob"}))

    def named(kind: str, host: Path, **extra: str) -> str:
        return json.dumps({"conn_type": kind, "host": str(host), "extra": extra})

    home = AirflowHome.create(
        root / "airflow",
        AIRFLOW_CONN_DPONE_JOURNAL=named("dponejournal", root / "journal.db"),
        AIRFLOW_CONN_SHOP=named("dponeembedded", root / "shop", engine="chdb"),
        AIRFLOW_CONN_WAREHOUSE=named("dponeembedded", root / "warehouse.duckdb", engine="duckdb"),
        AIRFLOW__CORE__AUTH_MANAGER="tests.servers.two_users.TwoUsers",
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS="admin:admin,bob:viewer",
        AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE=str(passwords),
        AIRFLOW__API_AUTH__JWT_SECRET="of this test only " * 4,
        AIRFLOW__API__SECRET_KEY="of this test only",
    )
    (home.path / "dags" / "orders.py").write_text(DAGS.format(home=str(root), odd=NAMED_LIKE_A_TAG))
    home.said("dags", "reserialize")
    for dag_id in ("orders", "secret"):
        home.said("dags", "test", dag_id)
    killed = home.run("dags", "test", "killed")
    assert killed.returncode == -signal.SIGKILL
    with sqlite3.connect(home.path / "airflow.db") as database:
        runs = dict(database.execute("SELECT dag_id, run_id FROM dag_run").fetchall())
    with home.serving() as address:
        yield Site(address, root, runs)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    """One browser, one session."""
    (tmp_path / "downloads").mkdir()
    with chromium.browsing(tmp_path / "profile", tmp_path / "downloads") as found:
        yield found


def until(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The first answer that is not empty."""
    from selenium.common.exceptions import WebDriverException

    give_up, last = time.monotonic() + seconds, None
    while time.monotonic() < give_up:
        try:
            answer = what()
        except WebDriverException as error:
            answer, last = None, error
        if answer:
            return answer
        time.sleep(0.2)
    raise AssertionError(f"waited {seconds:g} s in vain: {last}")


def sign_in(browser: Chrome, site: Site, user: str) -> None:
    browser.get(site.address)
    until(lambda: browser.find_element("css selector", "input[name=username]")).send_keys(user)
    browser.find_element("css selector", "input[name=password]").send_keys(f"of-{user}")
    browser.find_element("css selector", "button[type=submit]").click()
    until(lambda: "/auth/login" not in browser.current_url)


def follow_link(browser: Chrome, site: Site, dag_id: str) -> None:
    browser.get(site.task(dag_id))
    until(lambda: browser.find_element("link text", "Delivery")).click()
    until(lambda: "/dpone/delivery" in browser.current_url)


def text_of(browser: Chrome) -> str:
    return str(until(lambda: browser.find_element("tag name", "main").text))


def keep_picture(browser: Chrome, name: str) -> None:
    """For a person's eyes, where somebody asks for it."""
    folder = os.environ.get("DPONE_TEST_PICTURES")
    if folder:
        size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        shot = browser.execute_cdp_cmd(
            "Page.captureScreenshot",
            {
                "captureBeyondViewport": True,
                "clip": {"x": 0, "y": 0, "scale": 1, **{k: size[k] for k in ("width", "height")}},
            },
        )
        Path(folder, f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


def test_from_the_task_to_its_evidence(site: Site, browser: Chrome, tmp_path: Path) -> None:
    sign_in(browser, site, "admin")
    browser.get(site.task("orders"))
    until(lambda: browser.find_element("link text", "Delivery"))
    keep_picture(browser, "task")
    follow_link(browser, site, "orders")
    browser.get_log("browser")  # what Airflow's own pages said before
    browser.refresh()
    said = text_of(browser)
    for text in (
        "sales.orders",
        "COMPLETED",
        "12 rows in 2 chunks",
        "The digests agree",
        "Download the evidence",
    ):
        assert text in said
    keep_picture(browser, "delivery")
    browser.find_element("link text", "Download the evidence").click()
    downloads = tmp_path / "downloads"
    (kept,) = until(lambda: [path for path in downloads.iterdir() if path.suffix == ".json"])
    assert hashlib.sha256(kept.read_bytes()).hexdigest() in said
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_a_killed_task_has_its_link(site: Site, browser: Chrome) -> None:
    sign_in(browser, site, "admin")
    follow_link(browser, site, "killed")
    assert "The journal knows no delivery of this task" in text_of(browser)


def test_a_name_like_a_tag_is_only_text(site: Site, browser: Chrome) -> None:
    sign_in(browser, site, "admin")
    follow_link(browser, site, "secret")
    assert NAMED_LIKE_A_TAG in text_of(browser)
    assert browser.title.startswith("COMPLETED sales.")


def test_a_user_who_may_not_see_the_dag_sees_nothing_of_it(site: Site, browser: Chrome) -> None:
    sign_in(browser, site, "bob")
    follow_link(browser, site, "orders")
    assert "COMPLETED" in text_of(browser)
    browser.get(
        f"{site.address}/dpone/delivery?dag_id=secret&run_id={quote(site.runs['secret'])}&task_id=deliver"
    )
    assert text_of(browser).splitlines()[:2] == ["dpone", "Not for you"]


def test_the_page_follows_the_screen(site: Site, browser: Chrome) -> None:
    """Light and dark as the system says; nothing is cut off on a telephone."""
    sign_in(browser, site, "admin")
    follow_link(browser, site, "orders")
    grounds = set()
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        grounds.add(browser.find_element("tag name", "body").value_of_css_property("background-color"))
        keep_picture(browser, scheme)
    assert len(grounds) == 2
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    keep_picture(browser, "telephone")
    assert browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]["width"] == 390
