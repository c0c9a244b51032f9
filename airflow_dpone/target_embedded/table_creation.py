"""A target table that a delivery makes: what it would be, what stands against it, and making it."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import Problem
from airflow_dpone.target_embedded import catalog, storage
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.session import Session
from airflow_dpone.wire.sql_type import SqlType


def describe(session: Session, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> tr.NewTable:
    """The columns, everything that stands against them, and the statements. Without columns: of the place."""
    problems = []
    if catalog.is_ours(schema):
        text = f"schema {schema} belongs to this product; choose another one"
        problems.append(Problem("dpone.target.not_a_table", f"{schema}.{table}", text))
    elif catalog.stored_schema(session, schema) is None:
        text = f"there is no such schema; run: CREATE SCHEMA {sql.quoted(schema)};"
        problems.append(Problem("dpone.target.schema_missing", schema, text))
    text = ";\n".join(_statements(schema, table, columns)) + ";" if columns else ""
    return tr.NewTable(tr.TargetTable(tuple(columns), tuple(problems)), text)


def create(session: Session, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> bool:
    """Makes the table inside the caller's transaction; False when something of that name is there."""
    if catalog.is_there(session, schema, table):
        return False
    for statement in _statements(schema, table, columns):
        session.execute(statement)
    return True


def _statements(schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> list[str]:
    """The table, and a comment where DuckDB's type alone would mean another T-SQL type."""
    path = sql.qualified(schema, table)
    types = [SqlType.parse(c.type) for c in columns]
    stored = [(c.name, storage.stored_as(kind), c.nullable) for c, kind in zip(columns, types, strict=True)]
    comments = [
        sql.comment_on_column(path, c.name, str(kind))
        for c, kind, (_, holder, _) in zip(columns, types, stored, strict=True)
        if storage.default_type(holder) != str(kind)
    ]
    return [sql.create_table(path, stored), *comments]
