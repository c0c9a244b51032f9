"""The one transaction of the SQLite target: gate, prepared proof, DELETE, INSERT, count, receipt, gate."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.window import instant_text
from airflow_dpone.errors import ConfigurationError
from tests.fakes import target_storage as storage

_DRAFT = tuple(tr.ReceiptDraft.__dataclass_fields__)
_SERVER = ("receipt_sha256", "deleted_rows", "published_at", "recovery_fork_id", "durability")


_NUMBERS = {
    sqlite3.SQLITE_CONSTRAINT_NOTNULL: 515,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE: 2627,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY: 2627,
}
"""The numbers that SQL Server gives the same faults; CHECK and foreign keys are 547."""


class _Refused(Exception):
    """The transaction must roll back for this reason."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class _Already(Exception):
    """The operation has its receipt already."""


def publish_in(
    connection: sqlite3.Connection, request: tr.PublishRequest, *, half: bool = False
) -> tr.PublishOutcome:
    """Publishes in one transaction of this connection.

    :param half: somebody commits in the middle, as a trigger would: after the DELETE, with
        the mark in flight.
    """
    try:
        _window(request)
    except ConfigurationError as error:
        return tr.PublishOutcome("rolled_back", error.code, None, error.message)
    try:
        connection.execute("BEGIN IMMEDIATE")
        _enter_gate(connection, request)
        _prove_prepared(connection, request)
        deleted = _delete(connection, request)
        if half:
            connection.execute("COMMIT")
            return tr.PublishOutcome("ended_early", None)
        _insert(connection, request)
        _write_receipt(connection, request.draft, deleted)
        _leave_gate(connection, request.draft)
        connection.execute("COMMIT")
    except _Already:
        connection.rollback()
        return tr.PublishOutcome("already")
    except _Refused as refused:
        connection.rollback()
        return tr.PublishOutcome("rolled_back", refused.code)
    except sqlite3.IntegrityError as error:
        connection.rollback()
        number = _NUMBERS.get(error.sqlite_errorcode, 547)
        return tr.PublishOutcome("rolled_back", "dpone.publish.constraint", number)
    except BaseException:
        connection.rollback()
        raise
    return tr.PublishOutcome("committed")


def _enter_gate(connection: sqlite3.Connection, request: tr.PublishRequest) -> None:
    target, draft = request.target, request.draft
    entered = connection.execute(
        'UPDATE "dpone.target_gate" SET fence = :fence, in_flight_operation_id = :operation '
        "WHERE target_key = :key AND target_object_id = :object AND target_created = :created "
        "AND journal_id = :journal AND route_scope = :route AND fence < :fence "
        "AND in_flight_operation_id IS NULL",
        {
            "key": target.target_key, "object": target.object_id, "created": target.created,
            "journal": draft.journal_id, "route": draft.route_scope, "fence": draft.fence,
            "operation": draft.operation_id,
        },
    )  # fmt: skip
    row = connection.execute(
        'SELECT fence, in_flight_operation_id, last_operation_id FROM "dpone.target_gate" '
        "WHERE target_key = ?",
        (target.target_key,),
    ).fetchone()
    if entered.rowcount != 1:
        raise _gate_refusal(row, draft)
    receipt = make_receipt(connection, draft.operation_id)
    if receipt is not None:
        if receipt.draft.intent_sha256 != draft.intent_sha256 or not is_same_target(connection, target):
            raise _Refused("dpone.publish.receipt_differs")
        raise _Already
    if row[2] == draft.operation_id:
        raise _Refused("dpone.publish.receipt_removed")
    if connection.execute(
        'SELECT 1 FROM "dpone.delivery_receipt" WHERE delivery_key = ? AND generation = ?',
        (draft.delivery_key, draft.generation),
    ).fetchone():
        raise _Refused("dpone.publish.receipt_differs")


def _gate_refusal(row: tuple[int, str | None, str | None] | None, draft: tr.ReceiptDraft) -> _Refused:
    if row is None:
        return _Refused("dpone.publish.gate_missing")
    if row[0] >= draft.fence:
        return _Refused("dpone.publish.fenced")
    if row[1] is not None:
        return _Refused("dpone.publish.in_flight_committed")
    return _Refused("dpone.publish.gate_governed_by_other")


def _prove_prepared(connection: sqlite3.Connection, request: tr.PublishRequest) -> None:
    stage = request.prepared
    found = storage.incarnation(connection, storage.STAGE_SCHEMA, stage.name)
    mark = connection.execute(
        'SELECT owner, object_id, state FROM "dpone.stage_mark" WHERE name = ?', (stage.name,)
    ).fetchone()
    if found is None or found[0] != stage.object_id or mark != (stage.owner, stage.object_id, "sealed"):
        raise _Refused("dpone.publish.prepared_identity")
    path = storage.table_name(storage.STAGE_SCHEMA, stage.name)
    if not storage.observe(connection, path, request.layout, request.expected.rows).proves(request.expected):
        raise _Refused("dpone.publish.digest")
    where, bounds = _window(request)
    inside = connection.execute(f"SELECT count(*) FROM {path}{where}", bounds).fetchone()[0]
    if inside != request.expected.rows:
        raise _Refused("dpone.publish.row_outside_window")


def _window(request: tr.PublishRequest) -> tuple[str, list[str]]:
    types = {c.name: c.pair.sql_type for c in request.layout.columns}
    return storage.window_clause(
        request.window_column, types.get(request.window_column or ""), request.window
    )


def is_same_target(connection: sqlite3.Connection, target: tr.TargetRef) -> bool:
    columns = storage.columns_of(connection, target.schema, target.table)
    fingerprint = tr.TargetTable(tuple(tr.TargetColumn(*column) for column in columns)).fingerprint
    found = storage.incarnation(connection, target.schema, target.table)
    return found == (target.object_id, target.created) and fingerprint == target.fingerprint


def _delete(connection: sqlite3.Connection, request: tr.PublishRequest) -> int:
    target = request.target
    where, bounds = _window(request)
    if not is_same_target(connection, target):
        raise _Refused("dpone.publish.target_changed")
    return connection.execute(
        f"DELETE FROM {storage.table_name(target.schema, target.table)}{where}", bounds
    ).rowcount


def _insert(connection: sqlite3.Connection, request: tr.PublishRequest) -> None:
    target = storage.table_name(request.target.schema, request.target.table)
    prepared = storage.table_name(storage.STAGE_SCHEMA, request.prepared.name)
    names = ", ".join(storage.quoted(column.name) for column in request.layout.columns)
    inserted = connection.execute(f"INSERT INTO {target} ({names}) SELECT {names} FROM {prepared}").rowcount
    where, bounds = _window(request)
    there = connection.execute(f"SELECT count(*) FROM {target}{where}", bounds).fetchone()[0]
    if (inserted, there) != (request.expected.rows, request.expected.rows):
        raise _Refused("dpone.publish.after_image")
    if request.after_image_digest:
        seen = storage.observe(connection, target, request.layout, request.expected.rows, where, bounds)
        if not seen.proves(request.expected):
            raise _Refused("dpone.publish.after_image")


def _write_receipt(connection: sqlite3.Connection, draft: tr.ReceiptDraft, deleted: int) -> None:
    values = {name: getattr(draft, name) for name in _DRAFT}
    values |= {
        "receipt_sha256": draft.sha256,
        "deleted_rows": deleted,
        "published_at": instant_text(datetime.now(UTC)),
        "recovery_fork_id": None,
        "durability": "full",
    }
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(f'INSERT INTO "dpone.delivery_receipt" ({", ".join(values)}) VALUES ({marks})', values)


def _leave_gate(connection: sqlite3.Connection, draft: tr.ReceiptDraft) -> None:
    left = connection.execute(
        'UPDATE "dpone.target_gate" SET in_flight_operation_id = NULL, last_operation_id = ?, '
        "last_receipt_sha256 = ? WHERE target_key = ? AND fence = ? AND in_flight_operation_id = ?",
        (draft.operation_id, draft.sha256, draft.target_key, draft.fence, draft.operation_id),
    )
    if left.rowcount != 1:
        raise _Refused("dpone.publish.fenced")


def make_receipt(connection: sqlite3.Connection, operation_id: str) -> tr.Receipt | None:
    """The stored receipt of an operation."""
    row = connection.execute(
        f'SELECT {", ".join((*_DRAFT, *_SERVER))} FROM "dpone.delivery_receipt" WHERE operation_id = ?',
        (operation_id,),
    ).fetchone()
    if row is None:
        return None
    draft = tr.ReceiptDraft(**dict(zip(_DRAFT, row[: len(_DRAFT)], strict=True)))
    return tr.Receipt(draft, *row[len(_DRAFT) :])
