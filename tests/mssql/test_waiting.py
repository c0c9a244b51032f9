"""Sensors on a SQL Server target: it is asked for its key, and the journal for the rest."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.errors import ConfigurationError
from airflow_dpone.sensors import CustodyClearSensor, WindowDeliveredSensor
from tests.fakes.world import DAY, HOST, NEXT_DAY, TABLE
from tests.mssql.lab import MssqlLab
from tests.mssql.server import airflow_connection
from tests.mssql.world import MssqlWorld


@pytest.fixture
def world(tmp_path: Path, mssql_lab: MssqlLab, monkeypatch: pytest.MonkeyPatch) -> MssqlWorld:
    """A delivered day, and the connection `warehouse`."""
    made = MssqlWorld.on(tmp_path / "world", mssql_lab)
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", airflow_connection(made.where))
    return made


def seen(world: MssqlWorld, kind: Any, **fields: Any) -> Any:
    """The event that a sensor's trigger sends at its first look."""
    sensor = kind(
        task_id="wait",
        target="warehouse",
        target_table=("shop", TABLE),
        journal=str(world.journal_path),
        host_id=HOST,
        **fields,
    )
    trigger = sensor.trigger({}, time.time())
    assert world.where.password not in repr(trigger)

    async def run() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    return asyncio.run(run())[0]


def test_a_delivered_window_and_a_free_target_are_found(world: MssqlWorld) -> None:
    world.deliver()
    for window, status in ((DAY, "delivered"), (NEXT_DAY, "timeout")):
        bounds = {"window_start": window.start, "window_end": window.end}
        assert seen(world, WindowDeliveredSensor, **bounds)["status"] == status
    assert seen(world, CustodyClearSensor) == {"status": "clear", "holder": {}}


def test_an_unfinished_delivery_is_named(world: MssqlWorld) -> None:
    def die(point: str) -> None:
        if point == "after_target_claim_gate":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.deliver(observer=die)
    event = seen(world, CustodyClearSensor)
    assert (event["status"], event["holder"]["dag_id"], event["holder"]["state"]) == (
        "timeout",
        "shop",
        "PLANNED",
    )


def test_a_database_that_is_not_ready_says_what_makes_it_ready(world: MssqlWorld) -> None:
    world.lab.run("DELETE FROM [dpone].[installation]")
    with pytest.raises(ConfigurationError) as caught:
        seen(world, CustodyClearSensor)
    assert caught.value.code == "dpone.target.not_initialised"
    assert "target init" in caught.value.next_action
