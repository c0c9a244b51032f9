"""The journal's tables, as the newest migration leaves them.

SQLAlchemy Core with types that SQLite and PostgreSQL both keep exactly. Instants are canonical text
(``2025-01-01T00:00:00.000000Z``), which sorts as time does; hashes are lower-case hex; documents are the
canonical text itself, never a JSON type that would write it anew.

The lists of states inside the CHECK constraints come from ``delivery/states.py`` and are complete from the
first migration on: SQLite cannot change a CHECK without building the table again.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState, ReleaseReason

VERSION_TABLE = "dpone_alembic_version"
REVISIONS = ("0001",)
"""Every migration, oldest first; a test compares it with the files.

Known here so that opening loads no Alembic.
"""
HEAD = REVISIONS[-1]
LAYOUT_VERSION = 1

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

KEY = String(64)
INSTANT = String(27)


def in_list(column: str, words: Iterable[str]) -> str:
    """``column IN ('A', 'B')`` for a CHECK: the words are names of our own enums."""
    return f"{column} IN ({', '.join(repr(str(word)) for word in words)})"


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(str(word) for word in words))


STATES = _unique(DeliveryState)
EVENTS = _unique([*DeliveryState, *DeliveryEvent, *AttemptEvent])
# A CHECK that is NULL passes, hence the IS NOT NULL before each comparison.
CUSTODY_IS_CLOSED = (
    "(state = 'held' AND holder_key IS NOT NULL AND holder_fence IS NOT NULL AND holder_fence > 0 "
    "AND release_reason IS NULL) OR "
    "(state = 'clear' AND holder_key IS NULL AND holder_fence IS NULL AND release_reason IS NOT NULL "
    f"AND {in_list('release_reason', ReleaseReason)})"
)

journal = Table(
    "dpone_journal",
    metadata,
    Column("only_row", Integer, primary_key=True, autoincrement=False),
    Column("journal_id", String(36), nullable=False),
    Column("layout_version", Integer, nullable=False),
    Column("host_id", Text),
    Column("created_at", INSTANT, nullable=False),
    CheckConstraint("only_row = 1", name="only_row"),
)
"""One row: which journal this is. ``host_id``: the machine that a SQLite file belongs to."""

invocation = Table(
    "dpone_invocation",
    metadata,
    Column("delivery_key", KEY, primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("invocation_key", KEY, nullable=False),
    Column("target_key", KEY, nullable=False),
    Column("route_scope", KEY, nullable=False),
    Column("window_key", String(64), nullable=False),
    Column("dag_id", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("delivery_task_id", Text, nullable=False),
    Column("map_index", Integer, nullable=False),
    Column("state", String(32), nullable=False),
    Column("resume_state", String(32)),
    Column("plan_sha256", KEY, nullable=False),
    Column("delivery_events", BigInteger, nullable=False),
    Column("attempt_events", BigInteger, nullable=False),
    Column("last_error_code", Text),
    Column("reason", Text),
    Column("next_action", Text),
    Column("updated_at", INSTANT, nullable=False),
    UniqueConstraint("invocation_key"),
    CheckConstraint("generation > 0", name="generation"),
    CheckConstraint(in_list("state", STATES), name="state"),
    CheckConstraint(f"resume_state IS NULL OR {in_list('resume_state', STATES)}", name="resume_state"),
    CheckConstraint("delivery_events >= 0 AND attempt_events >= 0", name="events"),
    Index(None, "target_key", "state"),
    Index(None, "dag_id", "run_id"),
    Index(None, "state", "updated_at"),
)
"""Where each generation stands: a projection of its streams.

The two counts show a cut-off end of a stream, which links between events cannot.
"""

event = Table(
    "dpone_event",
    metadata,
    Column("stream", String(80), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("invocation_key", KEY, ForeignKey("dpone_invocation.invocation_key"), nullable=False),
    Column("event", String(32), nullable=False),
    Column("previous_sha256", KEY),
    Column("sha256", KEY, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    UniqueConstraint("sha256"),
    CheckConstraint("sequence >= 0", name="sequence"),
    CheckConstraint(in_list("event", EVENTS), name="event"),
    CheckConstraint("(sequence = 0) = (previous_sha256 IS NULL)", name="previous_sha256"),
    Index(None, "invocation_key"),
    Index(None, "created_at"),
)
"""Append-only truth. Nothing ever changes or deletes a row."""

lease = Table(
    "dpone_lease",
    metadata,
    Column("target_key", KEY, primary_key=True),
    Column("owner", String(64)),
    Column("owner_host", Text),
    Column("owner_pid", BigInteger),
    Column("owner_started", Text),
    Column("delivery_key", KEY),
    Column("task_id", Text),
    Column("try_number", Integer),
    Column("ti_id", Text),
    Column("fence", BigInteger, nullable=False),
    Column("expires_at", INSTANT),
    Column("touched_at", INSTANT),
    CheckConstraint("fence >= 0", name="fence"),
    CheckConstraint("owner IS NULL OR (fence > 0 AND expires_at IS NOT NULL)", name="owner"),
)
"""Which process may write for a target.

The row and its fence stay for ever; only the owner comes and goes.
"""

custody = Table(
    "dpone_custody",
    metadata,
    Column("target_key", KEY, primary_key=True),
    Column("custody_epoch", BigInteger, nullable=False),
    Column("state", String(8), nullable=False),
    Column("holder_key", KEY, ForeignKey("dpone_invocation.invocation_key")),
    Column("holder_fence", BigInteger),
    Column("release_reason", String(64)),
    Column("since", INSTANT, nullable=False),
    CheckConstraint("custody_epoch > 0", name="epoch"),
    CheckConstraint(CUSTODY_IS_CLOSED, name="closed"),
    Index(None, "state", "since"),
)
"""Which invocation owns a target."""

task = Table(
    "dpone_task",
    metadata,
    Column("delivery_key", KEY, primary_key=True),
    Column("task_id", String(250), primary_key=True),
    Column("generation", BigInteger, nullable=False),
    Column("try_number", Integer, nullable=False),
    Column("max_tries", Integer, nullable=False),
    Column("ti_id", Text, nullable=False),
)
"""What each task of a delivery said of itself when it last acted."""

evidence = Table(
    "dpone_evidence",
    metadata,
    Column("evidence_sha256", KEY, primary_key=True),
    Column("invocation_key", KEY, ForeignKey("dpone_invocation.invocation_key"), nullable=False),
    Column("operation_id", KEY, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Index(None, "invocation_key"),
)
"""Evidence documents by the hash of their bytes."""

checkpoint = Table(
    "dpone_checkpoint",
    metadata,
    Column("target_key", KEY, primary_key=True),
    Column("route_scope", KEY, primary_key=True),
    Column("window_key", String(64), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("delivery_key", KEY, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("operation_id", KEY, nullable=False),
    Column("receipt_sha256", KEY, nullable=False),
    Column("evidence_sha256", KEY, nullable=False),
    Column("updated_at", INSTANT, nullable=False),
    CheckConstraint("revision > 0", name="revision"),
)
"""The newest delivered content of each window of each route."""
