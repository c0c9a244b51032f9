"""What only the embedded engine has: one directory for one process, behind a lock of our own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.embedded_lock import EmbeddedLock
from airflow_dpone.errors import ConfigurationError, SourceUnavailable
from airflow_dpone.source_clickhouse.embedded import EmbeddedSource
from tests.contract.chdb_world import ChdbWorld, chdb_directory


@pytest.fixture
def world() -> Iterator[ChdbWorld]:
    """A database of its own, so that no test sees the tables of another one."""
    made = ChdbWorld()
    yield made
    made.drop()


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    for path, says in ((missing, "is no directory"), (empty, "holds no chDB data")):
        with (
            pytest.raises(ConfigurationError, match=says) as caught,
            EmbeddedSource(str(path), lock_wait_sec=0),
        ):
            pass
        assert caught.value.code == "dpone.source.directory"
    assert not missing.exists()
    assert list(empty.iterdir()) == []


def test_a_second_directory_in_one_process_is_refused(world: ChdbWorld, tmp_path: Path) -> None:
    """[2.6 a]"""
    (tmp_path / "metadata").mkdir()
    with world.source(), pytest.raises(SourceUnavailable) as caught:
        EmbeddedSource(str(tmp_path), lock_wait_sec=0).__enter__()
    assert caught.value.code == "dpone.source.other_directory"
    assert chdb_directory() in str(caught.value)


def test_a_directory_in_use_is_named_with_its_holder(world: ChdbWorld) -> None:
    """[2.6 b] Another process has our lock: wait, then say who; retried by itself."""
    code = (
        "import sys, time\nfrom airflow_dpone.embedded_lock import EmbeddedLock\n"
        "with EmbeddedLock(sys.argv[1], 0):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    path = f"{chdb_directory()}/dpone.lock"
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(SourceUnavailable) as caught:
                world.source(lock_wait_sec=0.1).__enter__()
        finally:
            holder.kill()
    assert (caught.value.code, caught.value.retry) == ("dpone.source.locked", "backoff")
    assert caught.value.fields["holder_pid"] == holder.pid
    assert chdb_directory() in str(caught.value)
    with world.source(lock_wait_sec=5):
        pass


def test_the_lock_is_free_after_an_error_on_opening(
    world: ChdbWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: EmbeddedSource) -> Any:
        raise SourceUnavailable("dpone.source.failed", "no")

    source = world.source()
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedSource, "_new_session", broken)
        with pytest.raises(SourceUnavailable):
            source.__enter__()
    with EmbeddedLock(f"{chdb_directory()}/dpone.lock", 0):
        pass
    with source:
        pass


def test_the_engines_own_default_database_is_refused(world: ChdbWorld) -> None:
    """[2.6 f] chDB's `default`."""
    world.execute("CREATE TABLE default.dpone_overlay (k Int64) ENGINE = MergeTree ORDER BY k")
    try:
        with world.source() as source:
            problems = source.describe("default", "dpone_overlay").problems
    finally:
        world.execute("DROP TABLE default.dpone_overlay SYNC")
    assert [p.code for p in problems] == ["dpone.source.database"]
