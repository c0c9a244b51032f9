"""The event format and its proof: pure functions over stored rows, no database.

An event is a canonical JSON document of a fixed shape (``schemas``). Its SHA-256 covers all of it, and each
names the hash of the one before, so that a changed, swapped, missing or foreign event is seen and named. A
chain that does not hold blocks every action.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.states import (
    EVENT_STATES,
    AttemptEvent,
    DeliveryEvent,
    DeliveryState,
    may_continue,
    may_move,
)
from airflow_dpone.errors import JournalError
from airflow_dpone.journal.schemas import find_misfit

SCHEMA_VERSION = 1
DELIVERY_KIND = "dpone.delivery-event"
ATTEMPT_KIND = "dpone.chunk-attempt-event"
DELIVERY_FIELDS = frozenset(
    "schema_version kind stream sequence event fence requester previous_sha256 created_at payload".split()
)
ATTEMPT_FIELDS = frozenset(
    "schema_version kind invocation_key ordinal attempt_id sequence previous_sha256 event stage_binding "
    "artifact_binding writer_binding observation created_at".split()
)
NOT_COMPARED = frozenset({"created_at", "fence"})
"""What may differ when the same event is written twice."""


class ChainRule(StrEnum):
    """What a stored chain can break; the field ``rule`` of the error."""

    CONTIGUOUS = "contiguous"
    HASH = "hash"
    LINKED = "linked"
    CANONICAL = "canonical"
    ENVELOPE = "envelope"
    COLUMNS = "columns"
    SCHEMA = "schema"
    TRANSITION = "transition"
    PROJECTION = "projection"
    LENGTH = "length"


@dataclass(frozen=True)
class StoredEvent:
    """A row of ``dpone_event``."""

    stream: str
    sequence: int
    invocation_key: str
    event: str
    previous_sha256: str | None
    sha256: str
    body: str
    created_at: str


def delivery_stream(invocation_key: str) -> str:
    """The stream of a generation."""
    return f"delivery/{invocation_key}"


def attempt_stream(attempt_id: str) -> str:
    """The stream of one attempt to write one chunk."""
    return f"attempt/{attempt_id}"


def broken(stream: str, sequence: int, rule: ChainRule, detail: str, **more: str) -> JournalError:
    """The error for a chain that does not hold."""
    text = f"The stream {stream} is broken at event {sequence}, rule {rule.value}: {detail}."
    said: dict[str, Any] = {"stream": stream, "sequence": sequence, "rule": rule.value, **more}
    return JournalError("dpone.journal.chain_broken", text, **said)


def refused(stream: str, sequence: int, detail: str, **more: str) -> JournalError:
    """The error for an event that cannot be appended."""
    text = f"Event {sequence} of the stream {stream} is refused: {detail}."
    return JournalError("dpone.journal.event_refused", text, stream=stream, sequence=sequence, **more)


def conflict(stored: StoredEvent, new: StoredEvent) -> JournalError:
    """The error for another event at a place that is taken."""
    text = (
        f"Event {new.sequence} of the stream {new.stream} is stored as another {stored.event}; "
        f"this {new.event} is not written."
    )
    return JournalError("dpone.journal.event_conflict", text, stream=new.stream, sequence=new.sequence)


# ---- documents ---------------------------------------------------------------------------------------------


def delivery_document(
    write: jr.AppendDelivery,
    *,
    fence: int,
    requester: r.Requester,
    previous_sha256: str | None,
    created_at: str,
) -> r.Json:
    """The whole document of a delivery event."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": DELIVERY_KIND,
        "stream": delivery_stream(write.invocation_key),
        "sequence": write.sequence,
        "event": write.event.value,
        "fence": str(fence),
        "requester": requester.to_json(),
        "previous_sha256": previous_sha256,
        "created_at": created_at,
        "payload": dict(write.payload),
    }


def attempt_document(write: jr.AppendAttempt, *, previous_sha256: str | None, created_at: str) -> r.Json:
    """The whole document of an attempt event: exactly these thirteen fields."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": ATTEMPT_KIND,
        "invocation_key": write.invocation_key,
        "ordinal": write.ordinal,
        "attempt_id": write.attempt_id,
        "sequence": write.sequence,
        "previous_sha256": previous_sha256,
        "event": write.event.value,
        "stage_binding": write.stage_binding,
        "artifact_binding": write.artifact_binding,
        "writer_binding": write.writer_binding,
        "observation": write.observation,
        "created_at": created_at,
    }


def seal(document: r.Json, *, stream: str, invocation_key: str) -> StoredEvent:
    """The row of a new event. Raises JournalError when the document is not canonical JSON of our kind."""
    try:
        body = identity.canonical(_plain(document))
    except (ValueError, RecursionError) as error:
        raise refused(stream, document["sequence"], str(error) or "it is nested too deeply") from error
    return StoredEvent(
        stream=stream,
        sequence=document["sequence"],
        invocation_key=invocation_key,
        event=document["event"],
        previous_sha256=document["previous_sha256"],
        sha256=identity.sha256_hex(body),
        body=body.decode("utf-8"),
        created_at=document["created_at"],
    )


def refuse_misfit(row: StoredEvent) -> None:
    """Raises JournalError for a new event that is not what its schema says; the place is named, no value."""
    document = json.loads(row.body)
    misfit = find_misfit(document["kind"], document)
    if misfit is not None:
        raise refused(row.stream, row.sequence, str(misfit), path=misfit.path)


def same_content(one: StoredEvent, other: StoredEvent) -> bool:
    """Whether both say the same, whenever and under whichever fence it was written."""
    return _compared(one) == _compared(other)


def _compared(row: StoredEvent) -> dict[str, Any]:
    return {key: value for key, value in json.loads(row.body).items() if key not in NOT_COMPARED}


def _plain(value: Any) -> Any:
    """The value as JSON types only. Floats are refused: two machines may print one number in two ways."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        raise ValueError("it contains a float; write decimal text")
    return value


# ---- verification ------------------------------------------------------------------------------------------


def verify_delivery(
    invocation: jr.Invocation, rows: Sequence[StoredEvent], *, counted: int
) -> tuple[jr.Event, ...]:
    """Proves the delivery stream of one generation. Raises JournalError naming the first bad event.

    :param rows: all rows of the stream in the order of their sequence. :param counted: how many were written.
    """
    stream = delivery_stream(invocation.invocation_key)
    events = _verify_links(stream, rows, DELIVERY_KIND, DELIVERY_FIELDS)
    state = state_after(events)
    verify_length(stream, len(events), counted)
    if state is not invocation.state:
        detail = f"the projection says {invocation.state}, the events say {state or 'nothing'}"
        raise broken(stream, max(len(events) - 1, 0), ChainRule.PROJECTION, detail)
    return events


def verify_attempt(stream: str, rows: Sequence[StoredEvent]) -> tuple[jr.Event, ...]:
    """Proves the stream of one attempt. Raises JournalError naming the first bad event."""
    events = _verify_links(stream, rows, ATTEMPT_KIND, ATTEMPT_FIELDS)
    before: AttemptEvent | None = None
    for event in events:
        if event.event not in AttemptEvent.__members__ or not may_continue(before, AttemptEvent(event.event)):
            raise _not_allowed(event, before)
        before = AttemptEvent(event.event)
    return events


def verify_length(stream: str, found: int, counted: int) -> None:
    """Compares the number of events with the projection's count: links do not show a cut-off end."""
    if found != counted:
        detail = f"{found} events are stored, {counted} were written"
        raise broken(stream, min(found, counted), ChainRule.LENGTH, detail)


def state_after(events: Iterable[jr.Event]) -> DeliveryState | None:
    """The state that a delivery's events lead to.

    Raises JournalError at the first move that is not permitted.
    """
    state: DeliveryState | None = None
    for event in events:
        name = event.event
        if name in DeliveryState.__members__ and may_move(state, DeliveryState(name)):
            state = DeliveryState(name)
        elif name not in DeliveryEvent.__members__ or state not in EVENT_STATES[DeliveryEvent(name)]:
            raise _not_allowed(event, state)
    return state


def _not_allowed(event: jr.Event, before: str | None) -> JournalError:
    detail = f"{event.event} may not follow {before or 'nothing'}"
    return broken(event.stream, event.sequence, ChainRule.TRANSITION, detail)


def _verify_links(
    stream: str, rows: Sequence[StoredEvent], kind: str, fields: frozenset[str]
) -> tuple[jr.Event, ...]:
    events = []
    previous: str | None = None
    for place, row in enumerate(rows):
        if row.sequence != place:
            raise broken(
                stream, place, ChainRule.CONTIGUOUS, f"the next stored event is number {row.sequence}"
            )
        document = open_body(row)
        if row.previous_sha256 != previous:
            raise broken(stream, place, ChainRule.LINKED, "it does not name the hash of the event before it")
        _verify_envelope(row, document, kind, fields)
        misfit = find_misfit(kind, document)
        if misfit is not None:
            raise broken(row.stream, place, ChainRule.SCHEMA, str(misfit), path=misfit.path)
        events.append(jr.Event(stream, row.sequence, row.event, row.sha256, document))
        previous = row.sha256
    return tuple(events)


def open_delivery_event(row: StoredEvent) -> r.Json:
    """The document of one event of a delivery, proved by itself: its hash, its form and its columns. Whether
    the events around it are whole is not asked. Raises JournalError."""
    document = open_body(row)
    _verify_envelope(row, document, DELIVERY_KIND, DELIVERY_FIELDS)
    return document


def open_body(row: StoredEvent) -> r.Json:
    """The document of one row, after its hash and its canonical form were checked."""
    text = row.body.encode("utf-8", "surrogatepass")
    if identity.sha256_hex(text) != row.sha256:
        raise broken(row.stream, row.sequence, ChainRule.HASH, "its body does not have its hash")
    try:
        document = json.loads(text)
        is_canonical = isinstance(document, dict) and identity.canonical(document) == text
    except (ValueError, RecursionError):
        is_canonical = False
    if not is_canonical:
        raise broken(row.stream, row.sequence, ChainRule.CANONICAL, "its body is not a canonical JSON object")
    body: r.Json = document
    return body


def _verify_envelope(row: StoredEvent, document: r.Json, kind: str, fields: frozenset[str]) -> None:
    version = document.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        text = (
            f"Event {row.sequence} of the stream {row.stream} has schema_version {version}; "
            f"this version knows {SCHEMA_VERSION}."
        )
        raise JournalError("dpone.journal.newer_event", text, stream=row.stream, sequence=row.sequence)
    if version != SCHEMA_VERSION or document.get("kind") != kind or document.keys() != fields:
        detail = f"it is not a {kind} of version {SCHEMA_VERSION} with exactly its fields"
        raise broken(row.stream, row.sequence, ChainRule.ENVELOPE, detail)
    key = document["invocation_key"] if kind == ATTEMPT_KIND else document["stream"].partition("/")[2]
    stream = attempt_stream(document["attempt_id"]) if kind == ATTEMPT_KIND else document["stream"]
    said = (
        stream,
        document["sequence"],
        key,
        document["event"],
        document["previous_sha256"],
        document["created_at"],
    )
    if said != (row.stream, row.sequence, row.invocation_key, row.event, row.previous_sha256, row.created_at):
        raise broken(row.stream, row.sequence, ChainRule.COLUMNS, "its columns differ from its body")
