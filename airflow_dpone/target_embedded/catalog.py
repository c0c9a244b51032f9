"""What the file's catalog says about a target table: where it is, what it holds, which incarnation it is."""

from __future__ import annotations

import difflib
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded import storage
from airflow_dpone.target_embedded.session import Session
from airflow_dpone.wire.sql_type import SqlType

CREATED = "0" * 16
"""DuckDB keeps no creation stamp: the incarnation's UUID says it all."""

_INCARNATION = re.compile(r"dpone:incarnation=([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_OURS = (sql.CONTROL_SCHEMA, sql.STAGE_SCHEMA)


@dataclass(frozen=True)
class StoredTable:
    """A table by its names as stored, with its comment."""

    schema: str
    table: str
    comment: str | None

    @property
    def path(self) -> str:
        """For SQL."""
        return sql.qualified(self.schema, self.table)

    @property
    def object_id(self) -> int:
        """The incarnation as a positive integer; 0 when it has none yet."""
        found = _INCARNATION.search(self.comment or "")
        return positive(uuid.UUID(found[1]).bytes) if found else 0


@dataclass(frozen=True)
class StoredColumn:
    """A column as DuckDB stores it."""

    name: str
    stored: str
    nullable: bool
    comment: str | None
    is_generated: bool
    has_default: bool

    @property
    def must_be_fed(self) -> bool:
        """Whether no row can be inserted without a value for it."""
        return not (self.nullable or self.has_default or self.is_generated)


def positive(data: bytes) -> int:
    """The first 8 bytes as a positive integer of 63 bits: object ids are made this way."""
    return int.from_bytes(data[:8], "big") & (2**63 - 1) or 1


def find_table(session: Session, schema: str, table: str) -> StoredTable:
    """The table of that name; like DuckDB itself, ASCII letters match in either case.

    :raises ConfigurationError: there is none, with close names; it is a view; it is one of our own.
    """
    tables = [StoredTable(*row) for row in session.rows(sql.TABLES)]
    wanted = (_folded(schema), _folded(table))
    found = next((t for t in tables if (_folded(t.schema), _folded(t.table)) == wanted), None)
    if found is not None and not is_ours(schema):
        return found
    where = f"{schema}.{table}"
    if found is not None:
        text = f"schema {schema} belongs to this product; choose another table"
        raise ConfigurationError.of([Problem("dpone.target.not_a_table", where, text)])
    if wanted in [(_folded(s), _folded(v)) for s, v in session.rows(sql.VIEWS)]:
        text = "is a view; name the table that it reads from"
        raise ConfigurationError.of([Problem("dpone.target.not_a_table", where, text)])
    hint = "; correct the name, create it, or set options.create_target"
    text = f"there is no such table{_close_names(where, tables)}{hint}"
    raise ConfigurationError.of([Problem("dpone.target.table_missing", where, text)])


def is_there(session: Session, schema: str, table: str) -> bool:
    """Whether a table or a view has that name."""
    rows = [(s, t) for s, t, _ in session.rows(sql.TABLES)] + [(s, v) for s, v in session.rows(sql.VIEWS)]
    return (_folded(schema), _folded(table)) in [(_folded(s), _folded(t)) for s, t in rows]


def stored_schema(session: Session, schema: str) -> str | None:
    """The schema of that name as it is stored; None if there is none."""
    names = (name for (name,) in session.rows(sql.SCHEMAS))
    return next((name for name in names if _folded(name) == _folded(schema)), None)


def missing_table(session: Session, schema: str, table: str) -> StoredTable:
    """A table that is not there, by the names that it will be stored under."""
    return StoredTable(stored_schema(session, schema) or schema, table, None)


def is_ours(schema: str) -> bool:
    """Whether a schema belongs to this product."""
    return _folded(schema) in _OURS


def _close_names(where: str, tables: Iterable[StoredTable]) -> str:
    names = [f"{t.schema}.{t.table}" for t in tables if t.schema not in _OURS]
    near = difflib.get_close_matches(where, names, n=3)
    return f"; close names: {', '.join(near)}" if near else ""


def _folded(name: str) -> str:
    """DuckDB compares names without regard to the case of ASCII letters, and of no others."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


def is_same_incarnation(session: Session, target: tr.TargetRef) -> bool:
    """Whether the table of that name is still the one that the plan means, column for column."""
    row = session.row(sql.TABLE_COMMENT, {"schema": target.schema, "table": target.table})
    if row is None or target.created != CREATED:
        return False
    found = StoredTable(target.schema, target.table, row[0])
    return found.object_id == target.object_id and describe(session, found).fingerprint == target.fingerprint


def give_incarnation(session: Session, table: StoredTable) -> StoredTable:
    """Marks a table that has no mark yet; the user's own comment stays in front of it."""
    if table.object_id:
        return table
    mark = f"dpone:incarnation={uuid.uuid4()}"
    comment = f"{table.comment}\n{mark}" if table.comment else mark
    session.execute(sql.comment_on_table(table.path, comment))
    return StoredTable(table.schema, table.table, comment)


def columns_of(session: Session, schema: str, table: str) -> tuple[StoredColumn, ...]:
    """The columns in order."""
    rows = session.rows(sql.COLUMNS, {"schema": schema, "table": table})
    return tuple(
        StoredColumn(name, stored, bool(nullable), comment, bool(generated), bool(default))
        for name, stored, nullable, comment, generated, default in rows
    )


def describe(session: Session, table: StoredTable) -> tr.TargetTable:
    """Columns with their T-SQL types. A type that is not delivered keeps its own name; mapping refuses it."""
    found = columns_of(session, table.schema, table.table)
    problems = [problem for column in found for problem in _column_problems(column)]
    columns = tuple(tr.TargetColumn(c.name, type_of(c), c.nullable) for c in found)
    must_be_fed = tuple(c.name for c in found if c.must_be_fed)
    return tr.TargetTable(columns, (*problems, *_reference_problems(session, table)), must_be_fed=must_be_fed)


def type_of(column: StoredColumn) -> str:
    """The T-SQL type text of a column: its comment's, else the default of its storage type."""
    if column.is_generated:
        return "computed"
    sql_type = storage.type_in_comment(column.comment)
    return str(sql_type) if sql_type else storage.default_type(column.stored)


def _column_problems(column: StoredColumn) -> list[Problem]:
    if column.is_generated:
        text = "is a generated column, which is never written; name it in options.unmapped_columns"
        return [Problem("dpone.target.generated_column", column.name, text)]
    sql_type = storage.type_in_comment(column.comment)
    if sql_type is None:
        misread = storage.misread_comment(column.comment)
        return (
            [Problem("dpone.target.comment_type", column.name, f"in its comment, {misread}")]
            if misread
            else []
        )
    if storage.holds(column.stored, sql_type):
        return []
    return [Problem("dpone.target.comment_type", column.name, _misfit(column.stored, sql_type))]


def _misfit(stored: str, sql_type: SqlType) -> str:
    return (
        f"the comment says {sql_type}, the column is stored as {stored}, which does not hold it exactly; use "
        f"{storage.stored_as(sql_type)}" + (" and datetime2(6)" if sql_type.scale == 7 else "")
    )


def _reference_problems(session: Session, table: StoredTable) -> list[Problem]:
    rows = session.rows(sql.REFERENCING, {"schema": table.schema, "table": table.table})
    text = "references this table with a foreign key: deleting a window would break it; drop the foreign key"
    where = f"{table.schema}.{table.table}"
    return [Problem("dpone.target.referenced", where, f"table {name} {text}") for (name,) in rows]
