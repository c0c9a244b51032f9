"""Sealed chunks of native rows: the bytes that are hashed, a format file that says what they are, and a
decoder that reads them back and names what is wrong."""

from __future__ import annotations

import hashlib
import io
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_dpone.errors import SourceDataError, SpoolError
from airflow_dpone.wire.chunk_format import new_writer, read_chunk
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.mssql_native import NativeWriter, format_file, read_native
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.reference_decoder import decode_rows
from airflow_dpone.wire.reference_rows import encode_row
from airflow_dpone.wire.sealed import MAX_BATCH_ROWS
from airflow_dpone.wire.sql_type import FRAMING
from airflow_dpone.wire.types import SqlType, WireColumn, WireLayout
from tests.unit.wire.batches import (
    PAIRS,
    layout,
    layouts_with_rows,
    python_value,
    sliced,
    source_of,
    target_batch,
)
from tests.unit.wire.test_vectors import CELLS, ROWS, has_seven_digits, is_expressible, row_layout


def native(of: WireLayout, *batches: pa.RecordBatch) -> tuple[bytes, NativeWriter]:
    sink = io.BytesIO()
    writer = NativeWriter(sink, of)
    for batch in batches:
        writer.write(batch)
    writer.close()
    return sink.getvalue(), writer


def exactly(value: Any) -> Any:
    """Equal values that are not the same value stay apart: 1 and True, 0.0 and -0.0, 1.0 and 1.00."""
    return (type(value).__name__, str(value))


@settings(max_examples=150)
@given(layouts_with_rows(), st.integers(0, 3), st.integers(0, 3))
def test_round_trip(case: tuple[WireLayout, list[list[Any]]], before: int, after: int) -> None:
    """Values and bytes come back; the reference encoder, which knows neither side, agrees on the bytes."""
    of, rows = case
    data, writer = native(of, sliced(target_batch(rows, of), before, after), target_batch(rows, of))
    assert data == b"".join(encode_row(row, of) for row in rows) * 2
    assert (writer.rows, writer.size_bytes) == (2 * len(rows), len(data))
    assert writer.sha256 == hashlib.sha256(data).hexdigest()
    decoded = list(decode_rows(data, of, rows=2 * len(rows)))
    assert [row.data for row in decoded] == [encode_row(row, of) for row in rows] * 2
    expected = [[exactly(normal(v, c)) for v, c in zip(row, of.columns, strict=True)] for row in rows] * 2
    assert [[exactly(value) for value in row.values] for row in decoded] == expected


def normal(value: Any, column: WireColumn) -> Any:
    """What a target type makes of a source's value."""
    if value is None:
        return None
    sql_type = column.pair.sql_type
    if sql_type.name == "decimal":
        sign, digits, _ = Decimal(value).as_tuple()
        return Decimal((sign if any(digits) else 0, digits, -(sql_type.scale or 0)))
    return value


@settings(max_examples=60)
@given(layouts_with_rows())
def test_both_forms_of_a_chunk_hold_the_same_rows(case: tuple[WireLayout, list[list[Any]]]) -> None:
    """The same batches sealed twice: the row hashes of what is read back are equal, so is the digest."""
    of, rows = case
    batch, sums = target_batch(rows, of), []
    for form in ("arrow_ipc", "mssql_native"):
        sink = io.BytesIO()
        writer = new_writer(form, sink, of)
        writer.write(batch)
        writer.close()
        read = list(read_chunk(form, io.BytesIO(sink.getvalue()), of, rows=len(rows)))
        assert pa.Table.from_batches(read, schema=of.arrow_schema).equals(pa.Table.from_batches([batch]))
        assert all(b.schema.equals(of.arrow_schema, check_metadata=True) for b in read)
        hashes = [DigestSum.of_hashes(encode_rows(b, of).hashes()) for b in read]
        sums.append(sum(hashes, DigestSum.zero()))
    decoded = decode_rows(b"".join(encode_row(row, of) for row in rows), of, rows=len(rows))
    sums.append(DigestSum.of_hash_iter(hashlib.sha256(row.data).digest() for row in decoded))
    assert sums[0] == sums[1] == sums[2]


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_the_rows_of_the_vectors_are_read_back(row: dict[str, Any]) -> None:
    of, values = row_layout(row)
    (decoded,) = decode_rows(bytes.fromhex(row["hex"]), of, rows=1)
    assert decoded.data.hex() == row["hex"]
    assert encode_row(decoded.values, of).hex() == row["hex"]
    assert [type(value) for value in decoded.values] == [type(value) for value in values]
    assert list(decoded.values) == values


@pytest.mark.parametrize("text", sorted({cell["type"] for cell in CELLS}))
def test_the_cells_of_the_vectors_are_read_back(text: str) -> None:
    sql_type, checked = SqlType.parse(text), 0
    for cell in CELLS:
        if cell["type"] != text or has_seven_digits(cell) or not is_expressible(cell):
            continue
        value = python_value(cell["value"], sql_type)
        source = source_of(sql_type, value, cell["nullable"])
        assert source is not None
        of = layout((source, text, cell["nullable"]))
        (decoded,) = decode_rows(bytes.fromhex(cell["hex"]), of, rows=1)
        assert decoded.values == (value,)
        assert encode_row(decoded.values, of).hex() == cell["hex"], "-0.0 is equal to 0.0, its bytes are not"
        checked += 1
    assert checked


def test_rows_are_read_in_batches_of_at_most_65536() -> None:
    of = layout(("UInt8", "tinyint", False))
    array = pa.array([i % 251 for i in range(MAX_BATCH_ROWS + 5)], type=pa.uint8())
    data, writer = native(of, pa.RecordBatch.from_arrays([array], schema=of.arrow_schema))
    read = list(read_native(data, of, rows=writer.rows))
    assert [b.num_rows for b in read] == [MAX_BATCH_ROWS, 5]
    assert pa.chunked_array([b.column(0) for b in read]).combine_chunks().equals(array)
    assert list(read_native(b"", of, rows=0)) == []


def test_another_layout_and_a_null_are_refused_when_they_are_written() -> None:
    of = layout(("Int64", "bigint", False), ("String", "nvarchar(3)", False))
    with pytest.raises(SourceDataError) as caught:
        native(
            of, target_batch([[1, "a"]], layout(("Int32", "int", False), ("String", "nvarchar(3)", False)))
        )
    assert caught.value.code == "dpone.wire.layout"
    with pytest.raises(SourceDataError) as caught:
        native(of, target_batch([[1, "abcd"]], of))
    assert (caught.value.code, caught.value.fields["column"]) == ("dpone.wire.value", "k1")
    with pytest.raises(SourceDataError):
        native(of, target_batch([], layout()))


# ---- the format file [D2] ---------------------------------------------------------------------------------


def format_lines(of: WireLayout) -> list[list[str]]:
    text = format_file(of).decode("ascii")
    assert text.endswith("\n")
    version, count, *lines = text.splitlines()
    assert (version, count) == ("13.0", str(len(lines)))
    return [line.split("\t") for line in lines]


def test_a_format_file_states_prefix_and_type_of_each_column() -> None:
    """Written by hand from the framing table."""
    of = layout(("Int64", "bigint", False), ("Int64", "bigint", True), ("Bool", "bit", False))
    assert format_file(of) == (
        b'13.0\n3\n1\tSQLBIGINT\t0\t8\t""\t1\tc1\t""\n'
        b'2\tSQLBIGINT\t1\t8\t""\t2\tc2\t""\n3\tSQLBIT\t1\t1\t""\t3\tc3\t""\n'
    )


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_line_is_what_the_bytes_are(source: str, target: str, nullable: bool) -> None:
    """The prefix that the file states is the one in front of the payload that the encoder writes."""
    of = layout((source, target, nullable), ("Int8", "smallint", False))
    (number, _, prefix, length, terminator, column, name, collation), _ = format_lines(of)
    assert (number, column, name, terminator, collation) == ("1", "1", "c1", '""', '""')
    some = {"Bool": True, "UUID": UUID(int=5), "Date": date(2024, 1, 1), "Date32": date(2024, 1, 1)}
    kind = source.split("(")[0]
    value = some.get(kind, 1.5 if kind.startswith("Float") else Decimal(0) if kind == "Decimal" else 1)
    if kind.startswith("DateTime"):
        value = datetime(2024, 1, 1)
    if kind in ("String", "Enum8"):
        value = "abc"
    if kind == "FixedString":
        value = b"abc"
    payload = len(encode_row([value, 1], of)) - int(prefix) - 2
    if of.columns[0].payload_bytes is not None:
        assert payload == int(length)
    elif of.columns[0].pair.sql_type.is_max:
        assert (prefix, length) == ("8", "0")
    else:
        assert payload <= int(length)
    assert int(prefix) in (0, 1, 2, 8)


def test_every_type_has_a_host_type() -> None:
    """With the types of the framing table, so that a new one cannot be forgotten."""
    found = {column.pair.sql_type.framing for column in layout(*[(s, t, True) for s, t in PAIRS]).columns}
    assert found == set(FRAMING.values())


@pytest.mark.parametrize("name", ["a b", "a\tb", 'a"b', "]", "имя", "c2", "a\nb", ""])
def test_a_column_name_cannot_break_the_format_file(name: str) -> None:
    """Columns are matched by number: no name of the target is in the file."""
    plain = layout(("Int64", "bigint", False), ("Int64", "bigint", True))
    renamed = WireLayout((WireColumn(name, plain.columns[0].pair), plain.columns[1]))
    assert format_file(renamed) == format_file(plain)


# ---- damage -----------------------------------------------------------------------------------------------

OF = layout(
    ("Int64", "bigint", False), ("Nullable(String)", "nvarchar(20)", True), ("UUID", "uniqueidentifier", True)
)
SOME = [[1, "ab", UUID(int=7)], [2, None, None], [3, "", UUID(int=9)]]


def damage(data: bytes, of: WireLayout = OF, rows: int = 3) -> SpoolError:
    with pytest.raises(SpoolError) as caught:
        list(decode_rows(data, of, rows=rows))
    assert caught.value.code == "dpone.spool.damaged"
    with pytest.raises(SpoolError):
        list(read_native(data, of, rows=rows))
    return caught.value


def test_a_file_that_ends_early_is_named_by_row_and_column_at_every_length() -> None:
    data = b"".join(encode_row(row, OF) for row in SOME)
    ends = [0]
    for row in SOME:
        for value, column in zip(row, OF.columns, strict=True):
            ends.append(ends[-1] + len(encode_row([value], WireLayout((column,)))))
    for length in range(len(data)):
        error = damage(data[:length])
        cell = next(i for i, end in enumerate(ends[1:]) if length < end)
        assert (error.fields["row"], error.fields["column"]) == (cell // 3, f"k{cell % 3}")


def test_bytes_behind_the_last_row_are_damage() -> None:
    data = b"".join(encode_row(row, OF) for row in SOME)
    assert "1 bytes follow" in str(damage(data + b"\0"))
    error = damage(data, rows=2)
    assert error.fields["row"] == 2
    assert "2 rows were sealed" in str(error)
    assert damage(data, rows=4).fields["row"] == 3
    assert len(list(decode_rows(data, OF, rows=3))) == 3


def _int(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


WRONG: list[tuple[str, str, bool, bytes, str]] = [
    ("Int64", "bigint", True, b"\x04" + bytes(8), "prefix says 4 bytes, the type has 8"),
    ("Int64", "bigint", True, b"\x00" + bytes(8), "prefix says 0 bytes"),
    ("Int32", "int", True, b"\x08" + bytes(8), "prefix says 8 bytes"),
    ("Bool", "bit", False, b"\xff", "NULL in a NOT NULL column"),
    ("Bool", "bit", False, b"\x01\x02", "neither 0 nor 1"),
    ("Float64", "float(53)", False, bytes(6) + b"\xf0\x7f", "NaN, infinite or subnormal"),
    ("Float64", "float(53)", False, b"\x01" + bytes(7), "NaN, infinite or subnormal"),
    ("Float32", "real", True, b"\x04" + b"\x00\x00\xc0\x7f", "NaN, infinite or subnormal"),
    ("Decimal(9, 4)", "decimal(9,4)", True, b"\x13\x0a\x04\x01" + bytes(16), "says decimal(10,4)"),
    ("Decimal(9, 4)", "decimal(9,4)", True, b"\x13\x09\x03\x01" + bytes(16), "says decimal(9,3)"),
    ("Decimal(9, 4)", "decimal(9,4)", True, b"\x13\x09\x04\x00" + bytes(16), "zero is negative"),
    ("Decimal(9, 4)", "decimal(9,4)", True, b"\x13\x09\x04\x02" + _int(1, 16), "sign"),
    ("Decimal(9, 4)", "decimal(9,4)", True, b"\x13\x09\x04\x01" + _int(10**9, 16), "than the precision"),
    ("Date32", "date", False, _int(3_652_059, 3), "after 9999-12-31"),
    ("DateTime", "datetime2(0)", False, _int(86_400 * 10**7, 5) + bytes(3), "24 hours"),
    ("DateTime", "datetime2(0)", False, _int(1, 5) + bytes(3), "digits of the second"),
    ("DateTime64(3)", "datetime2(3)", False, _int(1_000, 5) + bytes(3), "digits of the second"),
    ("DateTime64(6)", "datetime2(7)", False, _int(1, 5) + bytes(3), "digits of the second"),
    ("String", "nvarchar(2)", False, _int(6, 2) + b"a\0b\0c\0", "has at most 4"),
    ("String", "nvarchar(2)", False, _int(3, 2) + b"a\0b", "half a character"),
    ("String", "nvarchar(2)", False, _int(2, 2) + b"\x00\xd8", "no UTF-16"),
    ("String", "nvarchar(max)", False, _int(2**63, 8) + b"a\0", "at most 2147483647"),
    ("String", "nvarchar(max)", False, _int(2**20, 8) + b"a\0", "2 are left"),
    ("String", "nvarchar(max)", False, b"\xff" * 8, "NULL in a NOT NULL column"),
    ("FixedString(3)", "binary(3)", False, _int(2, 2) + b"ab", "binary(3) has 3"),
    ("FixedString(3)", "varbinary(9)", True, _int(10, 2) + bytes(10), "at most 9"),
    ("UUID", "uniqueidentifier", False, b"\x0f" + bytes(15), "the type has 16"),
]


@pytest.mark.parametrize(("source", "target", "nullable", "cell", "said"), WRONG)
def test_a_wrong_prefix_or_payload_is_named(
    source: str, target: str, nullable: bool, cell: bytes, said: str
) -> None:
    """[D2] Behind a good row and a good column, so that row and column are counted."""
    of = WireLayout(
        (
            layout(("Int8", "smallint", False)).columns[0],
            WireColumn("x", layout((source, target, nullable)).columns[0].pair),
        )
    )
    good = next(bytes.fromhex(c["hex"]) for c in CELLS if (c["type"], c["nullable"]) == ("smallint", False))
    wrong = good + cell
    error = damage(wrong, of, rows=1)
    assert (error.fields["row"], error.fields["column"]) == (0, "x")
    assert said in str(error)


@pytest.mark.parametrize(
    ("source", "target", "cell"),
    [
        ("FixedString(3)", "varbinary(9)", _int(4, 2) + b"abcd"),
        ("FixedString(3)", "varbinary(max)", _int(0, 8)),
        ("DateTime", "datetime2(7)", _int(10, 5) + _int(719_162, 3)),
    ],
)
def test_a_value_that_the_source_cannot_have_is_no_batch(source: str, target: str, cell: bytes) -> None:
    """The type of the target admits it; the layout knows better."""
    of = layout((source, target, False))
    assert len(list(decode_rows(cell, of, rows=1))) == 1
    with pytest.raises(SpoolError, match="another type") as caught:
        list(read_native(cell, of, rows=1))
    assert (caught.value.fields["row"], caught.value.fields["column"]) == (0, of.columns[0].name)


def test_the_row_that_holds_another_type_is_named_not_the_first_of_its_batch() -> None:
    of = layout(("FixedString(3)", "varbinary(9)", False))
    rows = [_int(3, 2) + b"abc"] * 100 + [_int(4, 2) + b"abcd"] + [_int(3, 2) + b"abc"]
    with pytest.raises(SpoolError, match="row 100") as caught:
        list(read_native(b"".join(rows), of, rows=len(rows)))
    assert (caught.value.fields["row"], caught.value.fields["column"]) == (100, of.columns[0].name)


def test_no_value_is_in_a_message() -> None:
    of = layout(("String", "nvarchar(4)", False))
    error = damage(_int(12, 2) + "secret".encode("utf-16-le"), of, rows=1)
    assert "secret" not in str(error)


@pytest.mark.parametrize("position", range(0, 60, 3))
def test_a_flipped_bit_never_comes_back_as_other_bytes(position: int) -> None:
    """Either it is refused, or the decoder gives exactly the bytes that stand there: the hash tells the
    rest."""
    data = bytearray(b"".join(encode_row(row, OF) for row in SOME))
    data[position % len(data)] ^= 1
    try:
        read = b"".join(row.data for row in decode_rows(bytes(data), OF, rows=3))
    except SpoolError:
        return
    assert read == bytes(data)


def test_a_file_object_is_read_from_its_first_byte() -> None:
    data = b"".join(encode_row(row, OF) for row in SOME)
    file = io.BytesIO(data)
    file.seek(5)
    assert [row.data for row in decode_rows(file, OF, rows=3)] == [encode_row(row, OF) for row in SOME]
