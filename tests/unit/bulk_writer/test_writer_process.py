"""The supervisor over real processes that misbehave: every end has a name, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_dpone.bulk_writer import supervisor, writer
from airflow_dpone.bulk_writer.writer import TdsWriter
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import DponeError, Fenced, SourceDataError, SpoolError
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from tests.architecture.package_source import ROOT
from tests.contract.target_cases import NEW, ORDERS, batch_of, layout_of

PASSWORD = "tr0ub4dor-&-3"
TOKEN, OWNER = "a" * 64, "b" * 64
LAYOUT = layout_of(ORDERS)
BATCH = batch_of(NEW, LAYOUT)
WHERE = SqlServerConnection("127.0.0.1", "shop", 1, "dpone", PASSWORD, trust_server_certificate=True)
FAKE = "tests.fakes.writer_child"


def write(
    what: str,
    batches: Iterator[pa.RecordBatch] | None = None,
    *,
    seconds: float = 30,
    cancel: Cancel | None = None,
    module: str = FAKE,
    where: SqlServerConnection = WHERE,
) -> tr.WriterObservation:
    """One write by a child that does what it is called."""
    sent = iter([BATCH, BATCH]) if batches is None else batches
    stage = tr.StageRef(what, OWNER, 7)
    deadline = Deadline.after(seconds, cancel)
    return TdsWriter(where, child_module=module).write(
        stage, LAYOUT, sent, token_sha256=TOKEN, deadline=deadline
    )


def children() -> set[int]:
    """Processes that this one has started and that are not reaped."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def state(pid: int) -> str:
    """R, S, T, Z ... or '' when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def program(pid: int) -> bytes:
    """Its command line; b'' when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


class Beside:
    """A write in another thread, and its child."""

    def __init__(self, what: str, **options: object) -> None:
        before = children()
        self._pool = ThreadPoolExecutor(1)
        self._said = self._pool.submit(write, what, **options)  # type: ignore[arg-type]
        until(lambda: children() - before)
        (self.pid,) = children() - before
        # Until it runs its own program it is a copy of this one, and whoever started it waits for it.
        until(lambda: program(self.pid) != program(os.getpid()))

    def result(self) -> tr.WriterObservation:
        try:
            return self._said.result(timeout=60)
        finally:
            self._pool.shutdown()


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No child and no open file outlives a write."""
    before, files = children(), len(os.listdir("/proc/self/fd"))
    yield
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) == files


def test_all_rows_and_a_good_word_are_a_success() -> None:
    said = write("obedient")
    assert (said.outcome, said.rows, said.diagnostic_code) == ("success", 2 * len(NEW), None)
    assert said.write_sec is not None
    assert said.write_sec > 0


def test_no_batch_is_no_row() -> None:
    assert write("obedient", iter([])).rows == 0


@pytest.mark.parametrize(
    ("what", "outcome", "why"),
    [
        ("refused", "failure", "dpone.writer.connect"),
        ("counts_wrong", "lost_ack", "dpone.writer.protocol"),
        ("another_writer", "lost_ack", "dpone.writer.protocol"),
        ("garbage", "lost_ack", "dpone.writer.protocol"),
        ("flood", "lost_ack", "dpone.writer.protocol"),
        ("says_more", "lost_ack", "dpone.writer.protocol"),
        ("says_it_twice", "lost_ack", "dpone.writer.protocol"),
        ("says_half", "lost_ack", "dpone.writer.protocol"),
        ("leaves_early", "lost_ack", "dpone.writer.process_lost"),
        ("panic", "lost_ack", "dpone.writer.process_lost"),
        ("killed_in_the_copy", "lost_ack", "dpone.writer.process_lost"),
        ("killed_at_the_end", "lost_ack", "dpone.writer.process_lost"),
        ("answers_and_fails", "lost_ack", "dpone.writer.process_lost"),
    ],
)
def test_every_other_end_has_a_name_and_no_rows(what: str, outcome: str, why: str) -> None:
    said = write(what)
    assert (said.outcome, said.rows, said.diagnostic_code) == (outcome, None, why)


@pytest.mark.parametrize("what", ["hang", "hangs_in_the_copy", "hangs_at_the_end", "answers_and_hangs"])
def test_a_hang_ends_with_the_deadline(what: str) -> None:
    """Also behind an answer: a process that does not go may still hold its session."""
    began = time.monotonic()
    said = write(what, seconds=5)
    assert (said.outcome, said.rows, said.diagnostic_code) == ("timeout", None, "dpone.writer.deadline")
    assert time.monotonic() - began < 5 + supervisor.TERM_SEC


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    began = time.monotonic()
    assert write("stubborn", seconds=2).outcome == "timeout"
    assert time.monotonic() - began < 2 + supervisor.TERM_SEC + supervisor.KILL_SEC


def test_no_time_left_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WriterProcess", None)
    assert write("obedient", seconds=0).outcome == "timeout"


def test_a_process_that_cannot_be_started_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    said = write("obedient")
    assert (said.outcome, said.diagnostic_code) == ("failure", "dpone.writer.not_started")


def test_a_process_that_cannot_be_watched_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    said = write("hang")
    assert (said.outcome, said.diagnostic_code) == ("failure", "dpone.writer.not_started")


def test_what_cannot_be_asked_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WriterProcess", None)
    where = SqlServerConnection("127.0.0.1", "shop", 1, "dpone", "x" * 2000)
    said = write("obedient", where=where)
    assert (said.outcome, said.diagnostic_code) == ("failure", "dpone.writer.request")


def test_a_process_that_does_not_go_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What SIGKILL cannot end yet, a process in the kernel, is shown here by one that gets no signal."""
    made: list[supervisor.WriterProcess] = []
    monkeypatch.setattr(supervisor.WriterProcess, "_signal", lambda self, _: made.append(self))
    monkeypatch.setattr(supervisor, "TERM_SEC", 0.1)
    monkeypatch.setattr(supervisor, "KILL_SEC", 0.1)
    said = write("hang", seconds=1)
    assert (said.outcome, said.diagnostic_code) == ("cleanup_failed", "dpone.writer.not_reaped")
    os.killpg(made[0].pid, signal.SIGKILL)
    made[0]._process.wait()


def test_eight_megabytes_of_errors_are_thrown_away() -> None:
    assert write("noisy").outcome == "success"


def test_what_the_process_started_ends_with_it() -> None:
    """It is in the group, and holds the answer's pipe open."""
    before = {int(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    beside = Beside("leaves_a_child")
    assert beside.result().outcome == "success"

    def left() -> list[int]:
        return [pid for pid in _in_group(beside.pid) if pid not in before]

    until(lambda: not left())


def _in_group(group: int) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(pid))
    return found


def test_it_has_a_group_of_its_own() -> None:
    beside = Beside("hang", seconds=3)
    assert os.getpgid(beside.pid) == beside.pid != os.getpgid(0)
    assert os.getsid(beside.pid) == beside.pid
    beside.result()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_killed_process_is_a_lost_answer(number: int) -> None:
    beside = Beside("hang")
    os.kill(beside.pid, number)
    said = beside.result()
    assert (said.outcome, said.diagnostic_code) == ("lost_ack", "dpone.writer.process_lost")


def test_a_stopped_process_goes_on_where_it_was() -> None:
    beside = Beside("obedient")
    os.kill(beside.pid, signal.SIGSTOP)
    until(lambda: state(beside.pid) == "T")
    time.sleep(0.5)
    os.kill(beside.pid, signal.SIGCONT)
    assert beside.result().outcome == "success"


def test_a_process_that_stays_stopped_ends_with_the_deadline() -> None:
    beside = Beside("obedient", seconds=2)
    os.kill(beside.pid, signal.SIGSTOP)
    assert beside.result().outcome == "timeout"
    assert state(beside.pid) == ""


def test_a_cancelled_work_ends_the_process_and_says_why() -> None:
    cancel = Cancel()
    threading.Timer(
        1.0, cancel.set, [Fenced("dpone.journal.fenced", "Another process has taken over.")]
    ).start()
    began = time.monotonic()
    with pytest.raises(Fenced, match="taken over"):
        write("hang", cancel=cancel)
    assert time.monotonic() - began < 10


def broken(error: DponeError) -> Iterator[pa.RecordBatch]:
    yield BATCH
    raise error


@pytest.mark.parametrize("what", ["obedient", "hang"])
def test_rows_that_cannot_be_read_are_the_callers_error(what: str) -> None:
    """Not the writer's; and a process that takes nothing is not waited for."""
    began = time.monotonic()
    with pytest.raises(SpoolError, match="damaged"):
        write(what, broken(SpoolError("dpone.spool.damaged", "A sealed chunk is damaged.")))
    assert time.monotonic() - began < 20


def test_rows_of_another_layout_are_not_sent() -> None:
    other = BATCH.rename_columns(["other", *BATCH.schema.names[1:]])
    with pytest.raises(SourceDataError, match="not of the planned layout"):
        write("obedient", iter([BATCH, other]))


def test_rows_wait_where_they_are_until_they_are_taken() -> None:
    """Memory: a batch in hand, and what a pipe holds."""
    read = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal read
        big = pa.concat_batches([BATCH] * 20_000)
        assert big.nbytes > 2 << 20
        for _ in range(50):
            read += 1
            yield big

    assert write("hangs_in_the_copy", batches(), seconds=4).outcome == "timeout"
    assert read <= 2


def test_several_threads_write_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(write, ["obedient", "counts_wrong", "obedient", "leaves_early"]))
    assert [one.outcome for one in said] == ["success", "lost_ack", "success", "lost_ack"]


def test_the_process_ends_with_its_parent() -> None:
    """Also when that is killed, and with it the thread that waits."""
    code = "from tests.unit.bulk_writer.test_writer_process import write\nwrite('hang', seconds=100)"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        until(lambda: _children_of(parent.pid))
        (child,) = _children_of(parent.pid)
        until(lambda: state(child) == "S")
        time.sleep(0.5)  # it has asked the kernel by now, or sees that its parent is gone
    finally:
        parent.kill()
        parent.wait()
    until(lambda: state(child) in ("", "Z"))


def _children_of(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def test_the_password_is_in_no_place_where_others_could_look() -> None:
    """The real program, while it waits for a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = SqlServerConnection("127.0.0.1", "shop", silent.getsockname()[1], "dpone", PASSWORD)
        beside = Beside("any", module=writer.CHILD_MODULE, where=where, seconds=12)
        connection, _ = silent.accept()  # it knows the password now
        with connection:
            place = Path(f"/proc/{beside.pid}")
            for name in ("cmdline", "environ", "comm"):
                shown = (place / name).read_bytes()
                assert PASSWORD.encode() not in shown
                assert b"dpone_stage" not in shown
            files = [os.readlink(one) for one in (place / "fd").iterdir()]
            assert not [one for one in files if one.startswith("/") and not one.startswith("/dev")]
            limits = (place / "limits").read_text()
            assert "Max core file size        0                    0" in limits
        said = beside.result()
    assert (said.outcome, said.diagnostic_code) == ("failure", "dpone.writer.connect")
    assert PASSWORD not in repr(said)


def test_no_server_is_a_failure_with_a_name(caplog: pytest.LogCaptureFixture) -> None:
    said = write("any", module=writer.CHILD_MODULE)
    assert (said.outcome, said.rows, said.diagnostic_code) == ("failure", None, "dpone.writer.connect")
    assert "dpone.writer.connect" in caplog.text
    assert PASSWORD not in caplog.text
