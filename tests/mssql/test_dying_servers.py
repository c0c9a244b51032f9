"""The server is killed in the middle and started again: the next call ends exact, with one receipt.

Needs DPONE_TEST_MSSQL_KILL and DPONE_TEST_MSSQL_START, commands that kill the server (SIGKILL) and start it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_dpone.bulk_writer.writer import TdsWriter
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import DponeError
from airflow_dpone.target_sqlserver.session import Session
from tests.crash.test_kill_matrix_fakes import HIGHER_TRY, problems_after
from tests.fakes.world import requester
from tests.mssql import server
from tests.mssql.lab import MssqlLab
from tests.mssql.test_kill_matrix import INSIDE_AND_OUT
from tests.mssql.way import Way, is_sent
from tests.mssql.world import MssqlWorld
from tests.unit.bulk_writer.test_writer_process import until

LACK = server.why_not_killed()
pytestmark = [pytest.mark.skipif(LACK is not None, reason=str(LACK))]


@pytest.fixture
def world(mssql_lab: MssqlLab, tmp_path: Path) -> MssqlWorld:
    """Six orders in two chunks, and rows that are there already."""
    return MssqlWorld.on(tmp_path / "world", mssql_lab, outside=INSIDE_AND_OUT)


class Interrupted(TdsWriter):
    """The product's writer; ``act`` happens once, after a first batch was taken."""

    act: Callable[[], None] | None = None

    def write(
        self, stage: tr.StageRef, layout: Any, batches: Iterator[pa.RecordBatch], **asked: Any
    ) -> tr.WriterObservation:
        """As the product's."""
        return super().write(stage, layout, self._interrupted(batches), **asked)

    def _interrupted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)
            act, self.act = self.act, None
            if act is not None:
                act()
            yield batch.slice(1)


def ends_well_or_named(world: MssqlWorld, call: Callable[[], r.DeliveryResult]) -> None:
    """It completes, or says in which state it is and that it may be tried again."""
    error = None
    try:
        state = str(call().state)
    except DponeError as caught:
        error, state = caught, str(caught.state_after)
    assert state in ("COMPLETED", "PLANNED", "EXTRACTED", "STAGED", "PREPARED", "PUBLISHING", "UNKNOWN")
    assert world.invocation().state == state
    assert error is None or error.retry in ("backoff", "after_clear"), error


def kill(world: MssqlWorld) -> None:
    server.kill_and_start()
    world.lab.connect_again()


def test_killed_while_rows_are_loaded(world: MssqlWorld) -> None:
    writer = Interrupted(world.where)

    def act() -> None:
        time.sleep(3.0)  # the session has its lock, the first row is on its way
        kill(world)

    writer.act = act
    world.writer = writer
    ends_well_or_named(world, lambda: world.deliver(requester(**HIGHER_TRY)))
    assert writer.act is None
    assert problems_after(world, **HIGHER_TRY) == []


def deliver_apart(world: MssqlWorld) -> Future[r.DeliveryResult]:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(lambda: world.deliver(requester(**HIGHER_TRY)))
    finally:
        pool.shutdown(wait=False)


def test_killed_while_it_publishes(world: MssqlWorld) -> None:
    """The batch stands in the middle, its changes of the gate are not committed: they are undone."""
    blocker = world.lab.second_connection()
    blocker.execute("BEGIN TRANSACTION; UPDATE [shop].[orders] SET note = note WHERE id = 902")
    running = deliver_apart(world)
    until(world.is_being_published, 240)
    time.sleep(2.0)
    kill(world)
    ends_well_or_named(world, lambda: running.result(300))
    assert problems_after(world, **HIGHER_TRY) == []


def test_killed_between_the_commit_and_its_answer(world: MssqlWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is there after the restart, and the next call finds its receipt."""
    sent, held = Session.results, threading.Event()

    def results(session: Session, text: str, *parameters: object) -> Any:
        if is_sent(text, parameters) and not held.is_set():
            held.set()
            way.answers.clear()
        return sent(session, text, *parameters)

    monkeypatch.setattr(Session, "results", results)
    with Way(world.where) as way:
        direct, world.where = world.where, way.where
        running = deliver_apart(world)
        assert held.wait(240)
        until(lambda: bool(world.receipts()), 120)
        kill(world)
        way.cut()
        ends_well_or_named(world, lambda: running.result(300))
        world.where = direct
    assert len(world.receipts()) == 1
    assert problems_after(world, **HIGHER_TRY) == []
