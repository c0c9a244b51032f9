"""One call of ``deliver``: what was asked, the run's context, and what a phase is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.leased_run import LeasedRun
from airflow_dpone.delivery.ports import Ports
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.delivery.turns import Turn
from airflow_dpone.delivery.window import Window
from airflow_dpone.settings import Route


@dataclass(frozen=True)
class Request:
    """What ``deliver`` was asked.

    ``deadline_sec`` is one budget for the whole call; ``custody_wait_sec`` bounds the part of it that may
    pass while another delivery owns the target or another process works on this one.

    :param last_phase: the call ends where this phase ends; what the journal says decides where it begins.
    :param may_open: whether it may begin a delivery, or only go on with the newest one.
    :param lease_wait_sec: how long it waits for another process where that is longer than
        ``custody_wait_sec``.
    :param cancel: by which another thread, or a signal, stops the call.
    :param first_ti_id: Airflow's id of the first try in the requester's run, where the caller knows it. Never
        stored: it only tells a run that was deleted and made anew.
    """

    route: Route
    window: Window
    requester: r.Requester
    rerun: bool = False
    deadline_sec: float = 14_400.0
    lease_ttl_sec: float = 60.0
    custody_wait_sec: float = 0.0
    last_phase: str = "checkpoint"
    may_open: bool = True
    lease_wait_sec: float = 0.0
    cancel: Cancel | None = None
    first_ti_id: str = ""


class DeliveryRun(LeasedRun):
    """The context of one call, from admission to its end."""

    ports: Ports

    def __init__(self, ports: Ports, request: Request) -> None:
        super().__init__(ports, request.requester, request.deadline_sec, request.cancel)
        self.request = request
        self.started = ports.clock.monotonic()
        self.resumed_from: DeliveryState | None = None
        self.finished: r.DeliveryResult | None = None
        self.did_nothing = False
        self.lost_extractions = 0
        self.turn = Turn()
        self.timings: dict[str, float] = {}


@dataclass(frozen=True)
class Phase:
    """A named list of steps between two durable boundaries.

    :param enters: the states in which it is this phase's turn; None for admission, which comes first.
    """

    name: str
    enters: frozenset[DeliveryState] | None
    steps: tuple[Callable[[DeliveryRun], None], ...]

    def run(self, run: DeliveryRun) -> None:
        """Runs the steps."""
        started = run.ports.clock.monotonic()
        for step in self.steps:
            step(run)
        spent = run.ports.clock.monotonic() - started
        run.timings[self.name] = run.timings.get(self.name, 0.0) + spent
