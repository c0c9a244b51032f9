"""Opening the file: what is refused, and who waits for whom."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from airflow_dpone.errors import ConfigurationError, TargetBusy
from airflow_dpone.target_embedded.session import Session
from airflow_dpone.target_embedded.target import EmbeddedTarget


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "t.duckdb")
    with duckdb.connect(found) as connection:
        connection.execute("CREATE TABLE t (a BIGINT)")
    return found


def run_child(source: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own that says ``ready`` and waits for a line."""
    command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.fixture
def holder(path: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the target open."""
    source = """
        import sys
        from airflow_dpone.target_embedded.target import EmbeddedTarget
        with EmbeddedTarget(sys.argv[1], lock_wait_sec=0):
            print("ready", flush=True)
            sys.stdin.readline()
    """
    child = run_child(source, path)
    yield child
    child.kill()
    child.communicate()


def opened(path: str, wait_sec: float = 0) -> None:
    with EmbeddedTarget(path, lock_wait_sec=wait_sec):
        pass


def refused(path: str, code: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        opened(path)
    assert caught.value.code == code
    return caught.value


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    refused(str(tmp_path / "none.duckdb"), "dpone.target.file_missing")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    refused(str(tmp_path), "dpone.target.file_missing")


@pytest.mark.parametrize("content", [b"", b"x", b"not a database at all" * 1000])
def test_a_file_that_is_no_database_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    refused(str(file), "dpone.target.not_a_database")
    assert file.read_bytes() == content


def test_a_damaged_database_is_said_to_be_one(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(12)
        file.write(b"\xff" * 8)  # the storage version
    refused(path, "dpone.target.file_unusable")


def test_a_failed_open_gives_the_lock_back(tmp_path: Path, path: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_bytes(b"x")
    refused(str(file), "dpone.target.not_a_database")
    file.unlink()
    os.rename(path, file)
    opened(str(file))


def test_a_second_process_is_told_who_holds_it(path: str, holder: subprocess.Popen[str]) -> None:
    started = time.monotonic()
    with pytest.raises(TargetBusy) as caught:
        opened(path, 0.3)
    assert time.monotonic() - started >= 0.3
    assert (caught.value.code, caught.value.fields["holder"]) == ("dpone.target.locked", holder.pid)
    assert str(holder.pid) in caught.value.message


def test_a_second_process_gets_in_when_the_first_one_leaves(path: str, holder: subprocess.Popen[str]) -> None:
    source = """
        import sys
        from airflow_dpone.target_embedded.target import EmbeddedTarget
        print("ready", flush=True)
        with EmbeddedTarget(sys.argv[1], lock_wait_sec=30) as target:
            print("in", flush=True)
    """
    waiting = run_child(source, path)
    assert waiting.poll() is None
    holder.communicate("go\n")
    out, _ = waiting.communicate(timeout=30)
    assert (out, waiting.returncode) == ("in\n", 0)


def test_two_names_of_one_file_meet_at_one_lock(path: str, tmp_path: Path) -> None:
    link = tmp_path / "link.duckdb"
    link.symlink_to(path)
    with EmbeddedTarget(path, lock_wait_sec=0), pytest.raises(TargetBusy) as caught:
        opened(str(link))
    assert caught.value.fields["holder"] == os.getpid()


def test_a_process_that_takes_only_duckdbs_own_lock_is_noticed(path: str) -> None:
    source = """
        import duckdb, sys
        connection = duckdb.connect(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.readline()
    """
    child = run_child(source, path)
    try:
        with pytest.raises(TargetBusy) as caught:
            opened(path)
        assert caught.value.code == "dpone.target.locked"
    finally:
        child.kill()
        child.communicate()
    opened(path)


def test_a_file_that_is_open_here_with_other_settings_is_in_use(path: str) -> None:
    with duckdb.connect(path, config={"access_mode": "READ_ONLY"}), pytest.raises(TargetBusy) as caught:
        opened(path)
    assert caught.value.code == "dpone.target.locked"
    opened(path)


def test_nothing_works_outside_of_with(path: str) -> None:
    target = EmbeddedTarget(path, lock_wait_sec=0)
    with pytest.raises(RuntimeError):
        target.describe("main", "t")
    with target:
        target.describe("main", "t")
    with pytest.raises(RuntimeError):
        target.describe("main", "t")
    with target:  # and it may be opened again
        target.describe("main", "t")


def test_a_failed_close_gives_the_lock_back_and_hides_no_error(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(_: Session) -> None:
        raise duckdb.IOException("full")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "close", close)
        with pytest.raises(TargetBusy, match="IOException"):
            opened(path)
        with pytest.raises(KeyError), EmbeddedTarget(path, lock_wait_sec=0):
            raise KeyError("what happened")
    opened(path)


def test_the_session_is_pinned(path: str) -> None:
    names = (
        "TimeZone",
        "python_enable_replacements",
        "autoload_known_extensions",
        "autoinstall_known_extensions",
    )
    with EmbeddedTarget(path, lock_wait_sec=0) as target:
        for session in (target._session, target._session.another()):
            found = session.row("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
            assert found == ("UTC", False, False, False)
