"""What the pages show to be copied: fenced blocks, so that tests run them as they stand."""

from __future__ import annotations

import re
from pathlib import Path

from airflow_dpone.delivery import records as r
from airflow_dpone.settings import Route

ROOT = Path(__file__).resolve().parent.parent
SOURCE = r.SourceTable(
    "shop",
    "orders",
    "",
    "MergeTree",
    tuple(
        r.SourceColumn(*column)
        for column in (
            ("order_id", "Int64"),
            ("customer", "Nullable(String)"),
            ("amount", "Decimal(18, 2)"),
            ("ordered_at", "DateTime64(3)"),
        )
    ),
    {},
)
"""The table of ClickHouse that README and docs/sql-server.md tell of."""
ROUTE = Route(
    source="chdb:///shop",
    source_table=("shop", "orders"),
    target="duckdb:///warehouse",
    target_table=("sales", "orders"),
    window_column="ordered_at",
)


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def block_with(page: str, language: str, word: str) -> str:
    """The only block that holds a word."""
    (found,) = [block for block in blocks(page, language) if word in block]
    return found
