"""The embedded bulk writer: Arrow batches into one granted raw table, columnar, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import SourceDataError
from airflow_dpone.target_embedded import stages, storage
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.session import Session
from airflow_dpone.wire.types import WireLayout


class _Timeout(Exception):
    """The deadline passed."""


def write(
    session: Session,
    stage: tr.StageRef,
    layout: WireLayout,
    batches: Iterator[pa.RecordBatch],
    token_sha256: str,
    deadline: Deadline,
) -> tuple[str, int | None]:
    """Outcome and rows. One transaction: a chunk is in the table whole, or not at all."""
    try:
        with session.transaction():
            if not stages.is_granted(session, stage, token_sha256):
                return "custody_lost", None
            statement = sql.write_batch(stage.name, storage.stage_columns(layout))
            return "success", sum(_write_batch(session, statement, layout, b, deadline) for b in batches)
    except _Timeout:
        return "timeout", None
    finally:
        session.unregister(sql.BATCH_VIEW)


def _write_batch(
    session: Session, statement: str, layout: WireLayout, batch: pa.RecordBatch, deadline: Deadline
) -> int:
    if deadline.remaining_sec() <= 0:
        raise _Timeout
    if not batch.schema.equals(layout.arrow_schema, check_metadata=False):
        raise SourceDataError(
            "dpone.wire.layout", "A batch reached the writer that is not of the planned layout."
        )
    session.register(sql.BATCH_VIEW, batch.rename_columns([f"c{i}" for i in range(batch.num_columns)]))
    return session.number(statement)
