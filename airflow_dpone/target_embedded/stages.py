"""Staging tables: each has a mark in its comment that says whose it is and in which state.

``created`` -> ``granted:<token>`` -> ``sealed`` or ``retired``: the verdict. A stage is granted once; only
a granted one is written; only a sealed one is published; nothing leaves ``retired``. Tables are touched by
name *and* object id *and* owner; a name with another mark is never ours.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import Incident
from airflow_dpone.target_embedded import proof, storage
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.catalog import columns_of, positive
from airflow_dpone.target_embedded.session import Session
from airflow_dpone.wire.types import WireLayout

CREATED, GRANTED, SEALED, RETIRED = "created", "granted", "sealed", "retired"
_MARK = re.compile(r"dpone:owner=([^;]*);state=([a-z]+)(?::([0-9a-f]+))?;object=([0-9]+)")


@dataclass(frozen=True)
class Mark:
    """The owner mark of a staging table."""

    owner: str
    state: str
    token: str | None
    object_id: int

    def __str__(self) -> str:
        state = f"{self.state}:{self.token}" if self.token else self.state
        return f"dpone:owner={self.owner};state={state};object={self.object_id}"

    @classmethod
    def parse(cls, comment: str | None) -> Mark | None:
        """The mark of a comment, or None when it is none."""
        found = _MARK.fullmatch(comment or "")
        return cls(found[1], found[2], found[3], int(found[4])) if found else None


def object_id_of(owner: str) -> int:
    """The object id of a stage: it follows from the owner mark, which holds the attempt's nonce."""
    return positive(hashlib.sha256(owner.encode("utf-8")).digest())


def find(session: Session, name: str, owner: str) -> tr.StageRef | None:
    """Looks a stage up; a table of that name with another mark, or none, is an Incident."""
    row = session.row(sql.TABLE_COMMENT, {"schema": sql.STAGE_SCHEMA, "table": name})
    if row is None:
        return None
    mark = Mark.parse(row[0])
    if mark is None or mark.owner != owner:
        raise Incident(
            "dpone.target.stage_not_ours",
            f"Table {sql.STAGE_SCHEMA}.{name} exists and does not carry this delivery's mark.",
            stage=name,
        )
    return tr.StageRef(name, owner, mark.object_id)


def require(session: Session, stage: tr.StageRef) -> Mark:
    """The mark of a stage that must be there with this object id and owner."""
    found = find(session, stage.name, stage.owner)
    if found is None:
        text = f"Staging table {stage.name} is gone."
        raise Incident("dpone.target.stage_missing", text, stage=stage.name)
    if found.object_id != stage.object_id:
        text = f"Staging table {stage.name} is another object than the one that was journaled."
        raise Incident("dpone.target.stage_not_ours", text, stage=stage.name)
    return _mark(session, stage.name)


def _mark(session: Session, name: str) -> Mark:
    row = session.row(sql.TABLE_COMMENT, {"schema": sql.STAGE_SCHEMA, "table": name})
    mark = Mark.parse(row[0]) if row else None
    if mark is None:
        raise Incident("dpone.target.stage_missing", f"Staging table {name} is gone.", stage=name)
    return mark


def create(session: Session, name: str, owner: str, layout: WireLayout, state: str = CREATED) -> tr.StageRef:
    """Creates an empty table with its mark, inside the caller's transaction. A name is never used twice."""
    if find(session, name, owner) is not None:
        raise _wrong_state(name, "exists already; names are never used twice")
    mark = Mark(owner, state, None, object_id_of(owner))
    session.execute(sql.create_stage(name, storage.stage_columns(layout)))
    session.execute(sql.comment_on_table(sql.stage_path(name), str(mark)))
    return tr.StageRef(name, owner, mark.object_id)


def grant(session: Session, stage: tr.StageRef, token_sha256: str) -> None:
    """``created`` -> ``granted``, once."""
    mark = require(session, stage)
    if mark.state != CREATED:
        raise _wrong_state(stage.name, f"is {mark.state}; a stage is granted once")
    _set_state(session, stage, GRANTED, token_sha256)


def is_granted(session: Session, stage: tr.StageRef, token_sha256: str) -> bool:
    """Whether the writer with this token may write now."""
    mark = require(session, stage)
    return (mark.state, mark.token) == (GRANTED, token_sha256)


def verify(
    session: Session, stage: tr.StageRef, layout: WireLayout, rows: int, digest: str, deadline: Deadline
) -> tr.StageObservation:
    """Observes and marks the verdict, inside the caller's transaction: nothing is written after it."""
    mark = require(session, stage)
    require_columns(session, stage, layout)
    seen = proof.observe(session, sql.stage_path(stage.name), layout, rows, deadline)
    if mark.state == RETIRED:
        return seen.without_proof
    verdict = SEALED if seen.holds(rows, digest) else RETIRED
    if mark.state != verdict:
        _set_state(session, stage, verdict, None)
    return seen


def build_prepared(
    session: Session,
    name: str,
    owner: str,
    layout: WireLayout,
    raw: Sequence[tr.StageRef],
    expected_rows: int,
) -> tuple[tr.StageRef, tr.StageObservation]:
    """Builds and observes the prepared table, inside the caller's transaction; an earlier one is dropped."""
    earlier = find(session, name, owner)
    if earlier is not None:
        session.execute(sql.drop_stage(name))
    prepared = create(session, name, owner, layout, SEALED)
    columns = storage.stage_columns(layout)
    for stage in raw:
        if require(session, stage).state != SEALED:
            raise _wrong_state(stage.name, "is not sealed; only verified stages are published")
        require_columns(session, stage, layout)
        session.execute(sql.copy_stage(name, stage.name, columns))
    return prepared, proof.observe(session, sql.stage_path(name), layout, expected_rows)


def drop(session: Session, stage: tr.StageRef) -> bool:
    """Drops exactly this table, inside the caller's transaction; False when it is gone already."""
    if find(session, stage.name, stage.owner) is None:
        return False
    require(session, stage)
    session.execute(sql.drop_stage(stage.name))
    return True


def require_columns(session: Session, stage: tr.StageRef, layout: WireLayout) -> None:
    """A stage whose columns were changed is not the one that we made."""
    found = tuple((c.name, c.stored, c.nullable) for c in columns_of(session, sql.STAGE_SCHEMA, stage.name))
    if found != storage.stage_columns(layout):
        raise _wrong_state(stage.name, "has other columns than the ones it was created with")


def _set_state(session: Session, stage: tr.StageRef, state: str, token: str | None) -> None:
    mark = Mark(stage.owner, state, token, stage.object_id)
    session.execute(sql.comment_on_table(sql.stage_path(stage.name), str(mark)))


def _wrong_state(name: str, what: str) -> Incident:
    return Incident("dpone.target.stage_state", f"Staging table {name} {what}.", stage=name)
