"""``native_rows v1`` row by row in plain Python: an oracle, and the encoder of a target that reads itself
back.

Slow on purpose and independent of the columnar encoder, so that one of them can judge the other. Values
are those of a DB-API reader: int, float, Decimal, bool, date, naive datetime (UTC), str, bytes, UUID,
None.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from airflow_dpone.errors import SourceDataError
from airflow_dpone.wire.types import SqlType, WireLayout

_INTEGERS = {"bigint": (8, True), "int": (4, True), "smallint": (2, True), "tinyint": (1, False)}
_FLOATS = {"real": ("<f", 2.0**-126), "float": ("<d", 2.0**-1022)}
_WITHOUT_PREFIX_IF_NOT_NULL = frozenset({*_INTEGERS, *_FLOATS, "date", "datetime2"})


class _Misfit(ValueError):
    """What is wrong with a value; never the value itself."""


def encode_row(values: Sequence[object], layout: WireLayout) -> bytes:
    """The bytes of one row.

    :param values: one value per column of the layout, in order.
    :raises SourceDataError: ``dpone.wire.value`` with the column: a value that its type cannot hold exactly.
    """
    if len(values) != len(layout.columns):
        raise SourceDataError(
            "dpone.wire.layout",
            f"The row has {len(values)} values, the layout {len(layout.columns)} columns.",
        )
    cells = []
    for value, column in zip(values, layout.columns, strict=True):
        try:
            cells.append(_cell(value, column.pair.sql_type, column.pair.target_nullable))
        except _Misfit as misfit:
            raise _error(str(misfit), column.pair.sql_type, column.name) from None
    return b"".join(cells)


def encode_cell(value: object, sql_type: SqlType, nullable: bool) -> bytes:
    """The bytes of one cell: a length prefix if type and nullability ask for it, then the payload.

    :raises SourceDataError: ``dpone.wire.value``: the type cannot hold the value exactly.
    """
    try:
        return _cell(value, sql_type, nullable)
    except _Misfit as misfit:
        raise _error(str(misfit), sql_type, None) from None


def _error(misfit: str, sql_type: SqlType, column: str | None) -> SourceDataError:
    place = "A cell" if column is None else f"A cell of column {column!r}"
    return SourceDataError("dpone.wire.value", f"{place} does not fit {sql_type}: {misfit}.", column=column)


def _cell(value: object, sql_type: SqlType, nullable: bool) -> bytes:
    prefix_bytes = _prefix_bytes(sql_type, nullable)
    if value is None:
        if not nullable:
            raise _Misfit("NULL in a NOT NULL column")
        return b"\xff" * prefix_bytes
    payload = _PAYLOADS[sql_type.name](value, sql_type)
    return len(payload).to_bytes(prefix_bytes, "little") + payload if prefix_bytes else payload


def _prefix_bytes(sql_type: SqlType, nullable: bool) -> int:
    if sql_type.name in ("nvarchar", "binary", "varbinary"):
        return 8 if sql_type.length is None else 2
    return 0 if not nullable and sql_type.name in _WITHOUT_PREFIX_IF_NOT_NULL else 1


def _expect(value: object, *types: type) -> None:
    # Exact types: bool is an int and datetime is a date in Python, but not in SQL.
    if type(value) not in types:
        raise _Misfit(f"a Python {type(value).__name__}")


def _integer(value: Any, sql_type: SqlType) -> bytes:
    _expect(value, int)
    size, signed = _INTEGERS[sql_type.name]
    try:
        return int(value).to_bytes(size, "little", signed=signed)
    except OverflowError:
        raise _Misfit("out of range") from None


def _bit(value: Any, _: SqlType) -> bytes:
    _expect(value, bool, int)
    if value not in (0, 1):
        raise _Misfit("neither 0 nor 1")
    return b"\x01" if value else b"\x00"


def _float(value: Any, sql_type: SqlType) -> bytes:
    _expect(value, float)
    number = float(value)
    form, smallest_normal = _FLOATS[sql_type.name]
    if not math.isfinite(number):
        raise _Misfit("NaN or infinite")
    if number and abs(number) < smallest_normal:
        raise _Misfit("subnormal")
    try:
        payload = struct.pack(form, number)
    except OverflowError:
        raise _Misfit("out of range") from None
    if struct.unpack(form, payload)[0] != number:
        raise _Misfit("more digits than the type keeps")
    return payload


def _decimal(value: Any, sql_type: SqlType) -> bytes:
    _expect(value, Decimal, int)
    precision, scale = sql_type.precision or 0, sql_type.scale or 0
    sign, digits, exponent = Decimal(value).as_tuple()
    if not isinstance(exponent, int):
        raise _Misfit("NaN or infinite")
    # Integers only from here: a Decimal operation would round to the precision of the caller's context.
    unscaled = int("".join(map(str, digits)) or "0")
    shift = exponent + scale
    if shift > 38 and unscaled:
        raise _Misfit("more digits than the precision")
    if shift >= 0:
        unscaled *= 10 ** min(shift, 38)
    else:
        unscaled, rest = divmod(unscaled, 10**-shift) if -shift <= len(digits) else (0, unscaled)
        if rest:
            raise _Misfit("more digits after the point than the scale")
    if unscaled >= 10**precision:
        raise _Misfit("more digits than the precision")
    positive = 1 if sign == 0 or unscaled == 0 else 0
    return bytes((precision, scale, positive)) + unscaled.to_bytes(16, "little")


def _date(value: Any, _: SqlType) -> bytes:
    _expect(value, date)
    day: date = value
    return (day.toordinal() - 1).to_bytes(3, "little")


def _datetime2(value: Any, sql_type: SqlType) -> bytes:
    _expect(value, datetime)
    moment: datetime = value
    if moment.tzinfo is not None:
        raise _Misfit("a time zone")
    if moment.microsecond % 10 ** max(0, 6 - (sql_type.scale or 0)):
        raise _Misfit("more digits of the second than the scale")
    seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
    ticks = seconds * 10_000_000 + moment.microsecond * 10
    return ticks.to_bytes(5, "little") + (moment.toordinal() - 1).to_bytes(3, "little")


def _nvarchar(value: Any, sql_type: SqlType) -> bytes:
    _expect(value, str)
    try:
        payload = str(value).encode("utf-16-le")
    except UnicodeEncodeError:
        raise _Misfit("a lone surrogate") from None
    if sql_type.length is not None and len(payload) > 2 * sql_type.length:
        raise _Misfit("more UTF-16 units than the length")
    return payload


def _binary(value: Any, sql_type: SqlType) -> bytes:
    _expect(value, bytes, bytearray, memoryview)
    payload = bytes(value)
    if sql_type.name == "binary" and len(payload) != sql_type.length:
        raise _Misfit("another number of bytes than the length")
    if sql_type.length is not None and len(payload) > sql_type.length:
        raise _Misfit("more bytes than the length")
    return payload


def _uniqueidentifier(value: Any, _: SqlType) -> bytes:
    _expect(value, UUID)
    guid: UUID = value
    return guid.bytes_le


_PAYLOADS: dict[str, Callable[[Any, SqlType], bytes]] = {
    **dict.fromkeys(_INTEGERS, _integer),
    **dict.fromkeys(_FLOATS, _float),
    "bit": _bit,
    "decimal": _decimal,
    "date": _date,
    "datetime2": _datetime2,
    "nvarchar": _nvarchar,
    "binary": _binary,
    "varbinary": _binary,
    "uniqueidentifier": _uniqueidentifier,
}
