"""Numbers and instants as a person reads them."""

from __future__ import annotations

import pytest

from airflow_dpone.delivery.window import Window
from airflow_dpone.ui import words


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-0.5, "0.00 s"),
        (0.004, "0.00 s"),
        (9.994, "9.99 s"),
        (59.9, "59 s"),
        (60, "1 min 00 s"),
        (3_599, "59 min 59 s"),
        (3_600, "1 h 00 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 1024**4, "5.0 TiB")]
)
def test_a_size_has_a_binary_unit(count: int, said: str) -> None:
    assert words.size(count) == said


def test_a_window_of_days_shows_days() -> None:
    days = "2026-03-01T00:00:00.000000Z/2026-03-02T00:00:00.000000Z"
    assert words.window(days) == "2026-03-01 to 2026-03-02 UTC"
    odd = "2026-03-01T06:30:00.000000Z/2026-03-02T00:00:00.000001Z"
    assert words.window(odd) == "2026-03-01 06:30 to 2026-03-02 00:00:00.000001 UTC"
    assert words.window(Window.full().key) == "the whole table"


def test_numbers_are_grouped_without_a_comma_that_could_be_a_point() -> None:
    assert words.number("1234567") == "1\N{NARROW NO-BREAK SPACE}234\N{NARROW NO-BREAK SPACE}567"
    assert (words.rows(1), words.rows(2)) == ("1 row", "2 rows")
    assert (words.times(1), words.times(2)) == ("once", "2 times")


def test_only_a_long_name_is_cut() -> None:
    assert words.short("worker-1") == "worker-1"
    assert words.short("0" * 64) == "0" * 12 + "\N{HORIZONTAL ELLIPSIS}"
