"""First layout of the journal.

A migration never changes after a release, hence it repeats names and states instead of importing them. All
states of a delivery are in the CHECKs from the start: SQLite would have to build the table again for one
more.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import sqlalchemy as sa
from alembic import context, op

from airflow_dpone.journal.database import Clock

revision = "0001"
down_revision: str | None = None
branch_labels: Sequence[str] | None = None
depends_on: Sequence[str] | None = None

KEY = sa.String(64)
INSTANT = sa.String(27)
STATES = (
    "'PLANNED', 'EXTRACTED', 'STAGED', 'PREPARED', 'PUBLISHING', 'UNKNOWN', 'PUBLISHED', 'EVIDENCED', "
    "'CHECKPOINTED', 'COMPLETED', 'FAILED', 'RETIRED', 'INCIDENT'"
)
DELIVERY_EVENTS = (
    "'EPOCH_OPENED', 'CHUNK_SEALED', 'EPOCH_ABANDONED', 'ATTEMPT_ABANDONED', 'PREPARE_INTENT', 'TUNED', "
    "'CUSTODY_RELEASED'"
)
# UNKNOWN, FAILED and RETIRED are words of both; one list holds each once.
ATTEMPT_EVENTS = (
    "'INTENT', 'STAGE_OWNED', 'GRANTED', 'WRITING', 'WRITER_TERMINAL', 'QUIESCENT', 'VERIFIED', "
    "'PARTIAL_PROVED', 'FAILED_RETIRABLE', 'INCIDENT_RETAINED'"
)
CUSTODY = (
    "(state = 'held' AND holder_key IS NOT NULL AND holder_fence IS NOT NULL AND holder_fence > 0 "
    "AND release_reason IS NULL) OR "
    "(state = 'clear' AND holder_key IS NULL AND holder_fence IS NULL AND release_reason IS NOT NULL "
    "AND release_reason IN ('published_cleanup', 'nonpublication_all_stages_retired', "
    "'empty_completion_cleanup'))"
)


def upgrade() -> None:
    """Creates the tables and gives the journal its identity."""
    _journal()
    _invocation()
    _event()
    _lease_and_custody()
    _task_evidence_checkpoint()
    _identity()


def _journal() -> None:
    op.create_table(
        "dpone_journal",
        sa.Column("only_row", sa.Integer, autoincrement=False),
        sa.Column("journal_id", sa.String(36), nullable=False),
        sa.Column("layout_version", sa.Integer, nullable=False),
        sa.Column("host_id", sa.Text),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("only_row", name="pk_dpone_journal"),
        sa.CheckConstraint("only_row = 1", name=op.f("ck_dpone_journal_only_row")),
    )


def _invocation() -> None:
    name = "dpone_invocation"
    resume_state = f"resume_state IS NULL OR resume_state IN ({STATES})"
    op.create_table(
        name,
        sa.Column("delivery_key", KEY),
        sa.Column("generation", sa.BigInteger, autoincrement=False),
        sa.Column("invocation_key", KEY, nullable=False),
        sa.Column("target_key", KEY, nullable=False),
        sa.Column("route_scope", KEY, nullable=False),
        sa.Column("window_key", sa.String(64), nullable=False),
        sa.Column("dag_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("delivery_task_id", sa.Text, nullable=False),
        sa.Column("map_index", sa.Integer, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("resume_state", sa.String(32)),
        sa.Column("plan_sha256", KEY, nullable=False),
        sa.Column("delivery_events", sa.BigInteger, nullable=False),
        sa.Column("attempt_events", sa.BigInteger, nullable=False),
        sa.Column("last_error_code", sa.Text),
        sa.Column("reason", sa.Text),
        sa.Column("next_action", sa.Text),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("delivery_key", "generation", name="pk_dpone_invocation"),
        sa.UniqueConstraint("invocation_key", name="uq_dpone_invocation_invocation_key"),
        sa.CheckConstraint("generation > 0", name=op.f("ck_dpone_invocation_generation")),
        sa.CheckConstraint(f"state IN ({STATES})", name=op.f("ck_dpone_invocation_state")),
        sa.CheckConstraint(resume_state, name=op.f("ck_dpone_invocation_resume_state")),
        sa.CheckConstraint(
            "delivery_events >= 0 AND attempt_events >= 0", name=op.f("ck_dpone_invocation_events")
        ),
    )
    op.create_index("ix_dpone_invocation_target_key_state", name, ["target_key", "state"])
    op.create_index("ix_dpone_invocation_dag_id_run_id", name, ["dag_id", "run_id"])
    op.create_index("ix_dpone_invocation_state_updated_at", name, ["state", "updated_at"])


def _event() -> None:
    name = "dpone_event"
    events = f"event IN ({STATES}, {DELIVERY_EVENTS}, {ATTEMPT_EVENTS})"
    op.create_table(
        name,
        sa.Column("stream", sa.String(80)),
        sa.Column("sequence", sa.BigInteger, autoincrement=False),
        sa.Column("invocation_key", KEY, nullable=False),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("previous_sha256", KEY),
        sa.Column("sha256", KEY, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("stream", "sequence", name="pk_dpone_event"),
        sa.UniqueConstraint("sha256", name="uq_dpone_event_sha256"),
        sa.ForeignKeyConstraint(
            ["invocation_key"], ["dpone_invocation.invocation_key"], name="fk_dpone_event_invocation_key"
        ),
        sa.CheckConstraint("sequence >= 0", name=op.f("ck_dpone_event_sequence")),
        sa.CheckConstraint(events, name=op.f("ck_dpone_event_event")),
        sa.CheckConstraint(
            "(sequence = 0) = (previous_sha256 IS NULL)", name=op.f("ck_dpone_event_previous_sha256")
        ),
    )
    op.create_index("ix_dpone_event_invocation_key", name, ["invocation_key"])
    op.create_index("ix_dpone_event_created_at", name, ["created_at"])


def _lease_and_custody() -> None:
    op.create_table(
        "dpone_lease",
        sa.Column("target_key", KEY),
        sa.Column("owner", sa.String(64)),
        sa.Column("owner_host", sa.Text),
        sa.Column("owner_pid", sa.BigInteger),
        sa.Column("owner_started", sa.Text),
        sa.Column("delivery_key", KEY),
        sa.Column("task_id", sa.Text),
        sa.Column("try_number", sa.Integer),
        sa.Column("ti_id", sa.Text),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.Column("touched_at", INSTANT),
        sa.PrimaryKeyConstraint("target_key", name="pk_dpone_lease"),
        sa.CheckConstraint("fence >= 0", name=op.f("ck_dpone_lease_fence")),
        sa.CheckConstraint(
            "owner IS NULL OR (fence > 0 AND expires_at IS NOT NULL)", name=op.f("ck_dpone_lease_owner")
        ),
    )
    op.create_table(
        "dpone_custody",
        sa.Column("target_key", KEY),
        sa.Column("custody_epoch", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(8), nullable=False),
        sa.Column("holder_key", KEY),
        sa.Column("holder_fence", sa.BigInteger),
        sa.Column("release_reason", sa.String(64)),
        sa.Column("since", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("target_key", name="pk_dpone_custody"),
        sa.ForeignKeyConstraint(
            ["holder_key"], ["dpone_invocation.invocation_key"], name="fk_dpone_custody_holder_key"
        ),
        sa.CheckConstraint("custody_epoch > 0", name=op.f("ck_dpone_custody_epoch")),
        sa.CheckConstraint(CUSTODY, name=op.f("ck_dpone_custody_closed")),
    )
    op.create_index("ix_dpone_custody_state_since", "dpone_custody", ["state", "since"])


def _task_evidence_checkpoint() -> None:
    op.create_table(
        "dpone_task",
        sa.Column("delivery_key", KEY),
        sa.Column("task_id", sa.String(250)),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("max_tries", sa.Integer, nullable=False),
        sa.Column("ti_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("delivery_key", "task_id", name="pk_dpone_task"),
    )
    op.create_table(
        "dpone_evidence",
        sa.Column("evidence_sha256", KEY),
        sa.Column("invocation_key", KEY, nullable=False),
        sa.Column("operation_id", KEY, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("evidence_sha256", name="pk_dpone_evidence"),
        sa.ForeignKeyConstraint(
            ["invocation_key"], ["dpone_invocation.invocation_key"], name="fk_dpone_evidence_invocation_key"
        ),
    )
    op.create_index("ix_dpone_evidence_invocation_key", "dpone_evidence", ["invocation_key"])
    op.create_table(
        "dpone_checkpoint",
        sa.Column("target_key", KEY),
        sa.Column("route_scope", KEY),
        sa.Column("window_key", sa.String(64)),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("delivery_key", KEY, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("operation_id", KEY, nullable=False),
        sa.Column("receipt_sha256", KEY, nullable=False),
        sa.Column("evidence_sha256", KEY, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("target_key", "route_scope", "window_key", name="pk_dpone_checkpoint"),
        sa.CheckConstraint("revision > 0", name=op.f("ck_dpone_checkpoint_revision")),
    )


def _identity() -> None:
    row = sa.table(
        "dpone_journal",
        sa.column("only_row", sa.Integer),
        sa.column("journal_id", sa.String),
        sa.column("layout_version", sa.Integer),
        sa.column("host_id", sa.Text),
        sa.column("created_at", sa.String),
    )
    # A printed script must not give two databases one id: there the database makes it.
    journal_id = (
        sa.cast(sa.func.gen_random_uuid(), sa.String) if context.is_offline_mode() else str(uuid.uuid4())
    )
    op.execute(
        row.insert().values(
            only_row=1,
            journal_id=journal_id,
            layout_version=1,
            host_id=context.config.attributes["host_id"],
            created_at=Clock(0.0),
        )
    )
