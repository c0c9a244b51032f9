"""A publication whose answer is lost is never sent again before the target has said what became of it."""

from __future__ import annotations

import pytest

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.errors import DponeError, Incident, OutcomeUnknown, TargetBusy
from tests.fakes.world import SCHEMA, TABLE, World, as_set, order, orders, requester

RECEIPT, GATE = '"dpone.delivery_receipt"', '"dpone.target_gate"'
RETRY = requester(try_number=2, ti_id="run-1-try-2")


def sends(world: World) -> int:
    return world.target.calls().count("publish")


def leave_unknown(world: World, fault: str) -> OutcomeUnknown:
    """A publication without an answer, and a target that does not answer the probe either."""
    world.target.arm("publish", fault)
    world.target.arm("probe", "unreachable")
    with pytest.raises(OutcomeUnknown) as raised:
        world.deliver()
    assert raised.value.state_after == "UNKNOWN"
    return raised.value


def test_a_lost_commit_answer_is_found_out_at_once_and_nothing_is_published_twice(world: World) -> None:
    world.target.arm("publish", "lost_answer")
    result = world.deliver()
    assert sends(world) == 1
    assert world.rows() == as_set(orders(6))
    assert len(world.target.receipts()) == 1
    assert world.untidy() == []
    assert result.rows == 6


def test_a_publication_that_never_arrived_is_sent_again_after_the_proof(world: World) -> None:
    world.target.arm("publish", "never_sent")
    result = world.deliver()
    assert (sends(world), result.rows) == (2, 6)
    assert world.rows() == as_set(orders(6))
    assert len(world.target.receipts()) == 1
    assert world.untidy() == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (tr.PublishOutcome("ended_early", error_number=3609), "the target said error 3609"),
        (TargetBusy("dpone.target.unavailable", "gone"), "the target said dpone.target.unavailable"),
    ],
    ids=["a trigger rolled back", "the connection broke"],
)
def test_after_three_sends_without_effect_the_error_says_what_ended_the_last_one(
    world: World, monkeypatch: pytest.MonkeyPatch, answer: tr.PublishOutcome | DponeError, told: str
) -> None:
    """[B48] The proof is the probe's, and it knows no reason."""
    before = world.rows()

    def publish(request: tr.PublishRequest) -> tr.PublishOutcome:
        if isinstance(answer, DponeError):
            raise answer
        return answer

    monkeypatch.setattr(world.target, "publish", publish)
    with pytest.raises(TargetBusy) as raised:
        world.deliver()
    assert (raised.value.code, raised.value.state_after) == ("dpone.publish.not_effective", "PREPARED")
    assert told in raised.value.message
    assert [e.event for e in world.events()].count("PUBLISHING") == 3
    assert world.rows() == before
    assert world.target.receipts() == []


def test_a_commit_is_believed_only_when_another_session_has_read_the_receipt(world: World) -> None:
    world.target.arm("read_receipt", "unreachable")
    with pytest.raises(OutcomeUnknown) as raised:
        world.deliver()
    assert raised.value.state_after == "UNKNOWN"
    assert world.deliver(RETRY).resumed_from == "UNKNOWN"
    assert sends(world) == 1


def test_a_target_that_does_not_answer_leaves_the_outcome_unknown_and_the_target_reserved(
    world: World,
) -> None:
    error = leave_unknown(world, "lost_answer")
    assert error.retry == "after_clear"
    assert world.custody().held
    assert world.invocation().last_error_code == "dpone.publish.outcome_unknown"
    with pytest.raises(DponeError) as held:
        world.deliver(requester("run-2"))
    assert held.value.code == "dpone.custody.held"


@pytest.mark.parametrize(("fault", "sent"), [("lost_answer", 1), ("never_sent", 2)])
def test_a_later_call_settles_what_was_unknown(world: World, fault: str, sent: int) -> None:
    leave_unknown(world, fault)
    result = world.deliver(RETRY)
    assert (result.resumed_from, result.generation) == ("UNKNOWN", 1)
    assert sends(world) == sent
    assert world.rows() == as_set(orders(6))
    assert len(world.target.receipts()) == 1
    assert world.untidy() == []


def test_unknown_stays_unknown_until_the_target_answers_also_on_the_last_try(world: World) -> None:
    leave_unknown(world, "lost_answer")
    world.target.arm("probe", "unreachable")
    with pytest.raises(OutcomeUnknown) as raised:
        world.deliver(requester(try_number=3, ti_id="run-1-try-3"))
    assert raised.value.state_after == "UNKNOWN"
    assert world.custody().held
    assert world.deliver(requester(try_number=4, ti_id="run-1-try-4", max_tries=5)).rows == 6


def test_a_send_that_arrives_after_the_probe_is_fenced(world: World) -> None:
    leave_unknown(world, "held_back")
    result = world.deliver(RETRY)
    published = world.rows()
    late = world.target.let_late_sends_arrive()
    assert [(answer.kind, answer.code) for answer in late] == [("rolled_back", "dpone.publish.fenced")]
    assert world.rows() == published == as_set(orders(6))
    assert [row[2] for row in world.target.receipts()] == [result.operation_id]


def test_a_send_that_arrives_between_the_probe_and_the_next_send_is_fenced(world: World) -> None:
    """The same process recovers: its probe must have a fence of its own, or the old send would still pass."""
    leave_unknown(world, "held_back")
    late: list[str | None] = []

    def arrive_before_the_next_send(point: str) -> None:
        if point == "before_target_publish":
            late.extend(answer.code for answer in world.target.let_late_sends_arrive())

    world.deliver(RETRY, observer=arrive_before_the_next_send)
    assert late == ["dpone.publish.fenced"]
    assert world.rows() == as_set(orders(6))
    assert len(world.target.receipts()) == 1


def test_a_send_that_arrives_before_the_probe_is_found_by_it(world: World) -> None:
    leave_unknown(world, "held_back")
    assert [answer.kind for answer in world.target.let_late_sends_arrive()] == ["committed"]
    assert world.deliver(RETRY).resumed_from == "UNKNOWN"
    assert sends(world) == 1
    assert len(world.target.receipts()) == 1


def test_every_send_and_every_probe_has_a_fence_of_its_own(world: World) -> None:
    leave_unknown(world, "never_sent")
    world.deliver(RETRY)
    told = [(e.event, e.body.get("payload", {})) for e in world.events()]
    fences = [int(payload["fence"]) for event, payload in told if event == "PUBLISHING"]
    proved = [int(payload["proof"]["fence"]) for _, payload in told if payload.get("proof")]
    assert len(fences) == 2
    assert fences[0] < proved[0] < fences[1]


def stays_an_incident(world: World, code: str) -> None:
    """The call ends in INCIDENT without a send, says why, keeps the target; no later call does more."""
    sent = sends(world)
    with pytest.raises(Incident) as raised:
        world.deliver(RETRY)
    assert (raised.value.code, raised.value.state_after) == (code, "INCIDENT")
    rows = world.rows()
    for number in (3, 4):
        with pytest.raises(Incident, match=code) as again:
            world.deliver(requester(try_number=number, ti_id=f"run-1-try-{number}", max_tries=number))
        assert (again.value.code, again.value.state_after) == ("dpone.delivery.incident", "INCIDENT")
    with pytest.raises(DponeError) as held:
        world.deliver(requester("run-2"))
    assert held.value.code == "dpone.custody.held"
    assert (world.rows(), sends(world)) == (rows, sent)
    assert world.custody().held
    assert world.invocation().state is DeliveryState.INCIDENT


def test_a_receipt_that_somebody_removed_is_an_incident_and_stays_one(world: World) -> None:
    leave_unknown(world, "lost_answer")
    world.target.execute(f"DELETE FROM {RECEIPT}")
    stays_an_incident(world, "dpone.publish.receipt_removed")


def test_half_of_a_publication_that_somebody_committed_is_an_incident_and_stays_one(world: World) -> None:
    leave_unknown(world, "half_committed")
    stays_an_incident(world, "dpone.publish.partial")


def test_a_receipt_that_is_not_word_for_word_ours_is_an_incident_and_stays_one(world: World) -> None:
    leave_unknown(world, "lost_answer")
    world.target.execute(f"UPDATE {RECEIPT} SET row_count = row_count + 1")
    stays_an_incident(world, "dpone.publish.receipt_differs")


def test_a_receipt_with_another_hash_is_an_incident(world: World) -> None:
    leave_unknown(world, "lost_answer")
    world.target.execute(f"UPDATE {RECEIPT} SET receipt_sha256 = ?", ("0" * 64,))
    stays_an_incident(world, "dpone.publish.receipt_differs")


def test_a_gate_that_is_gone_is_an_incident(world: World) -> None:
    leave_unknown(world, "lost_answer")
    world.target.execute(f"DELETE FROM {GATE}")
    stays_an_incident(world, "dpone.target.gate_missing")


def test_a_receipt_that_vanishes_before_the_checkpoint_is_an_incident(world: World) -> None:
    world.target.arm("read_receipt", "fine")
    world.target.arm("read_receipt", "vanish")
    with pytest.raises(Incident) as raised:
        world.deliver()
    assert (raised.value.code, raised.value.state_after) == ("dpone.publish.receipt_lost", "INCIDENT")
    assert world.custody().held


def test_rows_outside_of_the_window_stay_whatever_happens(world: World) -> None:
    outside = [order(900, day=-1), order(901, day=1)]
    world.target.insert(SCHEMA, TABLE, [*outside, order(902)])
    leave_unknown(world, "never_sent")
    world.deliver(RETRY)
    assert world.rows() == as_set([*outside, *orders(6)])
