"""Which window a run means: arguments, then the run's configuration, then a rolling window, then its data
interval. Never a guess."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import RUN_CONF, ConfigurationError, Problem
from airflow_dpone.operators.windows import Rolling

_SHAPE = '{"window": {"start": "2025-01-01T00:00:00Z", "end": "2025-01-02T00:00:00Z"}}'


def choose_window(
    strategy: str, start: Any, end: Any, context: Mapping[str, Any], rolling: object = None
) -> tuple[Window, bool]:
    """The window of a task's run, and whether it moves: then one that was stored before counts more.

    Raises ConfigurationError when there is none, or two.

    :param strategy: ``full_refresh`` takes no window at all.
    :param start: argument ``window_start`` after templating; None, '' and 'None' are absent.
    :param end: argument ``window_end`` after templating.
    :param context: Airflow's context; keys that a run does not have are absent in it.
    :param rolling: what the run means without arguments and configuration.
    """
    arguments = _given(start), _given(end)
    has_arguments = any(argument is not None for argument in arguments)
    configured = _configured(context)
    if strategy == "full_refresh":
        if has_arguments or configured is not None or rolling is not None:
            by_run = not has_arguments and rolling is None
            text = "strategy='full_refresh' replaces the whole table: give no window"
            raise _refused(text, by_run=by_run)
        return Window.full(), False
    if has_arguments and configured is not None:
        raise _refused("is given twice: by window_start/window_end and by the run's configuration")
    if has_arguments and rolling is not None:
        raise _refused("is given twice: by window_start/window_end and by rolling")
    if has_arguments:
        return _between(window_start=arguments[0], window_end=arguments[1]), False
    if configured is not None:
        return _of_configuration(configured), False
    if isinstance(rolling, Rolling):
        return Window(*rolling.bounds(context)), True
    if rolling is not None:
        text = "must be Rolling(anchor, duration, lookback, precision)"
        raise ConfigurationError.of([Problem("dpone.config.window", "rolling", text)])
    return _of_interval(context), False


def _given(value: Any) -> Any:
    return None if value in (None, "", "None") else value


def _configured(context: Mapping[str, Any]) -> Mapping[str, Any] | None:
    dag_run = context.get("dag_run")
    conf = getattr(dag_run, "conf", None) or {}
    window = conf.get("window")
    if window is None:
        misspelt = difflib.get_close_matches("window", [str(key) for key in conf], n=1)
        if misspelt:
            raise _refused(
                f"the run's configuration has {misspelt[0]!r}: did you mean {_SHAPE}?", by_run=True
            )
        return None
    if not isinstance(window, Mapping) or set(window) != {"start", "end"}:
        raise _refused(f"the run's configuration must be {_SHAPE}", by_run=True)
    return window


def _of_configuration(window: Mapping[str, Any]) -> Window:
    try:
        return _between(**{f"window.{name}": window[name] for name in ("start", "end")})
    except ConfigurationError as error:
        own = [replace(problem, where=f"{RUN_CONF}{problem.where}") for problem in error.problems]
        raise ConfigurationError.of(own) from None


def _of_interval(context: Mapping[str, Any]) -> Window:
    dag_run = context.get("dag_run")
    start = context.get("data_interval_start") or getattr(dag_run, "data_interval_start", None)
    end = context.get("data_interval_end") or getattr(dag_run, "data_interval_end", None)
    if start is None or end is None:
        text = (
            "this run has no data interval (manual and asset runs have none): give window_start and "
            f"window_end, or rolling, or trigger it with {_SHAPE}"
        )
        raise _refused(text)
    return Window(start, end)


def _between(**bounds: Any) -> Window:
    """The window of two bounds by their names, start first; both are judged."""
    instants: list[datetime] = []
    problems: list[Problem] = []
    for where, value in bounds.items():
        try:
            instants.append(_instant(where, value))
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError.of(problems)
    return Window(*instants)


def _instant(where: str, value: Any) -> datetime:
    if value is None:
        raise ConfigurationError.of([Problem("dpone.config.window", where, "is missing: give both bounds")])
    if isinstance(value, datetime):
        return value
    try:
        instant = datetime.fromisoformat(str(value).strip())
    except ValueError:
        text = "must be an ISO instant with a zone, e.g. 2025-01-01T00:00:00Z"
        raise ConfigurationError.of([Problem("dpone.config.window", where, text)]) from None
    if instant.tzinfo is None:
        text = "is naive: say which zone, e.g. 2025-01-01T00:00:00Z"
        raise ConfigurationError.of([Problem("dpone.config.window", where, text)])
    return instant


def _refused(text: str, *, by_run: bool = False) -> ConfigurationError:
    where = f"{RUN_CONF}window" if by_run else "window"
    return ConfigurationError.of([Problem("dpone.config.window", where, text)])
