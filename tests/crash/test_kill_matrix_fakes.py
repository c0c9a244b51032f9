"""SIGKILL at every crash point, and a stopped process that wakes up after it was replaced, on the fakes.

The fakes may be open in two processes at once, so that the second one reaches the code under test; the
embedded engines never let it come so far.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery import identity
from airflow_dpone.errors import DponeError, LeaseHeld
from tests.fakes import target_storage as storage
from tests.fakes.kill_child import KillServer, answer_of, run_child, start_child, wait_until_stopped
from tests.fakes.world import SCHEMA, TABLE, World, as_set, order, orders, requester

OUTSIDE = [order(900, day=-1), order(901, day=1)]
EXPECTED = as_set([*orders(6), *OUTSIDE])
HIGHER_TRY = {"try_number": 2, "ti_id": "run-1-try-2"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Six orders in two chunks, one of them twice; the target holds old rows inside and outside of the
    window."""
    world = World.create(tmp_path_factory.mktemp("template") / "world")
    world.target.insert(SCHEMA, TABLE, [order(902), *OUTSIDE])
    return world


@pytest.fixture(scope="module")
def points(template: World, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The crash points of one delivery, in order."""
    passed: list[str] = []
    template.copy(tmp_path_factory.mktemp("recorded") / "world").deliver(
        observer=lambda point: passed.append(str(point))
    )
    return passed


def problems_after(world: World, **who: Any) -> list[str]:
    """Calls again and says everything that is not as if nothing had happened."""
    try:
        result = world.deliver(requester(**who))
    except (DponeError, LookupError, RuntimeError) as error:
        return [f"{type(error).__name__}: {error}"]
    found = world.untidy()
    if as_set(world.rows()) != EXPECTED:
        found.append("the target's rows are not the source's")
    if [(row[1], row[2]) for row in world.receipts()] != [(1, result.operation_id)]:
        found.append(f"receipts: {world.receipts()}")
    checkpoint = world.checkpoint(result)
    if checkpoint is None or checkpoint.receipt_sha256 != result.receipt_sha256:
        found.append(f"checkpoint: {checkpoint}")
    with world.open_journal() as journal:
        evidence = journal.evidence(result.evidence_sha256)
        journal.events(result.invocation_key)
    if evidence is None or identity.sha256_hex(evidence) != result.evidence_sha256:
        found.append("the evidence is missing")
    return found


def test_a_recorded_delivery_passes_every_port(points: list[str]) -> None:
    """The matrix is only as good as its list."""
    named = {point.partition("_")[2].partition("_")[0] for point in points}
    assert named == {"source", "spool", "chunk", "target", "writer", "journal"}
    assert points.count("before_chunk_seal") == 2
    assert points.count("before_writer_write") == 2
    assert len(points) >= 90


@pytest.mark.timeout(300)  # a hundred processes, on a machine that may have other work
def test_a_process_that_is_killed_at_any_point_is_replaced_and_nothing_shows(
    template: World, points: list[str], tmp_path: Path
) -> None:
    worlds = [template.copy(tmp_path / str(index)) for index in range(len(points))]
    wrong: dict[str, list[str]] = {}

    def kill_all(first: int) -> list[tuple[int, int]]:
        with KillServer() as server:
            return [(index, server.run(worlds[index].root, index)) for index in range(first, len(worlds), 2)]

    with ThreadPoolExecutor(max_workers=2) as pool:
        codes = [pair for pairs in pool.map(kill_all, (0, 1)) for pair in pairs]
    for index, code in sorted(codes):
        died = [] if code == -signal.SIGKILL else [f"the child ended with {code}"]
        if found := died + problems_after(worlds[index]):
            wrong[f"{index}: {points[index]}"] = found
    assert len(codes) == len(points)
    assert wrong == {}


STOPS = [
    "after_journal_acquire",
    "before_target_claim_gate",
    "before_source_read",
    "after_chunk_seal",
    "before_target_create_stage",
    "after_target_grant",
    "before_writer_write",
    "before_target_verify_stage",
    "before_target_build_prepared",
    "before_target_publish",
    "after_target_publish",
    "before_target_drop_stage",
    "before_spool_discard",
]


@pytest.mark.parametrize("stop", STOPS)
def test_a_stopped_process_that_was_replaced_changes_nothing_when_it_wakes_up(
    template: World, points: list[str], tmp_path: Path, stop: str
) -> None:
    """The second try takes over at once, finishes, and only then the first one goes on."""
    world = template.copy(tmp_path / "world")
    child = start_child(world.root, signal.SIGSTOP, points.index(stop))
    try:
        wait_until_stopped(child)
        with pytest.raises(LeaseHeld) as held:
            World(world.root).deliver()
        assert held.value.fields["owner"]["pid"] == child.pid
        assert World(world.root).deliver(requester(**HIGHER_TRY)).generation == 1
        os.kill(child.pid, signal.SIGCONT)
        answer = answer_of(child)
    finally:
        child.kill()
        child.communicate()
    assert "error" in answer, "a replaced process must not claim the delivery"
    assert problems_after(world, **HIGHER_TRY) == []
    assert world.source.script.reads <= 2


def test_an_owner_that_was_killed_is_taken_over_at_once(
    template: World, points: list[str], tmp_path: Path
) -> None:
    """Nobody waits for the lease of a process that is gone, also by the same try."""
    world = template.copy(tmp_path / "world")
    assert run_child(world.root, points.index("before_target_publish")) == -signal.SIGKILL
    result = world.deliver(lease_ttl_sec=600.0)
    assert result.resumed_from == "PUBLISHING"
    assert world.clock.slept == []


def test_a_journal_that_lost_its_end_never_publishes_twice(template: World, tmp_path: Path) -> None:
    """A restored copy of the journal, for every end that it may have, against a target that has it all."""
    world = template.copy(tmp_path / "world")
    copies: list[bytes] = []

    def keep(point: str) -> None:
        if point == "after_journal_append":
            with storage.session(world.journal_path) as journal:
                journal.execute("PRAGMA wal_checkpoint(PASSIVE)")
                copies.append(journal.serialize())

    finished = world.deliver(observer=keep)
    outcomes = set()
    for number, content in enumerate(copies):
        restored = world.copy(tmp_path / f"restored-{number}")
        for part in ("-wal", "-shm"):
            restored.journal_path.with_name(restored.journal_path.name + part).unlink(missing_ok=True)
        restored.journal_path.write_bytes(content)
        try:
            result = restored.deliver(requester(**HIGHER_TRY))
        except DponeError as error:
            outcomes.add(error.code)
        else:
            outcomes.add("delivered")
            assert result.operation_id == finished.operation_id
            assert restored.untidy() == []
        assert restored.rows() == EXPECTED
        assert [(row[1], row[2]) for row in restored.target.receipts()] == [(1, finished.operation_id)]
    assert outcomes == {"dpone.journal.older_than_target", "delivered"}
    assert len(copies) >= 25
