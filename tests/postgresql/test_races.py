"""Two sessions at once: what a lock must decide, because no transaction here excludes all others."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.identity import key_of
from airflow_dpone.delivery.states import DeliveryEvent, DeliveryState
from airflow_dpone.errors import Fenced, JournalError, LeaseHeld
from airflow_dpone.journal import custody, event_log, projection
from airflow_dpone.journal import lease as leases
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.address import JournalAddress
from airflow_dpone.journal.database import Database
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import OTHER_TARGET, TARGET, Delivery, begin, requester, take

ROOT = Path(__file__).resolve().parents[2]
S = DeliveryState


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """For transactions that a test holds open."""
    opened = Database(JournalAddress.of(url))
    yield opened
    opened.close()


@pytest.fixture
def rival() -> Iterator[Callable[..., Future[object]]]:
    """Runs something in another thread; it must be seen to wait."""
    with ThreadPoolExecutor(max_workers=1) as pool:

        def start(work: Callable[[], object]) -> Future[object]:
            future = pool.submit(work)
            with pytest.raises(TimeoutError):
                future.result(0.5)
            return future

        yield start


def test_a_takeover_waits_for_the_transaction_that_checked_the_fence(
    url: str, database: Database, rival: Callable[..., Future[object]]
) -> None:
    """Between check and write: the new owner comes after all of the old one's transaction, never into it."""
    with open_journal(url) as journal, open_journal(url) as second:
        old = begin(journal)
        with database.write() as connection:
            tx = leases.guard(connection, old.lease)
            taken = rival(lambda: take(second, requester(try_number=2)))
            assert second.fence(TARGET) == old.lease.fence
            event_log.append_delivery(tx, old.event(DeliveryEvent.TUNED))
        lease = taken.result(10)
        assert isinstance(lease, jr.Lease)
        assert lease.fence == old.lease.fence + 1
        assert len(second.events(old.invocation_key)) == 2
        with pytest.raises(Fenced), database.write() as connection:
            leases.guard(connection, old.lease)


def test_a_write_that_waited_for_a_takeover_does_not_land(
    url: str, database: Database, rival: Callable[..., Future[object]]
) -> None:
    """The other order: the takeover is there, but not committed, when the old owner checks its fence."""
    with open_journal(url) as journal:
        old = begin(journal)
        with database.write() as connection:
            leases.raise_fence(connection, old.lease, 0)
            late = rival(lambda: journal.append(old.lease, old.event(S.EXTRACTED)))
        with pytest.raises(Fenced):
            late.result(10)
        assert len(journal.events(old.invocation_key)) == 1


def test_the_clock_is_read_after_the_wait(
    url: str, database: Database, rival: Callable[..., Future[object]]
) -> None:
    """Whoever waited for the lock sees that the lease has expired meanwhile."""
    with open_journal(url) as journal, open_journal(url) as second:
        old = take(journal, ttl_sec=0.4)
        with database.write() as connection:
            connection.execute(select(t.lease).with_for_update())
            taken = rival(lambda: take(second, requester("run-2")))
        assert isinstance(taken.result(10), jr.Lease)
        assert second.fence(TARGET) == old.fence + 1


def first_of(url: str, target: str, count: int) -> list[object]:
    """What many sessions get that acquire one target at the same moment."""
    barrier = threading.Barrier(count)

    def ask(number: int) -> object:
        with open_journal(url) as journal:
            barrier.wait(30)
            try:
                return take(journal, requester(f"run-{number}"), target=target)
            except LeaseHeld as error:
                return error

    with ThreadPoolExecutor(max_workers=count) as pool:
        return list(pool.map(ask, range(count)))


def test_of_many_threads_that_come_first_one_gets_the_lease(url: str) -> None:
    for number in range(10):
        target = key_of(["contested", number])
        got = first_of(url, target, 8)
        leases_given = [one for one in got if isinstance(one, jr.Lease)]
        assert [lease.fence for lease in leases_given] == [1]
        assert sum(isinstance(one, LeaseHeld) for one in got) == 7


def test_fences_are_never_given_twice_under_a_storm(url: str) -> None:
    """Each thread is a higher try of the same task, so that each takes over from the one before."""
    given: list[int] = []

    def ask(number: int) -> None:
        with open_journal(url) as journal:
            for _ in range(5):
                try:
                    given.append(take(journal, requester(try_number=number + 1)).fence)
                except LeaseHeld:
                    time.sleep(0.001)

    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(ask, range(8)))
    assert len(given) == len(set(given))
    with open_journal(url) as journal:
        assert journal.fence(TARGET) == max(given)


ASKER = """
import sys
from airflow_dpone.errors import LeaseHeld
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import requester, take
with open_journal(sys.argv[1]) as journal:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print("fence", take(journal, requester(sys.argv[2])).fence, flush=True)
    except LeaseHeld:
        print("held", flush=True)
    sys.stdin.readline()
"""


def test_of_many_processes_that_come_first_one_gets_the_lease(url: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, url, f"run-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = sorted(process.stdout.readline() for process in processes if process.stdout)
    finally:
        for process in processes:
            process.communicate("end\n", timeout=30)
    assert answers == ["fence 1\n", "held\n", "held\n", "held\n"]


# ---- what is not of one target -----------------------------------------------------------------------------


def test_two_targets_do_not_open_two_generations_of_one_delivery(
    url: str, database: Database, rival: Callable[..., Future[object]]
) -> None:
    with open_journal(url) as journal, open_journal(url) as second:
        first = begin(journal)
        first.go(S.RETIRED)
        next_one = Delivery(journal, first.lease, generation=2)
        elsewhere = Delivery(second, take(second, target=OTHER_TARGET), generation=3)
        with database.write() as connection:
            tx = leases.guard(connection, first.lease)
            projection.open_invocation(tx, next_one.opening())
            event_log.append_delivery(tx, next_one.event(S.PLANNED))
            custody.hold(tx, jr.HoldCustody(next_one.invocation_key))
            late = rival(elsewhere.plan)
        with pytest.raises(JournalError, match="generation 2 is PLANNED"):
            late.result(10)
        assert second.invocation(elsewhere.invocation_key) is None


def test_two_targets_may_remember_the_same_task_at_once(
    url: str, database: Database, rival: Callable[..., Future[object]]
) -> None:
    with open_journal(url) as journal, open_journal(url) as second:
        one, two = take(journal), take(second, requester(try_number=2), target=OTHER_TARGET)
        key = one.requester.delivery_key
        with database.write() as connection:
            projection.put_task(leases.guard(connection, one), jr.PutTask(key, 1, one.requester))
            late = rival(lambda: second.append(two, jr.PutTask(key, 1, two.requester)))
        late.result(10)
        found = journal.task(key, "load")
        assert found is not None
        assert found.try_number == 2
