"""Where a delivery stands when a call begins, and the one line of its log that says why it goes on there."""

from __future__ import annotations

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.finished import is_of_another_run, why_again
from airflow_dpone.delivery.history import History
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.delivery.states import ENDED, DeliveryState
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError

S = DeliveryState


def stored_window(
    journal: JournalPort, requester: r.Requester, moving: Window | None = None, first_ti_id: str = ""
) -> Window | None:
    """The window of the newest generation of a requester, None when it has none that counts.

    A window that moves with time is resolved once: a clear a week later means the same rows.

    :param moving: the window as it would be resolved now. It counts itself in a run that was deleted and made
        anew, unless a delivery is still open, and where the stored one is of another kind.
    :param first_ti_id: as in ``Request``.
    """
    newest = journal.newest_invocation(requester.delivery_key)
    if newest is None:
        return None
    stored = Window.of_key(newest.window_key)
    if moving is None:
        return stored
    task = journal.task(newest.delivery_key, requester.task_id)
    is_old = newest.state in ENDED and task is not None and is_of_another_run(task, requester, first_ti_id)
    return None if is_old or stored.is_full != moving.is_full else stored


def open_invocation(run: DeliveryRun) -> jr.Invocation:
    """The unfinished generation of this requester. Raises ConfigurationError when it has none."""
    newest = run.ports.journal.newest_invocation(run.requester.delivery_key)
    if newest is None or newest.state in ENDED:
        raise not_admitted(run.requester, newest)
    return newest


def not_admitted(requester: r.Requester, newest: jr.Invocation | None) -> ConfigurationError:
    """What a phase says that has nothing to go on with."""
    name = requester.delivery_task_id or requester.task_id
    if newest is None:
        text = f"{name} has no delivery in this run: nothing was admitted"
    else:
        text = f"generation {newest.generation} of {name} ended as {newest.state}"
    return ConfigurationError("dpone.delivery.not_admitted", text)


def look(run: DeliveryRun, found: jr.Invocation) -> None:
    """Takes chain and plan of a generation into the run, verified whole."""
    run.history = History.of(found.invocation_key, run.ports.journal.events(found.invocation_key))
    run.plan = FrozenPlan.from_json(run.history.required(S.PLANNED))


def where(run: DeliveryRun) -> str:
    """Generation and state, for the log."""
    return f"generation {run.frozen.generation} is at {run.state}"


def what(plan: FrozenPlan) -> str:
    """What is delivered where, for the log."""
    return f"{plan.window} into {plan.target.schema}.{plan.target.table}"


def why_resumed(run: DeliveryRun, found: jr.Invocation, events: tuple[jr.Event, ...]) -> str:
    """Who brought the delivery here, and how that ended."""
    writers = [event.body["requester"] for event in events if event.stream.startswith("delivery/")]
    task_id, number = writers[-1]["task_id"], writers[-1]["try_number"]
    if task_id != run.requester.task_id:
        return f"task {task_id}, try {number}, brought it here"
    error = f" (the last error was {found.last_error_code})" if found.last_error_code else ""
    return f"try {number} ended without finishing it{error}"


def why_opened(run: DeliveryRun, before: jr.Invocation | None) -> str:
    """Why a generation begins."""
    if before is None:
        return "nothing was delivered by it yet"
    if before.state is not S.COMPLETED:
        code = f" ({before.last_error_code})" if before.last_error_code else ""
        return f"generation {before.generation} ended as {before.state}{code}"
    why = "rerun=True"
    if not run.request.rerun:
        task = run.ports.journal.task(before.delivery_key, run.requester.task_id)
        done = why_again(task, run.requester, run.request.first_ti_id) if task else None
        why = f"{done or 'the task was cleared'} since"
    return f"generation {before.generation} was delivered and {why}"


def phase_result(run: DeliveryRun) -> r.PhaseResult:
    """What a call says that ended before the delivery did."""
    plan, extracted = run.frozen, run.chain.last(S.EXTRACTED) or {}
    return r.PhaseResult(
        phase=run.request.last_phase,
        state=str(run.state),
        delivery_key=plan.delivery_key,
        invocation_key=run.chain.invocation_key,
        generation=plan.generation,
        window=plan.window.key,
        target=(plan.target.schema, plan.target.table),
        rows=extracted.get("rows"),
        chunks=extracted.get("chunks"),
        bytes=extracted.get("encoded_bytes"),
        resumed_from=run.resumed_from,
        already=run.did_nothing,
        seconds=f"{run.ports.clock.monotonic() - run.started:.3f}",
    )
