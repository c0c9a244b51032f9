"""One generation, its journal and its target, under one lease; and the one way to make a step durable.

``step(intent, effect, outcome)`` is the rule of the whole engine: an intent about the target is in the
journal before the target changes, and what happened is in the journal before anything builds on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.history import Attempt, History
from airflow_dpone.delivery.lease_renewal import LeaseRenewal
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.delivery.ports import Deadline, RecoveryPorts, TargetPort
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState
from airflow_dpone.errors import DponeError, Fenced, JournalError

log = logging.getLogger(__name__)
_SHOWN = ("ordinal", "rows", "encoded_bytes", "fence", "code", "reason", "revision", "evidence_sha256")
_TOLD = frozenset({AttemptEvent.VERIFIED, AttemptEvent.PARTIAL_PROVED, AttemptEvent.UNKNOWN})
T = TypeVar("T")
Said = tuple[DeliveryState | DeliveryEvent, Mapping[str, Any]]
Item = Said | Attempt | jr.JournalWrite
"""What can be recorded: a delivery event with its payload, an attempt at its next event, or a row. Events get
their sequence numbers from the run."""


class LeasedRun:
    """What a delivery and a recovery command have in common: ports, lease, the folded chain, the frozen plan.

    Everything here is rebuilt from the journal by the next call; nothing in memory survives a crash and
    nothing has to.
    """

    def __init__(
        self, ports: RecoveryPorts, requester: r.Requester, deadline_sec: float, cancel: Cancel | None = None
    ) -> None:
        self.ports = ports
        self.requester = requester
        self.cancel = cancel or Cancel()
        self.deadline = Deadline.after(deadline_sec, self.cancel)
        self.renewal = LeaseRenewal(ports.journal, self.cancel)
        self.identity: tr.TargetIdentity | None = None
        self.lease: jr.Lease | None = None
        self.history: History | None = None
        self.plan: FrozenPlan | None = None
        self.gate_fence = 0
        self._target_blocks = 0
        self.unanswered: JournalError | None = None

    @property
    def state(self) -> DeliveryState | None:
        """The state of the generation that this run works on, None before it has one."""
        return self.history.state if self.history else None

    @property
    def chain(self) -> History:
        """The folded chain. Raises RuntimeError before admission has found or opened it."""
        if self.history is None:
            raise RuntimeError("no generation was admitted yet")
        return self.history

    @property
    def frozen(self) -> FrozenPlan:
        """The frozen plan. Raises RuntimeError before admission has found or made it."""
        if self.plan is None:
            raise RuntimeError("no plan was frozen yet")
        return self.plan

    @property
    def held_lease(self) -> jr.Lease:
        """The lease. Raises RuntimeError while this run holds none."""
        if self.lease is None:
            raise RuntimeError("the run holds no lease")
        return self.lease

    def record(self, *items: Item) -> None:
        """Writes events and rows in one guarded journal transaction, then takes note of them.

        Raises Fenced when another process has taken over; then nothing was written. After a journal error
        every later event raises the same one: a write whose answer was lost may have landed, so only the next
        call, which reads the chain, knows what comes next.
        """
        writes = self._numbered(items)
        tells = any(isinstance(write, jr.AppendDelivery | jr.AppendAttempt) for write in writes)
        if tells and self.unanswered is not None:
            raise self.unanswered
        self.cancel.check()
        try:
            self.ports.journal.append(self.held_lease, *writes)
        except JournalError as error:
            self.unanswered = error
            raise
        for write in writes:
            self.chain.apply(write)
            self._log(write)

    def step(
        self,
        intent: Sequence[Item],
        effect: Callable[[], T],
        outcome: Callable[[T], Sequence[Item]] = lambda _: (),
        undo: Callable[[T], object] | None = None,
    ) -> T:
        """Journals ``intent``, does ``effect``, journals ``outcome`` of its answer. A crash in between leaves
        the intent, by which the next call finds out what happened.

        :param undo: takes the effect back when this process was replaced meanwhile: its successor has looked
            before the effect was there, and would never look again.
        """
        if intent:
            self.record(*intent)
        answer = effect()
        said = outcome(answer)
        try:
            if said:
                self.record(*said)
        except Fenced:
            if undo is not None:
                undo(answer)
            raise
        return answer

    def new_fence(self) -> int:
        """A fence that no send and no probe has used: greater than the journal's and the gate's."""
        gate = self.identity.gate if self.identity else None
        lease, gate_fence = self.held_lease, gate.fence if gate else 0
        journal = self.ports.journal
        try:
            self.lease = self.renewal.change(lambda: journal.raise_fence(lease, gate_fence=gate_fence))
        except JournalError as error:
            self.unanswered = error
            raise
        return self.lease.fence

    def look_again(self) -> None:
        """Folds the chain anew, as the journal holds it now."""
        key = self.chain.invocation_key
        self.history = History.of(key, self.ports.journal.events(key))

    @property
    def claim(self) -> tr.Claim:
        """By which this process may make staging tables."""
        lease = self.held_lease
        return tr.Claim(lease.target_key, lease.fence)

    def hold(self, lease: jr.Lease) -> None:
        """Works under this lease from now on, and keeps it alive until :meth:`let_go`."""
        self.lease = lease
        self.renewal.start(lease)

    def let_go(self) -> None:
        """Gives the lease back, if there is one. Nothing depends on it: one that is not given back expires,
        and the fence protects meanwhile."""
        self.renewal.stop()
        if self.lease is None:
            return
        try:
            self.ports.journal.release(self.lease)
        except DponeError as error:
            log.warning("the lease could not be given back, it expires by itself: %s", error.code)

    @contextmanager
    def open_target(self) -> Iterator[TargetPort]:
        """The target, open inside the block; blocks may be nested."""
        with ExitStack() as stack:
            if self._target_blocks == 0:
                self.ports.target.delivery = self.requester.delivery_key
                stack.enter_context(self.ports.target)
            self._target_blocks += 1
            try:
                yield self.ports.target
            finally:
                self._target_blocks -= 1

    def progress(self, phase: str, done: int, total: int | None, unit: str) -> None:
        """Tells the caller how far a phase is."""
        if self.ports.progress is not None:
            self.ports.progress(phase, done, total, unit)

    def _numbered(self, items: Sequence[Item]) -> list[jr.JournalWrite]:
        writes: list[jr.JournalWrite] = []
        sequence = self.chain.next_sequence
        attempts: dict[str, int] = {}
        for item in items:
            if isinstance(item, tuple):
                event, payload = item
                writes.append(jr.AppendDelivery(self.chain.invocation_key, sequence, event, payload))
                sequence += 1
            elif isinstance(item, Attempt):
                number = attempts.get(item.attempt_id, item.next_sequence)
                writes.append(_attempt_write(self.chain.invocation_key, item, number))
                attempts[item.attempt_id] = number + 1
            else:
                writes.append(item)
        return writes

    def _log(self, write: jr.JournalWrite) -> None:
        if isinstance(write, jr.AppendDelivery):
            level, name, payload = logging.INFO, write.event.value, write.payload
        elif isinstance(write, jr.AppendAttempt):
            level = logging.INFO if write.event in _TOLD else logging.DEBUG
            name, payload = f"CHUNK_{write.event.value}", write.artifact_binding
        else:
            return
        facts = " ".join(f"{key}={payload[key]}" for key in _SHOWN if payload.get(key) is not None)
        log.log(
            level, "%s delivery=%s gen=%s %s", name, self.chain.invocation_key[:6], self._generation, facts
        )

    @property
    def _generation(self) -> int | str:
        return self.plan.generation if self.plan else "-"


def _attempt_write(invocation_key: str, attempt: Attempt, sequence: int) -> jr.AppendAttempt:
    return jr.AppendAttempt(
        invocation_key=invocation_key,
        ordinal=attempt.ordinal,
        attempt_id=attempt.attempt_id,
        sequence=sequence,
        event=attempt.event,
        stage_binding=attempt.stage_binding,
        artifact_binding=attempt.artifact_binding,
        writer_binding=attempt.writer_binding,
        observation=attempt.observation,
    )
