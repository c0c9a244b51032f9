"""One user at a time for an embedded engine's directory."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_dpone.embedded_lock import EmbeddedLock, EmbeddedLockBusy

HOLD = (
    "import sys, time\nfrom airflow_dpone.embedded_lock import EmbeddedLock\n"
    "with EmbeddedLock(sys.argv[1], 5):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "dpone.lock")


@contextmanager
def another_process(path: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until it is killed."""
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()


def test_it_is_held_inside_with_only(path: str) -> None:
    with EmbeddedLock(path, 0):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert Path(path).read_text() == f"{os.getpid()}\n"
    assert Path(path).read_text() == ""
    with EmbeddedLock(path, 0):
        pass


def test_a_second_user_of_the_same_thread_is_told_at_once(path: str) -> None:
    """Waiting for oneself would never end."""
    started = time.monotonic()
    with EmbeddedLock(path, 0), pytest.raises(EmbeddedLockBusy) as caught:
        EmbeddedLock(path, 60).__enter__()
    assert time.monotonic() - started < 5
    assert caught.value.is_own
    assert caught.value.holder_pid == os.getpid()
    assert "this process" in str(caught.value)


def test_the_same_object_cannot_be_entered_twice(path: str) -> None:
    lock = EmbeddedLock(path, 60)
    with lock, pytest.raises(EmbeddedLockBusy):
        lock.__enter__()
    with lock:
        pass


def test_another_name_of_the_same_file_is_the_same_lock(path: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with EmbeddedLock(path, 0), pytest.raises(EmbeddedLockBusy) as caught:
        EmbeddedLock(str(tmp_path / "link" / "dpone.lock"), 60).__enter__()
    assert caught.value.is_own


def test_another_thread_waits_for_it(path: str) -> None:
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        with EmbeddedLock(path, 0):
            entered.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(30)
    with pytest.raises(EmbeddedLockBusy):
        EmbeddedLock(path, 0.05).__enter__()
    release.set()
    with EmbeddedLock(path, 30):
        thread.join()


def test_another_process_is_named(path: str) -> None:
    with another_process(path) as holder, pytest.raises(EmbeddedLockBusy) as caught:
        EmbeddedLock(path, 0.05).__enter__()
    assert caught.value.holder_pid == holder.pid
    assert not caught.value.is_own
    assert str(holder.pid) in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.path, again.holder_pid) == (path, holder.pid)


def test_a_killed_holder_frees_it(path: str) -> None:
    with another_process(path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with EmbeddedLock(path, 5):
            assert Path(path).read_text() == f"{os.getpid()}\n"


def test_a_child_that_was_started_meanwhile_does_not_keep_it(path: str) -> None:
    """It is not inherited over exec."""
    with EmbeddedLock(path, 0):
        child = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"])
    try:
        with EmbeddedLock(path, 0):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_file_that_was_removed_meanwhile_is_not_the_lock(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holding the removed file and its successor at once would be two users."""
    real = os.open
    opened: list[int] = []

    def removing(name: str, *args: int, **options: int) -> int:
        fd = real(name, *args, **options)
        if not opened:
            os.unlink(path)
        opened.append(fd)
        return fd

    monkeypatch.setattr(os, "open", removing)
    with EmbeddedLock(path, 5):
        assert len(opened) == 2
        assert os.path.samestat(os.fstat(opened[1]), os.stat(path))


def test_a_link_in_its_place_is_not_followed(path: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    Path(path).symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic") as caught:
        EmbeddedLock(path, 0).__enter__()
    assert not isinstance(caught.value, EmbeddedLockBusy)
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_missing_directory_is_an_error_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        EmbeddedLock(str(tmp_path / "no" / "dpone.lock"), 0).__enter__()
    assert list(tmp_path.iterdir()) == []
