"""The SQLite target as the contract suite wants it: a database, and hands to break things behind its back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from airflow_dpone.wire.types import SqlType
from tests.fakes import target_storage as storage
from tests.fakes.target import SqliteTarget

SCHEMA = "shop"
Row = tuple[Any, ...]


class SqliteLab:
    """One file; the tables are in the schema ``shop``."""

    def __init__(self, folder: Path) -> None:
        self.target = SqliteTarget(folder / "target.db")

    def open(self) -> SqliteTarget:
        """An adapter of its own, as another process would have it."""
        return SqliteTarget(self.target.path)

    def run(self, text: str, parameters: Sequence[object] = ()) -> list[Row]:
        """One statement."""
        return self.target.execute(text, parameters)

    def create_table(self, table: str, columns: Sequence[Any], extra: str = "") -> None:
        """Columns have a name, a T-SQL type and a nullability."""
        as_kept = re.sub(r"(?<![\w'])[0-9]+[.][0-9]+", r"'\g<0>'", extra)  # decimals are kept as text
        rest = f", {as_kept}" if extra else ""
        self.target.add_table(SCHEMA, table, [(c.name, c.type, c.nullable) for c in columns], rest=rest)

    def drop_table(self, table: str) -> None:
        self.run(f"DROP TABLE {storage.table_name(SCHEMA, table)}")

    def add_column(self, table: str, name: str) -> None:
        self.run(
            f'ALTER TABLE {storage.table_name(SCHEMA, table)} ADD COLUMN {storage.quoted(name)} "blob int"'
        )

    def create_view(self, view: str, table: str) -> None:
        name = storage.table_name(SCHEMA, view)
        self.run(f"CREATE VIEW {name} AS SELECT * FROM {storage.table_name(SCHEMA, table)}")

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        self.target.insert(SCHEMA, table, list(rows))

    def rows(self, table: str) -> list[Row]:
        """Sorted, NULLs last."""
        found = self.target.rows(SCHEMA, table)
        return sorted(found, key=lambda row: [(v is None, v if v is not None else 0) for v in row])

    def stage_names(self) -> list[str]:
        return self.target.stages

    def create_foreign_stage(self, name: str) -> None:
        self.run(f"CREATE TABLE {storage.table_name(storage.STAGE_SCHEMA, name)} (id)")

    def change_stage(self, name: str, column: str, value: object, where_id: int) -> None:
        sql_type = next(t for n, t in self._types(name) if n == column)
        path = storage.table_name(storage.STAGE_SCHEMA, name)
        self.run(
            f"UPDATE {path} SET {storage.quoted(column)} = ? WHERE id = ?",
            [storage.stored(value, sql_type), where_id],
        )

    def _types(self, name: str) -> list[tuple[str, SqlType]]:
        with storage.session(self.target.path) as connection:
            found = storage.columns_of(connection, storage.STAGE_SCHEMA, name)
        return [(column, SqlType.parse(kind)) for column, kind, _ in found]

    def add_to_stage(self, name: str, row: Row) -> None:
        self.target.insert(storage.STAGE_SCHEMA, name, [row])

    def delete_from_stage(self, name: str, where_id: int) -> None:
        self.run(f"DELETE FROM {storage.table_name(storage.STAGE_SCHEMA, name)} WHERE id = ?", [where_id])

    def drop_stage(self, name: str) -> None:
        self.run(f"DROP TABLE {storage.table_name(storage.STAGE_SCHEMA, name)}")

    def forget_receipts(self) -> None:
        self.run('DELETE FROM "dpone.delivery_receipt"')

    def count_receipts(self) -> int:
        return int(self.run('SELECT count(*) FROM "dpone.delivery_receipt"')[0][0])

    def forget_gate(self) -> None:
        self.run('DELETE FROM "dpone.target_gate"')

    def set_in_flight(self, operation_id: str) -> None:
        self.run('UPDATE "dpone.target_gate" SET in_flight_operation_id = ?', [operation_id])
