"""The engine's small world with SQL Server as its target: the scripted shop, a real journal and spool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_dpone.bulk_writer.writer import TdsWriter
from airflow_dpone.delivery.ports import Ports
from airflow_dpone.settings import Limits, Route
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.target_sqlserver.target import SqlServerTarget
from tests.contract.target_cases import Column, Row
from tests.fakes.source import ScriptedSource
from tests.fakes.world import SOURCE_COLUMNS, TABLE, TARGET_COLUMNS, World, orders
from tests.mssql.lab import MssqlLab

COLUMNS = [
    Column(name, source[1], kind, nullable)
    for source, (name, kind, nullable) in zip(SOURCE_COLUMNS, TARGET_COLUMNS, strict=True)
]
OUTSIDE: list[Row] = [tuple(row) for row in orders(2, first=700, day=3)]


class MssqlWorld(World):
    """Deliveries into ``shop.orders`` of a lab; the writer is the product's own."""

    lab: MssqlLab
    where: SqlServerConnection

    @classmethod
    def on(cls, root: Path, lab: MssqlLab, rows: int = 6, chunk_rows: int = 4) -> MssqlWorld:
        """A table with two rows outside of the window, in a database that is ready."""
        from airflow_dpone.journal.migrate import migrate

        root.mkdir(parents=True)
        world = cls(root, limits=Limits(max_rows=chunk_rows))
        world.lab, world.where = lab, lab.where
        ScriptedSource.create(world.source.path, SOURCE_COLUMNS, orders(rows))
        lab.create_table(TABLE, COLUMNS)
        lab.insert(TABLE, OUTSIDE)
        with lab.open() as target:
            target.initialise()
        migrate(world.journal_path, host="test-host")
        return world

    def route(self, **changes: Any) -> Route:
        where = self.where
        uri = f"mssql://{where.user}@{where.server}:{where.port}/{where.database}"
        return super().route(**{"target": uri, "target_table": ("shop", TABLE), **changes})

    def ports(self, journal: Any, **changes: Any) -> Ports:
        target = SqlServerTarget(self.where, lock_wait_sec=20, settle_sec=20)
        ports = Ports(
            source=self.source,
            spool=self.spool,
            target=target,
            writer=TdsWriter(self.where),
            journal=journal,
            clock=self.clock,
        )
        return replace(ports, **changes)

    def rows(self) -> list[Row]:
        """The target's rows, sorted."""
        return self.lab.rows(TABLE)
