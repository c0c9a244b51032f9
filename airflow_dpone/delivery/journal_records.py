"""Records of the journal: what is read from it, and the writes that make up one journal transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_dpone.delivery.records import Requester
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState, ReleaseReason


@dataclass(frozen=True)
class Event:
    """One stored event, verified: contiguous, linked, allowed. ``body`` is the whole canonical document."""

    stream: str
    sequence: int
    event: str
    sha256: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Invocation:
    """Projection of one generation: where it stands, what the last error said, and who asked for it."""

    delivery_key: str
    generation: int
    invocation_key: str
    target_key: str
    route_scope: str
    window_key: str
    state: DeliveryState
    resume_state: str | None
    plan_sha256: str
    last_error_code: str | None
    reason: str | None
    next_action: str | None
    dag_id: str
    run_id: str
    delivery_task_id: str
    map_index: int


@dataclass(frozen=True)
class Lease:
    """The right to write for one target: good while the journal still holds this fence."""

    target_key: str
    owner: str
    fence: int
    ttl_sec: float
    requester: Requester


@dataclass(frozen=True)
class Custody:
    """Which invocation owns the target; survives crashes, ends only by rule. ``epoch`` grows with each
    claim."""

    target_key: str
    epoch: int
    held: bool
    holder_key: str | None
    holder_fence: int | None
    release_reason: str | None
    since: str | None


@dataclass(frozen=True)
class TaskRecord:
    """What a task said of itself when it last acted (settles whether a person cleared it since)."""

    delivery_key: str
    task_id: str
    generation: int
    try_number: int
    max_tries: int
    ti_id: str


@dataclass(frozen=True)
class Checkpoint:
    """The newest delivered content of one window of one route."""

    target_key: str
    route_scope: str
    window_key: str
    revision: int
    delivery_key: str
    generation: int
    operation_id: str
    receipt_sha256: str
    evidence_sha256: str


@dataclass(frozen=True, slots=True)
class Publication:
    """A generation that the journal has recorded as published, whatever became of it since.

    :param newest_generation: of the same requester. :param object_id: with ``created``: the incarnation of
        the table that it was published into.
    :param window_column: of the target; None for the whole table.
    """

    delivery_key: str
    generation: int
    newest_generation: int
    invocation_key: str
    dag_id: str
    run_id: str
    delivery_task_id: str
    map_index: int
    state: DeliveryState
    route_scope: str
    window_key: str
    window_column: str | None
    object_id: int
    created: str
    fence: int
    operation_id: str
    receipt_sha256: str
    deleted_rows: int
    published_at: str


# ---- writes: parts of one journal transaction, see JournalPort.append


@dataclass(frozen=True)
class OpenInvocation:
    """Creates the row of a new generation; always together with its first event, PLANNED."""

    delivery_key: str
    generation: int
    invocation_key: str
    target_key: str
    route_scope: str
    window_key: str
    plan_sha256: str
    requester: Requester


@dataclass(frozen=True)
class AppendDelivery:
    """An event of the stream ``delivery/<invocation_key>``; a state event also moves the projection."""

    invocation_key: str
    sequence: int
    event: DeliveryState | DeliveryEvent
    payload: Mapping[str, Any]


@dataclass(frozen=True)
class AppendAttempt:
    """An event of the stream ``attempt/<attempt_id>``, with the four bindings of a chunk attempt."""

    invocation_key: str
    ordinal: int
    attempt_id: str
    sequence: int
    event: AttemptEvent
    stage_binding: Mapping[str, Any] | None
    artifact_binding: Mapping[str, Any]
    writer_binding: Mapping[str, Any] | None
    observation: Mapping[str, Any] | None


@dataclass(frozen=True)
class HoldCustody:
    """clear -> held for this invocation; refused when another invocation holds it."""

    invocation_key: str


@dataclass(frozen=True)
class ReleaseCustody:
    """held -> clear, by the holder only, for one of the closed reasons."""

    invocation_key: str
    reason: ReleaseReason


@dataclass(frozen=True)
class PutTask:
    """Remembers what the running task said of itself."""

    delivery_key: str
    generation: int
    requester: Requester


@dataclass(frozen=True)
class PutNote:
    """Projection only: what a person reads first. None leaves a field as it is; '' empties it."""

    invocation_key: str
    resume_state: str | None = None
    last_error_code: str | None = None
    reason: str | None = None
    next_action: str | None = None


@dataclass(frozen=True)
class PutEvidence:
    """Stores an evidence document under its hash; the same document twice is no change."""

    evidence_sha256: str
    invocation_key: str
    operation_id: str
    body: bytes


@dataclass(frozen=True)
class PutCheckpoint:
    """Compare-and-set of a checkpoint row; ``expected_revision`` 0 means that there is none."""

    checkpoint: Checkpoint
    expected_revision: int


JournalWrite = (
    OpenInvocation
    | AppendDelivery
    | AppendAttempt
    | HoldCustody
    | ReleaseCustody
    | PutTask
    | PutNote
    | PutEvidence
    | PutCheckpoint
)
