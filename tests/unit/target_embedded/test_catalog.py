"""What the catalog says about a table: types from comments, incarnations, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.target_embedded import storage
from airflow_dpone.target_embedded.target import EmbeddedTarget
from airflow_dpone.wire.types import resolve


class File:
    """A DuckDB file and quick hands."""

    def __init__(self, path: str) -> None:
        self.path = path

    def run(self, *texts: str) -> list[Any]:
        found: list[Any] = []
        with duckdb.connect(self.path) as connection:
            for text in texts:
                found = connection.execute(text).fetchall()
        return found

    def open(self) -> EmbeddedTarget:
        return EmbeddedTarget(self.path, lock_wait_sec=0)

    def describe(self, table: str = "t") -> Any:
        with self.open() as target:
            return target.describe("main", table)

    def comment(self, table: str = "t") -> str | None:
        text = f"SELECT comment FROM duckdb_tables() WHERE table_name = '{table}'"
        found: str | None = self.run(text)[0][0]
        return found


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(str(tmp_path / "t.duckdb"))


DEFAULTS = {
    "BIGINT": "bigint",
    "INTEGER": "int",
    "SMALLINT": "smallint",
    "UTINYINT": "tinyint",
    "FLOAT": "real",
    "DOUBLE": "float(53)",
    "DECIMAL(18,4)": "decimal(18,4)",
    "BOOLEAN": "bit",
    "DATE": "date",
    "TIMESTAMP_S": "datetime2(0)",
    "TIMESTAMP_MS": "datetime2(3)",
    "TIMESTAMP": "datetime2(6)",
    "VARCHAR": "nvarchar(max)",
    "BLOB": "varbinary(max)",
    "UUID": "uniqueidentifier",
}


def test_a_column_without_a_comment_has_the_type_of_its_storage(file: File) -> None:
    names = [f"c{i}" for i in range(len(DEFAULTS))]
    columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in zip(names, DEFAULTS, strict=True))
    file.run(f"CREATE TABLE t ({columns})")
    found = file.describe()
    assert [(c.name, c.type, c.nullable) for c in found.columns] == [
        (name, kind, False) for name, kind in zip(names, DEFAULTS.values(), strict=True)
    ]
    assert found.problems == ()


@pytest.mark.parametrize(
    ("stored", "comment", "expected"),
    [
        ("VARCHAR", "nvarchar(20)", "nvarchar(20)"),
        ("VARCHAR", " NVARCHAR ( MAX ) ", "nvarchar(max)"),
        ("TIMESTAMP", "datetime2(1)", "datetime2(1)"),
        ("TIMESTAMP_MS", "datetime2(2)", "datetime2(2)"),
        ("TIMESTAMP", "datetime2(0)", "datetime2(0)"),
        ("BIGINT", "int", "int"),
        ("SMALLINT", "tinyint", "tinyint"),
        ("DOUBLE", "real", "real"),
        ("DECIMAL(20,2)", "decimal(18,2)", "decimal(18,2)"),
        ("BLOB", "binary(16)", "binary(16)"),
        ("VARCHAR", "the customer's name", "nvarchar(max)"),
        ("BIGINT", "", "bigint"),
    ],
)
def test_a_comment_that_is_a_type_wins(file: File, stored: str, comment: str, expected: str) -> None:
    text = comment.replace("'", "''")
    file.run(f"CREATE TABLE t (c {stored})", f"COMMENT ON COLUMN t.c IS '{text}'")
    found = file.describe()
    assert (found.columns[0].type, found.problems) == (expected, ())


@pytest.mark.parametrize(
    ("stored", "comment"),
    [
        ("INTEGER", "bigint"),
        ("TIMESTAMP_S", "datetime2(3)"),
        ("TIMESTAMP", "datetime2(7)"),
        ("TIMESTAMP", "date"),
        ("DATE", "datetime2(0)"),
        ("FLOAT", "float(53)"),
        ("DECIMAL(18,2)", "decimal(18,3)"),
        ("DECIMAL(18,2)", "decimal(19,2)"),
        ("BIGINT", "decimal(19,0)"),
        ("VARCHAR", "uniqueidentifier"),
        ("UUID", "nvarchar(36)"),
        ("BLOB", "nvarchar(10)"),
        ("INTEGER", "bit"),
    ],
)
def test_a_comment_that_the_storage_does_not_hold_is_a_problem(file: File, stored: str, comment: str) -> None:
    file.run(f"CREATE TABLE t (c {stored})", f"COMMENT ON COLUMN t.c IS '{comment}'")
    (problem,) = file.describe().problems
    assert (problem.code, problem.where) == ("dpone.target.comment_type", "c")


@pytest.mark.parametrize(
    "stored",
    [
        "HUGEINT",
        "UINTEGER",
        "TIMESTAMPTZ",
        "TIMESTAMP_NS",
        "TIME",
        "BIT",
        "JSON",
        "INTEGER[]",
        "ENUM('a')",
        "INTERVAL",
    ],
)
def test_a_type_without_a_meaning_is_refused_only_when_mapped(file: File, stored: str) -> None:
    file.run(f"CREATE TABLE t (c {stored}, d BIGINT)")
    found = file.describe()
    assert found.problems == ()
    for source in ("Bool", "Int64", "String", "DateTime64(6)"):
        refusal = resolve("c", source, found.columns[0].type, True)
        assert isinstance(refusal, Problem)
        assert refusal.code == "dpone.types.unsupported"


def test_a_generated_column_is_a_problem(file: File) -> None:
    file.run("CREATE TABLE t (a BIGINT, b BIGINT GENERATED ALWAYS AS (a + 1))")
    (problem,) = file.describe().problems
    assert (problem.code, problem.where) == ("dpone.target.generated_column", "b")


def test_a_referenced_table_is_refused(file: File) -> None:
    file.run(
        "CREATE SCHEMA s",
        "CREATE TABLE T (a BIGINT PRIMARY KEY)",
        "CREATE TABLE s.t (a BIGINT PRIMARY KEY)",
        "CREATE TABLE s.child (b BIGINT REFERENCES s.t (a))",
    )
    assert file.describe().problems == ()
    file.run("CREATE TABLE child2 (b BIGINT REFERENCES t (a))")
    (problem,) = file.describe().problems
    assert problem.code == "dpone.target.referenced"
    assert "child2" in problem.message


def test_keys_checks_and_own_references_are_no_problem(file: File) -> None:
    file.run(
        "CREATE TABLE parent (a BIGINT PRIMARY KEY)",
        "CREATE TABLE t (a BIGINT PRIMARY KEY REFERENCES parent (a), b BIGINT UNIQUE CHECK (b > 0))",
    )
    assert file.describe().problems == ()


@pytest.mark.parametrize("schema", ["dpone", "dpone_stage", "DPONE"])
def test_our_own_schemas_are_no_target(file: File, schema: str) -> None:
    file.run(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.t (a BIGINT)")
    with file.open() as target, pytest.raises(ConfigurationError) as caught:
        target.identify(schema, "t", initialise=True)
    assert caught.value.code == "dpone.target.not_a_table"


def test_names_are_the_stored_ones_in_any_case_of_ascii(file: File) -> None:
    file.run('CREATE SCHEMA "Shop"', 'CREATE TABLE "Shop"."Orders" (a BIGINT)', 'CREATE TABLE "Ё" (a BIGINT)')
    with file.open() as target:
        first = target.identify("shop", "ORDERS", initialise=True)
        assert (first.schema, first.table) == ("Shop", "Orders")
        assert first == target.identify("Shop", "Orders", initialise=True)
        with pytest.raises(ConfigurationError):
            target.identify("main", "ё", initialise=True)


def test_the_users_own_comment_stays(file: File) -> None:
    file.run("CREATE TABLE t (a BIGINT)", "COMMENT ON TABLE t IS 'It''s mine; dpone:incarnation=no'")
    with file.open() as target:
        first = target.identify("main", "t", initialise=True)
        assert target.identify("main", "t", initialise=True) == first
    comment = file.comment()
    assert comment is not None
    assert comment.startswith("It's mine; dpone:incarnation=no\ndpone:incarnation=")
    assert comment.count("\n") == 1


def test_a_comment_that_lost_the_mark_is_another_incarnation(file: File) -> None:
    file.run("CREATE TABLE t (a BIGINT)")
    with file.open() as target:
        first = target.identify("main", "t", initialise=True).object_id
    file.run("COMMENT ON TABLE t IS 'rewritten'")
    with file.open() as target:
        assert target.identify("main", "t", initialise=False).object_id == 0
        assert target.identify("main", "t", initialise=True).object_id not in (0, first)


def test_the_object_id_is_the_head_of_the_incarnation(file: File) -> None:
    mark = "dpone:incarnation=ffffffff-ffff-4fff-8000-000000000000"
    file.run("CREATE TABLE t (a BIGINT)", f"COMMENT ON TABLE t IS '{mark}'")
    with file.open() as target:
        assert target.identify("main", "t", initialise=True).object_id == 0x7FFFFFFFFFFF4FFF | (0xFFFF << 16)
    assert file.comment() == mark


def test_asking_without_initialise_leaves_no_trace(file: File) -> None:
    file.run("CREATE TABLE t (a BIGINT)")
    with file.open() as target:
        found = target.identify("main", "t", initialise=False)
    assert (found.installation_id, found.object_id, found.gate) == (None, 0, None)
    assert file.run("SELECT schema_name FROM duckdb_schemas() WHERE schema_name LIKE 'dpone%'") == []
    assert file.comment() is None


def test_the_control_tables_have_their_columns(file: File) -> None:
    file.run("CREATE TABLE t (a BIGINT)")
    with file.open() as target:
        target.identify("main", "t", initialise=True)
    text = (
        "SELECT string_agg(column_name, ' ' ORDER BY column_index) FROM duckdb_columns() "
        "WHERE schema_name = 'dpone' AND table_name = '{}'"
    )
    assert file.run(text.format("target_gate")) == [
        (
            "target_key schema_name table_name target_object_id target_created journal_id route_scope fence "
            "in_flight_operation_id last_operation_id last_receipt_sha256 cycle_id cycle_fence "
            "frontier_sequence",
        )
    ]
    assert file.run(text.format("delivery_receipt")) == [
        (
            "operation_id target_key delivery_key generation invocation_key route_scope journal_id "
            "receipt_kind intent_version intent_sha256 strategy window_key row_count digest_algorithm digest "
            "wire_layout_sha256 fence lock_mode receipt_sha256 deleted_rows published_at recovery_fork_id "
            "durability",
        )
    ]


def test_what_is_missing_is_made_by_the_next_admission(file: File) -> None:
    file.run("CREATE TABLE t (a BIGINT)")
    with file.open() as target:
        first = target.identify("main", "t", initialise=True)
    file.run("DROP SCHEMA dpone_stage", "DROP TABLE dpone.target_gate")
    with file.open() as target:
        assert target.identify("main", "t", initialise=True) == first
    assert file.run("SELECT count(*) FROM duckdb_schemas() WHERE schema_name = 'dpone_stage'") == [(1,)]


def test_a_layout_of_another_version_is_not_touched(file: File) -> None:
    file.run("CREATE TABLE t (a BIGINT)")
    with file.open() as target:
        target.identify("main", "t", initialise=True)
    file.run("UPDATE dpone.installation SET layout_version = 2")
    with file.open() as target, pytest.raises(ConfigurationError) as caught:
        target.identify("main", "t", initialise=True)
    assert caught.value.code == "dpone.target.layout"


@pytest.mark.parametrize(
    "comment",
    ["nvarchr(10)", "varchar(20)", "time(7)", "datetime", "nvarchar(5000)", "nvarchar(10) NOT NULL"],
)
def test_a_comment_that_looks_like_a_type_and_is_none_is_not_taken_for_a_remark(comment: str) -> None:
    """Its length would be lost without a word."""
    assert storage.misread_comment(comment)


@pytest.mark.parametrize(
    "comment", [None, "", "nvarchar(20)", "time", "the customer's note", "text", "in EUR (net)"]
)
def test_types_and_remarks_are_left_alone(comment: str | None) -> None:
    assert storage.misread_comment(comment) is None
