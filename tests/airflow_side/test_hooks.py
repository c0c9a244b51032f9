"""What the test button says of a journal and of an embedded engine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.embedded_lock import EmbeddedLock
from airflow_dpone.hooks.embedded import EmbeddedHook
from airflow_dpone.hooks.journal import JournalHook
from airflow_dpone.journal.migrate import migrate
from tests.crash import embedded_world

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chDB directory and a DuckDB file; the tests only open them."""
    shop = tmp_path_factory.mktemp("shop")
    embedded_world.create(shop)
    return shop


def tried(hook: type[Any], monkeypatch: pytest.MonkeyPatch, **fields: Any) -> tuple[bool, str]:
    monkeypatch.setenv("AIRFLOW_CONN_TRIED", json.dumps({"conn_type": hook.conn_type, **fields}))
    answer: tuple[bool, str] = hook("tried").test_connection()
    return answer


@pytest.mark.parametrize(
    ("host", "extra", "good", "said"),
    [
        ("shop", {"engine": "chdb"}, True, "opened the directory"),
        ("warehouse.duckdb", {"engine": "duckdb"}, True, "opened the file"),
        ("shop", {"engine": "duckdb"}, False, "There is no file"),
        ("warehouse.duckdb", {"engine": "chdb"}, False, "is no directory"),
        ("orders.txt", {"engine": "duckdb"}, False, "is no DuckDB database"),
        ("shop", {"engine": "sqlite"}, False, "engine must be one of chdb, duckdb"),
        ("shop", {}, False, "engine must be one of chdb, duckdb"),
        ("shop", {"engine": "chdb", "mode": "fast"}, False, "its extra mode is not known"),
    ],
)
def test_an_embedded_engine_is_opened_by_a_process_of_its_own(
    shop: Path, host: str, extra: dict[str, str], good: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "orders.txt").write_text("no database")
    answer = tried(EmbeddedHook, monkeypatch, host=str(shop / host), extra=extra)
    assert answer[0] is good, answer
    assert said in answer[1]


def test_an_engine_that_is_in_use_is_left_alone(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shop / "warehouse.duckdb"
    with EmbeddedLock(f"{os.path.realpath(path)}.dpone.lock", 0):
        good, said = tried(EmbeddedHook, monkeypatch, host=str(path), extra={"engine": "duckdb"})
    assert not good
    assert f"in use by process {os.getpid()}" in said


def test_a_journal_says_which_one_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = migrate(tmp_path / "journal.db")
    good, said = tried(JournalHook, monkeypatch, host=str(tmp_path / "journal.db"))
    assert good
    assert str(made.journal_id) in said


def test_a_journal_that_is_not_ready_names_the_command_with_no_made_up_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The button tries a connection under a random id."""
    (tmp_path / "empty.db").touch()
    for name in ("empty.db", "missing.db"):
        good, said = tried(JournalHook, monkeypatch, host=str(tmp_path / name))
        assert not good
        assert "airflow dpone db migrate --journal-conn-id ID" in said
        assert "tried" not in said.replace(str(tmp_path), "")


def test_a_journal_of_another_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(tmp_path / "journal.db", host="worker-1")
    good, said = tried(JournalHook, monkeypatch, host=str(tmp_path / "journal.db"))
    assert not good
    assert "dpone.journal.other_host" in said
    monkeypatch.setenv("AIRFLOW__DPONE__HOST_ID", "worker-1")
    assert tried(JournalHook, monkeypatch, host=str(tmp_path / "journal.db"))[0]


def test_a_journal_without_a_server_says_so_and_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    good, said = tried(
        JournalHook,
        monkeypatch,
        host="127.0.0.1",
        port=9,
        login="me",
        password="hunter2",
        schema="journal",
        extra={"connect_timeout": 2},
    )
    assert not good
    assert "dpone.journal.unavailable" in said
    assert "hunter2" not in said
