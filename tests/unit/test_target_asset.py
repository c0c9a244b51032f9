"""The asset of a target table: one URI for one table, and none that names no table."""

from __future__ import annotations

import pytest
from airflow.sdk import Asset
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.operators import target_asset

TABLE = ("sales", "orders")
NAMES = st.text(st.sampled_from("a.[]/% \u0436"), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        ("warehouse", "dpone://warehouse/sales/orders"),
        ("mssql://etl@db.example:1433/dwh?encrypt=yes", "dpone://db.example:1433/dwh/sales/orders"),
        ("duckdb:///data/warehouse.duckdb", "dpone://localhost/data/warehouse.duckdb/sales/orders"),
        ("a b/c", "dpone://a%20b%2Fc/sales/orders"),
    ],
)
def test_the_uri_names_target_and_table_and_no_user(target: str, uri: str) -> None:
    assert target_asset(target, TABLE).uri == uri


def test_two_tables_are_two_assets_by_name_too() -> None:
    assert target_asset("a", TABLE).name != target_asset("b", TABLE).name
    assert target_asset("a", TABLE) == target_asset("a", TABLE)
    assert target_asset("a", TABLE, group="dwh").group == "dwh"


@pytest.mark.parametrize(
    "uri", ["dpone://warehouse/orders", "dpone://me@warehouse/sales/orders", "dpone://w"]
)
def test_airflow_refuses_what_names_no_table(uri: str) -> None:
    with pytest.raises(ValueError, match="dpone://TARGET/SCHEMA/TABLE"):
        Asset(name="x", uri=uri)


@given(tables=st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=2, unique=True))
def test_two_tables_are_two_assets_by_name_and_by_uri(tables: list[tuple[str, str]]) -> None:
    """Airflow takes one of two assets with one name, or one URI, for inactive, and fails its task."""
    one, other = (target_asset("warehouse", table) for table in tables)
    assert one.name != other.name
    assert one.uri != other.uri


def test_a_name_is_written_as_it_is_unless_it_would_be_two_parts() -> None:
    assert target_asset("warehouse", ("sales", "order lines")).name == "sales.order lines in warehouse"
    assert target_asset("warehouse", ("sales", "a.b]")).name == "sales.[a.b]]] in warehouse"
