"""Gaps between delivered windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.delivery.coverage import Covered, gaps
from airflow_dpone.delivery.window import Window, instant_text

START = datetime(2025, 1, 1, tzinfo=UTC)


def hours(start: int, end: int) -> Window:
    return Window(START + timedelta(hours=start), START + timedelta(hours=end))


spans = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda span: (span[0], span[0] + span[1]))


@given(asked=spans, delivered=st.lists(spans, max_size=8))
def test_gaps_are_exactly_the_hours_that_nobody_delivered(
    asked: tuple[int, int], delivered: list[tuple[int, int]]
) -> None:
    """B80: a gap between consecutive intervals is found, whatever overlaps, touches or comes twice."""
    found = gaps(hours(*asked), [hours(*one) for one in delivered])
    missing = set(range(*asked)) - {hour for one in delivered for hour in range(*one)}
    assert [hour for hour in range(*asked) if any(_holds(gap, hour) for gap in found)] == sorted(missing)
    longest = all(before.end < after.start for before, after in pairwise(found))
    assert longest


def _holds(gap: Window, hour: int) -> bool:
    at = START + timedelta(hours=hour)
    return bool(gap.start and gap.end and gap.start <= at < gap.end)


def test_a_microsecond_is_a_gap() -> None:
    late = Window(START + timedelta(hours=1, microseconds=1), START + timedelta(hours=2))
    assert gaps(hours(0, 2), [hours(0, 1), late]) == [
        Window(START + timedelta(hours=1), START + timedelta(hours=1, microseconds=1))
    ]


def test_the_whole_table_covers_no_interval_and_no_interval_covers_it() -> None:
    assert gaps(hours(0, 1), [Window.full()]) == [hours(0, 1)]
    assert gaps(Window.full(), [hours(0, 1)]) == [Window.full()]
    assert gaps(Window.full(), [hours(0, 1), Window.full()]) == []


@given(added=st.lists(spans, max_size=12), asked=spans)
def test_what_windows_cover_together_is_every_hour_of_theirs(
    added: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    covered = Covered()
    for one in added:
        covered.add(*_texts(one))
    held = {hour for one in added for hour in range(*one)}
    assert covered.holds(*_texts(asked)) is (set(range(*asked)) <= held)


def _texts(span: tuple[int, int]) -> tuple[str, str]:
    window = hours(*span)
    assert window.start is not None
    assert window.end is not None
    return instant_text(window.start), instant_text(window.end)
