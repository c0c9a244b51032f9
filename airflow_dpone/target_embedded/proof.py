"""Reads a staging table back and says what it holds.

The rows are read with our own statement as Python values and encoded row by row with the reference encoder,
never with the columnar encoder that made the chunk: one of the two judges the other.
"""

from __future__ import annotations

import hashlib

import numpy as np

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import SourceDataError, TargetBusy
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded import storage
from airflow_dpone.target_embedded.session import Session
from airflow_dpone.target_embedded.window_bounds import WHOLE_TABLE, WindowBounds
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.reference_rows import encode_row
from airflow_dpone.wire.types import WireLayout

_FETCH_ROWS = 10_000


def observe(
    session: Session,
    path: str,
    layout: WireLayout,
    expected_rows: int,
    deadline: Deadline | None = None,
    window: WindowBounds = WHOLE_TABLE,
) -> tr.StageObservation:
    """Counts and hashes at most ``expected_rows + 1`` rows, of a window or of the whole table.

    Without a digest when there are more rows, or when a value is one that the column's type cannot hold: such
    rows are not the ones that were sent, whatever they are.

    :raises TargetBusy: ``dpone.target.deadline``: the deadline passed.
    """
    if _has_infinite(session, path, layout, window):
        return _without_digest(session, path, expected_rows, window)
    columns = [column.name for column in layout.columns]
    limited = {"limit": expected_rows + 1, **window.parameters}
    answer = session.execute(sql.read_rows(path, columns, window.column), limited)
    total = DigestSum.zero()
    try:
        while batch := answer.fetchmany(_FETCH_ROWS):
            check_deadline(deadline)
            total += _sum_of(batch, layout)
    except SourceDataError:
        return _without_digest(session, path, expected_rows, window)
    if total.rows > expected_rows:
        return tr.StageObservation(total.rows, True, None)
    return tr.StageObservation(total.rows, False, total)


def check_deadline(deadline: Deadline | None) -> None:
    """Raises when the operation's budget is used up."""
    if deadline is not None and deadline.remaining_sec() <= 0:
        raise TargetBusy("dpone.target.deadline", "The deadline passed while the target was being read.")


def _sum_of(batch: list[tuple[object, ...]], layout: WireLayout) -> DigestSum:
    hashes = b"".join(hashlib.sha256(encode_row(row, layout)).digest() for row in batch)
    return DigestSum.of_hashes(np.frombuffer(hashes, dtype=np.uint8).reshape(-1, 32))


def _has_infinite(session: Session, path: str, layout: WireLayout, window: WindowBounds) -> bool:
    columns = [c.name for c in layout.columns if c.pair.sql_type.name in storage.TEMPORAL]
    text = sql.count_infinite(path, columns, window.column)
    return bool(columns) and session.number(text, window.parameters) > 0


def _without_digest(
    session: Session, path: str, expected_rows: int, window: WindowBounds
) -> tr.StageObservation:
    rows = min(session.number(window.count(path), window.parameters), expected_rows + 1)
    return tr.StageObservation(rows, rows > expected_rows, None)
