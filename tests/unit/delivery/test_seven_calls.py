"""A delivery in seven calls, one for each phase, as seven tasks make them: in order, alone, in any state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery.deliver import PHASE_NAMES, Done, run_phases
from airflow_dpone.delivery.run import Request
from airflow_dpone.delivery.standing import stored_window
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.errors import ConfigurationError, DponeError, Incident, OutcomeUnknown
from tests.fakes.world import DAY, SCHEMA, TABLE, World, as_set, orders, requester

S = DeliveryState
ENDS = dict(
    zip(
        PHASE_NAMES,
        (S.PLANNED, S.EXTRACTED, S.STAGED, S.PREPARED, S.PUBLISHED, S.EVIDENCED, S.COMPLETED),
        strict=True,
    )
)
"""The state in which each phase ends."""
HOW_FAR = {state: number for number, state in enumerate(ENDS.values())} | {
    S.PUBLISHING: 3.5,
    S.UNKNOWN: 3.5,
    S.CHECKPOINTED: 5.5,
}


class Died(BaseException):
    """Stands for SIGKILL."""


def call(world: World, phase: str, window: Any = None, *, try_number: int = 1, **asked: Any) -> Done:
    """What the task of one phase does."""
    who = requester(
        task_id=f"orders.{phase}",
        delivery_task_id="orders",
        try_number=try_number,
        ti_id=f"{phase}-{try_number}",
        **asked.pop("who", {}),
    )
    observer = asked.pop("observer", None)
    with world.open_journal() as journal:
        chosen = window or stored_window(journal, who) or DAY
        ports = world.ports(journal, observer=observer)
        fields = {"last_phase": phase, "may_open": phase == "admit", **asked}
        return run_phases(ports, Request(world.route(), chosen, who, **fields))


def cleared(world: World, phase: str) -> Done:
    """What the task of one phase does after a person has cleared it."""
    return call(world, phase, try_number=2, who={"max_tries": 4})


def die_at(point: str) -> Callable[[str], None]:
    """An observer that ends the process there."""

    def observe(passed: str) -> None:
        if passed == point:
            raise Died(point)

    return observe


def up_to(phase: str, world: World) -> None:
    """The first calls, in order."""
    for name in PHASE_NAMES[: PHASE_NAMES.index(phase) + 1]:
        call(world, name)


def publishing(world: World) -> None:
    """The process died while the publication was sent, before it arrived."""
    up_to("verify", world)
    with pytest.raises(Died):
        call(world, "publish", observer=die_at("before_target_publish"))


def published_unheard(world: World) -> None:
    """The process died after the publication was effective, before it knew."""
    up_to("verify", world)
    with pytest.raises(Died):
        call(world, "publish", observer=die_at("after_target_publish"))


def unknown(world: World) -> None:
    """Nobody could be asked what became of it."""
    up_to("verify", world)
    world.target.arm("publish", "never_sent")
    world.target.arm("probe", "unreachable")
    with pytest.raises(OutcomeUnknown):
        call(world, "publish")


def checkpointed(world: World) -> None:
    """The process died in the cleanup."""
    up_to("evidence", world)
    with pytest.raises(Died):
        call(world, "checkpoint", observer=die_at("before_target_drop_stage"))


def failed(world: World) -> None:
    """The last try could not reach the source."""
    call(world, "admit")
    with pytest.raises(DponeError) as raised:
        call(world, "extract", deadline_sec=1e-9, who={"max_tries": 0})
    assert raised.value.state_after == "FAILED"


def incident(world: World) -> None:
    """The table was replaced after the publication."""
    up_to("publish", world)
    world.target.recreate_table(SCHEMA, TABLE)
    with pytest.raises(Incident):
        call(world, "evidence")


REACH: dict[str, Callable[[World], None]] = {
    "nothing": lambda world: None,
    **{str(ENDS[phase]): (lambda world, phase=phase: up_to(phase, world)) for phase in PHASE_NAMES},
    "PUBLISHING": publishing,
    "PUBLISHING, effective": published_unheard,
    "UNKNOWN": unknown,
    "CHECKPOINTED": checkpointed,
    "FAILED": failed,
    "INCIDENT": incident,
}


@pytest.fixture(scope="session")
def reached(fresh_world: World, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], World]:
    """A world in a state: each state is reached once, then copied."""
    made: dict[str, World] = {}

    def reach(name: str, where: Path) -> World:
        if name not in made:
            made[name] = fresh_world.copy(tmp_path_factory.mktemp("reached") / "world")
            REACH[name](made[name])
        where.mkdir(exist_ok=True)
        return made[name].copy(where / "world")

    return reach


def effects(world: World) -> list[Any]:
    """What a call did to target and source."""
    return [*world.target.calls(), world.source.script.reads]


def test_seven_calls_deliver_what_one_does_and_every_answer_is_small(world: World) -> None:
    said = {phase: call(world, phase).result for phase in PHASE_NAMES}
    assert {phase: result.state for phase, result in said.items()} == ENDS
    assert world.rows() == as_set(orders(6))
    assert len(world.target.receipts()) == 1
    assert world.untidy() == []
    assert all(len(json.dumps(result.to_json())) < 2048 for result in said.values())
    assert {(r.invocation_key, r.generation, r.window) for r in said.values()} == {
        (said["admit"].invocation_key, 1, DAY.key)
    }
    assert not any(result.already for result in said.values())


@pytest.mark.parametrize("phase", PHASE_NAMES)
@pytest.mark.parametrize("state", [name for name in REACH if name != "nothing"])
def test_each_phase_alone_in_each_state(
    phase: str, state: str, reached: Callable[[str, Path], World], tmp_path: Path
) -> None:
    """[C11] Cleared, it goes on to the end of its phase, or does nothing; nothing is undone and nothing sent
    twice. Only admit, after the end, begins another generation."""
    world = reached(state, tmp_path)
    before = DeliveryState(world.invocation(requester(delivery_task_id="orders")).state)
    receipts, did = len(world.target.receipts()), effects(world)
    if before is S.INCIDENT:
        with pytest.raises(Incident):
            cleared(world, phase)
        return
    if before is S.FAILED and phase != "admit":
        with pytest.raises(ConfigurationError) as refused:
            cleared(world, phase)
        assert refused.value.code == "dpone.delivery.not_admitted"
        return
    result = cleared(world, phase).result
    if before is S.FAILED:
        assert (result.state, result.generation) == ("PLANNED", 2)
        return
    generations = 2 if (before, phase) == (S.COMPLETED, "admit") else 1
    if generations == 2:
        assert (result.state, result.generation, result.already) == ("PLANNED", 2, False)
        before = S.PLANNED
    in_doubt = before in (S.PUBLISHING, S.UNKNOWN)
    settled = {"PUBLISHING": S.PREPARED, "UNKNOWN": S.PREPARED, "PUBLISHING, effective": S.PUBLISHED}
    stands = settled[state] if in_doubt else before
    assert result.state == max(stands, ENDS[phase], key=lambda one: HOW_FAR[one])
    if HOW_FAR[before] >= HOW_FAR[ENDS[phase]] and not in_doubt and phase != "admit":
        assert result.already
        assert effects(world) == did
    assert len(world.target.receipts()) - receipts in (0, 1)
    for name in PHASE_NAMES[PHASE_NAMES.index(phase) + 1 :]:
        call(world, name, try_number=2)
    assert world.rows() == as_set(orders(6))
    assert [row[1] for row in world.target.receipts()] == [1, 2][:generations]
    assert world.untidy() == []


@pytest.mark.parametrize("phase", PHASE_NAMES)
@pytest.mark.timeout(600)
def test_a_task_that_dies_at_any_point_of_its_phase_goes_on_when_it_is_cleared(
    phase: str, reached: Callable[[str, Path], World], tmp_path: Path
) -> None:
    """The same task again, then those after it: one receipt, the right rows, nothing left behind."""
    number = PHASE_NAMES.index(phase)
    before = str(ENDS[PHASE_NAMES[number - 1]]) if number else "nothing"
    points: list[str] = []
    call(reached(before, tmp_path / "recorded"), phase, observer=points.append)
    assert points
    for index, point in enumerate(points):
        if point == "before_journal_release":
            continue  # this process lives on, so whoever comes next would wait for its lease
        world = reached(before, tmp_path / str(index))
        passed: list[str] = []

        def die(_: str, passed: list[str] = passed, last: int = index) -> None:
            passed.append(_)
            if len(passed) == last + 1:
                raise Died

        with pytest.raises(Died):
            call(world, phase, observer=die)
        for name in PHASE_NAMES[number:]:
            call(world, name, try_number=2)
        assert world.rows() == as_set(orders(6)), point
        assert len(world.target.receipts()) == 1, point
        assert world.untidy() == [], point
