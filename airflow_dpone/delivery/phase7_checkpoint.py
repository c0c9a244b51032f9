"""Phase 7: the checkpoint names the receipt, then exactly the owned tables and files are removed, then the
target is released.

The order is fixed: receipt, evidence, checkpoint, cleanup, custody. Each part may be repeated after a crash.
"""

from __future__ import annotations

import logging

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import owned
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.leased_run import Item, LeasedRun
from airflow_dpone.delivery.run import DeliveryRun, Phase
from airflow_dpone.delivery.states import DeliveryEvent, DeliveryState, DiagnosticCode, ReleaseReason
from airflow_dpone.errors import Incident

S = DeliveryState
log = logging.getLogger(__name__)


def write_checkpoint(run: DeliveryRun) -> None:
    """Reads the receipt again in a session of its own, requires equality, then compare-and-set of the
    window's row."""
    if run.state is not S.EVIDENCED:
        return
    plan, journal = run.frozen, run.ports.journal
    stored = run.chain.required(S.PUBLISHED)["receipt"]
    with run.open_target() as target:
        receipt = target.read_receipt(plan.operation_id)
    if receipt is None or receipt.to_json() != stored:
        text = "the receipt in the target is gone or differs from the one that was read after the publication"
        raise Incident("dpone.publish.receipt_lost", text, operation_id=plan.operation_id)
    key = (plan.target.target_key, plan.route_scope, plan.window.key)
    before = journal.checkpoint(*key)
    revision = before.revision if before else 0
    row = jr.Checkpoint(
        *key,
        revision=revision + 1,
        delivery_key=plan.delivery_key,
        generation=plan.generation,
        operation_id=plan.operation_id,
        receipt_sha256=receipt.receipt_sha256,
        evidence_sha256=run.chain.required(S.EVIDENCED)["evidence_sha256"],
    )
    run.record(jr.PutCheckpoint(row, revision), (S.CHECKPOINTED, {"revision": row.revision}))


def clean_up(run: DeliveryRun) -> None:
    """Drops every owned table by object id and owner, journals each, then removes the sealed files."""
    with run.open_target():
        for name in owned.remove_ours(run, DiagnosticCode.PUBLISHED_CLEANUP):
            log.warning("staging table %s is not as this delivery made it and is left alone", name)


def complete(run: DeliveryRun) -> None:
    """COMPLETED, custody clear and the task's own record, in one journal transaction."""
    task = jr.PutTask(run.frozen.delivery_key, run.frozen.generation, run.requester)
    run.record(*completion(run), task)


def completion(run: LeasedRun) -> tuple[Item, ...]:
    """What ends a delivery whose checkpoint is written and whose tables are removed."""
    reason = ReleaseReason.PUBLISHED_CLEANUP
    return (
        (S.COMPLETED, {"result": _result(run).to_json()}),
        (DeliveryEvent.CUSTODY_RELEASED, {"reason": reason.value}),
        jr.ReleaseCustody(run.chain.invocation_key, reason),
        jr.PutNote(run.chain.invocation_key, last_error_code="", reason="", next_action=""),
    )


def _result(run: LeasedRun) -> r.DeliveryResult:
    plan, chain = run.frozen, run.chain
    receipt, extracted = chain.required(S.PUBLISHED)["receipt"], chain.required(S.EXTRACTED)
    return r.DeliveryResult(
        delivery_key=plan.delivery_key,
        invocation_key=chain.invocation_key,
        generation=plan.generation,
        window=plan.window.key,
        target=(plan.target.schema, plan.target.table),
        rows=receipt["row_count"],
        deleted_rows=receipt["deleted_rows"],
        chunks=extracted["chunks"],
        bytes=extracted["encoded_bytes"],
        digest=receipt["digest"],
        operation_id=plan.operation_id,
        receipt_sha256=receipt["receipt_sha256"],
        evidence_sha256=chain.required(S.EVIDENCED)["evidence_sha256"],
    )


PHASE = Phase("checkpoint", frozenset({S.EVIDENCED, S.CHECKPOINTED}), (write_checkpoint, clean_up, complete))
