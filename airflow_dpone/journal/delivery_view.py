"""One generation as a reader sees it: everything that the journal says of it at one moment.

For pages and commands that show. Nothing here decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.journal import custody, event_log, projection
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.database import Clock


@dataclass(frozen=True)
class Worker:
    """The process that holds the target's lease.

    :param works: whether the lease had not expired yet.
    """

    host: str
    pid: int | None
    delivery_key: str
    task_id: str
    try_number: int | None
    fence: int
    expires_at: str
    works: bool


@dataclass(frozen=True)
class Generation:
    """One line of the list of generations."""

    generation: int
    invocation_key: str
    state: str
    updated_at: str


@dataclass(frozen=True)
class DeliveryView:
    """A generation with everything around it.

    :param events: the verified streams, as ``events`` of the journal gives them.
    :param generations: of the same requester, newest first.
    :param checkpoint: of this window, whoever delivered it last.
    :param now: the database's clock.
    """

    journal_id: str
    invocation: jr.Invocation
    updated_at: str
    events: tuple[jr.Event, ...]
    generations: tuple[Generation, ...]
    custody: jr.Custody
    worker: Worker | None
    tasks: tuple[jr.TaskRecord, ...]
    checkpoint: jr.Checkpoint | None
    now: str


def read_delivery(connection: Connection, journal_id: str, invocation_key: str) -> DeliveryView | None:
    """A generation; None for an unknown one. Raises JournalError as reading its events does."""
    found = projection.read_invocation(connection, invocation_key)
    if found is None:
        return None
    own = t.invocation.c.invocation_key == invocation_key
    now: str = connection.execute(select(Clock(0.0))).scalar_one()
    return DeliveryView(
        journal_id=journal_id,
        invocation=found,
        updated_at=connection.execute(select(t.invocation.c.updated_at).where(own)).scalar_one(),
        events=event_log.read_events(connection, invocation_key),
        generations=_generations(connection, found.delivery_key),
        custody=custody.read_custody(connection, found.target_key),
        worker=_worker(connection, found.target_key, now),
        tasks=_tasks(connection, found.delivery_key),
        checkpoint=projection.read_checkpoint(
            connection, found.target_key, found.route_scope, found.window_key
        ),
        now=now,
    )


def _generations(connection: Connection, delivery_key: str) -> tuple[Generation, ...]:
    columns = (t.invocation.c[name] for name in Generation.__dataclass_fields__)
    query = select(*columns).where(t.invocation.c.delivery_key == delivery_key)
    return tuple(
        Generation(*row) for row in connection.execute(query.order_by(t.invocation.c.generation.desc()))
    )


def _tasks(connection: Connection, delivery_key: str) -> tuple[jr.TaskRecord, ...]:
    query = select(t.task).where(t.task.c.delivery_key == delivery_key).order_by(t.task.c.task_id)
    return tuple(jr.TaskRecord(*row) for row in connection.execute(query))


def _worker(connection: Connection, target_key: str, now: str) -> Worker | None:
    row = connection.execute(select(t.lease).where(t.lease.c.target_key == target_key)).one_or_none()
    if row is None or row.owner is None:
        return None
    return Worker(
        host=row.owner_host or "",
        pid=row.owner_pid,
        delivery_key=row.delivery_key or "",
        task_id=row.task_id or "",
        try_number=row.try_number,
        fence=row.fence,
        expires_at=row.expires_at,
        works=row.expires_at > now,
    )
