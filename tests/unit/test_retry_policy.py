"""Which failures are tried again, when, and what is said about the others."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import RetryAction

from airflow_dpone.errors import CATALOGUE, error_of
from airflow_dpone.operators import DeliveryRetryPolicy
from airflow_dpone.operators.retry_policy import MAX_REASON
from airflow_dpone.operators.telling import failure

POLICY = DeliveryRetryPolicy()


def task(**changed: Any) -> dict[str, Any]:
    """The context of a task with three retries, a minute apart."""
    fields = {
        "retries": 3,
        "retry_delay": timedelta(minutes=1),
        "max_retry_delay": None,
        "retry_exponential_backoff": 0,
    }
    return {"ti": SimpleNamespace(task=SimpleNamespace(**(fields | changed)))}


@pytest.mark.parametrize("code", CATALOGUE)
def test_the_catalogue_decides_over_every_error(code: str) -> None:
    error = error_of(code, "it happened", next_action="Do this, then clear the task.")
    error.state_after = "UNKNOWN"
    decision = POLICY.evaluate(error, 1, 3, task())
    again = CATALOGUE[code].retry == "backoff"
    assert decision.action is (RetryAction.RETRY if again else RetryAction.FAIL)
    assert decision.reason == f"{code} at UNKNOWN: Do this, then clear the task."


def test_an_unknown_outcome_names_what_may_be_done_and_is_not_tried_again() -> None:
    error = error_of("dpone.publish.outcome_unknown", "no answer")
    decision = POLICY.evaluate(error, 1, 3, task())
    assert decision.action is RetryAction.FAIL
    assert decision.reason is not None
    assert CATALOGUE["dpone.publish.outcome_unknown"].next_action in decision.reason


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1), MemoryError()])
def test_other_exceptions_follow_airflows_own_rules(error: BaseException) -> None:
    assert POLICY.evaluate(error, 1, 3, task()).action is RetryAction.DEFAULT


def delays(context: dict[str, Any], tries: range, max_tries: int) -> list[timedelta | None]:
    error = error_of("dpone.target.busy", "later")
    return [POLICY.evaluate(error, number, max_tries, context).retry_delay for number in tries]


def test_the_delay_doubles_up_to_an_hour_or_the_tasks_own_bound() -> None:
    minutes = [timedelta(minutes=2**n) for n in range(6)]
    assert delays(task(retries=9), range(1, 10), 9) == [*minutes, *[timedelta(hours=1)] * 3]
    bounded = task(max_retry_delay=timedelta(minutes=3))
    assert delays(bounded, range(1, 4), 3) == [*minutes[:2], timedelta(minutes=3)]
    slow = task(retry_delay=timedelta(hours=6))
    assert delays(slow, range(1, 3), 3) == [timedelta(hours=6)] * 2


def test_a_clear_starts_from_the_first_delay() -> None:
    """Tries go on counting: the fourth one was cleared, so its ``max_tries`` is 3 + 3."""
    assert delays(task(), range(4, 6), 6) == [timedelta(minutes=1), timedelta(minutes=2)]


def test_airflows_own_growth_is_left_alone() -> None:
    assert delays(task(retry_exponential_backoff=3.0), range(1, 3), 3) == [None, None]
    assert POLICY.evaluate(error_of("dpone.target.busy", "later"), 1, 3, None).retry_delay is None


def test_a_reason_is_one_line_that_airflow_keeps_whole() -> None:
    error = error_of("dpone.target.busy", "later", next_action="Wait.\n" * 500)
    reason = POLICY.evaluate(error, 1, 3, task()).reason
    assert reason is not None
    assert len(reason) == MAX_REASON
    assert "\n" not in reason


def test_the_policy_comes_back_from_its_serialised_form() -> None:
    assert isinstance(DeliveryRetryPolicy.deserialize(POLICY.serialize()), DeliveryRetryPolicy)
    assert repr(POLICY) == "DeliveryRetryPolicy()"


def test_a_failure_in_short_is_short() -> None:
    error = error_of("dpone.target.busy", "é" * 9_000, next_action="n" * 9_000)
    told = failure(error)
    assert len(str(told).encode()) < 2_048 + 500  # non-ASCII counts twice
    assert (told["code"], told["error"], told["retry"]) == ("dpone.target.busy", "TargetBusy", "backoff")
