"""What a generation owns in the target and in the spool, and how it is removed: by name and owner, never by
pattern."""

from __future__ import annotations

from airflow_dpone.delivery import attempts
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.history import Attempt
from airflow_dpone.delivery.leased_run import LeasedRun
from airflow_dpone.delivery.states import DeliveryEvent, DiagnosticCode
from airflow_dpone.errors import Incident


def is_there(run: LeasedRun, stage: tr.StageRef) -> bool:
    """A journaled fact about the target is looked at again before it is used."""
    return run.ports.target.find_stage(stage.name, stage.owner) == stage


def drop_prepared(run: LeasedRun) -> None:
    """Drops every prepared table that this generation ever meant to build, found by name and owner."""
    for intent in run.chain.all(DeliveryEvent.PREPARE_INTENT):
        stage = run.ports.target.find_stage(intent["stage_name"], intent["owner_binding_sha256"])
        if stage is not None:
            run.ports.target.drop_stage(stage)


def remove_ours(run: LeasedRun, why: DiagnosticCode) -> tuple[str, ...]:
    """Like :func:`remove`, but what carries another mark, or was changed, stays and is named: a person may
    have made it. For a delivery whose outcome is settled already."""
    target, left = run.ports.target, []
    for intent in run.chain.all(DeliveryEvent.PREPARE_INTENT):
        try:
            stage = target.find_stage(intent["stage_name"], intent["owner_binding_sha256"])
            if stage is not None:
                target.drop_stage(stage)
        except Incident:
            left.append(intent["stage_name"])
    for attempt in _abandoned_last(run):
        try:
            if not attempt.is_over:
                attempts.retire(run, attempt, why)
        except Incident:
            left.append(attempt.stage_binding["stage_name"])
    run.ports.spool.discard(run.chain.invocation_key)
    return tuple(left)


def remove(run: LeasedRun, why: DiagnosticCode) -> None:
    """Drops the prepared tables, retires every attempt (each writer is proved gone first), then removes the
    sealed files. The target must be open. Gone already is fine, so a crash in the middle costs nothing."""
    drop_prepared(run)
    for attempt in _abandoned_last(run):
        if not attempt.is_over:
            attempts.retire(run, attempt, why)
    run.ports.spool.discard(run.chain.invocation_key)


def _abandoned_last(run: LeasedRun) -> list[Attempt]:
    """A writer that still cannot be proved gone stops the cleaning, so it comes after everything else."""
    abandoned = run.chain.abandoned
    return sorted(run.chain.attempts.values(), key=lambda attempt: attempt.attempt_id in abandoned)
