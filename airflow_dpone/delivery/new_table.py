"""A target table that is missing and that the route allows to be made (``options.create_target``).

It is made in admission, under the lease, after everything that could refuse the delivery was asked, and
before the plan is frozen: in the target's own transaction, with nothing of it in the journal. A crash leaves
no table, or an empty one that the next call finds like any other. It is never changed and never dropped.
"""

from __future__ import annotations

import logging

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.planning import (
    ColumnMap,
    describe_source,
    judge,
    map_columns,
)
from airflow_dpone.delivery.ports import SourcePort, TargetPort
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.delivery.table_checks import unknown_column
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.settings import Route
from airflow_dpone.wire.fitting import fitting_type

log = logging.getLogger(__name__)


def wanted_columns(route: Route, source: r.SourceTable) -> tuple[tuple[str, str], ...]:
    """Source and target names of what the route delivers, in its order."""
    return route.columns or tuple((c.name, c.name) for c in source.columns if not c.kind)


def fitting_columns(route: Route, source: r.SourceTable) -> tuple[tuple[tr.TargetColumn, ...], list[Problem]]:
    """The columns that hold what the route delivers, and what cannot be held.

    A source column that is not there is for the mapping to name.
    """
    types = {c.name: c.type for c in source.columns}
    columns, problems = [], []
    for source_name, target_name in wanted_columns(route, source):
        found = fitting_type(source_name, types[source_name]) if source_name in types else None
        if isinstance(found, Problem):
            problems.append(found)
        elif found is not None:
            columns.append(tr.TargetColumn(target_name, str(found[0]), found[1]))
    return tuple(columns), [*problems, *_equal_names(columns)]


def _equal_names(columns: list[tr.TargetColumn]) -> list[Problem]:
    """Most databases compare names without regard to case."""
    seen: dict[str, str] = {}
    found = []
    for column in columns:
        other = seen.setdefault(column.name.casefold(), column.name)
        if other != column.name:
            text = f"differs from {other} in case only; give one of them another name with `columns`"
            found.append(Problem("dpone.config.field", column.name, text))
    return found


def look(
    source: SourcePort, target: TargetPort, route: Route
) -> tuple[r.SourceTable, tr.NewTable, ColumnMap]:
    """The source table, the table that would be made for it, and their mapping; both ports are open."""
    table = describe_source(source, route)
    columns, unfit = fitting_columns(route, table)
    new = target.new_table(*route.target_table, columns)
    mapping = map_columns(route, table, new.table)
    made = {c.name: c for c in columns}
    # A target column that is not there only because nothing fits into it is no mistake of its own.
    echoes = [
        echo
        for _, name in wanted_columns(route, table)
        for echo in unknown_column(name, made, "target column", route.target_table[1])
    ]
    problems = (*unfit, *(problem for problem in mapping.problems if problem not in echoes))
    return table, new, ColumnMap(mapping.columns, problems)


def create(run: DeliveryRun, wanted: tr.TargetIdentity) -> None:
    """Makes the table; what stands against it is one ConfigurationError, and no table.

    :param wanted: what was missing: the names under which it is going to be stored.
    """
    route, window, ports = run.request.route, run.request.window, run.ports
    with ports.source:
        source, new, mapping = look(ports.source, ports.target, route)
        gate = run.identity.gate if run.identity else None
        _, problems = judge(ports.source, route, window, source, mapping, gate)
    if problems:
        raise ConfigurationError.of(problems)
    made = ports.target.create_table(wanted.schema, wanted.table, new.table.columns)
    name = f"{wanted.schema}.{wanted.table}"
    log.info("%s was missing: %s", name, "it is made now" if made else "another process made it meanwhile")
