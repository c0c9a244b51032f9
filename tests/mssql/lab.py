"""The lab of the target's contract on SQL Server: one database, emptied before each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import groupby, islice, zip_longest
from typing import Any

import pyarrow as pa

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import SourceDataError
from airflow_dpone.target_sqlserver import error_map, stages
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.quoting import qualified, quoted
from airflow_dpone.target_sqlserver.session import Session
from airflow_dpone.target_sqlserver.target import SqlServerTarget
from airflow_dpone.wire.types import WireLayout
from tests.contract.target_cases import SCHEMA, Column, Row, sorted_rows
from tests.mssql import server, standin
from tests.mssql.server import OwnDatabase

ROWS_AT_ONCE = 40


class LabTarget(SqlServerTarget):
    """The adapter with what the contract needs around it.

    ``identify(initialise=True)`` stands for an administrator who ran ``target init`` before.
    ``write`` is a plain writer of these tests: one transaction in a session of its own, with the grant's
    lock.
    """

    backend = "tds"
    proof_capability = "plain-inserts-of-the-tests"
    chunk_format = "arrow_ipc"

    def identify(
        self, schema: str, table: str, *, initialise: bool, may_be_missing: bool = False
    ) -> tr.TargetIdentity:
        if initialise:
            self.initialise()
        return super().identify(schema, table, initialise=initialise, may_be_missing=may_be_missing)

    def versions(self) -> Mapping[str, str]:
        return {"tests": "1"}

    def write(
        self,
        stage: tr.StageRef,
        layout: WireLayout,
        batches: Iterator[pa.RecordBatch],
        *,
        token_sha256: str,
        deadline: Deadline,
    ) -> tr.WriterObservation:
        if deadline.remaining_sec() <= 0:
            return tr.WriterObservation("timeout", None)
        kinds = {c.name: str(c.pair.sql_type) for c in layout.columns}
        with error_map.mapped("writing a staging table"):
            session = Session.open(self.where)
            try:
                with session.transaction():
                    session.lock(sql.stage_lock(token_sha256), 10_000)
                    mark = stages.require(session, stage, self.schemas).mark
                    if not mark.is_granted_to(token_sha256):
                        return tr.WriterObservation("custody_lost", None)
                    rows = [row for batch in batches for row in _rows_of(batch, layout)]
                    _insert(session.execute, self.schemas.stage_path(stage.name), kinds, rows)
                return tr.WriterObservation("success", len(rows), 0.0)
            finally:
                session.close()


def _rows_of(batch: pa.RecordBatch, layout: WireLayout) -> list[Row]:
    if not batch.schema.equals(layout.arrow_schema, check_metadata=False):
        raise SourceDataError("dpone.wire.layout", "A batch of another layout.")
    return list(zip(*[column.to_pylist() for column in batch.columns], strict=True))


def _insert(execute: Any, path: str, kinds: Mapping[str, str], rows: Iterable[Row]) -> None:
    """Values as parameters in exactly the column's type; NULL in the text: a driver asks the server what type
    an absent value has, which not every server answers."""
    for width, alike in groupby(rows, key=len):
        names = ", ".join(quoted(name) for name in list(kinds)[:width])
        columns = f" ({names})" if width <= len(kinds) else ""
        while some := list(islice(alike, ROWS_AT_ONCE)):
            cells = [
                [_cell(value, kind) for value, kind in zip_longest(row, list(kinds.values())[:width])]
                for row in some
            ]
            texts = ", ".join(f"({', '.join(text for text, _ in row)})" for row in cells)
            values = [value for row in cells for text, value in row if text != "NULL"]
            execute(f"INSERT INTO {path}{columns} VALUES {texts};", *values)


def _cell(value: object, kind: str | None) -> tuple[str, object]:
    if value is None:
        return "NULL", None
    if kind is None:
        return "?", value
    if isinstance(value, datetime):
        return f"CONVERT({kind}, ?, 126)", value.isoformat(timespec="microseconds")
    if isinstance(value, date):
        return f"CONVERT({kind}, ?, 23)", value.isoformat()
    if kind == "uniqueidentifier":
        raw = value if isinstance(value, bytes) else getattr(value, "bytes", b"")
        return "CAST(? AS uniqueidentifier)", str(uuid.UUID(bytes=raw))
    return f"CAST(? AS {kind})", value


class MssqlLab:
    """A database without a table in it."""

    def __init__(self, database: OwnDatabase) -> None:
        self.where, self.is_standin = database.where, database.is_standin
        self._database = database
        self._kinds: dict[str, dict[str, str]] = {}
        self._connection = database.connection()
        self._empty()

    def connect_again(self) -> None:
        """After the server has died: every session is another one."""
        standin.close_all()
        self._connection = self._database.connection()

    def run(self, text: str, *parameters: object) -> list[Row]:
        cursor = self._connection.cursor()
        cursor.execute(text, *parameters)
        rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
        cursor.close()
        return rows

    def second_connection(self) -> Any:
        """Another session past the product; the caller closes it."""
        return server.connect(self.where)

    def _empty(self) -> None:
        """Tables of tests go, our own three lose their rows: without an identity a database is as new."""
        found = self.run(
            "SELECT s.name, o.name, RTRIM(o.type) FROM sys.objects AS o INNER JOIN sys.schemas AS s "
            "ON s.schema_id = o.schema_id WHERE o.type IN ('U', 'V') "
            "AND s.name IN (N'shop', N'dpone', N'dpone_stage') ORDER BY o.type DESC, o.object_id DESC"
        )
        for schema, name, kind in found:
            path = qualified(schema, name)
            if schema == "dpone":
                self.run(f"DELETE FROM {path}")
            else:
                self.run(f"DROP {'VIEW' if kind == 'V' else 'TABLE'} {path}")
        if self.run("SELECT SCHEMA_ID(?)", SCHEMA)[0][0] is None:
            self.run(f"CREATE SCHEMA [{SCHEMA}]")

    # ---- the lab of the contract ----

    def open(self) -> LabTarget:
        return LabTarget(self.where, lock_wait_sec=20, settle_sec=20)

    def create_table(self, table: str, columns: Sequence[Column], extra: str = "") -> None:
        parts = [f"{quoted(c.name)} {c.type} {'NULL' if c.nullable else 'NOT NULL'}" for c in columns]
        self.run(f"CREATE TABLE {self._path(table)} ({', '.join([*parts, *([extra] if extra else [])])})")
        self._kinds[table] = {c.name: c.type for c in columns}

    def drop_table(self, table: str) -> None:
        self.run(f"DROP TABLE {self._path(table)}")

    def add_column(self, table: str, name: str) -> None:
        self.run(f"ALTER TABLE {self._path(table)} ADD {quoted(name)} int NULL")

    def create_view(self, view: str, table: str) -> None:
        self.run(f"CREATE VIEW {self._path(view)} AS SELECT * FROM {self._path(table)}")

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        _insert(self.run, self._path(table), self._kinds[table], rows)

    def rows(self, table: str) -> list[Row]:
        cursor = self._connection.cursor()
        cursor.execute(f"SELECT * FROM {self._path(table)}")
        found = [tuple(uuid.UUID(v) if _is_uuid(v) else v for v in row) for row in cursor.fetchall()]
        cursor.close()
        return sorted_rows(found)

    def stage_names(self) -> list[str]:
        text = (
            "SELECT t.name FROM sys.tables AS t INNER JOIN sys.schemas AS s ON s.schema_id = t.schema_id "
            "WHERE s.name = N'dpone_stage' ORDER BY t.name"
        )
        return [name for (name,) in self.run(text)]

    def create_foreign_stage(self, name: str) -> None:
        self.run(f"CREATE TABLE [dpone_stage].{quoted(name)} (id bigint)")

    def change_stage(self, name: str, column: str, value: object, where_id: int) -> None:
        kinds = {"id": "bigint", "name": "nvarchar(4000)", "amount": "decimal(18,2)", "ts": "datetime2(3)"}
        text, parameter = _cell(value, kinds[column])
        parameters = [] if parameter is None else [parameter]
        path = f"[dpone_stage].{quoted(name)}"
        self.run(f"UPDATE {path} SET {quoted(column)} = {text} WHERE id = ?", *parameters, where_id)

    def add_to_stage(self, name: str, row: Row) -> None:
        _insert(self.run, f"[dpone_stage].{quoted(name)}", self._kinds["orders"], [row])

    def delete_from_stage(self, name: str, where_id: int) -> None:
        self.run(f"DELETE FROM [dpone_stage].{quoted(name)} WHERE id = ?", where_id)

    def drop_stage(self, name: str) -> None:
        self.run(f"DROP TABLE [dpone_stage].{quoted(name)}")

    def forget_receipts(self) -> None:
        self.run("DELETE FROM [dpone].[delivery_receipt]")

    def count_receipts(self) -> int:
        return int(self.run("SELECT COUNT(*) FROM [dpone].[delivery_receipt]")[0][0])

    def forget_gate(self) -> None:
        self.run("DELETE FROM [dpone].[target_gate]")

    def set_in_flight(self, operation_id: str) -> None:
        self.run("UPDATE [dpone].[target_gate] SET in_flight_operation_id = ?", bytes.fromhex(operation_id))

    def _path(self, table: str) -> str:
        return qualified(SCHEMA, table)


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and len(value) == 36 and value.count("-") == 4
