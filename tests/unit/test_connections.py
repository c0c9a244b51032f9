"""Airflow connections, as Airflow finds them: here in the environment."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_dpone.connections import AirflowConnection, read_connection
from airflow_dpone.errors import ConfigurationError


def test_a_connection_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {
        "conn_type": "clickhouse",
        "host": "db",
        "port": 9000,
        "login": "me",
        "password": "hunter2",
        "schema": "shop",
        "extra": {"secure": True},
    }
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_CH", json.dumps(stored))
    found = read_connection("shop_ch", "source")
    assert found == AirflowConnection(
        "shop_ch", "clickhouse", "db", 9000, "me", "hunter2", "shop", {"secure": True}
    )
    assert "hunter2" not in repr(found)


def test_what_is_absent_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_CH", "clickhouse://db")
    assert read_connection("shop_ch", "source") == AirflowConnection("shop_ch", "clickhouse", "db")


def test_a_connection_that_is_not_there_is_named_with_the_field() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_connection("nobody_made_this", "source")
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("dpone.config.connection", "source")
    assert "nobody_made_this" in problem.message
    assert caught.value.next_action.startswith("Make the connection, correct its id")
    two = ConfigurationError.of([problem, replace(problem, where="target")])
    assert two.next_action == caught.value.next_action


@pytest.mark.parametrize("extra", ["{not json", "[1]", '"text"'])
def test_an_extra_that_is_no_object_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    """Airflow itself would go on without it: without TLS, for example."""
    stored = {"conn_type": "clickhouse", "host": "db", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_CH", json.dumps(stored))
    with pytest.raises(ConfigurationError, match="no JSON object"):
        read_connection("shop_ch", "source")
