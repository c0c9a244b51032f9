"""SIGKILL at the crash points of a delivery into SQL Server, then the same call again.

At every point of the target and of the writer, where it is passed for the last time. What the points of
source, spool and journal mean does not depend on the target, and tests/crash kills at each of them;
DPONE_TEST_MSSQL_MATRIX=all kills at each here too, every time it is passed.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_dpone.errors import OutcomeUnknown, TargetBusy
from airflow_dpone.settings import Limits
from tests.crash.test_kill_matrix_fakes import HIGHER_TRY, problems_after
from tests.fakes.kill_child import KillServer, start_child
from tests.fakes.world import as_set, order, orders, requester
from tests.mssql.lab import MssqlLab
from tests.mssql.world import MssqlWorld
from tests.unit.bulk_writer.test_writer_process import until

INSIDE_AND_OUT = [tuple(order(902)), tuple(order(900, day=-1)), tuple(order(901, day=1))]
"""Rows that are there already; the first one is in the window."""
ALL = os.environ.get("DPONE_TEST_MSSQL_MATRIX") == "all"


def chosen_of(points: list[str]) -> list[int]:
    """Where to kill; see above."""
    last = {point: index for index, point in enumerate(points) if "_target_" in point or "_writer_" in point}
    return list(range(len(points))) if ALL else sorted(last.values())


@pytest.mark.timeout(7200 if ALL else 1800)
def test_a_process_that_is_killed_at_any_point_is_replaced_and_nothing_shows(
    mssql_lab: MssqlLab, tmp_path: Path
) -> None:
    template = MssqlWorld.on(tmp_path / "template", mssql_lab, outside=INSIDE_AND_OUT)
    points: list[str] = []
    recorded = template.twin(tmp_path / "recorded", "recorded", outside=INSIDE_AND_OUT)
    recorded.deliver(observer=lambda point: points.append(str(point)))
    chosen = chosen_of(points)
    worlds = {i: template.twin(tmp_path / str(i), f"t{i}", outside=INSIDE_AND_OUT) for i in chosen}

    def lane(number: int) -> list[tuple[int, int]]:
        with KillServer(MssqlWorld.child_module) as server:
            return [(index, server.run(worlds[index].root, index)) for index in chosen[number::2]]

    with ThreadPoolExecutor(2) as pool:
        codes = dict(pair for pairs in pool.map(lane, (0, 1)) for pair in pairs)
    wrong = {}
    for index in chosen:
        died = [] if codes[index] == -signal.SIGKILL else [f"the child ended with {codes[index]}"]
        found = died + [what for what in problems_after(worlds[index]) if not what.startswith("stage ")]
        if found:
            wrong[f"{index}: {points[index]}"] = found
    assert wrong == {}
    assert mssql_lab.stage_names() == []
    assert len(codes) == len(chosen) >= 16
    assert {"before_target_publish", "after_target_publish", "before_writer_write"} <= set(points)


def writers_of(pid: int) -> list[int]:
    """The bulk writer processes that were started by this process; they outlive it by moments, or not."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"airflow_dpone.bulk_writer.child_tds" in words and str(pid).encode() in words:
            found.append(int(entry.name))
    return found


def test_a_process_that_is_killed_with_four_writers_takes_them_along(
    mssql_lab: MssqlLab, tmp_path: Path
) -> None:
    """Each stage is judged by the barrier, and the next call delivers what was sealed."""
    limits = Limits(max_rows=4, import_parallelism=4)
    world = MssqlWorld.on(tmp_path / "world", mssql_lab, 30, limits, outside=INSIDE_AND_OUT)
    child = start_child(world.root, signal.SIGSTOP, "before_writer_write:5", module=world.child_module)
    try:
        until(lambda: len(writers_of(child.pid)) >= 1, 240)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        began = len([e for e in world.events() if e.event == "WRITING"])
        child.kill()
        child.communicate()
        until(lambda: writers_of(child.pid) == [], 30)
    finally:
        child.kill()
        child.communicate()
    assert began >= 4
    result = world.deliver(requester(**HIGHER_TRY))
    assert (result.rows, result.chunks, result.resumed_from) == (30, 8, "EXTRACTED")
    assert as_set(world.rows()) == as_set([*orders(30), *INSIDE_AND_OUT[1:]])
    assert len(world.receipts()) == 1
    assert world.untidy() == []


def test_many_chunks_are_delivered_exactly_by_four_writers(mssql_lab: MssqlLab, tmp_path: Path) -> None:
    limits = Limits(max_rows=4, import_parallelism=4)
    world = MssqlWorld.on(tmp_path / "world", mssql_lab, 22, limits, outside=INSIDE_AND_OUT)
    assert world.deliver().chunks == 6
    assert as_set(world.rows()) == as_set([*orders(22), *INSIDE_AND_OUT[1:]])
    assert world.untidy() == []


def test_a_process_that_is_killed_while_the_server_publishes(mssql_lab: MssqlLab, tmp_path: Path) -> None:
    """Scenario 12: the server may go on for the dead client. While it does, nothing is known and nothing is
    sent; afterwards the target says what happened."""
    world, lab = MssqlWorld.on(tmp_path / "world", mssql_lab, outside=INSIDE_AND_OUT), mssql_lab
    blocker = lab.second_connection()
    blocker.execute("BEGIN TRANSACTION; UPDATE [shop].[orders] SET note = note WHERE id = 902")
    child = start_child(world.root, signal.SIGKILL, -1, module=world.child_module)
    try:
        until(world.is_being_published, 240)
        time.sleep(2.0)  # the batch stands before the row by now, the gate is changed and not committed
        child.kill()
        child.communicate()
        world.settle_sec = 1.0
        if lab.is_standin:  # it does not notice that a client is gone
            with pytest.raises((TargetBusy, OutcomeUnknown)) as raised:
                world.deliver(requester(**HIGHER_TRY))
            assert raised.value.code in ("dpone.publish.outcome_unknown", "dpone.target.busy")
            assert raised.value.state_after in ("PUBLISHING", "UNKNOWN")
    finally:
        child.kill()
        child.communicate()
        blocker.execute("ROLLBACK TRANSACTION")
        blocker.close()
    world.settle_sec = 120.0
    assert problems_after(world, **HIGHER_TRY) == []
