"""The lease is kept alive while the work lasts, and the work stops when that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.lease_renewal import LeaseRenewal
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import DponeError, Fenced, JournalError, LeaseHeld
from airflow_dpone.journal.store import SqlJournal
from tests.fakes.world import World, as_set, orders, requester

TTL_SEC = 0.6
TARGET = "ab" * 32
HIGHER = requester(try_number=2, ti_id="run-1-try-2")


@pytest.fixture
def journal(fresh_world: World, tmp_path: Path) -> Iterator[SqlJournal]:
    with fresh_world.copy(tmp_path / "world").open_journal() as opened:
        yield opened


def until(condition: Callable[[], bool], within_sec: float = 10.0) -> bool:
    """Whether it came true in time."""
    end = monotonic() + within_sec
    while monotonic() < end:
        if condition():
            return True
        sleep(0.01)
    return False


def is_cancelled(cancel: Cancel) -> bool:
    try:
        cancel.check()
    except Fenced:
        return True
    return False


def take(journal: SqlJournal, who: Any = None, ttl_sec: float = TTL_SEC) -> jr.Lease:
    return journal.acquire(TARGET, who or requester(), ttl_sec=ttl_sec, gate_fence=0)


def test_a_lease_outlives_its_time_while_it_is_renewed_and_not_longer(journal: SqlJournal) -> None:
    cancel = Cancel()
    renewal = LeaseRenewal(journal, cancel)
    renewal.start(take(journal))
    sleep(TTL_SEC * 3)
    other = requester("run-2")
    with pytest.raises(LeaseHeld):
        take(journal, other)
    renewal.stop()
    assert not is_cancelled(cancel)
    assert until(lambda: _is_free(journal, other))
    assert "dpone-lease" not in {thread.name for thread in threading.enumerate()}


def _is_free(journal: SqlJournal, who: Any) -> bool:
    try:
        take(journal, who)
    except LeaseHeld:
        return False
    return True


def test_whoever_was_taken_over_is_told_without_writing_anything(journal: SqlJournal) -> None:
    cancel = Cancel()
    deadline = Deadline.after(60, cancel)
    renewal = LeaseRenewal(journal, cancel)
    renewal.start(take(journal))
    assert deadline.remaining_sec() > 0
    take(journal, HIGHER)
    assert until(lambda: is_cancelled(cancel))
    with pytest.raises(Fenced) as told:
        deadline.remaining_sec()
    assert told.value.code == "dpone.journal.fenced"
    renewal.stop()


def test_a_new_fence_is_no_lost_lease(journal: SqlJournal) -> None:
    """The thread renews a hundred times a second while the fence is raised again and again."""
    cancel = Cancel()
    renewal = LeaseRenewal(journal, cancel)
    lease = take(journal, ttl_sec=0.03)
    renewal.start(lease)
    for _ in range(200):
        held = lease
        lease = renewal.change(lambda held=held: journal.raise_fence(held))
    renewal.stop()
    assert not is_cancelled(cancel)
    assert lease.fence == 201


class Unreachable:
    """A journal whose server is gone, for as long as ``is_gone``."""

    def __init__(self, journal: SqlJournal) -> None:
        self.journal, self.is_gone, self.asked = journal, True, 0

    def renew(self, lease: jr.Lease) -> None:
        self.asked += 1
        if self.is_gone:
            raise JournalError("dpone.journal.unavailable", "no answer")
        self.journal.renew(lease)


def test_a_journal_that_is_away_for_a_moment_is_asked_again(journal: SqlJournal) -> None:
    away, cancel = Unreachable(journal), Cancel()
    renewal = LeaseRenewal(away, cancel)  # type: ignore[arg-type]
    renewal.start(take(journal))
    assert until(lambda: away.asked >= 2)
    away.is_gone = False
    asked = away.asked
    assert until(lambda: away.asked >= asked + 3)
    renewal.stop()
    assert not is_cancelled(cancel)


def test_a_journal_that_stays_away_for_as_long_as_the_lease_stops_the_work(journal: SqlJournal) -> None:
    away, cancel = Unreachable(journal), Cancel()
    renewal = LeaseRenewal(away, cancel)  # type: ignore[arg-type]
    started = monotonic()
    renewal.start(take(journal))
    assert until(lambda: is_cancelled(cancel))
    assert monotonic() - started >= TTL_SEC
    renewal.stop()
    with pytest.raises(Fenced) as told:
        cancel.check()
    assert (told.value.code, told.value.retry) == ("dpone.lease.not_renewed", "backoff")


@pytest.mark.parametrize("place", ["after_source_read", "before_writer_write", "before_target_verify_stage"])
def test_a_long_step_notices_that_it_was_replaced_and_its_successor_finishes(
    world: World, place: str
) -> None:
    """The first try hangs in one step; the second takes over and delivers; nothing of the first lands."""
    finished: list[int] = []

    def hang(point: str) -> None:
        if point == place and not finished:
            finished.append(World(world.root).deliver(HIGHER).generation)

    with pytest.raises(DponeError) as raised:
        world.deliver(observer=hang)
    assert isinstance(raised.value, Fenced)
    assert finished == [1]
    assert world.rows() == as_set(orders(6))
    assert len(world.target.receipts()) == 1
    assert world.untidy() == []
