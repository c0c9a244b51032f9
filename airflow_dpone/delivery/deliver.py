"""The whole delivery: admission, then the phase of each state it is in, and what is done when one fails."""

from __future__ import annotations

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
from airflow_dpone.delivery.finished import finished_result, result_of
from airflow_dpone.delivery.ports import Ports
from airflow_dpone.delivery.run import DeliveryRun, Phase, Request
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.errors import DponeError, InternalError

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
    finished = finished_result(run)
    if finished is not None:
        return finished
    try:
        phase1_admit.PHASE.run(run)
        while run.finished is None and run.state is not DeliveryState.COMPLETED:
            phase_of(run.state).run(run)
        return result_of(run)
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
        run.let_go()


def phase_of(state: DeliveryState | None) -> Phase:
    """The phase whose turn it is. A phase ends in another state or raises, so this goes on to the end; only a
    lost sealed chunk leads back, from EXTRACTED to PLANNED, and only ``extraction_attempts`` times."""
    return next(phase for phase in PHASES if phase.enters is not None and state in phase.enters)
