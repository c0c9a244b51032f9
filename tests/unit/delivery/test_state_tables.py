"""The journal permits exactly the moves of the state tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.states import (
    ATTEMPT_ENDED,
    ATTEMPT_MOVES,
    ENDED,
    EVENT_STATES,
    MOVES,
    RULES,
    AttemptEvent,
    DeliveryEvent,
    DeliveryState,
    ReleaseReason,
    may_continue,
    may_move,
)
from airflow_dpone.errors import JournalError
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.journal.store import SqlJournal, open_journal
from tests.contract.journal_examples import bindings, payload
from tests.fakes.world import HOST, requester

S, A = DeliveryState, AttemptEvent
_numbers = count()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlJournal]:
    """One journal for all pairs: each of them has a target of its own."""
    path: Path = tmp_path_factory.mktemp("states") / "journal.db"
    migrate(path, host=HOST)
    with open_journal(path, host=HOST) as opened:
        yield opened


def shortest_paths(moves: Mapping[Any, frozenset[Any]]) -> dict[Any, list[Any]]:
    """For each state a permitted way from the beginning to it."""
    paths: dict[Any, list[Any]] = {None: []}
    queue: deque[Any] = deque([None])
    while queue:
        here = queue.popleft()
        for after in sorted(moves[here]):
            if after not in paths:
                paths[after] = [*paths[here], after]
                queue.append(after)
    return paths


DELIVERY_PATHS, ATTEMPT_PATHS = shortest_paths(MOVES), shortest_paths(ATTEMPT_MOVES)


class Stream:
    """One delivery in the journal that may be moved by hand."""

    def __init__(self, journal: SqlJournal) -> None:
        number = next(_numbers)
        self.who = requester(f"run-{number}")
        self.key = identity.key_of(["invocation", number])
        self.target = identity.key_of(["target", number])
        self.journal = journal
        self.lease = journal.acquire(self.target, self.who, ttl_sec=60, gate_fence=0)
        self.next = 0
        self.last_attempt = -1

    def event(self, event: DeliveryState | DeliveryEvent) -> jr.AppendDelivery:
        """The next event of the delivery stream."""
        return jr.AppendDelivery(self.key, self.next, event, payload(event))

    def say(self, event: DeliveryState | DeliveryEvent) -> None:
        """Writes an event with what must come in the same transaction."""
        writes: list[jr.JournalWrite] = [self.event(event)]
        if event is S.PLANNED and self.next == 0:
            opened = jr.OpenInvocation(
                self.who.delivery_key, 1, self.key, self.target, "0" * 64, "full", "0" * 64, self.who
            )
            writes = [opened, *writes, jr.HoldCustody(self.key)]
        if event in ENDED:
            writes.append(jr.ReleaseCustody(self.key, ReleaseReason.NONPUBLICATION))
        self.journal.append(self.lease, *writes)
        self.next += 1

    def attempt(self, event: AttemptEvent) -> None:
        """Writes the next event of one attempt's stream."""
        attempt_id = identity.key_of(["attempt", self.key])
        write = jr.AppendAttempt(
            self.key,
            0,
            attempt_id,
            self.last_attempt + 1,
            event,
            **bindings(event),
        )
        self.journal.append(self.lease, write)
        self.last_attempt += 1


def stream_at(journal: SqlJournal, state: DeliveryState | None) -> Stream:
    """A delivery that was moved to a state."""
    stream = Stream(journal)
    for step in DELIVERY_PATHS[state]:
        stream.say(step)
    return stream


@pytest.mark.parametrize("before", [None, *S], ids=str)
def test_a_delivery_moves_only_as_the_table_says(journal: SqlJournal, before: DeliveryState | None) -> None:
    landed = set()
    for after in S:
        stream = stream_at(journal, before)
        try:
            stream.say(after)
        except JournalError:
            found = journal.invocation(stream.key)
            assert (found and found.state) == before
        else:
            landed.add(after)
            assert journal.invocation(stream.key).state is after
            journal.events(stream.key)
    assert landed == MOVES[before]
    assert landed == {after for after in S if may_move(before, after)}


@pytest.mark.parametrize("before", [None, *A], ids=str)
def test_an_attempt_moves_only_as_the_table_says(journal: SqlJournal, before: AttemptEvent | None) -> None:
    landed = set()
    for after in A:
        stream = stream_at(journal, S.EXTRACTED)
        for step in ATTEMPT_PATHS[before]:
            stream.attempt(step)
        try:
            stream.attempt(after)
        except JournalError:
            continue
        landed.add(after)
        journal.events(stream.key)
    assert landed == ATTEMPT_MOVES[before]
    assert landed == {after for after in A if may_continue(before, after)}


@pytest.mark.parametrize("event", list(DeliveryEvent))
def test_an_event_that_is_no_state_comes_only_where_the_table_says(
    journal: SqlJournal, event: DeliveryEvent
) -> None:
    landed = set()
    for state in S:
        stream = stream_at(journal, state)
        try:
            stream.say(event)
        except JournalError:
            continue
        landed.add(state)
        assert journal.invocation(stream.key).state is state
    assert landed == EVENT_STATES[event]


@pytest.mark.parametrize("state", list(S))
def test_custody_is_held_exactly_in_the_states_whose_rule_says_so(
    journal: SqlJournal, state: DeliveryState
) -> None:
    stream = stream_at(journal, state)
    assert journal.custody(stream.target).held is (RULES[state].custody == "held")
    assert (RULES[state].custody == "clear") is (state in ENDED)


@pytest.mark.parametrize("end", sorted(ENDED))
def test_a_delivery_cannot_end_and_keep_its_target(journal: SqlJournal, end: DeliveryState) -> None:
    path = DELIVERY_PATHS[end]
    stream = stream_at(journal, path[-2])
    with pytest.raises(JournalError):
        journal.append(stream.lease, stream.event(end))
    assert journal.invocation(stream.key).state is path[-2]
    assert journal.custody(stream.target).held


def test_a_delivery_cannot_begin_without_its_target(journal: SqlJournal) -> None:
    stream = Stream(journal)
    opened = jr.OpenInvocation(
        stream.who.delivery_key, 1, stream.key, stream.target, "0" * 64, "full", "0" * 64, stream.who
    )
    with pytest.raises(JournalError):
        journal.append(stream.lease, opened, stream.event(S.PLANNED))
    assert journal.invocation(stream.key) is None


DELIVERY_TABLE = """
None: PLANNED
PLANNED: EXTRACTED FAILED RETIRED INCIDENT
EXTRACTED: STAGED PLANNED FAILED RETIRED INCIDENT
STAGED: PREPARED FAILED RETIRED INCIDENT
PREPARED: PUBLISHING STAGED FAILED RETIRED INCIDENT
PUBLISHING: PUBLISHED PUBLISHING PREPARED FAILED UNKNOWN INCIDENT
UNKNOWN: PUBLISHED PREPARED PUBLISHING INCIDENT
PUBLISHED: EVIDENCED INCIDENT
EVIDENCED: CHECKPOINTED INCIDENT
CHECKPOINTED: COMPLETED
INCIDENT: PUBLISHED RETIRED
COMPLETED:
FAILED:
RETIRED:
"""
ATTEMPT_TABLE = """
None: INTENT
INTENT: STAGE_OWNED FAILED_RETIRABLE INCIDENT_RETAINED
STAGE_OWNED: GRANTED FAILED_RETIRABLE
GRANTED: WRITING UNKNOWN FAILED_RETIRABLE
WRITING: WRITER_TERMINAL UNKNOWN
WRITER_TERMINAL: QUIESCENT UNKNOWN
QUIESCENT: VERIFIED PARTIAL_PROVED UNKNOWN
VERIFIED: RETIRED FAILED_RETIRABLE UNKNOWN
PARTIAL_PROVED: FAILED_RETIRABLE
UNKNOWN: QUIESCENT PARTIAL_PROVED INCIDENT_RETAINED
FAILED_RETIRABLE: RETIRED
INCIDENT_RETAINED:
RETIRED:
"""
"""The agreed tables, written out: a move that slips into the code must be agreed on first."""


@pytest.mark.parametrize(
    ("moves", "table"), [(MOVES, DELIVERY_TABLE), (ATTEMPT_MOVES, ATTEMPT_TABLE)], ids=["delivery", "attempt"]
)
def test_the_tables_are_the_agreed_ones(moves: Mapping[Any, frozenset[Any]], table: str) -> None:
    agreed = {
        before: set(after.split()) for before, _, after in (s.partition(":") for s in table.split("\n") if s)
    }
    assert {str(before): {str(a) for a in after} for before, after in moves.items()} == agreed


def test_every_state_has_a_row_that_says_what_it_means_and_what_to_do() -> None:
    assert set(RULES) == set(S)
    assert set(MOVES) == {None, *S}
    assert set(ATTEMPT_MOVES) == {None, *A}
    assert set(EVENT_STATES) == set(DeliveryEvent)
    assert all(rule.writer and rule.meaning and rule.way_out for rule in RULES.values())


def test_every_state_can_be_reached_and_only_the_ends_lead_nowhere() -> None:
    assert set(DELIVERY_PATHS) == {None, *S}
    assert {state for state, after in MOVES.items() if not after} == ENDED
    assert set(ATTEMPT_PATHS) == {None, *A}
    assert {event for event, after in ATTEMPT_MOVES.items() if not after} == ATTEMPT_ENDED
