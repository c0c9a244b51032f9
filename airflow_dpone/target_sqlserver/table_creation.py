"""A target table that a delivery makes: what it would be, what stands against it, and making it."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import Problem
from airflow_dpone.target_sqlserver import gate, headroom, installation, preflight
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.quoting import MAX_NAME, qualified
from airflow_dpone.target_sqlserver.session import Session


def describe(
    session: Session, schema: str, table: str, columns: Sequence[tr.TargetColumn], schemas: sql.Schemas
) -> tr.NewTable:
    """The columns, everything that stands against them, and the statement. Without columns: of the place."""
    unfit = _name_problems(schema, table, columns, schemas)
    if not _is_name(schema) or _is_ours(schema, schemas):  # whatever else there is will not be of that schema
        return tr.NewTable(tr.TargetTable(tuple(columns), tuple(unfit)), "")
    problems = preflight.new_table_problems(session, schema, columns, schemas)
    seen = headroom.observe(session, None)
    made = tr.TargetTable(tuple(columns), (*unfit, *problems), (), seen)
    if unfit or not columns:
        return tr.NewTable(made, "")
    statement = sql.create_table(qualified(schema, table), [(c.name, c.type, c.nullable) for c in columns])
    return tr.NewTable(made, statement)


def create(
    session: Session,
    schema: str,
    table: str,
    columns: Sequence[tr.TargetColumn],
    schemas: sql.Schemas,
    lock_ms: int,
) -> bool:
    """Makes the table inside the caller's transaction, under the lock of the target that it will be; False
    when something of that name is there."""
    installed = installation.require_installation(session, schemas)
    gate.enter(session, identity.target_key(installed, schema, table), lock_ms)
    path = qualified(schema, table)
    if session.row(sql.OBJECT, path) is not None:
        return False
    session.execute(sql.create_table(path, [(c.name, c.type, c.nullable) for c in columns]))
    return True


def _is_name(text: str) -> bool:
    """Whether something can have this name."""
    return bool(text) and "\0" not in text and len(text.encode("utf-16-le")) <= 2 * MAX_NAME


def _is_ours(schema: str, schemas: sql.Schemas) -> bool:
    return schema.lower() in (schemas.control.lower(), schemas.stage.lower())


def _name_problems(
    schema: str, table: str, columns: Sequence[tr.TargetColumn], schemas: sql.Schemas
) -> list[Problem]:
    found = []
    for name in (schema, table, *(c.name for c in columns)):
        if not _is_name(name):
            text = f"is no name in SQL Server: 1 to {MAX_NAME} characters; choose another one"
            found.append(Problem("dpone.config.field", name[:MAX_NAME].replace("\0", " "), text))
    if _is_ours(schema, schemas):
        text = f"schema {schema} belongs to this product; choose another one"
        found.append(Problem("dpone.target.not_a_table", f"{schema}.{table}", text))
    return found
