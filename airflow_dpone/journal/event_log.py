"""Appending events and reading whole streams. A row of ``dpone_event`` is never changed and never deleted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, insert, select, update

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.states import (
    ATTEMPT_MOVES,
    ENDED,
    EVENT_STATES,
    MOVES,
    AttemptEvent,
    DeliveryState,
)
from airflow_dpone.journal import chain
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.lease import Guarded
from airflow_dpone.journal.projection import invocation_of_row, own_invocation

COLUMNS = tuple(t.event.c[name] for name in chain.StoredEvent.__dataclass_fields__)


def append_delivery(tx: Guarded, write: jr.AppendDelivery) -> None:
    """Appends to a generation's stream; a state event also moves the projection.

    The same event at the same sequence again is no change. Raises JournalError for another one there, for a
    gap, for what the state table does not permit now, and for what its schema refuses.
    """
    stream = chain.delivery_stream(write.invocation_key)
    row = own_invocation(tx, write.invocation_key)
    last = _last(tx.connection, stream)
    document = chain.delivery_document(
        write,
        fence=tx.lease.fence,
        requester=tx.lease.requester,
        previous_sha256=_previous_sha256(tx.connection, stream, write.sequence, last),
        created_at=tx.now,
    )
    new = chain.seal(document, stream=stream, invocation_key=write.invocation_key)
    if _is_stored(tx.connection, new, last):
        return
    chain.verify_length(stream, 0 if last is None else last.sequence + 1, row.delivery_events)
    state = DeliveryState(row.state) if row.delivery_events else None
    if not _permitted(write, state):
        raise chain.refused(stream, write.sequence, f"{write.event} may not follow {state or 'nothing'}")
    _insert(tx.connection, new)
    values: dict[str, Any] = {"delivery_events": row.delivery_events + 1, "updated_at": tx.now}
    if isinstance(write.event, DeliveryState):
        values["state"] = write.event.value
    _project(tx, write.invocation_key, values)


def append_attempt(tx: Guarded, write: jr.AppendAttempt) -> None:
    """Appends to an attempt's stream, by the same rules."""
    stream = chain.attempt_stream(write.attempt_id)
    row = own_invocation(tx, write.invocation_key)
    last = _last(tx.connection, stream)
    previous = _previous_sha256(tx.connection, stream, write.sequence, last)
    document = chain.attempt_document(write, previous_sha256=previous, created_at=tx.now)
    new = chain.seal(document, stream=stream, invocation_key=write.invocation_key)
    if _is_stored(tx.connection, new, last):
        return
    if last is not None and last.invocation_key != write.invocation_key:
        raise chain.refused(stream, write.sequence, "the attempt belongs to another invocation")
    before = None if last is None else AttemptEvent(last.event)
    if write.event not in ATTEMPT_MOVES[before]:
        raise chain.refused(stream, write.sequence, f"{write.event} may not follow {before or 'nothing'}")
    if not row.delivery_events or DeliveryState(row.state) in ENDED:
        raise chain.refused(stream, write.sequence, f"its delivery is {row.state} and has no attempts now")
    _insert(tx.connection, new)
    _project(tx, write.invocation_key, {"attempt_events": row.attempt_events + 1, "updated_at": tx.now})


def read_events(connection: Connection, invocation_key: str) -> tuple[jr.Event, ...]:
    """The delivery stream, then every attempt stream by chunk and start, each proved. Raises JournalError.

    An invocation that was never opened has no events. Events without their invocation cannot be: a foreign
    key.
    """
    query = select(t.invocation).where(t.invocation.c.invocation_key == invocation_key)
    row = connection.execute(query).one_or_none()
    if row is None:
        return ()
    streams = _rows_by_stream(connection, invocation_key)
    own = chain.delivery_stream(invocation_key)
    delivery = streams.pop(own, [])
    # The count first: it names a cut-off end as such, before the projection looks wrong because of it.
    events = list(chain.verify_delivery(invocation_of_row(row), delivery, counted=row.delivery_events))
    attempts = [chain.verify_attempt(stream, rows) for stream, rows in streams.items()]
    chain.verify_length(f"attempt/* of {invocation_key}", sum(map(len, attempts)), row.attempt_events)
    for attempt in sorted(attempts, key=_chunk_and_start):
        events.extend(attempt)
    return tuple(events)


def _chunk_and_start(attempt: tuple[jr.Event, ...]) -> tuple[int, str, str]:
    first = attempt[0].body
    return first["ordinal"], first["created_at"], attempt[0].stream


def _rows_by_stream(connection: Connection, invocation_key: str) -> dict[str, list[chain.StoredEvent]]:
    query = select(*COLUMNS).where(t.event.c.invocation_key == invocation_key)
    streams: dict[str, list[chain.StoredEvent]] = defaultdict(list)
    for row in connection.execute(query.order_by(t.event.c.stream, t.event.c.sequence)):
        streams[row.stream].append(chain.StoredEvent(*row))
    return streams


def _permitted(write: jr.AppendDelivery, state: DeliveryState | None) -> bool:
    if isinstance(write.event, DeliveryState):
        return write.event in MOVES[state]
    return state in EVENT_STATES[write.event]


def _last(connection: Connection, stream: str) -> chain.StoredEvent | None:
    """The newest event of a stream, its own hash checked: nothing is ever linked to a damaged one."""
    query = select(*COLUMNS).where(t.event.c.stream == stream).order_by(t.event.c.sequence.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    last = chain.StoredEvent(*row)
    chain.open_body(last)
    return last


def _previous_sha256(
    connection: Connection, stream: str, sequence: int, last: chain.StoredEvent | None
) -> str | None:
    following = 0 if last is None else last.sequence + 1
    if not 0 <= sequence <= following:
        raise chain.refused(stream, sequence, f"the next event is number {following}")
    if last is None or sequence == following:
        return None if last is None else last.sha256
    stored = _stored(connection, stream, sequence)
    return None if stored is None else stored.previous_sha256


def _is_stored(connection: Connection, new: chain.StoredEvent, last: chain.StoredEvent | None) -> bool:
    """Whether this event is stored already. Raises JournalError when another one is at its place."""
    if last is None or new.sequence > last.sequence:
        return False
    stored = _stored(connection, new.stream, new.sequence)
    if stored is None:
        raise chain.broken(new.stream, new.sequence, chain.ChainRule.CONTIGUOUS, "the event is missing")
    chain.open_body(stored)
    if not chain.same_content(stored, new):
        raise chain.conflict(stored, new)
    return True


def _stored(connection: Connection, stream: str, sequence: int) -> chain.StoredEvent | None:
    query = select(*COLUMNS).where(t.event.c.stream == stream, t.event.c.sequence == sequence)
    row = connection.execute(query).one_or_none()
    return None if row is None else chain.StoredEvent(*row)


def _insert(connection: Connection, row: chain.StoredEvent) -> None:
    chain.refuse_misfit(row)
    connection.execute(insert(t.event).values(asdict(row)))


def _project(tx: Guarded, invocation_key: str, values: dict[str, Any]) -> None:
    where = t.invocation.c.invocation_key == invocation_key
    tx.connection.execute(update(t.invocation).where(where).values(**values))
