"""Several chunks are written at once: each in its own table, all of them under one lease and one journal."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.turns import Turn, for_each
from airflow_dpone.errors import ConfigurationError, Fenced, SourceDataError, TargetBusy
from airflow_dpone.settings import Limits
from tests.fakes.many_writers import ManyWriters
from tests.fakes.world import World, as_set, orders
from tests.unit.delivery.test_extraction import told

ROWS, AT_ONCE = 22, 4


@dataclass
class Wide(World):
    """Six chunks of four rows at most, four writers.

    :param first: what a write does before its first row. :param told: what was said of the progress.
    """

    first: Callable[[tr.StageRef, Deadline], None] = lambda stage, deadline: None
    told: list[tuple[Any, ...]] = field(default_factory=list)

    def ports(self, journal: Any, **changes: Any) -> Any:
        ours = {
            "writer": ManyWriters(self.target, self.first),
            "progress": lambda *said: self.told.append(said),
        }
        return super().ports(journal, **ours, **changes)


@pytest.fixture
def wide(fresh_world: World, tmp_path: Any) -> Wide:
    """A world with a writer that can do it."""
    made = Wide(fresh_world.copy(tmp_path / "world").root)
    made.limits = Limits(max_rows=4, import_parallelism=AT_ONCE)
    made.source.edit(rows=orders(ROWS))
    return made


def attempts(world: World) -> Counter[str]:
    """How often each event of a chunk attempt was written."""
    return Counter(event.event for event in world.events() if event.stream.startswith("attempt/"))


def endless(deadline: Deadline) -> None:
    """Works until it is told to stop."""
    while deadline.remaining_sec() > 0:
        time.sleep(0.01)


def test_as_many_chunks_as_were_asked_for_are_written_at_once(wide: Wide) -> None:
    together = threading.Barrier(AT_ONCE)
    begun: list[str] = []

    def first(stage: tr.StageRef, deadline: Deadline) -> None:
        begun.append(stage.name)
        if len(begun) <= AT_ONCE:
            together.wait(60)  # breaks unless four are here at the same time

    wide.first = first
    result = wide.deliver()
    assert (result.rows, result.chunks) == (ROWS, 6)
    assert wide.rows() == as_set(orders(ROWS))
    assert [said[1:3] for said in wide.told if said[0] == "stage"] == [(n, 6) for n in range(1, 7)]
    assert attempts(wide)["VERIFIED"] == attempts(wide)["INTENT"] == 6
    assert wide.untidy() == []
    assert told(wide, "PLANNED")[0]["tuning"]["limits"]["import_parallelism"] == AT_ONCE


def test_a_failure_ends_the_other_writers_and_only_it_is_told(wide: Wide) -> None:
    """Nothing is written again, and the target is free: every attempt is judged and retired."""
    begun = threading.Semaphore(0)

    def first(stage: tr.StageRef, deadline: Deadline) -> None:
        begun.release()
        if wide.target.calls().count("create_stage") < AT_ONCE:
            endless(deadline)
        for _ in range(AT_ONCE):
            assert begun.acquire(timeout=60)
        raise SourceDataError("dpone.wire.layout", "A batch of another layout.")

    wide.first = first
    with pytest.raises(SourceDataError) as raised:
        wide.deliver()
    assert (raised.value.code, raised.value.state_after) == ("dpone.wire.layout", "FAILED")
    found = [
        e.body["observation"]["diagnostic_code"]
        for e in wide.events()
        if e.event == "UNKNOWN" and e.stream.startswith("attempt/")
    ]
    assert sorted(found) == ["dpone.target.write_stopped"] * (AT_ONCE - 1) + ["dpone.wire.layout"]
    assert attempts(wide)["INTENT"] == attempts(wide)["RETIRED"] == AT_ONCE
    assert wide.untidy() == []


def test_a_chunk_that_may_be_written_again_disturbs_no_other(wide: Wide) -> None:
    broken: list[str] = []

    def first(stage: tr.StageRef, deadline: Deadline) -> None:
        if not broken:
            broken.append(stage.name)
            raise TargetBusy("dpone.target.io", "The target did not answer.")

    wide.first = first
    assert wide.deliver().rows == ROWS
    assert attempts(wide)["INTENT"] == 7
    assert wide.rows() == as_set(orders(ROWS))


def test_whoever_was_replaced_stops_all_of_its_writers(wide: Wide) -> None:
    """The lease's thread says so; no writer is left behind and nothing is recorded."""
    left = threading.Semaphore(0)
    cancels: list[Cancel] = []

    def first(stage: tr.StageRef, deadline: Deadline) -> None:
        assert deadline.cancel is not None
        cancels.append(deadline.cancel)
        if len(cancels) == AT_ONCE:
            outer = deadline.cancel._outer
            assert outer is not None
            outer.set(Fenced("dpone.journal.fenced", "Another process has taken over."))
        try:
            endless(deadline)
        finally:
            left.release()

    wide.first = first
    with pytest.raises(Fenced):
        wide.deliver()
    assert all(left.acquire(timeout=1) for _ in range(AT_ONCE))
    assert "UNKNOWN" not in attempts(wide)


def test_a_task_that_is_told_to_end_leaves_no_writer_behind(wide: Wide) -> None:
    """Airflow's timeout is raised in the main thread, which only waits."""
    running = threading.Semaphore(0)
    ended: list[str] = []

    class TimeIsUp(BaseException):
        """As Airflow's: no Exception."""

    def ring(*_: object) -> None:
        raise TimeIsUp

    def first(stage: tr.StageRef, deadline: Deadline) -> None:
        running.release()
        if wide.target.calls().count("create_stage") == AT_ONCE and not ended:
            for _ in range(AT_ONCE):
                assert running.acquire(timeout=60)
            os.kill(os.getpid(), signal.SIGUSR1)
        try:
            endless(deadline)
        finally:
            ended.append(stage.name)

    before = signal.signal(signal.SIGUSR1, ring)
    wide.first = first
    try:
        with pytest.raises(TimeIsUp):
            wide.deliver()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(ended) == AT_ONCE
    assert threading.active_count() == 1
    wide.first = lambda stage, deadline: None
    assert wide.deliver().rows == ROWS
    assert wide.rows() == as_set(orders(ROWS))


def test_the_one_that_failed_first_is_told_and_nothing_begins_after_it() -> None:
    turn, begun = Turn(), []

    def work(item: int, stop: Cancel) -> None:
        begun.append(item)
        with turn.given_away():
            if item == 1:
                raise ValueError("first")
            while not stop.is_set:
                time.sleep(0.01)
        raise KeyError("second")

    with pytest.raises(ValueError, match="first"):
        for_each(range(5), work, at_once=3, turn=turn, outer=Cancel())
    assert sorted(begun) in ([0, 1], [0, 1, 2])


@pytest.mark.parametrize("field", ["parallelism", "import_parallelism"])
def test_an_embedded_target_takes_one_writer(world: World, field: str) -> None:
    world.limits = Limits(**{field: 2})
    with pytest.raises(ConfigurationError, match=rf"limits\.{field}: .*set import_parallelism=1"):
        world.deliver()
    world.limits = Limits(parallelism=2, import_parallelism=1)
    assert world.deliver().state == "COMPLETED"


def test_what_is_not_set_is_not_in_the_plan_and_parallelism_stands_in(world: World) -> None:
    world.deliver()
    assert "import_parallelism" not in told(world, "PLANNED")[0]["tuning"]["limits"]
    assert Limits(parallelism=3).import_writers == 3
    assert Limits(parallelism=3, import_parallelism=2).import_writers == 2


def test_a_delivery_goes_on_with_another_number_of_writers(wide: Wide) -> None:
    """Tuning, not identity: what was verified is kept."""

    def first(stage: tr.StageRef, deadline: Deadline) -> None:
        if attempts(wide)["VERIFIED"] >= 1:
            raise SystemExit

    wide.first = first
    with pytest.raises(SystemExit):
        wide.deliver()
    kept = attempts(wide)["VERIFIED"]
    assert kept >= 1
    wide.first, wide.limits = lambda stage, deadline: None, Limits(max_rows=4)
    assert wide.deliver().rows == ROWS
    assert attempts(wide)["VERIFIED"] == 6
    assert wide.rows() == as_set(orders(ROWS))
