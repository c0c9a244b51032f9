"""One extraction is one query from its first row to the end that the source itself declares."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_dpone.errors import DponeError, SourceDataError, SourceMoved, SourceUnavailable
from airflow_dpone.settings import Limits
from tests.fakes.source import ReadFault
from tests.fakes.world import NEXT_DAY, SOURCE_COLUMNS, World, as_set, order, orders

MOVED, EARLY = ReadFault("moved", 2), ReadFault("ends_early", 5)


def told(world: World, event: str) -> list[dict[str, Any]]:
    """Payloads of the delivery events of one kind."""
    return [e.body["payload"] for e in world.events() if e.event == event]


@pytest.mark.parametrize("fault", [MOVED, EARLY], ids=["moved", "early end"])
def test_a_broken_read_is_thrown_away_whole_and_done_again(world: World, fault: ReadFault) -> None:
    world.source.edit(faults=[fault])

    def the_source_changes(point: str) -> None:
        if point == "after_spool_discard_epoch":
            world.source.edit(rows=orders(7, first=100))

    result = world.deliver(observer=the_source_changes)
    assert (world.source.script.reads, result.rows) == (2, 7)
    assert world.rows() == as_set(orders(7, first=100))
    assert [e["extraction_epoch"] for e in told(world, "EPOCH_OPENED")] == [0, 1]
    assert [e["extraction_epoch"] for e in told(world, "EPOCH_ABANDONED")] == [0]
    assert told(world, "EXTRACTED")[0]["extraction_epoch"] == 1
    assert world.clock.slept == [1.0]


def test_every_read_has_a_nonce_of_its_own(world: World) -> None:
    world.source.edit(faults=[EARLY, EARLY])
    world.deliver()
    nonces = {e["nonce"] for e in told(world, "EPOCH_OPENED")}
    assert len(nonces) == 3
    assert world.clock.slept == [1.0, 5.0]


@pytest.mark.parametrize(
    ("fault", "error"), [(MOVED, SourceMoved), (EARLY, SourceUnavailable)], ids=["moved", "early end"]
)
def test_reads_are_tried_extraction_attempts_times_and_never_taken_for_the_end(
    world: World, fault: ReadFault, error: type[DponeError]
) -> None:
    world.limits = Limits(max_rows=4, extraction_attempts=2)
    world.source.edit(faults=[fault] * 9)
    with pytest.raises(error) as raised:
        world.deliver()
    assert raised.value.state_after == "PLANNED"
    assert world.source.script.reads == 2
    assert told(world, "EXTRACTED") == []
    assert world.spool_files() == []
    assert world.rows() == []
    assert "create_stage" not in world.target.calls()


def test_a_stream_that_ends_exactly_after_the_last_row_without_saying_so_is_no_end(world: World) -> None:
    world.limits = Limits(max_rows=4, extraction_attempts=1)
    world.source.edit(faults=[ReadFault("ends_early", 6)])
    with pytest.raises(SourceUnavailable):
        world.deliver()
    assert told(world, "EXTRACTED") == []


CHANGES: dict[str, dict[str, Any]] = {
    "another table of that name": {"uuid": "5f0f3c1a-0000-4000-8000-0000000000ff"},
    "a lightweight update": {"patch_parts": ["patch-1"]},
    "a running mutation": {"unfinished": ["mutation_9"]},
    "a dropped partition": {"parts": []},
    "a replaced partition": {"parts": [("all", 5, 5)]},
    "another column": {"columns": [*SOURCE_COLUMNS, ("more", "Int32")]},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_else_counts_as_moved(world: World, change: dict[str, Any]) -> None:

    def in_the_middle(point: str) -> None:
        if point == "after_source_read":
            world.source.edit(**change)

    world.limits = Limits(max_rows=4, extraction_attempts=1)
    with pytest.raises(SourceMoved):
        world.deliver(observer=in_the_middle)


def test_merges_and_inserts_into_other_partitions_are_normal(world: World) -> None:
    def in_the_middle(point: str) -> None:
        if point == "after_source_read":
            world.source.edit(parts=[("all", 1, 6), ("another", 7, 7)])

    assert world.deliver(observer=in_the_middle).rows == 6


@pytest.mark.parametrize(
    ("row", "code", "column"),
    [
        (order(6, price=float("nan")), "dpone.source.nan", "price"),
        (order(6, price=float("-inf")), "dpone.source.infinite", "price"),
        (order(6, note=b"\xc3\x28"), "dpone.source.utf8", "note"),
    ],
)
def test_a_bad_value_names_column_and_row_and_how_to_find_it_but_never_the_value(
    world: World, row: list[Any], code: str, column: str
) -> None:
    world.source.edit(rows=[*orders(5), row])
    with pytest.raises(SourceDataError) as raised:
        world.deliver()
    assert (raised.value.code, raised.value.fields["column"], raised.value.fields["row"]) == (code, column, 5)
    assert f"WHERE {column} IS {code.rpartition('.')[2]}" in raised.value.next_action
    assert world.source.script.reads == 1
    assert told(world, "EPOCH_ABANDONED")[0]["reason"] == code


def test_what_stands_under_a_null_is_never_looked_at(world: World) -> None:
    rows = [order(n, note=None, ref=None) for n in range(1, 7)]
    world.source.edit(rows=rows)
    world.deliver()
    assert world.rows() == as_set(rows)


def test_duplicates_are_delivered_as_often_as_they_are_there(world: World) -> None:
    rows = [*orders(3), *orders(3), order(1)]
    world.source.edit(rows=rows)
    assert world.deliver().rows == 7
    assert world.rows() == as_set(rows)


def test_only_the_rows_of_the_window_are_delivered(world: World) -> None:
    rows = [*orders(3), *orders(3, first=10, day=1)]
    world.source.edit(rows=rows)
    world.deliver()
    world.deliver(window=NEXT_DAY, who=None, rerun=True)
    assert world.rows() == as_set(rows)


def test_the_end_of_the_extraction_names_exactly_its_chunks(world: World) -> None:
    result = world.deliver()
    extracted, chunks = told(world, "EXTRACTED")[0], told(world, "CHUNK_SEALED")
    assert [chunk["rows"] for chunk in chunks] == [4, 2]
    assert (extracted["chunks"], extracted["rows"], extracted["encoded_bytes"]) == (2, 6, result.bytes)
    assert [int(limb) for limb in extracted["limbs"]] == [
        sum(int(chunk["limbs"][i]) for chunk in chunks) for i in range(8)
    ]
    assert result.digest == extracted["digest"]


def test_the_source_is_not_read_again_after_its_end(world: World) -> None:
    world.target.arm("create_stage", "unreachable", times=3)
    with pytest.raises(DponeError):
        world.deliver()
    world.source.edit(rows=orders(1))
    assert world.deliver().rows == 6
    assert world.source.script.reads == 1
