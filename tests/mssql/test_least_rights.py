"""A login with exactly the printed GRANTs delivers, and may do nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyodbc
import pytest

from airflow_dpone.delivery.plan_preview import preview
from airflow_dpone.settings import Options
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.target_sqlserver.installation_statements import permissions_script
from airflow_dpone.target_sqlserver.quoting import literal, quoted
from airflow_dpone.target_sqlserver.statements import Schemas
from airflow_dpone.target_sqlserver.target import SqlServerTarget
from tests.contract.target_cases import sorted_rows
from tests.fakes.world import DAY, orders, requester
from tests.mssql import server, standin
from tests.mssql.lab import MssqlLab
from tests.mssql.server import OwnDatabase
from tests.mssql.world import OUTSIDE, MssqlWorld

DELIVERED = sorted_rows([tuple(row) for row in orders(6)])
EXPECTED = sorted_rows([*OUTSIDE, *DELIVERED])

NOT_ON_THE_STANDIN = ("GRANT CREATE TABLE ", "GRANT ALTER, ", "GRANT VIEW DEFINITION ")
"""It knows no GRANT for a database and no right ALTER: there the loader owns the staging schema instead (and
the shop, where it makes the target), and sees the catalog as everybody does."""

USER = "loader ]]'"


class Place:
    """A database of its own, since a user that was granted something is not dropped easily.

    :param creating: the loader's GRANTs are those of ``--create-target``.
    """

    def __init__(self, *, creating: bool) -> None:
        self.database = OwnDatabase()
        self.is_standin, self.creating = self.database.is_standin, creating
        password = f"Aa1-{secrets.token_hex(12)}"
        self.login = f"dpone_loader_{secrets.token_hex(4)}"
        # The stand-in takes no user whose name differs from the login's.
        self.user = self.login if self.is_standin else USER
        self.admin = server.connect(self.database.where)
        self.loader = replace(self.database.where, user=self.login, password=password)
        self.run(f"CREATE LOGIN {quoted(self.login)} WITH PASSWORD = {literal(password)}")
        self.run(f"CREATE USER {quoted(self.user)} FOR LOGIN {quoted(self.login)}")
        if self.is_standin:
            for schema in ("dpone_stage", "shop")[: 1 + creating]:
                self.run(f"CREATE SCHEMA {quoted(schema)} AUTHORIZATION {quoted(self.user)}")
            for name in ("denied", "security_predicates", "security_policies", "database_files", "log_space"):
                self.run(f"GRANT SELECT ON [dbo].[standin_{name}] TO {quoted(self.user)}")
            for name in ("has_perms", "fileproperty"):
                self.run(f"GRANT EXECUTE ON [dbo].[standin_{name}] TO {quoted(self.user)}")

    def run(self, text: str) -> list[Any]:
        cursor = self.admin.execute(text)
        return list(cursor.fetchall()) if cursor.description else []

    def script(self) -> str:
        return permissions_script(Schemas(), [("shop", "orders")], self.user, create_target=self.creating)

    def grants(self) -> list[str]:
        """The lines of the printed script that this server takes."""
        lines = [line for line in self.script().splitlines() if line.startswith("GRANT")]
        return [line for line in lines if not (self.is_standin and line.startswith(NOT_ON_THE_STANDIN))]

    def drop(self) -> None:
        standin.close_all()
        self.admin.close()
        self.database.drop()
        admin = server.connect(replace(self.database.admin, database="master"))
        admin.execute(f"DROP LOGIN {quoted(self.login)}")
        admin.close()


def place_of(*, creating: bool) -> Iterator[Place]:
    server.get_ready()
    made = Place(creating=creating)
    yield made
    made.drop()


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    yield from place_of(creating=False)


@pytest.fixture(scope="module")
def creating_place() -> Iterator[Place]:
    yield from place_of(creating=True)


class Lab(MssqlLab):
    """An administrator's hands; nothing that was granted is taken away with a table."""

    def _empty(self) -> None:
        if self.run("SELECT SCHEMA_ID(N'shop')")[0][0] is None:
            self.run("CREATE SCHEMA [shop]")


def world_of(root: Path, place: Place, *, where: SqlServerConnection) -> MssqlWorld:
    lab = Lab(place.database)
    world = MssqlWorld.on(root, lab)
    if place.creating:
        lab.drop_table("orders")
    for line in place.grants():
        lab.run(line)
    world.where = where
    return world


@pytest.fixture
def world(tmp_path: Path, place: Place) -> Iterator[MssqlWorld]:
    """The table and the product's tables are an administrator's; deliveries are the loader's."""
    made = world_of(tmp_path / "world", place, where=place.loader)
    yield made
    made.lab.drop_table("orders")
    made.lab.forget_receipts()
    made.lab.forget_gate()


def test_a_login_with_the_printed_grants_delivers(world: MssqlWorld) -> None:
    """Twice, so that gate, receipts and staging are met as they are left."""
    plan = preview(world.source, SqlServerTarget(world.where), world.ports(None).writer, world.route(), DAY)
    assert plan.refusals == ()
    assert world.deliver().rows == 6
    assert (world.deliver(rerun=True).deleted_rows, world.rows()) == (6, EXPECTED)
    assert world.lab.stage_names() == []


@pytest.mark.parametrize("point", ["after_target_publish", "after_writer_write"])
def test_it_also_settles_what_a_dead_worker_left(world: MssqlWorld, point: str) -> None:
    """The probe and the way over the staging tables need no right of their own."""

    class Died(BaseException):
        pass

    def die(passed: str) -> None:
        if passed == point:
            raise Died

    with pytest.raises(Died):
        world.deliver(observer=die)
    world.deliver(requester(try_number=2, ti_id="two"))
    assert (world.rows(), world.lab.count_receipts(), world.lab.stage_names()) == (EXPECTED, 1, [])


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE [dpone].[delivery_receipt] SET fence = 1",
        "DELETE FROM [dpone].[delivery_receipt]",
        "DELETE FROM [dpone].[target_gate]",
        "UPDATE [dpone].[installation] SET layout_version = 2",
        "UPDATE [shop].[orders] SET id = 1",
        "DROP TABLE [shop].[orders]",
        "ALTER TABLE [shop].[orders] ADD mine int NULL",
        "CREATE TABLE [shop].[mine] (id int)",
        "CREATE TABLE [dpone].[mine] (id int)",
    ],
)
def test_it_may_do_nothing_else(world: MssqlWorld, text: str) -> None:
    connection = server.connect(world.where)
    with pytest.raises(pyodbc.Error):
        connection.execute(text)
    connection.close()


def test_with_the_grants_for_it_a_login_makes_its_table(tmp_path: Path, creating_place: Place) -> None:
    """``target permissions --create-target``; the first delivery makes the table, the second finds it."""
    world = world_of(tmp_path / "world", creating_place, where=creating_place.loader)
    world.options = Options(create_target=True)
    assert world.deliver().rows == 6
    assert (world.deliver(rerun=True).deleted_rows, world.rows()) == (6, DELIVERED)


def test_each_grant_that_is_taken_away_is_named(world: MssqlWorld, place: Place) -> None:
    """Right by right of each printed line: what admission then names is what was taken."""
    if place.is_standin:
        pytest.skip(
            "capability gap: UNVERIFIED without SQL Server: the stand-in does not tell a login its rights"
        )
    for line in place.grants():
        rights, _, rest = line.removeprefix("GRANT ").removesuffix(";").partition(" ON ")
        where = f" ON {rest.rpartition(' TO ')[0]}" if rest else ""
        for right in rights.partition(" TO ")[0].split(", "):
            place.run(f"REVOKE {right}{where} FROM {quoted(place.user)}")
            try:
                plan = preview(
                    world.source, SqlServerTarget(world.where), world.ports(None).writer, world.route(), DAY
                )
                assert any(f"GRANT {right}" in problem.message for problem in plan.refusals), (right, where)
            finally:
                place.run(f"GRANT {right}{where} TO {quoted(place.user)}")
