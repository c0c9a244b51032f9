"""``native_rows v1`` for whole batches: column by column into bytes, then joined per row.

A row is an alternation of fixed-width parts and varying parts. Neighbouring fixed parts (payloads
without NULL, and every length prefix, since a prefix has the same width for NULL) become one byte
matrix; only texts and the payloads of columns with NULLs in this batch are joined as varying parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_dpone.errors import SourceDataError
from airflow_dpone.wire.types import SqlType, WireColumn, WireLayout

_Bytes = npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int64]

_EPOCH_DAYS = 719_162
"""Days from 0001-01-01 to 1970-01-01."""
_TICKS_PER_SECOND = 10_000_000
_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000}
_SHORT_ROW_BYTES = 512
_HASH_BLOCK_ROWS = 4_096
_MIXED_ENDIAN = np.array([3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15])


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """The rows of a batch, one behind the other.

    :param data: all bytes, from the first row's first to the last row's last.
    :param offsets: int64, rows + 1 positions in ``data``; the first is 0.
    """

    data: pa.Buffer
    offsets: _Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> _Ints:
        """Bytes of each row, int64."""
        return np.diff(self.offsets)

    def row(self, index: int) -> bytes:
        """The bytes of one row."""
        return memoryview(self.data)[self.offsets[index] : self.offsets[index + 1]].tobytes()

    def hashes(self) -> _Bytes:
        """SHA-256 of each row, shape (rows, 32)."""
        short = self.offsets[-1] <= len(self) * _SHORT_ROW_BYTES
        digests = self._hashes_of_short() if short else self._hashes_of_long()
        return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(self), 32)

    def _hashes_of_long(self) -> Iterator[bytes]:
        sha256, view = hashlib.sha256, memoryview(self.data)
        return (sha256(view[a:b]).digest() for a, b in pairwise(self.offsets.tolist()))

    def _hashes_of_short(self) -> Iterator[bytes]:
        # A copy of a short row costs less than a view of it; in blocks, so that the copies stay in the cache.
        sha256, rows = hashlib.sha256, _as_array(self.offsets, self.data)
        for start in range(0, len(self), _HASH_BLOCK_ROWS):
            block = rows.slice(start, _HASH_BLOCK_ROWS).to_pylist()
            yield b"".join([sha256(row).digest() for row in block])


@dataclass(frozen=True, eq=False)
class _Varying:
    """Bytes per row that differ in length: ``data[offsets[i]:offsets[i + 1]]``."""

    offsets: _Ints
    data: Any


def encode_rows(batch: pa.RecordBatch, layout: WireLayout) -> EncodedRows:
    """Encode every row of a target-typed batch.

    :param batch: the columns of ``layout.arrow_schema``; slices are fine.
    :return: buffers of our own, about as large as the rows' bytes.
    :raises SourceDataError: ``dpone.wire.layout``: not the layout's columns; ``dpone.wire.value``: NULL in a
        NOT NULL column, or a text that is longer than its type.
    """
    if not batch.schema.equals(layout.arrow_schema):
        raise SourceDataError(
            "dpone.wire.layout", "A batch to encode does not have the columns of the layout."
        )
    return _join(_parts(layout.columns, batch.columns, batch.num_rows), batch.num_rows)


def cell_lengths(batch: pa.RecordBatch, layout: WireLayout, row: int) -> list[tuple[str, int]]:
    """Encoded bytes of each cell of one row, prefix included, in column order.

    :param row: index in the batch.
    """
    one = batch.slice(row, 1)
    return [
        (column.name, int(_join(_parts([column], [array], 1), 1).offsets[-1]))
        for column, array in zip(layout.columns, one.columns, strict=True)
    ]


def _join(parts: list[_Bytes | _Varying], rows: int) -> EncodedRows:
    if not parts or rows == 0:
        return EncodedRows(pa.py_buffer(b""), np.zeros(rows + 1, dtype=np.int64))
    arrays = [_as_binary(part, rows) for part in parts]
    joined = (
        arrays[0]
        if len(arrays) == 1
        else pc.binary_join_element_wise(*arrays, pa.scalar(b"", pa.large_binary()))
    )
    _, offsets, data = joined.buffers()
    return EncodedRows(data, np.frombuffer(offsets, dtype=np.int64)[: rows + 1])


def _as_binary(part: _Bytes | _Varying, rows: int) -> pa.Array:
    if isinstance(part, _Varying):
        offsets, data = part.offsets, part.data
    else:
        offsets, data = np.arange(rows + 1, dtype=np.int64) * part.shape[1], np.ascontiguousarray(part)
    return _as_array(offsets, data)


def _as_array(offsets: _Ints, data: Any) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _parts(columns: Sequence[WireColumn], arrays: Sequence[pa.Array], rows: int) -> list[_Bytes | _Varying]:
    parts: list[_Bytes | _Varying] = []
    fixed: list[_Bytes] = []

    def flush() -> None:
        if fixed:
            parts.append(np.concatenate(fixed, axis=1) if len(fixed) > 1 else fixed[0])
            fixed.clear()

    for column, array in zip(columns, arrays, strict=True):
        prefix, payload = _cells(column, array, rows)
        if prefix.shape[1]:
            fixed.append(prefix)
        if isinstance(payload, _Varying):
            flush()
            parts.append(payload)
        else:
            fixed.append(payload)
    flush()
    return parts


def _cells(column: WireColumn, array: pa.Array, rows: int) -> tuple[_Bytes, _Bytes | _Varying]:
    """Prefixes of shape (rows, prefix_bytes) and payloads of a column."""
    sql_type, nulls = column.pair.sql_type, _nulls(array)
    if nulls is not None and not column.pair.target_nullable:
        raise _misfit(column, "NULL in a NOT NULL column", int(np.argmax(nulls)))
    if sql_type.name == "nvarchar":
        texts, units = _utf16(array, nulls)
        if sql_type.length is not None and rows and units.max() > sql_type.length:
            raise _misfit(
                column, f"more than {sql_type.length} UTF-16 units", int(np.argmax(units > sql_type.length))
            )
        return _prefixes(units * 2, column.prefix_bytes, nulls), texts
    payload = _FIXED[sql_type.name](array, sql_type)
    width = payload.shape[1]
    prefix = _prefixes(np.full(rows, width, dtype=np.int64), column.prefix_bytes, nulls)
    if nulls is None:
        return prefix, payload
    offsets = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(~nulls * width, out=offsets[1:])
    return prefix, _Varying(offsets, np.ascontiguousarray(payload[~nulls]))


def _misfit(column: WireColumn, detail: str, index: int) -> SourceDataError:
    message = f"Column {column.name!r}, row {index} of a batch: {detail}."
    return SourceDataError("dpone.wire.value", message, column=column.name, row=index)


def _prefixes(lengths: _Ints, width: int, nulls: npt.NDArray[np.bool_] | None) -> _Bytes:
    prefixes = lengths.astype("<i8").view(np.uint8).reshape(len(lengths), 8)[:, :width]
    if nulls is not None:
        prefixes[nulls] = 0xFF
    return prefixes


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which rows are NULL, or None if no row is."""
    if array.null_count == 0:
        return None
    start, validity = array.offset, np.frombuffer(array.buffers()[0], dtype=np.uint8)
    valid = np.unpackbits(validity, count=start + len(array), bitorder="little")[start:]
    return ~valid.view(np.bool_)


def _numbers(array: pa.Array, dtype: str, per_row: int = 1) -> Any:
    """The values of a fixed-width array as numpy, without a copy; what stands under a NULL is arbitrary."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array) * per_row, dtype=dtype)
    numbers = np.frombuffer(data, dtype=dtype)
    return numbers[array.offset * per_row : (array.offset + len(array)) * per_row]


def _little_endian(dtype: str, size: int) -> Callable[[pa.Array, SqlType], _Bytes]:
    def encode(array: pa.Array, _: SqlType) -> _Bytes:
        payload: _Bytes = _numbers(array, dtype).view(np.uint8).reshape(len(array), size)
        return payload

    return encode


def _bit(array: pa.Array, _: SqlType) -> _Bytes:
    bits: _Bytes = _numbers(pc.cast(array, pa.uint8()), "u1").reshape(len(array), 1)
    return bits


def _decimal(array: pa.Array, _: SqlType) -> _Bytes:
    halves = _numbers(array, "<u8", per_row=2).reshape(len(array), 2)
    low, high = halves[:, 0], halves[:, 1]
    negative = high >= np.uint64(1 << 63)
    magnitude = np.empty((len(array), 2), dtype="<u8")
    magnitude[:, 0] = np.where(negative, ~low + np.uint64(1), low)
    magnitude[:, 1] = np.where(negative, ~high + (low == 0), high)
    payload = np.empty((len(array), 19), dtype=np.uint8)
    payload[:, 0] = array.type.precision
    payload[:, 1] = array.type.scale
    payload[:, 2] = ~negative
    payload[:, 3:] = magnitude.view(np.uint8).reshape(len(array), 16)
    return payload


def _date(array: pa.Array, _: SqlType) -> _Bytes:
    days = _numbers(array, "<i4") + np.int32(_EPOCH_DAYS)
    payload: _Bytes = days.astype("<i4").view(np.uint8).reshape(len(array), 4)[:, :3]
    return payload


def _datetime2(array: pa.Array, _: SqlType) -> _Bytes:
    per_second = _UNITS_PER_SECOND[array.type.unit]
    values, per_day = _numbers(array, "<i8"), 86_400 * per_second
    # Floor, not truncation: a moment before 1970 belongs to the day that began before it.
    days = np.floor_divide(values, per_day)
    ticks = (values - days * per_day) * (_TICKS_PER_SECOND // per_second)
    cells = ticks | ((days + _EPOCH_DAYS) << 40)
    payload: _Bytes = cells.astype("<i8").view(np.uint8).reshape(len(array), 8)
    return payload


def _binary(array: pa.Array, _: SqlType) -> _Bytes:
    width = array.type.byte_width
    payload: _Bytes = _numbers(array, "u1", per_row=width).reshape(len(array), width)
    return payload


def _uniqueidentifier(array: pa.Array, sql_type: SqlType) -> _Bytes:
    return _binary(array, sql_type)[:, _MIXED_ENDIAN]


_FIXED: dict[str, Callable[[pa.Array, SqlType], _Bytes]] = {
    "bigint": _little_endian("<i8", 8),
    "int": _little_endian("<i4", 4),
    "smallint": _little_endian("<i2", 2),
    "tinyint": _little_endian("u1", 1),
    "bit": _bit,
    "real": _little_endian("<f4", 4),
    "float": _little_endian("<f8", 8),
    "decimal": _decimal,
    "date": _date,
    "datetime2": _datetime2,
    "binary": _binary,
    "varbinary": _binary,
    "uniqueidentifier": _uniqueidentifier,
}


def _utf16(array: pa.Array, nulls: npt.NDArray[np.bool_] | None) -> tuple[_Varying, _Ints]:
    """A text column in UTF-16LE, transcoded as one buffer, and the UTF-16 units of each row."""
    starts = _starts(array)
    if nulls is not None and np.diff(starts)[nulls].any():  # bytes under a NULL belong to nobody
        array = pc.fill_null(array, "")
        starts = _starts(array)
    rows, data_buffer = len(array), array.buffers()[2]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)[starts[0] : starts[-1]]
    lengths = np.diff(starts)
    if len(data) == 0 or data.max() < 0x80:
        units = lengths
        encoded: Any = data.astype("<u2")
    else:
        units = _units_per_row(data, starts[:-1] - starts[0], lengths)
        encoded = str(data.data, "utf-8").encode("utf-16-le")
    offsets = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(units * 2, out=offsets[1:])
    return _Varying(offsets, encoded), units


def _starts(texts: pa.Array) -> _Ints:
    return np.frombuffer(texts.buffers()[1], dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]


def _units_per_row(data: _Bytes, starts: _Ints, lengths: _Ints) -> _Ints:
    """UTF-16 units per row: one for each character's first byte, one more if that begins four bytes."""
    per_byte = ((data & 0xC0) != 0x80).view(np.uint8) + (data >= 0xF0).view(np.uint8)
    units = np.zeros(len(lengths), dtype=np.int64)
    filled = np.flatnonzero(lengths)
    units[filled] = np.add.reduceat(per_byte, starts[filled], dtype=np.int64)
    return units
