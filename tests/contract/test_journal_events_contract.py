"""The contract of ``JournalPort`` for events: what a chain admits, and what it reads back."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.identity import canonical, key_of, sha256_hex
from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.delivery.states import (
    ATTEMPT_MOVES,
    ENDED,
    EVENT_STATES,
    MOVES,
    AttemptEvent,
    DeliveryEvent,
    DeliveryState,
)
from airflow_dpone.errors import JournalError
from tests.contract.document_changes import changed, is_below, mutations, put
from tests.contract.journal_cases import (
    RELEASED,
    TO_COMPLETED,
    TO_PUBLISHED,
    Delivery,
    begin,
    evidence,
    requester,
    take,
)
from tests.contract.journal_examples import BINDINGS, bindings, payload, tuned

S, D, A = DeliveryState, DeliveryEvent, AttemptEvent


def code(caught: pytest.ExceptionInfo[Any]) -> str:
    return str(caught.value.code)


# ---- events ------------------------------------------------------------------------------------------------


def test_a_whole_delivery_reads_back_as_a_linked_chain(journal: JournalPort, second: JournalPort) -> None:
    delivery = begin(journal)
    delivery.go(*TO_COMPLETED)
    events = second.events(delivery.invocation_key)
    assert [event.event for event in events] == ["PLANNED", *TO_COMPLETED]
    assert [event.sequence for event in events] == list(range(9))
    assert {event.stream for event in events} == {f"delivery/{delivery.invocation_key}"}
    previous = None
    for event in events:
        assert event.body["previous_sha256"] == previous
        assert sha256_hex(canonical(event.body)) == event.sha256
        previous = event.sha256


def test_the_envelope_of_a_delivery_event(journal: JournalPort) -> None:
    delivery = begin(journal)
    journal.append(delivery.lease, delivery.event(D.TUNED, tuned(7)))
    body = dict(journal.events(delivery.invocation_key)[1].body)
    stamp = body.pop("created_at")
    assert len(stamp) == len("2025-01-01T00:00:00.000000Z")
    assert (stamp[10], stamp[-1]) == ("T", "Z")
    assert len(body.pop("previous_sha256")) == 64
    assert body == {
        "schema_version": 1,
        "kind": "dpone.delivery-event",
        "stream": f"delivery/{delivery.invocation_key}",
        "sequence": 1,
        "event": "TUNED",
        "fence": str(delivery.lease.fence),
        "requester": delivery.lease.requester.to_json(),
        "payload": tuned(7),
    }


def test_the_envelope_of_an_attempt_event_has_the_thirteen_fields(journal: JournalPort) -> None:
    delivery = begin(journal)
    write = delivery.attempt(A.INTENT)
    journal.append(delivery.lease, write)
    body = journal.events(delivery.invocation_key)[1].body
    assert sorted(body) == sorted(
        "schema_version kind invocation_key ordinal attempt_id sequence previous_sha256 event stage_binding "
        "artifact_binding writer_binding observation created_at".split()
    )
    assert body["kind"] == "dpone.chunk-attempt-event"
    assert (body["stage_binding"], body["artifact_binding"]) == (write.stage_binding, write.artifact_binding)
    assert (body["writer_binding"], body["observation"], body["previous_sha256"]) == (None, None, None)


def test_events_come_by_stream_the_delivery_first_then_attempts_by_chunk(journal: JournalPort) -> None:
    delivery = begin(journal)
    steps: list[jr.JournalWrite] = [
        delivery.event(S.EXTRACTED),
        delivery.attempt(A.INTENT, "b"),
        delivery.attempt(A.INTENT, "a"),
        delivery.attempt(A.STAGE_OWNED, "b"),
        delivery.attempt(A.STAGE_OWNED, "a"),
        delivery.event(S.STAGED),
        delivery.attempt(A.GRANTED, "a"),
    ]
    journal.append(delivery.lease, *steps)
    found = [(event.body.get("ordinal"), event.event) for event in journal.events(delivery.invocation_key)]
    assert found == [
        (None, "PLANNED"),
        (None, "EXTRACTED"),
        (None, "STAGED"),
        (0, "INTENT"),
        (0, "STAGE_OWNED"),
        (0, "GRANTED"),
        (1, "INTENT"),
        (1, "STAGE_OWNED"),
    ]


def test_the_same_event_again_is_no_change_whatever_its_place(journal: JournalPort) -> None:
    delivery = begin(journal)
    writes: list[jr.JournalWrite] = [
        delivery.event(S.EXTRACTED),
        delivery.attempt(A.INTENT),
        delivery.event(S.STAGED),
    ]
    journal.append(delivery.lease, *writes)
    before = journal.events(delivery.invocation_key)
    raised = journal.raise_fence(delivery.lease)  # another fence and another time are no difference
    journal.append(raised, *writes)
    journal.append(raised, writes[0])
    assert journal.events(delivery.invocation_key) == before
    assert delivery.state() is S.STAGED


def test_another_event_at_the_same_place_is_refused(journal: JournalPort) -> None:
    delivery = begin(journal)
    event, attempt = delivery.event(D.TUNED, tuned(1)), delivery.attempt(A.INTENT)
    journal.append(delivery.lease, event, attempt)
    others: list[jr.JournalWrite] = [
        replace(event, payload=tuned(2)),
        replace(event, event=S.EXTRACTED, payload=payload(S.EXTRACTED)),
        replace(event, payload={}),
        replace(attempt, **bindings(A.INTENT, ordinal=1)),
        replace(attempt, ordinal=5),
    ]
    for write in others:
        with pytest.raises(JournalError) as caught:
            journal.append(delivery.lease, write)
        assert code(caught) == "dpone.journal.event_conflict"
        assert caught.value.retry == "never"


@pytest.mark.parametrize("sequence", [-1, 2, 7])
def test_a_gap_in_the_sequence_is_refused(journal: JournalPort, sequence: int) -> None:
    delivery = begin(journal)
    with pytest.raises(JournalError) as caught:
        journal.append(delivery.lease, replace(delivery.event(D.TUNED), sequence=sequence))
    assert code(caught) == "dpone.journal.event_refused"
    with pytest.raises(JournalError):
        journal.append(delivery.lease, replace(delivery.attempt(A.INTENT), sequence=sequence))
    assert len(journal.events(delivery.invocation_key)) == 1


def test_a_transaction_lands_whole_or_not_at_all(journal: JournalPort) -> None:
    delivery = begin(journal)
    with pytest.raises(JournalError):
        journal.append(
            delivery.lease,
            delivery.event(S.EXTRACTED),
            jr.PutNote(delivery.invocation_key, reason="half"),
            evidence(delivery),
            delivery.event(S.COMPLETED),
        )
    found = journal.invocation(delivery.invocation_key)
    assert found is not None
    assert (found.state, found.reason) == (S.PLANNED, None)
    assert journal.evidence(evidence(delivery).evidence_sha256) is None
    assert len(journal.events(delivery.invocation_key)) == 1


PATHS: dict[DeliveryState, tuple[DeliveryState, ...]] = {
    S.PLANNED: (),
    S.EXTRACTED: TO_PUBLISHED[:1],
    S.STAGED: TO_PUBLISHED[:2],
    S.PREPARED: TO_PUBLISHED[:3],
    S.PUBLISHING: TO_PUBLISHED[:4],
    S.UNKNOWN: (*TO_PUBLISHED[:4], S.UNKNOWN),
    S.PUBLISHED: TO_COMPLETED[:5],
    S.EVIDENCED: TO_COMPLETED[:6],
    S.CHECKPOINTED: TO_COMPLETED[:7],
    S.COMPLETED: TO_COMPLETED,
    S.FAILED: (S.FAILED,),
    S.RETIRED: (S.RETIRED,),
    S.INCIDENT: (S.INCIDENT,),
}


@pytest.mark.parametrize("before", DeliveryState)
def test_every_move_of_a_delivery_is_as_the_state_table_says(
    journal: JournalPort, before: DeliveryState
) -> None:
    """All 13 x 13 moves, and every other event in every state: refused ones change nothing."""
    delivery = begin(journal)
    delivery.go(*PATHS[before])
    candidates: list[DeliveryState | DeliveryEvent] = [*DeliveryState, *DeliveryEvent]
    events = {event for event, states in EVENT_STATES.items() if before in states}
    allowed: set[DeliveryState | DeliveryEvent] = {*MOVES[before], *events}
    count = len(journal.events(delivery.invocation_key))
    for event in candidates:
        if event in allowed:
            continue
        write = jr.AppendDelivery(delivery.invocation_key, delivery.sequence, event, payload(event))
        with pytest.raises(JournalError) as caught:
            journal.append(delivery.lease, write)
        assert code(caught) == "dpone.journal.event_refused"
    assert len(journal.events(delivery.invocation_key)) == count
    for event in sorted(events):
        journal.append(delivery.lease, delivery.event(event))
    ends = MOVES[before] & ENDED
    for state in [*sorted(MOVES[before] - ENDED)[:1], *([] if MOVES[before] - ENDED else sorted(ends)[:1])]:
        delivery.go(state)
        assert delivery.state() is state
    journal.events(delivery.invocation_key)


@pytest.mark.parametrize("after", sorted(set(DeliveryState) - {S.PLANNED}) + sorted(DeliveryEvent))
def test_a_delivery_begins_with_planned_only(
    journal: JournalPort, after: DeliveryState | DeliveryEvent
) -> None:
    delivery = Delivery(journal, take(journal))
    with pytest.raises(JournalError) as caught:
        journal.append(delivery.lease, delivery.opening(), delivery.event(after))
    assert code(caught) == "dpone.journal.event_refused"


def _path_to(wanted: AttemptEvent) -> list[AttemptEvent]:
    paths: list[list[AttemptEvent]] = [[A.INTENT]]
    while paths:
        path = paths.pop(0)
        if path[-1] is wanted:
            return path
        paths += [[*path, after] for after in sorted(ATTEMPT_MOVES[path[-1]]) if after not in path]
    raise ValueError(wanted)


@pytest.mark.parametrize("before", AttemptEvent)
def test_every_move_of_an_attempt_is_as_the_state_table_says(
    journal: JournalPort, before: AttemptEvent
) -> None:
    delivery = begin(journal)
    for after in AttemptEvent:
        name = f"a{after}"
        journal.append(delivery.lease, *(delivery.attempt(event, name) for event in _path_to(before)))
        write = delivery.attempt(after, name)
        if after in ATTEMPT_MOVES[before]:
            journal.append(delivery.lease, write)
        else:
            with pytest.raises(JournalError) as caught:
                journal.append(delivery.lease, write)
            assert code(caught) == "dpone.journal.event_refused"
    journal.events(delivery.invocation_key)


def test_an_ended_delivery_has_no_attempts_any_more(journal: JournalPort) -> None:
    delivery = begin(journal)
    journal.append(delivery.lease, delivery.attempt(A.INTENT))
    delivery.go(S.FAILED)
    with pytest.raises(JournalError, match="FAILED"):
        journal.append(delivery.lease, delivery.attempt(A.FAILED_RETIRABLE))


@pytest.mark.parametrize(
    "quality",
    [
        {"row_count": {"min_rows": 0.5, "max_rows": None}, "not_null": []},
        {"row_count": {"min_rows": 2.0, "max_rows": None}, "not_null": []},
        {"row_count": {"min_rows": 2**53, "max_rows": None}, "not_null": []},
        {"row_count": None, "not_null": [b"x"]},
        {"row_count": None, "not_null": [object()]},
        {"row_count": None, "not_null": [], 1: "x"},
        {"row_count": None, "not_null": ["\ud800"]},
    ],
    ids=["float", "a whole float", "2**53", "bytes", "object", "number as key", "lone surrogate"],
)
def test_a_payload_that_is_not_our_json_is_refused(journal: JournalPort, quality: Any) -> None:
    delivery = begin(journal)
    with pytest.raises(JournalError) as caught:
        journal.append(delivery.lease, delivery.event(D.TUNED, payload(D.TUNED, quality=quality)))
    assert code(caught) == "dpone.journal.event_refused"
    assert "schema" not in caught.value.message, "it is not even asked"
    assert len(journal.events(delivery.invocation_key)) == 1


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
COUNT = st.integers(0, 2**53 - 1)
OPENED = st.builds(
    lambda epoch, mutations, settings: payload(
        D.EPOCH_OPENED,
        extraction_epoch=epoch,
        source={**payload(D.EPOCH_OPENED)["source"], "mutations": mutations, "settings": settings},
    ),
    COUNT,
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), max_size=4),
    st.dictionaries(TEXT, TEXT, max_size=4),
)
"""Every text and every count that the source may have said."""


WRONG: list[tuple[DeliveryState | DeliveryEvent, tuple[Any, ...], Any]] = [
    (S.EXTRACTED, ("extraction_epoch",), "0"),
    (S.EXTRACTED, ("limbs",), ["0"] * 9),
    (S.EXTRACTED, ("limbs", 7), 5),
    (S.EXTRACTED, ("digest",), "A" * 64),
    (S.EXTRACTED, ("source", "read_at"), "2025-03-01T12:30:15Z"),
    (S.EXTRACTED, ("source", "parts", 0, "rows"), -1),
    (S.EXTRACTED, ("more",), None),
    (S.FAILED, ("code",), None),
    (S.FAILED, ("row",), "a value of the row"),
    (S.RETIRED, ("reason",), ""),
    (S.INCIDENT, ("said",), "x" * 501),
    (S.INCIDENT, ("resumes_from",), "NOWHERE"),
    (D.EPOCH_OPENED, ("nonce",), "f" * 63),
    (D.CHUNK_SEALED, ("chunk_format",), "arrow_ipc"),
    (D.TUNED, ("limits", "max_rows"), True),
]


@pytest.mark.parametrize(("event", "place", "value"), WRONG, ids=[f"{e} {p}" for e, p, _ in WRONG])
def test_an_event_that_its_schema_refuses_is_never_stored(
    journal: JournalPort, event: DeliveryState | DeliveryEvent, place: tuple[Any, ...], value: Any
) -> None:
    """The error names stream, number and place, and not what stands there; nothing of the transaction
    landed, and the right event takes the place."""
    delivery = begin(journal)
    note = jr.PutNote(delivery.invocation_key, reason="half")
    wrong = delivery.event(event, changed(payload(event), place, put(value)))
    with pytest.raises(JournalError) as caught:
        journal.append(delivery.lease, note, wrong)
    path = ".".join(map(str, ("payload", *place)))
    assert code(caught) == "dpone.journal.event_refused"
    assert caught.value.fields["stream"] == f"delivery/{delivery.invocation_key}"
    assert (caught.value.fields["sequence"], caught.value.fields["path"]) == (1, path)
    assert path in caught.value.message
    assert "a value" not in caught.value.message
    found = journal.invocation(delivery.invocation_key)
    assert found is not None
    assert (found.state, found.reason) == (S.PLANNED, None)
    writes: list[jr.JournalWrite] = [replace(wrong, payload=payload(event))]
    if event in ENDED:
        writes.append(jr.ReleaseCustody(delivery.invocation_key, RELEASED))
    journal.append(delivery.lease, *writes)
    assert len(journal.events(delivery.invocation_key)) == 2


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"stage_binding": None}, "stage_binding"),
        ({"writer_binding": bindings(A.GRANTED)["writer_binding"]}, "writer_binding"),
        ({"observation": bindings(A.UNKNOWN)["observation"]}, "observation"),
        ({"artifact_binding": {"rows": 3}}, "artifact_binding.encoded_bytes"),
        ({"stage_binding": bindings(A.GRANTED)["stage_binding"]}, "stage_binding.object_id"),
    ],
)
def test_an_attempt_event_with_bindings_of_another_event_is_never_stored(
    journal: JournalPort, change: dict[str, Any], path: str
) -> None:
    delivery = begin(journal)
    right = delivery.attempt(A.INTENT)
    with pytest.raises(JournalError) as caught:
        journal.append(delivery.lease, replace(right, **change))
    assert (code(caught), caught.value.fields["path"]) == ("dpone.journal.event_refused", path)
    assert caught.value.fields["stream"] == f"attempt/{right.attempt_id}"
    journal.append(delivery.lease, right)
    assert len(journal.events(delivery.invocation_key)) == 2


NUMBERS = itertools.count()


def a_fresh_one(journal: JournalPort) -> Delivery:
    """One journal serves all examples of a property, so each has a requester and a target of its own."""
    number = next(NUMBERS)
    return begin(journal, requester(f"example-{number}"), target=key_of(["target", number]))


WRITTEN_WHEN_PLANNED = sorted({*MOVES[S.PLANNED], D.EPOCH_OPENED, D.CHUNK_SEALED, D.EPOCH_ABANDONED, D.TUNED})


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(event=st.sampled_from(WRITTEN_WHEN_PLANNED), data=st.data())
def test_a_payload_with_any_single_change_is_never_stored(
    journal: JournalPort, event: DeliveryState | DeliveryEvent, data: st.DataObject
) -> None:
    delivery = a_fresh_one(journal)
    _, wrong, place = data.draw(st.sampled_from(list(mutations(payload(event)))))
    with pytest.raises(JournalError) as caught:
        journal.append(delivery.lease, delivery.event(event, wrong))
    assert code(caught) == "dpone.journal.event_refused"
    is_float = "float" in caught.value.message  # no JSON of ours has one, so no schema is asked
    assert is_float or is_below(caught.value.fields["path"], ("payload", *place))
    assert len(journal.events(delivery.invocation_key)) == 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bindings_with_any_single_change_are_never_stored(journal: JournalPort, data: st.DataObject) -> None:
    delivery = a_fresh_one(journal)
    right = delivery.attempt(A.INTENT)
    whole = {name: getattr(right, name) for name in BINDINGS}
    tried = [(wrong, place) for _, wrong, place in mutations(whole) if wrong.keys() == whole.keys()]
    wrong, place = data.draw(st.sampled_from(tried))
    with pytest.raises(JournalError) as caught:
        journal.append(delivery.lease, replace(right, **wrong))
    assert code(caught) == "dpone.journal.event_refused"
    assert "float" in caught.value.message or is_below(caught.value.fields["path"], place)
    assert len(journal.events(delivery.invocation_key)) == 1


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads=st.lists(OPENED, min_size=1, max_size=4))
def test_any_text_and_any_count_reads_back_as_it_was(
    journal: JournalPort, payloads: list[dict[str, Any]]
) -> None:
    delivery = a_fresh_one(journal)
    writes = [delivery.event(D.EPOCH_OPENED, payload) for payload in payloads]
    journal.append(delivery.lease, *writes)
    journal.append(delivery.lease, *writes)
    assert [event.body["payload"] for event in journal.events(delivery.invocation_key)[1:]] == payloads


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sequence_of_writes_leaves_a_chain_that_holds(journal: JournalPort, data: st.DataObject) -> None:
    """Random events, right and wrong: what lands is what the state table permits; the projection follows."""
    delivery = a_fresh_one(journal)
    state, landed = S.PLANNED, [S.PLANNED]
    for _ in range(data.draw(st.integers(1, 15))):
        event = data.draw(
            st.sampled_from([*DeliveryState, *DeliveryEvent, *sorted(MOVES[state]), *sorted(MOVES[state])])
        )
        count = len(landed)
        sequence = data.draw(st.sampled_from([count, count, count, count, count + 1, count - 1]))
        writes: list[jr.JournalWrite] = [
            jr.AppendDelivery(delivery.invocation_key, sequence, event, payload(event))
        ]
        if event in ENDED:
            writes.append(jr.ReleaseCustody(delivery.invocation_key, RELEASED))
        permitted = event in MOVES[state] | {
            other for other, states in EVENT_STATES.items() if state in states
        }
        is_repeated = sequence < count and landed[sequence] is event
        if is_repeated or (sequence == count and permitted):
            journal.append(delivery.lease, *writes)
            landed += [] if is_repeated else [event]
            state = event if isinstance(event, DeliveryState) else state
        else:
            with pytest.raises(JournalError):
                journal.append(delivery.lease, *writes)
        assert delivery.state() is state
    assert [event.event for event in journal.events(delivery.invocation_key)] == landed
    assert journal.custody(delivery.lease.target_key).held is (state not in ENDED)
