"""Records about the target table, its staging tables and its receipts. All frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_dpone.delivery import identity
from airflow_dpone.delivery.records import Json
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import Problem
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.types import WireLayout


@dataclass(frozen=True)
class GateRow:
    """The target's own memory of who may publish (table ``dpone.target_gate``)."""

    target_key: str
    target_object_id: int
    target_created: str
    journal_id: str
    route_scope: str
    fence: int
    in_flight_operation_id: str | None
    last_operation_id: str | None
    last_receipt_sha256: str | None


@dataclass(frozen=True)
class TargetIdentity:
    """Answer of the identity query of admission.

    :param installation_id: GUID inside the target database, or None when it is not initialised.
    :param object_id: positive integer of this incarnation of the table, 0 when it has none yet.
    :param created: 16 hex digits of the creation stamp.
    :param is_missing: there is no such table; names are as asked for, object id and stamp are zeros.
    """

    installation_id: str | None
    schema: str
    table: str
    object_id: int
    created: str
    gate: GateRow | None
    is_missing: bool = False

    @property
    def target_key(self) -> str:
        """Raises ValueError when the database is not initialised."""
        if self.installation_id is None:
            raise ValueError("the target database is not initialised")
        return identity.target_key(self.installation_id, self.schema, self.table)


@dataclass(frozen=True)
class TargetColumn:
    """One column of the target: T-SQL type text, and whether it takes NULL."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True)
class TargetTable:
    """What introspection found.

    :param problems: refusals, e.g. a column kind that cannot be written. :param warnings: worth a decision.
    :param observations: worth knowing, true only for now: room in data and log, how readers fare.
    :param waivers: an option and the problem that it lets through, for those of ``problems`` that have one.
    :param demands: an option and a problem that is one only where the option is set.
    :param must_be_fed: columns that take no NULL, have no default and are not written by the server.
    """

    columns: tuple[TargetColumn, ...]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    observations: tuple[str, ...] = ()
    waivers: tuple[tuple[str, Problem], ...] = ()
    demands: tuple[tuple[str, Problem], ...] = ()
    must_be_fed: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Hash of names, types and nullability in order; part of the incarnation."""
        return identity.key_of([[c.name, c.type, c.nullable] for c in self.columns])


@dataclass(frozen=True)
class NewTable:
    """A table that a delivery would make.

    :param table: its columns, and everything that stands against making it or delivering into it.
    :param statement: the CREATE TABLE as it would be sent.
    """

    table: TargetTable
    statement: str


@dataclass(frozen=True)
class TargetRef:
    """One incarnation of the target table, frozen in the plan and compared again inside the publication."""

    target_key: str
    schema: str
    table: str
    object_id: int
    created: str
    fingerprint: str

    def to_json(self) -> Json:
        """Part of the plan; the object id may need 63 bits, so it is a decimal string."""
        return {**asdict(self), "object_id": str(self.object_id)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> TargetRef:
        """The reverse of :meth:`to_json`."""
        return cls(**{**body, "object_id": int(body["object_id"])})


@dataclass(frozen=True)
class Claim:
    """By which right a staging table is made: the fence of its maker, for one target.

    When the target's gate has seen a greater fence, the maker was replaced: whoever replaced it has looked
    for its tables already and would never find this one.
    """

    target_key: str
    fence: int


@dataclass(frozen=True)
class StageRef:
    """A staging table that we own: dropped only by this name *and* object id *and* owner mark."""

    name: str
    owner: str
    object_id: int


@dataclass(frozen=True)
class WriterObservation:
    """What a bulk writer says of itself: an observation, never an authority.

    :param outcome: success | failure | timeout | lost_ack | cleanup_failed | custody_lost.
    :param rows: rows consumed; only with ``success``.
    :param diagnostic_code: why it is no success, if the writer says more than the outcome.
    """

    outcome: str
    rows: int | None
    write_sec: float | None = None
    diagnostic_code: str | None = None


@dataclass(frozen=True)
class StageObservation:
    """What the target itself counted and hashed under its barrier.

    :param overflow: more rows than expected were found; then the sums mean nothing.
    :param digest_sum: None where it would prove nothing.
    """

    rows: int
    overflow: bool
    digest_sum: DigestSum | None

    def proves(self, expected: DigestSum) -> bool:
        """Whether the stage holds exactly the expected multiset of rows."""
        return not self.overflow and self.digest_sum == expected

    @property
    def without_proof(self) -> StageObservation:
        """Of a stage that was retired before: it proves nothing any more, whatever it holds now."""
        return replace(self, digest_sum=None)

    def holds(self, rows: int, digest: str) -> bool:
        """The same for a sealed chunk, of which the sum after its carries is known."""
        seen = self.digest_sum
        return seen is not None and not self.overflow and (seen.rows, seen.digest) == (rows, digest)


@dataclass(frozen=True)
class ReceiptDraft:
    """The client-known columns of a receipt; :attr:`sha256` is the receipt's hash."""

    operation_id: str
    target_key: str
    delivery_key: str
    generation: int
    invocation_key: str
    route_scope: str
    journal_id: str
    intent_sha256: str
    strategy: str
    window_key: str
    row_count: int
    digest: str
    wire_layout_sha256: str
    fence: int
    lock_mode: str
    digest_algorithm: str = "mssql-native-sha256-sum-v1"
    receipt_kind: str = "data"
    intent_version: int = 1

    def to_json(self) -> Json:
        """Canonical form; the fence is a decimal string."""
        return {**asdict(self), "fence": str(self.fence)}

    @property
    def sha256(self) -> str:
        """SHA-256 of the RFC 8785 bytes of :meth:`to_json`."""
        return identity.key_of(self.to_json())


@dataclass(frozen=True)
class Receipt:
    """A receipt as read back from the target: the draft, its stored hash, and what the server added."""

    draft: ReceiptDraft
    receipt_sha256: str
    deleted_rows: int
    published_at: str
    recovery_fork_id: str | None
    durability: str

    def to_json(self) -> Json:
        """All columns, for PUBLISHED and the evidence."""
        rest = asdict(self)
        rest.pop("draft")
        return {**self.draft.to_json(), **rest}


@dataclass(frozen=True)
class PublishRequest:
    """Everything that the one publication transaction needs; nothing in it is decided later.

    :param prepared: the prepared table, its expected content in ``expected``.
    :param window_column: target column of the window, None for a full refresh.
    :param window: bounds of DELETE and of the after-count.
    :param after_image_digest: hash the window in the target before it is committed.
    """

    target: TargetRef
    prepared: StageRef
    expected: DigestSum
    layout: WireLayout
    window: Window
    window_column: str | None
    draft: ReceiptDraft
    after_image_digest: bool = False


@dataclass(frozen=True)
class PublishOutcome:
    """The sentinel of the publication: committed | already | rolled_back | ended_early.

    :param code: with ``rolled_back``: a code of the error catalogue (why). :param error_number: the server's
        number.
    """

    kind: str
    code: str | None = None
    error_number: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class ProbeAnswer:
    """What the target says about one operation, read under the publication's own lock with a raised fence."""

    receipt: Receipt | None
    last_operation_id: str | None
    in_flight_operation_id: str | None
