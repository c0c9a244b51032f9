"""A target table that is missing and that the route allows to be made (``options.create_target``).

It is made in admission, under the lease, after everything that could refuse the delivery was asked, and
before the plan is frozen: in the target's own transaction, with nothing of it in the journal. A crash leaves
no table, or an empty one that the next call finds like any other. It is never changed and never dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.column_map import ColumnMap, map_columns, target_problems
from airflow_dpone.delivery.ports import TargetPort
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.delivery.table_checks import unknown_column
from airflow_dpone.errors import Problem
from airflow_dpone.settings import Route
from airflow_dpone.wire.fitting import fitting_type

log = logging.getLogger(__name__)


def _made_columns(route: Route, source: r.SourceTable) -> tuple[tuple[str, str], ...]:
    """Source and target names of what is made: also of what ``unmapped_columns`` leaves out."""
    return route.columns or tuple((c.name, c.name) for c in source.columns if not c.kind)


def fitting_columns(route: Route, source: r.SourceTable) -> tuple[tuple[tr.TargetColumn, ...], list[Problem]]:
    """The columns that hold what the route delivers, and what cannot be held.

    A source column that is not there is for the mapping to name.
    """
    types = {c.name: c.type for c in source.columns}
    columns, problems = [], []
    for source_name, target_name in _made_columns(route, source):
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
    target: TargetPort, route: Route, source: r.SourceTable | None
) -> tuple[tr.TargetTable | None, str, ColumnMap]:
    """The table that would be made for a source table, its statement, and the mapping; the target is open.

    :param source: None when nobody could look at it: then only the table's place is judged.
    """
    columns, unfit = fitting_columns(route, source) if source else ((), [])
    new = target.new_table(*route.target_table, columns)
    if source is None:
        place = target_problems(new.table, route.options)
        return None, "", ColumnMap((), (*place, *map_columns(route, None, None).problems))
    mapping = map_columns(route, source, new.table)
    made = {c.name: c for c in columns}
    # A target column that is not there only because nothing fits into it is no mistake of its own.
    echoes = [
        echo
        for _, name in _made_columns(route, source)
        for echo in unknown_column(name, made, "target column", route.target_table[1])
    ]
    problems = (*unfit, *(problem for problem in mapping.problems if problem not in echoes))
    return new.table, new.statement, ColumnMap(mapping.columns, problems)


def create(run: DeliveryRun, wanted: tr.TargetIdentity, columns: Sequence[tr.TargetColumn]) -> None:
    """Makes the table, which nothing stands against.

    :param wanted: what was missing: the names under which it is going to be stored.
    """
    made = run.ports.target.create_table(wanted.schema, wanted.table, columns)
    name = f"{wanted.schema}.{wanted.table}"
    log.info("%s was missing: %s", name, "it is made now" if made else "another process made it meanwhile")
