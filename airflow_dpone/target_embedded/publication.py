"""The one transaction that makes a window visible, step for step in the order of the SQL Server batch.

Gate, receipt already there, prepared table identified and proved again, no row outside the window,
incarnation and columns, DELETE, INSERT, count, receipt, gate, COMMIT. Each step either goes on or ends
everything with a rollback that is confirmed. Whatever raises out of here leaves the outcome unknown.

The SQL Server batch compares the incarnation after DELETE, whose lock blocks DDL; a DuckDB transaction sees
one snapshot of the catalog, so it is compared before, and a table that is gone gets the same answer as one
that changed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import ConfigurationError, Incident, OutcomeUnknown
from airflow_dpone.target_embedded import catalog, gate, proof, stages
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.engine import duckdb
from airflow_dpone.target_embedded.error_map import CHECK_NUMBER, NOT_NULL_NUMBER, UNIQUE_NUMBER
from airflow_dpone.target_embedded.session import Session
from airflow_dpone.target_embedded.window_bounds import WindowBounds


class _RolledBack(Exception):
    """A step said no."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(code)


def publish(session: Session, request: tr.PublishRequest, now: Callable[[], str]) -> tr.PublishOutcome:
    """Runs the transaction. :param now: the clock of ``published_at``.

    :raises OutcomeUnknown: COMMIT was sent and did not answer, or a rollback could not be confirmed.
    """
    try:
        bounds = WindowBounds.of_request(request)
    except ConfigurationError as error:
        return tr.PublishOutcome("rolled_back", error.code, None, error.message)
    session.execute(sql.BEGIN)
    try:
        kind = _steps(session, request, bounds, now)
    except (_RolledBack, duckdb.Error) as reason:
        _roll_back(session)
        return _rolled_back(session, request, bounds, reason)
    except BaseException:
        with suppress(duckdb.Error):
            session.rollback()
        raise
    if kind == "already":
        _roll_back(session)
        return tr.PublishOutcome(kind)
    try:
        session.execute(sql.COMMIT)
    except duckdb.Error as error:
        raise _unknown(f"COMMIT ended in {type(error).__name__}") from None
    return tr.PublishOutcome("committed")


def _steps(session: Session, request: tr.PublishRequest, bounds: WindowBounds, now: Callable[[], str]) -> str:
    claim = gate.GateClaim(
        request.target, request.draft.journal_id, request.draft.route_scope, request.draft.fence
    )
    refused = gate.enter(session, claim, request.draft.operation_id)
    if refused:
        raise _RolledBack(refused, "the gate did not let this send in")
    if _is_published(session, request):
        return "already"
    _prove_prepared(session, request, bounds)
    deleted = _replace(session, request, bounds)
    gate.insert_receipt(session, request.draft, deleted_rows=deleted, now=now())
    if not gate.finish(session, claim, request.draft):
        raise _RolledBack("dpone.publish.failed", "the gate changed inside the transaction")
    return "committed"


def _is_published(session: Session, request: tr.PublishRequest) -> bool:
    draft = request.draft
    receipt = gate.read_receipt(session, draft.operation_id)
    if receipt is not None:
        if not gate.is_of_this_intent(session, receipt, request):
            text = "the operation has a receipt of another intent, or of a table that is gone"
            raise _RolledBack("dpone.publish.receipt_differs", text)
        return True
    row = gate.read_gate(session, request.target.target_key)
    if row is not None and row.last_operation_id == draft.operation_id:
        raise _RolledBack(
            "dpone.publish.receipt_removed", "the gate names the operation, its receipt is gone"
        )
    key = {"delivery_key": bytes.fromhex(draft.delivery_key), "generation": draft.generation}
    if session.number(sql.RECEIPT_OF_GENERATION, key):
        text = f"generation {draft.generation} of this delivery has a receipt of another operation"
        raise _RolledBack("dpone.publish.receipt_differs", text)
    return False


def _prove_prepared(session: Session, request: tr.PublishRequest, bounds: WindowBounds) -> None:
    prepared, path = request.prepared, sql.stage_path(request.prepared.name)
    try:
        mark = stages.require(session, prepared)
        stages.require_columns(session, prepared, request.layout)
    except Incident as error:
        raise _RolledBack("dpone.publish.prepared_identity", error.message) from None
    if mark.state != stages.SEALED:
        raise _RolledBack("dpone.publish.prepared_identity", "the prepared table is not sealed")
    seen = proof.observe(session, path, request.layout, request.expected.rows)
    if not seen.proves(request.expected):
        text = (
            f"the prepared table holds {seen.rows} rows that are not the {request.expected.rows} proved ones"
        )
        raise _RolledBack("dpone.publish.digest", text)
    if bounds.column is None:
        return
    outside = session.number(sql.count_outside(path, bounds.column), bounds.parameters)
    if outside:
        raise _RolledBack(
            "dpone.publish.row_outside_window", f"{outside} prepared rows are outside the window"
        )


def _replace(session: Session, request: tr.PublishRequest, bounds: WindowBounds) -> int:
    """DELETE, INSERT and the counts; returns how many rows were deleted."""
    path, prepared = _path(request), sql.stage_path(request.prepared.name)
    columns = [column.name for column in request.layout.columns]
    if not catalog.is_same_incarnation(session, request.target):
        raise _RolledBack("dpone.publish.target_changed", "the target table is not the one of the plan")
    deleted = session.number(sql.delete_rows(path, bounds.column), bounds.parameters)
    inserted = session.number(sql.insert_rows(path, columns, prepared))
    there = session.number(bounds.count(path), bounds.parameters)
    expected = request.expected.rows
    if (inserted, there) != (expected, expected):
        text = f"{inserted} rows were inserted and {there} are there, not {expected}"
        raise _RolledBack("dpone.publish.after_image", text)
    if request.after_image_digest:
        _prove_after_image(session, request, bounds)
    return deleted


def _prove_after_image(session: Session, request: tr.PublishRequest, bounds: WindowBounds) -> None:
    seen = proof.observe(session, _path(request), request.layout, request.expected.rows, window=bounds)
    if not seen.proves(request.expected):
        text = "the window in the target does not hold the rows that were sent"
        raise _RolledBack("dpone.publish.after_image", text)


def _roll_back(session: Session) -> None:
    try:
        session.rollback()
    except duckdb.Error as error:
        raise _unknown(f"ROLLBACK ended in {type(error).__name__}") from None


def _unknown(what: str) -> OutcomeUnknown:
    return OutcomeUnknown("dpone.publish.outcome_unknown", f"The publication has no answer: {what}.")


def _rolled_back(
    session: Session, request: tr.PublishRequest, bounds: WindowBounds, reason: Exception
) -> tr.PublishOutcome:
    """The outcome, now that the rollback is confirmed."""
    if isinstance(reason, _RolledBack):
        return tr.PublishOutcome("rolled_back", reason.code, None, reason.detail)
    if isinstance(reason, duckdb.ConstraintException):
        number = _constraint_number(session, request, bounds)
        kinds = {515: "a NOT NULL constraint", 547: "a CHECK constraint", 2627: "a unique or primary key"}
        text = f"{kinds.get(number, 'a constraint')} of the target refused the rows"
        return tr.PublishOutcome("rolled_back", "dpone.publish.constraint", number, text)
    text = f"DuckDB said {type(reason).__name__}"
    return tr.PublishOutcome("rolled_back", "dpone.publish.failed", None, text)


# ---- which constraint -----------------------------------------------------------------------------


def _constraint_number(session: Session, request: tr.PublishRequest, bounds: WindowBounds) -> int:
    """The number that SQL Server gives the same fault.

    DuckDB's exception does not say which kind it was and its text is not read, so the rows that were rolled
    back are looked at again; CHECK is what is left.
    """
    if _has_unfilled_column(session, request):
        return NOT_NULL_NUMBER
    with suppress(duckdb.Error):
        if _has_duplicate_key(session, request, bounds):
            return UNIQUE_NUMBER
    names = {"schema": request.target.schema, "table": request.target.table}
    kinds = {kind for kind, _ in session.rows(sql.CONSTRAINTS, names)}
    only_keys = not kinds & {"CHECK", "FOREIGN KEY"}
    return UNIQUE_NUMBER if only_keys and session.number(sql.UNIQUE_INDEXES, names) else CHECK_NUMBER


def _has_unfilled_column(session: Session, request: tr.PublishRequest) -> bool:
    """A NOT NULL column that is not delivered and has no default."""
    delivered = {column.name for column in request.layout.columns}
    found = catalog.columns_of(session, request.target.schema, request.target.table)
    return any(c.must_be_fed and c.name not in delivered for c in found)


def _has_duplicate_key(session: Session, request: tr.PublishRequest, bounds: WindowBounds) -> bool:
    delivered = {column.name for column in request.layout.columns}
    names = {"schema": request.target.schema, "table": request.target.table}
    keys = [
        columns
        for kind, columns in session.rows(sql.CONSTRAINTS, names)
        if kind in ("PRIMARY KEY", "UNIQUE") and delivered.issuperset(columns)
    ]
    path, prepared = _path(request), sql.stage_path(request.prepared.name)
    return any(
        session.number(sql.duplicate_keys(path, key, prepared, bounds.column), bounds.parameters)
        for key in keys
    )


def _path(request: tr.PublishRequest) -> str:
    return sql.qualified(request.target.schema, request.target.table)
