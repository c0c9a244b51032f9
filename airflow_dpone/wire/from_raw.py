"""From the raw projection to target-typed Arrow: every value exact, or the first bad one named.

Works on whole columns; there is one function per :class:`~airflow_dpone.wire.types.RawForm`. What stands
under a NULL mask is neither checked nor kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_dpone.errors import SourceDataError
from airflow_dpone.wire.types import RawForm, WireColumn, WireLayout

_Mask = npt.NDArray[np.bool_]

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days since 1970-01-01."""
_MASK_64 = 2**64 - 1


@dataclass(frozen=True)
class _Fault:
    """A bad value: its index in the batch, why, and in words."""

    index: int
    code: str
    detail: str


@dataclass(frozen=True, eq=False)
class _Raw:
    """The received arrays of one column; ``mask`` is None if no row is NULL."""

    value: pa.Array
    high: pa.Array | None
    mask: _Mask | None

    def __len__(self) -> int:
        return len(self.value)


_Made = tuple[pa.Array | None, _Fault | None]


def to_target_batch(raw: pa.RecordBatch, layout: WireLayout, *, first_row: int) -> pa.RecordBatch:
    """Turn a batch of the raw projection into a batch of ``layout.arrow_schema``.

    :param raw: columns as in ``layout.raw_schema``; slices are fine; no Arrow nulls.
    :param first_row: 0-based ordinal of the batch's first row in this read, for messages.
    :raises SourceDataError: ``dpone.source.raw_schema``: other columns than planned; otherwise the first bad
        value in row order, then column order, with ``column`` and ``row``.
    """
    _check_schema(raw.schema, layout)
    columns: list[pa.Array] = []
    worst: tuple[int, WireColumn, _Fault] | None = None
    at, arrays = 0, raw.columns  # Arrow makes this list anew at each use
    for column in layout.columns:
        width = len(column.pair.raw_arrow_fields(0))
        made, fault = _column(arrays[at : at + width], column)
        at += width
        columns.append(made)
        if fault is not None and (worst is None or fault.index < worst[0]):
            worst = (fault.index, column, fault)
    if worst is not None:
        index, column, fault = worst
        row = first_row + index
        raise SourceDataError(
            fault.code, f"Column {column.name!r}, row {row}: {fault.detail}.", column=column.name, row=row
        )
    return pa.RecordBatch.from_arrays(columns, schema=layout.arrow_schema)


def _check_schema(found: pa.Schema, layout: WireLayout) -> None:
    planned = [(field, c.name) for i, c in enumerate(layout.columns) for field in c.pair.raw_arrow_fields(i)]
    if len(found) != len(planned):
        raise SourceDataError(
            "dpone.source.raw_schema", f"The source sent {len(found)} columns, planned are {len(planned)}."
        )
    for have, (want, column) in zip(found, planned, strict=True):
        same_type = have.type == want.type or (
            pa.types.is_binary(want.type) and pa.types.is_large_binary(have.type)
        )
        if have.name != want.name or not same_type:
            raise SourceDataError(
                "dpone.source.raw_schema",
                f"Column {column!r}: the source sent {have.name} {have.type}, "
                f"planned is {want.name} {want.type}.",
                column=column,
            )


def _column(arrays: list[pa.Array], column: WireColumn) -> _Made:
    for array in arrays:
        if array.null_count:
            index = int(np.argmax(np.asarray(pc.cast(pc.is_null(array), pa.uint8()))))
            return None, _Fault(index, "dpone.source.raw_value", "an Arrow null in the raw projection")
    mask: _Mask | None = None
    if column.pair.source_nullable:
        flags = arrays[-1].to_numpy()
        if len(flags) and flags.max() > 1:
            return None, _Fault(
                int(np.argmax(flags > 1)), "dpone.source.raw_value", "a NULL mask beyond 0 and 1"
            )
        mask = flags.view(np.bool_) if flags.any() else None
    high = arrays[1] if column.pair.raw_form is RawForm.DECIMAL128 else None
    made, fault = _FORMS[column.pair.raw_form](_Raw(arrays[0], high, mask), column)
    if mask is not None and column.pair.fails_on_null:
        null_at = int(np.argmax(mask))
        if fault is None or null_at < fault.index:
            return None, _Fault(null_at, "dpone.source.null", "NULL, and the target column is NOT NULL")
    return made, fault


def _numbers(array: pa.Array, mask: _Mask | None) -> Any:
    """The values as numpy, 0 where the mask says NULL."""
    values = array.to_numpy(zero_copy_only=True)
    return values if mask is None else np.where(mask, values.dtype.type(0), values)


def _build(arrow_type: pa.DataType, rows: int, mask: _Mask | None, data: Any) -> pa.Array:
    """An Arrow array over numpy memory; built from buffers, since ``pa.array`` cuts byte strings at NUL."""
    validity = None if mask is None else pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(arrow_type, rows, [validity, pa.py_buffer(np.ascontiguousarray(data))])


def _first(bad: Any) -> int | None:
    return int(np.argmax(bad)) if bad.any() else None


def _plain(raw: _Raw, column: WireColumn) -> _Made:
    arrow_type = column.pair.arrow_type
    values = _numbers(raw.value, raw.mask)
    if values.dtype.kind == "f" and (fault := _float_fault(values, column)) is not None:
        return None, fault
    if pa.types.is_decimal(arrow_type):
        halves = np.zeros((len(raw), 2), dtype=np.uint64)
        halves[:, 0] = values
        return _build(arrow_type, len(raw), raw.mask, halves), None
    return _build(
        arrow_type, len(raw), raw.mask, values.astype(arrow_type.to_pandas_dtype(), copy=False)
    ), None


def _float_fault(values: Any, column: WireColumn) -> _Fault | None:
    # A subnormal of 32 bits is a normal number of 64, so the target's type decides.
    smallest = np.finfo(column.pair.arrow_type.to_pandas_dtype()).tiny
    with np.errstate(invalid="ignore"):
        size = np.abs(values)
        index = _first(~(np.isfinite(values) & ((size >= smallest) | (values == 0))))
    if index is None:
        return None
    if np.isnan(values[index]):
        return _Fault(index, "dpone.source.nan", "NaN")
    if np.isinf(values[index]):
        return _Fault(index, "dpone.source.infinite", "an infinite number")
    return _Fault(index, "dpone.source.subnormal", "a subnormal number")


def _bool(raw: _Raw, column: WireColumn) -> _Made:
    values = _numbers(raw.value, raw.mask)
    if (index := _first(values > 1)) is not None:
        return None, _Fault(index, "dpone.source.raw_value", "a Bool beyond 0 and 1")
    return _build(pa.bool_(), len(raw), raw.mask, np.packbits(values, bitorder="little")), None


def _ticks(raw: _Raw, column: WireColumn) -> _Made:
    arrow_type, scale = column.pair.arrow_type, column.pair.source.numbers[0]
    values, per_day = _numbers(raw.value, raw.mask), 86_400 * 10**scale
    bad = (values < _FIRST_DAY * per_day) | (values >= (_LAST_DAY + 1) * per_day)
    if (index := _first(bad)) is not None:
        return None, _Fault(index, "dpone.source.range", "a DateTime64 outside 0001-01-01..9999-12-31")
    finer = 10 ** ({"s": 0, "ms": 3, "us": 6}[arrow_type.unit] - scale)
    return _build(arrow_type, len(raw), raw.mask, values * finer), None


def _epoch_seconds(raw: _Raw, column: WireColumn) -> _Made:
    seconds = _numbers(raw.value, raw.mask).astype(np.int64)
    return _build(column.pair.arrow_type, len(raw), raw.mask, seconds), None


def _days(raw: _Raw, column: WireColumn) -> _Made:
    days = _numbers(raw.value, raw.mask).astype(np.int32, copy=False)
    if (index := _first((days < _FIRST_DAY) | (days > _LAST_DAY))) is not None:
        return None, _Fault(index, "dpone.source.range", "a date outside 0001-01-01..9999-12-31")
    return _build(pa.date32(), len(raw), raw.mask, days), None


def _decimal_narrow(raw: _Raw, column: WireColumn) -> _Made:
    arrow_type = column.pair.arrow_type
    values = _numbers(raw.value, raw.mask).astype(np.int64, copy=False)
    if arrow_type.precision <= 18:
        limit = 10**arrow_type.precision
        if (index := _first((values >= limit) | (values <= -limit))) is not None:
            return None, _decimal_fault(index, arrow_type)
    halves = np.empty((len(raw), 2), dtype=np.int64)
    halves[:, 0] = values
    halves[:, 1] = values >> 63
    return _build(arrow_type, len(raw), raw.mask, halves), None


def _decimal_wide(raw: _Raw, column: WireColumn) -> _Made:
    arrow_type = column.pair.arrow_type
    low, high = _numbers(raw.value, raw.mask), _numbers(raw.high, raw.mask)
    limit = 10**arrow_type.precision
    fits = _less(low, high, limit) & ~_less(low, high, 1 - limit)
    if (index := _first(~fits)) is not None:
        return None, _decimal_fault(index, arrow_type)
    halves = np.empty((len(raw), 2), dtype=np.int64)
    halves[:, 0] = low.view(np.int64)
    halves[:, 1] = high
    return _build(arrow_type, len(raw), raw.mask, halves), None


def _less(low: Any, high: Any, bound: int) -> _Mask:
    """Whether 128-bit numbers are below a bound: the signed high half decides, then the unsigned low half."""
    bound_high, bound_low = bound >> 64, np.uint64(bound & _MASK_64)
    less: _Mask = (high < bound_high) | ((high == bound_high) & (low < bound_low))
    return less


def _decimal_fault(index: int, arrow_type: pa.DataType) -> _Fault:
    return _Fault(index, "dpone.source.decimal", f"a decimal of more than {arrow_type.precision} digits")


def _text(raw: _Raw, column: WireColumn) -> _Made:
    array = raw.value if raw.mask is None else _blank(raw.value, raw.mask)
    fault: _Fault | None = None
    try:
        texts = pc.cast(array, pa.large_string())
    except pa.ArrowInvalid:
        index = _first_not_utf8(array)
        fault = _Fault(index, "dpone.source.utf8", "a text that is not valid UTF-8")
        # A text before it may be too long, and then that is the first bad row.
        texts = pc.cast(array.slice(0, index), pa.large_string())
    length = column.pair.sql_type.length
    if length is not None and (long := _first_longer(texts, length)) is not None:
        fault = _Fault(long, "dpone.source.too_long", f"a text of more than {length} UTF-16 units")
    return texts, fault


def _blank(array: pa.Array, mask: _Mask) -> pa.Array:
    """The same bytes with Arrow nulls under the mask and nothing behind them."""
    offsets, data = _offsets(array), array.buffers()[2]
    sizes = np.where(mask, 0, np.diff(offsets))
    if sizes.sum() != offsets[-1] - offsets[0]:
        data = pa.py_buffer(np.ascontiguousarray(_octets(array.take(pa.array(np.flatnonzero(~mask))))))
        offsets = np.zeros(len(array) + 1, dtype=offsets.dtype)
        np.cumsum(sizes, out=offsets[1:])
    validity = pa.py_buffer(np.packbits(~mask, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [validity, pa.py_buffer(offsets), data])


def _first_not_utf8(array: pa.Array) -> int:
    """The first row that does not decode, found by halving; some row does not."""
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            pc.cast(array.slice(good, middle - good), pa.large_string())
        except pa.ArrowInvalid:
            bad = middle
        else:
            good = middle
    return good


def _first_longer(texts: pa.Array, limit: int) -> int | None:
    """The first text of more than ``limit`` UTF-16 units."""
    # No text has more UTF-16 units than UTF-8 bytes, so few need a closer look.
    sizes = np.asarray(pc.fill_null(pc.binary_length(texts), 0))
    suspects = np.flatnonzero(sizes > limit)
    if not len(suspects):
        return None
    _, offsets, data = texts.take(pa.array(suspects)).buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[: len(suspects) + 1]
    octets = np.frombuffer(data, dtype=np.uint8)[: starts[-1]]
    # One unit for each first byte of a character, one more if the character takes four bytes.
    units = ((octets & 0xC0) != 0x80).view(np.uint8) + (octets >= 0xF0).view(np.uint8)
    index = _first(np.add.reduceat(units, starts[:-1], dtype=np.int64) > limit)
    return None if index is None else int(suspects[index])


def _bytes(raw: _Raw, column: WireColumn) -> _Made:
    width = column.pair.arrow_type.byte_width
    sizes = np.asarray(pc.binary_length(raw.value))
    wrong = sizes != width if raw.mask is None else (sizes != width) & ~raw.mask
    if (index := _first(wrong)) is not None:
        return None, _Fault(index, "dpone.source.raw_value", f"a value that is not {width} bytes long")
    if raw.mask is None:
        return _build(column.pair.arrow_type, len(raw), None, _octets(raw.value)), None
    data = np.zeros((len(raw), width), dtype=np.uint8)
    keep = pa.array(np.flatnonzero(~raw.mask))
    data[~raw.mask] = _octets(raw.value.take(keep)).reshape(-1, width)
    return _build(column.pair.arrow_type, len(raw), raw.mask, data), None


def _octets(array: pa.Array) -> Any:
    """The bytes of a binary column without nulls, one value behind the other."""
    offsets = _offsets(array)
    return np.frombuffer(array.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]


def _offsets(array: pa.Array) -> Any:
    """Where the values of a binary column begin and end in its data: one position more than rows."""
    dtype = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    if len(array) == 0:
        return np.zeros(1, dtype=dtype)
    return np.frombuffer(array.buffers()[1], dtype=dtype)[array.offset : array.offset + len(array) + 1]


_FORMS: dict[RawForm, Callable[[_Raw, WireColumn], _Made]] = {
    RawForm.PLAIN: _plain,
    RawForm.BOOL: _bool,
    RawForm.TICKS: _ticks,
    RawForm.EPOCH_SECONDS: _epoch_seconds,
    RawForm.DAYS: _days,
    RawForm.DAYS32: _days,
    RawForm.DECIMAL32: _decimal_narrow,
    RawForm.DECIMAL64: _decimal_narrow,
    RawForm.DECIMAL128: _decimal_wide,
    RawForm.TEXT: _text,
    RawForm.BYTES: _bytes,
    RawForm.UUID_BYTES: _bytes,
    RawForm.LABEL: _text,
}
