"""What the journal says about one generation: the events of its streams, folded into one view.

Built from stored events on a resume and kept in step by every write of the running process, through the same
method, so there is one reading of the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.states import ATTEMPT_ENDED, AttemptEvent, DeliveryEvent, DeliveryState

Payload = Mapping[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One attempt to write one chunk: its last event and its bindings."""

    attempt_id: str
    ordinal: int
    event: AttemptEvent
    next_sequence: int
    stage_binding: Payload
    artifact_binding: Payload
    writer_binding: Payload | None
    observation: Payload | None

    @property
    def stage(self) -> tr.StageRef | None:
        """The owned raw table, or None while its creation is not confirmed."""
        object_id = self.stage_binding["object_id"]
        if object_id is None:
            return None
        return tr.StageRef(
            self.stage_binding["stage_name"], self.stage_binding["owner_binding_sha256"], int(object_id)
        )

    @property
    def extraction_epoch(self) -> int:
        """The extraction epoch of the chunk that it writes."""
        return int(self.artifact_binding["extraction_epoch"])

    @property
    def is_over(self) -> bool:
        """Whether nothing may follow."""
        return self.event in ATTEMPT_ENDED


class History:
    """The folded view. ``payloads`` keeps every delivery event in order."""

    def __init__(self, invocation_key: str) -> None:
        self.invocation_key = invocation_key
        self.state: DeliveryState | None = None
        self.next_sequence = 0
        self.payloads: list[tuple[str, Payload]] = []
        self.attempts: dict[str, Attempt] = {}
        # A delivery may have ten thousand chunks, and each is asked about: so nothing here searches.
        self._payloads_of: dict[str, list[Payload]] = {}
        self._attempts_of: dict[tuple[int, int], dict[str, None]] = {}

    @classmethod
    def of(cls, invocation_key: str, events: Iterable[jr.Event]) -> History:
        """Folds verified events."""
        history = cls(invocation_key)
        for event in events:
            if event.stream.startswith("delivery/"):
                history._delivery(event.event, event.sequence, event.body["payload"])
            else:
                history._attempt(event.body)
        return history

    def apply(self, write: jr.JournalWrite) -> None:
        """Takes note of a write that has landed."""
        if isinstance(write, jr.AppendDelivery):
            self._delivery(write.event.value, write.sequence, write.payload)
        elif isinstance(write, jr.AppendAttempt):
            self._attempt(
                {
                    "attempt_id": write.attempt_id,
                    "ordinal": write.ordinal,
                    "event": write.event.value,
                    "sequence": write.sequence,
                    "stage_binding": write.stage_binding,
                    "artifact_binding": write.artifact_binding,
                    "writer_binding": write.writer_binding,
                    "observation": write.observation,
                }
            )

    def _delivery(self, event: str, sequence: int, payload: Payload) -> None:
        if sequence < self.next_sequence:
            return
        self.payloads.append((event, payload))
        self._payloads_of.setdefault(event, []).append(payload)
        self.next_sequence = sequence + 1
        if event in DeliveryState.__members__:
            self.state = DeliveryState(event)

    def _attempt(self, body: Payload) -> None:
        attempt = Attempt(
            attempt_id=body["attempt_id"],
            ordinal=body["ordinal"],
            event=AttemptEvent(body["event"]),
            next_sequence=body["sequence"] + 1,
            stage_binding=body["stage_binding"],
            artifact_binding=body["artifact_binding"],
            writer_binding=body["writer_binding"],
            observation=body["observation"],
        )
        self.attempts[attempt.attempt_id] = attempt
        chunk = (attempt.extraction_epoch, attempt.ordinal)
        self._attempts_of.setdefault(chunk, {})[attempt.attempt_id] = None

    def last(self, event: DeliveryState | DeliveryEvent) -> Payload | None:
        """Payload of the newest event of this kind."""
        found = self._payloads_of.get(event.value)
        return found[-1] if found else None

    def all(self, event: DeliveryState | DeliveryEvent) -> list[Payload]:
        """Payloads of every event of this kind, oldest first."""
        return list(self._payloads_of.get(event.value, ()))

    def required(self, event: DeliveryState | DeliveryEvent) -> Payload:
        """Payload of the newest event of this kind, which the chain's order guarantees. Raises
        LookupError."""
        payload = self.last(event)
        if payload is None:
            raise LookupError(f"the chain holds no {event.value}")
        return payload

    @property
    def open_epoch(self) -> int | None:
        """The extraction epoch that was opened and neither finished nor abandoned."""
        opened = [p["extraction_epoch"] for p in self.all(DeliveryEvent.EPOCH_OPENED)]
        closed = {p["extraction_epoch"] for p in self.all(DeliveryEvent.EPOCH_ABANDONED)}
        closed |= {p["extraction_epoch"] for p in self.all(DeliveryState.EXTRACTED)}
        return next((epoch for epoch in reversed(opened) if epoch not in closed), None)

    @property
    def next_epoch(self) -> int:
        """Number of the next extraction epoch."""
        return len(self.all(DeliveryEvent.EPOCH_OPENED))

    @property
    def chunks(self) -> list[r.SealedChunk]:
        """The chunks of the finished extraction, by ordinal."""
        epoch = self.required(DeliveryState.EXTRACTED)["extraction_epoch"]
        found = [r.SealedChunk.from_json(p) for p in self.all(DeliveryEvent.CHUNK_SEALED)]
        return sorted((c for c in found if c.extraction_epoch == epoch), key=lambda c: c.ordinal)

    def attempts_of(self, chunk: r.SealedChunk) -> list[Attempt]:
        """Every attempt to write this chunk (same epoch, same ordinal)."""
        found = self._attempts_of.get((chunk.extraction_epoch, chunk.ordinal), ())
        return [self.attempts[attempt_id] for attempt_id in found]

    @property
    def abandoned(self) -> frozenset[str]:
        """The attempts that were left behind: their writers could not be proved gone."""
        return frozenset(p["attempt_id"] for p in self.all(DeliveryEvent.ATTEMPT_ABANDONED))

    def verified(self, chunk: r.SealedChunk) -> Attempt | None:
        """The attempt that is proved to hold this chunk."""
        return next((a for a in self.attempts_of(chunk) if a.event is AttemptEvent.VERIFIED), None)


def advanced(attempt: Attempt, event: AttemptEvent, **bindings: Any) -> Attempt:
    """The attempt with ``event`` as the one to write next, and new bindings where given."""
    return replace(attempt, event=event, **bindings)
