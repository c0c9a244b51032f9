"""The whole delivery: admission, then the phase of each state it is in, and what is done when one fails.

One call may be told to end after a phase: seven tasks of a workflow then deliver what one task would, with
the same journal, and each of them goes on from wherever the journal says that the delivery is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_dpone.delivery import (
    phase1_admit,
    phase2_extract,
    phase3_stage,
    phase4_verify,
    phase5_publish,
    phase6_evidence,
    phase7_checkpoint,
    recover,
    standing,
)
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.crash_points import observe
from airflow_dpone.delivery.finished import finished_result, result_of
from airflow_dpone.delivery.ports import Ports
from airflow_dpone.delivery.run import DeliveryRun, Phase, Request
from airflow_dpone.delivery.states import IN_DOUBT, DeliveryState
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
PHASE_NAMES = tuple(phase.name for phase in PHASES)


def deliver(ports: Ports, request: Request) -> r.DeliveryResult:
    """Delivers one window, from wherever an earlier call left it. The journal must be open.

    Returns only when the delivery is COMPLETED; everything else raises a DponeError whose ``state_after``
    says where it stands. After any crash, the same call goes on from the last durable boundary; an unknown
    publication is looked up in the target, never repeated blindly.
    """
    return result_of(advance(ports, request))


@dataclass(frozen=True)
class Done:
    """What a call has done. :param seconds: how long each phase took that it ran."""

    result: r.DeliveryResult | r.PhaseResult
    seconds: Mapping[str, float]


def run_phases(ports: Ports, request: Request) -> Done:
    """As :func:`deliver`, but returns at the end of ``request.last_phase``."""
    run = advance(ports, request)
    is_over = run.finished is not None or run.state is DeliveryState.COMPLETED
    return Done(result_of(run) if is_over else standing.phase_result(run), run.timings)


def advance(ports: Ports, request: Request) -> DeliveryRun:
    """Brings a delivery to the end of ``request.last_phase``, from wherever it is; returns the run as it is
    then.

    A delivery that is there already is left alone: its target is only asked when a publication is in doubt.
    """
    run = DeliveryRun(observe(ports), request)
    if _is_there_already(run):
        return run
    try:
        phase1_admit.PHASE.run(run)
        while not _has_arrived(run):
            phase_of(run.state).run(run)
        return run
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


def _is_there_already(run: DeliveryRun) -> bool:
    """Whether there is nothing to do, as far as the journal alone can tell."""
    run.finished = finished_result(run)
    if run.finished is not None or run.request.may_open:
        return run.finished is not None
    newest = standing.open_invocation(run)
    if newest.state in IN_DOUBT or newest.state is DeliveryState.INCIDENT:
        return False
    standing.look(run, newest)
    run.did_nothing = _has_arrived(run)
    if run.did_nothing:
        log.info("nothing to do: %s", standing.where(run))
    else:
        run.history = run.plan = None  # only the lease's owner may build on what it reads
    return run.did_nothing


def _has_arrived(run: DeliveryRun) -> bool:
    if run.finished is not None or run.state is DeliveryState.COMPLETED:
        return True
    last = PHASE_NAMES.index(run.request.last_phase)
    return PHASE_NAMES.index(phase_of(run.state).name) > last


def phase_of(state: DeliveryState | None) -> Phase:
    """The phase whose turn it is. A phase ends in another state or raises, so this goes on to the end; only a
    lost sealed chunk leads back, from EXTRACTED to PLANNED, and only ``extraction_attempts`` times."""
    return next(phase for phase in PHASES if phase.enters is not None and state in phase.enters)
