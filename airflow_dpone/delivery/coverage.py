"""Which parts of an interval no delivered window covers."""

from __future__ import annotations

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
