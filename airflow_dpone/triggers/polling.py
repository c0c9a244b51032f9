"""What every trigger of this provider does alike: look, in a thread, until it is true or the time is over.

A look opens what it needs and closes it again, so nothing is held between two looks and a triggerer may be
stopped, restarted or replaced at any moment: the trigger is made anew from its arguments, and its deadline is
an instant, not a duration.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_dpone.errors import CATALOGUE, DponeError, InternalError, error_of

Answer = TypeVar("Answer")

SHORTEST_PAUSE_SEC = 0.05
"""Between two looks, whatever was asked for."""

# Ours alone: a server that hangs must not use up the threads of everybody's triggers; and a source that hangs
# not those of the journal, by which other deliveries wait for their turn.
JOURNAL_THREADS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="dpone-trigger-journal")
SOURCE_THREADS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="dpone-trigger-source")


async def in_thread(threads: ThreadPoolExecutor, work: Callable[[], Answer]) -> Answer:
    """Runs blocking work beside the event loop, in one of these threads."""
    context = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, lambda: context.run(work))


class PollingTrigger(BaseTrigger):
    """Looks every ``poll_interval`` seconds. Its one event is a dict with ``status``:

    * the subclass's own word, when what it waits for is true;
    * ``timeout``, when the deadline has passed without it;
    * ``failed``, when no further look can help: ``error`` then has ``code``, ``message`` and
      ``next_action``, and :func:`raise_failure` raises it again in the task.

    An error that may pass (a server that restarts) is logged, and looked at again until the deadline.

    :param deadline: unix seconds. :param poll_interval: seconds between two looks.
    """

    failed_answer: ClassVar[Mapping[str, Any]] = {}
    """What a reader of the event finds beside ``status`` and ``error`` in any case."""

    def __init__(self, *, deadline: float, poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.deadline = deadline
        self.poll_interval = poll_interval

    @abstractmethod
    async def look(self) -> tuple[str | None, Mapping[str, Any]]:
        """The status if it is true now, else None; and what the event says beside it, as JSON."""

    def arguments(self) -> dict[str, Any]:
        """The subclass's own arguments, as JSON."""
        return {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and arguments: all there is to a trigger."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {**self.arguments(), "deadline": self.deadline, "poll_interval": self.poll_interval}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Looks at once, then every ``poll_interval``; the last look is at the deadline."""
        seen = dict(self.failed_answer)
        while True:
            late = time.time() >= self.deadline
            try:
                status, answer = await self.look()
                seen = dict(answer)
            except DponeError as error:
                if error.retry != "backoff":
                    yield _event({**self.failed_answer, "status": "failed", "error": _told(error)})
                    return
                self.log.warning("looking again in %g s: %s", self.poll_interval, error)
                status = None
            if status is not None or late:
                yield _event({**seen, "status": status or "timeout"})
                return
            pause = max(self.poll_interval, SHORTEST_PAUSE_SEC)
            await asyncio.sleep(min(pause, max(0.0, self.deadline - time.time())))


def raise_failure(event: Mapping[str, Any] | None) -> None:
    """For ``execute_complete``: raises what made a trigger give up; otherwise does nothing."""
    if event is None:
        raise InternalError("dpone.airflow.trigger_answer", "The trigger ended without an event.")
    if event.get("status") != "failed":
        return
    told = event["error"]
    # The triggerer may run a newer version of this package than the worker.
    code = told["code"] if told["code"] in CATALOGUE else "dpone.airflow.trigger_answer"
    raise error_of(code, told["message"], next_action=told["next_action"])


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def _told(error: DponeError) -> dict[str, str]:
    return {"code": error.code, "message": error.message, "next_action": error.next_action}
