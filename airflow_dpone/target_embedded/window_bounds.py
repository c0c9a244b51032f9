"""A window as the two typed values that a target column is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.wire.sql_type import SqlType


@dataclass(frozen=True)
class WindowBounds:
    """``column >= from_ts AND column < to_ts``; no column is the whole table."""

    column: str | None
    parameters: Mapping[str, object]

    @classmethod
    def of_request(cls, request: tr.PublishRequest) -> WindowBounds:
        """The bounds of a publication; the window column must be one of the delivered ones."""
        types = {c.name: c.pair.sql_type for c in request.layout.columns}
        return cls.of(request.window_column, types.get(request.window_column or ""), request.window)

    @classmethod
    def of(cls, column: str | None, sql_type: SqlType | None, window: Window) -> WindowBounds:
        """Raises ConfigurationError when the column's type cannot take the bounds exactly."""
        if column is None and window.is_full:
            return cls(None, {})
        if column is None or window.start is None or window.end is None:
            text = "a full refresh has no window column, and a window needs one"
            raise ConfigurationError.of([Problem("dpone.config.window", "window", text)])
        start, end = window.start.replace(tzinfo=None), window.end.replace(tzinfo=None)
        for bound in (start, end):
            problem = _misfit(bound, sql_type)
            if problem:
                raise ConfigurationError.of([Problem("dpone.config.window_column", column, problem)])
        return cls(column, {"from_ts": start, "to_ts": end})

    def count(self, path: str) -> str:
        """Counts the rows that belong to the window."""
        return sql.count_rows(path) if self.column is None else sql.count_window(path, self.column)


WHOLE_TABLE = WindowBounds(None, {})


def _misfit(bound: datetime, sql_type: SqlType | None) -> str | None:
    if sql_type is None:
        return "is not a column that is delivered"
    if sql_type.name == "date":
        midnight = bound == datetime(bound.year, bound.month, bound.day)
        return None if midnight else "is a date: the window's bounds must be midnights in UTC"
    if sql_type.name != "datetime2":
        return f"is {sql_type}; a window column is date or datetime2"
    step = 10 ** (6 - min(sql_type.scale or 0, 6))
    return f"is {sql_type}, which does not hold the window's bounds" if bound.microsecond % step else None
