"""A scripted source and a DuckDB file with the columns of :mod:`tests.fakes.lies`, in one directory."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.deliver import deliver
from airflow_dpone.delivery.run import Request
from airflow_dpone.settings import Limits
from airflow_dpone.target_embedded.target import EmbeddedTarget
from tests.fakes import lies
from tests.fakes.world import DAY, SCHEMA, TABLE, World, requester

BEFORE = (
    "(901, 1, 1, NULL, 1, 'before', 'x', uuid(), 'a'::BLOB, TIMESTAMP '2024-12-31 23:59:59.999999'), "
    "(902, 1, 1, NULL, 1, 'inside', 'x', uuid(), 'a'::BLOB, TIMESTAMP '2025-01-01 00:00:00'), "
    "(903, 1, 1, NULL, 1, 'after', 'x', uuid(), 'a'::BLOB, TIMESTAMP '2025-01-02 00:00:00')"
)


@dataclass
class Shop:
    """A scripted source, and a DuckDB file with rows before, in and after the window."""

    world: World
    path: str

    @classmethod
    def create(cls, root: Path) -> Shop:
        """A new one; its source has the rows of the lies."""
        world = World.create(root)
        world.source.edit(columns=[(name, kind) for name, kind, *_ in lies.COLUMNS])
        path = str(root / "warehouse.duckdb")
        columns = ", ".join(f'"{name}" {stored}' for name, *_, stored in lies.COLUMNS)
        with duckdb.connect(path) as file:
            file.execute(f"CREATE SCHEMA {SCHEMA}")
            file.execute(f"CREATE TABLE {SCHEMA}.{TABLE} ({columns})")
            for name, kind in (("name", "nvarchar(20)"), ("mark", "varbinary(9)")):
                file.execute(f"COMMENT ON COLUMN {SCHEMA}.{TABLE}.{name} IS '{kind}'")
            file.execute(f"INSERT INTO {SCHEMA}.{TABLE} VALUES {BEFORE}")
        shop = cls(world, path)
        shop.holds(lies.ROWS)
        return shop

    def copy(self, root: Path) -> Shop:
        """The same in another directory."""
        shutil.copytree(self.world.root, root)
        return Shop(replace(self.world, root=root), str(root / "warehouse.duckdb"))

    def holds(self, rows: Sequence[lies.Row]) -> None:
        """What the source holds from now on."""
        scripted = [[_python(row[name], name) for name, *_ in lies.COLUMNS] for row in rows]
        self.world.source.edit(rows=scripted)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Asks the file itself."""
        with duckdb.connect(self.path, read_only=True) as file:
            return file.execute(text).fetchall()

    def rows(self) -> list[tuple[Any, ...]]:
        """The target's rows."""
        return self.query(f"SELECT * FROM {SCHEMA}.{TABLE} ORDER BY ALL")

    def deliver(self, target: EmbeddedTarget, limits: Limits | None = None) -> r.DeliveryResult:
        """One call of the engine."""
        route = self.world.route(limits=limits or Limits())
        with self.world.open_journal() as journal:
            ports = self.world.ports(journal, target=target, writer=target)
            return deliver(ports, Request(route, DAY, requester()))

    def untidy(self) -> list[str]:
        """What a failed delivery must not leave behind."""
        stages = self.query(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dpone_stage'"
        )
        receipts = self.query("SELECT generation FROM dpone.delivery_receipt")
        with EmbeddedTarget(self.path) as target, self.world.open_journal() as journal:
            key = target.identify(SCHEMA, TABLE, initialise=True).target_key
            held = journal.custody(key).held
        found = [f"stage {name}" for (name,) in stages] + [f"receipt {n}" for (n,) in receipts]
        found += [f"file {path.name}" for path in self.world.spool_files()]
        return found + (["custody"] if held else [])


def _python(value: Any, name: str) -> Any:
    return UUID(bytes=value) if name == "ref" else value
