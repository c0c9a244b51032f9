"""What the catalog says of a source table, and why some tables are not delivered.

Works on an *ask* function: one statement in, rows of text out. So every kind of connection shares it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NoReturn

from airflow_dpone.delivery.records import SourceColumn, SourceQuery, SourceSnapshot, SourceTable
from airflow_dpone.delivery.window import instant_text
from airflow_dpone.errors import ConfigurationError, Problem, SourceMoved
from airflow_dpone.source_clickhouse import statements as sql

Ask = Callable[[str], list[list[str]]]
"""Runs one statement and returns its rows, every value as ClickHouse prints it."""

NO_UUID = "00000000-0000-0000-0000-000000000000"

_MERGES_ROWS = "changes its rows while parts merge; deliver a plain MergeTree table that holds the final rows"
_ENGINES: dict[str, str] = {
    "View": "is a view; write its result into a plain MergeTree table and deliver that",
    "MaterializedView": "is a materialized view; deliver its target table, if that is a plain MergeTree",
    "Distributed": "reads other servers; deliver the MergeTree table of each server",
    "ReplacingMergeTree": _MERGES_ROWS,
    "SummingMergeTree": _MERGES_ROWS,
    "AggregatingMergeTree": _MERGES_ROWS,
    "CollapsingMergeTree": _MERGES_ROWS,
    "VersionedCollapsingMergeTree": _MERGES_ROWS,
    "GraphiteMergeTree": _MERGES_ROWS,
}


def describe(
    ask: Ask,
    database: str,
    table: str,
    *,
    capabilities: Mapping[str, str],
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
    collected = [
        *problems,
        *_database_problems(where, engines[0][0], uuid),
        *_engine_problems(where, engine),
        *_mutation_problems(where, ask(sql.render(sql.MUTATIONS, **names))),
        *_ttl_problems(where, engine_full, ask(sql.render(sql.COLUMN_TTLS, **names))),
    ]
    patches = ask(sql.render(sql.PATCH_PARTS, **names))
    columns = _columns(ask, names)
    collected += _name_problems(columns)
    return SourceTable(
        database=database,
        table=table,
        uuid=uuid,
        engine=engine,
        columns=columns,
        server_id=ask(sql.SERVER_ID)[0][0],
        capabilities=dict(capabilities),
        problems=tuple(collected),
        warnings=_warnings(where, patches),
        estimated_rows=int(ask(sql.render(sql.ROW_ESTIMATE, **names))[0][0]),
    )


def snapshot(ask: Ask, query: SourceQuery, settings: Mapping[str, str]) -> SourceSnapshot:
    """The table of a query now. The parts come last, so that a mutation seen here is not newer than they are.

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
    )


def _part(row: list[str]) -> dict[str, object]:
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
    """A column named like our alias would change what every other column of the query means."""
    text = f"has the name that the query gives to the table ({sql.ROWS}); rename the column"
    taken = [c.name for c in columns if c.name == sql.ROWS or c.name.startswith(f"{sql.ROWS}.")]
    return [Problem("dpone.source.reserved_column", name, text) for name in taken]


def _missing(what: str, name: str, candidates: list[list[str]]) -> NoReturn:
    close = difflib.get_close_matches(name, [row[0] for row in candidates], n=3)
    hint = f"; is it {' or '.join(repr(match) for match in close)}?" if close else ""
    raise ConfigurationError.of(
        [Problem("dpone.source.missing", "source_table", f"{what} does not exist{hint}")]
    )


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


def _ttl_problems(where: str, engine_full: str, described: list[list[str]]) -> list[Problem]:
    problems = []
    if has_table_ttl(engine_full):
        text = "the table has a TTL: its rows go by themselves; deliver a table without one"
        problems.append(Problem("dpone.source.ttl", where, text))
    for name, *_, ttl in (row[:7] for row in described):
        if ttl:
            text = "the column has a TTL: its values go by themselves; deliver a table without one"
            problems.append(Problem("dpone.source.ttl", f"{where}.{name}", text))
    return problems


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
