"""Whole deliveries over a network that holds, loses, or keeps half of a connection."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_dpone.bulk_writer.writer import CHILD_MODULE, TdsWriter
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import TargetBusy
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.target_sqlserver.session import Session
from tests.crash.test_kill_matrix_fakes import EXPECTED, HIGHER_TRY, problems_after
from tests.fakes.world import as_set, requester
from tests.mssql.cable import Cable
from tests.mssql.lab import MssqlLab
from tests.mssql.test_kill_matrix import INSIDE_AND_OUT
from tests.mssql.way import Way, is_sent
from tests.mssql.world import MssqlWorld
from tests.unit.bulk_writer.test_writer_process import children, until


@pytest.fixture
def world(mssql_lab: MssqlLab, tmp_path: Path) -> MssqlWorld:
    """Six orders in two chunks, and rows that are there already."""
    return MssqlWorld.on(tmp_path / "world", mssql_lab, outside=INSIDE_AND_OUT)


def test_a_request_that_arrives_after_the_recovery_is_fenced(
    world: MssqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[A2] The request waits somewhere, its connection is lost, the same call settles it and publishes again;
    then the old request arrives."""
    sent, kept = Session.results, list[threading.Event]()

    def results(session: Session, text: str, *parameters: object) -> Any:
        if is_sent(text, parameters) and not kept:
            way.requests.clear()
            way.waiting.clear()
            threading.Thread(target=lose).start()
        return sent(session, text, *parameters)

    def lose() -> None:
        assert way.waiting.wait(60)
        time.sleep(2.0)  # the whole request has come so far
        kept.append(way.leave_behind())

    monkeypatch.setattr(Session, "results", results)
    with Way(world.where) as way:
        direct, world.where = world.where, way.where
        assert world.deliver().state == "COMPLETED"
        assert len(kept) == 1
        before = way.answered_bytes
        kept[0].set()
        until(lambda: way.answered_bytes > before, 60)  # the server has answered the old one
        world.where = direct
    assert [e.event for e in world.events()].count("PUBLISHING") == 2
    assert problems_after(world) == []


class FirstWrite(TdsWriter):
    """The product's writer; the first write takes another way and dies there with its rows half sent."""

    def __init__(self, where: SqlServerConnection, far: SqlServerConnection, lab: MssqlLab) -> None:
        super().__init__(where)
        self._far: TdsWriter | None = TdsWriter(far)
        self._lab = lab
        self.others = children()

    def write(
        self, stage: tr.StageRef, layout: Any, batches: Iterator[pa.RecordBatch], **asked: Any
    ) -> tr.WriterObservation:
        """As the product's, but for the first."""
        far, self._far = self._far, None
        if far is None:
            return super().write(stage, layout, batches, **asked)
        return far.write(stage, layout, self._killed(batches, asked["token_sha256"]), **asked)

    def _killed(self, batches: Iterator[pa.RecordBatch], token: str) -> Iterator[pa.RecordBatch]:
        before = self.others
        for batch in batches:
            yield batch
            until(lambda: not lock_is_free(self._lab, token), 120)
            (pid,) = children() - before
            os.kill(pid, signal.SIGKILL)
            yield batch


def lock_is_free(lab: MssqlLab, token: str) -> bool:
    asked = "SELECT APPLOCK_TEST('public', ?, 'Exclusive', 'Session')"
    return bool(lab.run(asked, sql.stage_lock(token))[0][0])


def test_a_session_that_outlives_its_writer_does_not_stop_the_delivery(world: MssqlWorld) -> None:
    """[B5] Half-open TCP. The chunk is written anew and published; the target stays reserved until the server
    has given the session up."""
    with Cable(world.where, swallows_the_end=True) as cable:
        writer = FirstWrite(world.where, cable.where, world.lab)
        world.writer, world.writer_settle_sec = writer, 2.0
        with pytest.raises(TargetBusy) as raised:
            world.deliver()
        assert (raised.value.code, raised.value.state_after) == ("dpone.target.writer_lives", "CHECKPOINTED")
        assert as_set(world.rows()) == EXPECTED
        assert len(world.receipts()) == 1
        assert world.custody().held
        (left,) = world.stages()
        with pytest.raises(TargetBusy):
            world.deliver(requester(**HIGHER_TRY))
        assert world.stages() == [left]
        cable.cut()
        (token,) = {
            e.body["writer_binding"]["grant_token_sha256"]
            for e in world.events()
            if e.event == "GRANTED" and e.body["stage_binding"]["stage_name"] == left
        }
        until(lambda: lock_is_free(world.lab, token), 60)
    assert world.deliver(requester(**HIGHER_TRY)).resumed_from == "CHECKPOINTED"
    assert problems_after(world, **HIGHER_TRY) == []


DYING = """
import os, signal, sys
from airflow_dpone.bulk_writer import child_tds
from airflow_dpone.bulk_writer.tds_session import Session
from airflow_dpone.bulk_writer.tds_write import Rows, Write

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def first(kind, name):
    kept = getattr(kind, name)
    setattr(kind, name, lambda self, *given: [kept(self, *given), die()])

def half_of_the_rows(self, kept=Rows.batches):
    for batch in kept(self):
        yield batch
        die()

{point}
os._exit(child_tds.main(sys.argv[1:]))
"""
POINTS = {
    "before it connects": ("child_tds.core_options = die", "PARTIAL_PROVED"),
    "before its lock": ("Session.take_lock = die", "PARTIAL_PROVED"),
    "with its lock": ("Write._copy = die", "PARTIAL_PROVED"),
    "in the copy": ("Rows.batches = half_of_the_rows", "PARTIAL_PROVED"),
    "after the copy": ("first(Write, '_copy')", "VERIFIED"),
    "before it disconnects": ("Session.close = die", "VERIFIED"),
    "after it has disconnected": ("first(Session, 'close')", "VERIFIED"),
}


class FirstDies(TdsWriter):
    """The product's writer; the process of its first write is another program."""

    def write(self, stage: tr.StageRef, layout: Any, batches: Any, **asked: Any) -> tr.WriterObservation:
        """As the product's, but for the first."""
        said = super().write(stage, layout, batches, **asked)
        self._child_module = CHILD_MODULE
        return said


@pytest.mark.parametrize("point", POINTS)
def test_a_writer_process_that_is_killed_at_any_point_is_judged_by_the_server(
    world: MssqlWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """[B7] Whatever it had done: the server counts and hashes under the barrier, and decides."""
    text, verdict = POINTS[point]
    (tmp_path / "dying_child.py").write_text(DYING.format(point=text))
    monkeypatch.syspath_prepend(tmp_path)
    world.writer = FirstDies(world.where, child_module="dying_child")
    assert world.deliver().state == "COMPLETED"
    found = [e.event for e in world.events() if e.stream.startswith("attempt/")]
    assert told(world, "UNKNOWN")["writer_outcome"] == "lost_ack"
    assert (found.count("INTENT"), found.count("PARTIAL_PROVED")) == (
        (2, 0) if verdict == "VERIFIED" else (3, 1)
    )
    if verdict == "PARTIAL_PROVED":
        assert told(world, "PARTIAL_PROVED")["count"] == 0, "one transaction for a chunk"
    assert problems_after(world) == []


def told(world: MssqlWorld, event: str) -> dict[str, Any]:
    """The observation of the one attempt that came to this event."""
    (found,) = [
        e.body["observation"] for e in world.events() if e.stream.startswith("attempt/") and e.event == event
    ]
    return dict(found)
