"""Everything that stands against delivering into a table, found at once and before anything is written."""

from __future__ import annotations

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.target_sqlserver import catalog
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.session import Session


def describe(session: Session, table: catalog.StoredTable, schemas: sql.Schemas) -> tr.TargetTable:
    """Columns with their types, and what is refused."""
    columns = catalog.columns_of(session, table.object_id)
    return tr.TargetTable(catalog.described(columns), ())
