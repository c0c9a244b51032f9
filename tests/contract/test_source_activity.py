"""What a source tells about inserts and mutations, over ClickHouse's engine: in this process, and behind the
native protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.source_clickhouse.activity import Activity
from tests.contract.chdb_world import ChdbWorld, EngineWorld
from tests.contract.native_world import NativeWorld

MARCH = datetime(2026, 3, 1, tzinfo=UTC)
DAY = Window(MARCH, MARCH + timedelta(days=1))
MONTHS = Window(MARCH, MARCH + timedelta(days=60))


@pytest.fixture(params=[ChdbWorld, NativeWorld], ids=["chdb", "native"])
def world(request: pytest.FixtureRequest) -> Iterator[EngineWorld]:
    """A database of its own."""
    made = request.param()
    yield made
    made.drop()


@pytest.fixture(autouse=True)
def months(world: EngineWorld) -> None:
    """A table by month, whose parts are not merged before a test says so."""
    world.table("k Int64, at DateTime('UTC')", rest="PARTITION BY toYYYYMM(at) ORDER BY k")
    world.execute(f"SYSTEM STOP MERGES {world.database}.t")


def insert(world: EngineWorld, key: int, at: str) -> None:
    world.execute(f"INSERT INTO {world.database}.t VALUES ({key}, '{at} 12:00:00')")


def activity(world: EngineWorld, window: Window = DAY) -> Activity:
    with world.source() as source:
        return source.activity(world.database, "t", "at", window)


def blocks(world: EngineWorld, window: Window = DAY) -> dict[str, int]:
    return {partition: insert.block for partition, insert in activity(world, window).newest.items()}


def test_an_insert_makes_a_greater_block_and_a_merge_does_not(world: EngineWorld) -> None:
    insert(world, 1, "2026-03-01")
    first = blocks(world)
    insert(world, 2, "2026-03-20")  # another day of the same partition
    second = blocks(world)
    assert list(first) == list(second) == ["202603"]
    assert second["202603"] > first["202603"]
    world.execute(f"SYSTEM START MERGES {world.database}.t")
    world.execute(f"OPTIMIZE TABLE {world.database}.t FINAL")
    assert blocks(world) == second


def test_the_age_is_that_of_the_insert_and_no_merge_makes_it_younger(world: EngineWorld) -> None:
    """As long as the part that the block came in is kept, which is for minutes."""
    insert(world, 1, "2026-03-01")
    insert(world, 2, "2026-03-01")
    time.sleep(2.2)
    before = activity(world).newest["202603"]
    assert 1 <= before.age_sec < 60
    world.execute(f"SYSTEM START MERGES {world.database}.t")
    world.execute(f"OPTIMIZE TABLE {world.database}.t FINAL")
    assert activity(world).newest["202603"].age_sec >= before.age_sec


def test_only_partitions_with_rows_of_the_window_count(world: EngineWorld) -> None:
    assert activity(world) == Activity(0, {})
    insert(world, 1, "2026-03-02")
    insert(world, 2, "2026-04-01")
    assert blocks(world) == {}
    assert set(blocks(world, MONTHS)) == {"202603", "202604"}
    assert set(blocks(world, Window.full())) == {"202603", "202604"}


def test_an_unfinished_mutation_is_counted_until_it_is_finished(world: EngineWorld) -> None:
    insert(world, 1, "2026-03-01")
    world.execute(f"ALTER TABLE {world.database}.t DELETE WHERE k = 2 SETTINGS mutations_sync = 0")
    before = activity(world)
    assert before.unfinished_mutations == 1
    world.execute(f"SYSTEM START MERGES {world.database}.t")
    give_up = time.monotonic() + 60
    while activity(world).unfinished_mutations and time.monotonic() < give_up:
        time.sleep(0.05)
    after = activity(world)
    assert after.unfinished_mutations == 0
    assert after.newest["202603"].block == before.newest["202603"].block


def test_a_table_whose_parts_tell_nothing_is_refused(world: EngineWorld) -> None:
    world.execute(f"CREATE VIEW {world.database}.v AS SELECT * FROM {world.database}.t")
    with world.source() as source, pytest.raises(ConfigurationError, match="is a view"):
        source.activity(world.database, "v", "at", DAY)
