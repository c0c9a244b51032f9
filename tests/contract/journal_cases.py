"""What the tests of a journal write: one delivery, told step by step, and the stores that it is told to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.identity import key_of, sha256_hex
from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState, ReleaseReason
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_examples import bindings, evidence_body
from tests.contract.journal_examples import payload as example

S, D, A = DeliveryState, DeliveryEvent, AttemptEvent

TARGET = key_of(["target"])
OTHER_TARGET = key_of(["another target"])
ROUTE = key_of(["route"])
WINDOW = "2025-01-01T00:00:00.000000Z/2025-01-02T00:00:00.000000Z"
TTL_SEC = 60.0

TO_PUBLISHED = (S.EXTRACTED, S.STAGED, S.PREPARED, S.PUBLISHING, S.PUBLISHED)
TO_COMPLETED = (*TO_PUBLISHED, S.EVIDENCED, S.CHECKPOINTED, S.COMPLETED)
RELEASED = ReleaseReason.PUBLISHED_CLEANUP


class Store(Protocol):
    """Somewhere a journal lives; ``open`` gives one more independent session of it."""

    def open(self) -> JournalPort: ...


class SqliteStore:
    """A journal in a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.db"
        self.path.write_bytes(_migrated())

    def open(self) -> JournalPort:
        return open_journal(self.path)


@cache
def _migrated() -> bytes:
    """A new journal's file, made once: migrating costs more than most tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "journal.db")
        migrate(path)
        return path.read_bytes()


STORES: dict[str, Callable[[Path], Store]] = {"sqlite": SqliteStore}
"""Every implementation of the port that the contract is proved on."""


def requester(run: str = "run-1", *, try_number: int = 1, task_id: str = "load", **more: Any) -> r.Requester:
    more.setdefault("ti_id", f"{run}/{try_number}")
    return r.Requester("sales", run, task_id, try_number=try_number, max_tries=2, **more)


@dataclass
class Delivery:
    """One generation of one requester, and the lease that its process holds."""

    journal: JournalPort
    lease: jr.Lease
    generation: int = 1
    sequence: int = 0
    attempts: dict[str, int] = field(default_factory=dict)

    @property
    def invocation_key(self) -> str:
        return key_of([self.lease.requester.delivery_key, self.generation])

    def opening(self) -> jr.OpenInvocation:
        asked = self.lease.requester
        return jr.OpenInvocation(
            asked.delivery_key,
            self.generation,
            self.invocation_key,
            self.lease.target_key,
            ROUTE,
            WINDOW,
            key_of(["plan", self.generation]),
            asked,
        )

    def event(
        self, event: DeliveryState | DeliveryEvent, payload: Mapping[str, Any] | None = None
    ) -> jr.AppendDelivery:
        """The next event of the stream, counted as if it will land."""
        write = jr.AppendDelivery(
            self.invocation_key, self.sequence, event, example(event) if payload is None else payload
        )
        self.sequence += 1
        return write

    def attempt(self, event: AttemptEvent, name: str = "a") -> jr.AppendAttempt:
        sequence = self.attempts.get(name, 0)
        self.attempts[name] = sequence + 1
        ordinal = ord(name[0]) - ord("a")
        return jr.AppendAttempt(
            self.invocation_key,
            ordinal=ordinal,
            attempt_id=key_of([self.invocation_key, name]),
            sequence=sequence,
            event=event,
            **bindings(event, ordinal),
        )

    def plan(self) -> None:
        """PLANNED with the plan and custody, in one transaction."""
        hold = jr.HoldCustody(self.invocation_key)
        self.journal.append(self.lease, self.opening(), self.event(S.PLANNED), hold)

    def go(self, *states: DeliveryState) -> None:
        """Moves on, one transaction for each state; an end gives custody back."""
        for state in states:
            writes: list[jr.JournalWrite] = [self.event(state)]
            if state in (S.COMPLETED, S.FAILED, S.RETIRED):
                writes.append(jr.ReleaseCustody(self.invocation_key, RELEASED))
            self.journal.append(self.lease, *writes)

    def state(self) -> DeliveryState | None:
        found = self.journal.invocation(self.invocation_key)
        return None if found is None else found.state


def begin(journal: JournalPort, asked: r.Requester | None = None, **more: Any) -> Delivery:
    """A planned delivery whose lease is held."""
    delivery = Delivery(journal, take(journal, asked, **more))
    delivery.plan()
    return delivery


def take(
    journal: JournalPort,
    asked: r.Requester | None = None,
    *,
    target: str = TARGET,
    ttl_sec: float = TTL_SEC,
    gate_fence: int = 0,
) -> jr.Lease:
    return journal.acquire(target, asked or requester(), ttl_sec=ttl_sec, gate_fence=gate_fence)


def checkpoint(revision: int = 1, window: str = WINDOW, **more: Any) -> jr.Checkpoint:
    names = ("delivery_key", "operation_id", "receipt_sha256", "evidence_sha256")
    values: dict[str, Any] = {name: key_of([name]) for name in names}
    return jr.Checkpoint(TARGET, ROUTE, window, revision, **{"generation": 1, **values, **more})


def evidence(delivery: Delivery, **changes: Any) -> jr.PutEvidence:
    body = evidence_body(**changes)
    return jr.PutEvidence(sha256_hex(body), delivery.invocation_key, key_of(["operation"]), body)
