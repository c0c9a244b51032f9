"""What is not a chain: the rows for reading (invocations, tasks), evidence documents and checkpoints."""

from __future__ import annotations

import json
import re
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.states import ENDED, DeliveryState
from airflow_dpone.delivery.window import FULL_KEY, Window, instant_text
from airflow_dpone.errors import JournalError
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.database import insert_missing, lock_name
from airflow_dpone.journal.lease import Guarded
from airflow_dpone.journal.schemas import Misfit, find_misfit

EVIDENCE_KIND = "dpone.delivery-evidence"
EVIDENCE_VERSION = 1
_EVIDENCE_VERSION = re.compile(r"dpone[.]delivery-evidence[.]v([1-9][0-9]{0,8})")


def refused(text: str, **fields: Any) -> JournalError:
    """The error for a write that contradicts what is stored."""
    return JournalError("dpone.journal.write_refused", text, **fields)


# ---- invocations -------------------------------------------------------------------------------------------


def invocation_of_row(row: Any) -> jr.Invocation:
    """A row of ``dpone_invocation`` as a record."""
    return jr.Invocation(
        delivery_key=row.delivery_key,
        generation=row.generation,
        invocation_key=row.invocation_key,
        target_key=row.target_key,
        route_scope=row.route_scope,
        window_key=row.window_key,
        state=DeliveryState(row.state),
        resume_state=row.resume_state,
        plan_sha256=row.plan_sha256,
        last_error_code=row.last_error_code,
        reason=row.reason,
        next_action=row.next_action,
        dag_id=row.dag_id,
        run_id=row.run_id,
        delivery_task_id=row.delivery_task_id,
        map_index=row.map_index,
    )


def read_invocation(connection: Connection, invocation_key: str) -> jr.Invocation | None:
    """One generation."""
    query = select(t.invocation).where(t.invocation.c.invocation_key == invocation_key)
    row = connection.execute(query).one_or_none()
    return None if row is None else invocation_of_row(row)


def read_newest(connection: Connection, delivery_key: str) -> jr.Invocation | None:
    """The newest generation of a requester."""
    query = select(t.invocation).where(t.invocation.c.delivery_key == delivery_key)
    row = connection.execute(query.order_by(t.invocation.c.generation.desc()).limit(1)).one_or_none()
    return None if row is None else invocation_of_row(row)


def own_invocation(tx: Guarded, invocation_key: str) -> Any:
    """The row of an invocation of the lease's target. The fence of one target guards nothing of another."""
    query = select(t.invocation).where(t.invocation.c.invocation_key == invocation_key)
    row = tx.connection.execute(query).one_or_none()
    if row is None:
        raise refused(f"The invocation {invocation_key} is not open.", invocation_key=invocation_key)
    if row.target_key != tx.lease.target_key:
        raise refused(
            f"The invocation {invocation_key} belongs to another target than the lease.",
            invocation_key=invocation_key,
            target_key=row.target_key,
        )
    return row


def open_invocation(tx: Guarded, write: jr.OpenInvocation) -> None:
    """Creates the row of a new generation. The same one again is no change.

    Raises JournalError when the generation before it has not ended, or is not older.
    """
    requester = write.requester
    identity_values = {
        "delivery_key": write.delivery_key,
        "generation": write.generation,
        "invocation_key": write.invocation_key,
        "target_key": write.target_key,
        "route_scope": write.route_scope,
        "window_key": write.window_key,
        "dag_id": requester.dag_id,
        "run_id": requester.run_id,
        "delivery_task_id": requester.delivery_task_id or requester.task_id,
        "map_index": requester.map_index,
        "plan_sha256": write.plan_sha256,
    }
    requesters = {requester.delivery_key, tx.lease.requester.delivery_key}
    if write.target_key != tx.lease.target_key or requesters != {write.delivery_key}:
        raise refused("A generation is opened under the lease of its target, by its own requester.")
    # The generations of one delivery may have had other targets, whose leases do not exclude each other.
    lock_name(tx.connection, write.delivery_key)
    query = select(t.invocation).where(t.invocation.c.delivery_key == write.delivery_key)
    newest = tx.connection.execute(query.order_by(t.invocation.c.generation.desc()).limit(1)).one_or_none()
    if newest is not None and newest.generation == write.generation:
        if any(getattr(newest, name) != value for name, value in identity_values.items()):
            raise refused(
                f"Generation {write.generation} of {write.delivery_key} is open with another content."
            )
        return
    if newest is not None and (
        newest.generation > write.generation or DeliveryState(newest.state) not in ENDED
    ):
        raise refused(
            f"Generation {write.generation} of {write.delivery_key} cannot be opened: "
            f"generation {newest.generation} is {newest.state}."
        )
    # PLANNED is the state of a row without events only until the end of this transaction: see check_opened.
    tx.connection.execute(
        insert(t.invocation).values(
            **identity_values,
            state=DeliveryState.PLANNED.value,
            delivery_events=0,
            attempt_events=0,
            updated_at=tx.now,
        )
    )


def check_opened(tx: Guarded, invocation_key: str) -> None:
    """At the end of a transaction: a new generation has its first event. Raises JournalError."""
    if not own_invocation(tx, invocation_key).delivery_events:
        raise refused(f"The invocation {invocation_key} was opened without its first event, PLANNED.")


def put_note(tx: Guarded, write: jr.PutNote) -> None:
    """What a person reads first: None leaves a field as it is, '' empties it.

    A NUL, which PostgreSQL keeps in no text, is shown as a replacement character.
    """
    own_invocation(tx, write.invocation_key)
    names = ("resume_state", "last_error_code", "reason", "next_action")
    given = {name: getattr(write, name) for name in names if getattr(write, name) is not None}
    values = {name: value.replace("\0", "\N{REPLACEMENT CHARACTER}") or None for name, value in given.items()}
    where = t.invocation.c.invocation_key == write.invocation_key
    tx.connection.execute(update(t.invocation).where(where).values(**values, updated_at=tx.now))


# ---- tasks -------------------------------------------------------------------------------------------------


def read_task(connection: Connection, delivery_key: str, task_id: str) -> jr.TaskRecord | None:
    """What a task said of itself when it last acted."""
    query = select(t.task).where(t.task.c.delivery_key == delivery_key, t.task.c.task_id == task_id)
    row = connection.execute(query).one_or_none()
    return None if row is None else jr.TaskRecord(*row)


def put_task(tx: Guarded, write: jr.PutTask) -> None:
    """Remembers what the running task says of itself; the newest word replaces the one before."""
    requester = write.requester
    if write.delivery_key != requester.delivery_key:
        raise refused("A task is remembered under the key of its own delivery.", task_id=requester.task_id)
    values = {
        "generation": write.generation,
        "try_number": requester.try_number,
        "max_tries": requester.max_tries,
        "ti_id": requester.ti_id,
    }
    lock_name(tx.connection, write.delivery_key)  # a task is not of one target either
    mine = (t.task.c.delivery_key == write.delivery_key, t.task.c.task_id == requester.task_id)
    if tx.connection.execute(update(t.task).where(*mine).values(**values)).rowcount:
        return
    key = {"delivery_key": write.delivery_key, "task_id": requester.task_id}
    tx.connection.execute(insert(t.task).values(**key, **values))


# ---- evidence ----------------------------------------------------------------------------------------------


def read_evidence(connection: Connection, evidence_sha256: str) -> bytes | None:
    """A document, its hash and its shape checked. Raises JournalError when it is not what was stored, or of a
    newer version."""
    query = select(t.evidence.c.body).where(t.evidence.c.evidence_sha256 == evidence_sha256)
    body: bytes | None = connection.execute(query).scalar_one_or_none()
    if body is None:
        return None
    if identity.sha256_hex(body) != evidence_sha256:
        raise _damaged(evidence_sha256, "it does not have its hash any more")
    misfit = _evidence_misfit(body, evidence_sha256)
    if misfit is not None:
        raise _damaged(evidence_sha256, str(misfit), path=misfit.path)
    return body


def _damaged(evidence_sha256: str, detail: str, **more: str) -> JournalError:
    text = f"The evidence document {evidence_sha256} is damaged: {detail}."
    return JournalError("dpone.journal.evidence_damaged", text, evidence_sha256=evidence_sha256, **more)


def _evidence_misfit(body: bytes, evidence_sha256: str) -> Misfit | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return Misfit("", "JSON")
    said = str(document.get("schema")) if isinstance(document, dict) else ""
    version = _EVIDENCE_VERSION.fullmatch(said)
    if version is not None and int(version[1]) > EVIDENCE_VERSION:
        text = f"The evidence {evidence_sha256} is a {said}; this version knows v{EVIDENCE_VERSION}."
        raise JournalError("dpone.journal.newer_event", text, evidence_sha256=evidence_sha256)
    return find_misfit(EVIDENCE_KIND, document)


def put_evidence(tx: Guarded, write: jr.PutEvidence) -> None:
    """Stores a document under its hash; the same one again is no change. Raises JournalError for what its
    schema refuses."""
    own_invocation(tx, write.invocation_key)
    if identity.sha256_hex(write.body) != write.evidence_sha256:
        raise refused("The evidence document does not have the hash that it is to be stored under.")
    misfit = _evidence_misfit(write.body, write.evidence_sha256)
    if misfit is not None:
        raise refused(f"The evidence document is not stored: {misfit}.", path=misfit.path)
    if read_evidence(tx.connection, write.evidence_sha256) is None:
        values = {
            "evidence_sha256": write.evidence_sha256,
            "invocation_key": write.invocation_key,
            "operation_id": write.operation_id,
            "body": write.body,
            "created_at": tx.now,
        }
        insert_missing(tx.connection, t.evidence, **values)


# ---- checkpoints -------------------------------------------------------------------------------------------

CHECKPOINT_COLUMNS = tuple(t.checkpoint.c[name] for name in jr.Checkpoint.__dataclass_fields__)


def read_checkpoint(
    connection: Connection, target_key: str, route_scope: str, window_key: str
) -> jr.Checkpoint | None:
    """The row of a window."""
    query = select(*CHECKPOINT_COLUMNS).where(
        t.checkpoint.c.target_key == target_key,
        t.checkpoint.c.route_scope == route_scope,
        t.checkpoint.c.window_key == window_key,
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else jr.Checkpoint(*row)


def read_delivered(
    connection: Connection, target_key: str, asked: Window, route_scope: str | None
) -> list[Window]:
    """Windows with a checkpoint that overlap ``asked``, in order; for the whole table that one alone.

    :param route_scope: of one route only; None: of every route that has owned the target.
    """
    key = t.checkpoint.c.window_key
    query = select(key).where(t.checkpoint.c.target_key == target_key)
    if route_scope is not None:
        query = query.where(t.checkpoint.c.route_scope == route_scope)
    if asked.start is None or asked.end is None:
        query = query.where(key == FULL_KEY)
    else:
        # START and END are texts of one length that sort as their instants do; 'full' sorts behind them.
        start, end = instant_text(asked.start), instant_text(asked.end)
        query = query.where(
            key != FULL_KEY,
            func.substr(key, 1, len(end)) < end,
            func.substr(key, len(end) + 2) > start,
        )
    return [Window.of_key(found) for found in connection.execute(query.distinct().order_by(key)).scalars()]


def put_checkpoint(tx: Guarded, write: jr.PutCheckpoint) -> None:
    """Compare-and-set on the revision; the stored one is the expected one + 1. The same again is no change.

    Raises JournalError when the row is at another revision.
    """
    new, expected = write.checkpoint, write.expected_revision
    if new.target_key != tx.lease.target_key:
        raise refused("A checkpoint is written under the lease of its target.", target_key=new.target_key)
    names = tuple(jr.Checkpoint.__dataclass_fields__)
    values = {name: getattr(new, name) for name in names} | {"revision": expected + 1}
    stored = read_checkpoint(tx.connection, new.target_key, new.route_scope, new.window_key)
    if stored == jr.Checkpoint(**values):
        return
    found = 0 if stored is None else stored.revision
    if found != expected:
        text = f"The checkpoint of window {new.window_key} is at revision {found}, not at {expected}."
        raise JournalError("dpone.journal.checkpoint_conflict", text, revision=found, expected=expected)
    values["updated_at"] = tx.now
    if stored is None:
        tx.connection.execute(insert(t.checkpoint).values(**values))
        return
    key = {name: t.checkpoint.c[name] == values[name] for name in ("target_key", "route_scope", "window_key")}
    tx.connection.execute(update(t.checkpoint).where(*key.values()).values(**values))
