"""Workers of the machine: calls of the product that stand still at each crash point, and can die there.

All of them live in one process, each on a stack of its own (a greenlet). A dead worker does nothing any
more: every port refuses it, also in the ``finally`` blocks that its end runs through and a SIGKILL would not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.errors import DponeError, JournalError


class Died(BaseException):
    """The worker's process is gone. No ``except`` of the product catches it."""


class Mortal:
    """A port of one worker, which refuses everything once the worker is dead.

    :param seen: called with (method, arguments, answer) of each call that was answered.
    """

    def __init__(
        self, port: Any, worker: Worker, seen: Callable[[str, Any, Any], None] | None = None
    ) -> None:
        self._port, self._worker, self._seen = port, worker, seen

    def __enter__(self) -> Mortal:
        self._port.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self._port.__exit__(*exc)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._worker.refuse_the_dead()
            answer = found(*args, **kwargs)
            if self._seen is not None:
                self._seen(name, (args, kwargs), answer)
            return answer

        return call


class Worker:
    """One call of ``deliver`` for one try of one task, or one recovery command.

    :param who: the requester of a delivery; None for a command.

    :ivar point: where it stands, None before it has begun and after its end.
    :ivar result: what a delivery returned. :ivar error: what it raised.
    :ivar lease: the newest one that it was given. :ivar met: the faults of the target that it has met.
    """

    def __init__(self, number: int, who: r.Requester | None = None) -> None:
        self.number, self.who = number, who
        self.point: str | None = None
        self.result: r.DeliveryResult | None = None
        self.error: DponeError | None = None
        self.lease: jr.Lease | None = None
        self.met: list[tuple[str, str]] = []
        self.dead = False
        self._hub = getcurrent()
        self._stack: greenlet | None = None

    def start(self, work: Callable[[Worker], Any]) -> None:
        """Goes to the first crash point of this work."""

        def to_its_end() -> None:
            answer = work(self)
            self.result = answer if isinstance(answer, r.DeliveryResult) else None

        self._stack = greenlet(to_its_end, self._hub)
        self._switch()

    @property
    def is_alive(self) -> bool:
        """Whether it can go on."""
        return self._stack is not None and not self._stack.dead

    def step(self) -> None:
        """Goes on to the next crash point, or to its end."""
        self._switch()

    def kill(self) -> None:
        """Dies where it stands."""
        if self._stack is None or self._stack.dead:
            return
        self.dead = True
        try:
            self._stack.throw(Died)
        except Died:
            self.point = None
        if not self._stack.dead:
            raise RuntimeError(f"worker {self.number} survived its death")

    def wait_at(self, point: str) -> None:
        """The observer: stands still until the machine lets it go on."""
        if getcurrent() is not self._stack:
            self.refuse_the_dead()  # a thread of the call, such as one that renews the lease
            return
        self.refuse_the_dead()
        self.point = str(point)
        self._hub.switch()
        self.refuse_the_dead()

    def refuse_the_dead(self) -> None:
        """Raises Died in a worker that is dead, and an ordinary error in a thread that it has left behind."""
        if not self.dead:
            return
        if getcurrent() is self._stack:
            raise Died
        raise JournalError("dpone.journal.unavailable", "The process of this thread is gone.")

    def _switch(self) -> None:
        self.point = None
        if self._stack is None:
            raise RuntimeError("the worker has not started")
        try:
            self._stack.switch()
        except DponeError as error:
            self.error = error
