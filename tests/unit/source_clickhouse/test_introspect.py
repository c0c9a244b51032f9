"""Reading the catalog, over scripted answers."""

from __future__ import annotations

import pytest

from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.source_clickhouse import introspect
from airflow_dpone.source_clickhouse.introspect import has_table_ttl

UUID = "9c0c9eed-feac-474e-9ad7-c5b9280424d1"
GOOD: dict[str, list[list[str]]] = {
    "system.databases": [["Atomic"]],
    "system.tables": [[UUID, "MergeTree", "MergeTree ORDER BY k"]],
    "system.columns": [["k", "Int64", ""]],
    "DESCRIBE": [["k", "Int64", "", "", "", "", ""]],
    "system.mutations": [["m_1", "1"]],
    "startsWith(partition_id, 'patch-') ORDER": [],
    "sum(rows)": [["12"]],
    "serverUUID": [[introspect.NO_UUID]],
}


def describe(**changes: list[list[str]]) -> list[str]:
    """Codes of the problems, with some answers changed."""
    names = {"databases": "system.databases", "tables": "system.tables", "mutations": "system.mutations"}
    answers = {**GOOD, **{names.get(name, name): rows for name, rows in changes.items()}}

    def ask(statement: str) -> list[list[str]]:
        order = ("sum(rows)", "startsWith(partition_id, 'patch-') ORDER", *answers)
        return next(answers[part] for part in order if part in statement)

    table = introspect.describe(ask, "shop", "orders", capabilities={}, problems=(FIRST,))
    assert table.problems[0] is FIRST
    return [problem.code for problem in table.problems[1:]]


FIRST = Problem("dpone.source.setting", "setting x", "from outside")


def test_a_good_table_has_no_problem() -> None:
    assert describe() == []


def test_all_problems_are_collected() -> None:
    """Not raised one by one."""
    found = describe(
        databases=[["Ordinary"]],
        tables=[[introspect.NO_UUID, "ReplacingMergeTree", "ReplacingMergeTree ORDER BY k TTL d + 1"]],
        mutations=[["m_1", "1"], ["m_2", "0"]],
        DESCRIBE=[["v", "String", "", "", "", "", "d + toIntervalDay(1)"]],
    )
    assert found == [
        "dpone.source.database",
        "dpone.source.engine",
        "dpone.source.mutation",
        "dpone.source.ttl",
        "dpone.source.ttl",
    ]


def test_an_atomic_database_without_a_uuid_is_refused() -> None:
    """[F7]"""
    assert describe(tables=[[introspect.NO_UUID, "MergeTree", ""]]) == ["dpone.source.database"]


@pytest.mark.parametrize(
    "engine",
    [
        "View",
        "MaterializedView",
        "Distributed",
        "ReplicatedMergeTree",
        "SharedMergeTree",
        "SummingMergeTree",
        "Null",
    ],
)
def test_every_other_engine_is_refused_by_name(engine: str) -> None:
    """[B68, B70]"""
    assert describe(tables=[[UUID, engine, ""]]) == ["dpone.source.engine"]


def test_a_missing_database_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="Database 'shop'"):
        describe(databases=[])


@pytest.mark.parametrize(
    ("engine_full", "found"),
    [
        ("MergeTree ORDER BY tuple() TTL TTL + toIntervalMonth(1) SETTINGS index_granularity = 8192", True),
        ("MergeTree ORDER BY k TTL d + toIntervalDay(1)", True),
        ("MergeTree ORDER BY (a, b) TTL d + toIntervalDay(1) DELETE WHERE x = 'y'", True),
        ("MergeTree PARTITION BY toYYYYMM(TTL) ORDER BY (TTL, a) SETTINGS index_granularity = 8192", False),
        ("MergeTree ORDER BY TTL SETTINGS index_granularity = 8192", False),
        ("MergeTree ORDER BY TTL TTL d + toIntervalDay(1)", True),
        ("MergeTree ORDER BY `a TTL b` SETTINGS index_granularity = 8192", False),
        ("MergeTree ORDER BY k COMMENT 'a TTL b \\' TTL c'", False),
        ("MergeTree ORDER BY f(g(x), ' TTL ') SETTINGS s = 'x TTL y'", False),
        ("MergeTree ORDER BY k", False),
    ],
)
def test_the_keyword_is_told_from_a_name(engine_full: str, found: bool) -> None:
    """[F11]"""
    assert has_table_ttl(engine_full) is found


@pytest.mark.parametrize("name", ["dpone_rows", "dpone_rows.id"])
def test_a_column_with_the_name_of_the_querys_alias_is_refused(name: str) -> None:
    """It would change what every other column of the query, and the window itself, means."""
    found = describe(**{"system.columns": [[name, "Tuple(id Int64)", ""]]})
    assert found == ["dpone.source.reserved_column"]
