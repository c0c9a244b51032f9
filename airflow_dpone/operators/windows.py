"""What a DAG file says about windows. Nothing here is checked before a task runs, but for a list of windows.

Durations are fixed: a day is 24 hours, in UTC. Days of a calendar with clock changes are the business of a
timetable, whose data intervals a delivery takes as the instants that they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_dpone.errors import ConfigurationError, Problem

ANCHORS = ("run_after", "data_interval_end", "data_interval_start", "logical_date")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Rolling:
    """A window that moves with the run: ``[anchor - lookback - duration, anchor)``, anchor rounded down.

    It is resolved once, when the delivery is admitted, and stored: a retry, or a clear a week later, delivers
    the same window again. To change it, trigger a run with a window in its configuration.

    :param anchor: an instant of the run: ``run_after`` (every run has it), ``data_interval_end``,
        ``data_interval_start`` or ``logical_date``; or one fixed instant, a datetime or ISO text with a zone.
    :param duration: how much each run delivers. :param lookback: how much before that it delivers again, for
        rows that came late.
    :param precision: the anchor is rounded down to a multiple of it, counted from 1970-01-01 UTC.
    """

    anchor: str | datetime
    duration: timedelta
    lookback: timedelta = timedelta(0)
    precision: timedelta = timedelta(minutes=1)

    def bounds(self, context: Mapping[str, Any]) -> tuple[datetime, datetime]:
        """Start and end for a run, in UTC. Raises ConfigurationError with everything that is wrong."""
        problems = self._duration_problems()
        try:
            anchor = self._instant(context)
        except _errors().ConfigurationError as error:
            raise _errors().ConfigurationError.of([*problems, *error.problems]) from None
        if problems:
            raise _errors().ConfigurationError.of(problems)
        steps = (anchor - _EPOCH) // self.precision
        try:
            end = _EPOCH + steps * self.precision
            return end - self.lookback - self.duration, end
        except OverflowError:
            raise _refused("rolling", "reaches before the year 1") from None

    def _duration_problems(self) -> list[Problem]:
        found = []
        for name, least in (("duration", _UNIT), ("lookback", timedelta(0)), ("precision", _UNIT)):
            value = getattr(self, name)
            if not isinstance(value, timedelta) or value < least:
                sign = "positive" if least else "of at least 0"
                found.append(_problem(f"rolling.{name}", f"must be a timedelta, {sign}"))
        return found

    def _instant(self, context: Mapping[str, Any]) -> datetime:
        anchor: Any = self.anchor
        if isinstance(anchor, str) and anchor in ANCHORS:
            anchor = context.get(anchor) or getattr(context.get("dag_run"), anchor, None)
            if anchor is None:
                text = f"this run has no {self.anchor} (manual and asset runs have none): use 'run_after'"
                raise _refused("rolling.anchor", text)
        elif isinstance(anchor, str):
            try:
                anchor = datetime.fromisoformat(anchor.strip())
            except ValueError:
                text = f"must be one of {', '.join(ANCHORS)}, or an ISO instant with a zone"
                raise _refused("rolling.anchor", text) from None
        if not isinstance(anchor, datetime) or anchor.utcoffset() is None:
            raise _refused("rolling.anchor", "must be an instant with a zone, e.g. 2025-01-01T00:00:00Z")
        try:
            at = anchor.astimezone(UTC)  # Airflow's instants have an arithmetic of their own
        except OverflowError:
            raise _refused("rolling.anchor", "is not in the years 1 to 9999 of UTC") from None
        return datetime(at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, UTC)


def windows_between(start: datetime, end: datetime, step: timedelta) -> list[dict[str, str]]:
    """Windows side by side from ``start`` to ``end``, for mapping: ``expand_kwargs(windows_between(...))``.

    :param start: first instant of the first one, with a zone. :param end: end of the last one, exclusive;
        the last window is shorter where ``step`` does not fit.
    :param step: length of each; fixed, a day is 24 hours.

    Raises ConfigurationError, also at DAG parse: Airflow has to know how many there are.
    """
    problems: list[Problem] = []
    bounds: list[datetime] = []
    for name, value in (("start", start), ("end", end)):
        if not isinstance(value, datetime) or value.utcoffset() is None:
            problems.append(_problem(f"windows_between.{name}", "must be a datetime with a zone"))
            continue
        try:
            bounds.append(value.astimezone(UTC))
        except OverflowError:
            problems.append(_problem(f"windows_between.{name}", "is not in the years 1 to 9999 of UTC"))
    if not isinstance(step, timedelta) or step < _UNIT:
        problems.append(_problem("windows_between.step", "must be a timedelta, positive"))
    # In UTC: two times of one zone would be compared by their clocks, also where those are set back.
    if not problems and bounds[0] >= bounds[1]:
        problems.append(_problem("windows_between", "start must be before end"))
    if problems:
        raise _errors().ConfigurationError.of(problems)
    first, last = bounds
    count = -((first - last) // step)
    cuts = [first + number * step for number in range(count)] + [last]
    return [{"window_start": _text(since), "window_end": _text(until)} for since, until in pairwise(cuts)]


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _errors() -> Any:
    from airflow_dpone import errors  # it reads a file: not at every DAG parse

    return errors


def _problem(where: str, text: str) -> Problem:
    problem: Problem = _errors().Problem("dpone.config.window", where, text)
    return problem


def _refused(where: str, text: str) -> ConfigurationError:
    error: ConfigurationError = _errors().ConfigurationError.of([_problem(where, text)])
    return error
