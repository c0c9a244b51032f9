"""What the catalog's rows mean."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.target_sqlserver.catalog import StoredColumn, created_of, described, stamp_of

INT = StoredColumn(1, "a", "int", 56, 4, 10, 0, 0, None, 0, 0, 0, 1, None, 0)


@pytest.mark.parametrize(
    ("type_name", "sizes", "text"),
    [
        ("nvarchar", (40, 0, 0), "nvarchar(20)"),
        ("nvarchar", (-1, 0, 0), "nvarchar(max)"),
        ("varbinary", (-1, 0, 0), "varbinary(max)"),
        ("binary", (3, 0, 0), "binary(3)"),
        ("numeric", (9, 18, 2), "decimal(18,2)"),
        ("datetime2", (8, 26, 6), "datetime2(6)"),
        ("float", (8, 53, 0), "float(53)"),
        ("real", (4, 24, 0), "real"),
        ("bigint", (8, 19, 0), "bigint"),
        ("varchar", (10, 0, 0), "varchar(10)"),
        ("datetime", (8, 23, 3), "datetime"),
    ],
)
def test_a_type_is_what_create_table_would_say(
    type_name: str, sizes: tuple[int, int, int], text: str
) -> None:
    length, precision, scale = sizes
    column = replace(INT, type_name=type_name, max_length=length, precision=precision, scale=scale)
    assert column.type_text == text


@pytest.mark.parametrize(
    "changes",
    [{"is_identity": 1}, {"is_computed": 1}, {"generated_always_type": 1}, {"type_name": "timestamp"}],
)
def test_a_column_that_the_server_writes_has_no_type_to_deliver_into(changes: dict[str, object]) -> None:
    column = replace(INT, **changes)  # type: ignore[arg-type]
    assert described((column,))[0].type == "computed"
    assert described((INT,))[0].type == "int"


@given(st.datetimes(min_value=datetime(1980, 1, 1)))
def test_a_creation_date_and_its_eight_bytes_are_the_same(moment: datetime) -> None:
    created = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
    stamp = stamp_of(created)
    assert created_of(stamp) == created
    assert len(bytes.fromhex(stamp)) == 8


def test_a_stamp_that_is_no_date_equals_none() -> None:
    assert created_of("f" * 16) == ""
