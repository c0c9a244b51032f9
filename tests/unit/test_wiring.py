"""What ``deliver`` and ``plan`` refuse before they open anything."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone import Requester, Route, Window, deliver, plan, wiring
from airflow_dpone.call_checks import Places
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.spool.local import LocalSpool
from airflow_dpone.spool.object_storage import ObjectSpool

DAY = Window(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
ROUTE: dict[str, Any] = {
    "source": "chdb:///nowhere/shop",
    "source_table": ("shop", "orders"),
    "target": "duckdb:///nowhere/warehouse.duckdb",
    "target_table": ("sales", "orders"),
    "window_column": "ordered",
}


def refused(tmp_path: Path, route: dict[str, Any] | None = None, **changed: Any) -> dict[str, str]:
    """Where -> code of the refusal."""
    asked: dict[str, Any] = {
        "journal": tmp_path / "journal.db",
        "spool": tmp_path / "spool",
        "requester": Requester("d", "r", "t"),
        **changed,
    }
    with pytest.raises(ConfigurationError) as caught:
        deliver(Route(**{**ROUTE, **(route or {})}), DAY, **asked)
    return {problem.where: problem.code for problem in caught.value.problems}


def test_the_call_itself_is_checked_all_at_once(tmp_path: Path) -> None:
    found = refused(tmp_path, spool="spool", deadline_sec=0, lease_ttl_sec=1, custody_wait_sec=-1)
    assert set(found) == {"spool", "deadline_sec", "lease_ttl_sec", "custody_wait_sec"}


def test_a_target_s_connection_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tmp_path, {"target": "not_there"}) == {"target": "dpone.config.connection"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "mssql://loader:hunter2@sql.example:1444/dwh")
    found = wiring.sql_server("warehouse")
    assert (str(found), found.user, found.password) == ("sql.example,1444/dwh", "loader", "hunter2")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "postgres://loader:hunter2@sql.example/dwh")
    refusal = refused(tmp_path, {"target": "other", "writer": "embedded"})
    assert refusal == {"connection other": "dpone.config.connection", "writer": "dpone.config.writer"}


def test_parameters_and_connections_are_refused_together(tmp_path: Path) -> None:
    """A wrong parameter hides no missing connection; a plan says what is its own."""
    route = {"source": "no_shop", "target": "no_warehouse", "strategy": "full_refresh", "writer": "bcp"}
    of_the_route = {
        "source": "dpone.config.connection",
        "target": "dpone.config.connection",
        "window": "dpone.config.window",
        "writer": "dpone.config.later",
    }
    found = refused(
        tmp_path,
        route,
        journal="journal.db",
        spool="s3://bucket/x?a=b",
        spool_conn_id="no_store",
        deadline_sec=0,
        requester="me",
    )
    assert found == {
        **of_the_route,
        "journal": "dpone.config.field",
        "spool": "dpone.config.uri",
        "spool_conn_id": "dpone.config.connection",
        "deadline_sec": "dpone.config.field",
        "requester": "dpone.config.field",
    }
    refusals = plan(Route(**{**ROUTE, **route}), DAY).refusals
    assert {problem.where: problem.code for problem in refusals} == of_the_route


def test_extras_of_both_connections_are_refused_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, kind in (("SHOP", "clickhouse"), ("WAREHOUSE", "mssql")):
        named = {"conn_type": kind, "host": "x.example", "login": "me", "password": "pw", "schema": "dwh"}
        extra = {"secure": "perhaps", "encrypt": "perhaps"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({**named, "extra": extra}))
    assert refused(tmp_path, {"source": "shop", "target": "warehouse"}, deadline_sec=0) == {
        "connection shop, secure": "dpone.config.connection",
        "connection shop, encrypt": "dpone.config.connection",
        "connection warehouse, encrypt": "dpone.config.connection",
        "deadline_sec": "dpone.config.field",
    }


def test_nothing_is_said_of_a_writer_while_nobody_knows_the_target(tmp_path: Path) -> None:
    found = refused(tmp_path, {"target": "not_there", "writer": "embedded", "limits": {"parallelism": 2}})
    assert found == {"target": "dpone.config.connection"}


def test_a_server_s_uri_is_checked_with_the_rest(tmp_path: Path) -> None:
    found = refused(tmp_path, {"target": "mssql://sql.example/dwh", "writer": "embedded"})
    assert found == {"target": "dpone.config.uri", "writer": "dpone.config.writer"}


def test_a_recovery_opens_the_target_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_dpone.journal.migrate import migrate
    from airflow_dpone.target_embedded.target import EmbeddedTarget
    from airflow_dpone.target_sqlserver.target import SqlServerTarget

    journal = tmp_path / "journal.db"
    migrate(journal, host="test-host")
    places = Places(journal, tmp_path / "spool", "test-host")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "mssql://loader:hunter2@sql.example:1444/dwh")
    for named, kind in (
        (f"duckdb://{tmp_path}/warehouse.duckdb", EmbeddedTarget),
        ("mssql://loader@localhost/dwh", SqlServerTarget),
        ("warehouse", SqlServerTarget),
    ):
        with wiring.open_recovery(named, places) as ports:
            assert isinstance(ports.target, kind)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("mssql://loader:hunter2@localhost/dwh", "dpone.config.secret_in_uri"),
        ("duckdb://loader:hunter2@/warehouse.duckdb", "dpone.config.secret_in_uri"),
        ("chdb:///nowhere/shop", "dpone.config.uri"),
        ("not_there", "dpone.config.connection"),
    ],
)
def test_a_recovery_refuses_the_targets_that_a_route_refuses(tmp_path: Path, target: str, code: str) -> None:
    with (
        pytest.raises(ConfigurationError) as caught,
        wiring.open_recovery(target, Places(tmp_path / "journal.db", tmp_path / "spool")),
    ):
        pytest.fail("opened")
    assert [(problem.where, problem.code) for problem in caught.value.problems] == [("target", code)]
    assert "hunter2" not in str(caught.value)


def test_a_server_has_a_writer_of_its_own() -> None:
    from airflow_dpone.bulk_writer.writer import TdsWriter
    from airflow_dpone.target_sqlserver.target import SqlServerTarget

    route = Route(**{**ROUTE, "target": "mssql://loader@localhost/dwh"})
    target, writer = wiring._target_and_writer(route)
    assert isinstance(target, SqlServerTarget)
    assert isinstance(writer, TdsWriter)


def test_a_connection_may_name_an_embedded_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def named(conn_id: str, host: str, engine: str) -> None:
        stored = json.dumps({"conn_type": "dponeembedded", "host": host, "extra": {"engine": engine}})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", stored)

    named("SHOP", "/data/shop", "chdb")
    named("WAREHOUSE", "/data/warehouse.duckdb", "duckdb")
    route = Route(**{**ROUTE, "source": "shop", "target": "warehouse"})
    target, writer = wiring._target_and_writer(route)
    assert target is writer
    assert target.path == "/data/warehouse.duckdb"
    assert route.effective_source_name == "shop"
    assert refused(tmp_path, {"source": "shop", "target": "warehouse", "writer": "tds"}) == {
        "writer": "dpone.config.writer"
    }
    swapped = refused(tmp_path, {"source": "warehouse", "target": "shop"})
    assert swapped == {
        "connection warehouse": "dpone.config.connection",
        "connection shop": "dpone.config.connection",
    }


def test_a_requester_has_all_its_names() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Requester("", "r", "")
    assert [problem.where for problem in caught.value.problems] == ["requester.dag_id", "requester.task_id"]


def test_what_describes_a_try_is_checked_before_it_can_become_an_event() -> None:
    wrong: dict[str, Any] = {
        "map_index": 2**60,
        "try_number": "1",
        "max_tries": 1.5,
        "ti_id": None,
        "delivery_task_id": "",
        "run_id": "half \ud83d of a pair",
    }
    with pytest.raises(ConfigurationError) as caught:
        Requester(**{"dag_id": "d", "task_id": "t", **wrong})
    assert {problem.where for problem in caught.value.problems} == {f"requester.{name}" for name in wrong}


@pytest.mark.parametrize(
    ("spool", "code"),
    [
        ("s3://key:secret@bucket/x", "dpone.config.secret_in_uri"),
        ("s3://bucket/x?a=b", "dpone.config.uri"),
        ("file://relative/x", "dpone.config.uri"),
    ],
)
def test_a_url_of_an_object_store_is_checked_with_the_rest_of_the_call(
    tmp_path: Path, spool: str, code: str
) -> None:
    found = refused(tmp_path, spool=spool, deadline_sec=0)
    assert found == {"spool": code, "deadline_sec": "dpone.config.field"}


def test_a_connection_belongs_to_a_url(tmp_path: Path) -> None:
    assert refused(tmp_path, spool_conn_id="aws_default") == {"spool_conn_id": "dpone.config.field"}


@pytest.mark.parametrize("spool", ["s3:/bucket/x", "spool"])
def test_what_is_neither_a_url_nor_an_absolute_path_is_refused(tmp_path: Path, spool: str) -> None:
    """A URL that went through Path lost a slash."""
    assert refused(tmp_path, spool=Path(spool)) == {"spool": "dpone.config.field"}


def test_a_spool_is_chosen_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    for spool, kind in ((str(tmp_path / "a"), LocalSpool), (f"file://{tmp_path}/b", ObjectSpool)):
        opened = wiring._open_spool(Places("/journal.db", spool))
        assert type(opened) is kind
        with opened:
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "airflow", "b"]
    assert [path.name for path in (tmp_path / "airflow" / "dpone").iterdir()] == ["spool_cache"]


def test_wrong_kinds_are_named_instead_of_raised(tmp_path: Path) -> None:
    found = refused(tmp_path, journal=None, spool=5, deadline_sec="60", lease_ttl_sec=True, requester="me")
    assert set(found) == {"journal", "spool", "deadline_sec", "lease_ttl_sec", "requester"}
    assert refused(tmp_path, journal="journal.db") == {"journal": "dpone.config.field"}


def test_what_route_and_window_say_together_is_checked_before_anything_opens(tmp_path: Path) -> None:
    found = refused(tmp_path, {"strategy": "full_refresh", "writer": "bcp", "limits": {"parallelism": 2}})
    assert found == {
        "window": "dpone.config.window",
        "writer": "dpone.config.later",
        "limits.parallelism": "dpone.config.field",
    }


def test_what_only_a_server_needs_is_refused_for_an_embedded_target() -> None:
    """``target init`` says that there is nothing to do, not that the address of a server is wrong."""
    with pytest.raises(
        ConfigurationError, match="is an embedded target: there is nothing to prepare"
    ) as raised:
        wiring.sql_server("duckdb:///warehouse.duckdb")
    assert [problem.where for problem in raised.value.problems] == ["target"]
