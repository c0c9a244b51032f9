"""The contract of ``JournalPort``, on every implementation of it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.identity import key_of, sha256_hex
from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.delivery.states import (
    AttemptEvent,
    DeliveryEvent,
    DeliveryState,
    ReleaseReason,
)
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import CustodyHeld, Fenced, JournalError, LeaseHeld
from tests.contract.journal_cases import (
    OTHER_TARGET,
    RELEASED,
    ROUTE,
    TARGET,
    TO_PUBLISHED,
    WINDOW,
    Delivery,
    Store,
    begin,
    checkpoint,
    evidence,
    requester,
    take,
)
from tests.contract.journal_examples import payload as example
from tests.contract.journal_examples import tuned

S, D, A = DeliveryState, DeliveryEvent, AttemptEvent


def code(caught: pytest.ExceptionInfo[Any]) -> str:
    return str(caught.value.code)


# ---- the lease and its fence -------------------------------------------------------------------------------


def test_a_first_fence_is_one_above_the_gate(journal: JournalPort) -> None:
    assert journal.fence(TARGET) == 0
    lease = take(journal, gate_fence=41)
    assert (lease.fence, journal.fence(TARGET), journal.fence(OTHER_TARGET)) == (42, 42, 0)


def test_fences_only_grow_and_are_never_given_twice(journal: JournalPort) -> None:
    seen = []
    for gate in (0, 7, 3, 0):
        lease = take(journal, gate_fence=gate)
        raised = journal.raise_fence(lease)
        again = journal.raise_fence(raised, gate_fence=gate + 10)
        seen += [lease.fence, raised.fence, again.fence]
        journal.release(again)
    assert seen == sorted(set(seen))
    assert journal.fence(TARGET) == seen[-1]


def test_a_raised_fence_keeps_the_owner_and_retires_the_old_lease(journal: JournalPort) -> None:
    old = take(journal)
    new = journal.raise_fence(old, gate_fence=8)
    assert new == replace(old, fence=9)
    with pytest.raises(Fenced):
        journal.append(old)
    with pytest.raises(Fenced):
        journal.raise_fence(old)
    journal.append(new)


def test_a_released_lease_is_free_at_once_and_writes_nothing(
    journal: JournalPort, second: JournalPort
) -> None:
    lease = take(journal)
    journal.release(lease)
    with pytest.raises(Fenced) as caught:
        journal.append(lease)
    assert code(caught) == "dpone.journal.fenced"
    assert take(second, requester("run-2")).fence == lease.fence + 1
    journal.release(lease)  # not ours any more: fine, and no change
    with pytest.raises(LeaseHeld):
        take(journal, requester("run-3"))


def test_a_renewed_lease_lasts_from_now_on_and_only_for_its_owner(
    journal: JournalPort, second: JournalPort
) -> None:
    lease = take(journal, ttl_sec=0.5)
    for _ in range(4):
        time.sleep(0.3)
        journal.renew(lease)
    with pytest.raises(LeaseHeld):
        take(second, requester("run-2"))
    time.sleep(0.6)
    journal.renew(lease)  # late, but nobody has come meanwhile
    taken_over = take(second, requester(try_number=2))
    with pytest.raises(Fenced):
        journal.renew(lease)
    second.renew(taken_over)


def test_a_live_owner_is_waited_for_and_named(journal: JournalPort, second: JournalPort) -> None:
    lease = take(journal)
    with pytest.raises(LeaseHeld) as caught:
        take(second, requester("run-2"))
    error = caught.value
    assert error.retry == "backoff"
    assert error.fields["owner"]["task_id"] == "load"
    assert error.fields["owner"]["try_number"] == 1
    assert 50 < error.fields["expires_in_sec"] <= 60
    assert journal.fence(TARGET) == lease.fence
    journal.append(lease)


@pytest.mark.parametrize(
    ("asked", "is_let_in"),
    [
        (requester(try_number=2), False),  # lower
        (requester(try_number=3, ti_id="new"), False),  # the same try started twice, or a re-created run
        (requester(try_number=4), True),
        (
            requester(try_number=4, task_id="other", delivery_task_id="load"),
            False,
        ),  # another task of the delivery
        (requester("run-2", try_number=4), False),
        (requester(try_number=4, map_index=1), False),
    ],
)
def test_only_a_higher_try_of_the_same_task_takes_over_at_once(
    journal: JournalPort, second: JournalPort, asked: r.Requester, is_let_in: bool
) -> None:
    old = take(journal, requester(try_number=3))
    if is_let_in:
        assert take(second, asked).fence == old.fence + 1
        with pytest.raises(Fenced):
            journal.append(old)
    else:
        with pytest.raises(LeaseHeld):
            take(second, asked)
        journal.append(old)


def test_an_expired_lease_is_free_for_anybody(journal: JournalPort, second: JournalPort) -> None:
    old = take(journal, ttl_sec=0.05)
    time.sleep(0.1)
    new = take(second, requester("run-2"))
    assert new.fence == old.fence + 1
    with pytest.raises(Fenced):
        journal.append(old)


def test_each_append_renews_the_lease_also_an_empty_one(journal: JournalPort, second: JournalPort) -> None:
    lease = take(journal, ttl_sec=1.0)
    for _ in range(3):
        time.sleep(0.4)
        journal.append(lease)
    with pytest.raises(LeaseHeld) as caught:
        take(second, requester("run-2"))
    assert caught.value.fields["expires_in_sec"] > 0.5


def test_an_expired_lease_that_nobody_took_still_writes(journal: JournalPort) -> None:
    lease = take(journal, ttl_sec=0.02)
    time.sleep(0.05)
    begin_later = Delivery(journal, lease)
    begin_later.plan()
    assert begin_later.state() is S.PLANNED


@pytest.mark.parametrize(("ttl_sec", "gate_fence"), [(0, 0), (-1, 0), (60, -1)])
def test_a_lease_without_meaning_is_refused(journal: JournalPort, ttl_sec: float, gate_fence: int) -> None:
    with pytest.raises(JournalError):
        take(journal, ttl_sec=ttl_sec, gate_fence=gate_fence)
    assert journal.fence(TARGET) == 0


def test_a_takeover_in_the_middle_fences_every_write_of_the_old_owner(
    journal: JournalPort, second: JournalPort
) -> None:
    old = begin(journal)
    new_lease = take(second, requester(try_number=2))
    writes: list[jr.JournalWrite] = [
        old.event(S.EXTRACTED),
        jr.PutNote(old.invocation_key, reason="late"),
        jr.PutTask(old.lease.requester.delivery_key, 9, old.lease.requester),
        evidence(old),
        jr.PutCheckpoint(checkpoint(), 0),
        jr.ReleaseCustody(old.invocation_key, RELEASED),
    ]
    for write in writes:
        with pytest.raises(Fenced) as caught:
            journal.append(old.lease, write)
        assert caught.value.fields["journal_fence"] == new_lease.fence
    found = second.invocation(old.invocation_key)
    assert found is not None
    assert (found.state, found.reason) == (S.PLANNED, None)
    assert second.custody(TARGET).held
    assert second.checkpoint(TARGET, ROUTE, WINDOW) is None
    assert len(second.events(old.invocation_key)) == 1


def test_a_takeover_never_falls_between_the_check_and_the_write(store: Store) -> None:
    """Two sessions race: whatever the old owner got in was there before the new fence was given."""
    with store.open() as one, store.open() as two:
        old = begin(one)
        landed: list[int] = []
        started, stopped = threading.Event(), threading.Event()

        def write_on() -> None:
            try:
                while not stopped.is_set():
                    one.append(old.lease, old.event(D.TUNED, tuned(old.sequence + 1)))
                    landed.append(old.sequence)
                    started.set()
                    time.sleep(0.002)  # leaves the other session a moment to begin
            except Fenced:
                pass

        thread = threading.Thread(target=write_on)
        thread.start()
        try:
            assert started.wait(10)
            new = Delivery(two, take(two, requester(try_number=2)))
            seen = two.events(old.invocation_key)
            thread.join(10)
            assert not thread.is_alive(), "the old owner still writes"
        finally:
            stopped.set()
            thread.join()
        assert two.events(old.invocation_key) == seen
        assert len(seen) == 1 + len(landed)
        new.sequence = len(seen)
        new.go(S.EXTRACTED)


# ---- custody -----------------------------------------------------------------------------------------------


def test_custody_is_clear_with_epoch_zero_where_nobody_ever_was(journal: JournalPort) -> None:
    assert journal.custody(TARGET) == jr.Custody(TARGET, 0, False, None, None, None, None)


def test_custody_outlives_lease_and_process_and_names_its_holder(
    journal: JournalPort, second: JournalPort
) -> None:
    delivery = begin(journal, requester(map_index=4))
    journal.release(delivery.lease)
    before = second.custody(TARGET)
    assert (before.epoch, before.held, before.holder_key) == (1, True, delivery.invocation_key)
    assert before.holder_fence == delivery.lease.fence
    with pytest.raises(CustodyHeld) as caught:
        take(second, requester("run-2"), gate_fence=99)
    error = caught.value
    assert (error.code, error.retry) == ("dpone.custody.held", "backoff")
    holder = error.fields["holder"]
    assert (holder["dag_id"], holder["run_id"], holder["task_id"]) == ("sales", "run-1", "load")
    assert holder["map_index"] == 4
    assert error.fields["state"] == "PLANNED"
    assert 0 <= error.fields["age_sec"] < 60
    assert "load[4]" in str(error)
    assert "clear the task" in str(error)
    assert second.fence(TARGET) == delivery.lease.fence  # the lease was not touched
    assert take(second, delivery.lease.requester).fence == delivery.lease.fence + 1
    assert second.custody(TARGET) == before


def test_whom_a_target_belongs_to_is_told_by_name_and_age(journal: Any, second: Any) -> None:
    """For those who wait: ids and times as JSON, from another session."""
    assert second.holder(TARGET) == {}
    delivery = begin(journal, requester("run-9", map_index=3))
    delivery.go(S.EXTRACTED)
    holder = second.holder(TARGET)
    assert 0 <= holder.pop("age_sec") < 60
    assert holder == {
        "dag_id": "sales",
        "run_id": "run-9",
        "task_id": "load",
        "map_index": 3,
        "invocation_key": delivery.invocation_key,
        "generation": 1,
        "state": "EXTRACTED",
        "since": second.custody(TARGET).since,
    }
    delivery.go(S.FAILED)
    assert second.holder(TARGET) == {}


def test_every_unfinished_delivery_is_listed_with_what_was_last_said_of_it(journal: Any, second: Any) -> None:
    assert second.unfinished() == []
    first = begin(journal, requester("run-1"))
    other = begin(journal, requester("run-2"), target=OTHER_TARGET)
    note = jr.PutNote(
        other.invocation_key, last_error_code="dpone.target.locked", reason="busy", next_action=""
    )
    journal.append(other.lease, note)
    found = second.unfinished()
    assert [(one["run_id"], one["target_key"]) for one in found] == [
        ("run-1", TARGET),
        ("run-2", OTHER_TARGET),
    ]
    assert (found[1]["last_error_code"], found[1]["reason"], found[1]["next_action"]) == (
        "dpone.target.locked",
        "busy",
        None,
    )
    assert (found[0]["state"], found[0]["window"], found[0]["last_error_code"]) == ("PLANNED", WINDOW, None)
    first.go(S.FAILED)
    assert [one["run_id"] for one in second.unfinished()] == ["run-2"]


def test_custody_comes_before_the_lease_in_what_a_stranger_is_told(
    journal: JournalPort, second: JournalPort
) -> None:
    begin(journal)
    with pytest.raises(CustodyHeld):
        take(second, requester("run-2"))


def test_each_claim_raises_the_epoch_and_release_keeps_it(journal: JournalPort) -> None:
    epochs = []
    for run in ("run-1", "run-2"):
        delivery = begin(journal, requester(run))
        epochs.append(journal.custody(TARGET).epoch)
        delivery.go(S.FAILED)
        after = journal.custody(TARGET)
        assert (after.held, after.holder_key, after.holder_fence) == (False, None, None)
        assert after.release_reason == RELEASED
        epochs.append(after.epoch)
        journal.release(delivery.lease)
    assert epochs == [1, 1, 2, 2]


def test_claim_and_release_repeat_without_change(journal: JournalPort) -> None:
    delivery = begin(journal)
    held = journal.custody(TARGET)
    journal.append(journal_lease := delivery.lease, jr.HoldCustody(delivery.invocation_key))
    assert journal.custody(TARGET) == held
    delivery.go(S.FAILED)
    clear = journal.custody(TARGET)
    journal.append(journal_lease, jr.ReleaseCustody(delivery.invocation_key, RELEASED))
    assert journal.custody(TARGET) == clear


def test_only_the_holder_releases(journal: JournalPort) -> None:
    first = begin(journal)
    first.go(S.FAILED)
    second = Delivery(journal, first.lease, generation=2)
    second.plan()
    with pytest.raises(JournalError) as caught:
        journal.append(first.lease, jr.ReleaseCustody(first.invocation_key, RELEASED))
    assert code(caught) == "dpone.journal.write_refused"
    assert journal.custody(TARGET).holder_key == second.invocation_key


def test_a_claim_on_a_held_target_is_refused(journal: JournalPort) -> None:
    first = begin(journal)
    stranger = Delivery(journal, replace(first.lease, requester=requester("run-2")))
    with pytest.raises(CustodyHeld):
        stranger.plan()
    assert journal.newest_invocation(stranger.lease.requester.delivery_key) is None


def test_a_delivery_and_its_custody_begin_and_end_together(journal: JournalPort) -> None:
    delivery = Delivery(journal, take(journal))
    opening, planned = delivery.opening(), delivery.event(S.PLANNED)
    with pytest.raises(JournalError, match="does not hold custody"):
        journal.append(delivery.lease, opening, planned)
    journal.append(delivery.lease, opening, planned, jr.HoldCustody(delivery.invocation_key))
    failed = delivery.event(S.FAILED)
    with pytest.raises(JournalError, match="still holds custody"):
        journal.append(delivery.lease, failed)
    with pytest.raises(JournalError, match="does not hold custody"):
        journal.append(delivery.lease, jr.ReleaseCustody(delivery.invocation_key, RELEASED))
    journal.append(delivery.lease, failed, jr.ReleaseCustody(delivery.invocation_key, RELEASED))
    assert delivery.state() is S.FAILED


@pytest.mark.parametrize("reason", ReleaseReason)
def test_every_release_reason_is_stored(journal: JournalPort, reason: ReleaseReason) -> None:
    delivery = begin(journal)
    journal.append(
        delivery.lease, delivery.event(S.FAILED), jr.ReleaseCustody(delivery.invocation_key, reason)
    )
    assert journal.custody(TARGET).release_reason == reason


# ---- generations -------------------------------------------------------------------------------------------


def test_an_invocation_is_what_was_opened(journal: JournalPort, second: JournalPort) -> None:
    delivery = begin(journal)
    found = second.invocation(delivery.invocation_key)
    opened = delivery.opening()
    assert found == jr.Invocation(
        opened.delivery_key,
        1,
        opened.invocation_key,
        TARGET,
        ROUTE,
        WINDOW,
        S.PLANNED,
        None,
        opened.plan_sha256,
        None,
        None,
        None,
        opened.requester.dag_id,
        opened.requester.run_id,
        opened.requester.task_id,
        -1,
    )
    assert second.newest_invocation(opened.delivery_key) == found
    assert second.invocation(key_of(["nobody"])) is None
    assert second.newest_invocation(key_of(["nobody"])) is None


def test_the_next_generation_follows_an_ended_one(journal: JournalPort) -> None:
    first = begin(journal)
    second = Delivery(journal, first.lease, generation=2)
    with pytest.raises(JournalError, match="generation 1 is PLANNED"):
        second.plan()
    first.go(S.RETIRED)
    second.sequence = 0
    second.plan()
    newest = journal.newest_invocation(first.lease.requester.delivery_key)
    assert newest is not None
    assert newest.generation == 2
    third = Delivery(journal, first.lease, generation=1)
    with pytest.raises(JournalError):
        third.plan()


def test_one_transaction_retires_and_plans_anew(journal: JournalPort) -> None:
    old = begin(journal)
    new = Delivery(journal, old.lease, generation=2)
    journal.append(
        old.lease,
        old.event(S.RETIRED),
        jr.ReleaseCustody(old.invocation_key, ReleaseReason.NONPUBLICATION),
        new.opening(),
        new.event(S.PLANNED),
        jr.HoldCustody(new.invocation_key),
    )
    assert (old.state(), new.state()) == (S.RETIRED, S.PLANNED)
    assert (journal.custody(TARGET).holder_key, journal.custody(TARGET).epoch) == (new.invocation_key, 2)


def test_opening_repeats_without_change_but_not_with_another_content(journal: JournalPort) -> None:
    delivery = begin(journal)
    journal.append(delivery.lease, delivery.opening())
    with pytest.raises(JournalError) as caught:
        journal.append(delivery.lease, replace(delivery.opening(), plan_sha256=key_of(["another plan"])))
    assert code(caught) == "dpone.journal.write_refused"


def test_an_invocation_is_not_opened_without_its_first_event(journal: JournalPort) -> None:
    delivery = Delivery(journal, take(journal))
    with pytest.raises(JournalError, match="first event"):
        journal.append(delivery.lease, delivery.opening(), jr.HoldCustody(delivery.invocation_key))
    assert journal.invocation(delivery.invocation_key) is None
    assert not journal.custody(TARGET).held


def test_the_lease_of_one_target_writes_nothing_for_another(journal: JournalPort) -> None:
    delivery = begin(journal)
    other = take(journal, target=OTHER_TARGET)
    writes: list[jr.JournalWrite] = [
        delivery.event(S.EXTRACTED),
        delivery.attempt(A.INTENT),
        jr.PutNote(delivery.invocation_key, reason="no"),
        evidence(delivery),
        jr.PutCheckpoint(checkpoint(), 0),
        delivery.opening(),
        jr.HoldCustody(delivery.invocation_key),
        jr.ReleaseCustody(delivery.invocation_key, RELEASED),
    ]
    for write in writes:
        with pytest.raises(JournalError) as caught:
            journal.append(other, write)
        assert code(caught) == "dpone.journal.write_refused"
    assert len(journal.events(delivery.invocation_key)) == 1


def test_a_generation_is_opened_by_its_own_requester_only(journal: JournalPort) -> None:
    delivery = Delivery(journal, take(journal))
    stranger = replace(delivery, lease=replace(delivery.lease, requester=requester("run-2")))
    for opening in (stranger.opening(), replace(delivery.opening(), delivery_key=key_of(["other"]))):
        with pytest.raises(JournalError, match="own requester"):
            journal.append(delivery.lease, opening)


def test_an_event_of_an_unknown_invocation_is_refused(journal: JournalPort) -> None:
    delivery = Delivery(journal, take(journal))
    for write in (delivery.event(S.PLANNED), delivery.attempt(A.INTENT), jr.PutNote(delivery.invocation_key)):
        with pytest.raises(JournalError, match="not open"):
            journal.append(delivery.lease, write)
    assert journal.events(delivery.invocation_key) == ()


# ---- notes, tasks, evidence, checkpoints -------------------------------------------------------------------


def test_a_note_changes_what_it_names_and_empties_what_is_empty(journal: JournalPort) -> None:
    delivery = begin(journal)
    key = delivery.invocation_key
    journal.append(delivery.lease, jr.PutNote(key, "PLANNED", "dpone.source.nan", "because", "do this"))
    journal.append(delivery.lease, jr.PutNote(key, reason="another"), jr.PutNote(key, next_action=""))
    found = journal.invocation(key)
    assert found is not None
    assert (found.resume_state, found.last_error_code) == ("PLANNED", "dpone.source.nan")
    assert (found.reason, found.next_action) == ("another", None)
    journal.append(delivery.lease, jr.PutNote(key, reason="odd \0 name \U0001f600"))
    found = journal.invocation(key)
    assert found is not None
    assert found.reason == "odd \ufffd name \U0001f600"


def test_a_task_is_remembered_with_its_newest_word(journal: JournalPort, second: JournalPort) -> None:
    lease = take(journal)
    asked = lease.requester
    assert second.task(asked.delivery_key, "load") is None
    journal.append(lease, jr.PutTask(asked.delivery_key, 1, asked))
    newer = replace(asked, try_number=2, max_tries=5, ti_id="x")
    journal.append(lease, jr.PutTask(asked.delivery_key, 2, newer))
    assert second.task(asked.delivery_key, "load") == jr.TaskRecord(asked.delivery_key, "load", 2, 2, 5, "x")
    assert second.task(asked.delivery_key, "other") is None


def test_a_task_is_remembered_only_under_its_own_delivery(journal: JournalPort) -> None:
    lease = take(journal)
    with pytest.raises(JournalError):
        journal.append(lease, jr.PutTask(key_of(["other"]), 1, lease.requester))


def test_evidence_is_stored_once_under_its_own_hash(journal: JournalPort, second: JournalPort) -> None:
    delivery = begin(journal)
    write = evidence(delivery, package="2.0.0")
    journal.append(delivery.lease, write)
    journal.append(delivery.lease, write)
    assert second.evidence(write.evidence_sha256) == write.body
    assert second.evidence(key_of(["nothing"])) is None
    with pytest.raises(JournalError):
        journal.append(delivery.lease, replace(write, body=evidence(delivery).body))
    with pytest.raises(JournalError):
        journal.append(delivery.lease, replace(write, evidence_sha256=key_of(["other"])))


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"attempts": -1}, "attempts"),
        ({"more": 1}, "more"),
        ({"timings": {"admit": "0.1"}}, "timings.admit"),
        ({"prepared": {"n": 6, "limbs": ["0"] * 9}}, "prepared.limbs"),
        ({"environment": "elsewhere"}, "environment"),
        ({"schema": "dpone.delivery-evidence.v0"}, "schema"),
    ],
)
def test_evidence_that_its_schema_refuses_is_never_stored(
    journal: JournalPort, changes: dict[str, Any], path: str
) -> None:
    delivery = begin(journal)
    write = evidence(delivery, **changes)
    with pytest.raises(JournalError) as caught:
        journal.append(delivery.lease, write)
    assert (code(caught), caught.value.fields["path"]) == ("dpone.journal.write_refused", path)
    assert path in caught.value.message
    assert journal.evidence(write.evidence_sha256) is None


def test_evidence_that_is_no_json_is_never_stored(journal: JournalPort) -> None:
    delivery = begin(journal)
    for body in (b"", bytes(range(256)), b"[]", b"null"):
        write = replace(evidence(delivery), body=body, evidence_sha256=sha256_hex(body))
        with pytest.raises(JournalError) as caught:
            journal.append(delivery.lease, write)
        assert code(caught) == "dpone.journal.write_refused"
        assert journal.evidence(write.evidence_sha256) is None


def test_a_checkpoint_is_set_only_on_the_revision_that_was_read(
    journal: JournalPort, second: JournalPort
) -> None:
    lease = take(journal)
    assert journal.checkpoint(TARGET, ROUTE, WINDOW) is None
    with pytest.raises(JournalError) as caught:
        journal.append(lease, jr.PutCheckpoint(checkpoint(), 1))
    assert code(caught) == "dpone.journal.checkpoint_conflict"
    journal.append(lease, jr.PutCheckpoint(checkpoint(revision=77), 0))
    assert second.checkpoint(TARGET, ROUTE, WINDOW) == checkpoint(revision=1)
    newer = checkpoint(generation=5)
    for expected in (0, 2):
        with pytest.raises(JournalError) as caught:
            journal.append(lease, jr.PutCheckpoint(newer, expected))
        assert code(caught) == "dpone.journal.checkpoint_conflict"
        assert caught.value.fields["revision"] == 1
    journal.append(lease, jr.PutCheckpoint(newer, 1))
    assert second.checkpoint(TARGET, ROUTE, WINDOW) == replace(newer, revision=2)


def test_the_same_checkpoint_again_is_no_change(journal: JournalPort) -> None:
    lease = take(journal)
    write = jr.PutCheckpoint(checkpoint(), 0)
    journal.append(lease, write)
    journal.append(lease, write)
    assert journal.checkpoint(TARGET, ROUTE, WINDOW) == checkpoint(revision=1)


def test_windows_have_rows_of_their_own(journal: JournalPort) -> None:
    lease = take(journal)
    journal.append(lease, jr.PutCheckpoint(checkpoint(), 0), jr.PutCheckpoint(checkpoint(window="full"), 0))
    assert journal.checkpoint(TARGET, ROUTE, "full") == checkpoint(window="full")


def test_delivered_windows_are_found_by_what_they_overlap(journal: Any, second: Any) -> None:
    """Half-open: a window that only touches the asked one is another. The whole table is no interval."""
    at = [f"2025-01-0{day}T00:00:00.000000Z" for day in range(1, 10)]
    keys = [f"{at[0]}/{at[1]}", f"{at[1]}/{at[2]}", f"{at[2]}/{at[6]}", f"{at[6]}/{at[8]}", "full"]
    delivery = begin(journal)
    for key in keys:
        journal.append(delivery.lease, jr.PutCheckpoint(checkpoint(window=key), 0))

    def found(start: int, end: int, **more: Any) -> list[int]:
        asked = Window.of_key(f"{at[start]}/{at[end]}")
        return [keys.index(window.key) for window in second.delivered(TARGET, asked, **more)]

    assert found(0, 8) == [0, 1, 2, 3]
    assert found(1, 2) == [1]
    assert found(1, 6) == [1, 2]
    assert found(3, 4) == [2]
    assert found(7, 8) == [3]
    assert found(0, 8, route_scope=ROUTE) == [0, 1, 2, 3]
    assert found(0, 8, route_scope=key_of(["another route"])) == []
    assert second.delivered(OTHER_TARGET, Window.full()) == []
    assert second.delivered(TARGET, Window.full()) == [Window.full()]


def test_what_was_published_is_told_with_its_receipt_whatever_became_of_it(journal: Any, second: Any) -> None:
    """In any state; not what was never published. Events and columns are those of the journal."""
    kept = begin(journal)
    kept.go(*TO_PUBLISHED, S.EVIDENCED, S.CHECKPOINTED, S.COMPLETED)
    again = Delivery(journal, kept.lease, generation=2)
    again.plan()
    again.go(*TO_PUBLISHED, S.INCIDENT, S.RETIRED)
    failed = Delivery(journal, kept.lease, generation=3)
    failed.plan()
    failed.go(S.FAILED)
    (target,) = second.targets()
    found = {one.invocation_key: one for one in second.publications(TARGET)}
    assert set(found) == {kept.invocation_key, again.invocation_key}
    one = found[kept.invocation_key]
    receipt = example(S.PUBLISHED)["receipt"]
    assert (one.operation_id, one.receipt_sha256, one.fence, one.deleted_rows, one.published_at) == (
        receipt["operation_id"],
        receipt["receipt_sha256"],
        int(receipt["fence"]),
        receipt["deleted_rows"],
        receipt["published_at"],
    )
    assert (one.generation, one.newest_generation, one.state, one.window_key, one.route_scope) == (
        1, 3, S.COMPLETED, WINDOW, ROUTE,
    )  # fmt: skip
    assert (one.dag_id, one.run_id, one.delivery_task_id, one.map_index) == ("sales", "run-1", "load", -1)
    planned = example(S.PLANNED)["target"]
    assert (target.schema, target.table) == (planned["schema"], planned["table"])
    assert (str(one.object_id), one.created) == (planned["object_id"], planned["created"])
    assert found[again.invocation_key].state is S.RETIRED
    assert list(second.publications(OTHER_TARGET)) == []


def test_what_was_written_is_there_for_a_new_session(store: Store) -> None:
    with store.open() as first:
        delivery = begin(first)
        delivery.go(*TO_PUBLISHED)
        before, journal_id = first.events(delivery.invocation_key), first.journal_id
    with store.open() as later:
        assert later.journal_id == journal_id
        assert later.events(delivery.invocation_key) == before
        assert later.custody(TARGET).held


def test_a_closed_journal_can_be_entered_again(journal: JournalPort) -> None:
    delivery = begin(journal)
    with journal:
        pass
    with journal:
        assert delivery.state() is S.PLANNED
