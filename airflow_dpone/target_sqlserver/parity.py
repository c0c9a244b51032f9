"""Whether this server makes the same bytes of a row as we do: asked before anything depends on it.

A few rows of every type are put into a temporary table as literals, and hashed there by the very expressions
that prove a delivery. The expected sum comes from the reference encoder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from uuid import UUID

from airflow_dpone.errors import Problem
from airflow_dpone.target_sqlserver import digest_statements, preflight_statements
from airflow_dpone.target_sqlserver.quoting import quoted
from airflow_dpone.target_sqlserver.session import Session
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.reference_rows import encode_row
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve

_TABLE = "#dpone_parity"

# T-SQL type, the source type that feeds it, a literal, and the value that it means.
_CELLS: tuple[tuple[str, str, str, object], ...] = (
    ("bigint", "Int64", "-2", -2),
    ("int", "Int32", "258", 258),
    ("smallint", "Int16", "-32768", -32768),
    ("tinyint", "UInt8", "200", 200),
    ("bit", "Bool", "1", True),
    ("real", "Float32", "1.5", 1.5),
    ("float(53)", "Float64", "-1.5", -1.5),
    ("decimal(10,4)", "Decimal(10, 4)", "0.0126", Decimal("0.0126")),
    (
        "decimal(38,10)",
        "Decimal(38, 10)",
        "-9999999999999999999999999999.9999999999",
        Decimal("-9999999999999999999999999999.9999999999"),
    ),
    ("date", "Date32", "CONVERT(date, '2024-02-29', 23)", date(2024, 2, 29)),
    (
        "datetime2(3)",
        "DateTime64(3)",
        "CONVERT(datetime2(3), '2024-02-29T23:59:59.123', 126)",
        datetime(2024, 2, 29, 23, 59, 59, 123_000),
    ),
    (
        "datetime2(6)",
        "DateTime64(6)",
        "CONVERT(datetime2(6), '1900-01-01T00:00:00.000001', 126)",
        datetime(1900, 1, 1, 0, 0, 0, 1),
    ),
    ("nvarchar(20)", "String", "N'a '", "a "),
    ("nvarchar(max)", "String", "N'ключ 😀'", "ключ 😀"),
    ("nvarchar(4000)", "String", "REPLICATE(N'ж', 4000)", "ж" * 4000),
    ("binary(3)", "FixedString(3)", "0x610000", b"a\0\0"),
    ("varbinary(9)", "FixedString(2)", "0x0102", b"\1\2"),
    ("varbinary(max)", "FixedString(1)", "0xFF", b"\xff"),
    (
        "uniqueidentifier",
        "UUID",
        "CAST('00112233-4455-6677-8899-AABBCCDDEEFF' AS uniqueidentifier)",
        UUID("00112233-4455-6677-8899-aabbccddeeff"),
    ),
)


def parity_problems(session: Session, database: str) -> list[Problem]:
    """Empty when the server's hashes are ours."""
    layout, expected = golden()
    row = session.row(statement(layout))
    if row is not None and DigestSum.from_target_row(row, expected.rows) == expected:
        return []
    text = "this server makes other bytes of a row than SQL Server is documented to make"
    return [Problem("dpone.target.parity", f"database {database}", text)]


@lru_cache(maxsize=1)
def golden() -> tuple[WireLayout, DigestSum]:
    """The layout, every type NOT NULL and then NULL-able, and the sum of its two rows."""
    columns, first, second = [], [], []
    for nullable in (False, True):
        for i, (target, source, _, value) in enumerate(_CELLS):
            name = f"{'n' if nullable else 'v'}{i}"
            text = f"Nullable({source})" if nullable else source
            pair = resolve(name, text, target, nullable)
            if not isinstance(pair, TypePair):
                raise TypeError(f"{target} is not in the matrix: {pair}")
            columns.append(WireColumn(name, pair))
            first.append(value)
            second.append(None if nullable else value)
    layout = WireLayout(tuple(columns))
    hashes = [hashlib.sha256(encode_row(tuple(row), layout)).digest() for row in (first, second)]
    return layout, DigestSum.of_hash_iter(hashes)


def statement(layout: WireLayout) -> str:
    """Makes the temporary table, fills it, hashes it and drops it, in one batch."""
    literals: Mapping[str, str] = {
        f"{side}{i}": literal for side in "vn" for i, (_, _, literal, _) in enumerate(_CELLS)
    }
    body = ", ".join(
        f"{quoted(c.name)} {c.pair.sql_type} {'NULL' if c.pair.target_nullable else 'NOT NULL'}"
        for c in layout.columns
    )
    names = [column.name for column in layout.columns]
    rows = (
        ", ".join(literals[name] for name in names),
        ", ".join("NULL" if name[0] == "n" else literals[name] for name in names),
    )
    return preflight_statements.parity(_TABLE, body, rows, digest_statements.observe(_TABLE, layout, 2))
