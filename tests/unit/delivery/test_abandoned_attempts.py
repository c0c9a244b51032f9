"""A writer that cannot be proved gone: its attempt is left behind, the chunk is written anew, and the target
stays reserved until that writer is gone."""

from __future__ import annotations

import json

import pytest

from airflow_dpone.delivery.recovery import retire
from airflow_dpone.errors import CustodyHeld, DponeError, TargetBusy
from tests.fakes.world import NEXT_DAY, World, as_set, orders, requester
from tests.unit.delivery.test_extraction import told

LIVES = "dpone.target.writer_lives"


def still_lives(world: World, *, times: int = 1) -> None:
    """The next verifications find the writer's session still there."""
    world.target.arm("verify_stage", "writer_lives", times=times)


def lives_to_the_end(world: World) -> None:
    """It is there at the first proof, and when everything is cleaned up; two other writers are not."""
    still_lives(world)
    world.target.arm("verify_stage", "fine", times=2)
    still_lives(world)


def abandoned(world: World) -> list[str]:
    return [payload["attempt_id"] for payload in told(world, "ATTEMPT_ABANDONED")]


def last_events(world: World) -> dict[str, str]:
    """The last event of each attempt."""
    found = [e for e in world.events() if e.stream.startswith("attempt/")]
    return {e.stream.removeprefix("attempt/"): e.event for e in found}


def test_the_chunk_is_written_anew_and_the_old_table_goes_at_the_end(world: World) -> None:
    still_lives(world)
    result = world.deliver()
    assert result.state == "COMPLETED"
    (left,) = told(world, "ATTEMPT_ABANDONED")
    assert left["reason"] == LIVES
    assert last_events(world) == dict.fromkeys(last_events(world), "RETIRED")
    assert len(last_events(world)) == 3
    assert world.rows() == as_set(orders(6))
    assert world.untidy() == []
    with world.open_journal() as journal:
        document = json.loads(journal.evidence(result.evidence_sha256) or b"{}")
    assert (document["attempts"], document["unknown_outcomes"]) == (3, 1)


def test_nothing_of_it_is_published_whatever_its_writer_still_does(world: World) -> None:
    """It writes into its own table, which is part of nothing: here after the new one was proved."""
    still_lives(world)

    def late(point: str) -> None:
        if point == "before_target_build_prepared":
            assert len(world.target.stages) == 3
            (own,) = abandoned(world)
            name = next(
                e.body["stage_binding"]["stage_name"] for e in world.events() if e.stream == f"attempt/{own}"
            )
            world.target.execute(f'INSERT INTO "dpone_stage.{name}" SELECT * FROM "dpone_stage.{name}"')

    assert world.deliver(observer=late).rows == 6
    assert world.rows() == as_set(orders(6))


def test_as_long_as_it_lives_the_target_stays_reserved_and_says_so(world: World) -> None:
    lives_to_the_end(world)
    with pytest.raises(TargetBusy) as raised:
        world.deliver()
    assert (raised.value.code, raised.value.state_after) == (LIVES, "CHECKPOINTED")
    assert "clear" in raised.value.next_action
    assert world.invocation().last_error_code == LIVES
    assert world.rows() == as_set(orders(6)), "the window is delivered all the same"
    assert world.custody().held
    (own,) = abandoned(world)
    kept = last_events(world)
    assert kept.pop(own) == "UNKNOWN"
    assert set(kept.values()) == {"RETIRED"}, "everything else is cleaned up first"
    with pytest.raises(CustodyHeld):
        world.deliver(requester("run-2"), window=NEXT_DAY)
    still_lives(world)
    with pytest.raises(TargetBusy):
        world.deliver()
    result = world.deliver()
    assert (result.state, result.resumed_from, result.generation) == ("COMPLETED", "CHECKPOINTED", 1)
    assert len(world.target.receipts()) == 1
    assert world.untidy() == []


def test_giving_it_up_meets_the_same_writer(world: World) -> None:
    lives_to_the_end(world)
    with pytest.raises(TargetBusy):
        world.deliver()
    key = world.invocation().invocation_key
    still_lives(world)
    for refused in (True, False):
        with world.open_journal() as journal:
            if refused:
                with pytest.raises(TargetBusy):
                    retire(world.ports(journal), key)
            else:
                done = retire(world.ports(journal), key)
    assert done.delivery is not None
    assert done.delivery.state_after == "COMPLETED"
    assert world.untidy() == []


def test_it_is_not_asked_again_before_the_end(world: World) -> None:
    """Each question may take minutes. A process that dies in between changes nothing about that."""
    still_lives(world)

    def stop(point: str) -> None:
        if point == "before_target_build_prepared":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.deliver(observer=stop)
    asked = world.target.calls().count("verify_stage")
    assert asked == 3
    assert world.deliver().resumed_from == "STAGED"
    assert world.target.calls().count("verify_stage") == asked + 1


def test_a_dead_process_s_writer_that_lives_is_left_behind_too(world: World) -> None:
    def stop(point: str) -> None:
        if point == "after_writer_write":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.deliver(observer=stop)
    still_lives(world)
    assert world.deliver().state == "COMPLETED"
    assert len(abandoned(world)) == 1
    assert world.rows() == as_set(orders(6))


def test_a_chunk_whose_writers_all_live_ends_the_call_and_a_clear_goes_on(world: World) -> None:
    still_lives(world, times=4)  # three writes, and the try to give everything back
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert (raised.value.code, raised.value.state_after) == ("dpone.target.chunk_not_proved", "EXTRACTED")
    assert "stays reserved" in raised.value.next_action
    assert len(abandoned(world)) == 3
    assert world.custody().held
    assert world.deliver().state == "COMPLETED"
    assert world.rows() == as_set(orders(6))
    assert world.untidy() == []
