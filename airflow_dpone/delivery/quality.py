"""The quality checks of a route: asked of the prepared table, judged before anything is visible.

A check knows numbers of rows and what the route allows; no value of a row ever leaves the target for it. A
failed check of severity ``warn`` goes into the log and, like every other, into the evidence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.delivery.table_checks import fitted
from airflow_dpone.errors import ConfigurationError, QualityFailed
from airflow_dpone.quality_settings import MAX_SHRINK_RATIO, ROW_COUNT, Quality, Severity, TableCheck

log = logging.getLogger(__name__)
_BROKEN = {"not_null": "NULLs", "unique": "rows repeat a key", "min": "values below", "max": "values above"}


@dataclass(frozen=True)
class Judgement:
    """One check and its outcome.

    :param observed: what was counted. :param threshold: what the route allows.
    """

    check: str
    passed: bool
    said: str
    observed: str
    threshold: str
    severity: Severity = "error"

    def to_json(self, plain: bool) -> r.Json:
        """For PREPARED and the evidence. :param plain: in the form of the first version."""
        body: r.Json = {"check": self.check, "passed": self.passed, "said": self.said}
        if plain:
            return body
        return {**body, "severity": self.severity, "observed": self.observed, "threshold": self.threshold}


def check_quality(run: DeliveryRun, prepared: tr.StageRef, rows: int) -> list[r.Json]:
    """All checks of the route; raises one QualityFailed that names every failed one.

    The checks are the newest of the configuration, the columns those of the plan: a check that does not fit
    them is a ConfigurationError.
    """
    quality = run.frozen.quality
    found = [
        *_row_count(quality, rows),
        *_table(run, prepared),
        *_shrink(run, quality, rows),
        *_on_empty(run, rows),
    ]
    failed = [one for one in found if not one.passed]
    for one in failed:
        if one.severity == "warn":
            log.warning("quality: %s: %s; severity warn: the delivery goes on", one.check, one.said)
    refused = [one for one in failed if one.severity == "error"]
    if refused:
        told = "; ".join(f"{one.check}: {one.said}" for one in refused)
        raise QualityFailed("dpone.quality.failed", told, checks=[one.check for one in refused])
    return [one.to_json(quality.is_plain) for one in found]


def _row_count(quality: Quality, rows: int) -> Iterator[Judgement]:
    bounds = quality.row_count
    if bounds is None:
        return
    low, high = bounds.min_rows, bounds.max_rows
    passed = (low is None or rows >= low) and (high is None or rows <= high)
    allowed = f"{low or 0}..{'any' if high is None else high}"
    said = f"{rows} rows, allowed {allowed}"
    yield Judgement(ROW_COUNT, passed, said, str(rows), allowed, quality.severity_of(ROW_COUNT))


def _table(run: DeliveryRun, prepared: tr.StageRef) -> Iterator[Judgement]:
    plan = run.frozen
    asked = plan.quality.table_checks
    if not asked:
        return
    types = {column.name: column.pair.sql_type for column in plan.layout.columns}
    checks, problems = fitted(asked, types, types)
    if problems:
        raise ConfigurationError.of(problems)
    counts = run.ports.target.count_violations(prepared, plan.layout, checks)
    for check, count in zip(asked, counts, strict=True):
        yield _judged(check, count, plan.quality.severity_of(check.name))


def _judged(check: TableCheck, count: int, severity: Severity) -> Judgement:
    said = f"{count} {_BROKEN[check.kind]}" + (f" {check.threshold}" if check.threshold else "")
    return Judgement(check.name, count == 0, said, str(count), check.threshold or "0", severity)


def _shrink(run: DeliveryRun, quality: Quality, rows: int) -> Iterator[Judgement]:
    """By how much the target's window would become smaller than it is now."""
    allowed = quality.max_shrink_ratio
    if allowed is None:
        return
    plan = run.frozen
    there = run.ports.target.count_window(plan.target, plan.target_window_column, plan.window)
    passed = there - rows <= allowed * there
    lost = Decimal(max(0, there - rows)) / Decimal(there or 1)
    ratio, limit = str(lost.quantize(Decimal("0.0001"), ROUND_CEILING)), format(allowed, "f")
    said = f"{rows} rows, {there} in the target now: it would shrink by {ratio}, allowed {limit}"
    yield Judgement(MAX_SHRINK_RATIO, passed, said, ratio, limit, quality.severity_of(MAX_SHRINK_RATIO))


def _on_empty(run: DeliveryRun, rows: int) -> Iterator[Judgement]:
    """What an empty window does (option ``on_empty``)."""
    if rows > 0:
        return
    plan = run.frozen
    there = run.ports.target.count_window(plan.target, plan.target_window_column, plan.window)
    rule = plan.options.on_empty
    passed = rule == "publish" or (rule == "fail_if_target_has_rows" and there == 0)
    said = f"the source has 0 rows, the target has {there}; option on_empty={rule!r}"
    if passed and there:
        log.warning("the window is empty in the source: the publication will delete %s rows", there)
    yield Judgement("on_empty", passed, said, str(there), rule)
