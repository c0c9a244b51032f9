"""What the catalog says of a source table, and why some tables are not delivered.

Works on an *ask* function: one statement in, rows of text out. So every kind of connection shares it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

from airflow_dpone.delivery.records import (
    SourceColumn,
    SourceQuery,
    SourceSnapshot,
    SourceTable,
    is_covered,
)
from airflow_dpone.delivery.window import instant_text
from airflow_dpone.errors import ConfigurationError, Problem, SourceMoved
from airflow_dpone.source_clickhouse import statements as sql
from airflow_dpone.source_clickhouse.error_map import ACCESS_DENIED

Ask = Callable[[str], list[list[str]]]
"""Runs one statement and returns its rows, every value as ClickHouse prints it."""

NO_UUID = "00000000-0000-0000-0000-000000000000"
_VIRTUAL = frozenset({"_part", "_partition_id"})

_MERGES_ROWS = "changes its rows while parts merge; deliver a plain MergeTree table that holds the final rows"
_ENGINES: dict[str, str] = {
    "View": "is a view; write its result into a plain MergeTree table and deliver that",
    "MaterializedView": "is a materialized view; deliver its target table, if that is a plain MergeTree",
    "Distributed": "reads other servers; deliver the MergeTree table of each server",
    "Merge": "reads other tables; deliver each of them",
    "Buffer": "keeps rows in memory; deliver the table that it writes into",
    "Dictionary": "is a dictionary; deliver the table that it is made from",
    "ReplacingMergeTree": _MERGES_ROWS,
    "SummingMergeTree": _MERGES_ROWS,
    "AggregatingMergeTree": _MERGES_ROWS,
    "CollapsingMergeTree": _MERGES_ROWS,
    "VersionedCollapsingMergeTree": _MERGES_ROWS,
    "GraphiteMergeTree": _MERGES_ROWS,
}


@dataclass(frozen=True)
class Admission:
    """What a route lets through that is refused otherwise.

    :param allow_ttl: a TTL of the table, as long as no row of the window goes soon.
    :param accept_unseen_row_policies: that nobody can tell whether a row policy hides rows.
    """

    allow_ttl: bool = False
    accept_unseen_row_policies: bool = False


def describe(
    ask: Ask,
    database: str,
    table: str,
    *,
    capabilities: Mapping[str, str],
    admission: Admission,
    problems: tuple[Problem, ...] = (),
) -> SourceTable:
    """Introspection of one table.

    :param problems: what is known to be wrong already; comes first.
    :raises ConfigurationError: the database or the table does not exist.
    """
    names = {"database": database, "table": table}
    engines = ask(sql.render(sql.DATABASE, database=database))
    if not engines:
        _missing(f"Database {database!r}", database, ask(sql.DATABASE_NAMES))
    found = ask(sql.render(sql.TABLE, **names))
    if not found:
        close = ask(sql.render(sql.TABLE_NAMES, database=database))
        _missing(f"Table {table!r} in database {database!r}", table, close)
    uuid, engine, engine_full = found[0]
    where = f"{database}.{table}"
    rights: list[Problem] = []
    see = partial(_see, ask, rights)
    mutations = see("system.mutations", sql.render(sql.MUTATIONS, **names))
    described = see(where, sql.render(sql.COLUMN_TTLS, **names))
    patches = see("system.parts", sql.render(sql.PATCH_PARTS, **names))
    rows = see("system.parts", sql.render(sql.ROW_ESTIMATE, **names))
    policies, warnings = _policies(ask, where, names, capabilities, admission)
    columns = _columns(ask, names)
    collected = [
        *problems,
        *_database_problems(where, engines[0][0], uuid),
        *_engine_problems(where, engine),
        *dict.fromkeys(rights),
        *policies,
        *_mutation_problems(where, mutations),
        *_ttl_problems(where, engine_full, described, admission),
        *_name_problems(columns),
    ]
    return SourceTable(
        database=database,
        table=table,
        uuid=uuid,
        engine=engine,
        columns=columns,
        server_id=ask(sql.SERVER_ID)[0][0],
        capabilities=dict(capabilities),
        problems=tuple(collected),
        warnings=(*warnings, *_warnings(where, patches)),
        estimated_rows=int(rows[0][0]) if rows else None,
    )


def _see(ask: Ask, rights: list[Problem], what: str, statement: str) -> list[list[str]]:
    """The rows of a statement; a missing right becomes a problem that names what to grant."""
    try:
        return ask(statement)
    except ConfigurationError as error:
        if error.fields.get("clickhouse_code") != ACCESS_DENIED:
            raise
        text = f"may not be read: GRANT SELECT ON {what} TO the source's user"
        rights.append(Problem("dpone.source.access", what, text))
        return []


def _policies(
    ask: Ask, where: str, names: Mapping[str, str], capabilities: Mapping[str, str], admission: Admission
) -> tuple[list[Problem], list[str]]:
    """Row policies as problems; or what it means that they cannot be seen."""
    if capabilities.get("row_policies") == "absent":
        return [], []
    unseen: list[Problem] = []
    statement = sql.render(sql.ROW_POLICIES, **names)
    found = [name for (name,) in _see(ask, unseen, "system.row_policies", statement)]
    if unseen and admission.accept_unseen_row_policies:
        return [], [f"it cannot be told whether a row policy hides rows of {where}, which the route accepts"]
    if unseen:
        text = (
            "may not be read, so a row policy could hide rows: GRANT SHOW ROW POLICIES ON *.* and SELECT ON"
            " system.row_policies to the source's user, or set options.accept_unseen_row_policies"
        )
        return [Problem("dpone.source.access", "system.row_policies", text)], []
    if not found:
        return [], []
    text = (
        f"has the row policy {', '.join(map(repr, found))}: it may hide rows; deliver a table without one, or"
        " drop it"
    )
    return [Problem("dpone.source.row_policy", where, text)], []


def snapshot(
    ask: Ask,
    query: SourceQuery,
    settings: Mapping[str, str],
    read_parts: Mapping[str, int] | None = None,
) -> SourceSnapshot:
    """The table of a query now. The parts come last, so that a mutation seen here is not newer than they are.

    :param read_parts: rows by part that a finished read of this query got.
    :raises SourceMoved: ``dpone.source.gone``: there is no such table any more.
    """
    names = {"database": query.database, "table": query.table}
    found = ask(sql.render(sql.TABLE, **names))
    if not found:
        raise SourceMoved(
            "dpone.source.gone", f"Table {query.database}.{query.table} does not exist any more."
        )
    uuid, engine, _ = found[0]
    columns = _columns(ask, names)
    mutations = ask(sql.render(sql.MUTATIONS, **names))
    patches = ask(sql.render(sql.PATCH_PARTS, **names))
    read_at = instant_text(datetime.now(UTC))
    parts = ask(sql.window_parts(query))
    return SourceSnapshot(
        server_id=ask(sql.SERVER_ID)[0][0],
        table_uuid=uuid,
        engine=engine,
        schema_sha256=_schema_sha256(columns),
        mutations=tuple(name for name, _ in mutations),
        unfinished=tuple(name for name, done in mutations if done != "1"),
        patch_parts=tuple(name for (name,) in patches),
        parts=tuple(_part(row) for row in parts),
        read_at=read_at,
        settings=dict(settings),
        read_parts=None if read_parts is None else _read_parts(read_parts),
    )


_PART_NAME = re.compile(r"(?P<partition>.+?)_(?P<first>\d+)_(?P<last>\d+)_\d+(?:_\d+)?")


def _read_parts(rows: Mapping[str, int]) -> tuple[Mapping[str, Any], ...]:
    """Parts by their names alone: a part that was merged away meanwhile has no row in the catalog."""
    made = []
    for name in sorted(rows):
        match = _PART_NAME.fullmatch(name)
        if match is None:
            raise SourceMoved("dpone.source.moved", f"Rows came from a part with an unknown name, {name!r}.")
        made.append(_part([name, match["partition"], str(rows[name]), match["first"], match["last"]]))
    return tuple(made)


def unread(seen: Mapping[str, int], now: Mapping[str, int], newest: Mapping[str, int]) -> str | None:
    """Why a read cannot have been whole, or None. Parts never change, and a merge keeps the rows of its
    parts; so a part without newer blocks holds exactly what was read from it and from what it replaced.

    :param seen: rows by part that the read got. :param now: rows of the window by part, counted afterwards.
    :param newest: the newest block of each partition, looked up before the read.
    """
    read = _read_parts(seen)
    for part in _read_parts(now):
        got = sum(one["rows"] for one in read if is_covered(one, (part,)))
        settled = part["max_block"] <= newest.get(part["partition"], -1)
        if got > part["rows"] or (settled and got < part["rows"]):
            return f"part {part['name']} holds {part['rows']} rows of the window, but {got} were read"
    return None


def _part(row: list[str]) -> dict[str, Any]:
    name, partition, rows, min_block, max_block = row
    return {
        "name": name,
        "partition": partition,
        "rows": int(rows),
        "min_block": int(min_block),
        "max_block": int(max_block),
    }


def _columns(ask: Ask, names: Mapping[str, str]) -> tuple[SourceColumn, ...]:
    return tuple(SourceColumn(*row) for row in ask(sql.render(sql.COLUMNS, **names)))


def _schema_sha256(columns: tuple[SourceColumn, ...]) -> str:
    return SourceTable("", "", "", "", columns, {}).schema_sha256


def _name_problems(columns: tuple[SourceColumn, ...]) -> list[Problem]:
    """A column named like our alias would change what every other column of the query means, and one that is
    called like a virtual column would hide it."""
    text = f"has the name that the query gives to the table ({sql.ROWS}); rename the column"
    hides = "hides the virtual column of this name, which the query reads; rename the column"
    return [
        Problem("dpone.source.reserved_column", c.name, hides if c.name in _VIRTUAL else text)
        for c in columns
        if c.name in _VIRTUAL or c.name == sql.ROWS or c.name.startswith(f"{sql.ROWS}.")
    ]


def _missing(what: str, name: str, candidates: list[list[str]]) -> NoReturn:
    close = difflib.get_close_matches(name, [row[0] for row in candidates], n=3)
    hint = f"; is it {' or '.join(repr(match) for match in close)}?" if close else ""
    text = f"{what} does not exist, or is not shown to this user{hint}"
    raise ConfigurationError.of([Problem("dpone.source.missing", "source_table", text)])


def _database_problems(where: str, engine: str, uuid: str) -> list[Problem]:
    if engine == "Atomic" and uuid != NO_UUID:
        return []
    found = f"has the engine {engine}" if engine != "Atomic" else "gives the table no UUID"
    text = (
        f"its database {found}: a replaced table could not be told from this one; move the table into a"
        " database made with `CREATE DATABASE ... ENGINE = Atomic`"
    )
    return [Problem("dpone.source.database", where, text)]


def _engine_problems(where: str, engine: str) -> list[Problem]:
    if engine == "MergeTree":
        return []
    what = _ENGINES.get(engine)
    if engine.startswith(("Replicated", "Shared")):
        what = "holds what its replica has got so far, which this version cannot tell; deliver a MergeTree"
    text = (
        f"{engine} {what}" if what else f"its engine is {engine}; only plain MergeTree tables are delivered"
    )
    return [Problem("dpone.source.engine", where, text)]


def _mutation_problems(where: str, mutations: list[list[str]]) -> list[Problem]:
    unfinished = [name for name, done in mutations if done != "1"]
    if not unfinished:
        return []
    text = (
        f"{len(unfinished)} unfinished mutation(s), first {unfinished[0]}: wait, or end it with KILL MUTATION"
    )
    return [Problem("dpone.source.mutation", where, text)]


def _ttl_problems(
    where: str, engine_full: str, described: list[list[str]], admission: Admission
) -> list[Problem]:
    problems = []
    if has_table_ttl(engine_full) and not admission.allow_ttl:
        text = (
            "the table has a TTL: its rows go by themselves; deliver a table without one, or set"
            " options.allow_ttl for windows whose rows stay"
        )
        problems.append(Problem("dpone.source.ttl", where, text))
    for name, *_, ttl in (row[:7] for row in described):
        if ttl:
            text = "the column has a TTL: its values go by themselves; deliver a table without one"
            problems.append(Problem("dpone.source.ttl", f"{where}.{name}", text))
    return problems


TTL_MARGIN_SEC = 86_400
"""How long before its TTL a row is too close to it: longer than a delivery with its retries."""


def window_ttl_problems(ask: Ask, query: SourceQuery, now: datetime) -> list[Problem]:
    """Parts of the window from which rows may go while it is read. Meant for tables that may have a TTL."""
    where = f"{query.database}.{query.table}"
    ((_, _, engine_full),) = ask(sql.render(sql.TABLE, database=query.database, table=query.table))
    if not has_table_ttl(engine_full):
        return []
    problems = []
    for name, first, only_moves in ask(sql.window_ttl(query)):
        if int(first) == 0 and only_moves != "1":
            text = f"part {name} of the window has no TTL yet; run ALTER TABLE ... MATERIALIZE TTL and wait"
            problems.append(Problem("dpone.source.ttl", where, text))
        elif 0 < int(first) <= now.timestamp() + TTL_MARGIN_SEC:
            at = instant_text(datetime.fromtimestamp(int(first), UTC))
            text = f"rows of the window go at {at} (part {name}): less than a day is no time to deliver them"
            problems.append(Problem("dpone.source.ttl", where, text))
    return problems[:3]


_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def has_table_ttl(engine_full: str) -> bool:
    """Whether an engine clause, as ``system.tables`` prints it, has a TTL of its own.

    A column may be called TTL, so only the keyword counts: outside of quotes and parentheses, behind a
    finished expression. When in doubt the answer is yes.
    """
    text = _QUOTED.sub("q", engine_full)
    while (outer := re.sub(r"\([^()]*\)", "q", text)) != text:
        text = outer
    return re.search(r"(?<=\w)(?<!\bBY) TTL \S", text) is not None


def _warnings(where: str, patches: list[list[str]]) -> tuple[str, ...]:
    if not patches:
        return ()
    return (
        f"{where} has {len(patches)} patch part(s) of lightweight updates that are not merged yet; they are"
        " read as they stand, and a new one during the read discards it",
    )
