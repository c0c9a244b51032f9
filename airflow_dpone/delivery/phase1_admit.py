"""Phase 1: may this delivery run, and from where?

One identity query at the target, then lease and custody, then either the open generation is resumed (target
before source) or a new plan is frozen. All refusals of source and target come in one error and leave nothing
durable behind.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from airflow_dpone.delivery import drift, new_table, recover, standing, survey
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.finished import finished_result
from airflow_dpone.delivery.governed import refuse_foreign_gate
from airflow_dpone.delivery.history import History
from airflow_dpone.delivery.planning import (
    FrozenPlan,
    request_problems,
    route_scope,
)
from airflow_dpone.delivery.run import DeliveryRun, Phase
from airflow_dpone.delivery.states import (
    BEFORE_PUBLICATION,
    ENDED,
    IN_DOUBT,
    DeliveryEvent,
    DeliveryState,
    ReleaseReason,
)
from airflow_dpone.errors import (
    CapacityError,
    ConfigurationError,
    CustodyHeld,
    Incident,
    JournalError,
    LeaseHeld,
    TargetBusy,
    TargetRejected,
)

log = logging.getLogger(__name__)
S = DeliveryState
POLL_SEC = 2.0


def admit(run: DeliveryRun) -> None:
    """All steps of admission. Afterwards the run has a lease, a frozen plan and a raised gate."""
    problems = request_problems(run.request.route, run.request.window, run.ports.writer.backend)
    if problems:
        raise ConfigurationError.of(problems)
    with identified_target(run):
        held = take_lease(run)
        if held is None:
            go_on(run)
            return
    wait_for_lease(run, held)
    with identified_target(run):
        go_on(run)


@contextmanager
def identified_target(run: DeliveryRun) -> Iterator[None]:
    """The target, open and identified. What stands against that comes with everything else that stands
    against a delivery that would begin now."""
    with ExitStack() as stack:
        is_open = False
        try:
            stack.enter_context(run.open_target())
            is_open = True
            identify_target(run)
        except (ConfigurationError, TargetBusy) as error:
            newest = run.ports.journal.newest_invocation(run.requester.delivery_key)
            if run.request.may_open and (newest is None or newest.state in ENDED):
                survey.refuse_whole(run, error, is_open=is_open)
            raise
        yield


def go_on(run: DeliveryRun) -> None:
    """Under the lease: what was finished meanwhile, what is open, what is new."""
    run.finished = finished_result(run)
    if run.finished is None:
        for step in (resume_open_generation, freeze_plan, claim_gate):
            step(run)


def wait_for_lease(run: DeliveryRun, held: CustodyHeld | LeaseHeld) -> None:
    """Asks the journal again every two seconds; nothing else is open meanwhile.

    Raises the newest refusal when ``custody_wait_sec``, counted from the start of the call, is over; for a
    process that is in the way also ``lease_wait_sec``.
    """
    clock = run.ports.clock
    told = ""
    while True:
        bound = run.request.custody_wait_sec
        if isinstance(held, LeaseHeld):
            bound = max(bound, run.request.lease_wait_sec)
        left = bound - (clock.monotonic() - run.started)
        in_vain = held.fields.get("state") == S.INCIDENT  # it ends by a person's decision only
        if left <= 0 or in_vain or run.deadline.remaining_sec() <= 0:
            raise held
        if told != held.code:
            log.info("%s Waiting for up to %.0f s.", held.message, left)
            told = held.code
        clock.sleep(min(POLL_SEC, left))
        refusal = take_lease(run)
        if refusal is None:
            return
        held = refusal


def identify_target(run: DeliveryRun) -> None:
    """One query: installation, stored names, incarnation, gate. Nothing else is asked before it is known who
    rules."""
    route, journal = run.request.route, run.ports.journal
    found = run.ports.target.identify(
        *route.target_table, initialise=True, may_be_missing=route.options.create_target
    )
    run.identity = found
    if found.gate is not None:
        refuse_foreign_gate(journal, found, found.gate)


def take_lease(run: DeliveryRun) -> CustodyHeld | LeaseHeld | None:
    """Lease and fence = max(journal, gate) + 1, or who is in the way.

    The open delivery of this requester must be about the same target.
    """
    found, requester = _identity(run), run.requester
    newest = run.ports.journal.newest_invocation(requester.delivery_key)
    if newest and newest.state not in ENDED and newest.target_key != found.target_key:
        text = "this task has an unfinished delivery into another target, which must end first"
        raise ConfigurationError(
            "dpone.config.target_changed_while_held", text, invocation_key=newest.invocation_key
        )
    gate_fence = found.gate.fence if found.gate else 0
    ttl_sec = run.request.lease_ttl_sec
    try:
        lease = run.ports.journal.acquire(found.target_key, requester, ttl_sec=ttl_sec, gate_fence=gate_fence)
    except (CustodyHeld, LeaseHeld) as held:
        return held
    run.hold(lease)
    return None


def resume_open_generation(run: DeliveryRun) -> None:
    """Reads the chain of an unfinished generation, verified whole, and settles what is open in the target
    first."""
    newest = run.ports.journal.newest_invocation(run.requester.delivery_key)
    if newest is None or newest.state in ENDED:
        return
    events = run.ports.journal.events(newest.invocation_key)
    history = History.of(newest.invocation_key, events)
    run.plan = FrozenPlan.from_json(history.required(S.PLANNED)).tuned(run.request.route)
    run.history = history
    run.resumed_from = run.state
    why, what = standing.why_resumed(run, newest, events), standing.what(run.frozen)
    log.info("resumed at %s: %s; %s", run.state, why, what)
    run.record(
        jr.PutNote(newest.invocation_key, resume_state=str(run.state)),
        jr.PutTask(newest.delivery_key, newest.generation, run.requester),
    )
    _target_is_not_ahead(run)
    _same_incarnation(run)
    if run.state is S.INCIDENT:
        reason = history.required(S.INCIDENT)["reason"]
        raise Incident("dpone.delivery.incident", f"an incident is open: {reason}", reason=reason)
    if run.state in IN_DOUBT:
        recover.settle_publication(run)
    _note_tuning(run)


def _target_is_not_ahead(run: DeliveryRun) -> None:
    """The gate names this generation's publication while the journal says that there was none."""
    gate = _identity(run).gate
    if (
        gate is None
        or gate.last_operation_id != run.frozen.operation_id
        or run.state not in BEFORE_PUBLICATION
    ):
        return
    if run.chain.last(S.PUBLISHING) is None:
        text = "the target has published this generation and the journal has forgotten it: its end was lost"
        raise JournalError("dpone.journal.older_than_target", text, journal_id=run.ports.journal.journal_id)
    text = "the target has published this generation although it was proved not effective"
    raise Incident("dpone.publish.receipt_differs", text, operation_id=run.frozen.operation_id)


def _same_incarnation(run: DeliveryRun) -> None:
    found, planned = _identity(run), run.frozen.target
    if run.state is S.CHECKPOINTED:
        return  # nothing is left to do with the table itself
    if (found.object_id, found.created) == (planned.object_id, planned.created):
        return
    text = (
        f"{planned.schema}.{planned.table} was dropped and created again (or lost the comment that marks it)"
    )
    if run.state in BEFORE_PUBLICATION:
        raise TargetRejected("dpone.target.replaced", f"{text} before anything was published into it")
    raise Incident("dpone.target.incarnation_gone", f"{text} while a delivery of it was open")


def _note_tuning(run: DeliveryRun) -> None:
    told = [run.chain.required(S.PLANNED)["tuning"], *run.chain.all(DeliveryEvent.TUNED)]
    if run.frozen.tuning != told[-1]:
        run.record((DeliveryEvent.TUNED, run.frozen.tuning))


def freeze_plan(run: DeliveryRun) -> None:
    """Introspects both sides and freezes the plan; a generation that is still PLANNED is planned anew if the
    configuration's identity changed, later ones keep their plan and the difference is named. A call that may
    not open a generation keeps the plan that it finds."""
    if run.history is not None and run.state not in (S.PLANNED, S.EXTRACTED, S.STAGED, S.PREPARED):
        return
    if run.history is not None and (run.state is not S.PLANNED or not run.request.may_open):
        drift.refuse(run)
        _name_changes(run)
        return
    before = run.ports.journal.newest_invocation(run.requester.delivery_key)
    if not run.request.may_open:
        raise standing.not_admitted(run.requester, before)
    _check_space(run)
    planned = plan_delivery(run, run.frozen.generation if run.plan else _next_generation(run))
    if run.history is not None:
        same_table = planned.source_uuid == run.frozen.source_uuid
        if same_table and planned.invocation_key == run.frozen.invocation_key:
            return
        log.info("the configuration or the source table changed before anything was extracted: planning anew")
        recover.retire(run, S.RETIRED, {"reason": "replanned"}, ReleaseReason.NONPUBLICATION)
        planned = replace(planned, generation=_next_generation(run))
        before = run.ports.journal.newest_invocation(run.requester.delivery_key)
    why, what = standing.why_opened(run, before), standing.what(planned)
    log.info("generation %s begins: %s; %s", planned.generation, why, what)
    run.history = History(planned.invocation_key)
    run.plan = planned
    run.record(
        jr.OpenInvocation(
            delivery_key=planned.delivery_key,
            generation=planned.generation,
            invocation_key=planned.invocation_key,
            target_key=planned.target.target_key,
            route_scope=planned.route_scope,
            window_key=planned.window.key,
            plan_sha256=planned.sha256,
            requester=run.requester,
        ),
        (S.PLANNED, planned.to_json()),
        jr.HoldCustody(planned.invocation_key),
        jr.PutTask(planned.delivery_key, planned.generation, run.requester),
    )


def _next_generation(run: DeliveryRun) -> int:
    """Above every generation that this journal opened or that another journal published in this database."""
    key = run.requester.delivery_key
    newest = run.ports.journal.newest_invocation(key)
    return max(newest.generation if newest else 0, run.ports.target.newest_generation(key)) + 1


def _check_space(run: DeliveryRun) -> None:
    free, needed = run.ports.spool.free_bytes(), run.request.route.limits.max_bytes
    if free < needed:
        text = f"the spool has {free} bytes free, one chunk may take {needed}"
        raise CapacityError("dpone.spool.no_space", text, free_bytes=free, needed_bytes=needed)


def make_target(run: DeliveryRun) -> None:
    """Makes the missing table and asks again who it is: another process, or another journal, may have been
    faster.

    Raises TargetBusy when it has other names now than the ones that the lease was taken for: names may differ
    in case.
    """
    wanted = _identity(run)
    _, into, _, _ = survey.admitted(run, wanted)
    new_table.create(run, wanted, into.columns)
    identify_target(run)
    found = _identity(run)
    if found.target_key != wanted.target_key:
        text = f"{wanted.schema}.{wanted.table} was made meanwhile as {found.schema}.{found.table}"
        raise TargetBusy("dpone.target.busy", f"{text}: this call has reserved the other name")


def plan_delivery(run: DeliveryRun, generation: int) -> FrozenPlan:
    """Introspection, mapping, query. Raises one ConfigurationError with every refusal of both sides."""
    route, window, ports = run.request.route, run.request.window, run.ports
    if _identity(run).is_missing:
        make_target(run)
    found = _identity(run)
    source, target, mapping, query = survey.admitted(run, found)
    for seen in target.observations:
        log.info("observed at the target, nothing is reserved: %s", seen)
    target_window = next((c.wire.name for c in mapping.columns if c.source == route.window_column), None)
    return FrozenPlan(
        delivery_key=run.requester.delivery_key,
        generation=generation,
        target=tr.TargetRef(
            found.target_key, found.schema, found.table, found.object_id, found.created, target.fingerprint
        ),
        route_scope=route_scope(route),
        window=window,
        window_column=route.window_column,
        target_window_column=None if window.is_full else target_window,
        strategy=route.strategy,
        source_schema_sha256=source.schema_sha256,
        source_uuid=source.uuid,
        source_server_id=source.server_id,
        query=query,
        columns=mapping.columns,
        writer_backend=ports.writer.backend,
        proof_capability=ports.writer.proof_capability,
        quality=route.quality,
        options=route.options,
        limits=route.limits,
    )


def _name_changes(run: DeliveryRun) -> None:
    """A resumed delivery keeps its frozen plan; what the configuration says differently is logged."""
    route, plan = run.request.route, run.frozen
    now: dict[str, object] = {
        "window": run.request.window.key,
        "strategy": route.strategy,
        "window_column": route.window_column,
        "source_table": list(route.source_table),
        "fail_on_null": route.options.fail_on_null,
    }
    then: dict[str, object] = {
        "window": plan.window.key,
        "strategy": plan.strategy,
        "window_column": plan.window_column,
        "source_table": [plan.query.database, plan.query.table],
        "fail_on_null": plan.options.fail_on_null,
    }
    if route.columns is not None:
        now["columns"] = sorted(route.columns)
        then["columns"] = sorted((c.source, c.wire.name) for c in plan.columns)
    changed = sorted(name for name, value in now.items() if value != then[name])
    if changed:
        log.warning("plan_changed: %s; this delivery goes on with its frozen plan", ", ".join(changed))


def claim_gate(run: DeliveryRun) -> None:
    """Raises the target's gate to this run's fence, so that nothing older can publish any more."""
    fence = run.held_lease.fence
    if run.state not in BEFORE_PUBLICATION or run.gate_fence == fence:
        return
    run.ports.target.claim_gate(
        run.frozen.target,
        journal_id=run.ports.journal.journal_id,
        route_scope=run.frozen.route_scope,
        fence=fence,
        take_over=run.request.route.options.take_over_target,
    )
    run.gate_fence = fence


def _identity(run: DeliveryRun) -> tr.TargetIdentity:
    if run.identity is None:
        raise RuntimeError("the target was not identified yet")
    return run.identity


PHASE = Phase("admit", None, (admit,))
