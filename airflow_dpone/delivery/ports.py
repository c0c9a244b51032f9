"""What the engine needs from the world: five ports, a clock and an observer.

A port is a context manager, opened only while a phase uses it (the embedded engines admit one process at a
time). A method marked :func:`effect` changes something outside, or cannot be read twice; the observer is told
before and after (``crash_points``). Every error that leaves a port is a ``DponeError``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.clock import Clock
from airflow_dpone.delivery.window import Window
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.types import WireLayout

F = TypeVar("F", bound=Callable[..., Any])


def effect(method: F) -> F:
    """Marks a port's method as an effect: it has a ``before_`` and an ``after_`` crash point."""
    method.__dict__["is_effect"] = True
    return method


@dataclass(frozen=True)
class Deadline:
    """One budget for an operation, by the monotonic clock; it also ends when the work is cancelled.

    :param cancel: asked together with the clock, so that what watches the time stops for both.
    """

    expires_at: float
    cancel: Cancel | None = None

    @classmethod
    def after(cls, seconds: float, cancel: Cancel | None = None) -> Deadline:
        """A deadline that many seconds from now."""
        return cls(time.monotonic() + seconds, cancel)

    def remaining_sec(self) -> float:
        """Seconds left; zero or less when it is over. Raises the reason of a cancelled work (Fenced)."""
        if self.cancel is not None:
            self.cancel.check()
        return self.expires_at - time.monotonic()


class SourcePort(AbstractContextManager["SourcePort"], Protocol):
    """Where rows come from. Both sources yield the same raw projection (``wire.types.RawForm``)."""

    capabilities: Mapping[str, str]

    def describe(self, database: str, table: str) -> r.SourceTable:
        """Introspection. A missing table is a ConfigurationError; refusals are in ``problems``."""

    def compile(
        self,
        table: r.SourceTable,
        layout: WireLayout,
        source_columns: Sequence[str],
        window_column: str | None,
        window: Window,
    ) -> r.SourceQuery:
        """The statement that reads the window; bounds as integers, never as text. Raises ConfigurationError
        when the window column's type cannot take the bounds (Date: midnights, DateTime: whole seconds)."""

    def find_rows_hint(self, query: r.SourceQuery, column: str, code: str) -> str:
        """A query that counts or measures the rows that a data error means, no values in it; '' if there is
        none."""

    def snapshot(self, query: r.SourceQuery) -> r.SourceSnapshot:
        """The table now: identity, mutations, patch parts, parts of the window's partitions."""

    @effect
    def read(self, query: r.SourceQuery, *, nonce: str, deadline: Deadline) -> Iterator[pa.RecordBatch]:
        """Runs the query once and yields raw batches in ``layout.raw_schema``.

        Exhaustion means that the server said so; a stream that ends early raises SourceUnavailable.
        """


class ChunkSink(Protocol):
    """An open, not yet sealed chunk."""

    format_file_sha256: str | None
    """SHA-256 of the format file that is sealed with it; None if the chunk describes itself."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows. A full disk is a CapacityError."""

    @effect
    def seal(self) -> tuple[int, str]:
        """Makes the bytes durable under their final name; returns (bytes, SHA-256) of the file."""

    def discard(self) -> None:
        """Removes what was written."""


class SpoolPort(AbstractContextManager["SpoolPort"], Protocol):
    """Sealed chunk files of one spool."""

    host_id: str
    """Where the chunks can be read: a later phase must find the same one."""

    def free_bytes(self) -> int:
        """Free space for new chunks."""

    @effect
    def begin(
        self,
        invocation_key: str,
        extraction_epoch: int,
        ordinal: int,
        layout: WireLayout,
        chunk_format: ChunkFormat = "arrow_ipc",
    ) -> ChunkSink:
        """Opens a new chunk (``.part`` until sealed) in the form that the writer reads."""

    def verify(self, invocation_key: str, chunk: r.SealedChunk) -> None:
        """Hashes the sealed file again, and its format file. Raises SpoolError naming the file when it is
        missing or differs."""

    def read(self, invocation_key: str, chunk: r.SealedChunk, layout: WireLayout) -> Iterator[pa.RecordBatch]:
        """The chunk's batches in ``layout.arrow_schema``."""

    @effect
    def discard_epoch(self, invocation_key: str, extraction_epoch: int) -> None:
        """Removes every file of one extraction epoch; gone already is fine."""

    @effect
    def discard(self, invocation_key: str) -> None:
        """Removes every file of the invocation; gone already is fine."""


class TargetPort(AbstractContextManager["TargetPort"], Protocol):
    """Where rows go: staging, proof, publication. Staging tables are invisible to readers of the target."""

    environment: str
    """``embedded`` or ``sqlserver``: goes into the evidence."""
    lock_mode: str
    """How the publication locks the target; goes into the receipt."""
    delivery: str
    """Key of the delivery that works here; the engine sets it, a server shows its beginning to its people."""

    def identify(
        self, schema: str, table: str, *, initialise: bool, may_be_missing: bool = False
    ) -> tr.TargetIdentity:
        """The identity query of admission. A missing table is a ConfigurationError.

        :param initialise: embedded only: create installation, gate and receipt tables if they are absent.
        :param may_be_missing: a missing table is an answer (``is_missing``): it is going to be made.
        """

    def describe(self, schema: str, table: str) -> tr.TargetTable:
        """Columns with T-SQL types; kinds that cannot be written are problems."""

    def new_table(self, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> tr.NewTable:
        """What :meth:`create_table` would do, and all that stands against it: a missing schema, rights. Reads
        only."""

    @effect
    def create_table(self, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> bool:
        """Makes an empty table of exactly these columns, in one transaction.

        False when something of that name is there already: whoever came first made it, nothing is changed,
        and what it is must be looked at as at any other table.
        """

    def statements(
        self,
        target: tr.TargetRef,
        layout: WireLayout,
        window_column: str | None,
        checks: Sequence[TableCheck] = (),
        *,
        after_image_digest: bool = False,
    ) -> Mapping[str, str]:
        """The SQL of staging, checks (each by its name) and publication, for the plan."""

    def count_window(self, target: tr.TargetRef, window_column: str | None, window: Window) -> int:
        """Rows that a publication would delete now."""

    @effect
    def claim_gate(
        self, target: tr.TargetRef, *, journal_id: str, route_scope: str, fence: int, take_over: bool
    ) -> tr.GateRow:
        """Creates the gate row, or raises its fence: only upward, only for this journal and route.

        Raises ConfigurationError/JournalError when it belongs to another route or journal, Fenced when the
        gate is already at this fence or above, Incident when a committed ``in_flight`` mark is found.
        """

    @effect
    def adopt_gate(
        self, target_key: str, *, journal_id: str, fence: int, take_over: bool
    ) -> tr.GateRow | None:
        """For recovery: the gate belongs to this journal now, at this fence, with nothing in flight.

        Under the publication's lock; after it has answered, no publication with a smaller fence or of another
        journal can become effective. Incarnation, route and last operation stay. Returns the gate as it was;
        None when there is no gate, and then nothing changed. Raises Fenced when the gate is at this fence or
        above, and JournalError when another journal governs it and ``take_over`` is not set.
        """

    @effect
    def create_stage(self, name: str, owner: str, layout: WireLayout, *, claim: tr.Claim) -> tr.StageRef:
        """Creates an empty raw table with its owner mark in one transaction, in which the gate is looked at
        and held: Fenced when it has seen a greater fence than the claim's."""

    def find_stage(self, name: str, owner: str) -> tr.StageRef | None:
        """Looks a stage up by name and owner mark. A table of that name without the mark is an Incident."""

    @effect
    def grant(self, stage: tr.StageRef, token_sha256: str) -> None:
        """Marks the stage as granted to one writer; a stage is granted once."""

    @effect
    def verify_stage(
        self, stage: tr.StageRef, layout: WireLayout, rows: int, digest: str, *, deadline: Deadline
    ) -> tr.StageObservation:
        """Takes the barrier (no writer lives, else TargetBusy ``dpone.target.writer_lives``), counts, hashes;
        seals a stage that holds the chunk, retires one that does not. A retired one proves nothing."""

    @effect
    def build_prepared(
        self,
        name: str,
        owner: str,
        layout: WireLayout,
        raw: Sequence[tr.StageRef],
        expected_rows: int,
        *,
        claim: tr.Claim,
    ) -> tuple[tr.StageRef, tr.StageObservation]:
        """Builds one prepared table from exactly these raw tables and observes it, in one transaction, by the
        same rule."""

    def count_violations(
        self, prepared: tr.StageRef, layout: WireLayout, checks: Sequence[TableCheck]
    ) -> Sequence[int]:
        """Rows of the prepared table that break each check, in order; thresholds are typed
        (``wire.threshold``). Keys are equal when their native row bytes are."""

    @effect
    def publish(self, request: tr.PublishRequest) -> tr.PublishOutcome:
        """The one transaction: gate, prepared proof, DELETE, INSERT, count, receipt.

        Any exception means that the outcome is unknown.
        """

    @effect
    def probe(
        self, target: tr.TargetRef, *, operation_id: str, journal_id: str, route_scope: str, fence: int
    ) -> tr.ProbeAnswer:
        """Raises the gate to ``fence`` under the publication's lock, then reads receipt and gate.

        After it has answered, no publication with a smaller fence can become effective.
        """

    def newest_generation(self, delivery_key: str) -> int:
        """The highest generation of this requester that any journal published in this database; 0 when
        none."""

    def read_receipt(self, operation_id: str) -> tr.Receipt | None:
        """Reads a receipt in a session of its own."""

    @effect
    def drop_stage(self, stage: tr.StageRef) -> bool:
        """Drops by name, object id and owner mark; False when it is gone already. A mismatch is an
        Incident."""


class WriterPort(Protocol):
    """The bulk writer: puts the rows of one sealed chunk into one granted stage."""

    backend: str
    proof_capability: str
    """How a dead writer is proved gone; identity of the delivery."""
    chunk_format: ChunkFormat

    def versions(self) -> Mapping[str, str]:
        """Package versions, recorded with each attempt."""

    @effect
    def write(
        self,
        stage: tr.StageRef,
        layout: WireLayout,
        batches: Iterator[pa.RecordBatch],
        *,
        token_sha256: str,
        deadline: Deadline,
    ) -> tr.WriterObservation:
        """Writes all rows while the stage is granted to this token; the verification decides afterwards.
        Several threads may call it at once, each with another stage."""


class JournalPort(AbstractContextManager["JournalPort"], Protocol):
    """The durable memory. All reads verify; all writes are guarded by the lease's fence."""

    journal_id: str
    host_id: str | None

    def newest_invocation(self, delivery_key: str) -> jr.Invocation | None:
        """The newest generation of a requester."""

    def invocation(self, invocation_key: str) -> jr.Invocation | None:
        """One generation."""

    def events(self, invocation_key: str) -> tuple[jr.Event, ...]:
        """The delivery stream, then every attempt stream of the invocation, each verified whole.

        Raises JournalError naming the first bad event: not contiguous, not linked, not allowed, wrong hash.
        """

    def custody(self, target_key: str) -> jr.Custody:
        """Who owns the target; epoch 0 and clear when nobody ever did."""

    def fence(self, target_key: str) -> int:
        """The highest fence ever given for the target; 0 when none."""

    def task(self, delivery_key: str, task_id: str) -> jr.TaskRecord | None:
        """What the task said of itself when it last acted."""

    def checkpoint(self, target_key: str, route_scope: str, window_key: str) -> jr.Checkpoint | None:
        """The checkpoint row of a window."""

    def evidence(self, evidence_sha256: str) -> bytes | None:
        """A stored evidence document."""

    @effect
    def acquire(
        self, target_key: str, requester: r.Requester, *, ttl_sec: float, gate_fence: int
    ) -> jr.Lease:
        """Takes the lease with fence = max(journal, gate) + 1, in one transaction.

        Raises CustodyHeld when an unfinished invocation of *another* requester owns the target (the lease is
        not touched then), LeaseHeld while another process may still work: until expiry by the database's
        clock, unless the owner was an earlier try of the same task, or a process of this host that is gone.
        """

    @effect
    def raise_fence(self, lease: jr.Lease, *, gate_fence: int = 0) -> jr.Lease:
        """A new, greater fence for the same owner: one for each publication that is sent, one for each
        probe."""

    def renew(self, lease: jr.Lease) -> None:
        """Makes the lease last for another ``ttl_sec``, by the database's clock. Raises Fenced when it is not
        ours any more. Safe beside another thread's writes."""

    @effect
    def release(self, lease: jr.Lease) -> None:
        """Gives the lease back (the fence stays). Not ours any more is fine."""

    @effect
    def append(self, lease: jr.Lease, *writes: jr.JournalWrite) -> None:
        """All writes in one transaction that first updates the lease row ``WHERE fence = mine``.

        Raises Fenced when that did not land. The same event twice is no change; another event at the same
        sequence, or a move that the state table does not permit, is a JournalError.
        """


Observer = Callable[[str], None]
"""Called with the name of each crash point as it is passed."""

Progress = Callable[[str, int, int | None, str], None]
"""Called with (phase, done, total or None, unit)."""


@dataclass(frozen=True, kw_only=True)
class RecoveryPorts:
    """What can be settled without reading the source and without writing a chunk."""

    spool: SpoolPort
    target: TargetPort
    journal: JournalPort
    clock: Clock
    observer: Observer | None = None
    progress: Progress | None = None


@dataclass(frozen=True, kw_only=True)
class Ports(RecoveryPorts):
    """Everything one delivery works with."""

    source: SourcePort
    writer: WriterPort
