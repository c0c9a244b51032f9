"""The states of a delivery and of a chunk attempt, and every permitted move.

This module is the one place: docs/reference/states.md and the SQL CHECK of the journal are generated from it
and a test walks all pairs. A move that is not here is refused by the journal, on write and on read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DeliveryState(StrEnum):
    """Where one generation of a delivery stands: the last durable boundary."""

    PLANNED = "PLANNED"
    EXTRACTED = "EXTRACTED"
    STAGED = "STAGED"
    PREPARED = "PREPARED"
    PUBLISHING = "PUBLISHING"
    UNKNOWN = "UNKNOWN"
    PUBLISHED = "PUBLISHED"
    EVIDENCED = "EVIDENCED"
    CHECKPOINTED = "CHECKPOINTED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    RETIRED = "RETIRED"
    INCIDENT = "INCIDENT"


S = DeliveryState
ENDED = frozenset({S.COMPLETED, S.FAILED, S.RETIRED})
IN_DOUBT = frozenset({S.PUBLISHING, S.UNKNOWN})
BEFORE_PUBLICATION = frozenset({S.PLANNED, S.EXTRACTED, S.STAGED, S.PREPARED})
PUBLISHED_OR_LATER = frozenset({S.PUBLISHED, S.EVIDENCED, S.CHECKPOINTED, S.COMPLETED})

MOVES: dict[DeliveryState | None, frozenset[DeliveryState]] = {
    None: frozenset({S.PLANNED}),
    S.PLANNED: frozenset({S.EXTRACTED, S.FAILED, S.RETIRED, S.INCIDENT}),
    S.EXTRACTED: frozenset({S.STAGED, S.PLANNED, S.FAILED, S.RETIRED, S.INCIDENT}),
    S.STAGED: frozenset({S.PREPARED, S.FAILED, S.RETIRED, S.INCIDENT}),
    S.PREPARED: frozenset({S.PUBLISHING, S.STAGED, S.FAILED, S.RETIRED, S.INCIDENT}),
    S.PUBLISHING: frozenset({S.PUBLISHED, S.PUBLISHING, S.PREPARED, S.FAILED, S.UNKNOWN, S.INCIDENT}),
    S.UNKNOWN: frozenset({S.PUBLISHED, S.PREPARED, S.PUBLISHING, S.INCIDENT}),
    S.PUBLISHED: frozenset({S.EVIDENCED, S.INCIDENT}),
    S.EVIDENCED: frozenset({S.CHECKPOINTED, S.INCIDENT}),
    S.CHECKPOINTED: frozenset({S.COMPLETED}),
    S.INCIDENT: frozenset({S.PUBLISHED, S.RETIRED}),
    S.COMPLETED: frozenset(),
    S.FAILED: frozenset(),
    S.RETIRED: frozenset(),
}


@dataclass(frozen=True)
class StateRule:
    """What a state means for people and processes.

    :param writer: who may write it. :param meaning: what is true now.
    :param resumes_by_itself: whether a cleared or retried task goes on without a person's decision.
    :param way_out: what to do, naming a command or a click.
    """

    writer: str
    meaning: str
    resumes_by_itself: bool
    way_out: str

    custody: str = "held"


_CLEAR = "clear the task, or let Airflow retry it"
_DONE = "nothing to do; clearing the task delivers the window again as the next generation"

RULES: dict[DeliveryState, StateRule] = {
    S.PLANNED: StateRule("admit, extract", "the plan is frozen, the target is reserved", True, _CLEAR),
    S.EXTRACTED: StateRule("extract", "every chunk is sealed on disk; the source is done", True, _CLEAR),
    S.STAGED: StateRule("stage", "every chunk is proved inside the target, invisible", True, _CLEAR),
    S.PREPARED: StateRule("verify, publish", "one prepared table is proved, invisible", True, _CLEAR),
    S.PUBLISHING: StateRule("publish", "a publication was sent; its answer is not journaled", True, _CLEAR),
    S.UNKNOWN: StateRule("publish", "the publication's outcome could not be learned yet", True, _CLEAR),
    S.PUBLISHED: StateRule(
        "publish, admit", "the window is visible and its receipt was read back", True, _CLEAR
    ),
    S.EVIDENCED: StateRule("evidence", "the evidence document is stored", True, _CLEAR),
    S.CHECKPOINTED: StateRule(
        "checkpoint", "the checkpoint names the receipt; cleanup is left", True, _CLEAR
    ),
    S.COMPLETED: StateRule("checkpoint", "delivered, cleaned, released", False, _DONE, custody="clear"),
    S.FAILED: StateRule(
        "any phase before publication",
        "refused or failed; the target was not changed, everything owned is gone",
        False,
        "mend what the error names, then clear the task: it starts the next generation",
        custody="clear",
    ),
    S.RETIRED: StateRule(
        "admit, recovery",
        "given up for a new plan; the target was not changed, everything owned is gone",
        False,
        "clear the task: it starts the next generation",
        custody="clear",
    ),
    S.INCIDENT: StateRule(
        "any phase",
        "facts contradict each other; the reason is named, nothing is done automatically",
        False,
        "compare target and journal (docs/operations.md); then `recovery retire` gives the delivery up",
    ),
}


class DeliveryEvent(StrEnum):
    """Events of the delivery stream that are no state."""

    EPOCH_OPENED = "EPOCH_OPENED"
    CHUNK_SEALED = "CHUNK_SEALED"
    EPOCH_ABANDONED = "EPOCH_ABANDONED"
    ATTEMPT_ABANDONED = "ATTEMPT_ABANDONED"
    PREPARE_INTENT = "PREPARE_INTENT"
    TUNED = "TUNED"
    CUSTODY_RELEASED = "CUSTODY_RELEASED"


EVENT_STATES: dict[DeliveryEvent, frozenset[DeliveryState]] = {
    DeliveryEvent.EPOCH_OPENED: frozenset({S.PLANNED}),
    DeliveryEvent.CHUNK_SEALED: frozenset({S.PLANNED}),
    DeliveryEvent.EPOCH_ABANDONED: frozenset({S.PLANNED, S.EXTRACTED}),
    DeliveryEvent.ATTEMPT_ABANDONED: frozenset({S.EXTRACTED, S.STAGED}),
    DeliveryEvent.PREPARE_INTENT: frozenset({S.STAGED}),
    DeliveryEvent.TUNED: frozenset(set(DeliveryState) - ENDED),
    DeliveryEvent.CUSTODY_RELEASED: ENDED,
}
"""In which states each of them may be written."""


class AttemptEvent(StrEnum):
    """The life of one attempt to write one chunk into one raw table."""

    INTENT = "INTENT"
    STAGE_OWNED = "STAGE_OWNED"
    GRANTED = "GRANTED"
    WRITING = "WRITING"
    WRITER_TERMINAL = "WRITER_TERMINAL"
    QUIESCENT = "QUIESCENT"
    VERIFIED = "VERIFIED"
    PARTIAL_PROVED = "PARTIAL_PROVED"
    UNKNOWN = "UNKNOWN"
    FAILED_RETIRABLE = "FAILED_RETIRABLE"
    INCIDENT_RETAINED = "INCIDENT_RETAINED"
    RETIRED = "RETIRED"


A = AttemptEvent
ATTEMPT_MOVES: dict[AttemptEvent | None, frozenset[AttemptEvent]] = {
    None: frozenset({A.INTENT}),
    A.INTENT: frozenset({A.STAGE_OWNED, A.FAILED_RETIRABLE, A.INCIDENT_RETAINED}),
    A.STAGE_OWNED: frozenset({A.GRANTED, A.FAILED_RETIRABLE}),
    A.GRANTED: frozenset({A.WRITING, A.UNKNOWN, A.FAILED_RETIRABLE}),
    A.WRITING: frozenset({A.WRITER_TERMINAL, A.UNKNOWN}),
    A.WRITER_TERMINAL: frozenset({A.QUIESCENT, A.UNKNOWN}),
    A.QUIESCENT: frozenset({A.VERIFIED, A.PARTIAL_PROVED, A.UNKNOWN}),
    A.VERIFIED: frozenset({A.RETIRED, A.FAILED_RETIRABLE, A.UNKNOWN}),
    A.PARTIAL_PROVED: frozenset({A.FAILED_RETIRABLE}),
    A.UNKNOWN: frozenset({A.QUIESCENT, A.PARTIAL_PROVED, A.INCIDENT_RETAINED}),
    A.FAILED_RETIRABLE: frozenset({A.RETIRED}),
    A.INCIDENT_RETAINED: frozenset(),
    A.RETIRED: frozenset(),
}
ATTEMPT_ENDED = frozenset({A.RETIRED, A.INCIDENT_RETAINED})


class DiagnosticCode(StrEnum):
    """Why an attempt went another way than VERIFIED, or was retired: in its observations."""

    NO_WRITER = "dpone.attempt.no_writer"
    NOT_CREATED = "dpone.attempt.not_created"
    NOT_THE_SEALED_CONTENT = "dpone.attempt.not_the_sealed_content"
    STAGE_GONE = "dpone.attempt.stage_gone"
    STAGE_NOT_OURS = "dpone.attempt.stage_not_ours"
    SPOOL_LOST = "dpone.attempt.spool_lost"
    NONPUBLICATION = "dpone.attempt.nonpublication"
    PUBLISHED_CLEANUP = "dpone.attempt.published_cleanup"


class ReleaseReason(StrEnum):
    """Why custody was given back; the list is closed."""

    PUBLISHED_CLEANUP = "published_cleanup"
    NONPUBLICATION = "nonpublication_all_stages_retired"
    EMPTY_COMPLETION_CLEANUP = "empty_completion_cleanup"
    """Reserved; an empty window is published and cleaned up like any other."""


def may_move(before: DeliveryState | None, after: DeliveryState) -> bool:
    """Whether a delivery may go from ``before`` (None: not yet planned) to ``after``."""
    return after in MOVES[before]


def may_continue(before: AttemptEvent | None, after: AttemptEvent) -> bool:
    """Whether an attempt's chain may go from ``before`` (None: empty) to ``after``."""
    return after in ATTEMPT_MOVES[before]
