"""From a route and two introspections to a frozen plan: the mapping, all refusals at once, and the identity.

A plan is frozen once, in the journal's PLANNED event, and read back by every later call; a resumed delivery
never plans anew with another configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import SourcePort, TargetPort
from airflow_dpone.delivery.table_checks import fitted, unknown_column
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.settings import Limits, Options, Quality, Route
from airflow_dpone.wire.digest import ALGORITHM
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve

WINDOW_TYPES = ("date", "datetime2")
SOURCE_OPTIONS = ("allow_ttl", "accept_unseen_row_policies")
"""Options that let a source table through; tuning that is stored only when it is set."""
TARGET_OPTIONS = ("after_image_digest", "allow_triggers", "allow_referenced_target")
"""Options about obstacles of a target table; likewise."""
_OF_WRITTEN_COLUMNS = frozenset(
    f"dpone.target.{name}"
    for name in ("generated_column", "encrypted_column", "ansi_padding", "comment_type")
)
"""Problems of a target column that are none of a column that is not written."""
STORED_WHEN_SET = (*SOURCE_OPTIONS, *TARGET_OPTIONS, "create_target")


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


def map_columns(route: Route, source: r.SourceTable, target: tr.TargetTable) -> ColumnMap:
    """Pairs the columns and collects every problem; opens nothing."""
    ordinary = [c for c in source.columns if not c.kind]
    left_out = route.options.unmapped_columns
    wanted = route.columns or tuple((c.name, c.name) for c in ordinary if c.name not in left_out)
    by_source = {c.name: c for c in source.columns}
    by_target = {c.name: c for c in target.columns}
    problems = [*source.problems, *target_problems(target, route.options)]
    found: dict[str, MappedColumn] = {}
    for source_name, target_name in wanted:
        problems += unknown_column(source_name, by_source, "source column", source.table)
        problems += unknown_column(target_name, by_target, "target column", route.target_table[1])
        if source_name not in by_source or target_name not in by_target:
            continue
        column, into = by_source[source_name], by_target[target_name]
        if column.kind:
            text = f"is {column.kind}; only stored columns are delivered: leave it out of columns"
            problems.append(Problem("dpone.types.source_column_kind", source_name, text))
            continue
        fail_on_null = route.options.fail_on_null
        pair = resolve(source_name, column.type, into.type, into.nullable, fail_on_null=fail_on_null)
        if isinstance(pair, Problem):
            problems.append(pair)
        else:
            found[target_name] = MappedColumn(source_name, WireColumn(target_name, pair))
    refused = {problem.where for problem in target.problems}
    mapped = {target_name for _, target_name in wanted}
    problems += _left_out_problems(route, mapped, by_target, target.must_be_fed)
    problems += unmapped_problems(target.columns, refused | mapped | set(left_out))
    problems += _window_problems(route, found, by_source)
    types = {name: column.wire.pair.sql_type for name, column in found.items()}
    problems += fitted(route.quality.table_checks, by_target, types)[1]
    in_order = tuple(found[c.name] for c in target.columns if c.name in found)
    return ColumnMap(in_order, tuple(problems))


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


def _left_out_problems(
    route: Route, mapped: set[str], target: Mapping[str, tr.TargetColumn], must_be_fed: Sequence[str]
) -> Iterator[Problem]:
    """What is wrong with ``unmapped_columns``: a column is fed or it is not, and the window's always is."""
    where = "options.unmapped_columns"
    for name in route.options.unmapped_columns:
        yield from unknown_column(name, target, f"column for {where}", "the target")
        if name in mapped:
            yield Problem("dpone.config.field", where, f"{name} is delivered by this route; name it once")
        elif name == route.window_column and route.columns is None:
            yield Problem("dpone.config.field", where, f"{name} is the window column, which is delivered")
        elif name in must_be_fed:
            text = f"{name} takes no NULL and has no default: no row could be inserted without it"
            yield Problem("dpone.config.field", where, f"{text}; feed it, or give it a DEFAULT")
        for check in route.quality.table_checks:
            if name in check.columns and name in target:
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


def _window_problems(
    route: Route, found: Mapping[str, MappedColumn], source: Mapping[str, r.SourceColumn]
) -> list[Problem]:
    name = route.window_column
    if route.strategy == "full_refresh" or name is None:
        return []
    mapped = next((column for column in found.values() if column.source == name), None)
    if name not in source:
        return (
            unknown_column(name, source, "window column", route.source_table[1])
            if route.columns is None
            else []
        )
    if mapped is None:
        return []  # it is delivered but its types do not fit, which is named already
    kind = mapped.wire.pair.target_type
    if kind.split("(")[0] in WINDOW_TYPES:
        return []
    text = f"the window column must feed a date or datetime2 column, not {kind}"
    return [Problem("dpone.config.window_column", name, text)]


LATER_WRITERS = frozenset({"bcp", "sqlclient"})


def request_problems(route: Route, window: Window | None, writer_backend: str) -> list[Problem]:
    """What can be told without opening anything."""
    problems = []
    if window is not None and (route.strategy == "full_refresh") is not window.is_full:
        text = "strategy='full_refresh' takes Window.full(), and 'window_replace' takes Window(start, end)"
        problems.append(Problem("dpone.config.window", "window", text))
    if route.writer is not None and route.writer != writer_backend:
        is_later = route.writer in LATER_WRITERS
        says = "comes with a later version" if is_later else "cannot load this target"
        text = f"{route.writer!r} {says}; leave writer out, or use {writer_backend!r}"
        code = "dpone.config.later" if is_later else "dpone.config.writer"
        problems.append(Problem(code, "writer", text))
    if writer_backend == "embedded" and route.limits.import_writers > 1:
        where = "import_parallelism" if route.limits.import_parallelism else "parallelism"
        text = "an embedded target is written by one process, chunk by chunk; set import_parallelism=1"
        problems.append(Problem("dpone.config.field", f"limits.{where}", text))
    return problems


@dataclass(frozen=True)
class FrozenPlan:
    """The PLANNED payload: everything that the content of a delivery depends on, and the tuning it started
    with."""

    delivery_key: str
    generation: int
    target: tr.TargetRef
    route_scope: str
    window: Window
    window_column: str | None
    target_window_column: str | None
    strategy: str
    source_schema_sha256: str
    source_uuid: str
    source_server_id: str
    query: r.SourceQuery
    columns: tuple[MappedColumn, ...]
    writer_backend: str
    proof_capability: str
    quality: Quality
    options: Options
    limits: Limits

    @property
    def layout(self) -> WireLayout:
        """Wire layout of the delivered columns."""
        return WireLayout(tuple(column.wire for column in self.columns))

    @property
    def identity_fields(self) -> r.Json:
        """What the invocation key is made of: identity, never tuning. ``fail_on_null`` is there only when it
        is set, so that a plan without it has the key that it always had."""
        return {
            "delivery_key": self.delivery_key,
            "generation": self.generation,
            "target_key": self.target.target_key,
            "route_scope": self.route_scope,
            "window": self.window.key,
            "source_query": self.query.identity(),
            "schema": [self.source_schema_sha256, self.target.fingerprint],
            "wire_layout_sha256": self.layout.sha256,
            "strategy": self.strategy,
            "writer": [self.writer_backend, self.proof_capability],
            "digest_algorithm": ALGORITHM,
            "contract_version": identity.CONTRACT_VERSION,
            **({"fail_on_null": True} if self.options.fail_on_null else {}),
        }

    @property
    def invocation_key(self) -> str:
        """The key of this generation."""
        return identity.invocation_key(self.identity_fields)

    @property
    def operation_id(self) -> str:
        """The publication of this generation."""
        return identity.operation_id(self.invocation_key, self.generation)

    def tuned(self, route: Route) -> FrozenPlan:
        """The same plan with the newest tuning of the configuration; what is identity stays."""
        options = route.options.model_copy(update={"fail_on_null": self.options.fail_on_null})
        return replace(self, limits=route.limits, quality=route.quality, options=options)

    @property
    def tuning(self) -> r.Json:
        """Tuning as stored in PLANNED and TUNED; a limit that is not set is left out, so that a new one
        changes no stored plan."""
        return {
            "limits": self.limits.model_dump(mode="json", exclude_none=True),
            "quality": self.quality.stored(),
            "on_empty": self.options.on_empty,
            "take_over_target": self.options.take_over_target,
            **{name: True for name in STORED_WHEN_SET if getattr(self.options, name)},
            **({"unmapped_columns": list(left_out)} if (left_out := self.options.unmapped_columns) else {}),
        }

    def to_json(self) -> r.Json:
        """Payload of PLANNED."""
        return {
            "identity": self.identity_fields,
            "target": self.target.to_json(),
            "source": {"table_uuid": self.source_uuid, "server_id": self.source_server_id},
            "window_column": self.window_column,
            "target_window_column": self.target_window_column,
            "query_text": self.query.text,
            "columns": [
                {"source": c.source, "target": c.wire.name, **c.wire.pair.to_json()} for c in self.columns
            ],
            "tuning": self.tuning,
        }

    @property
    def sha256(self) -> str:
        """Hash of the whole frozen plan."""
        return identity.key_of(self.to_json())

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> FrozenPlan:
        """The plan of a stored PLANNED event."""
        fields, tuning = body["identity"], body["tuning"]
        query = fields["source_query"]
        return cls(
            delivery_key=fields["delivery_key"],
            generation=fields["generation"],
            target=tr.TargetRef.from_json(body["target"]),
            route_scope=fields["route_scope"],
            window=Window.of_key(fields["window"]),
            window_column=body["window_column"],
            target_window_column=body["target_window_column"],
            strategy=fields["strategy"],
            source_schema_sha256=fields["schema"][0],
            source_uuid=body["source"]["table_uuid"],
            source_server_id=body["source"]["server_id"],
            query=r.SourceQuery(**query, text=body["query_text"]),
            columns=tuple(
                MappedColumn(c["source"], WireColumn(c["target"], TypePair.from_json(c)))
                for c in body["columns"]
            ),
            writer_backend=fields["writer"][0],
            proof_capability=fields["writer"][1],
            quality=Quality.of_stored(tuning["quality"]),
            options=_options(fields, tuning),
            limits=Limits.model_construct(**tuning["limits"]),
        )


def _options(fields: Mapping[str, Any], tuning: Mapping[str, Any]) -> Options:
    """Stored options; what is stored only when it is set is not set where it is absent."""
    flags: dict[str, Any] = {name: tuning.get(name) is True for name in STORED_WHEN_SET}
    return Options.model_construct(
        on_empty=tuning["on_empty"],
        take_over_target=tuning["take_over_target"],
        fail_on_null=fields.get("fail_on_null") is True,
        unmapped_columns=tuple(tuning.get("unmapped_columns", ())),
        **flags,
    )


def introspect(
    source: SourcePort, target: TargetPort, route: Route
) -> tuple[r.SourceTable, tr.TargetTable, ColumnMap]:
    """Both tables and their mapping; both ports are open. A missing source table joins the other problems."""
    into = target.describe(*route.target_table)
    table = describe_source(source, route, into.problems)
    return table, into, map_columns(route, table, into)


def describe_source(source: SourcePort, route: Route, others: Sequence[Problem] = ()) -> r.SourceTable:
    """The source table. :raises ConfigurationError: it is missing; the other problems are told with it."""
    try:
        return source.describe(*route.source_table)
    except ConfigurationError as error:
        problems = error.problems or (Problem(error.code, "source_table", error.message),)
        raise ConfigurationError.of([*problems, *others]) from None


def route_problems(gate: tr.GateRow | None, scope: str, route: Route) -> list[Problem]:
    """Two routes into one target would replace each other's rows, each with a clean receipt."""
    if gate is None or gate.route_scope == scope or route.options.take_over_target:
        return []
    text = "another route delivers into this table; use another one, or set options.take_over_target=True"
    return [Problem("dpone.target.owned_by_other_route", "target_table", text)]


def compile_query(
    source: SourcePort, route: Route, window: Window, table: r.SourceTable, mapping: ColumnMap
) -> tuple[r.SourceQuery | None, list[Problem]]:
    """The source query, or why the window does not fit the window column (as far as it can be told)."""
    column = None if window.is_full else route.window_column
    if not mapping.columns or (column is not None and column not in {c.name for c in table.columns}):
        return None, []
    try:
        return source.compile(table, mapping.layout, mapping.source_columns, column, window), []
    except ConfigurationError as error:
        found = error.problems or (Problem(error.code, "window", error.message),)
        return None, [problem for problem in found if problem not in mapping.problems]


def route_scope(route: Route) -> str:
    """Which route it is, whatever its columns are."""
    return identity.route_scope(route.effective_source_name, *route.source_table, route.window_column)


def judge(
    source: SourcePort,
    route: Route,
    window: Window,
    table: r.SourceTable,
    mapping: ColumnMap,
    gate: tr.GateRow | None,
) -> tuple[r.SourceQuery | None, list[Problem]]:
    """The source query, and everything that stands against a delivery; the source is open."""
    query, unfit = compile_query(source, route, window, table, mapping)
    problems = [*mapping.problems, *unfit]
    if route.window_column is None or route.window_column in {c.name for c in table.columns}:
        problems += route_problems(gate, route_scope(route), route)  # a misspelt route is no other route
    return query, problems
