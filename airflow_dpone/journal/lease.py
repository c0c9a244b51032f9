"""The lease: which process may write for a target, and the fence that makes late writes of others harmless.

A fence is given once, grows for ever and stays when the lease is given back. Expiry, and the look at the
owner's process, only decide how long somebody waits; that nothing of an old owner lands is decided by
:func:`guard`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.errors import Fenced, JournalError, LeaseHeld
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.database import Clock, insert_missing
from airflow_dpone.journal.owner_process import OwnerProcess


@dataclass(frozen=True)
class Guarded:
    """A write transaction whose lease was checked and renewed as its first statement.

    :param now: the database's clock at that moment.
    """

    connection: Connection
    lease: jr.Lease
    now: str


def guard(connection: Connection, lease: jr.Lease) -> Guarded:
    """Renews the lease where it is still ours. Raises Fenced when it is not: nothing of the caller lands.

    It must be the first statement of the transaction: the row stays locked until the end, so that a takeover
    comes either before all of it or after all of it.
    """
    values = {"touched_at": Clock(0.0), "expires_at": Clock(lease.ttl_sec)}
    if connection.execute(_mine(lease).values(**values)).rowcount != 1:
        raise fenced(connection, lease)
    return Guarded(connection, lease, _touched_at(connection, lease.target_key))


def read_fence(connection: Connection, target_key: str) -> int:
    """The greatest fence that was ever given for the target; 0 when none was."""
    return connection.execute(select(t.lease.c.fence).where(t.lease.c.target_key == target_key)).scalar() or 0


def lock_row(connection: Connection, target_key: str) -> Any:
    """The lease row of a target, locked, with the database's ``now``; made with fence 0 if missing.

    It is read after the lock, by a statement of its own: the one that waits for the lock keeps the clock and
    the row from before the wait.
    """
    mine = t.lease.c.target_key == target_key
    insert_missing(connection, t.lease, target_key=target_key, fence=0)
    connection.execute(select(t.lease.c.fence).where(mine).with_for_update())
    return connection.execute(select(t.lease, Clock(0.0).label("now")).where(mine)).one()


def take(
    connection: Connection,
    row: Any,
    requester: r.Requester,
    here: OwnerProcess,
    *,
    ttl_sec: float,
    gate_fence: int,
) -> jr.Lease:
    """Takes the lease whose row :func:`lock_row` gave. Raises LeaseHeld while its owner may still work.

    :param gate_fence: the target's own fence; the new one is greater than both, also when the journal was
    restored.
    """
    refuse_live_owner(row, requester, here)
    owner = secrets.token_hex(16)
    fence = max(row.fence, gate_fence) + 1
    values = {
        "owner": owner,
        "owner_host": here.host,
        "owner_pid": here.pid,
        "owner_started": here.started,
        "delivery_key": requester.delivery_key,
        "task_id": requester.task_id,
        "try_number": requester.try_number,
        "ti_id": requester.ti_id,
        "fence": fence,
        "touched_at": Clock(0.0),
        "expires_at": Clock(ttl_sec),
    }
    connection.execute(update(t.lease).where(t.lease.c.target_key == row.target_key).values(**values))
    return jr.Lease(row.target_key, owner, fence, ttl_sec, requester)


def refuse_live_owner(row: Any, requester: r.Requester, here: OwnerProcess) -> None:
    """Raises LeaseHeld unless the lease is free, expired, of an earlier try, or of a process that is gone."""
    if row.owner is None or row.expires_at <= row.now:
        return
    is_same_task = (row.delivery_key, row.task_id) == (requester.delivery_key, requester.task_id)
    if is_same_task and row.try_number < requester.try_number:
        return
    if OwnerProcess(row.owner_host, row.owner_pid, row.owner_started).is_gone(here):
        return
    left = (datetime.fromisoformat(row.expires_at) - datetime.fromisoformat(row.now)).total_seconds()
    host = row.owner_host.partition(" ")[0]
    text = (
        f"Process {row.owner_pid} on host {host} (task {row.task_id}, try {row.try_number}) works on this "
        f"target; its lease lasts {left:.0f} s more unless it renews it."
    )
    raise LeaseHeld(
        "dpone.lease.held",
        text,
        target_key=row.target_key,
        owner={
            "host": host,
            "pid": row.owner_pid,
            "task_id": row.task_id,
            "try_number": row.try_number,
            "ti_id": row.ti_id,
        },
        expires_in_sec=round(left, 3),
    )


def raise_fence(connection: Connection, lease: jr.Lease, gate_fence: int) -> jr.Lease:
    """A greater fence for the same owner; the old one guards nothing any more. Raises Fenced."""
    guard(connection, lease)
    fence = max(lease.fence, gate_fence) + 1
    connection.execute(_mine(lease).values(fence=fence))
    return replace(lease, fence=fence)


def give_back(connection: Connection, lease: jr.Lease) -> None:
    """Frees the lease and keeps its fence. No change when it is not ours any more."""
    connection.execute(_mine(lease).values(owner=None, touched_at=Clock(0.0)))


def check_terms(ttl_sec: float, gate_fence: int) -> None:
    """Raises JournalError for terms that would make a lease without meaning."""
    if not 0 < ttl_sec < 86_400 or not 0 <= gate_fence < 2**62:
        text = f"A lease of {ttl_sec} s above the gate's fence {gate_fence} is not possible."
        raise JournalError("dpone.journal.write_refused", text)


def fenced(connection: Connection, lease: jr.Lease) -> Fenced:
    """The error that says whose write did not land and who is there now."""
    row = connection.execute(select(t.lease).where(t.lease.c.target_key == lease.target_key)).one_or_none()
    now = "no lease is stored" if row is None else f"the journal has fence {row.fence}"
    if row is not None and row.owner is None:
        now += " and no owner"
    elif row is not None and row.owner != lease.owner:
        now += f", held by process {row.owner_pid} (task {row.task_id}, try {row.try_number})"
    text = f"The write under fence {lease.fence} did not land: {now}."
    return Fenced(
        "dpone.journal.fenced",
        text,
        target_key=lease.target_key,
        fence=lease.fence,
        journal_fence=0 if row is None else row.fence,
    )


def _mine(lease: jr.Lease) -> Any:
    return update(t.lease).where(
        t.lease.c.target_key == lease.target_key,
        t.lease.c.fence == lease.fence,
        t.lease.c.owner == lease.owner,
    )


def _touched_at(connection: Connection, target_key: str) -> str:
    query = select(t.lease.c.touched_at).where(t.lease.c.target_key == target_key)
    text: str = connection.execute(query).scalar_one()
    return text
