"""Raw projections of Python values, written from the description of the raw forms and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from airflow_dpone.wire.types import RawForm, TypePair, WireLayout

_EPOCH = datetime(1970, 1, 1)
_TEXTS = (RawForm.TEXT, RawForm.LABEL)

# What stands under a NULL mask: values that would be refused, so that reading them is noticed.
_GARBAGE: dict[RawForm, Any] = {
    RawForm.BOOL: 77,
    RawForm.TICKS: -(2**63),
    RawForm.EPOCH_SECONDS: 2**32 - 1,
    RawForm.DAYS: 65_535,
    RawForm.DAYS32: 2**31 - 1,
    RawForm.DECIMAL32: -(2**31),
    RawForm.DECIMAL64: -(2**63),
    RawForm.DECIMAL128: -(2**127),
    RawForm.TEXT: b"\xff under NULL",
    RawForm.BYTES: b"another length",
    RawForm.UUID_BYTES: b"\x00",
    RawForm.LABEL: b"\xff under NULL",
}


def raw_batch(rows: Sequence[Sequence[Any]], layout: WireLayout) -> pa.RecordBatch:
    """The batch in ``layout.raw_schema`` that a source sends for these rows.

    Texts may be given as bytes, so that a script can hold what is not valid UTF-8.
    """
    columns: dict[str, list[Any]] = {}
    for ordinal, column in enumerate(layout.columns):
        values = [_raw(row[ordinal], column.pair) for row in rows]
        if column.pair.raw_form is RawForm.DECIMAL128:
            columns[f"c{ordinal}"] = [value & (2**64 - 1) for value in values]
            columns[f"c{ordinal}_hi"] = [value >> 64 for value in values]
        else:
            columns[f"c{ordinal}"] = values
        columns[f"c{ordinal}_null"] = [int(row[ordinal] is None) for row in rows]
    schema = layout.raw_schema
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], type=f.type) for f in schema], schema=schema)


def _raw(value: Any, pair: TypePair) -> Any:
    if value is None:
        return _garbage(pair)
    if isinstance(value, datetime):
        return _ticks(value, pair)
    if isinstance(value, date):
        return (value - _EPOCH.date()).days
    if isinstance(value, Decimal):
        return int(value.scaleb(pair.source.numbers[1]))
    if pair.raw_form is RawForm.UUID_BYTES:
        return value.bytes
    if pair.raw_form in _TEXTS:
        return value if isinstance(value, bytes) else value.encode()
    return int(value) if pair.raw_form is RawForm.BOOL else value


def _garbage(pair: TypePair) -> Any:
    if pair.raw_form is not RawForm.PLAIN:
        return _GARBAGE[pair.raw_form]
    return float("nan") if pair.source.name.startswith("Float") else 1


def _ticks(value: datetime, pair: TypePair) -> Any:
    since = value.replace(tzinfo=None) - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
    scale = 0 if pair.raw_form is RawForm.EPOCH_SECONDS else pair.source.numbers[0]
    return micros // 10 ** (6 - scale)
