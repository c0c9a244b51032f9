"""The examples of the pages are what they say: code compiles, tables take what the routes bring."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from airflow_dpone.delivery.column_map import map_columns
from airflow_dpone.target_embedded.target import EmbeddedTarget
from tests.docs_examples import ROUTE, SOURCE, block_with, blocks

PAGES = ("README.md", "docs/sql-server.md")


@pytest.mark.parametrize("page", PAGES)
def test_python_of_a_page_compiles(page: str) -> None:
    found = blocks(page, "python")
    assert found
    for number, text in enumerate(found):
        compile(text, f"{page}, block {number}", "exec")


def test_the_table_of_the_readme_takes_the_columns_that_it_tells_of(tmp_path: Path) -> None:
    path = tmp_path / "warehouse.duckdb"
    with duckdb.connect(str(path)) as connection:
        (statements,) = re.findall(
            r'"""\n(CREATE SCHEMA .*?)"""', block_with("README.md", "python", "CREATE SCHEMA"), re.DOTALL
        )
        connection.execute(statements)
    with EmbeddedTarget(str(path)) as target:
        mapping = map_columns(ROUTE, SOURCE, target.describe("sales", "orders"))
    assert mapping.problems == ()
    assert len(mapping.columns) == len(SOURCE.columns)
