"""What source and target say of a delivery that has not begun: everything that stands against it, at once.

Each side is asked for itself. One that does not answer is named beside what is wrong with the other one; only
where nothing is wrong is its silence the error, which can be tried again. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from airflow_dpone.delivery import new_table
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.column_map import ColumnMap, map_columns
from airflow_dpone.delivery.planning import route_scope
from airflow_dpone.delivery.ports import SourcePort, TargetPort
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import (
    ConfigurationError,
    DponeError,
    Problem,
    SourceMoved,
    SourceUnavailable,
    TargetBusy,
)
from airflow_dpone.settings import Route

SILENT = (SourceUnavailable, SourceMoved, TargetBusy)
"""A side that gave no answer, or none that holds: nothing is known of it."""


class Findings:
    """Problems and silences, in the order in which they were met."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._silences: list[tuple[str, DponeError]] = []

    def add(self, *problems: Problem) -> None:
        """Each is told once."""
        self._problems = [*dict.fromkeys((*self._problems, *problems))]

    def note(self, field: str, error: DponeError) -> None:
        """An error that asking a side ended with. :param field: the parameter that names the side."""
        if isinstance(error, ConfigurationError):
            self.add(*(error.problems or (Problem(error.code, field, error.message),)))
        else:
            self._silences.append((field, error))

    @contextmanager
    def of(self, field: str) -> Iterator[None]:
        """Asks a side inside the block, which ends where the side refuses or says nothing."""
        try:
            yield
        except (ConfigurationError, *SILENT) as error:
            self.note(field, error)

    @property
    def refusals(self) -> tuple[Problem, ...]:
        """Everything that a person has to mend, and then also which side did not answer."""
        silent = [Problem(error.code, field, error.message) for field, error in self._silences]
        return (*self._problems, *silent) if self._problems else ()

    @property
    def silence(self) -> DponeError | None:
        """Why nothing can be said, where nothing is wrong otherwise."""
        return self._silences[0][1] if self._silences and not self._problems else None

    def refuse(self) -> None:
        """Raises ConfigurationError with all refusals, or the silence; nothing when there is neither."""
        if self._problems:
            raise ConfigurationError.of(self.refusals)
        if self.silence is not None:
            raise self.silence


@dataclass(frozen=True)
class Survey:
    """What was found. :param source: None, like ``target``, where it could not be described.

    :param statement: the CREATE TABLE of a table that would be made; else ''. :param query: None when it
        could not be compiled.
    """

    source: r.SourceTable | None
    target: tr.TargetTable | None
    mapping: ColumnMap
    query: r.SourceQuery | None
    statement: str


def identified(target: TargetPort, route: Route) -> tr.TargetIdentity:
    """Who the target is, without making anything in it. Raises ConfigurationError, or TargetBusy."""
    may_be_missing = route.options.create_target
    return target.identify(*route.target_table, initialise=False, may_be_missing=may_be_missing)


def look(
    source: SourcePort,
    target: TargetPort,
    route: Route,
    window: Window,
    found: tr.TargetIdentity | None,
    findings: Findings,
) -> Survey:
    """Opens the source, asks both sides, and adds all that stands against the delivery to the findings.

    :param target: open, unless ``found`` is None: then it is not asked.
    """
    table = into = query = None
    statement = ""
    with ExitStack() as stack:
        with findings.of("source"):
            stack.enter_context(source)
            table = source.describe(*route.source_table)
        mapping = None
        with findings.of("target"):
            if found is not None and found.is_missing:
                into, statement, mapping = new_table.look(target, route, table)
            elif found is not None:
                into = target.describe(*route.target_table)
        mapping = mapping or map_columns(route, table, into)
        findings.add(*mapping.problems)
        if table is not None:
            with findings.of("source"):
                query = _compile(source, route, window, table, mapping)
    findings.add(*_route_problems(found.gate if found else None, route, table))
    return Survey(table, into, mapping, query, statement)


def _compile(
    source: SourcePort, route: Route, window: Window, table: r.SourceTable, mapping: ColumnMap
) -> r.SourceQuery | None:
    """The source query. Where no column is mapped, it is only tried, with the columns that would fit.

    :raises ConfigurationError: the window does not fit the window column, or the columns may not be read.
    """
    column = None if window.is_full else route.window_column
    if column is not None and column not in {c.name for c in table.columns}:
        return None
    tried = mapping
    if not mapping.columns:
        columns, _ = new_table.fitting_columns(route, table)
        tried = map_columns(route, table, tr.TargetTable(columns))
    if not tried.columns:
        return None
    query = source.compile(table, tried.layout, tried.source_columns, column, window)
    return query if tried is mapping else None


def _route_problems(gate: tr.GateRow | None, route: Route, table: r.SourceTable | None) -> list[Problem]:
    """Two routes into one target would replace each other's rows, each with a clean receipt."""
    if gate is None or gate.route_scope == route_scope(route) or route.options.take_over_target:
        return []
    if table is None or route.window_column not in (None, *(c.name for c in table.columns)):
        return []  # a misspelt route is no other route
    text = (
        "another route delivers into this table. A route is its source's name (source_name; by default the "
        f"connection id, here it is {route.effective_source_name!r}), source table and window column: if it "
        "is the same source under another name, set source_name to that; else use another table, or set "
        "options.take_over_target=True"
    )
    return [Problem("dpone.target.owned_by_other_route", "target_table", text)]


def admitted(
    run: DeliveryRun, found: tr.TargetIdentity
) -> tuple[r.SourceTable, tr.TargetTable, ColumnMap, r.SourceQuery]:
    """Both tables, their mapping and the query of a delivery that may begin; the target is open.

    :raises DponeError: it may not: ConfigurationError with everything, or a side said nothing.
    """
    request, ports, findings = run.request, run.ports, Findings()
    seen = look(ports.source, ports.target, request.route, request.window, found, findings)
    findings.refuse()
    if seen.source is None or seen.target is None or seen.query is None:
        raise RuntimeError("a survey without findings is whole")
    return seen.source, seen.target, seen.mapping, seen.query


def refuse_whole(run: DeliveryRun, error: ConfigurationError | TargetBusy, *, is_open: bool) -> None:
    """After the target could not be identified. Raises ConfigurationError when something is wrong beside
    that; returns when nothing is.

    :param is_open: the target is open, and may be asked again.
    """
    route, ports, findings = run.request.route, run.ports, Findings()
    findings.note("target", error)
    alone = findings.refusals
    found = None
    if is_open and isinstance(error, ConfigurationError):
        with findings.of("target"):
            found = identified(ports.target, route)
    look(ports.source, ports.target, route, run.request.window, found, findings)
    if findings.refusals != alone:
        findings.refuse()
