"""The engine's small world with SQL Server as its target: the scripted shop, a real journal and spool."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_dpone.bulk_writer.writer import TdsWriter
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.ports import Ports, WriterPort
from airflow_dpone.settings import Limits, Route
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.target_sqlserver.target import SqlServerTarget
from tests.contract.target_cases import Column, Row
from tests.fakes.source import ScriptedSource
from tests.fakes.world import SOURCE_COLUMNS, TABLE, TARGET_COLUMNS, World, orders
from tests.mssql import server
from tests.mssql.lab import MssqlLab

PLACE = "mssql.json"

COLUMNS = [
    Column(name, source[1], kind, nullable)
    for source, (name, kind, nullable) in zip(SOURCE_COLUMNS, TARGET_COLUMNS, strict=True)
]
OUTSIDE: list[Row] = [tuple(row) for row in orders(2, first=700, day=3)]


class MssqlWorld(World):
    """Deliveries into a table of a lab; the writer is the product's own.

    Another process opens it by its directory, with the login of DPONE_TEST_MSSQL.
    """

    child_module = "tests.mssql.kill_child"
    lab: MssqlLab
    where: SqlServerConnection
    table = TABLE
    writer: WriterPort | None = None
    """Another bulk writer than the product's own."""
    settle_sec = 20.0
    writer_settle_sec = 20.0

    @classmethod
    def on(
        cls,
        root: Path,
        lab: MssqlLab,
        rows: int = 6,
        limits: Limits | None = None,
        *,
        table: str = TABLE,
        outside: Sequence[Row] = OUTSIDE,
    ) -> MssqlWorld:
        """A table with two rows outside of the window, in a database that is ready."""
        from airflow_dpone.journal.migrate import migrate

        root.mkdir(parents=True)
        world = cls(root, limits=limits or Limits(max_rows=4))
        ScriptedSource.create(world.source.path, SOURCE_COLUMNS, orders(rows))
        migrate(world.journal_path, host="test-host")
        with lab.open() as target:
            target.initialise()
        world._settle_in(lab, table, outside)
        return world

    def twin(self, root: Path, table: str, *, outside: Sequence[Row] = OUTSIDE) -> MssqlWorld:
        """The same world before its first delivery, with a table of its own: both may be used at once."""
        shutil.copytree(self.root, root)
        world = type(self)(root, limits=self.limits)
        world._settle_in(self.lab, table, outside)
        return world

    def _settle_in(self, lab: MssqlLab, table: str, outside: Sequence[Row]) -> None:
        self.lab, self.where, self.table = lab, lab.where, table
        lab.create_table(table, COLUMNS)
        lab.insert(table, outside)
        place = {"database": lab.where.database, "table": table, "is_standin": lab.is_standin}
        place["limits"] = self.limits.model_dump(exclude_none=True)
        (self.root / PLACE).write_text(json.dumps(place))

    @classmethod
    def open(cls, root: Path) -> MssqlWorld:
        """In another process. The session that made the world has asked the stand-in for its row bytes."""
        place = json.loads((root / PLACE).read_text())
        if place["is_standin"]:
            server.use_standin()
            server.parity.__dict__["parity_problems"] = lambda session, database: []
        world = cls(root, limits=Limits(**place["limits"]))
        world.where, world.table = replace(server.login(), database=place["database"]), place["table"]
        return world

    def me(self, who: r.Requester | None) -> r.Requester:
        """As in every world, but worlds of one database share its receipts: each has runs of its own."""
        asked = super().me(who)
        return replace(asked, run_id=f"{asked.run_id} {self.table}")

    def route(self, **changes: Any) -> Route:
        where = self.where
        uri = f"mssql://{where.user}@{where.server}:{where.port}/{where.database}"
        return super().route(**{"target": uri, "target_table": ("shop", self.table), **changes})

    def ports(self, journal: Any, **changes: Any) -> Ports:
        target = SqlServerTarget(
            self.where,
            lock_wait_sec=20,
            settle_sec=self.settle_sec,
            writer_settle_sec=self.writer_settle_sec,
        )
        ports = Ports(
            source=self.source,
            spool=self.spool,
            target=target,
            writer=self.writer or TdsWriter(self.where),
            journal=journal,
            clock=self.clock,
        )
        return replace(ports, **changes)

    def rows(self) -> list[Row]:
        """The target's rows, sorted."""
        return self.lab.rows(self.table)

    def is_being_published(self) -> bool:
        """Whether a publication (or somebody who asks for one) holds the target's lock now."""
        with self.lab.open() as target:
            key = target.identify("shop", self.table, initialise=True).target_key
        asked = "SELECT APPLOCK_TEST('public', ?, 'Exclusive', 'Session')"
        return not self.lab.run(asked, sql.target_lock(key))[0][0]

    def receipts(self) -> list[tuple[str, int, str, int]]:
        """Of every publication into the table of this world."""
        found = self.lab.run(
            "SELECT r.delivery_key, r.generation, r.operation_id, r.row_count "
            "FROM [dpone].[delivery_receipt] AS r INNER JOIN [dpone].[target_gate] AS g "
            "ON g.target_key = r.target_key WHERE g.table_name = ? ORDER BY r.generation",
            self.table,
        )
        return [(bytes(row[0]).hex(), row[1], bytes(row[2]).hex(), row[3]) for row in found]

    def stages(self) -> list[str]:
        """Every staging table of the database."""
        return self.lab.stage_names()

    def custody(self) -> jr.Custody:
        """Who owns the target."""
        with self.lab.open() as target:
            key = target.identify("shop", self.table, initialise=True).target_key
        with self.open_journal() as journal:
            return journal.custody(key)
