"""What a test may do to a SQLite target from outside, and the faults that it may arm: all of it is in the
file, so that another process can do it too."""

from __future__ import annotations

import pickle
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_dpone.errors import TargetBusy
from airflow_dpone.wire.types import SqlType
from tests.fakes import target_storage as storage

FAULTS = """
CREATE TABLE IF NOT EXISTS "test.fault" (
  id INTEGER PRIMARY KEY AUTOINCREMENT, method TEXT NOT NULL, kind TEXT NOT NULL, argument TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS "test.late_send" (id INTEGER PRIMARY KEY AUTOINCREMENT, request BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS "test.call" (id INTEGER PRIMARY KEY AUTOINCREMENT, method TEXT NOT NULL);
"""


class TargetFile:
    """The file of a SQLite target as a test sees it. Tables are given as (name, T-SQL type, nullable)."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        with storage.session(self.path) as connection:
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
                raise RuntimeError("two processes need the write-ahead log")
            connection.executescript(FAULTS)

    def add_table(
        self, schema: str, table: str, columns: Sequence[tuple[str, str, bool]], *, rest: str = ""
    ) -> None:
        """A new target table. ``rest`` may add a constraint: ``', UNIQUE ("id")'``."""
        self.execute(storage.ddl(schema, table, columns, rest=rest))

    def recreate_table(self, schema: str, table: str) -> None:
        """Drops the table and makes it again with the same columns: another incarnation, empty."""
        with storage.session(self.path) as connection:
            columns = storage.columns_of(connection, schema, table)
        self.execute(f"DROP TABLE {storage.table_name(schema, table)}")
        self.add_table(schema, table, columns)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Runs one statement in a transaction of its own."""
        with storage.session(self.path) as connection:
            return connection.execute(statement, parameters).fetchall()

    def rows(self, schema: str, table: str) -> list[tuple[Any, ...]]:
        """All rows as Python values, sorted."""
        with storage.session(self.path) as connection:
            types = [SqlType.parse(kind) for _, kind, _ in storage.columns_of(connection, schema, table)]
            found = connection.execute(f"SELECT * FROM {storage.table_name(schema, table)}").fetchall()
        values = [tuple(storage.restored(v, t) for v, t in zip(row, types, strict=True)) for row in found]
        return sorted(values, key=repr)

    def insert(self, schema: str, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Rows of somebody else."""
        with storage.session(self.path) as connection:
            types = [SqlType.parse(kind) for _, kind, _ in storage.columns_of(connection, schema, table)]
            values = [[storage.stored(v, t) for v, t in zip(row, types, strict=True)] for row in rows]
            marks = ", ".join("?" for _ in types)
            connection.executemany(
                f"INSERT INTO {storage.table_name(schema, table)} VALUES ({marks})", values
            )

    @property
    def stages(self) -> list[str]:
        """Names of the staging tables that exist."""
        prefix = f"{storage.STAGE_SCHEMA}."
        found = self.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE ?", (f"{prefix}%",)
        )
        return sorted(name.removeprefix(prefix) for (name,) in found)

    def receipts(self) -> list[tuple[str, int, str, int]]:
        """(delivery key, generation, operation id, rows) of every receipt."""
        return self.execute(
            'SELECT delivery_key, generation, operation_id, row_count FROM "dpone.delivery_receipt" '
            "ORDER BY delivery_key, generation"
        )

    # ---- faults --------------------------------------------------------------------------------------

    def arm(self, method: str, kind: str, argument: str = "", *, times: int = 1) -> None:
        """The next calls of this method go wrong, each fault once, in the order of arming."""
        with storage.session(self.path) as connection:
            connection.executemany(
                'INSERT INTO "test.fault" (method, kind, argument) VALUES (?, ?, ?)',
                [(method, kind, argument)] * times,
            )

    def disarm(self) -> None:
        """Forgets every fault that was not used."""
        self.execute('DELETE FROM "test.fault"')

    def take_fault(self, method: str) -> tuple[str, str] | None:
        """(kind, argument) of the fault that this call gets."""
        with storage.session(self.path) as connection, storage.transaction(connection):
            row = connection.execute(
                'SELECT id, kind, argument FROM "test.fault" WHERE method = ? ORDER BY id LIMIT 1', (method,)
            ).fetchone()
            if row is None:
                return None
            connection.execute('DELETE FROM "test.fault" WHERE id = ?', (row[0],))
            return row[1], row[2]

    def note(self, method: str) -> None:
        """Counts a call."""
        self.execute('INSERT INTO "test.call" (method) VALUES (?)', (method,))

    def calls(self) -> list[str]:
        """Every call of an effectful method so far."""
        return [method for (method,) in self.execute('SELECT method FROM "test.call" ORDER BY id')]

    # ---- sends that are on their way -----------------------------------------------------------------

    def hold_back(self, request: Any) -> None:
        """Keeps a publication that was sent and has not arrived."""
        self.execute('INSERT INTO "test.late_send" (request) VALUES (?)', (pickle.dumps(request),))

    def let_arrive(self, publish: Callable[[Any], Any]) -> list[Any]:
        """The held publications arrive now; returns their answers, which nobody waits for any more."""
        held = self.execute('SELECT id, request FROM "test.late_send" ORDER BY id')
        self.execute('DELETE FROM "test.late_send"')
        return [publish(pickle.loads(request)) for _, request in held]


def unreachable(action: str) -> TargetBusy:
    """The error of a target that does not answer."""
    return TargetBusy("dpone.target.io", f"The SQLite target did not answer while {action}.")


def lie(rows: list[list[Any]], kind: str) -> list[list[Any]]:
    """What a lying writer writes instead of these rows, given as SQLite keeps them.

    ``swap_columns`` needs two columns of one type: it exchanges the first two values.
    """
    if kind == "drop_row":
        return rows[:-1]
    if kind == "double_row":
        return [*rows, rows[0]]
    changed = [list(row) for row in rows]
    if kind == "change_cell":
        changed[0][0] = changed[0][0] + 1
    elif kind == "swap_columns":
        for row in changed:
            row[0], row[1] = row[1], row[0]
    else:
        raise ValueError(f"no lie is called {kind}")
    return changed


def random_object_id() -> int:
    """An object id that was never used."""
    return secrets.randbits(62) + 1


def is_constraint(error: sqlite3.Error) -> bool:
    """Whether SQLite refused the content."""
    return isinstance(error, sqlite3.IntegrityError)
