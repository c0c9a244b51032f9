"""The whole delivery: admission, then six phases in order, and what is done when one of them fails."""

from __future__ import annotations

import logging

from airflow_dpone.delivery import (
    phase1_admit,
    phase2_extract,
    phase3_stage,
    phase4_verify,
    phase5_publish,
    phase6_evidence,
    phase7_checkpoint,
    recover,
)
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.crash_points import observe
from airflow_dpone.delivery.ports import Ports
from airflow_dpone.delivery.run import DeliveryRun, Request
from airflow_dpone.errors import DponeError, InternalError

log = logging.getLogger(__name__)

PHASES = (
    phase1_admit.PHASE,
    phase2_extract.PHASE,
    phase3_stage.PHASE,
    phase4_verify.PHASE,
    phase5_publish.PHASE,
    phase6_evidence.PHASE,
    phase7_checkpoint.PHASE,
)


def deliver(ports: Ports, request: Request) -> r.DeliveryResult:
    """Delivers one window, from wherever an earlier call left it. The journal must be open.

    Returns only when the delivery is COMPLETED; everything else raises a DponeError whose ``state_after``
    says where it stands. After any crash, the same call goes on from the last durable boundary; an unknown
    publication is looked up in the target, never repeated blindly.
    """
    run = DeliveryRun(observe(ports), request)
    finished = phase1_admit.finished_result(run)
    if finished is not None:
        return finished
    try:
        for phase in PHASES:
            phase.run(run)
        return phase1_admit.result_of(run)
    except DponeError as error:
        recover.after_failure(run, error)
        raise
    except Exception as fault:  # a fault of ours or of a driver must not leave the target blocked
        wrapped = InternalError(
            "dpone.delivery.unexpected", f"an unexpected {type(fault).__name__} was raised"
        )
        recover.after_failure(run, wrapped)
        raise wrapped from fault
    finally:
        _release(run)


def _release(run: DeliveryRun) -> None:
    """Nothing depends on it: a lease that is not given back expires, and the fence protects meanwhile."""
    if run.lease is None:
        return
    try:
        run.ports.journal.release(run.lease)
    except DponeError as error:
        log.warning("the lease could not be given back, it expires by itself: %s", error.code)
