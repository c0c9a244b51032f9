"""Two real processes on one target: at once, one stopped while the other goes on, and a journal restarted.

The tests know their journal only by the fixture ``store``: ``new_world(root)`` and ``restart(world)``.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.crash.test_kill_matrix_fakes import EXPECTED, HIGHER_TRY, problems_after
from tests.fakes.kill_child import answer_of, start_child, wait_until_stopped
from tests.fakes.world import World, as_set, requester

HELD = {"dpone.custody.held", "dpone.lease.held"}
REPLACED = {"dpone.journal.fenced", "dpone.target.fenced", "dpone.publish.fenced"}
FIRST_TRY: dict[str, Any] = {"try_number": 1, "ti_id": "run-1-try-1"}
ROUNDS = 2


class Journals(Protocol):
    """What a suite gives as ``store``."""

    def new_world(self, root: Path) -> World:
        """The world of ``test_kill_matrix_fakes``, with a journal of its own."""

    def restart(self, world: World) -> None:
        """The journal's database is stopped and started; who is connected is not asked."""


PHASES = {
    "admit": "before_target_claim_gate",
    "extract": "before_chunk_seal",
    "stage": "before_writer_write",
    "verify": "before_target_build_prepared",
    "publish": "before_target_publish",
    "evidence": "after_target_publish",
    "checkpoint": "before_target_drop_stage",
}
"""One place in each phase; for evidence it is the third point after this one."""
PAST_IT = {"evidence": 3}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The index of each of these places among the crash points of a first try."""
    passed: list[str] = []
    World.create(tmp_path_factory.mktemp("recorded") / "world").deliver(
        observer=lambda point: passed.append(str(point))
    )
    found = {phase: passed.index(point) + PAST_IT.get(phase, 0) for phase, point in PHASES.items()}
    assert passed[found["evidence"]] == "before_journal_append"
    return found


@contextmanager
def stopped(world: World, index: int, who: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """A process that has stopped itself at that crash point. It does not outlive the block."""
    child = start_child(world.root, signal.SIGSTOP, index, who, module=world.child_module)
    try:
        wait_until_stopped(child)
        yield child
    finally:
        child.kill()
        child.communicate()


def go_on(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Wakes it up and waits for what it says."""
    os.kill(child.pid, signal.SIGCONT)
    return answer_of(child)


def delivered_by(answer: dict[str, Any]) -> bool:
    """Whether it claims the delivery; otherwise it says that somebody else is there."""
    if "error" not in answer:
        return not answer["already"]
    assert answer["error"] in HELD, answer
    return False


def receipts(world: World) -> list[tuple[str, int]]:
    """(delivery key, generation) of every publication."""
    return [(row[0], row[1]) for row in world.receipts()]


@pytest.mark.parametrize("rival", ["another requester", "the same try again"])
def test_two_processes_that_are_admitted_at_the_same_moment(
    store: Journals, tmp_path: Path, rival: str
) -> None:
    """B79: both stand before the lease, then both are let go: one delivers, the other is told who is there,
    and has it later."""
    other = {"run_id": "run-2"} if rival == "another requester" else FIRST_TRY
    refused = 0
    for number in range(ROUNDS):
        world = store.new_world(tmp_path / str(number))
        with stopped(world, 0, FIRST_TRY) as one, stopped(world, 0, other) as two:
            for child in (one, two):
                os.kill(child.pid, signal.SIGCONT)
            answers = [answer_of(one), answer_of(two)]
        assert any(map(delivered_by, answers)), answers
        refused += sum("error" in answer for answer in answers)
        results = [world.deliver(requester(**FIRST_TRY)), world.deliver(requester(**other))]
        assert {result.state for result in results} == {"COMPLETED"}
        assert as_set(world.rows()) == EXPECTED
        assert world.untidy() == []
        assert len(receipts(world)) == (2 if rival == "another requester" else 1)
    assert refused, "the two never met"


@pytest.mark.parametrize("phase", PHASES)
def test_the_first_try_wakes_up_while_the_second_stands_in_the_same_phase(
    store: Journals, places: dict[str, int], tmp_path: Path, phase: str
) -> None:
    world = store.new_world(tmp_path / "world")
    resumed = _places_of_a_second_try(store, tmp_path / "rehearsal", places[phase])
    with (
        stopped(world, places[phase], FIRST_TRY) as first,
        stopped(world, resumed[phase], HIGHER_TRY) as second,
    ):
        answer = go_on(first)
        assert answer["error"] in REPLACED, answer
        result = go_on(second)
    assert (result["state"], result["generation"]) == ("COMPLETED", 1)
    assert problems_after(world, **HIGHER_TRY) == []


@pytest.mark.parametrize("phase", PHASES)
def test_the_first_try_wakes_up_after_the_second_has_completed(
    store: Journals, places: dict[str, int], tmp_path: Path, phase: str
) -> None:
    world = store.new_world(tmp_path / "world")
    with stopped(world, places[phase], FIRST_TRY) as first:
        assert world.deliver(requester(**HIGHER_TRY)).generation == 1
        answer = go_on(first)
    assert answer["error"] in REPLACED, answer
    assert problems_after(world, **HIGHER_TRY) == []


@pytest.mark.parametrize("phase", PHASES)
def test_the_journal_restarts_in_the_middle(
    store: Journals, places: dict[str, int], tmp_path: Path, phase: str
) -> None:
    """Whoever meets it goes on, or says that the journal did not answer and is tried again."""
    world = store.new_world(tmp_path / "world")
    with stopped(world, places[phase], FIRST_TRY) as child:
        store.restart(world)
        answer = go_on(child)
    assert answer.get("error") in (None, "dpone.journal.unavailable"), answer
    store.restart(world)
    assert problems_after(world, **HIGHER_TRY) == []


@pytest.mark.parametrize("phase", PHASES)
def test_the_journal_restarts_between_the_death_of_one_try_and_the_next(
    store: Journals, places: dict[str, int], tmp_path: Path, phase: str
) -> None:
    world = store.new_world(tmp_path / "world")
    with stopped(world, places[phase], FIRST_TRY):
        pass
    store.restart(world)
    assert problems_after(world) == []


def _places_of_a_second_try(store: Journals, root: Path, index: int) -> dict[str, int]:
    """Where a second try passes each phase's place, when the first one has come to ``index``."""
    world = store.new_world(root)
    passed: list[str] = []

    def stop(point: str) -> None:
        passed.append(str(point))
        if len(passed) > index:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.deliver(requester(**FIRST_TRY), observer=stop)
    passed.clear()
    world.deliver(requester(**HIGHER_TRY), observer=lambda point: passed.append(str(point)))
    # Once published there is no send to count from: what follows the admission is the evidence.
    evidence = passed.index("after_journal_acquire") + 1
    found = {phase: passed.index(point) for phase, point in PHASES.items() if point in passed}
    return {"evidence": evidence} | found
