"""A window: a half-open interval of UTC instants, or the whole table.

Instants are Python datetimes with a zone, kept in UTC with microseconds. Naive, reversed and empty intervals
are refused: they are never "nothing to do" and never a full refresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_dpone.errors import ConfigurationError, Problem

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FULL_KEY = "full"


def instant_text(instant: datetime) -> str:
    """Canonical text of an instant: ``2025-01-01T00:00:00.000000Z``."""
    return instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


@dataclass(frozen=True)
class Window:
    """``[start, end)`` in UTC, or the whole table (:meth:`full`). Raises ConfigurationError.

    :param start: first instant inside; a datetime with a zone.
    :param end: first instant after; a datetime with a zone.
    """

    start: datetime | None
    end: datetime | None

    def __post_init__(self) -> None:
        if self.start is None and self.end is None:
            return
        problems = [
            *_bound_problems("window.start", self.start),
            *_bound_problems("window.end", self.end),
        ]
        if not problems and self.start is not None and self.end is not None:
            object.__setattr__(self, "start", _plain_utc(self.start))
            object.__setattr__(self, "end", _plain_utc(self.end))
            problems = _order_problems(self.start, self.end)
        if problems:
            raise ConfigurationError.of(problems)

    @classmethod
    def full(cls) -> Window:
        """The whole table, for ``strategy="full_refresh"``."""
        return cls(None, None)

    @classmethod
    def of_key(cls, key: str) -> Window:
        """The window of a stored :attr:`key`."""
        if key == FULL_KEY:
            return cls.full()
        start, end = key.split("/")
        return cls(datetime.fromisoformat(start), datetime.fromisoformat(end))

    @property
    def is_full(self) -> bool:
        """Whether this is the whole table."""
        return self.start is None

    @property
    def key(self) -> str:
        """``START/END`` in canonical text, or ``full``: the window's key in journal and receipt (<= 64
        characters)."""
        if self.start is None or self.end is None:
            return FULL_KEY
        return f"{instant_text(self.start)}/{instant_text(self.end)}"

    @property
    def bounds_us(self) -> tuple[int, int]:
        """Both bounds in microseconds since 1970-01-01 UTC. Only for an interval."""
        if self.start is None or self.end is None:
            raise ValueError("a full window has no bounds")
        unit = timedelta(microseconds=1)
        return (self.start - EPOCH) // unit, (self.end - EPOCH) // unit

    def __str__(self) -> str:
        return "the whole table" if self.is_full else f"[{self.key.replace('/', ', ')})"


def _plain_utc(instant: datetime) -> datetime:
    """Airflow gives pendulum instants, whose arithmetic is not the standard library's."""
    at = instant.astimezone(UTC)
    return datetime(at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, UTC)


def _bound_problems(where: str, bound: object) -> list[Problem]:
    if not isinstance(bound, datetime):
        return [
            Problem(
                "dpone.config.window", where, f"must be a datetime with a zone, not {type(bound).__name__}"
            )
        ]
    if bound.tzinfo is None or bound.utcoffset() is None:
        return [
            Problem("dpone.config.window", where, "is naive: say which zone, e.g. datetime(..., tzinfo=UTC)")
        ]
    try:
        bound.astimezone(UTC)
    except OverflowError:
        return [Problem("dpone.config.window", where, "is not in the years 1 to 9999 of UTC")]
    return []


def _order_problems(start: datetime, end: datetime) -> list[Problem]:
    if start == end:
        text = (
            f"start and end are both {instant_text(start)}: an empty interval delivers nothing. Runs of a "
            "plain cron schedule, and manual ones, have such intervals in Airflow 3; use "
            "CronDataIntervalTimetable, or window_start and window_end, or the run's configuration"
        )
        return [Problem("dpone.config.window", "window", text)]
    if start > end:
        text = f"is reversed: start {instant_text(start)} is after end {instant_text(end)}"
        return [Problem("dpone.config.window", "window", text)]
    return []
