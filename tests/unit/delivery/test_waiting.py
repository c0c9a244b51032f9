"""Whoever finds the target taken waits as long as it was told to, and says for whom."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from airflow_dpone.errors import CustodyHeld, DponeError, Incident, LeaseHeld
from tests.fakes.world import NEXT_DAY, SCHEMA, TABLE, TestClock, World, as_set, order, orders, requester

OTHER = requester("run-2")


class SteppedClock(TestClock):
    """Time passes only while somebody sleeps; ``then`` runs after each sleep."""

    def __init__(self, then: Callable[[float], None] = lambda now: None) -> None:
        super().__init__()
        self.now, self.then = 0.0, then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.now += seconds
        self.then(self.now)


@pytest.fixture
def taken(world: World) -> World:
    """Run 1 holds custody: its publication's answer is lost and the target does not say."""
    world.source.edit(rows=[*orders(6), order(50, day=1)])
    world.target.arm("publish", "never_sent")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == "UNKNOWN"
    return world


def test_without_a_wait_the_holder_is_named_at_once(taken: World) -> None:
    with pytest.raises(CustodyHeld, match="run run-1, task deliver_orders") as raised:
        taken.deliver(OTHER, window=NEXT_DAY)
    assert taken.clock.slept == []
    assert raised.value.fields["holder"]["run_id"] == "run-1"
    assert raised.value.fields["age_sec"] >= 0


def test_the_wait_ends_when_the_holder_is_done(taken: World) -> None:
    def holder_goes_on(now: float) -> None:
        if now == 6.0:
            World(taken.root).deliver(requester(try_number=2, ti_id="2"))

    taken.clock = SteppedClock(holder_goes_on)
    result = taken.deliver(OTHER, window=NEXT_DAY, custody_wait_sec=60)
    assert taken.clock.slept == [2.0, 2.0, 2.0]
    assert result.rows == 1
    assert taken.rows() == as_set([*orders(6), order(50, day=1)])
    assert taken.untidy() == []


def test_the_wait_is_bounded_and_nothing_is_held_meanwhile(
    taken: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    calls = len(taken.target.calls())
    taken.clock = SteppedClock()
    with pytest.raises(CustodyHeld):
        taken.deliver(OTHER, window=NEXT_DAY, custody_wait_sec=9)
    assert taken.clock.slept == [2.0, 2.0, 2.0, 2.0, 1.0]
    assert taken.target.calls()[calls:] == ["identify"]
    told = [record.getMessage() for record in caplog.records if "Waiting for" in record.getMessage()]
    assert len(told) == 1
    assert "run run-1" in told[0]
    assert "up to 9 s" in told[0]


def test_the_deadline_of_the_call_ends_the_wait_too(taken: World) -> None:
    taken.clock = SteppedClock()
    with pytest.raises(CustodyHeld):
        taken.deliver(OTHER, window=NEXT_DAY, custody_wait_sec=1e6, deadline_sec=1e-9)
    assert taken.clock.slept == []


def test_the_same_try_started_twice_waits_for_the_first(world: World) -> None:
    """[C9] The second start of one try goes on when the first has ended, and returns its result."""
    answers: list[tuple[bool, int]] = []

    def second_start(point: str) -> None:
        if point == "before_writer_write" and not answers:
            twin = World(world.root)
            with pytest.raises(LeaseHeld):
                twin.deliver()
            twin.clock = SteppedClock()
            with pytest.raises(LeaseHeld):
                twin.deliver(custody_wait_sec=5)
            answers.append((False, len(twin.clock.slept)))

    result = world.deliver(observer=second_start)
    assert answers == [(False, 3)]
    again = world.deliver(custody_wait_sec=5)
    assert (again.already, again.operation_id) == (True, result.operation_id)
    assert len(world.target.receipts()) == 1


def test_nobody_waits_for_an_incident(taken: World) -> None:
    """It ends by a person's decision only."""
    taken.target.recreate_table(SCHEMA, TABLE)
    with pytest.raises(Incident):
        taken.deliver(requester(try_number=2, ti_id="2"))
    taken.clock = SteppedClock()
    with pytest.raises(CustodyHeld, match="INCIDENT"):
        taken.deliver(OTHER, window=NEXT_DAY, custody_wait_sec=60)
    assert taken.clock.slept == []
