"""Which parts of an interval no delivered window covers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import datetime

from airflow_dpone.delivery.window import Window


def gaps(asked: Window, delivered: Iterable[Window]) -> list[Window]:
    """The parts of ``asked`` that no window covers, in order; each as long as it can be. Windows may overlap,
    touch and come in any order.

    A whole table has no interval: it covers none, and nothing but itself covers it.
    """
    windows = list(delivered)
    if asked.start is None or asked.end is None:
        return [] if any(window.is_full for window in windows) else [asked]
    found: list[Window] = []
    covered_until = asked.start
    for start, end in sorted(_bounds(windows)):
        if start >= asked.end:
            break
        if start > covered_until:
            found.append(Window(covered_until, start))
        covered_until = max(covered_until, end)
    if covered_until < asked.end:
        found.append(Window(covered_until, asked.end))
    return found


def _bounds(windows: Iterable[Window]) -> list[tuple[datetime, datetime]]:
    return [(w.start, w.end) for w in windows if w.start is not None and w.end is not None]


class Covered:
    """What many windows cover together. Bounds are canonical texts, which sort as their instants do."""

    def __init__(self) -> None:
        self._starts: list[str] = []
        self._ends: list[str] = []

    def holds(self, start: str, end: str) -> bool:
        """Whether all of ``[start, end)`` is covered."""
        place = bisect_right(self._starts, start) - 1
        return place >= 0 and self._ends[place] >= end

    def add(self, start: str, end: str) -> None:
        """Covers ``[start, end)`` too; what overlaps or touches becomes one piece."""
        first, last = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]
