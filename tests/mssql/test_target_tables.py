"""Whole deliveries into tables that are not the plainest ones, and what their readers see meanwhile. [E]"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyodbc
import pytest

from airflow_dpone.errors import ConfigurationError, TargetRejected
from airflow_dpone.settings import Limits
from tests.contract.target_cases import sorted_rows
from tests.fakes.world import orders, requester
from tests.mssql import server
from tests.mssql.lab import MssqlLab
from tests.mssql.world import OUTSIDE, MssqlWorld

EXPECTED = sorted_rows([*OUTSIDE, *[tuple(row) for row in orders(6)]])


@pytest.fixture
def world(tmp_path: Path, mssql_lab: MssqlLab) -> MssqlWorld:
    return MssqlWorld.on(tmp_path / "world", mssql_lab)


def needs_server(world: MssqlWorld, why: str) -> None:
    if world.lab.is_standin:
        pytest.skip(f"capability gap: UNVERIFIED without SQL Server: {why}")


def test_a_duplicate_in_a_unique_index_is_a_data_error(world: MssqlWorld) -> None:
    """[E6] Rolled back with its own number; the window stays as it was."""
    world.lab.run("CREATE UNIQUE INDEX one_each ON [shop].[orders] (id)")
    world.source.edit(rows=[*orders(3), *orders(1)])
    with pytest.raises(TargetRejected) as caught:
        world.deliver()
    assert (caught.value.code, caught.value.state_after) == ("dpone.publish.constraint", "FAILED")
    assert caught.value.fields["error_number"] in (2601, 2627)
    assert world.rows() == sorted_rows(OUTSIDE)


def test_indexed_views_and_filtered_indexes_are_kept_up(world: MssqlWorld) -> None:
    """[E7] Seven SET options must be as they were made with, or INSERT and DELETE fail with 1934."""
    needs_server(world, "the stand-in has no indexed views")
    world.lab.run(
        "CREATE VIEW [shop].[per_customer] WITH SCHEMABINDING AS SELECT customer, COUNT_BIG(*) AS n "
        "FROM [shop].[orders] GROUP BY customer"
    )
    world.lab.run("CREATE UNIQUE CLUSTERED INDEX made ON [shop].[per_customer] (customer)")
    world.lab.run("CREATE INDEX paid_ones ON [shop].[orders] (id) WHERE paid = 1")
    try:
        world.deliver()
        assert world.rows() == EXPECTED
        assert world.lab.run("SELECT SUM(n) FROM [shop].[per_customer] WITH (NOEXPAND)") == [(len(EXPECTED),)]
    finally:
        world.lab.run("DROP VIEW [shop].[per_customer]")


def test_a_filtered_index_is_kept_up(world: MssqlWorld) -> None:
    """[E7] The half of it that the stand-in has."""
    world.lab.run("CREATE INDEX paid_ones ON [shop].[orders] (id) WHERE paid = 1")
    world.deliver()
    assert world.rows() == EXPECTED


class Reader:
    """Counts the table's rows again and again in a session of its own, under one isolation level."""

    def __init__(self, world: MssqlWorld, isolation: str) -> None:
        self.seen: list[int] = []
        self._connection = server.connect(world.where)
        self._connection.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while not self._stop.is_set():
            with suppress(pyodbc.Error):  # a deadlock's victim reads again
                found = self._connection.execute("SELECT COUNT(*) FROM [shop].[orders]").fetchone()
                self.seen.append(int(found[0]))

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()


@pytest.fixture
def snapshots(world: MssqlWorld) -> Iterator[None]:
    """Snapshots, where the server has to be told."""
    name = world.where.database
    if not world.lab.is_standin:
        admin = server.connect(replace(world.where, database="master"))
        admin.execute(f"ALTER DATABASE [{name}] SET ALLOW_SNAPSHOT_ISOLATION ON")
        admin.close()
    return


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SNAPSHOT"])
def test_readers_see_the_old_window_or_the_new_one(
    world: MssqlWorld, snapshots: None, isolation: str
) -> None:
    """[E9] Never something between, while 3,000 rows become 2,000 and 3,000 again. Who waits, and for how
    long, the stand-in does not show: it has row versions only."""
    if isolation != "READ COMMITTED":
        needs_server(world, f"the stand-in has no {isolation} as SQL Server means it")
    counts = [3000, 2000]
    world.limits = Limits(max_rows=4000)
    world.source.edit(rows=orders(counts[0]))
    world.deliver(requester("run-0"))
    with Reader(world, isolation) as reader:
        for number in range(1, 5):
            world.source.edit(rows=orders(counts[number % 2]))
            world.deliver(requester(f"run-{number}"))
    assert reader.seen
    assert set(reader.seen) <= {count + len(OUTSIDE) for count in counts}


def test_a_partitioned_table_is_delivered_into_like_any_other(world: MssqlWorld) -> None:
    """[E13] A window inside a partition, and one behind the last boundary."""
    needs_server(world, "the stand-in has no partition schemes")
    world.lab.run(
        "CREATE PARTITION FUNCTION [by_day] (datetime2(6)) AS RANGE RIGHT FOR VALUES ('2025-01-01T00:00:00')"
    )
    world.lab.run("CREATE PARTITION SCHEME [by_day] AS PARTITION [by_day] ALL TO ([PRIMARY])")
    world.lab.run("CREATE CLUSTERED INDEX by_time ON [shop].[orders] ([at]) ON [by_day] ([at])")
    try:
        world.deliver()
        assert world.rows() == EXPECTED
    finally:
        world.lab.drop_table("orders")
        world.lab.run("DROP PARTITION SCHEME [by_day]")
        world.lab.run("DROP PARTITION FUNCTION [by_day]")


@pytest.mark.parametrize("setting", ["SET DATEFORMAT dmy", "SET LANGUAGE German"])
def test_bounds_depend_on_no_setting_of_the_login(world: MssqlWorld, setting: str) -> None:
    """[E12] The texts of the bounds mean the same in a session that reads dates otherwise."""
    connection = server.connect(world.where)
    with suppress(pyodbc.Error):  # the stand-in knows one language
        connection.execute(setting)
    text = (
        "SELECT COUNT(*) FROM [shop].[orders] WHERE [at] >= CONVERT(datetime2(6), ?, 126) "
        "AND [at] < CONVERT(datetime2(6), ?, 126)"
    )
    world.deliver()
    bounds = ("2025-01-01T00:00:00.000000", "2025-01-02T00:00:00.000000")
    assert connection.execute(text, *bounds).fetchone()[0] == 6
    connection.close()


class Stopped(BaseException):
    """The process ends here."""


def test_a_table_that_changed_under_an_open_delivery_ends_it_with_the_difference(world: MssqlWorld) -> None:
    """Nothing more is loaded; the next call plans with the table as it is and names what it does not feed."""

    def stop(point: str) -> None:
        if point == "before_target_build_prepared":
            raise Stopped

    with pytest.raises(Stopped):
        world.deliver(observer=stop)
    world.lab.run("ALTER TABLE [shop].[orders] ALTER COLUMN note nvarchar(20)")
    world.lab.run("ALTER TABLE [shop].[orders] ADD added int NULL")
    with pytest.raises(TargetRejected) as caught:
        world.deliver(requester(try_number=2, ti_id="two"))
    assert (caught.value.code, caught.value.state_after) == ("dpone.target.drift", "FAILED")
    for text in ("added is new (int NULL)", "note is nvarchar(20) NULL, planned as nvarchar(max) NULL"):
        assert text in caught.value.message
    assert world.lab.stage_names() == []
    with pytest.raises(ConfigurationError) as refused:
        world.deliver(requester(try_number=3, ti_id="three"))
    assert [problem.where for problem in refused.value.problems] == ["added"]


def test_a_table_that_changes_in_the_last_moment_is_told_by_the_publication(world: MssqlWorld) -> None:
    def change(point: str) -> None:
        if point == "before_target_publish":
            world.lab.run("ALTER TABLE [shop].[orders] DROP COLUMN note")

    with pytest.raises(TargetRejected) as caught:
        world.deliver(observer=change)
    assert (caught.value.code, caught.value.state_after) == ("dpone.publish.target_changed", "FAILED")
    assert "note is gone (it was nvarchar(max) NULL)" in caught.value.message
    assert world.lab.count_receipts() == 0
