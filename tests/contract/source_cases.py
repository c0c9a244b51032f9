"""What the contract of a source is tested over: a table made from Python values, and what happens to it."""

from __future__ import annotations

import dataclasses
import json
from abc import abstractmethod
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from airflow_dpone.delivery.ports import SourcePort
from airflow_dpone.delivery.records import SourceQuery
from tests.contract.chdb_world import ChdbWorld, EngineWorld
from tests.contract.native_world import NativeWorld
from tests.fakes.source import ReadFault, ScriptedSource

COLUMNS = [
    ("id", "Int64"),
    ("at", "Nullable(DateTime64(6, 'UTC'))"),
    ("day", "Date32"),
    ("ref", "Nullable(UUID)"),
    ("price", "Decimal(38, 10)"),
    ("rate", "Nullable(Float64)"),
    ("paid", "Bool"),
    ("note", "LowCardinality(Nullable(String))"),
]
TARGETS = {
    "id": "bigint",
    "at": "datetime2(6)",
    "day": "date",
    "ref": "uniqueidentifier",
    "price": "decimal(38,10)",
    "rate": "float(53)",
    "paid": "bit",
    "note": "nvarchar(max)",
}
Row = Sequence[Any]


class SourceWorld(Protocol):
    """One table, its source, and what can happen to it."""

    database: str
    table: str

    @abstractmethod
    def source(self) -> SourcePort:
        """A new, closed source over the table."""

    @abstractmethod
    def insert(self, rows: Sequence[Row]) -> None:
        """Adds rows."""

    @abstractmethod
    def mutate(self) -> None:
        """Runs a mutation to its end."""

    @abstractmethod
    def add_column(self) -> None:
        """One more column."""

    @abstractmethod
    def breaking(self, query: SourceQuery, rows: int) -> SourceQuery:
        """A query whose stream breaks when that many rows have been sent, or before."""

    @abstractmethod
    def drop(self) -> None:
        """Removes it."""


class EngineSourceWorld:
    """The real engine, in this process or behind the native protocol."""

    kind: type[EngineWorld] = ChdbWorld

    def __init__(self, _: Path) -> None:
        self._world = self.kind()
        self.database, self.table = self._world.database, "t"
        self._name = self._world.table(
            ", ".join(f"{name} {kind}" for name, kind in COLUMNS), rest="ORDER BY id"
        )

    def source(self) -> SourcePort:
        """Over the engine of this process, or of its server."""
        return self._world.source()

    def insert(self, rows: Sequence[Row]) -> None:
        """As text, without the product's code."""
        values = ", ".join(f"({', '.join(_literal(cell) for cell in row)})" for row in rows)
        self._world.execute(f"INSERT INTO {self._name} VALUES {values}")

    def mutate(self) -> None:
        """ALTER UPDATE, waited for."""
        self._world.execute(
            f"ALTER TABLE {self._name} UPDATE paid = NOT paid WHERE true SETTINGS mutations_sync = 2"
        )

    def add_column(self) -> None:
        """ALTER ADD COLUMN."""
        self._world.execute(f"ALTER TABLE {self._name} ADD COLUMN colour String")

    def breaking(self, query: SourceQuery, rows: int) -> SourceQuery:
        """The engine itself throws at a row."""
        joined = "AND" if query.predicate else "WHERE"
        return dataclasses.replace(query, text=f"{query.text}\n{joined} NOT throwIf(id = {rows})")

    def drop(self) -> None:
        """With its database."""
        self._world.drop()


class NativeSourceWorld(EngineSourceWorld):
    """Through the driver."""

    kind = NativeWorld


class ScriptedSourceWorld:
    """The fake, over a script in a file."""

    def __init__(self, directory: Path) -> None:
        self.database, self.table = "shop", "orders"
        self._source = ScriptedSource.create(directory / "script", COLUMNS, [])

    def source(self) -> SourcePort:
        """Another source over the same file."""
        return ScriptedSource(self._source.path)

    def insert(self, rows: Sequence[Row]) -> None:
        """Into the script."""
        script = self._source.script
        last = len(script.parts) + 10
        self._source.edit(rows=[*script.rows, *rows], parts=[*script.parts, ("all", last, last)])

    def mutate(self) -> None:
        """A finished mutation."""
        self._source.edit(mutations=[*self._source.script.mutations, "mutation_1"])

    def add_column(self) -> None:
        """With nothing in it."""
        script = self._source.script
        self._source.edit(
            columns=[*script.columns, ("colour", "String")], rows=[[*row, ""] for row in script.rows]
        )

    def breaking(self, query: SourceQuery, rows: int) -> SourceQuery:
        """The next read breaks."""
        self._source.edit(faults=[ReadFault("ends_early", rows)])
        return query

    def drop(self) -> None:
        """Goes with its directory."""


WORLDS = {"chdb": EngineSourceWorld, "native": NativeSourceWorld, "scripted": ScriptedSourceWorld}


def _literal(cell: Any) -> str:
    if cell is None:
        return "NULL"
    if isinstance(cell, bool | int | float):
        return json.dumps(cell)
    if isinstance(cell, datetime):
        return f"'{cell.isoformat(sep=' ', timespec='microseconds')}'"
    if isinstance(cell, str):
        return "'" + cell.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"
    return f"'{cell.isoformat() if isinstance(cell, date) else cell}'"


def row(number: int, at: datetime | None, **changed: Any) -> list[Any]:
    """One row; NULLs come and go with the number."""
    fields: dict[str, Any] = {
        "id": number,
        "at": at,
        "day": date(2026, 3, 1),
        "ref": None if number % 3 == 0 else UUID(int=number << 64 | 0xFF),
        "price": f"{number}.0000000001",
        "rate": None if number % 2 else number / 8,
        "paid": number % 2 == 0,
        "note": [None, "", "für dich 🎁", "a\0b ", "O'Neil \\ co"][number % 5],
        **changed,
    }
    return list(fields.values())
