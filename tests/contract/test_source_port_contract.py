"""The contract that every source keeps, the real one and the scripted one alike.

What only a ClickHouse engine can show (types, settings, kinds of tables) is in ``test_source_contract.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery.ports import Deadline, SourcePort
from airflow_dpone.delivery.records import SourceQuery
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, SourceUnavailable
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.types import WireLayout
from tests.contract.chdb_world import layout_of
from tests.contract.source_cases import COLUMNS, TARGETS, WORLDS, SourceWorld, row

START = datetime(2026, 3, 2, tzinfo=UTC)
DAY = Window(START, START + timedelta(days=1))
NOON = datetime(2026, 3, 2, 12, 30, 0, 123456)


@pytest.fixture(params=WORLDS.values(), ids=WORLDS.keys())
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SourceWorld]:
    """An empty table."""
    made = request.param(tmp_path)
    yield made
    made.drop()


def compiled(
    world: SourceWorld, source: SourcePort, window: Window = DAY, column: str | None = "at"
) -> tuple[SourceQuery, WireLayout]:
    table = source.describe(world.database, world.table)
    layout, names = layout_of(table, TARGETS)
    return source.compile(table, layout, names, column, window), layout


def rows_of(source: SourcePort, query: SourceQuery, layout: WireLayout) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in source.read(query, nonce="ab" * 32, deadline=Deadline.after(60)):
        raw = layout.raw_schema
        assert (batch.schema.names, batch.schema.types) == (raw.names, raw.types)
        found += to_target_batch(batch, layout, first_row=len(found)).to_pylist()
    return found


def ids_in(world: SourceWorld, window: Window, column: str | None = "at") -> list[int]:
    with world.source() as source:
        return sorted(r["id"] for r in rows_of(source, *compiled(world, source, window, column)))


def test_describe_names_the_columns_in_order_and_a_missing_table_is_refused(world: SourceWorld) -> None:
    with world.source() as source:
        table = source.describe(world.database, world.table)
        assert [(c.name, c.type, c.kind) for c in table.columns] == [(n, t, "") for n, t in COLUMNS]
        assert table.problems == ()
        with pytest.raises(ConfigurationError, match="no_such_table"):
            source.describe(world.database, "no_such_table")


def test_every_value_arrives_exactly_and_duplicates_arrive_twice(world: SourceWorld) -> None:
    given = [row(number, NOON) for number in [*range(30), 7]]
    world.insert(
        [[Decimal(c) if n == "price" else c for (n, _), c in zip(COLUMNS, r, strict=True)] for r in given]
    )
    with world.source() as source:
        found = rows_of(source, *compiled(world, source))
    names = [name for name, _ in COLUMNS]
    expected = [dict(zip(names, one, strict=True)) for one in given]
    for one in expected:
        one["ref"] = one["ref"] and one["ref"].bytes
        one["price"] = Decimal(one["price"])
    assert sorted(found, key=lambda r: r["id"]) == sorted(expected, key=lambda r: r["id"])


def test_the_window_is_half_open_and_rows_without_a_time_are_outside(world: SourceWorld) -> None:
    tick, begin = timedelta(microseconds=1), START.replace(tzinfo=None)
    times = [begin - tick, begin, begin + timedelta(days=1) - tick, begin + timedelta(days=1), None]
    world.insert([row(number, at, price=Decimal(number)) for number, at in enumerate(times)])
    assert ids_in(world, DAY) == [1, 2]
    assert ids_in(world, Window.full(), None) == [0, 1, 2, 3, 4]
    later = Window(START + timedelta(days=9), START + timedelta(days=10))
    assert ids_in(world, later) == []


def test_bounds_that_the_column_cannot_say_are_refused(world: SourceWorld) -> None:
    noon = Window(START + timedelta(hours=12), START + timedelta(days=1))
    with world.source() as source:
        with pytest.raises(ConfigurationError) as caught:
            compiled(world, source, noon, "day")
        assert [problem.code for problem in caught.value.problems] == ["dpone.source.window_bound"]
        with pytest.raises(ConfigurationError) as caught:
            compiled(world, source, DAY, "price")
        assert [problem.code for problem in caught.value.problems] == ["dpone.source.window_type"]


def test_a_query_depends_on_its_window_and_columns_only(world: SourceWorld) -> None:
    with world.source() as source:
        once, again = compiled(world, source)[0], compiled(world, source)[0]
        other = compiled(world, source, Window(START, START + timedelta(hours=1)))[0]
    assert once == again
    assert once.identity() != other.identity()
    assert once.identity()["projection"] == other.identity()["projection"]


def test_an_insert_does_not_move_a_read_a_mutation_and_an_altered_table_do(world: SourceWorld) -> None:
    world.insert([row(1, NOON, price=Decimal(1))])
    with world.source() as source:
        query, _ = compiled(world, source)
        before = source.snapshot(query)
        assert source.snapshot(query).moved_since(before) is None
        world.insert([row(2, NOON, price=Decimal(2))])
        assert source.snapshot(query).moved_since(before) is None
        world.mutate()
        moved = source.snapshot(query)
        assert moved.moved_since(before) == "a mutation ran"
        world.add_column()
        assert source.snapshot(query).moved_since(moved) == "the table's columns changed"


@pytest.mark.parametrize("after", [0, 3])
def test_a_stream_that_breaks_is_never_the_end_of_the_data(world: SourceWorld, after: int) -> None:
    world.insert([row(number, NOON, price=Decimal(number)) for number in range(5)])
    with world.source() as source:
        query, layout = compiled(world, source)
        assert len(rows_of(source, query, layout)) == 5
        with pytest.raises(SourceUnavailable):
            rows_of(source, world.breaking(query, after), layout)


def test_a_read_after_its_deadline_does_not_end_normally(world: SourceWorld) -> None:
    world.insert([row(1, NOON, price=Decimal(1))])
    with world.source() as source:
        query, _ = compiled(world, source)
        with pytest.raises(SourceUnavailable) as caught:
            list(source.read(query, nonce="ab" * 32, deadline=Deadline.after(-1)))
    assert caught.value.code == "dpone.source.deadline"


def test_a_source_that_is_not_open_says_so(world: SourceWorld) -> None:
    with pytest.raises(SourceUnavailable) as caught:
        world.source().describe(world.database, world.table)
    assert caught.value.code == "dpone.source.closed"
