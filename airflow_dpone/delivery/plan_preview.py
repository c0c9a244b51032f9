"""What a delivery would do, from metadata only: for ``plan`` and for people who want to see before they
run."""

from __future__ import annotations

from contextlib import ExitStack

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import survey
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.column_map import ColumnMap
from airflow_dpone.delivery.planning import request_problems
from airflow_dpone.delivery.ports import SourcePort, TargetPort, WriterPort
from airflow_dpone.delivery.table_checks import fitted
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import Problem
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.settings import Route

NOT_INITIALISED = (
    "the target database is not initialised: its first delivery does that on an embedded target, "
    "`python -m airflow_dpone target init` on a server"
)


def preview(
    source: SourcePort, target: TargetPort, writer: WriterPort, route: Route, window: Window
) -> r.Plan:
    """Opens both ports, asks the catalogs, writes nothing.

    :raises DponeError: a side does not answer, and nothing is wrong otherwise.
    """
    findings = survey.Findings()
    findings.add(*request_problems(route, window, writer.backend))
    found = None
    statements: dict[str, str] = {}
    with ExitStack() as stack:
        with findings.of("target"):
            stack.enter_context(target)
            found = survey.identified(target, route)
        if found is not None and found.installation_id is None and target.environment != "embedded":
            findings.add(Problem("dpone.target.not_initialised", "target", NOT_INITIALISED))
        seen = survey.look(source, target, route, window, found, findings)
        if found is not None and seen.target is not None and seen.query is not None:
            statements = _statements(target, route, window, found, seen.target, seen)
    if findings.silence is not None:
        raise findings.silence
    warnings: tuple[str, ...] = seen.source.warnings if seen.source else ()
    if seen.target is not None:
        warnings = (*warnings, *seen.target.warnings, *_let_through(route, seen.target))
    if found is not None and found.installation_id is None:
        warnings = (*warnings, NOT_INITIALISED)
    return r.Plan(
        route,
        window,
        _columns(seen.mapping),
        findings.refusals,
        statements,
        seen.source.estimated_rows if seen.source else None,
        warnings,
        seen.target.observations if seen.target else (),
    )


def _statements(
    target: TargetPort,
    route: Route,
    window: Window,
    found: tr.TargetIdentity,
    into: tr.TargetTable,
    seen: survey.Survey,
) -> dict[str, str]:
    ref = tr.TargetRef("0" * 64, found.schema, found.table, found.object_id, found.created, into.fingerprint)
    mapped = seen.mapping
    column = next((c.wire.name for c in mapped.columns if c.source == route.window_column), None)
    told = {"create_table": seen.statement} if seen.statement else {}
    if seen.query is not None:
        told["read"] = seen.query.text
    return told | dict(
        target.statements(
            ref,
            mapped.layout,
            None if window.is_full else column,
            _checks(route, mapped),
            after_image_digest=route.options.proves_after_image,
        )
    )


def _let_through(route: Route, into: tr.TargetTable) -> list[str]:
    return [
        f"options.{option} lets through: {problem.where}: {problem.message}"
        for option, problem in into.waivers
        if getattr(route.options, option)
    ]


def _checks(route: Route, mapping: ColumnMap) -> list[TableCheck]:
    types = {column.wire.name: column.wire.pair.sql_type for column in mapping.columns}
    return fitted(route.quality.table_checks, types, types)[0]


def _columns(mapping: ColumnMap) -> tuple[r.PlannedColumn, ...]:
    return tuple(
        r.PlannedColumn(
            source=c.source,
            source_type=c.wire.pair.source_type,
            target=c.wire.name,
            target_type=c.wire.pair.target_type,
            nullable=c.wire.pair.target_nullable,
            wire=str(c.wire.pair.arrow_type),
        )
        for c in mapping.columns
    )
