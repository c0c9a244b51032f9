"""Custody: which invocation owns a target. It survives every crash; only the rules end it, never time.

The row changes only in a transaction that has already locked the target's lease row, so it needs no lock of
its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.states import RULES, DeliveryState
from airflow_dpone.errors import CustodyHeld
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.database import Clock
from airflow_dpone.journal.lease import Guarded
from airflow_dpone.journal.projection import own_invocation, refused


def read_custody(connection: Connection, target_key: str) -> jr.Custody:
    """The row of a target; epoch 0 and clear when nobody ever owned it."""
    row = connection.execute(select(t.custody).where(t.custody.c.target_key == target_key)).one_or_none()
    if row is None:
        return jr.Custody(target_key, 0, False, None, None, None, None)
    return jr.Custody(
        target_key=target_key,
        epoch=row.custody_epoch,
        held=row.state == "held",
        holder_key=row.holder_key,
        holder_fence=row.holder_fence,
        release_reason=row.release_reason,
        since=row.since,
    )


def refuse_other_holder(connection: Connection, target_key: str, delivery_key: str, now: str) -> None:
    """Raises CustodyHeld when an invocation of another requester owns the target."""
    custody = read_custody(connection, target_key)
    if custody.held and _holder(connection, custody).delivery_key != delivery_key:
        raise held_by(connection, custody, now)


def hold(tx: Guarded, write: jr.HoldCustody) -> None:
    """clear -> held, epoch + 1. Held by the same invocation already: no change. By another: CustodyHeld."""
    own_invocation(tx, write.invocation_key)
    custody = read_custody(tx.connection, tx.lease.target_key)
    if custody.held and custody.holder_key == write.invocation_key:
        return
    if custody.held:
        raise held_by(tx.connection, custody, tx.now)
    values: dict[str, Any] = {
        "custody_epoch": custody.epoch + 1,
        "state": "held",
        "holder_key": write.invocation_key,
        "holder_fence": tx.lease.fence,
        "release_reason": None,
        "since": tx.now,
    }
    if custody.epoch == 0:
        tx.connection.execute(insert(t.custody).values(target_key=tx.lease.target_key, **values))
    else:
        _update(tx, values)


def release(tx: Guarded, write: jr.ReleaseCustody) -> None:
    """held -> clear by the holder; the epoch stays. Again after it has landed: no change."""
    state = DeliveryState(own_invocation(tx, write.invocation_key).state)
    custody = read_custody(tx.connection, tx.lease.target_key)
    if custody.holder_key != write.invocation_key:
        is_done = not custody.held and custody.release_reason == write.reason
        if is_done and RULES[state].custody == "clear":
            return
        raise refused(
            f"Custody of {tx.lease.target_key} is not held by {write.invocation_key}, which releases it.",
            holder=custody.holder_key,
        )
    _update(
        tx,
        {
            "state": "clear",
            "holder_key": None,
            "holder_fence": None,
            "release_reason": write.reason.value,
            "since": tx.now,
        },
    )


def check_agrees(tx: Guarded, invocation_key: str) -> None:
    """At the end of a transaction: custody is held exactly in the states whose rule says so.

    Raises JournalError: a delivery that has ended would block its target for ever, one that has begun without
    custody would share it.
    """
    state = DeliveryState(own_invocation(tx, invocation_key).state)
    holds = read_custody(tx.connection, tx.lease.target_key).holder_key == invocation_key
    if holds != (RULES[state].custody == "held"):
        verb = "still holds" if holds else "does not hold"
        text = f"The invocation {invocation_key} would be {state} and {verb} custody: write both together."
        raise refused(text, invocation_key=invocation_key, state=state.value)


def read_holder(connection: Connection, target_key: str) -> dict[str, Any]:
    """Whom a target belongs to now, for people and for events: ids, state, since when. Empty: nobody."""
    custody = read_custody(connection, target_key)
    if not custody.held:
        return {}
    now = connection.execute(select(Clock(0.0))).scalar_one()
    holder = _holder(connection, custody)
    return {
        **_ids(holder),
        "state": holder.state,
        "since": custody.since,
        "age_sec": round(_age_sec(custody, now), 3),
    }


def read_unfinished(connection: Connection) -> list[dict[str, Any]]:
    """Every delivery that owns a target now, the longest first: as :func:`read_holder`, with the target's key
    and what was last said of it."""
    held = select(t.custody.c.target_key).where(t.custody.c.state == "held").order_by(t.custody.c.since)
    found = []
    for target_key in connection.execute(held).scalars().all():
        custody = read_custody(connection, target_key)
        holder = _holder(connection, custody)
        last = {name: getattr(holder, name) for name in ("last_error_code", "reason", "next_action")}
        found.append(
            {
                "target_key": target_key,
                **read_holder(connection, target_key),
                "window": holder.window_key,
                **last,
            }
        )
    return found


def _ids(holder: Any) -> dict[str, Any]:
    return {
        "dag_id": holder.dag_id,
        "run_id": holder.run_id,
        "task_id": holder.delivery_task_id,
        "map_index": holder.map_index,
        "invocation_key": holder.invocation_key,
        "generation": holder.generation,
    }


def _age_sec(custody: jr.Custody, now: str) -> float:
    return (datetime.fromisoformat(now) - datetime.fromisoformat(custody.since or now)).total_seconds()


def held_by(connection: Connection, custody: jr.Custody, now: str) -> CustodyHeld:
    """The error that names the holder, its state and since when it owns the target."""
    holder = _holder(connection, custody)
    age = _age_sec(custody, now)
    index = "" if holder.map_index < 0 else f"[{holder.map_index}]"
    text = (
        f"The target is owned by the unfinished delivery of DAG {holder.dag_id}, run {holder.run_id}, "
        f"task {holder.delivery_task_id}{index} (generation {holder.generation}, {holder.state}, "
        f"delivery {holder.invocation_key}) for {age:.0f} s."
    )
    incident = (
        "A person must settle that incident first: read its reason, then `python -m airflow_dpone recovery "
        f"retire --delivery {holder.invocation_key}` gives it up (docs/operations.md)."
    )
    return CustodyHeld(
        "dpone.custody.held",
        text,
        next_action=incident if holder.state == DeliveryState.INCIDENT else None,
        target_key=custody.target_key,
        holder=_ids(holder),
        age_sec=round(age, 3),
        state=holder.state,
    )


def _holder(connection: Connection, custody: jr.Custody) -> Any:
    query = select(t.invocation).where(t.invocation.c.invocation_key == custody.holder_key)
    return connection.execute(query).one()


def _update(tx: Guarded, values: dict[str, Any]) -> None:
    where = t.custody.c.target_key == tx.lease.target_key
    tx.connection.execute(update(t.custody).where(where).values(**values))
