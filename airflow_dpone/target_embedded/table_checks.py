"""Asks DuckDB the quality checks of a prepared table.

Texts, bytes and UUIDs are compared byte by byte here, whatever they look like; that is what a key means on
every target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded import storage
from airflow_dpone.target_embedded.session import Session
from airflow_dpone.wire.types import WireLayout


def count(session: Session, path: str, layout: WireLayout, checks: Iterable[TableCheck]) -> list[int]:
    """Rows that break each check, in order, inside the caller's transaction."""
    kinds = {name: kind for name, kind, _ in storage.stage_columns(layout)}
    return [session.number(*statement(path, kinds, check)) for check in checks]


def statement(
    path: str, kinds: Mapping[str, str], check: TableCheck
) -> tuple[str, Mapping[str, object] | None]:
    """The SQL of one check and its parameters. :param kinds: DuckDB types of the columns."""
    column = check.columns[0]
    if check.kind == "not_null":
        return sql.count_null_rows(path, column), None
    if check.kind == "unique":
        return sql.count_repeated_keys(path, check.columns), None
    text = sql.count_beyond(path, column, kinds[column], below=check.kind == "min")
    return text, {"threshold": check.threshold}
