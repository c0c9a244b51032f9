"""What was published into each target, as the journal recorded it: for the audit, in pages.

Each event is proved by its own hash; that nothing is missing between events is proved where a delivery is
resumed, not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.journal import chain, event_log
from airflow_dpone.journal import tables as t

PAGE = 200
"""Deliveries that are read at once: a plan may have some ten thousand bytes."""

S = DeliveryState


def read_targets(connection: Connection) -> list[tr.TargetRef]:
    """Every target that the journal knows, by name. Object id and columns are those of one of its plans."""
    any_of_it = func.min(t.invocation.c.invocation_key).label("invocation_key")
    query = select(any_of_it).group_by(t.invocation.c.target_key)
    keys = connection.execute(query).scalars().all()
    plans = [_newest_payloads(connection, [key])[key][S.PLANNED] for key in keys]
    found = [tr.TargetRef.from_json(plan["target"]) for plan in plans]
    return sorted(found, key=lambda target: (target.schema, target.table, target.target_key))


def read_publications(
    connection: Connection, target_key: str, after: str
) -> tuple[list[jr.Publication], str | None]:
    """One page of a target's publications, and where the next one begins; None: there is none.

    :param after: '' for the first page. Raises JournalError for an event that is not as it was written.
    """
    own, same = t.invocation, t.invocation.alias()
    newest = select(func.max(same.c.generation)).where(same.c.delivery_key == own.c.delivery_key)
    query = (
        select(own, newest.scalar_subquery().label("newest_generation"))
        .where(own.c.target_key == target_key, own.c.invocation_key > after)
        .order_by(own.c.invocation_key)
        .limit(PAGE)
    )
    rows = connection.execute(query).all()
    payloads = _newest_payloads(connection, [row.invocation_key for row in rows])
    page = [
        _publication(row, payloads[row.invocation_key])
        for row in rows
        if S.PUBLISHED in payloads[row.invocation_key]
    ]
    return page, rows[-1].invocation_key if len(rows) == PAGE else None


def _newest_payloads(
    connection: Connection, invocation_keys: Sequence[str]
) -> Mapping[str, Mapping[str, Any]]:
    """By invocation: the newest PLANNED and the newest PUBLISHED."""
    streams = {chain.delivery_stream(key): key for key in invocation_keys}
    query = (
        select(*event_log.COLUMNS)
        .where(t.event.c.stream.in_(streams), t.event.c.event.in_([S.PLANNED.value, S.PUBLISHED.value]))
        .order_by(t.event.c.stream, t.event.c.sequence)
    )
    found: dict[str, dict[str, Any]] = {key: {} for key in invocation_keys}
    for row in connection.execute(query):
        document = chain.open_delivery_event(chain.StoredEvent(*row))
        found[streams[row.stream]][row.event] = document["payload"]
    return found


def _publication(row: Any, payloads: Mapping[str, Any]) -> jr.Publication:
    plan, receipt = payloads[S.PLANNED], payloads[S.PUBLISHED]["receipt"]
    target = tr.TargetRef.from_json(plan["target"])
    return jr.Publication(
        delivery_key=row.delivery_key,
        generation=row.generation,
        newest_generation=row.newest_generation,
        invocation_key=row.invocation_key,
        dag_id=row.dag_id,
        run_id=row.run_id,
        delivery_task_id=row.delivery_task_id,
        map_index=row.map_index,
        state=DeliveryState(row.state),
        route_scope=row.route_scope,
        window_key=row.window_key,
        window_column=plan["target_window_column"],
        object_id=target.object_id,
        created=target.created,
        fence=int(receipt["fence"]),
        operation_id=receipt["operation_id"],
        receipt_sha256=receipt["receipt_sha256"],
        deleted_rows=receipt["deleted_rows"],
        published_at=receipt["published_at"],
    )
