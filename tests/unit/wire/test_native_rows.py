"""The columnar encoder: equal to the reference on everything, and its own buffers and errors."""

from __future__ import annotations

import hashlib
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_dpone.errors import SourceDataError
from airflow_dpone.wire.native_rows import cell_lengths, encode_rows
from airflow_dpone.wire.reference_rows import encode_cell, encode_row
from airflow_dpone.wire.types import WireLayout
from tests.unit.wire.batches import PAIRS, layout, layouts_with_rows, sliced, target_batch, values_of


@settings(max_examples=150)
@given(layouts_with_rows(), st.integers(0, 3), st.integers(0, 3))
def test_equals_the_reference(case: tuple[WireLayout, list[list[Any]]], before: int, after: int) -> None:
    of, rows = case
    expected = [encode_row(row, of) for row in rows]
    encoded = encode_rows(sliced(target_batch(rows, of), before, after), of)
    assert [encoded.row(i) for i in range(len(encoded))] == expected
    assert bytes(encoded.data) == b"".join(expected)
    assert encoded.lengths.tolist() == [len(row) for row in expected]
    assert [h.tobytes() for h in encoded.hashes()] == [hashlib.sha256(row).digest() for row in expected]


@settings(max_examples=60)
@given(layouts_with_rows(), st.data())
def test_chunked_columns_equal_the_reference_however_they_are_cut(
    case: tuple[WireLayout, list[list[Any]]], data: st.DataObject
) -> None:
    """Columns of a table may be chunked at different rows; the batches are views with offsets."""
    of, rows = case
    whole = target_batch(rows, of)
    columns = []
    for column in whole.columns:
        cut = data.draw(st.integers(0, len(rows)))
        columns.append(pa.chunked_array([column.slice(0, cut), column.slice(cut)], type=column.type))
    table = pa.Table.from_arrays(columns, schema=whole.schema)
    encoded = [encode_rows(batch, of) for batch in table.to_batches()]
    assert [one.row(i) for one in encoded for i in range(len(one))] == [encode_row(row, of) for row in rows]


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_pair_equals_the_reference(source: str, target: str, nullable: bool) -> None:
    """B01: a text behind the cell would show a shifted stream."""
    of = layout((source, target, nullable), ("String", "nvarchar(40)", True))
    column = of.columns[0].pair

    @settings(max_examples=12)
    @given(st.lists(values_of(source), min_size=1, max_size=20))
    def check(values: list[Any]) -> None:
        encoded = encode_rows(target_batch([[value, "x"] for value in values], of), of)
        tail = bytes.fromhex("02007800")
        assert [encoded.row(i) for i in range(len(values))] == [
            encode_cell(value, column.sql_type, nullable) + tail for value in values
        ]

    check()


def test_the_four_nullability_pairs_of_datetime2() -> None:
    """B01: the prefix follows the target's nullability, whatever the source's is."""
    moment, payload = datetime(1900, 1, 1, 0, 0, 0, 999999), "76969800005b950a"
    for source, nullable, prefix in (
        ("DateTime64(6)", False, ""),
        ("DateTime64(6)", True, "08"),
        ("Nullable(DateTime64(6))", True, "08"),
    ):
        of = layout((source, "datetime2(6)", nullable), ("String", "nvarchar(20)", False))
        assert (
            encode_rows(target_batch([[moment, "a"]], of), of).row(0).hex() == prefix + payload + "02006100"
        )


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_a_moment_before_1970_belongs_to_the_day_that_began_before_it(unit: str) -> None:
    """B07: floor, not truncation, at every unit and on both sides of midnight."""
    scale, per_second = {"s": (0, 1), "ms": (3, 10**3), "us": (6, 10**6)}[unit]
    of = layout((f"DateTime64({scale})", f"datetime2({scale})", False))
    ticks = [-1, 0, 1, -86_400 * per_second, -86_400 * per_second - 1, 86_400 * per_second - 1]
    array = pa.array(ticks, type=pa.timestamp(unit))
    encoded = encode_rows(pa.RecordBatch.from_arrays([array], schema=of.arrow_schema), of)
    for i, tick in enumerate(ticks):
        row = encoded.row(i)
        day, of_day = int.from_bytes(row[5:], "little"), int.from_bytes(row[:5], "little")
        assert (day - 719_162) * 86_400 * 10**7 + of_day == tick * (10**7 // per_second)
        assert 0 <= of_day < 86_400 * 10**7


def test_what_stands_under_a_null_does_not_count() -> None:
    """A null slot of a text column may own bytes; they are not part of any row."""
    of = layout(("String", "nvarchar(max)", True), ("Int32", "int", True))
    texts = pa.Array.from_buffers(
        pa.large_string(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.py_buffer(np.array([0, 1, 4, 6], dtype=np.int64)),
            pa.py_buffer("axyzБ".encode()),
        ],
    )
    numbers = pa.Array.from_buffers(
        pa.int32(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([1, 777, 2], dtype=np.int32))]
    )
    encoded = encode_rows(pa.RecordBatch.from_arrays([texts, numbers], schema=of.arrow_schema), of)
    assert encoded.row(0).hex() == "0200000000000000" + "6100" + "0401000000"
    assert encoded.row(1).hex() == "ff" * 8 + "ff"
    assert encoded.row(2).hex() == "0200000000000000" + "1104" + "0402000000"


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_no_rows_and_few_rows(rows: int) -> None:
    of = layout(*[(source, target, True) for source, target in PAIRS])
    encoded = encode_rows(target_batch([[None] * len(PAIRS)] * rows, of), of)
    assert len(encoded) == rows
    assert encoded.offsets.tolist()[0] == 0
    assert encoded.hashes().shape == (rows, 32)
    expected = encode_row([None] * len(PAIRS), of)
    assert bytes(encoded.data) == expected * rows


def test_a_layout_without_columns_and_with_one() -> None:
    assert len(encode_rows(pa.RecordBatch.from_arrays([], schema=layout().arrow_schema), layout())) == 0
    of = layout(("String", "nvarchar(max)", False))
    assert bytes(encode_rows(target_batch([["é"]], of), of).data).hex() == "0200000000000000e900"


def test_guid_bytes_are_mixed_endian() -> None:
    """B35, with an asymmetric value; a symmetric one would prove nothing."""
    of = layout(("UUID", "uniqueidentifier", False))
    guid = UUID("9c0c9eed-feac-474e-9ad7-c5b9280424d1")
    assert encode_rows(target_batch([[guid]], of), of).row(0).hex() == "10ed9e0c9cacfe4e479ad7c5b9280424d1"


def test_columns_wider_than_a_processor_vector_stay_apart() -> None:
    """Many columns, so that fixed and varying parts alternate in all ways, with NULLs in some."""
    kinds = [("Int64", "bigint"), ("Nullable(Float64)", "float"), ("Nullable(String)", "nvarchar(50)")]
    of = layout(*[(*kinds[i % 3], i % 3 > 0) for i in range(100)])
    rows = [
        [None if (i + j) % 7 == 0 and i % 3 else (j, float(i), f"é{i}")[i % 3] for i in range(100)]
        for j in range(50)
    ]
    encoded = encode_rows(target_batch(rows, of), of)
    assert [encoded.row(i) for i in range(50)] == [encode_row(row, of) for row in rows]


def test_offsets_are_the_sums_of_lengths() -> None:
    of = layout(("Nullable(String)", "nvarchar(max)", True))
    encoded = encode_rows(target_batch([["ab"], [None], [""], ["😀"]], of), of)
    assert encoded.lengths.tolist() == [12, 8, 8, 12]
    assert [b - a for a, b in pairwise(encoded.offsets.tolist())] == [12, 8, 8, 12]
    assert encoded.data.size == 40


def test_cell_lengths_name_the_widest_column() -> None:
    of = layout(
        ("Int64", "bigint", False),
        ("Nullable(String)", "nvarchar(max)", True),
        ("String", "nvarchar(40)", False),
        ("Decimal(9, 2)", "decimal(9,2)", True),
    )
    batch = target_batch([[1, None, "", Decimal("1.00")], [2, "😀" * 100, "ab", Decimal("2.00")]], of)
    assert cell_lengths(batch, of, 0) == [("k0", 8), ("k1", 8), ("k2", 2), ("k3", 20)]
    assert cell_lengths(batch, of, 1) == [("k0", 8), ("k1", 408), ("k2", 6), ("k3", 20)]
    assert sum(size for _, size in cell_lengths(batch, of, 1)) == encode_rows(batch, of).lengths[1]


def test_refuses_null_in_a_not_null_column() -> None:
    of = layout(("Int32", "int", False))
    batch = pa.RecordBatch.from_arrays([pa.array([1, None], type=pa.int32())], schema=of.arrow_schema)
    with pytest.raises(SourceDataError, match=r"'k0', row 1.*NULL in a NOT NULL") as caught:
        encode_rows(batch, of)
    assert (caught.value.code, caught.value.fields["row"]) == ("dpone.wire.value", 1)


def test_refuses_a_text_longer_than_its_type() -> None:
    """B26: a character beyond the first plane takes two units."""
    of = layout(("String", "nvarchar(4)", False))
    assert encode_rows(target_batch([["😀😀"]], of), of).row(0)[:2] == b"\x08\x00"
    with pytest.raises(SourceDataError, match="more than 4 UTF-16 units"):
        encode_rows(target_batch([["abcd"], ["😀😀a"]], of), of)


def test_refuses_a_batch_of_another_layout() -> None:
    of, other = layout(("Int32", "int", False)), layout(("Int64", "bigint", False))
    with pytest.raises(SourceDataError) as caught:
        encode_rows(target_batch([[1]], other), of)
    assert caught.value.code == "dpone.wire.layout"
