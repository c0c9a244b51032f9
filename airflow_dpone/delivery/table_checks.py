"""The checks of a route, made to fit the columns that it delivers; or what is wrong with them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_dpone.errors import Problem
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.wire.sql_type import SqlType
from airflow_dpone.wire.threshold import typed_threshold

_NO_KEYS = ("real", "float")


def fitted(
    checks: Iterable[TableCheck],
    columns: Iterable[str],
    types: Mapping[str, SqlType],
    whose: str = "the target",
) -> tuple[list[TableCheck], list[Problem]]:
    """Checks whose thresholds are typed, and a problem for each check that cannot be asked.

    :param columns: the target's. :param types: of those that are delivered; what is missing in it is
        somebody else's problem. :param whose: columns they are, for the message.
    """
    known = list(columns)
    found, problems = [], []
    for check in checks:
        wrong = [problem for name in check.columns for problem in _unknown(name, check, known, whose)]
        if not wrong and all(name in types for name in check.columns):
            try:
                found.append(_typed(check, types))
            except ValueError as error:
                wrong = [Problem("dpone.config.field", f"quality: {check.name}", str(error))]
        problems += wrong
    return found, problems


def _typed(check: TableCheck, types: Mapping[str, SqlType]) -> TableCheck:
    if check.kind == "unique":
        for name in check.columns:
            if types[name].name in _NO_KEYS:
                raise ValueError(f"compares keys, and {name} is {types[name]}; an approximate number is none")
    if check.threshold is None:
        return check
    return replace(check, threshold=typed_threshold(check.threshold, types[check.columns[0]]))


def _unknown(name: str, check: TableCheck, known: Iterable[str], whose: str) -> list[Problem]:
    setting = check.kind if check.kind in ("not_null", "unique") else "min_max"
    return unknown_column(name, known, f"column for quality.{setting}", whose)


def unknown_column(name: str, known: Iterable[str], what: str, table: str) -> list[Problem]:
    """A problem with close names when no column has that name."""
    names = list(known)
    if name in names:
        return []
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"; close names: {', '.join(close)}" if close else ""
    return [Problem("dpone.config.unknown_column", name, f"{table} has no {what} of this name{hint}")]
