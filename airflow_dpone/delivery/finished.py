"""Is this delivery finished already, and what is its result?"""

from __future__ import annotations

import logging
from dataclasses import replace
from uuid import UUID

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.history import History
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.errors import ConfigurationError

log = logging.getLogger(__name__)
S = DeliveryState


def finished_result(run: DeliveryRun) -> r.DeliveryResult | None:
    """The stored result when this requester's delivery is finished and nobody cleared it since.

    A call that may not open a generation has nothing to do once the newest one is finished.
    A clear of a finished task changes Airflow's ``max_tries``; a deleted and re-created run starts at try 1
    again with another task instance id, and remembers a first try that is younger than the one that finished.
    Everything else (a worker that died after completion) gets the finished result.
    """
    requester = run.requester
    newest = run.ports.journal.newest_invocation(requester.delivery_key)
    if newest is None or newest.state is not S.COMPLETED or run.request.rerun:
        return None
    if run.request.may_open:
        task = run.ports.journal.task(requester.delivery_key, requester.task_id)
        if task is None or why_again(task, requester, run.request.first_ti_id):
            return None
    history = History.of(newest.invocation_key, run.ports.journal.events(newest.invocation_key))
    stored = r.DeliveryResult.from_json(history.required(S.COMPLETED)["result"])
    if run.identity is None and _differ_by_case(run.request.route.target_table, stored.target):
        return None  # the target says what its name is
    _same_request(run, stored)
    hint = "; nobody cleared it since (to deliver it again, clear the task, or call deliver with rerun=True)"
    again = hint if run.request.may_open else ""
    log.info("nothing to do: generation %s is COMPLETED%s", newest.generation, again)
    return replace(stored, already=True, seconds=_seconds(run))


def _same_request(run: DeliveryRun, stored: r.DeliveryResult) -> None:
    """A finished result must not stand for a window or a table that was never delivered."""
    found = run.identity
    table = run.request.route.target_table if found is None else (found.schema, found.table)
    asked = (run.request.window.key, table)
    if asked != (stored.window, stored.target):
        text = (
            f"this requester has delivered {stored.window} into {'.'.join(stored.target)} and nobody cleared "
            f"it; now it asks for {asked[0]} into {'.'.join(asked[1])}"
        )
        raise ConfigurationError("dpone.config.other_request", text, invocation_key=stored.invocation_key)


def _differ_by_case(asked: tuple[str, str], stored: tuple[str, str]) -> bool:
    return asked != stored and [name.casefold() for name in asked] == [name.casefold() for name in stored]


def why_again(task: jr.TaskRecord, requester: r.Requester, first_ti_id: str = "") -> str | None:
    """What a person did since the task said this, None when it was a retry."""
    if is_of_another_run(task, requester, first_ti_id):
        return "its run was deleted and made anew"
    return "the task was cleared" if requester.max_tries != task.max_tries else None


def is_of_another_run(task: jr.TaskRecord, requester: r.Requester, first_ti_id: str = "") -> bool:
    """Whether the run was deleted and made anew since the task said this.

    Its tries begin at 1 again; and no try of a run is older than its first one.
    """
    if first_ti_id and _are_in_order(task.ti_id, first_ti_id):
        return True
    return requester.try_number <= task.try_number and _is_newer(requester.ti_id, task.ti_id)


def _is_newer(ti_id: str, recorded: str) -> bool:
    """An earlier try that wakes up late has a smaller id. Ids that have no order only tell whether they
    differ."""
    in_order = _are_in_order(recorded, ti_id)
    return ti_id != recorded if in_order is None else in_order


def _are_in_order(earlier: str, later: str) -> bool | None:
    """Airflow's task instance ids are UUIDs of version 7, ordered by time. None for other ids."""
    try:
        first, second = UUID(earlier), UUID(later)
    except ValueError:
        return None
    return first < second if first.version == second.version == 7 else None


def result_of(run: DeliveryRun) -> r.DeliveryResult:
    """The result of a delivery that this run has completed, or another one while this one waited."""
    if run.finished is not None:
        return run.finished
    stored = r.DeliveryResult.from_json(run.chain.required(S.COMPLETED)["result"])
    return replace(stored, resumed_from=run.resumed_from, seconds=_seconds(run))


def _seconds(run: DeliveryRun) -> str:
    return f"{run.ports.clock.monotonic() - run.started:.3f}"
