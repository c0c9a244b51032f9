"""The server goes away at the worst moment: what was answered is there, nothing is there by half, and the
next try goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.states import DeliveryEvent, DeliveryState
from airflow_dpone.errors import JournalError
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.address import JournalAddress
from airflow_dpone.journal.database import Database
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import TARGET, Delivery, begin, requester, take
from tests.contract.journal_examples import payload, tuned
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.postgresql import PostgresqlServer

ROOT = Path(__file__).resolve().parents[2]
D, S = DeliveryEvent, DeliveryState


def unavailable(error: JournalError) -> bool:
    return (error.code, error.retry) == ("dpone.journal.unavailable", "backoff")


def test_a_restart_between_two_writes_is_not_noticed(server: PostgresqlServer, url: str) -> None:
    with open_journal(url) as journal:
        delivery = begin(journal)
        server.restart()
        delivery.go(S.EXTRACTED)
        assert [event.event for event in journal.events(delivery.invocation_key)] == ["PLANNED", "EXTRACTED"]


def test_a_server_that_is_down_is_tried_again_later(server: PostgresqlServer, url: str) -> None:
    with open_journal(url) as journal:
        delivery = begin(journal)
        extracted = delivery.event(S.EXTRACTED)
        server.stop()
        try:
            for call in (lambda: journal.append(delivery.lease, extracted), lambda: journal.fence(TARGET)):
                with pytest.raises(JournalError) as caught:
                    call()
                assert unavailable(caught.value)
        finally:
            server.start()
        journal.append(delivery.lease, extracted)
        assert delivery.state() is S.EXTRACTED


@pytest.mark.parametrize("writes_more", [True, False], ids=["before a statement", "before the commit"])
def test_a_restart_inside_a_transaction_leaves_nothing_of_it(
    server: PostgresqlServer, url: str, writes_more: bool
) -> None:
    database = Database(JournalAddress.of(url))

    def write() -> None:
        with database.write() as connection:
            connection.execute(sa.insert(t.lease).values(target_key=TARGET, fence=7))
            server.restart()
            if writes_more:
                connection.execute(sa.insert(t.lease).values(target_key="x", fence=7))

    with pytest.raises(JournalError) as caught:
        write()
    assert unavailable(caught.value)
    with database.read() as connection:
        assert connection.execute(sa.select(t.lease)).all() == []
    database.close()


def test_a_crash_right_after_the_answer_loses_nothing(server: PostgresqlServer, own_url: str) -> None:
    name = own_url.rpartition("/")[2]
    server.admin(f"ALTER DATABASE {name} SET synchronous_commit = off")  # without our own word it would
    with open_journal(own_url) as journal:
        delivery = begin(journal)
        for number in range(20):
            journal.append(delivery.lease, delivery.event(D.TUNED, tuned(number + 1)))
        server.crash()
        server.start()
        assert len(journal.events(delivery.invocation_key)) == 21
        assert journal.fence(TARGET) == delivery.lease.fence
        assert journal.custody(TARGET).held


WRITER = """
import sys
from airflow_dpone.delivery.states import DeliveryEvent
from airflow_dpone.errors import JournalError
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import begin
with open_journal(sys.argv[1]) as journal:
    delivery = begin(journal)
    try:
        while True:
            writes = [delivery.event(DeliveryEvent.TUNED), delivery.event(DeliveryEvent.TUNED)]
            journal.append(delivery.lease, *writes)
            print(delivery.sequence, flush=True)
    except JournalError as error:
        print(error.code, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 30])
def test_a_crash_in_the_middle_of_writing(server: PostgresqlServer, url: str, acknowledged: int) -> None:
    command = [sys.executable, "-c", WRITER, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acknowledged)]
        server.crash()
        *more, last = process.stdout.readlines()
        server.start()
    assert last == "dpone.journal.unavailable\n"
    told = int([*lines, *more][-1])
    with open_journal(url) as journal:
        lease = take(journal, requester())  # its process is gone: at once
        key = Delivery(journal, lease).invocation_key
        events = journal.events(key)
        assert len(events) in (told, told + 2)  # the last transaction may have landed without an answer
        journal.append(lease, jr.AppendDelivery(key, len(events), S.EXTRACTED, payload(S.EXTRACTED)))


# ---- an answer that gets lost ------------------------------------------------------------------------------


def test_a_commit_whose_answer_was_lost_is_there_whole_and_may_be_repeated(
    server: PostgresqlServer, url: str, proxy: CuttingProxy
) -> None:
    with (
        open_journal(url.replace(f":{server.port}/", f":{proxy.port}/")) as journal,
        open_journal(url) as other,
    ):
        delivery = begin(journal)
        writes = [delivery.event(D.EPOCH_OPENED), delivery.event(S.EXTRACTED)]
        proxy.armed.set()
        with pytest.raises(JournalError) as caught:
            journal.append(delivery.lease, *writes)
        assert proxy.cut.is_set()
        assert unavailable(caught.value)
        before = other.events(delivery.invocation_key)
        assert [event.event for event in before] == ["PLANNED", "EPOCH_OPENED", "EXTRACTED"]
        journal.append(delivery.lease, *writes)
        assert other.events(delivery.invocation_key) == before


def test_a_lease_whose_answer_was_lost_costs_the_next_try_nothing(
    server: PostgresqlServer, url: str, proxy: CuttingProxy
) -> None:
    with open_journal(url.replace(f":{server.port}/", f":{proxy.port}/")) as journal:
        proxy.armed.set()
        with pytest.raises(JournalError) as caught:
            take(journal)
        assert unavailable(caught.value)
        lease = take(journal, requester(try_number=2))
        assert lease.fence == 2  # the lost one is never given again
        begin(journal, requester(try_number=3))
