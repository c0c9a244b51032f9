"""A delivery whose rows are encoded by other processes is the same delivery."""

from __future__ import annotations

import os
import signal

import pytest

from airflow_dpone.delivery import chunk_cutter
from airflow_dpone.errors import CapacityError, SourceDataError
from airflow_dpone.settings import Limits
from airflow_dpone.wire.encoder import ParallelEncoder
from airflow_dpone.wire.types import WireLayout
from tests.fakes.world import World, as_set, order, orders
from tests.unit.delivery.test_extraction import told

TWO = Limits(max_rows=4, encoding_parallelism=2)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ParallelEncoder]:
    """The encoders of a test, which start their processes with the first row."""
    found: list[ParallelEncoder] = []

    def new_encoder(layout: WireLayout, processes: int) -> ParallelEncoder:
        found.append(ParallelEncoder(layout, processes, start_rows=0))
        return found[-1]

    monkeypatch.setattr(chunk_cutter, "new_encoder", new_encoder)
    monkeypatch.setattr(chunk_cutter, "PIECE_ROWS", 2)
    return found


def _has_child(pid: int) -> bool:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def test_the_same_rows_chunks_and_digest(world: World, made: list[ParallelEncoder]) -> None:
    world.source.edit(rows=orders(11))
    seen: list[int] = []
    world.limits = TWO
    result = world.deliver(observer=lambda _: seen.extend(made[0].pids if made else []))
    assert world.rows() == as_set(orders(11))
    assert [chunk["rows"] for chunk in told(world, "CHUNK_SEALED")] == [4, 4, 3]
    assert result.rows == 11
    assert len(set(seen)) == 2
    assert not any(map(_has_child, seen)), "ended with the extraction, and waited for"


def test_the_processes_are_ended_when_a_value_stops_the_delivery(
    world: World, made: list[ParallelEncoder]
) -> None:
    seen: list[int] = []
    world.source.edit(rows=[*orders(5), order(6, price=float("nan"))])
    world.limits = TWO
    with pytest.raises(SourceDataError) as raised:
        world.deliver(observer=lambda _: seen.extend(made[0].pids if made else []))
    assert raised.value.fields["row"] == 5
    assert seen
    assert not any(map(_has_child, seen))


def test_a_killed_process_ends_the_extraction_and_the_next_call_reads_again(
    world: World, made: list[ParallelEncoder]
) -> None:
    killed: list[int] = []

    def kill_one(point: str) -> None:
        if point == "after_chunk_seal" and not killed:
            killed.append(made[0].pids[0])
            os.kill(killed[0], signal.SIGKILL)

    world.source.edit(rows=orders(40))
    world.limits = TWO
    with pytest.raises(CapacityError) as raised:
        world.deliver(observer=kill_one)
    assert (raised.value.code, raised.value.state_after) == ("dpone.encoding.process_lost", "PLANNED")
    assert told(world, "EPOCH_ABANDONED")[0]["reason"] == "dpone.encoding.process_lost"
    assert world.spool_files() == []
    assert world.deliver().rows == 40
    assert world.rows() == as_set(orders(40))


def test_a_setting_that_is_not_given_is_not_in_the_plan(world: World) -> None:
    world.deliver()
    assert "encoding_parallelism" not in told(world, "PLANNED")[0]["tuning"]["limits"]
