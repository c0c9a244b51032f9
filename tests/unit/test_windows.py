"""Windows that move, and lists of windows: fixed durations in UTC, whatever clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.operators import Rolling, windows_between
from airflow_dpone.operators.window_choice import choose_window

NEW_YORK = ZoneInfo("America/New_York")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
INSTANTS = st.datetimes(
    datetime(1990, 1, 1),
    datetime(2090, 1, 1),
    timezones=st.sampled_from([UTC, NEW_YORK, timezone(HOUR * 5.5)]),
)
DURATIONS = st.timedeltas(timedelta(microseconds=1), timedelta(days=400))


def run(**instants: Any) -> dict[str, Any]:
    """A run's context."""
    return {"dag_run": SimpleNamespace(conf=None, **instants)}


def rolled(rolling: Any, **instants: Any) -> Window:
    """The window of a run, as the operators choose it."""
    window, moves = choose_window("window_replace", None, None, run(**instants), rolling)
    assert moves
    return window


class TestRolling:
    """``[anchor - lookback - duration, anchor)``."""

    def test_the_last_day_before_the_run_and_three_more_for_late_rows(self) -> None:
        at = datetime(2026, 3, 29, 5, 7, 33, 250, tzinfo=UTC)
        rolling = Rolling("run_after", DAY, lookback=DAY * 3, precision=HOUR)
        window = rolled(rolling, run_after=pendulum.instance(at))
        assert window.key == "2026-03-25T05:00:00.000000Z/2026-03-29T05:00:00.000000Z"

    @given(anchor=INSTANTS, duration=DURATIONS, lookback=DURATIONS, precision=DURATIONS)
    def test_it_ends_at_the_last_multiple_before_the_anchor_and_has_its_length(
        self, anchor: datetime, duration: timedelta, lookback: timedelta, precision: timedelta
    ) -> None:
        rolling = Rolling("run_after", duration, lookback, precision)
        window = rolled(rolling, run_after=anchor)
        assert window.start is not None
        assert window.end is not None
        assert timedelta(0) <= anchor.astimezone(UTC) - window.end < precision
        assert (window.end - datetime(1970, 1, 1, tzinfo=UTC)) % precision == timedelta(0)
        assert window.end - window.start == duration + lookback

    @given(anchor=INSTANTS, precision=st.sampled_from([timedelta(minutes=1), HOUR, DAY]))
    def test_runs_side_by_side_have_windows_side_by_side(
        self, anchor: datetime, precision: timedelta
    ) -> None:
        rolling = Rolling("run_after", precision, precision=precision)
        first = rolled(rolling, run_after=anchor)
        second = rolled(rolling, run_after=anchor.astimezone(UTC) + precision)
        assert first.end == second.start

    def test_a_day_is_24_hours_where_clocks_change(self) -> None:
        """A day of New York that has 23 hours ends at 04:00 UTC, and began at 05:00."""
        window = rolled(Rolling("run_after", DAY), run_after=datetime(2026, 3, 9, tzinfo=NEW_YORK))
        assert window.key == "2026-03-08T04:00:00.000000Z/2026-03-09T04:00:00.000000Z"

    @pytest.mark.parametrize("anchor", ["data_interval_end", "data_interval_start", "logical_date"])
    def test_other_anchors_must_be_there(self, anchor: str) -> None:
        at = datetime(2026, 3, 1, tzinfo=UTC)
        assert rolled(Rolling(anchor, DAY), **{anchor: at}).end == at
        with pytest.raises(ConfigurationError, match=f"this run has no {anchor}.*run_after"):
            rolled(Rolling(anchor, DAY), **{anchor: None, "run_after": at})

    @pytest.mark.parametrize("anchor", [datetime(2026, 3, 1, tzinfo=UTC), "2026-03-01T01:00:00+01:00"])
    def test_the_anchor_may_be_an_instant(self, anchor: Any) -> None:
        assert rolled(Rolling(anchor, DAY)).end == datetime(2026, 3, 1, tzinfo=UTC)

    def test_everything_that_is_wrong_is_said_at_once_and_only_when_a_task_runs(self) -> None:
        wrong: Any = Rolling("yesterday", timedelta(0), lookback=-DAY, precision=60)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="4 problems") as raised:
            rolled(wrong)
        for field in ("duration", "lookback", "precision", "anchor"):
            assert f"- rolling.{field}: " in str(raised.value)

    @pytest.mark.parametrize("anchor", [datetime(2026, 3, 1), "2026-03-01", 7, None])
    def test_a_naive_anchor_is_refused(self, anchor: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"rolling\.anchor"):
            rolled(Rolling(anchor, DAY))

    def test_one_source_of_a_window_at_a_time(self) -> None:
        rolling = Rolling("run_after", DAY)
        now = run(run_after=datetime(2026, 3, 1, tzinfo=UTC))
        with pytest.raises(ConfigurationError, match="given twice"):
            choose_window("window_replace", "2026-03-01T00:00:00Z", None, now, rolling)
        with pytest.raises(ConfigurationError, match="whole table"):
            choose_window("full_refresh", None, None, now, rolling)
        with pytest.raises(ConfigurationError, match=r"rolling: must be Rolling\("):
            choose_window("window_replace", None, None, now, "1d")

    def test_a_run_may_be_given_another_window(self) -> None:
        """To deliver one day again: it does not move, and is not the stored one."""
        now = run(run_after=datetime(2026, 3, 9, tzinfo=UTC))
        now["dag_run"].conf = {"window": {"start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z"}}
        window, moves = choose_window("window_replace", None, None, now, Rolling("run_after", DAY))
        assert (window.key, moves) == ("2026-03-01T00:00:00.000000Z/2026-03-02T00:00:00.000000Z", False)


class TestWindowsBetween:
    """For mapped history loads."""

    def test_days(self) -> None:
        listed = windows_between(datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 3, 6, tzinfo=UTC), DAY)
        assert listed == [
            {"window_start": "2026-03-01T00:00:00Z", "window_end": "2026-03-02T00:00:00Z"},
            {"window_start": "2026-03-02T00:00:00Z", "window_end": "2026-03-03T00:00:00Z"},
            {"window_start": "2026-03-03T00:00:00Z", "window_end": "2026-03-03T06:00:00Z"},
        ]

    @given(start=INSTANTS, length=DURATIONS, parts=st.floats(0.02, 1.5))
    def test_they_lie_side_by_side_from_start_to_end_and_the_operator_takes_them(
        self, start: datetime, length: timedelta, parts: float
    ) -> None:
        step = max(length * parts, timedelta(microseconds=1))
        end = start.astimezone(UTC) + length
        windows = [
            choose_window("window_replace", listed["window_start"], listed["window_end"], run())[0]
            for listed in windows_between(start, end, step)
        ]
        assert windows[0].start == start.astimezone(UTC)
        assert windows[-1].end == end
        assert all(one.end == other.start for one, other in pairwise(windows))
        lengths = {window.end - window.start for window in windows[:-1] if window.start and window.end}
        assert lengths <= {step}

    @given(minutes=st.integers(-180, 180), length=st.integers(-180, 180), step=st.integers(1, 90))
    def test_bounds_are_compared_as_instants_also_where_clocks_are_set_back(
        self, minutes: int, length: int, step: int
    ) -> None:
        """Python compares two times of one zone by their clocks."""
        first = datetime(2026, 11, 1, 6, tzinfo=UTC) + timedelta(minutes=minutes)
        start, end = (at.astimezone(NEW_YORK) for at in (first, first + timedelta(minutes=length)))
        if length <= 0:
            with pytest.raises(ConfigurationError, match="start must be before end"):
                windows_between(start, end, timedelta(minutes=step))
            return
        listed = windows_between(start, end, timedelta(minutes=step))
        assert len(listed) == -(-length // step)
        assert datetime.fromisoformat(listed[0]["window_start"]) == first
        assert datetime.fromisoformat(listed[-1]["window_end"]) == first + timedelta(minutes=length)

    def test_an_instant_that_utc_does_not_have_is_refused(self) -> None:
        last = datetime(9999, 12, 31, 23, tzinfo=NEW_YORK)
        with pytest.raises(ConfigurationError, match=r"windows_between\.end: is not in the years"):
            windows_between(datetime(2026, 1, 1, tzinfo=UTC), last, DAY)

    def test_what_is_wrong_is_said_at_once(self) -> None:
        naive: Any = datetime(2026, 3, 1)
        with pytest.raises(ConfigurationError, match="3 problems"):
            windows_between(naive, "2026-03-02", timedelta(0))  # type: ignore[arg-type]
        at = datetime(2026, 3, 1, tzinfo=UTC)
        with pytest.raises(ConfigurationError, match="start must be before end"):
            windows_between(at, at, DAY)


class TestIntervals:
    """[B80] What timetables make of days and hours where clocks change."""

    @given(days=st.integers(0, 700), hour=st.integers(0, 23))
    def test_a_local_day_is_delivered_as_the_instants_that_it_is(self, days: int, hour: int) -> None:
        first = datetime(2026, 1, 1, hour, tzinfo=NEW_YORK) + timedelta(days=days)
        start, end = first, first + DAY  # the same time of the next day: 23, 24 or 25 hours
        if start.astimezone(UTC) >= end.astimezone(UTC):
            return
        context = {"data_interval_start": start, "data_interval_end": end}
        window, moves = choose_window("window_replace", None, None, context)
        assert not moves
        assert window.start is not None
        assert window.end is not None
        assert (window.end - window.start) in (HOUR * 23, HOUR * 24, HOUR * 25)
        assert window.start == start.astimezone(UTC)

    @pytest.mark.parametrize(
        "start", [datetime(2026, 3, 8, 5, tzinfo=UTC), datetime(2026, 11, 1, 4, tzinfo=UTC)]
    )
    def test_the_hours_of_a_day_with_a_clock_change_lie_side_by_side(self, start: datetime) -> None:
        hours = [(start + HOUR * n).astimezone(NEW_YORK) for n in range(26)]
        windows = [Window(one, other) for one, other in pairwise(hours)]
        assert all(one.end == other.start for one, other in pairwise(windows))
        assert len({window.key for window in windows}) == 25

    @given(at=INSTANTS)
    def test_an_empty_interval_is_refused_and_names_the_timetable(self, at: datetime) -> None:
        context = {"data_interval_start": at, "data_interval_end": at}
        with pytest.raises(ConfigurationError, match="CronDataIntervalTimetable"):
            choose_window("window_replace", None, None, context)

    @given(at=INSTANTS, length=DURATIONS)
    def test_a_reversed_interval_is_refused(self, at: datetime, length: timedelta) -> None:
        context = {"data_interval_start": at.astimezone(UTC) + length, "data_interval_end": at}
        with pytest.raises(ConfigurationError, match="reversed"):
            choose_window("window_replace", None, None, context)
