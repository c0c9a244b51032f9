"""What happens after something went wrong: settle an open publication, or give everything back.

Recovery always asks the target first. It never decides by time, by text or by counting rows, and it re-enters
the same phases as an ordinary run.
"""

from __future__ import annotations

import logging

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import owned
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.leased_run import LeasedRun
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.delivery.states import (
    BEFORE_PUBLICATION,
    DeliveryEvent,
    DeliveryState,
    DiagnosticCode,
    ReleaseReason,
    may_move,
)
from airflow_dpone.errors import (
    ConfigurationError,
    DponeError,
    Fenced,
    Incident,
    InternalError,
    JournalError,
    OutcomeUnknown,
    Stopped,
)

log = logging.getLogger(__name__)
S = DeliveryState


def settle_publication(run: LeasedRun) -> None:
    """Finds out what became of the open publication. The target must be open.

    A new fence is committed in the journal first; the probe raises the gate to it, so that no older send can
    become effective afterwards. Ends in PUBLISHED or PREPARED, or raises OutcomeUnknown or Incident.
    """
    plan = run.frozen
    fence = run.new_fence()
    try:
        answer = run.ports.target.probe(
            plan.target,
            operation_id=plan.operation_id,
            journal_id=run.ports.journal.journal_id,
            route_scope=plan.route_scope,
            fence=fence,
        )
        run.gate_fence = fence
    except (Incident, Fenced, JournalError, ConfigurationError):
        raise
    except DponeError as error:
        if run.state is S.PUBLISHING:
            run.record((S.UNKNOWN, {"code": error.code, "operation_id": plan.operation_id}))
        text = f"the target did not say what became of the publication ({error.code}): {error.message}"
        raise OutcomeUnknown("dpone.publish.outcome_unknown", text, operation_id=plan.operation_id) from error
    if answer.receipt is not None:
        record_receipt(run, answer.receipt)
    elif answer.in_flight_operation_id == plan.operation_id:
        raise _incident(
            "dpone.publish.partial", "a part of the publication was committed by somebody else", run
        )
    elif answer.last_operation_id == plan.operation_id:
        raise _incident(
            "dpone.publish.receipt_removed", "the gate names this publication, its receipt is gone", run
        )
    else:
        run.record((S.PREPARED, not_effective(run, "probe", None, None)))
        log.info("the publication is proved not effective: it is sent again")


def not_effective(run: LeasedRun, how: str, code: str | None, error_number: int | None) -> r.Json:
    """Payload of PREPARED after a send: the prepared table as before, and how the send is proved not
    effective.

    :param how: ``rolled_back`` (the target's own answer) or ``probe`` (asked under this fence).
    """
    proof = {"how": how, "fence": str(run.held_lease.fence), "code": code, "error_number": error_number}
    return {**run.chain.required(S.PREPARED), "proof": proof}


def confirm_receipt(run: LeasedRun) -> None:
    """PUBLISHED only after another session has read the receipt."""
    try:
        receipt = run.ports.target.read_receipt(run.frozen.operation_id)
    except DponeError as error:
        run.record((S.UNKNOWN, {"code": error.code, "operation_id": run.frozen.operation_id}))
        text = f"the target answered 'committed' but the receipt could not be read back ({error.code})"
        raise OutcomeUnknown("dpone.publish.outcome_unknown", text) from error
    if receipt is None:
        settle_publication(run)
    else:
        record_receipt(run, receipt)


def record_receipt(run: LeasedRun, receipt: tr.Receipt) -> None:
    """Journals PUBLISHED when the receipt is word for word the one that a send of this operation
    announced."""
    sent = [p["receipt"] for p in run.chain.all(S.PUBLISHING)]
    if receipt.draft.to_json() not in sent or receipt.receipt_sha256 != receipt.draft.sha256:
        raise _incident(
            "dpone.publish.receipt_differs", "the receipt is not one that this delivery sent", run
        )
    run.record((S.PUBLISHED, {"receipt": receipt.to_json(), "receipt_sha256": receipt.receipt_sha256}))


def _incident(code: str, text: str, run: LeasedRun) -> Incident:
    return Incident(code, text, operation_id=run.frozen.operation_id)


def after_failure(run: DeliveryRun, error: DponeError) -> None:
    """Before an error leaves the engine: a failure that touched nothing must not block the target.

    Before publication a terminal error (or any transient one on the last automatic try) retires every stage,
    deletes the spool, releases custody and ends in FAILED. An Incident is journaled and keeps custody.
    Everything else leaves the delivery where it is, to be resumed. Sets ``error.state_after``. Raises Fenced
    when this process was replaced: whatever went wrong here was its successor's doing, or is its to settle.
    """
    if run.history is None or run.lease is None or isinstance(error, Fenced):
        return
    if isinstance(error, Stopped):
        error.state_after = str(run.state)
        return  # there is no time to settle anything, and nothing has to be: the next call goes on
    try:
        run.ports.journal.renew(run.lease)  # whoever was replaced has nothing to settle, and must not look
        if isinstance(error, InternalError):
            run.look_again()  # the fault may have come between a write and its note
        state = run.state
        if state is None:
            return  # nothing was opened
        if state is S.INCIDENT:
            error.state_after = str(state)
            return  # the first reason stays the one that people read
        if isinstance(error, Incident) and may_move(state, S.INCIDENT):
            said = {"reason": error.code, "said": error.message[:500], "resumes_from": str(state)}
            run.record((S.INCIDENT, said))
        elif state in BEFORE_PUBLICATION and _ends_generation(error, run):
            retire(run, S.FAILED, _failed(error), ReleaseReason.NONPUBLICATION)
            error.next_action += _how_to_start_again(run.requester, error)
        run.record(_note(run, error))
    except DponeError as second:
        # A new fence whose answer was lost fences its own process: that is no successor.
        if isinstance(second, Fenced) and run.unanswered is None:
            log.info("this process was replaced; what it met was %s", error.code)
            raise
        log.warning(
            "could not settle after %s: %s; the target stays reserved until a cleared task can",
            error.code,
            second,
        )
        error.next_action += " The target stays reserved: clear the task once it answers again."
    error.state_after = str(run.state)


def _how_to_start_again(requester: r.Requester, error: DponeError) -> str:
    if error.retry != "backoff":
        return ""
    what = f"task group {requester.delivery_task_id}" if requester.delivery_task_id else "task"
    return f" This was the last try: clear the {what} to start again."


def _ends_generation(error: DponeError, run: DeliveryRun) -> bool:
    if isinstance(error, Incident | JournalError | OutcomeUnknown):
        return False
    return error.retry == "never" or run.requester.is_last_try


def _failed(error: DponeError) -> r.Json:
    """Payload of FAILED: what people need to find the cause, never a value."""
    kept = ("column", "row", "ordinal", "error_number", "checks")
    return {"code": error.code, **{key: error.fields.get(key) for key in kept}}


def _note(run: LeasedRun, error: DponeError) -> jr.PutNote:
    return jr.PutNote(
        run.chain.invocation_key,
        last_error_code=error.code,
        reason=error.message[:500],
        next_action=error.next_action[:500],
    )


def retire(run: LeasedRun, end: DeliveryState, payload: r.Json, reason: ReleaseReason) -> None:
    """Removes everything owned, ends the generation and releases custody in one journal transaction.

    Only for a delivery without an open publication. A crash in the middle leaves the generation open; the
    next call finds its stages gone, and ends here again.
    """
    with run.open_target() as target:
        if target.read_receipt(run.frozen.operation_id) is not None:
            raise _incident(
                "dpone.publish.receipt_differs", "there is a receipt of what should not be there", run
            )
        owned.remove(run, DiagnosticCode.NONPUBLICATION)
    run.record(
        (end, payload),
        (DeliveryEvent.CUSTODY_RELEASED, {"reason": reason.value}),
        jr.ReleaseCustody(run.chain.invocation_key, reason),
        jr.PutTask(run.frozen.delivery_key, run.frozen.generation, run.requester),
    )
