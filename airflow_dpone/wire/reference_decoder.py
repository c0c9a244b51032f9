"""``native_rows v1`` read back row by row in plain Python: what a chunk in native rows really holds.

Slow on purpose, and written from the framing table of the documentation alone: it shares no code with the
columnar encoder, with ``reference_rows`` or with the table in ``sql_type``, so that it can judge all of them.
Values are those of ``reference_rows``: int, float, Decimal, bool, date, naive datetime (UTC), str, bytes,
UUID, None.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import BinaryIO
from uuid import UUID

from airflow_dpone.errors import SpoolError
from airflow_dpone.wire.types import SqlType, WireLayout

_PAYLOAD_BYTES = {
    "bigint": 8, "int": 4, "smallint": 2, "tinyint": 1, "bit": 1, "real": 4, "float": 8, "decimal": 19,
    "date": 3, "datetime2": 8, "uniqueidentifier": 16,
}  # fmt: skip
"""Types whose values all have one size; the others carry texts or bytes."""
_PREFIXED_ALWAYS = frozenset({"bit", "decimal", "uniqueidentifier"})
_TICKS_PER_DAY = 24 * 60 * 60 * 10_000_000
_LAST_DAY = date.max.toordinal() - 1


@dataclass(frozen=True)
class DecodedRow:
    """One row: its values in column order, and the very bytes that they were read from."""

    values: tuple[object, ...]
    data: bytes


class _Wrong(ValueError):
    """What is wrong with a cell; never its value."""


def decode_rows(source: bytes | BinaryIO, layout: WireLayout, *, rows: int) -> Iterator[DecodedRow]:
    """The rows of a file of native rows, which has no header and no end mark: only the count tells its end.

    :param source: the whole file; a file object must be seekable and is read from its first byte.
    :param rows: how many rows were sealed; fewer or more are damage.
    :raises SpoolError: ``dpone.spool.damaged`` while iterating, with ``row`` (from 0) and ``column``: the
        file ends inside a cell, a prefix is not one of the type's, or a payload is no value of the type.
        Also after the last row, when bytes are left.
    """
    reader = _Reader(io.BytesIO(source) if isinstance(source, bytes) else source)
    for row in range(rows):
        reader.row = bytearray()
        values = []
        for column in layout.columns:
            try:
                values.append(_cell(reader, column.pair.sql_type, column.pair.target_nullable))
            except _Wrong as wrong:
                raise _damaged(f"row {row}, column {column.name!r}: {wrong}", row, column.name) from None
        yield DecodedRow(tuple(values), bytes(reader.row))
    if reader.left:
        raise _damaged(f"{reader.left} bytes follow its last row, {rows} rows were sealed", rows, None)


def _damaged(detail: str, row: int, column: str | None) -> SpoolError:
    text = f"A sealed chunk of native rows is damaged: {detail}."
    return SpoolError("dpone.spool.damaged", text, row=row, column=column)


class _Reader:
    """Takes bytes from the front and collects those of the row."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.left = file.seek(0, io.SEEK_END)
        file.seek(0)
        self.row = bytearray()

    def take(self, size: int, what: str) -> bytes:
        # Compared before anything is read: a damaged prefix may ask for 2^64 bytes.
        if size > self.left:
            raise _Wrong(f"the file ends: {what} takes {size} bytes, {self.left} are left")
        found = self._file.read(size)
        if len(found) != size:
            raise _Wrong(f"the file became shorter: {len(found)} of {size} bytes were read")
        self.left -= size
        self.row += found
        return found


def _cell(reader: _Reader, sql_type: SqlType, nullable: bool) -> object:
    size = _PAYLOAD_BYTES.get(sql_type.name)
    if size is not None and not nullable and sql_type.name not in _PREFIXED_ALWAYS:
        return _VALUES[sql_type.name](reader.take(size, "the value"), sql_type)
    prefix = reader.take(_prefix_bytes(sql_type), "the length prefix")
    if prefix == b"\xff" * len(prefix):
        if not nullable:
            raise _Wrong("NULL in a NOT NULL column")
        return None
    length = int.from_bytes(prefix, "little")
    if size is not None and length != size:
        raise _Wrong(f"its prefix says {length} bytes, the type has {size}")
    if size is None:
        _check_length(length, sql_type)
    return _VALUES[sql_type.name](reader.take(length, "the value"), sql_type)


def _prefix_bytes(sql_type: SqlType) -> int:
    if sql_type.name in _PAYLOAD_BYTES:
        return 1
    return 8 if sql_type.length is None else 2


def _check_length(length: int, sql_type: SqlType) -> None:
    unit = 2 if sql_type.name == "nvarchar" else 1
    most = 2**31 - 1 if sql_type.length is None else sql_type.length * unit
    if length > most:
        raise _Wrong(f"its prefix says {length} bytes, {sql_type} has at most {most}")
    if length % unit:
        raise _Wrong(f"its prefix says {length} bytes, which is half a character")
    if sql_type.name == "binary" and length != most:
        raise _Wrong(f"its prefix says {length} bytes, {sql_type} has {most}")


def _integer(payload: bytes, sql_type: SqlType) -> int:
    return int.from_bytes(payload, "little", signed=sql_type.name != "tinyint")


def _bit(payload: bytes, _: SqlType) -> bool:
    if payload[0] > 1:
        raise _Wrong("neither 0 nor 1")
    return payload[0] == 1


def _float(payload: bytes, _: SqlType) -> float:
    form, smallest_normal = ("<f", 2.0**-126) if len(payload) == 4 else ("<d", 2.0**-1022)
    (number,) = struct.unpack(form, payload)
    if not math.isfinite(number) or 0 < abs(number) < smallest_normal:
        raise _Wrong("NaN, infinite or subnormal")
    return float(number)


def _decimal(payload: bytes, sql_type: SqlType) -> Decimal:
    precision, scale, sign = payload[:3]
    if (precision, scale) != (sql_type.precision, sql_type.scale):
        raise _Wrong(f"it says decimal({precision},{scale}), the column is {sql_type}")
    unscaled = int.from_bytes(payload[3:], "little")
    if sign > 1 or (sign == 0 and unscaled == 0):
        raise _Wrong("its sign is neither 0 nor 1, or zero is negative")
    if unscaled >= 10**precision:
        raise _Wrong("more digits than the precision")
    return Decimal((1 - sign, tuple(int(digit) for digit in str(unscaled)), -scale))


def _date(payload: bytes, _: SqlType) -> date:
    days = int.from_bytes(payload, "little")
    if days > _LAST_DAY:
        raise _Wrong("a day after 9999-12-31")
    return date.fromordinal(days + 1)


def _datetime2(payload: bytes, sql_type: SqlType) -> datetime:
    ticks = int.from_bytes(payload[:5], "little")
    if ticks >= _TICKS_PER_DAY:
        raise _Wrong("more than 24 hours")
    # No source has more than six digits, so neither has a chunk, whatever the column could hold.
    if ticks % 10 ** (7 - min(sql_type.scale or 0, 6)):
        raise _Wrong("more digits of the second than the scale")
    day = _date(payload[5:], sql_type)
    return datetime(day.year, day.month, day.day) + timedelta(microseconds=ticks // 10)


def _nvarchar(payload: bytes, _: SqlType) -> str:
    try:
        return payload.decode("utf-16-le")
    except UnicodeDecodeError:
        raise _Wrong("no UTF-16 text") from None


def _binary(payload: bytes, _: SqlType) -> bytes:
    return payload


def _uniqueidentifier(payload: bytes, _: SqlType) -> UUID:
    return UUID(bytes_le=payload)


_VALUES: dict[str, Callable[[bytes, SqlType], object]] = {
    **dict.fromkeys(("bigint", "int", "smallint", "tinyint"), _integer),
    **dict.fromkeys(("real", "float"), _float),
    "bit": _bit,
    "decimal": _decimal,
    "date": _date,
    "datetime2": _datetime2,
    "nvarchar": _nvarchar,
    "binary": _binary,
    "varbinary": _binary,
    "uniqueidentifier": _uniqueidentifier,
}
