"""Which window a run means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest

from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.operators import Rolling
from airflow_dpone.operators.window_choice import choose_window

DAY = datetime(2026, 3, 1, tzinfo=UTC)
NEXT = datetime(2026, 3, 2, tzinfo=UTC)


def context(conf: Any = None, start: Any = None, end: Any = None) -> dict[str, Any]:
    """A run's context; Airflow leaves absent keys out."""
    given: dict[str, Any] = {"dag_run": SimpleNamespace(conf=conf)}
    if start is not None:
        given |= {"data_interval_start": start, "data_interval_end": end}
    return given


def refusal(**arguments: Any) -> str:
    """The text of the refusal."""
    fields = {"strategy": "window_replace", "start": None, "end": None, "context": context(), **arguments}
    with pytest.raises(ConfigurationError) as caught:
        choose_window(**fields)
    assert all(problem.code == "dpone.config.window" for problem in caught.value.problems)
    return str(caught.value)


def test_arguments_come_first_and_may_be_text() -> None:
    interval = context(start=NEXT, end=NEXT + timedelta(days=1))
    assert choose_window("window_replace", "2026-03-01T00:00:00Z", NEXT, interval) == (
        Window(DAY, NEXT),
        False,
    )


@pytest.mark.parametrize("by_conf", [True, False])
def test_both_bounds_are_judged(by_conf: bool) -> None:
    bounds = {"start": "yesterday", "end": "today"}
    asked = {"context": context(conf={"window": bounds})} if by_conf else bounds
    told = refusal(**asked)
    assert "start: must be an ISO instant" in told
    assert "end: must be an ISO instant" in told


def test_then_the_runs_configuration() -> None:
    conf = {"window": {"start": "2026-03-01T01:00:00+01:00", "end": "2026-03-02T00:00:00Z"}}
    interval = context(conf=conf, start=NEXT, end=NEXT + timedelta(days=1))
    assert choose_window("window_replace", None, "", interval) == (Window(DAY, NEXT), False)


def test_then_the_data_interval_with_airflows_own_instants() -> None:
    interval = context(start=pendulum.instance(DAY), end=pendulum.instance(NEXT))
    window, _ = choose_window("window_replace", None, None, interval)
    assert window.bounds_us == (1772323200000000, 1772409600000000)


def test_a_full_refresh_takes_no_window() -> None:
    assert choose_window("full_refresh", None, None, context())[0].is_full
    assert "whole table" in refusal(strategy="full_refresh", start="2026-03-01T00:00:00Z")
    conf = {"window": {"start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z"}}
    assert "whole table" in refusal(strategy="full_refresh", context=context(conf=conf))


def test_two_windows_at_once_are_refused() -> None:
    conf = {"window": {"start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z"}}
    assert "given twice" in refusal(start="2026-03-01T00:00:00Z", context=context(conf=conf))


@pytest.mark.parametrize("conf", [{"window": "yesterday"}, {"window": {"start": "x"}}, {"window": {}}])
def test_another_shape_of_configuration_is_refused(conf: Any) -> None:
    assert "run's configuration must be" in refusal(context=context(conf=conf))


def test_a_misspelt_window_is_not_another_window() -> None:
    conf = {"windw": {"start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z"}}
    assert "did you mean" in refusal(context=context(conf=conf, start=DAY, end=NEXT))
    other = {"colour": "red"}
    assert choose_window("window_replace", None, None, context(other, DAY, NEXT)) == (
        Window(DAY, NEXT),
        False,
    )


ANOTHER_RUN = "trigger another run with a correct configuration"


@pytest.mark.parametrize(
    ("conf", "count"),
    [
        ({"window": {"start": "2026-03-01", "end": "2026-03-02T00:00:00"}}, 2),
        ({"window": {"start": "2026-03-01T00:00:00Z", "end": "tomorrow"}}, 1),
        ({"window": {"start": "2026-03-02T00:00:00Z", "end": "2026-03-01T00:00:00Z"}}, 1),
        ({"window": "yesterday"}, 1),
        ({"windw": {"start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z"}}, 1),
    ],
    ids=["two naive bounds", "one wrong bound", "reversed", "another shape", "misspelt"],
)
def test_a_wrong_configuration_asks_for_another_run(conf: Any, count: int) -> None:
    """No clear and no change of the DAG helps: a run keeps its configuration."""
    with pytest.raises(ConfigurationError) as caught:
        choose_window("window_replace", None, None, context(conf=conf))
    told = str(caught.value)
    assert [problem.where.partition(".")[0] for problem in caught.value.problems] == ["conf"] * count
    assert ANOTHER_RUN in told.lower()
    assert "in the DAG" not in told
    assert "clear the task" not in told


def test_beside_another_problem_a_wrong_configuration_still_asks_for_another_run() -> None:
    conf = {"window": {"start": "2026-03-01", "end": "2026-03-02"}}
    with pytest.raises(ConfigurationError) as caught:
        choose_window("window_replace", None, None, context(conf=conf))
    other = Problem("dpone.config.field", "journal", "is missing")
    both = ConfigurationError.of([other, *caught.value.problems])
    assert both.code == "dpone.config.invalid"
    assert "other named fields" in both.next_action
    assert ANOTHER_RUN in both.next_action


def test_a_naive_text_is_answered_with_a_text() -> None:
    conf = {"window": {"start": "2026-03-01T00:00:00", "end": "2026-03-02T00:00:00Z"}}
    for told in (refusal(start="2026-03-01", end="2026-03-02"), refusal(context=context(conf=conf))):
        assert "is naive: say which zone, e.g. 2025-01-01T00:00:00Z" in told
        assert "tzinfo" not in told


def test_a_run_without_interval_says_what_to_do() -> None:
    """B81: manual and asset-triggered runs of Airflow 3 have no interval."""
    assert "no data interval" in refusal()


def test_a_zero_length_interval_names_the_right_timetable() -> None:
    """B80: a plain cron schedule gives start == end."""
    assert "CronDataIntervalTimetable" in refusal(context=context(start=DAY, end=DAY))


def test_a_half_given_naive_reversed_or_garbled_window_is_refused() -> None:
    assert "is missing" in refusal(start="2026-03-01T00:00:00Z")
    assert "naive" in refusal(start="2026-03-01T00:00:00", end="2026-03-02T00:00:00Z")
    assert "reversed" in refusal(start="2026-03-02T00:00:00Z", end="2026-03-01T00:00:00Z")
    assert "ISO instant" in refusal(start="yesterday", end="2026-03-01T00:00:00Z")


@pytest.mark.parametrize("value", [0, False, 0.0, [], {}, " "])
def test_a_bound_that_is_no_instant_is_never_an_absent_one(value: Any) -> None:
    """A template that renders to something else must not deliver the run's interval, or the whole table."""
    run = context(start=DAY, end=NEXT)
    assert "ISO instant" in refusal(start=value, end=value, context=run)
    assert "is missing" in refusal(start=None, end=value, context=run)
    assert "whole table" in refusal(strategy="full_refresh", start=value)


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:00:00-05:00"])
def test_an_instant_that_utc_does_not_have_is_refused(at: str) -> None:
    assert "years 1 to 9999" in refusal(start=at, end="2026-03-01T00:00:00Z")
    assert "years 1 to 9999" in refusal(rolling=Rolling(at, timedelta(days=1)))


def test_the_same_instant_in_any_zone_is_the_same_window() -> None:
    tokyo = timezone(timedelta(hours=9))
    there = Window(DAY.astimezone(tokyo), NEXT.astimezone(tokyo))
    assert there == Window(DAY, NEXT)
    assert there.key == "2026-03-01T00:00:00.000000Z/2026-03-02T00:00:00.000000Z"
    assert Window.of_key(there.key) == there
    assert Window.of_key("full").is_full
