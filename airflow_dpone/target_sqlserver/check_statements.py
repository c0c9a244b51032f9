"""The T-SQL of the quality checks: each is one SELECT of one number, over one staging table.

Keys are compared as hashes of their native row bytes: no collation, no trailing blank and no trailing zero
byte makes two keys one. A threshold is a ``?`` and becomes a value of exactly the column's type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.target_sqlserver import digest_statements
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.quoting import quoted
from airflow_dpone.wire.types import WireLayout


def count(path: str, layout: WireLayout, check: TableCheck) -> str:
    """How many rows break a check; 0 for an empty table. Its threshold, if it has one."""
    column = quoted(check.columns[0])
    if check.kind == "not_null":
        return f"SELECT COUNT_BIG(*) FROM {path} WHERE {column} IS NULL;"
    if check.kind == "unique":
        return repeated_keys(path, layout, check.columns)
    sign = "<" if check.kind == "min" else ">"
    kind = _kinds(layout)[check.columns[0]]
    return f"SELECT COUNT_BIG(*) FROM {path} WHERE {column} {sign} {value(kind)};"


def repeated_keys(path: str, layout: WireLayout, columns: Iterable[str]) -> str:
    """Counts the rows that repeat the key of another row; a row with a NULL in its key is not asked."""
    by_name = {column.name: column for column in layout.columns}
    key = WireLayout(tuple(by_name[name] for name in columns))
    some = " AND ".join(f"s.{quoted(column.name)} IS NOT NULL" for column in key.columns)
    return (
        f"SELECT COUNT_BIG(*) - COUNT_BIG(DISTINCT k.h) FROM (SELECT {digest_statements.row_hash(key)} AS h\n"
        f"  FROM {path} AS s WHERE {some}) AS k;"
    )


def value(kind: str) -> str:
    """A parameter as a value of a column's type, from its text."""
    return sql.bound(kind) if kind.startswith("date") else f"CAST(? AS {kind})"


def _kinds(layout: WireLayout) -> Mapping[str, str]:
    return {column.name: str(column.pair.sql_type) for column in layout.columns}
