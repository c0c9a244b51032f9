"""The lease between real processes and transactions: who is taken over at once, and who is waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.errors import Fenced, LeaseHeld
from airflow_dpone.journal import lease as leases
from airflow_dpone.journal import owner_process
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.address import JournalAddress
from airflow_dpone.journal.database import Database
from airflow_dpone.journal.owner_process import OwnerProcess
from tests.contract.journal_cases import Delivery, SqliteStore, begin, requester, take

ROOT = Path(__file__).resolve().parents[3]

OWNER = """
import sys, time
from pathlib import Path
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import begin
with open_journal(sys.argv[1]) as journal:
    begin(journal)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path)


@pytest.fixture
def owner(store: SqliteStore) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease and custody, and works on."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(store.path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_live_process_is_waited_for(store: SqliteStore, owner: subprocess.Popen[str]) -> None:
    with store.open() as journal, pytest.raises(LeaseHeld) as caught:
        take(journal, requester())
    assert caught.value.fields["owner"]["pid"] == owner.pid
    assert f"Process {owner.pid} " in caught.value.message


def test_a_stopped_process_is_alive(store: SqliteStore, owner: subprocess.Popen[str]) -> None:
    owner.send_signal(signal.SIGSTOP)
    with store.open() as journal, pytest.raises(LeaseHeld):
        take(journal, requester())


@pytest.mark.parametrize("is_reaped", [False, True], ids=["zombie", "reaped"])
def test_a_killed_process_is_taken_over_at_once(
    store: SqliteStore, owner: subprocess.Popen[str], is_reaped: bool
) -> None:
    """The same try of the same task: only the process's end lets it in before the lease expires."""
    os.kill(owner.pid, signal.SIGKILL)
    if is_reaped:
        owner.wait()
    else:
        os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    with store.open() as journal:
        lease = take(journal, requester())
        assert lease.fence == 2
        found = journal.newest_invocation(requester().delivery_key)
        assert found is not None
        assert found.state is DeliveryState.PLANNED


def test_another_thread_of_the_same_process_is_alive(store: SqliteStore) -> None:
    with store.open() as journal:
        take(journal)
        with pytest.raises(LeaseHeld):
            take(journal)


def test_a_number_that_is_used_again_is_another_process() -> None:
    here = OwnerProcess.current("host")
    assert here.started is not None
    assert not here.is_gone(here)
    assert OwnerProcess(here.host, here.pid, str(int(here.started) - 1)).is_gone(here)


def test_a_process_of_another_host_or_another_boot_cannot_be_judged() -> None:
    here = OwnerProcess.current("host")
    free_number = 2**22 + 1  # above the kernel's greatest
    assert OwnerProcess(here.host, free_number, "1").is_gone(here)
    assert not OwnerProcess(f"other {here.host}", free_number, "1").is_gone(here)


def test_without_proc_a_process_counts_as_alive_while_its_number_exists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(owner_process, "PROC", tmp_path)
    here = OwnerProcess.current("host")
    assert here == OwnerProcess("host", os.getpid(), None)
    assert not here.is_gone(here)
    assert OwnerProcess("host", 2**22 + 1, None).is_gone(here)


def test_a_process_of_another_user_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_permitted(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_permitted)
    here = OwnerProcess.current("host")
    assert not here.is_gone(here)


def test_a_program_name_with_spaces_and_parentheses_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(number) for number in range(4, 53))
    (tmp_path / "7" / "stat").write_text(f"7 (a) Z (b) S {fields}\n")
    monkeypatch.setattr(owner_process, "PROC", tmp_path)
    assert owner_process._state_and_start(7) == ("S", "22")


def test_a_takeover_waits_for_the_transaction_that_checked_the_fence(store: SqliteStore) -> None:
    """Between check and write: the new owner comes after all of the old one's transaction, never into it."""
    with store.open() as journal, store.open() as second:
        old = begin(journal)
        database = Database(JournalAddress.of(store.path))
        taken: list[int] = []
        with database.write() as connection:
            leases.guard(connection, old.lease)
            rival = threading.Thread(target=lambda: taken.append(take(second, requester(try_number=2)).fence))
            rival.start()
            time.sleep(0.3)
            assert taken == []  # it stands at BEGIN IMMEDIATE
            fence = connection.execute(select(t.lease.c.fence)).scalar_one()
            assert fence == old.lease.fence
        rival.join(10)
        assert taken == [old.lease.fence + 1]
        with pytest.raises(Fenced), database.write() as connection:
            leases.guard(connection, old.lease)
        database.close()


WRITER = """
import sys
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.states import DeliveryEvent
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import begin
with open_journal(sys.argv[1]) as journal:
    delivery = begin(journal)
    while True:
        writes = [delivery.event(DeliveryEvent.TUNED), delivery.event(DeliveryEvent.TUNED)]
        journal.append(delivery.lease, *writes)
        print(delivery.sequence, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 40])
def test_what_a_killed_writer_was_told_is_there_and_nothing_is_there_by_half(
    store: SqliteStore, acknowledged: int
) -> None:
    command = [sys.executable, "-c", WRITER, str(store.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(acknowledged)]
        process.kill()
        told = int([*lines, *process.stdout.readlines()][-1])
    with store.open() as journal:
        lease = take(journal, requester())
        key = Delivery(journal, lease).invocation_key
        events = journal.events(key)
        assert len(events) in (told, told + 2)  # the last transaction may have landed without an answer
        journal.append(lease, Delivery(journal, lease, sequence=len(events)).event(DeliveryState.EXTRACTED))
