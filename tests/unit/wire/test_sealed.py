"""Sealed chunks: the same rows come back, and damaged bytes never come back as rows unnoticed."""

from __future__ import annotations

import errno
import hashlib
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_dpone.errors import SourceDataError, SpoolError
from airflow_dpone.wire.sealed import MAX_BATCH_ROWS, SealedWriter, read_sealed
from airflow_dpone.wire.types import WireLayout
from tests.unit.wire.batches import layout, layouts_with_rows, sliced, target_batch

OF = layout(("Int64", "bigint", False), ("Nullable(String)", "nvarchar(20)", True))


def sealed(of: WireLayout, *batches: pa.RecordBatch) -> tuple[bytes, SealedWriter]:
    sink = io.BytesIO()
    writer = SealedWriter(sink, of)
    for batch in batches:
        writer.write(batch)
    writer.close()
    return sink.getvalue(), writer


def small() -> bytes:
    return sealed(OF, target_batch([[i, None if i % 3 == 0 else f"text {i}"] for i in range(40)], OF))[0]


@settings(max_examples=50)
@given(layouts_with_rows(), st.integers(0, 3))
def test_round_trip(case: tuple[WireLayout, list[list[Any]]], before: int) -> None:
    of, rows = case
    batch = target_batch(rows, of)
    data, writer = sealed(of, sliced(batch, before, 1), batch)
    assert (writer.rows, writer.size_bytes) == (2 * len(rows), len(data))
    assert writer.sha256 == hashlib.sha256(data).hexdigest()
    for source in (data, memoryview(data), pa.py_buffer(data), io.BytesIO(data)):
        read = list(read_sealed(source, of, sha256=writer.sha256))
        table = pa.Table.from_batches(read, schema=of.arrow_schema)
        assert table.equals(pa.Table.from_batches([batch, batch], schema=of.arrow_schema))
        assert all(b.schema.equals(of.arrow_schema, check_metadata=True) for b in read)


def test_the_bytes_are_an_uncompressed_arrow_file_that_names_its_layout() -> None:
    data = small()
    assert data[:6] == data[-6:] == b"ARROW1"
    assert b"text 38" in data
    schema = pyarrow.ipc.open_file(data).schema
    assert schema.metadata == {b"dpone.wire_layout_sha256": OF.sha256.encode()}


def test_batches_are_cut() -> None:
    of = layout(("UInt8", "tinyint", False))
    rows = 2 * MAX_BATCH_ROWS + 5
    array = pa.array([i % 251 for i in range(rows)], type=pa.uint8())
    data, writer = sealed(of, pa.RecordBatch.from_arrays([array], schema=of.arrow_schema))
    read = list(read_sealed(data, of))
    assert [b.num_rows for b in read] == [MAX_BATCH_ROWS, MAX_BATCH_ROWS, 5]
    assert pa.chunked_array([b.column(0) for b in read]).combine_chunks().equals(array)
    assert writer.rows == rows


def test_a_slice_brings_its_own_rows_only() -> None:
    batch = target_batch([[i, "x" * 20] for i in range(10_000)], OF)
    data, _ = sealed(OF, batch.slice(5_000, 3))
    assert len(data) < 3_000


def test_a_chunk_without_batches() -> None:
    data, writer = sealed(OF)
    assert list(read_sealed(data, OF)) == []
    assert writer.rows == 0


def test_close_ends_the_file_once() -> None:
    sink = io.BytesIO()
    writer = SealedWriter(sink, OF)
    writer.close()
    size = len(sink.getvalue())
    writer.close()
    assert (len(sink.getvalue()), writer.size_bytes) == (size, size)
    assert not sink.closed


def test_a_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    with path.open("wb") as file:
        writer = SealedWriter(file, OF)
        writer.write(target_batch([[1, "a"]], OF))
        writer.close()
    with path.open("rb") as file:
        for position in (0, 9):  # the whole file is meant, wherever its reader stands
            file.seek(position)
            assert [b.num_rows for b in read_sealed(file, OF, sha256=writer.sha256)] == [1]


class _SlowSink:
    """Takes three bytes at a time."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes | memoryview) -> int:
        self.data += bytes(data[:3])
        return min(3, len(data))


def test_a_sink_that_takes_less_than_it_is_given() -> None:
    sink = _SlowSink()
    writer = SealedWriter(sink, OF)
    writer.write(target_batch([[1, "a"]], OF))
    writer.close()
    assert hashlib.sha256(sink.data).hexdigest() == writer.sha256
    assert len(list(read_sealed(sink.data, OF))) == 1


class _FullDisk:
    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, data: bytes | memoryview) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)


@pytest.mark.parametrize("room", [0, 100, 900])
def test_a_full_disk_stays_an_os_error(room: int) -> None:
    """The caller tells a full disk from a damaged chunk by its errno."""

    def write_all() -> None:
        writer = SealedWriter(_FullDisk(room), OF)
        writer.write(target_batch([[i, "x" * 20] for i in range(100)], OF))
        writer.close()

    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is the assertion
        write_all()
    assert caught.value.errno == errno.ENOSPC


def test_refuses_to_seal_another_layout() -> None:
    other = layout(("Int32", "int", False), ("Nullable(String)", "nvarchar(20)", True))
    with pytest.raises(SourceDataError, match="columns of the layout"):
        sealed(OF, target_batch([[1, "a"]], other))
    null = pa.RecordBatch.from_arrays(
        [pa.array([None], type=pa.int64()), pa.array(["a"], type=pa.large_string())], schema=OF.arrow_schema
    )
    with pytest.raises(SourceDataError, match="NULL in 'k0'") as caught:
        sealed(OF, null)
    assert caught.value.code == "dpone.wire.layout"


def test_refuses_to_read_another_layout() -> None:
    """Equal Arrow types are not enough: nvarchar(20) and nvarchar(21) are two layouts."""
    other = layout(("Int64", "bigint", False), ("Nullable(String)", "nvarchar(21)", True))
    assert other.arrow_schema.equals(OF.arrow_schema)
    with pytest.raises(SpoolError, match="layout SHA-256") as caught:
        read_sealed(small(), other)
    assert caught.value.code == "dpone.spool.damaged"


def test_truncated_at_every_length() -> None:
    data = small()
    for length in range(0, len(data), 7):
        with pytest.raises(SpoolError):
            list(read_sealed(data[:length], OF))


def test_every_flipped_bit_is_found_by_the_hash() -> None:
    data = small()
    noted = hashlib.sha256(data).hexdigest()
    for position in range(0, len(data), 11):
        damaged = flipped(data, position, position % 8)
        with pytest.raises(SpoolError, match="SHA-256"):
            read_sealed(damaged, OF, sha256=noted)
        with pytest.raises(SpoolError, match="SHA-256"):
            read_sealed(io.BytesIO(damaged), OF, sha256=noted)


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


@pytest.mark.parametrize("bit", [0, 5, 7])
def test_a_flipped_bit_without_the_hash_is_a_clear_error_or_valid_rows(bit: int) -> None:
    """Arrow has no checksum: what is read must at least be of the layout, and nothing may crash."""
    data = small()
    outcomes = set()
    for position in range(len(data)):
        try:
            batches = list(read_sealed(flipped(data, position, bit), OF))
        except SpoolError as error:
            outcomes.add(error.code)
            continue
        outcomes.add("rows")
        for batch in batches:
            batch.validate(full=True)
            assert batch.schema.equals(OF.arrow_schema, check_metadata=True)
    assert outcomes == {"rows", "dpone.spool.damaged"}


@pytest.mark.parametrize("data", [b"", b"ARROW1", b"not an arrow file at all", b"\x00" * 4096])
def test_other_bytes(data: bytes) -> None:
    with pytest.raises(SpoolError, match="no complete Arrow file"):
        read_sealed(data, OF)


def test_an_oversized_batch_is_not_ours() -> None:
    of = layout(("UInt8", "tinyint", False))
    sink = io.BytesIO()
    with pyarrow.ipc.new_file(sink, of.arrow_schema) as writer:
        array = pa.array([1] * (MAX_BATCH_ROWS + 1), type=pa.uint8())
        writer.write_batch(pa.RecordBatch.from_arrays([array], schema=of.arrow_schema))
    with pytest.raises(SpoolError, match="more than 65536"):
        list(read_sealed(sink.getvalue(), of))


def test_a_null_where_the_column_is_not_null() -> None:
    sink = io.BytesIO()
    with pyarrow.ipc.new_file(sink, OF.arrow_schema) as writer:
        arrays = [pa.array([None], type=pa.int64()), pa.array(["a"], type=pa.large_string())]
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=OF.arrow_schema))
    with pytest.raises(SpoolError, match="NULL in the NOT NULL column 'k0'"):
        list(read_sealed(sink.getvalue(), OF))
