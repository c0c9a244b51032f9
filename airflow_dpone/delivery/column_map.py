"""Which source column feeds which target column, and everything that is wrong with it.

Each side is judged for itself, so a side that is missing hides nothing of the other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.table_checks import fitted, unknown_column
from airflow_dpone.errors import Problem
from airflow_dpone.settings import Options, Route
from airflow_dpone.wire.fitting import fitting_type
from airflow_dpone.wire.sql_type import SqlType, parse_sql_type
from airflow_dpone.wire.types import WireColumn, WireLayout, null_problem, resolve

WINDOW_TYPES = ("date", "datetime2")
_OF_WRITTEN_COLUMNS = frozenset(
    f"dpone.target.{name}"
    for name in ("generated_column", "encrypted_column", "ansi_padding", "comment_type")
)
"""Problems of a target column that are none of a column that is not written."""


@dataclass(frozen=True)
class MappedColumn:
    """One delivered column: source name and its wire column (target name and type pair)."""

    source: str
    wire: WireColumn


@dataclass(frozen=True)
class ColumnMap:
    """The delivered columns in the target's order, and everything that is wrong with them."""

    columns: tuple[MappedColumn, ...]
    problems: tuple[Problem, ...]

    @property
    def layout(self) -> WireLayout:
        """Wire layout of the delivered columns."""
        return WireLayout(tuple(column.wire for column in self.columns))

    @property
    def source_columns(self) -> list[str]:
        """Source names in the layout's order."""
        return [column.source for column in self.columns]


def wanted_columns(route: Route, source: r.SourceTable | None) -> tuple[tuple[str, str], ...]:
    """Source and target names of what the route delivers, in its order; none where only the source could
    tell."""
    if route.columns is not None or source is None:
        return route.columns or ()
    left_out = route.options.unmapped_columns
    return tuple((c.name, c.name) for c in source.columns if not c.kind and c.name not in left_out)


def map_columns(route: Route, source: r.SourceTable | None, target: tr.TargetTable | None) -> ColumnMap:
    """Pairs the columns and collects every problem; opens nothing.

    :param source: None, like ``target``, when nobody could look at it: then what is told is true of the
        other one alone.
    """
    pairing = _Pairing(route, source, target)
    wanted = pairing.wanted
    problems = [*(source.problems if source else ())]
    problems += target_problems(target, route.options) if target else []
    problems += pairing.pair()
    problems += _left_out_problems(route, pairing, target.must_be_fed if target else ())
    if target is not None and wanted:
        refused = {problem.where for problem in target.problems}
        fed = {name for _, name in wanted} | set(route.options.unmapped_columns)
        problems += unmapped_problems(target.columns, refused | fed)
    problems += _window_problems(route, pairing)
    problems += _check_problems(route, pairing)
    found = pairing.found
    in_order = tuple(found[c.name] for c in (target.columns if target else ()) if c.name in found)
    return ColumnMap(in_order, tuple(problems))


class _Pairing:
    """Both sides by name, as far as they are known, and the pairs that fit."""

    def __init__(self, route: Route, source: r.SourceTable | None, target: tr.TargetTable | None) -> None:
        self.route = route
        self.wanted = wanted_columns(route, source)
        self.source = None if source is None else {c.name: c for c in source.columns}
        self.target = None if target is None else {c.name: c for c in target.columns}
        self.found: dict[str, MappedColumn] = {}

    def pair(self) -> Iterator[Problem]:
        """Fills ``found``. Yields what keeps the others from it."""
        if self.source is not None and not self.wanted:
            text = f"{self.route.source_table[1]} has no stored column that could be delivered"
            yield Problem("dpone.config.field", "columns", text)
        for source_name, target_name in self.wanted:
            yield from self._unknown(source_name, target_name)
            column = (self.source or {}).get(source_name)
            if column is None:
                continue
            if column.kind:
                text = f"is {column.kind}; only stored columns are delivered: leave it out of columns"
                yield Problem("dpone.types.source_column_kind", source_name, text)
                continue
            yield from self._fit(column, (self.target or {}).get(target_name))

    def _unknown(self, source_name: str, target_name: str) -> Iterator[Problem]:
        if self.source is not None:
            yield from unknown_column(source_name, self.source, "source column", self.route.source_table[1])
        if self.target is not None:
            yield from unknown_column(target_name, self.target, "target column", self.route.target_table[1])

    def _fit(self, column: r.SourceColumn, into: tr.TargetColumn | None) -> Iterator[Problem]:
        if into is None:  # whatever it will be: some types go nowhere
            made = fitting_type(column.name, column.type)
            if isinstance(made, Problem):
                yield made
            return
        lenient = self.route.options.fail_on_null
        pair = resolve(column.name, column.type, into.type, into.nullable, fail_on_null=lenient)
        if not isinstance(pair, Problem):
            self.found[into.name] = MappedColumn(column.name, WireColumn(into.name, pair))
            return
        yield pair
        fitting = fitting_type(column.name, column.type)
        if pair.code == "dpone.types.nullability" or into.nullable or lenient or isinstance(fitting, Problem):
            return
        refused = null_problem(column.name, column.type, str(fitting[0]))
        if refused is not None:
            yield refused

    def types(self) -> dict[str, SqlType]:
        """Types of the delivered target columns; while nobody knows the source, of all that have one."""
        if self.source is not None:
            return {name: column.wire.pair.sql_type for name, column in self.found.items()}
        parsed = {name: parse_sql_type(column.type) for name, column in (self.target or {}).items()}
        return {name: kind for name, kind in parsed.items() if isinstance(kind, SqlType)}


def target_problems(target: tr.TargetTable, options: Options) -> list[Problem]:
    """What stands against the target table and no option lets through, and what an option needs of it."""
    allowed = [problem for option, problem in target.waivers if getattr(options, option)]
    allowed += [
        problem
        for problem in target.problems
        if problem.where in options.unmapped_columns and problem.code in _OF_WRITTEN_COLUMNS
    ]
    needed = [problem for option, problem in target.demands if getattr(options, option)]
    return [*(problem for problem in target.problems if problem not in allowed), *needed]


def _left_out_problems(route: Route, pairing: _Pairing, must_be_fed: Sequence[str]) -> Iterator[Problem]:
    """What is wrong with ``unmapped_columns``: a column is fed or it is not, and the window's always is."""
    where = "options.unmapped_columns"
    target, mapped = pairing.target, {name for _, name in pairing.wanted}
    for name in route.options.unmapped_columns:
        if target is not None:
            yield from unknown_column(name, target, f"column for {where}", "the target")
        if name in mapped:
            yield Problem("dpone.config.field", where, f"{name} is delivered by this route; name it once")
        elif name == route.window_column and route.columns is None:
            yield Problem("dpone.config.field", where, f"{name} is the window column, which is delivered")
        elif name in must_be_fed:
            text = f"{name} takes no NULL and has no default: no row could be inserted without it"
            yield Problem("dpone.config.field", where, f"{text}; feed it, or give it a DEFAULT")
        for check in route.quality.table_checks:
            if name in check.columns and (target is None or name in target):
                text = f"asks about {name}, which {where} leaves out; only what is delivered is checked"
                yield Problem("dpone.config.field", f"quality: {check.name}", text)


def unmapped_problems(columns: Sequence[tr.TargetColumn], mapped: set[str]) -> list[Problem]:
    """Target columns that nothing feeds. :param mapped: names of those that are fed, or may be left out."""
    text = (
        "the target has this column but nothing feeds it; each redelivery would empty it. Map it, drop it, "
        "or name it in options.unmapped_columns"
    )
    return [
        Problem("dpone.types.unmapped_target_column", c.name, text) for c in columns if c.name not in mapped
    ]


def _window_problems(route: Route, pairing: _Pairing) -> Iterator[Problem]:
    """The window column is delivered, from a stored column into one that holds dates."""
    name = route.window_column
    if route.strategy == "full_refresh" or name is None:
        return
    listed = name in {source for source, _ in pairing.wanted}
    if route.columns is not None and not listed:
        yield Problem("dpone.config.field", "columns", f"must contain the window column {name!r}")
    if pairing.source is not None and not listed:  # one that is listed was looked for already
        yield from unknown_column(name, pairing.source, "window column", route.source_table[1])
        column = pairing.source.get(name)
        if column is not None and column.kind:
            text = f"is {column.kind}; the window column is delivered, so it must be a stored one"
            yield Problem("dpone.types.source_column_kind", name, text)
    yield from _window_target_problems(name, route, pairing)


def _window_target_problems(name: str, route: Route, pairing: _Pairing) -> Iterator[Problem]:
    mapped = next((column for column in pairing.found.values() if column.source == name), None)
    if mapped is not None:
        kind = mapped.wire.pair.target_type
    elif pairing.source is None and pairing.target is not None:
        into = dict(pairing.wanted).get(name, name if route.columns is None else None)
        if into is not None and into not in pairing.target and route.columns is None:
            yield from unknown_column(into, pairing.target, "target column", route.target_table[1])
        if into not in pairing.target:
            return
        kind = pairing.target[into].type
    else:
        return  # it is delivered but its types do not fit, which is named already
    if kind.split("(")[0] not in WINDOW_TYPES:
        text = f"the window column must feed a date or datetime2 column, not {kind}"
        yield Problem("dpone.config.window_column", name, text)


def _check_problems(route: Route, pairing: _Pairing) -> list[Problem]:
    """Quality checks that cannot be asked: of columns that are not there, or with misfit thresholds."""
    checks = route.quality.table_checks
    if pairing.target is not None:
        return fitted(checks, pairing.target, pairing.types())[1]
    if not pairing.wanted:
        return []
    delivered = [*(name for _, name in pairing.wanted), *route.options.unmapped_columns]
    return fitted(checks, delivered, {}, "the route")[1]
