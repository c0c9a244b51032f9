"""Which failures Airflow tries again, when, and what it says about the others."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import RetryDecision, RetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_dpone.errors import DponeError

MAX_DELAY = timedelta(hours=1)
MAX_REASON = 500
"""Airflow keeps no more of a reason."""


class DeliveryRetryPolicy(RetryPolicy):
    """The default of every operator here: the error itself says whether trying again can help.

    * A transient failure is tried again, as often as ``retries`` says, after ``retry_delay``, then twice,
      four times ... as long, up to ``max_retry_delay`` (default: an hour). A clear starts from the beginning.
    * A wrong configuration, or a value that does not fit, fails the task at once: asking again changes
      nothing.
    * An unknown outcome and an incident fail the task at once, too: a person looks, then clears the task. The
      reason names what may be done.
    * Any other exception follows Airflow's own rules.

    Another policy may be given to an operator. It decides over retries alone: nothing that is tried again can
    be delivered twice.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """What Airflow asks after a failure; the reason is in the task's log."""
        from airflow_dpone.errors import DponeError

        if not isinstance(exception, DponeError):
            return RetryDecision.default()
        if exception.retry != "backoff":
            return RetryDecision.fail(reason_of(exception))
        task = context["ti"].task if context else None
        return RetryDecision.retry(retry_delay(task, try_number, max_tries), reason_of(exception))

    def serialize(self) -> dict[str, Any]:
        """It has no parameters."""
        return {"__type": f"{type(self).__module__}.{type(self).__qualname__}"}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> DeliveryRetryPolicy:
        """The reverse of :meth:`serialize`."""
        return cls()


def reason_of(error: DponeError) -> str:
    """Code, state and what may be done, in one line; what happened is in the error itself."""
    state = f" at {error.state_after}" if error.state_after else ""
    return " ".join(f"{error.code}{state}: {error.next_action}".split())[:MAX_REASON]


def retry_delay(task: Any, try_number: int, max_tries: int) -> timedelta | None:
    """How long to wait: ``retry_delay``, doubled for each try since the task was started or cleared.

    None, for Airflow's own delay, where the task says itself how it grows.
    """
    if task is None or task.retry_exponential_backoff:
        return None
    since_clear = try_number - (max_tries - (task.retries or 0))
    longest = task.max_retry_delay or MAX_DELAY
    doublings = min(max(since_clear - 1, 0), 20)
    delay: timedelta = min(task.retry_delay * 2**doublings, max(longest, task.retry_delay))
    return delay
