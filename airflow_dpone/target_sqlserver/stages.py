"""Staging tables: created with their mark in one transaction, granted once, proved and sealed by a barrier.

Tables are touched by name *and* object id *and* owner; a name with another mark is never ours. Names are
unguessable and never used twice, so nothing that is late can write into something new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import Incident, TargetBusy
from airflow_dpone.target_sqlserver import digest_statements, marks
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.catalog import columns_of
from airflow_dpone.target_sqlserver.marks import Mark
from airflow_dpone.target_sqlserver.session import Row, Session, milliseconds
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.types import WireLayout

MARK_LOCK_MS = 30_000
WRITER_SETTLE_SEC = 180.0
"""How long a verification waits for the session of a writer that should be gone."""


@dataclass(frozen=True)
class StoredStage:
    """A staging table as it is now. :param created: its ``create_date`` as text."""

    mark: Mark
    created: str


def find(session: Session, name: str, owner: str, schemas: sql.Schemas) -> tr.StageRef | None:
    """Looks a stage up; a table of that name with another mark, or none, is an Incident."""
    found = _stored(session, name, owner, schemas)
    return None if found is None else tr.StageRef(name, owner, found.mark.object_id)


def _stored(session: Session, name: str, owner: str, schemas: sql.Schemas) -> StoredStage | None:
    row = session.row(sql.STAGE, schemas.stage_path(name))
    if row is None:
        return None
    kind, object_id, created, text = row
    mark = Mark.parse(text)
    if kind != "U" or mark is None or (mark.owner, mark.object_id) != (owner, object_id):
        raise Incident(
            "dpone.target.stage_not_ours",
            f"Table {schemas.stage}.{name} exists and does not carry this delivery's mark.",
            stage=name,
        )
    return StoredStage(mark, created)


def require(session: Session, stage: tr.StageRef, schemas: sql.Schemas) -> StoredStage:
    """A stage that must be there with this object id and owner."""
    found = _stored(session, stage.name, stage.owner, schemas)
    if found is None:
        text = f"Staging table {stage.name} is gone."
        raise Incident("dpone.target.stage_missing", text, stage=stage.name)
    if found.mark.object_id != stage.object_id:
        text = f"Staging table {stage.name} is another object than the one that was journaled."
        raise Incident("dpone.target.stage_not_ours", text, stage=stage.name)
    return found


def require_columns(session: Session, stage: tr.StageRef, layout: WireLayout) -> None:
    """A stage whose columns were changed is not the one that we made."""
    found = [(c.name, c.type_text, bool(c.is_nullable)) for c in columns_of(session, stage.object_id)]
    if found != stage_columns(layout):
        raise _wrong_state(stage.name, "has other columns than the ones it was created with")


def stage_columns(layout: WireLayout) -> list[tuple[str, str, bool]]:
    """Name, type and nullability of a staging table: the target's own."""
    return [(c.name, str(c.pair.sql_type), c.pair.target_nullable) for c in layout.columns]


def create(
    session: Session,
    name: str,
    owner: str,
    layout: WireLayout,
    schemas: sql.Schemas,
    state: str = marks.CREATED,
) -> tr.StageRef:
    """Creates an empty table with its mark, inside the caller's transaction. A name is never used twice."""
    if _stored(session, name, owner, schemas) is not None:
        raise _wrong_state(name, "exists already; names are never used twice")
    session.execute(sql.create_stage(schemas, name, stage_columns(layout)))
    row = session.row(sql.STAGE, schemas.stage_path(name))
    if row is None:
        raise Incident(
            "dpone.target.stage_missing", f"Staging table {name} was created and is not seen.", stage=name
        )
    mark = Mark(owner, state, None, int(row[1]))
    session.execute(sql.add_mark(schemas, name), str(mark))
    return tr.StageRef(name, owner, mark.object_id)


def grant(session: Session, stage: tr.StageRef, token_sha256: str, schemas: sql.Schemas) -> None:
    """``created`` -> ``granted``, once, inside the caller's transaction."""
    _lock_mark(session, stage)
    mark = require(session, stage, schemas).mark
    if mark.state != marks.CREATED:
        raise _wrong_state(stage.name, f"is {mark.state}; a stage is granted once")
    granted = Mark(stage.owner, marks.GRANTED, token_sha256, stage.object_id)
    session.execute(sql.change_mark(schemas, stage.name), str(granted))


def verify(
    session: Session,
    stage: tr.StageRef,
    layout: WireLayout,
    chunk: tuple[int, str],
    schemas: sql.Schemas,
    deadline: Deadline,
    settle_sec: float = WRITER_SETTLE_SEC,
) -> tr.StageObservation:
    """Proves and marks the verdict, inside the caller's transaction: nothing is written after it.

    The barrier: the lock that the granted writer holds as long as its session lives, then the table itself.
    The mark changes in the same transaction, so a writer that had not begun finds itself not granted.

    :param chunk: rows and digest that it must hold to be sealed; else it is retired.
    :param settle_sec: how long a writer's session may still be there.
    :raises TargetBusy: ``dpone.target.writer_lives``: the writer's session is still there.
    """
    _lock_mark(session, stage)
    mark = require(session, stage, schemas).mark
    if mark.token is not None:
        wait = max(0.0, min(settle_sec, deadline.remaining_sec()))
        if not session.lock(sql.stage_lock(mark.token), milliseconds(wait)):
            text = f"The session of the writer of {stage.name} has not ended after {wait:.0f} s."
            raise TargetBusy("dpone.target.writer_lives", text, stage=stage.name)
    seen = observe(session, stage, layout, chunk[0], schemas, deadline)
    if mark.state == marks.RETIRED:
        return seen.without_proof
    verdict = marks.SEALED if seen.holds(*chunk) else marks.RETIRED
    if mark.state != verdict:
        judged = Mark(stage.owner, verdict, None, stage.object_id)
        session.execute(sql.change_mark(schemas, stage.name), str(judged))
    return seen


def observe(
    session: Session,
    stage: tr.StageRef,
    layout: WireLayout,
    expected_rows: int,
    schemas: sql.Schemas,
    deadline: Deadline | None = None,
) -> tr.StageObservation:
    """Locks the table, looks that it is the right one, hashes at most ``expected_rows + 1`` rows."""
    session.execute(sql.lock_stage(schemas, stage.name))
    require(session, stage, schemas)
    require_columns(session, stage, layout)
    text = digest_statements.observe(schemas.stage_path(stage.name), layout, expected_rows)
    answer = _within(session, text, deadline)
    require(session, stage, schemas)
    rows = int(answer[0]) if answer else 0
    if answer and rows > expected_rows:
        return tr.StageObservation(rows, True, None)
    return tr.StageObservation(rows, False, DigestSum.from_target_row(answer or (), expected_rows))


def _within(session: Session, text: str, deadline: Deadline | None) -> Row:
    if deadline is None:
        return session.row(text) or ()
    session.limit(check_deadline(deadline))
    try:
        return session.row(text) or ()
    finally:
        session.limit(0)


def check_deadline(deadline: Deadline) -> float:
    """Seconds left; raises TargetBusy ``dpone.target.deadline`` when the budget is used up."""
    left = deadline.remaining_sec()
    if left <= 0:
        raise TargetBusy("dpone.target.deadline", "The deadline passed while the target was being read.")
    return left


def build_prepared(
    session: Session,
    name: str,
    owner: str,
    layout: WireLayout,
    raw: Sequence[tr.StageRef],
    expected_rows: int,
    schemas: sql.Schemas,
) -> tuple[tr.StageRef, tr.StageObservation]:
    """Builds and observes the prepared table, inside the caller's transaction; an earlier one is dropped."""
    if _stored(session, name, owner, schemas) is not None:
        session.execute(sql.drop_stage(schemas, name))
    prepared = create(session, name, owner, layout, schemas, marks.SEALED)
    columns = [column.name for column in layout.columns]
    for stage in raw:
        if require(session, stage, schemas).mark.state != marks.SEALED:
            raise _wrong_state(stage.name, "is not sealed; only verified stages are published")
        require_columns(session, stage, layout)
        session.execute(sql.copy_stage(schemas, name, stage.name, columns))
        require(session, stage, schemas)
    return prepared, observe(session, prepared, layout, expected_rows, schemas)


def drop(session: Session, stage: tr.StageRef, schemas: sql.Schemas) -> bool:
    """Drops exactly this table, inside the caller's transaction; False when it is gone already."""
    _lock_mark(session, stage)
    if _stored(session, stage.name, stage.owner, schemas) is None:
        return False
    require(session, stage, schemas)
    session.execute(sql.drop_stage(schemas, stage.name))
    return True


def _lock_mark(session: Session, stage: tr.StageRef) -> None:
    if not session.lock(sql.mark_lock(stage.name), MARK_LOCK_MS):
        text = f"Another session is changing staging table {stage.name}."
        raise TargetBusy("dpone.target.busy", text, stage=stage.name)


def _wrong_state(name: str, what: str) -> Incident:
    return Incident("dpone.target.stage_state", f"Staging table {name} {what}.", stage=name)
