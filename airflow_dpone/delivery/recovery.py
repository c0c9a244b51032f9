"""The ways out that no retry finds by itself: a person decides, these commands do it.

``adopt_target`` binds a table to this journal: the table was governed by another one, or this one was put
back to an older copy. ``retire`` gives an unfinished delivery up, an incident too.

Both say what they begin in the journal first (INCIDENT, ``dpone.recovery.begun``), then raise the target's
gate, so that nothing that was sent before can become effective, and only then look for the receipt. A
publication that is there, and that the journal can prove, ends in PUBLISHED; everything else in RETIRED.
After a crash the same command again ends what it began.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import owned, phase7_checkpoint
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.crash_points import observe
from airflow_dpone.delivery.governed import refuse_foreign_gate
from airflow_dpone.delivery.history import History
from airflow_dpone.delivery.leased_run import LeasedRun
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.delivery.ports import RecoveryPorts, TargetPort
from airflow_dpone.delivery.states import (
    BEFORE_PUBLICATION,
    ENDED,
    PUBLISHED_OR_LATER,
    DeliveryEvent,
    DeliveryState,
    DiagnosticCode,
    ReleaseReason,
)
from airflow_dpone.errors import ConfigurationError

log = logging.getLogger(__name__)
S = DeliveryState
BEGUN = "dpone.recovery.begun"
LEASE_TTL_SEC = 60.0
DEADLINE_SEC = 14_400.0


@dataclass(frozen=True)
class Settled:
    """What became of an unfinished delivery.

    :param state_after: PUBLISHED (clear its task to finish it), RETIRED, COMPLETED, or as before.
    :param left: staging tables that carry another mark than this delivery's, and were not touched.
    """

    invocation_key: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    generation: int
    state_before: str
    state_after: str
    left: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recovery:
    """What a command did, or would do.

    :param needed: False when target and journal agree already. :param done: whether it was done.
    :param journal_before: the journal that governed the target; None where the target has no gate.
    :param fence_before: the gate's fence. :param fence: the gate's fence now.
    """

    command: str
    target: tuple[str, str]
    journal_id: str
    journal_before: str | None
    fence_before: int | None
    needed: bool
    done: bool
    fence: int | None = None
    delivery: Settled | None = None

    def to_json(self) -> r.Json:
        """``dpone.recovery.v1``; fences are decimal strings."""
        body = asdict(self)
        for name in ("fence_before", "fence"):
            body[name] = None if body[name] is None else str(body[name])
        return {"schema": "dpone.recovery.v1", **body, "target": list(self.target)}


def adopt_target(ports: RecoveryPorts, schema: str, table: str, *, dry_run: bool = False) -> Recovery:
    """Binds a table to this journal: raises the gate above both fences and gives it this journal's id.

    An unfinished delivery of this journal into the table is settled: the journal cannot know what happened
    since. One that was published with all its proofs is PUBLISHED, any other is RETIRED and its window can be
    delivered again. The journal must be open. Raises ConfigurationError where no journal governs the table,
    and LeaseHeld while a process works on it.
    """
    ports = observe(ports)
    with ports.target as target:
        found = target.identify(schema, table, initialise=False)
        gate = found.gate
        if gate is None:
            text = f"{schema}.{table} has no gate: no delivery has claimed it yet"
            raise ConfigurationError("dpone.recovery.nothing_to_adopt", text)
        holder = _holder(ports, found.target_key)
        run = _run(ports, "adopt-target", holder)
        facts = Recovery(
            command="adopt-target",
            target=(found.schema, found.table),
            journal_id=ports.journal.journal_id,
            journal_before=gate.journal_id,
            fence_before=gate.fence,
            needed=_is_needed(run, gate),
            done=False,
            delivery=None if holder is None else _delivery(holder),
        )
        if dry_run or not facts.needed:
            return facts
        act = partial(_adopt, run, facts, gate)
        return _under_lease(run, facts, found.target_key, gate.fence, act)


def retire(
    ports: RecoveryPorts, invocation_key: str, *, target_lost: bool = False, dry_run: bool = False
) -> Recovery:
    """Gives an unfinished delivery up: what it owns is removed, the target is released, the state is RETIRED.

    If its publication turns out to be effective and proved, and the table is still the same one, it is
    PUBLISHED instead; one that only had to be cleaned up is COMPLETED. The rows of the target never change
    here; the task's next call delivers the window as the next generation.

    :param target_lost: the database is the right one although it does not know the delivery's target any
        more (its ``dpone`` schema was dropped).

    Raises ConfigurationError for a delivery that is unknown or has ended, and for a database that does
    not know its target; LeaseHeld while a process works on it.
    """
    ports = observe(ports)
    found = _open_delivery(ports, invocation_key)
    run = _run(ports, "retire", found)
    planned = run.frozen.target
    with ports.target as target:
        gate = _gate_of(target, planned, target_lost=target_lost)
        if gate is not None:
            refuse_foreign_gate(ports.journal, planned, gate)
        facts = Recovery(
            command="retire",
            target=(planned.schema, planned.table),
            journal_id=ports.journal.journal_id,
            journal_before=None if gate is None else gate.journal_id,
            fence_before=None if gate is None else gate.fence,
            needed=True,
            done=False,
            delivery=_delivery(found),
        )
        if dry_run:
            return facts
        return _under_lease(run, facts, planned.target_key, 0, partial(_retire, run, facts))


# ---- what each of them does under the lease ----------------------------------------------------------------


def _adopt(run: LeasedRun, facts: Recovery, gate: tr.GateRow) -> Recovery:
    holder = _holder(run.ports, gate.target_key)
    if holder is not None:
        _look_again(run, holder)
    unsure = holder is not None and not _is_published(run) and not _is_another_incident(run)
    if unsure:
        _begin(run, "the table is bound to this journal anew; what happened since is not known here")
    _raise_gate(run, gate.target_key, take_over=True)
    done = _done(run, facts, gate)
    return _settled(run, done, holder, gate) if holder is not None and unsure else done


def _retire(run: LeasedRun, facts: Recovery) -> Recovery:
    found = _open_delivery(run.ports, run.chain.invocation_key)
    _look_again(run, found)
    if run.state is S.CHECKPOINTED:
        return _complete(run, facts, found)
    _begin(run, "the delivery is given up")
    gate = _raise_gate(run, run.frozen.target.target_key, take_over=False)
    return _settled(run, _done(run, facts, gate), found, gate)


def _complete(run: LeasedRun, facts: Recovery, found: jr.Invocation) -> Recovery:
    """All of it is delivered and evidenced; only what cannot be cleaned up any more stood in the way."""
    left = owned.remove_ours(run, DiagnosticCode.PUBLISHED_CLEANUP)
    run.record(*phase7_checkpoint.completion(run))
    done = _done(run, facts, None)
    return replace(done, delivery=_delivery(found, state_after=str(run.state), left=left))


def _settled(run: LeasedRun, done: Recovery, found: jr.Invocation, gate: tr.GateRow | None) -> Recovery:
    left = _settle(run, gate)
    published = run.state is S.PUBLISHED
    note = "Clear the task: it finishes what is published." if published else ""
    reason = f"settled by {run.requester.task_id}"
    run.record(jr.PutNote(found.invocation_key, last_error_code="", reason=reason, next_action=note))
    return replace(done, delivery=_delivery(found, state_after=str(run.state), left=left))


def _settle(run: LeasedRun, gate: tr.GateRow | None) -> tuple[str, ...]:
    """PUBLISHED when the target holds a receipt of what the journal proved, and still is that table; RETIRED
    otherwise."""
    operation_id = run.frozen.operation_id
    receipt = None if gate is None else run.ports.target.read_receipt(operation_id)
    if receipt is not None and _is_proved(run, receipt) and _is_same_table(run):
        run.record((S.PUBLISHED, {"receipt": receipt.to_json(), "receipt_sha256": receipt.receipt_sha256}))
        return ()
    was_published = receipt is not None or (gate is not None and gate.last_operation_id == operation_id)
    left = owned.remove_ours(run, DiagnosticCode.NONPUBLICATION)
    why = "published_without_proof" if was_published else "given_up"
    reason = ReleaseReason.PUBLISHED_CLEANUP if was_published else ReleaseReason.NONPUBLICATION
    run.record(
        (S.RETIRED, {"reason": why}),
        (DeliveryEvent.CUSTODY_RELEASED, {"reason": reason.value}),
        jr.ReleaseCustody(run.chain.invocation_key, reason),
    )
    return left


def _is_same_table(run: LeasedRun) -> bool:
    planned = run.frozen.target
    try:
        found = run.ports.target.identify(planned.schema, planned.table, initialise=False)
    except ConfigurationError:
        return False
    return (found.object_id, found.created) == (planned.object_id, planned.created)


def _is_proved(run: LeasedRun, receipt: tr.Receipt) -> bool:
    """Whether the receipt is of this generation and of exactly the content of its prepared table."""
    plan, draft = run.frozen, receipt.draft
    prepared = run.chain.last(S.PREPARED)
    if prepared is None or draft.sha256 != receipt.receipt_sha256:
        return False
    proved = {
        "target_key": plan.target.target_key,
        "delivery_key": plan.delivery_key,
        "generation": plan.generation,
        "invocation_key": run.chain.invocation_key,
        "route_scope": plan.route_scope,
        "window_key": plan.window.key,
        "wire_layout_sha256": plan.layout.sha256,
        "row_count": prepared["rows"],
        "digest": prepared["digest"],
    }
    return all(getattr(draft, name) == value for name, value in proved.items())


# ---- parts -------------------------------------------------------------------------------------------------


def _run(ports: RecoveryPorts, command: str, found: jr.Invocation | None) -> LeasedRun:
    """A run of the command, on the delivery if there is one: the journal shows who has written its events."""
    name = f"recovery {command}"
    if found is None:
        return LeasedRun(ports, r.Requester("dpone", "recovery", name, ti_id=name), DEADLINE_SEC)
    asked = r.Requester(
        found.dag_id,
        found.run_id,
        name,
        map_index=found.map_index,
        ti_id=name,
        delivery_task_id=found.delivery_task_id,
    )
    run = LeasedRun(ports, asked, DEADLINE_SEC)
    _look_again(run, found)
    return run


def _look_again(run: LeasedRun, found: jr.Invocation) -> None:
    """Folds the chain of a delivery as it is now: before the lease was ours, its own process may have gone
    on."""
    run.history = History.of(found.invocation_key, run.ports.journal.events(found.invocation_key))
    run.plan = FrozenPlan.from_json(run.history.required(S.PLANNED))


def _under_lease(
    run: LeasedRun, facts: Recovery, target_key: str, gate_fence: int, act: Callable[[], Recovery]
) -> Recovery:
    lease = run.ports.journal.acquire(target_key, run.requester, ttl_sec=LEASE_TTL_SEC, gate_fence=gate_fence)
    run.hold(lease)
    try:
        done = act()
    finally:
        run.let_go()
    log.info("%s of %s.%s is done", facts.command, *facts.target)
    return done


def _begin(run: LeasedRun, said: str) -> None:
    if run.state is not S.INCIDENT:
        run.record((S.INCIDENT, {"reason": BEGUN, "said": said, "resumes_from": str(run.state)}))


def _raise_gate(run: LeasedRun, target_key: str, *, take_over: bool) -> tr.GateRow | None:
    journal = run.ports.journal
    return run.ports.target.adopt_gate(
        target_key, journal_id=journal.journal_id, fence=run.held_lease.fence, take_over=take_over
    )


def _done(run: LeasedRun, facts: Recovery, gate: tr.GateRow | None) -> Recovery:
    fence = None if gate is None else run.held_lease.fence
    return replace(facts, done=True, fence=fence)


def _delivery(found: jr.Invocation, *, state_after: str | None = None, left: tuple[str, ...] = ()) -> Settled:
    return Settled(
        invocation_key=found.invocation_key,
        dag_id=found.dag_id,
        run_id=found.run_id,
        task_id=found.delivery_task_id,
        map_index=found.map_index,
        generation=found.generation,
        state_before=str(found.state),
        state_after=state_after or str(found.state),
        left=left,
    )


def _holder(ports: RecoveryPorts, target_key: str) -> jr.Invocation | None:
    key = ports.journal.custody(target_key).holder_key
    return None if key is None else ports.journal.invocation(key)


def _open_delivery(ports: RecoveryPorts, invocation_key: str) -> jr.Invocation:
    found = ports.journal.invocation(invocation_key)
    if found is None:
        text = f"the journal knows no delivery {invocation_key}"
    elif found.state in ENDED:
        text = f"the delivery has ended as {found.state}"
    else:
        return found
    raise ConfigurationError("dpone.recovery.nothing_to_retire", text, invocation_key=invocation_key)


def _is_needed(run: LeasedRun, gate: tr.GateRow) -> bool:
    journal = run.ports.journal
    if gate.journal_id != journal.journal_id or gate.fence > journal.fence(gate.target_key):
        return True
    if run.history is None:
        return False
    begun = run.state is S.INCIDENT and run.chain.required(S.INCIDENT)["reason"] == BEGUN
    ahead = run.state in BEFORE_PUBLICATION and gate.last_operation_id == run.frozen.operation_id
    return begun or ahead


def _is_published(run: LeasedRun) -> bool:
    return run.state in PUBLISHED_OR_LATER


def _is_another_incident(run: LeasedRun) -> bool:
    return run.state is S.INCIDENT and run.chain.required(S.INCIDENT)["reason"] != BEGUN


def _gate_of(target: TargetPort, planned: tr.TargetRef, *, target_lost: bool) -> tr.GateRow | None:
    """The gate of the delivery's target, as far as the table is still there."""
    found = None
    try:
        found = target.identify(planned.schema, planned.table, initialise=False)
    except ConfigurationError as error:
        log.info("the target cannot be identified: %s", error.code)
    if found is not None and found.installation_id is not None and found.target_key == planned.target_key:
        return found.gate
    if target_lost:
        return None
    text = f"this database does not know {planned.schema}.{planned.table} as this delivery's target"
    raise ConfigurationError("dpone.recovery.target_unknown", text)
