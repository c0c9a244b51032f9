"""A target table that a delivery makes on the server: rights, races, whole deliveries."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.plan_preview import preview
from airflow_dpone.errors import ConfigurationError, DponeError
from airflow_dpone.settings import Options
from airflow_dpone.target_sqlserver import installation_statements, preflight_statements
from airflow_dpone.target_sqlserver.target import SqlServerTarget
from tests.contract.target_cases import sorted_rows
from tests.fakes.world import DAY, TARGET_COLUMNS, orders
from tests.mssql.lab import MssqlLab
from tests.mssql.world import MssqlWorld

CREATE = Options(create_target=True)
COLUMNS = [tr.TargetColumn(*column) for column in TARGET_COLUMNS]


@pytest.fixture
def world(tmp_path: Path, mssql_lab: MssqlLab) -> Iterator[MssqlWorld]:
    """A database that is ready, without the target table."""
    made = MssqlWorld.on(tmp_path / "world", mssql_lab)
    mssql_lab.drop_table("orders")
    made.options = CREATE
    yield made
    if mssql_lab.is_standin:
        mssql_lab.run("DELETE FROM [dbo].[standin_denied]")


def needs_standin(lab: MssqlLab) -> None:
    if not lab.is_standin:
        pytest.skip("capability gap: UNVERIFIED: denied rights are simulated on the stand-in only")


def test_the_first_delivery_makes_the_table_and_the_next_one_finds_it(world: MssqlWorld) -> None:
    expected = sorted_rows([tuple(row) for row in orders(6)])
    plan = preview(world.source, SqlServerTarget(world.where), world.ports(None).writer, world.route(), DAY)
    assert plan.refusals == ()
    assert plan.statements["create_table"].startswith("CREATE TABLE [shop].[orders] ([id] bigint NOT NULL,")
    assert world.lab.run("SELECT OBJECT_ID(N'[shop].[orders]')") == [(None,)]
    assert world.deliver().rows == 6
    assert world.rows() == expected
    again = world.deliver(rerun=True)
    assert (again.generation, again.deleted_rows, world.rows()) == (2, 6, expected)


def test_of_two_at_the_same_time_one_makes_it(world: MssqlWorld) -> None:
    answers: list[object] = []

    def make() -> None:
        with SqlServerTarget(world.where, settle_sec=60) as target:
            try:
                answers.append(target.create_table("shop", "orders", COLUMNS))
            except DponeError as error:
                answers.append(error)

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == ["False", "False", "True"]


@pytest.mark.parametrize(
    "right", ["SELECT", "INSERT", "DELETE", "UPDATE", "ALTER", "CREATE TABLE", "VIEW DEFINITION"]
)
def test_each_right_that_is_missing_is_named_and_nothing_is_made(world: MssqlWorld, right: str) -> None:
    needs_standin(world.lab)
    world.lab.run("INSERT INTO [dbo].[standin_denied] VALUES (?)", right)
    with pytest.raises(ConfigurationError) as caught:
        world.deliver()
    assert all(f"GRANT {right}" in problem.message for problem in caught.value.problems)
    schemas = world.where.schemas
    rights = [
        *preflight_statements.rights_to_see_database(),
        *preflight_statements.rights_to_create("shop", schemas),
    ]
    assert len(caught.value.problems) == sum(name == right for _, _, name, _ in rights) > 0
    assert world.lab.run("SELECT OBJECT_ID(N'[shop].[orders]')") == [(None,)]


def test_the_printed_grants_are_the_rights_that_are_asked_for(world: MssqlWorld) -> None:
    schemas = world.where.schemas
    script = installation_statements.permissions_script(
        schemas, [("shop", "orders"), ("shop", "lines")], "loader", create_target=True
    )
    rights = [
        *preflight_statements.rights_to_see_database(),
        *preflight_statements.rights_to_create("shop", schemas),
    ]
    for _, _, right, where in rights:
        ends = f"{where} TO [loader];" if where else "TO [loader];"
        lines = [line for line in script.splitlines() if line.startswith("GRANT") and line.endswith(ends)]
        assert any(right in line for line in lines), (right, where)
    assert script.count("SCHEMA::[shop]") == 1


def test_a_database_that_is_not_ready_gets_no_table(world: MssqlWorld) -> None:
    world.lab.run("DELETE FROM [dpone].[installation]")
    with pytest.raises(ConfigurationError) as caught:
        world.deliver()
    assert caught.value.code == "dpone.target.not_initialised"
    plan = preview(world.source, SqlServerTarget(world.where), world.ports(None).writer, world.route(), DAY)
    assert any("target init" in warning for warning in plan.warnings)
    assert world.lab.run("SELECT OBJECT_ID(N'[shop].[orders]')") == [(None,)]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 129])
def test_a_name_that_the_server_does_not_take_is_refused_before_it_is_asked(
    world: MssqlWorld, name: str
) -> None:
    with SqlServerTarget(world.where) as target:
        found = target.new_table("shop", "made", [*COLUMNS, tr.TargetColumn(name, "int", True)])
        assert [problem.code for problem in found.table.problems] == ["dpone.config.field"]
        assert found.statement == ""
        found = target.new_table("shop", "made", [tr.TargetColumn(f"c{i}", "int", True) for i in range(251)])
        assert [problem.code for problem in found.table.problems] == ["dpone.target.too_wide"]
