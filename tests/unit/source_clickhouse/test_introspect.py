"""Reading the catalog, over scripted answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_dpone.delivery.records import SourceQuery, SourceTable
from airflow_dpone.errors import ConfigurationError, Problem, SourceMoved
from airflow_dpone.source_clickhouse import introspect
from airflow_dpone.source_clickhouse.error_map import ACCESS_DENIED, answered
from airflow_dpone.source_clickhouse.introspect import Admission, has_table_ttl

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
    "system.row_policies": [],
}
NAMES = {
    "databases": "system.databases",
    "tables": "system.tables",
    "mutations": "system.mutations",
    "policies": "system.row_policies",
    "parts": "sum(rows)",
}
DENIED: list[list[str]] = [["DENIED"]]
"""Instead of an answer: ClickHouse's error 497."""


def found(admission: Admission = Admission(), **changes: list[list[str]]) -> SourceTable:  # noqa: B008
    """The description, with some answers changed."""
    answers = {**GOOD, **{NAMES.get(name, name): rows for name, rows in changes.items()}}

    def ask(statement: str) -> list[list[str]]:
        order = ("sum(rows)", "startsWith(partition_id, 'patch-') ORDER", *answers)
        answer = next(answers[part] for part in order if part in statement)
        if answer is DENIED:
            raise answered(ACCESS_DENIED, "ACCESS_DENIED", "reading the catalog")
        return answer

    return introspect.describe(ask, "shop", "orders", capabilities={}, admission=admission, problems=(FIRST,))


def describe(admission: Admission = Admission(), **changes: list[list[str]]) -> list[str]:  # noqa: B008
    """Codes of the problems, with some answers changed."""
    table = found(admission, **changes)
    assert table.problems[0] is FIRST
    return [problem.code for problem in table.problems[1:]]


FIRST = Problem("dpone.source.setting", "setting x", "from outside")


def test_a_good_table_has_no_problem() -> None:
    assert describe() == []


def test_all_problems_are_collected() -> None:
    """Not raised one by one."""
    codes = describe(
        databases=[["Ordinary"]],
        tables=[[introspect.NO_UUID, "ReplacingMergeTree", "ReplacingMergeTree ORDER BY k TTL d + 1"]],
        mutations=[["m_1", "1"], ["m_2", "0"]],
        DESCRIBE=[["v", "String", "", "", "", "", "d + toIntervalDay(1)"]],
    )
    assert codes == [
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


@pytest.mark.parametrize("name", ["dpone_rows", "dpone_rows.id", "_part", "_partition_id"])
def test_a_column_with_a_name_that_the_query_needs_is_refused(name: str) -> None:
    """It would change what every other column of the query, the window itself, or a part's name means."""
    codes = describe(**{"system.columns": [[name, "Tuple(id Int64)", ""]]})
    assert codes == ["dpone.source.reserved_column"]


# ---- rights and row policies [F7] -------------------------------------------------------------------------


def test_a_row_policy_is_refused_by_name() -> None:
    """[F7] Of the table, of its database, or of everything: the statement asks for all three."""
    table = found(policies=[["only_eu"], ["only_mine"]])
    (problem,) = table.problems[1:]
    assert problem.code == "dpone.source.row_policy"
    assert "'only_eu', 'only_mine'" in problem.message


def test_what_may_not_be_seen_is_not_absent() -> None:
    """[F7] No row policy that is seen is no proof; a route may accept that, and then it is said."""
    (problem,) = found(policies=DENIED).problems[1:]
    assert (problem.code, problem.where) == ("dpone.source.access", "system.row_policies")
    assert "GRANT SHOW ROW POLICIES" in problem.message
    table = found(Admission(accept_unseen_row_policies=True), policies=DENIED)
    assert table.problems == (FIRST,)
    assert "row policy" in table.warnings[0]


def test_accepting_unseen_policies_does_not_accept_seen_ones() -> None:
    """[F7]"""
    admission = Admission(accept_unseen_row_policies=True)
    assert describe(admission, policies=[["only_eu"]]) == ["dpone.source.row_policy"]


def test_every_missing_right_is_named_once() -> None:
    """[F7] An empty answer for want of a right would read as: no mutation, no part."""
    denied = {"startsWith(partition_id, 'patch-') ORDER": DENIED, "sum(rows)": DENIED}
    table = found(mutations=DENIED, **denied)
    assert [p.where for p in table.problems[1:]] == ["system.mutations", "system.parts"]
    assert "GRANT SELECT ON system.mutations" in table.problems[1].message
    assert table.estimated_rows is None


def test_another_error_is_no_missing_right() -> None:
    def ask(statement: str) -> list[list[str]]:
        raise answered(241, "MEMORY_LIMIT_EXCEEDED", "reading the catalog")

    with pytest.raises(Exception, match="241"):
        introspect.describe(ask, "shop", "orders", capabilities={}, admission=Admission())


# ---- TTL [F11] --------------------------------------------------------------------------------------------

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY_QUERY = SourceQuery("shop", "orders", "1", "k = 1", "SELECT 1")


def window_ttl(*parts: tuple[int, bool], engine: str = "MergeTree ORDER BY k TTL d + 1") -> list[str]:
    """What is wrong with parts whose first row goes so many seconds from now (0: unknown)."""

    def ask(statement: str) -> list[list[str]]:
        if "engine_full" in statement:
            return [[UUID, "MergeTree", engine]]
        assert "k = 1" in statement, "the parts of the window only"
        return [
            [f"all_{i}_{i}_0", str(int(NOW.timestamp()) + at if at else 0), str(int(moves))]
            for i, (at, moves) in enumerate(parts, start=1)
        ]

    return [problem.message for problem in introspect.window_ttl_problems(ask, DAY_QUERY, NOW)]


DAY_SEC = int(timedelta(days=1).total_seconds())


def test_rows_that_stay_long_enough_are_delivered() -> None:
    assert window_ttl((DAY_SEC + 60, False), (30 * DAY_SEC, False)) == []


def test_a_ttl_that_only_moves_parts_takes_no_row() -> None:
    assert window_ttl((0, True)) == []


@pytest.mark.parametrize("at", [-DAY_SEC, -1, 60, DAY_SEC])
def test_rows_that_go_soon_or_should_be_gone_are_refused(at: int) -> None:
    """[F11] What is due may vanish at any merge."""
    assert "go at 2026-" in window_ttl((10 * DAY_SEC, False), (at, False))[0]


def test_a_part_that_does_not_know_its_ttl_is_refused() -> None:
    """[F11] After ALTER ... MODIFY TTL the parts do not know it until they are merged."""
    assert "MATERIALIZE TTL" in window_ttl((0, False))[0]


def test_a_table_without_a_ttl_is_not_asked_for_its_parts() -> None:
    assert window_ttl((1, False), engine="MergeTree ORDER BY k") == []


def test_a_ttl_may_be_allowed_but_not_that_of_a_column() -> None:
    """[F11] No table of ClickHouse tells when values go."""
    admission = Admission(allow_ttl=True)
    full = [[UUID, "MergeTree", "MergeTree ORDER BY k TTL d + toIntervalDay(1)"]]
    assert describe(admission, tables=full) == []
    described = [["v", "String", "", "", "", "", "d + toIntervalDay(1)"]]
    assert describe(admission, tables=full, DESCRIBE=described) == ["dpone.source.ttl"]


# ---- the parts that a read saw [F4] -----------------------------------------------------------------------


def test_parts_are_read_from_their_names() -> None:
    made = introspect._read_parts({"202501_3_35_2": 7, "all_1_1_0_9": 2, "a-b_0_0_0": 1})
    assert [(p["partition"], p["min_block"], p["max_block"], p["rows"]) for p in made] == [
        ("202501", 3, 35, 7),
        ("a-b", 0, 0, 1),
        ("all", 1, 1, 2),
    ]


def test_a_part_with_an_unknown_name_is_no_part_of_the_table() -> None:
    with pytest.raises(SourceMoved):
        introspect._read_parts({"": 3})


@pytest.mark.parametrize(
    ("seen", "now", "missing"),
    [
        ({}, {}, False),
        ({"all_1_1_0": 5}, {"all_1_1_0": 5}, False),
        ({"all_1_1_0": 4}, {"all_1_1_0": 5}, True),
        ({"all_1_1_0": 6}, {"all_1_1_0": 5}, True),
        ({}, {"all_1_1_0": 5}, True),
        ({"all_1_1_0": 5}, {"all_1_1_0": 5, "all_2_2_0": 1}, True),
        # merged meanwhile, of parts that were all read, or not
        ({"all_1_1_0": 5, "all_2_2_0": 1}, {"all_1_2_1": 6}, False),
        ({"all_1_1_0": 5}, {"all_1_2_1": 6}, True),
        ({"all_1_1_0": 5}, {"all_1_1_0_7": 5}, False),
        # inserted meanwhile: block 4 is newer than what the read could know
        ({"all_1_1_0": 5}, {"all_1_1_0": 5, "all_4_4_0": 9}, False),
        ({"all_1_1_0": 5}, {"all_1_4_1": 14}, False),
        ({"all_1_1_0": 5}, {"all_1_4_1": 4}, True),
        # another partition, dropped meanwhile, or made
        ({"b_1_1_0": 5}, {}, False),
        ({}, {"c_1_1_0": 5}, False),
    ],
)
def test_a_read_is_whole_when_every_part_that_it_could_know_is_accounted_for(
    seen: dict[str, int], now: dict[str, int], missing: bool
) -> None:
    """[F9] The newest block before the read is 3, of partition `all`; the other partitions are newer."""
    assert (introspect.unread(seen, now, {"all": 3}) is not None) is missing
