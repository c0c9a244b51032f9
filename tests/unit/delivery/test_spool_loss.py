"""A sealed chunk is lost after the end of the extraction: the same generation reads the window again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.errors import DponeError, SpoolError
from airflow_dpone.settings import Limits
from tests.fakes.world import World, as_set, order, orders, requester

RESTOCKED = [*orders(3), order(40), order(41), order(42), order(43)]


def stop_at(world: World, method: str, state: str, times: int = 3) -> None:
    """A call that ends before this method of the target, with the chunks that it has."""
    world.target.arm(method, "unreachable", times=times)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == state


def names(world: World) -> list[str]:
    return [event.event for event in world.events() if event.stream.startswith("delivery/")]


@pytest.mark.parametrize("lost", [0, 1])
def test_no_row_of_the_lost_extraction_reaches_the_target(world: World, lost: int) -> None:
    """[C2] Chunk 0 was proved in the target when chunk 1 is lost, and the source shows other rows now."""
    world.target.arm("create_stage", "fine")
    stop_at(world, "create_stage", "EXTRACTED")
    proved = [e.event for e in world.events()].count("VERIFIED")
    assert proved == 1
    world.spool_files()[lost].unlink()
    world.source.edit(rows=RESTOCKED)
    result = world.deliver()
    if lost == 0:  # the chunk is in the target already, its file is not needed any more
        assert result.rows == 6
        assert world.rows() == as_set(orders(6))
        assert "EPOCH_ABANDONED" not in names(world)
    else:
        assert (result.generation, result.rows, world.source.script.reads) == (1, 7, 2)
        assert world.rows() == as_set(RESTOCKED)
        assert names(world).count("PLANNED") == 2
    assert [(row[1], row[2]) for row in world.target.receipts()] == [(1, result.operation_id)]
    assert world.untidy() == []


def test_the_whole_spool_may_go_after_staged(world: World) -> None:
    stop_at(world, "build_prepared", "STAGED", times=1)
    shutil.rmtree(world.root / "spool")
    world.source.edit(rows=RESTOCKED)
    assert world.deliver().rows == 6
    assert world.rows() == as_set(orders(6))
    assert world.source.script.reads == 1
    assert world.untidy() == []


def test_the_whole_spool_is_gone_before_anything_was_staged(world: World) -> None:
    stop_at(world, "create_stage", "EXTRACTED")
    shutil.rmtree(world.root / "spool")
    assert world.deliver().rows == 6
    assert world.rows() == as_set(orders(6))
    assert world.untidy() == []


def test_a_spool_that_loses_everything_it_gets_ends_the_delivery(world: World) -> None:
    """As often as the window may be read, and no more; then the error names the file."""

    def lose_it(point: str) -> None:
        if point == "before_target_create_stage":
            for path in world.spool_files():
                path.unlink()

    def lose_each(point: str) -> None:
        if point == "after_chunk_seal":
            for path in world.spool_files():
                path.unlink()

    for loser in (lose_each, lose_it):
        world.limits = Limits(max_rows=4, extraction_attempts=2)
        with pytest.raises(SpoolError) as raised:
            world.deliver(observer=loser)
        assert (raised.value.code, raised.value.state_after) == ("dpone.spool.missing", "FAILED")
        assert world.untidy() == []
    assert world.source.script.reads == 4
    assert world.deliver().generation == 3
    assert world.rows() == as_set(orders(6))


class Died(BaseException):
    """The process ends here."""


def test_a_crash_in_the_middle_of_giving_up_goes_on_to_the_same_end(world: World, tmp_path: Path) -> None:
    world.target.arm("create_stage", "fine")
    stop_at(world, "create_stage", "EXTRACTED")
    world.spool_files()[1].unlink()
    points: list[str] = []
    world.copy(tmp_path / "recorded").deliver(observer=lambda point: points.append(str(point)))
    for number in range(points.index("before_source_read") + 1):
        copy = world.copy(tmp_path / f"crashed-{number}")
        passed: list[str] = []

        def die(point: str, passed: list[str] = passed, number: int = number) -> None:
            passed.append(point)
            if len(passed) > number:
                raise Died

        with pytest.raises(Died):
            copy.deliver(observer=die)
        result = copy.deliver(requester(try_number=2, ti_id="run-1-try-2"))
        assert copy.rows() == as_set(orders(6))
        assert (result.generation, len(copy.target.receipts())) == (1, 1)
        assert copy.untidy() == []


def test_the_plan_stays_and_a_changed_configuration_is_planned_anew(world: World) -> None:
    """Back at PLANNED the delivery may be planned anew, as before its first extraction."""
    stop_at(world, "create_stage", "EXTRACTED")
    shutil.rmtree(world.root / "spool")
    world.target.arm("create_stage", "unreachable", times=3)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == "EXTRACTED"
    plans = [e.body["payload"] for e in world.events() if e.event == DeliveryState.PLANNED]
    assert plans[0] == plans[1]
