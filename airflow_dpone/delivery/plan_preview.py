"""What a delivery would do, from metadata only: for ``plan`` and for people who want to see before they
run."""

from __future__ import annotations

from airflow_dpone.delivery import new_table
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.planning import (
    ColumnMap,
    introspect,
    judge,
    request_problems,
)
from airflow_dpone.delivery.ports import SourcePort, TargetPort, WriterPort
from airflow_dpone.delivery.table_checks import fitted
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.settings import Route

NOT_INITIALISED = (
    "the target database is not initialised: its first delivery does that on an embedded target, "
    "`python -m airflow_dpone target init` on a server"
)


def preview(
    source: SourcePort, target: TargetPort, writer: WriterPort, route: Route, window: Window
) -> r.Plan:
    """Opens both ports, asks the catalogs, writes nothing."""
    problems = request_problems(route, window, writer.backend)
    statements: dict[str, str] = {}
    created: dict[str, str] = {}
    with target, source:
        try:
            found = target.identify(
                *route.target_table, initialise=False, may_be_missing=route.options.create_target
            )
            if found.is_missing:
                table, new, mapping = new_table.look(source, target, route)
                into, created = new.table, {"create_table": new.statement}
            else:
                table, into, mapping = introspect(source, target, route)
        except ConfigurationError as error:
            refused = error.problems or (Problem(error.code, "target_table", error.message),)
            return r.Plan(route, window, (), (*problems, *refused), {}, None, ())
        query, refusals = judge(source, route, window, table, mapping, found.gate)
        problems += refusals
        if query is not None:
            statements = {**created, "read": query.text}
            ref = tr.TargetRef(
                "0" * 64, found.schema, found.table, found.object_id, found.created, into.fingerprint
            )
            column = next((c.wire.name for c in mapping.columns if c.source == route.window_column), None)
            column = None if window.is_full else column
            statements |= target.statements(
                ref,
                mapping.layout,
                column,
                _checks(route, mapping),
                after_image_digest=route.options.proves_after_image,
            )
    warnings = (*table.warnings, *into.warnings, *_let_through(route, into))
    if found.installation_id is None:
        warnings = (*warnings, NOT_INITIALISED)
    return r.Plan(
        route,
        window,
        _columns(mapping),
        tuple(problems),
        statements,
        table.estimated_rows,
        warnings,
        into.observations,
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
