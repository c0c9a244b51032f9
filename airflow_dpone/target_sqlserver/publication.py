"""Sends the publication and the probe, and reads their sentinels. Nothing else says what happened."""

from __future__ import annotations

from decimal import Decimal

import pyodbc

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import ConfigurationError, Incident, OutcomeUnknown, TargetBusy
from airflow_dpone.target_sqlserver import catalog, error_map, gate, marks, stages
from airflow_dpone.target_sqlserver import publication_statements as batches
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.publication_statements import PublishedTable
from airflow_dpone.target_sqlserver.quoting import qualified
from airflow_dpone.target_sqlserver.session import Row, Session
from airflow_dpone.target_sqlserver.window_bounds import WindowBounds

_SENTINELS = ("committed", "already", "rolled_back", "ended_early", "probed", "compiled")
SETTLE_LEAST_SEC, SETTLE_MORE_SEC = 120.0, 60.0
_REASONS: dict[int, tuple[str, str]] = {
    batches.TARGET_BUSY: ("dpone.publish.failed", "another session holds the lock of the target"),
    batches.FENCED: ("dpone.publish.fenced", "the gate is at this fence or above"),
    batches.PREPARED_IDENTITY: (
        "dpone.publish.prepared_identity",
        "the prepared table is not the one that was proved",
    ),
    batches.DIGEST: ("dpone.publish.digest", "the prepared table does not hold the proved rows"),
    batches.TARGET_CHANGED: (
        "dpone.publish.target_changed",
        "the target table is not the one of the plan",
    ),
    batches.AFTER_IMAGE: (
        "dpone.publish.after_image",
        "the window in the target does not hold the rows that were sent",
    ),
    batches.OUTSIDE_WINDOW: ("dpone.publish.row_outside_window", "prepared rows are outside the window"),
    batches.RECEIPT_REMOVED: (
        "dpone.publish.receipt_removed",
        "the gate names the operation, its receipt is gone",
    ),
    batches.RECEIPT_NOT_WRITTEN: ("dpone.publish.failed", "the receipt was not written"),
    batches.GATE_CHANGED: ("dpone.publish.failed", "the gate changed inside the transaction"),
    batches.TRANSACTION_CHANGED: ("dpone.publish.failed", "another transaction took the place of ours"),
    batches.GOVERNED_BY_OTHER: ("dpone.publish.gate_governed_by_other", "the gate did not let this send in"),
    batches.IN_FLIGHT: ("dpone.publish.in_flight_committed", "the gate did not let this send in"),
    batches.GATE_MISSING: ("dpone.publish.gate_missing", "the gate row is gone"),
    batches.RECEIPT_DIFFERS: (
        "dpone.publish.receipt_differs",
        "there is a receipt of another intent, of another operation, or of a table that is gone",
    ),
    batches.TRIGGER: (
        "dpone.target.trigger",
        "the target has a trigger that admission did not let through, and nothing would prove what it does",
    ),
}


def settle_sec(published_sec: float) -> float:
    """How long a probe waits for the target's lock: undoing a publication may take as long as it ran."""
    return max(SETTLE_LEAST_SEC, published_sec + SETTLE_MORE_SEC)


def publish(
    session: Session,
    request: tr.PublishRequest,
    schemas: sql.Schemas,
    lock_ms: int,
    rehearsed: set[str],
) -> tr.PublishOutcome:
    """Looks once more, lets the server compile the batch, then sends it.

    What is refused before the batch is sent is as sure as a rollback, unless the operation was published
    before: then the caller asks the probe.

    :param rehearsed: batches that this server has compiled; a new one joins.
    :raises OutcomeUnknown: the batch has no sentinel.
    """
    try:
        bounds = WindowBounds.of_request(request)
    except ConfigurationError as error:
        return tr.PublishOutcome("rolled_back", error.code, None, error.message)
    columns = catalog.matching_columns(session, request.target)
    if columns is None:
        return _not_sent(session, request, schemas, *_REASONS[batches.TARGET_CHANGED])
    try:
        prepared = stages.require(session, request.prepared, schemas)
        stages.require_columns(session, request.prepared, request.layout)
    except Incident as error:
        return _not_sent(session, request, schemas, "dpone.publish.prepared_identity", error.message)
    if prepared.mark.state != marks.SEALED:
        text = "the prepared table is not sealed"
        return _not_sent(session, request, schemas, "dpone.publish.prepared_identity", text)
    what = PublishedTable(
        target=qualified(request.target.schema, request.target.table),
        columns=[column.frozen for column in columns],
        prepared=schemas.stage_path(request.prepared.name),
        layout=request.layout,
        window=bounds.column,
        schemas=schemas,
        after_image=request.after_image_digest,
    )
    text = batches.publication(what)
    parameters = _parameters(session, request, prepared, bounds, lock_ms)
    if text not in rehearsed:
        refusal = _rehearse(session, text, parameters)
        if refusal is not None:
            return _not_sent(session, request, schemas, *refusal)
        rehearsed.add(text)
    try:
        found = session.results(text, *parameters)
    except pyodbc.Error as error:
        raise _unknown(error) from None
    return _outcome(found)


def _rehearse(
    session: Session, text: str, parameters: tuple[object, ...]
) -> tuple[str, str, int | None] | None:
    """Why the batch does not compile (code, text, number), or None. Nothing of it runs.

    The fence of a rehearsal is 0, which no gate lets in: what is sent here could not publish if it wanted to.

    :raises OutcomeUnknown: the server did not answer; what was sent before is for the probe to find.
    """
    changed = list(parameters)
    changed[batches.PLACES["rehearsal"]], changed[batches.PLACES["fence"]] = 1, 0
    try:
        kind, number = sentinel(session.results(text, *changed))
    except pyodbc.Error as error:
        numbers = error_map.numbers_of(error)
        if not numbers or error_map.kind_of(error) is error_map.Kind.UNAVAILABLE:
            raise _unknown(error) from None
        kind, number = "refused", numbers[0]
    if kind == "compiled":
        return None
    said = f"SQL Server said error {number} while it compiled the publication"
    return error_map.compile_code(number or 0), said, number


def _not_sent(
    session: Session,
    request: tr.PublishRequest,
    schemas: sql.Schemas,
    code: str,
    text: str,
    number: int | None = None,
) -> tr.PublishOutcome:
    if gate.read_receipt(session, request.draft.operation_id, schemas) is not None:
        raise OutcomeUnknown(
            "dpone.publish.outcome_unknown", f"Nothing was sent ({text}), but the operation has a receipt."
        )
    return tr.PublishOutcome("rolled_back", code, number, text)


def _gate_head(target: tr.TargetRef, lock_ms: int) -> tuple[object, ...]:
    created = catalog.created_of(target.created)
    return (
        sql.target_lock(target.target_key),
        lock_ms,
        target.object_id,
        created,
        bytes.fromhex(target.created),
    )


def _parameters(
    session: Session,
    request: tr.PublishRequest,
    prepared: stages.StoredStage,
    bounds: WindowBounds,
    lock_ms: int,
) -> tuple[object, ...]:
    fork = session.row(sql.RECOVERY_FORK)
    return (
        *gate.draft_values(request.draft),
        *_gate_head(request.target, lock_ms),
        request.prepared.object_id,
        prepared.created,
        str(prepared.mark),
        *(Decimal(limb) for limb in request.expected.limbs),
        0,  # no rehearsal
        (fork[0] if fork else None) or "",
        *bounds.texts,
    )


def _outcome(found: list[list[Row]]) -> tr.PublishOutcome:
    kind, number = sentinel(found)
    if kind == "compiled":
        raise OutcomeUnknown("dpone.publish.outcome_unknown", "The target rehearsed what it should publish.")
    if kind != "rolled_back":
        return tr.PublishOutcome(kind, error_number=number)
    if number is None:
        return tr.PublishOutcome("ended_early")
    if number in _REASONS:
        code, text = _REASONS[number]
        return tr.PublishOutcome(kind, code, None, text)
    text = f"SQL Server said error {number}"
    return tr.PublishOutcome(kind, error_map.publication_code(number), number, text)


def sentinel(found: list[list[Row]]) -> tuple[str, int | None]:
    """The last result of a batch. Anything but one row with a known word is no sentinel.

    :raises OutcomeUnknown: there is none.
    """
    last = found[-1] if found else []
    if len(last) == 1 and len(last[0]) == 2 and last[0][0] in _SENTINELS:
        return last[0][0], last[0][1]
    raise OutcomeUnknown("dpone.publish.outcome_unknown", "The answer of the target has no sentinel.")


def _unknown(error: pyodbc.Error) -> OutcomeUnknown:
    numbers, state = error_map.numbers_of(error), error_map.state_of(error)
    what = f"error {numbers[0]}" if numbers else f"SQLSTATE {state}"
    return OutcomeUnknown(
        "dpone.publish.outcome_unknown", f"The publication has no answer: SQL Server said {what}."
    )


# ---- the probe ------------------------------------------------------------------------------------


def probe(
    session: Session, wanted: gate.GateClaim, operation_id: str, schemas: sql.Schemas, lock_ms: int
) -> tr.ProbeAnswer:
    """Asks what became of an operation. Raises the driver's error when there is no answer.

    :raises DponeError: why the gate did not move, or TargetBusy: its lock was not granted.
    """
    parameters = (
        bytes.fromhex(operation_id),
        wanted.key,
        wanted.journal_id,
        bytes.fromhex(wanted.route_scope),
        wanted.fence,
        *_gate_head(wanted.target, lock_ms),
    )
    found = session.results(batches.probe(schemas), *parameters)
    kind, number = sentinel(found)
    if kind != "probed":
        raise _not_probed(session, wanted, schemas, number)
    receipts, gates, _ = found
    if len(gates) != 1 or len(receipts) > 1:
        raise OutcomeUnknown("dpone.publish.outcome_unknown", "The answer of the probe is malformed.")
    last, in_flight = (None if value is None else value.hex() for value in gates[0])
    receipt = gate.receipt_of(receipts[0]) if receipts else None
    if receipt is not None:
        catalog.require_incarnation(session, wanted.target)
    return tr.ProbeAnswer(receipt, last, in_flight)


def _not_probed(
    session: Session, wanted: gate.GateClaim, schemas: sql.Schemas, number: int | None
) -> Exception:
    if number == batches.TARGET_BUSY:
        text = "Another session holds the lock of the target: a publication of it may still be running."
        return TargetBusy("dpone.target.busy", f"{text} {lock_holder(session, wanted.target.target_key)}")
    if number in (batches.FENCED, batches.GOVERNED_BY_OTHER, batches.GATE_MISSING):
        found = gate.read_gate(session, wanted.target.target_key, schemas, lock=False)
        return gate.why_not(found, wanted)
    text = f"The probe ended without an answer (error {number})."
    return OutcomeUnknown("dpone.publish.outcome_unknown", text)


def lock_holder(session: Session, target_key: str) -> str:
    """Who holds the lock of a target, and how far its rollback is; one sentence for a person."""
    try:
        found = session.row(sql.LOCK_HOLDER, sql.lock_description(target_key))
    except pyodbc.Error:
        return "Which one, this login may not see (VIEW SERVER STATE)."
    if found is None:
        return "It is gone by now, or this login may not see it (VIEW SERVER STATE)."
    number, program, command, percent = found
    doing = f", {command}" if command else ""
    done = f", {percent} % done" if percent else ""
    return f"It is session {number} ({str(program)[:60]}{doing}{done})."
