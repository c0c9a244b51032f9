"""The matrix of source and target types: every pair is exact or refused before anything is read.

A source column travels twice: as *raw values* (integers and bytes that no driver can misread,
:class:`RawForm`) from the source to this process, and as *target-typed* Arrow from there to the target.
Both shapes, and the framing of a row, follow from the pair of type texts alone, so a plan that was
written down can be read back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import pyarrow as pa
import rfc8785

from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.wire.source_type import SourceType, parse_source_type
from airflow_dpone.wire.sql_type import SqlType, framing_as_data, parse_sql_type

__all__ = ["LAYOUT_METADATA_KEY", "RawForm", "SqlType", "TypePair", "WireColumn", "WireLayout", "resolve"]

LAYOUT_NAME = "native_rows v1"
LAYOUT_METADATA_KEY = b"dpone.wire_layout_sha256"
_LEAVE_OUT = " Or leave the column out with `columns`."


class RawForm(StrEnum):
    """How the source projects a column, so that nothing on the way can change a value.

    A ``Nullable`` column is projected from ``assumeNotNull(c)`` and followed by a UInt8 mask, 1 for NULL; the
    value under a 1 means nothing.
    """

    PLAIN = "plain"
    """An integer or float as it is."""
    BOOL = "bool"
    """UInt8, 0 or 1."""
    TICKS = "ticks"
    """DateTime64: Int64, units of its own scale since 1970-01-01 UTC."""
    EPOCH_SECONDS = "epoch_seconds"
    """DateTime: UInt32 seconds since 1970-01-01 UTC."""
    DAYS = "days"
    """Date: UInt16 days since 1970-01-01."""
    DAYS32 = "days32"
    """Date32: Int32 days since 1970-01-01."""
    DECIMAL32 = "decimal32"
    """Decimal of up to 9 digits: its unscaled Int32."""
    DECIMAL64 = "decimal64"
    """Decimal of up to 18 digits: its unscaled Int64."""
    DECIMAL128 = "decimal128"
    """Decimal of up to 38 digits: its unscaled Int128 as a low UInt64 and a high Int64."""
    TEXT = "text"
    """String: its bytes."""
    BYTES = "bytes"
    """FixedString(N): its N bytes."""
    UUID_BYTES = "uuid_bytes"
    """UUID: its 16 bytes in the order of its text."""
    LABEL = "label"
    """Enum: the label's bytes."""


_INTEGER_TARGETS: dict[str, tuple[str, ...]] = {
    "Int8": ("smallint", "int", "bigint"),
    "Int16": ("smallint", "int", "bigint"),
    "Int32": ("int", "bigint"),
    "Int64": ("bigint",),
    "UInt8": ("tinyint", "smallint", "int", "bigint"),
    "UInt16": ("int", "bigint"),
    "UInt32": ("bigint",),
}
_RAW_ARROW: dict[RawForm, pa.DataType] = {
    RawForm.BOOL: pa.uint8(),
    RawForm.TICKS: pa.int64(),
    RawForm.EPOCH_SECONDS: pa.uint32(),
    RawForm.DAYS: pa.uint16(),
    RawForm.DAYS32: pa.int32(),
    RawForm.DECIMAL32: pa.int32(),
    RawForm.DECIMAL64: pa.int64(),
    RawForm.DECIMAL128: pa.uint64(),
    RawForm.TEXT: pa.binary(),
    RawForm.BYTES: pa.binary(),
    RawForm.UUID_BYTES: pa.binary(),
    RawForm.LABEL: pa.binary(),
}
_PLAIN_ARROW: dict[str, pa.DataType] = {
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "UInt8": pa.uint8(),
    "UInt16": pa.uint16(),
    "UInt32": pa.uint32(),
    "UInt64": pa.uint64(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
}
_TARGET_ARROW: dict[str, pa.DataType] = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.uint8(),
    "bit": pa.bool_(),
    "real": pa.float32(),
    "float": pa.float64(),
    "date": pa.date32(),
    "nvarchar": pa.large_string(),
    "uniqueidentifier": pa.binary(16),
}


@dataclass(frozen=True)
class TypePair:
    """One admitted pair of types; made by :func:`resolve` only.

    :param source_type: as ClickHouse prints it.
    :param target_type: canonical T-SQL text.
    :param source_nullable: whether the source can hold NULL; then a mask column travels along.
    :param target_nullable: the target column's nullability, which decides the framing.
    :param raw_form: how the source projects the column.
    """

    source_type: str
    target_type: str
    source_nullable: bool
    target_nullable: bool
    raw_form: RawForm

    @cached_property
    def sql_type(self) -> SqlType:
        """The target type, parsed."""
        return SqlType.parse(self.target_type)

    @property
    def source(self) -> SourceType:
        """The source type, parsed and without wrappers."""
        parsed = parse_source_type(self.source_type)
        if isinstance(parsed, str):
            raise ConfigurationError.of([Problem("dpone.types.unsupported", self.source_type, parsed)])
        return parsed

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type of the target-typed column; timestamps are naive and mean UTC."""
        target, source = self.sql_type, self.source
        if target.name == "decimal":
            return pa.decimal128(target.precision, target.scale)
        if target.name == "datetime2":
            scale = source.numbers[0] if source.numbers else 0
            return pa.timestamp("s" if scale == 0 else "ms" if scale <= 3 else "us")
        if target.name in ("binary", "varbinary"):
            return pa.binary(source.numbers[0])
        return _TARGET_ARROW[target.name]

    def raw_arrow_fields(self, ordinal: int) -> list[pa.Field]:
        """The columns of the raw projection for this column: value, high half of a wide decimal, mask."""
        name = f"c{ordinal}"
        value = (
            _PLAIN_ARROW[self.source.name] if self.raw_form is RawForm.PLAIN else _RAW_ARROW[self.raw_form]
        )
        fields = [pa.field(name, value)]
        if self.raw_form is RawForm.DECIMAL128:
            fields.append(pa.field(f"{name}_hi", pa.int64()))
        if self.source_nullable:
            fields.append(pa.field(f"{name}_null", pa.uint8()))
        return fields

    @property
    def fails_on_null(self) -> bool:
        """Whether the first NULL of the source stops the extraction: the target has no place for it."""
        return self.source_nullable and not self.target_nullable

    def to_json(self) -> dict[str, object]:
        """The texts that the pair follows from, and ``fail_on_null`` if it is admitted only with that."""
        return {
            "source_type": self.source_type,
            "target_type": self.target_type,
            "target_nullable": self.target_nullable,
            **({"fail_on_null": True} if self.fails_on_null else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> TypePair:
        """Resolve a pair again from :meth:`to_json`.

        :raises ConfigurationError: this version does not admit the pair (any more).
        """
        source_type, target_type = str(data["source_type"]), str(data["target_type"])
        fail_on_null = data.get("fail_on_null") is True
        pair = resolve(
            source_type, source_type, target_type, bool(data["target_nullable"]), fail_on_null=fail_on_null
        )
        if isinstance(pair, Problem):
            raise ConfigurationError.of([pair])
        return pair


def resolve(
    column: str, source_type: str, target_type: str, target_nullable: bool, *, fail_on_null: bool = False
) -> TypePair | Problem:
    """Admit a pair of types, or say why not and what to do.

    :param column: the name that a refusal is about.
    :param source_type: as ClickHouse prints it, with ``Nullable`` and ``LowCardinality``.
    :param target_type: T-SQL text of the target column's type.
    :param target_nullable: whether the target column admits NULL.
    :param fail_on_null: admit a ``Nullable`` source for a NOT NULL target: its first NULL stops the reading.
    :return: the pair, or a :class:`Problem` with a code ``dpone.types.*``; nothing is raised.
    """
    source = parse_source_type(source_type)
    if isinstance(source, str):
        return Problem("dpone.types.unsupported", column, f"{source}.{_LEAVE_OUT}")
    target = parse_sql_type(target_type)
    if isinstance(target, str):
        return Problem("dpone.types.unsupported", column, f"{target}.")
    form = _RULES[source.name](source, target)
    if isinstance(form, _Refusal):
        return Problem(
            form.code, column, f"{source_type} does not go into {target}: {form.message}.{_LEAVE_OUT}"
        )
    nullable = target_nullable or fail_on_null
    refused = None if nullable else null_problem(column, source_type, str(target))
    return refused or TypePair(source_type, str(target), source.nullable, target_nullable, form)


def null_problem(column: str, source_type: str, target_type: str) -> Problem | None:
    """Why a NOT NULL column is not fed by a source type; None when that holds no NULL.

    :param target_type: what the column is, or should be.
    """
    source = parse_source_type(source_type)
    if isinstance(source, str) or not source.nullable:
        return None
    return Problem(
        "dpone.types.nullability",
        column,
        f"{source_type} can hold NULL, the target column is NOT NULL. Make the target column "
        f"{target_type} NULL, or set options.fail_on_null=True, with which the first NULL stops the delivery "
        "and is named by column and row.",
    )


@dataclass(frozen=True)
class _Refusal:
    code: str
    message: str


def _pair(message: str) -> _Refusal:
    return _Refusal("dpone.types.pair", message)


def _integer(source: SourceType, target: SqlType) -> RawForm | _Refusal:
    targets = _INTEGER_TARGETS[source.name]
    return RawForm.PLAIN if target.name in targets else _pair(f"use {' or '.join(targets)}")


def _uint64(_: SourceType, target: SqlType) -> RawForm | _Refusal:
    if target.name == "decimal" and target.scale == 0 and (target.precision or 0) >= 20:
        return RawForm.PLAIN
    return _pair("values from 2^63 on fit decimal(20,0) or wider only; use that")


def _float(source: SourceType, target: SqlType) -> RawForm | _Refusal:
    targets = {"Float32": ("real", "float"), "Float64": ("float",)}[source.name]
    if target.name in targets:
        return RawForm.PLAIN
    return _pair("use real or float(53)" if "real" in targets else "anything shorter rounds; use float(53)")


def _decimal(source: SourceType, target: SqlType) -> RawForm | _Refusal:
    precision, scale = source.numbers
    if target.name != "decimal":
        return _pair(f"use decimal({precision},{scale})")
    if target.scale != scale:
        return _Refusal("dpone.types.scale", f"the scales must be equal; use decimal({precision},{scale})")
    if (target.precision or 0) < precision:
        return _Refusal("dpone.types.scale", f"the target has fewer digits; use decimal({precision},{scale})")
    return (
        RawForm.DECIMAL32 if precision <= 9 else RawForm.DECIMAL64 if precision <= 18 else RawForm.DECIMAL128
    )


def _datetime(source: SourceType, target: SqlType) -> RawForm | _Refusal:
    scale = source.numbers[0] if source.numbers else 0
    if target.name != "datetime2":
        return _pair(f"use datetime2({scale}) or finer")
    if (target.scale or 0) < scale:
        return _Refusal(
            "dpone.types.scale", f"the target would round the second; use datetime2({scale}) or finer"
        )
    return RawForm.TICKS if source.name == "DateTime64" else RawForm.EPOCH_SECONDS


def _fixed_string(source: SourceType, target: SqlType) -> RawForm | _Refusal:
    size = source.numbers[0]
    exact = f"binary({size}) or varbinary({size})" if size <= 8000 else "varbinary(max)"
    if target.name not in ("binary", "varbinary"):
        return _pair(f"it holds bytes, not text; use {exact}")
    fits = (
        target.length is None
        or target.length == size
        or (target.name == "varbinary" and target.length > size)
    )
    return (
        RawForm.BYTES
        if fits
        else _Refusal("dpone.types.length", f"it holds exactly {size} bytes; use {exact}")
    )


def _text(source: SourceType, target: SqlType) -> RawForm | _Refusal:
    if target.name == "nvarchar":
        return RawForm.TEXT if source.name == "String" else RawForm.LABEL
    if target.name in ("binary", "varbinary"):
        return _pair("text is delivered as text; use nvarchar(n) or nvarchar(max)")
    return _pair("use nvarchar(n) or nvarchar(max)")


def _only(form: RawForm, name: str) -> Callable[[SourceType, SqlType], RawForm | _Refusal]:
    return lambda _, target: form if target.name == name else _pair(f"use {name}")


_RULES: dict[str, Callable[[SourceType, SqlType], RawForm | _Refusal]] = {
    **dict.fromkeys(_INTEGER_TARGETS, _integer),
    "UInt64": _uint64,
    "Float32": _float,
    "Float64": _float,
    "Decimal": _decimal,
    "Bool": _only(RawForm.BOOL, "bit"),
    "String": _text,
    "Enum8": _text,
    "Enum16": _text,
    "FixedString": _fixed_string,
    "UUID": _only(RawForm.UUID_BYTES, "uniqueidentifier"),
    "Date": _only(RawForm.DAYS, "date"),
    "Date32": _only(RawForm.DAYS32, "date"),
    "DateTime": _datetime,
    "DateTime64": _datetime,
}


@dataclass(frozen=True)
class WireColumn:
    """A delivered column: the target column's name and its admitted pair of types."""

    name: str
    pair: TypePair

    @property
    def prefix_bytes(self) -> int:
        """Bytes of the length prefix of each cell, 0 if there is none."""
        return self.pair.sql_type.prefix_bytes(self.pair.target_nullable)

    @property
    def payload_bytes(self) -> int | None:
        """Bytes of each payload that is not NULL; None if it varies by value."""
        return self.pair.sql_type.payload_bytes


@dataclass(frozen=True)
class WireLayout:
    """The delivered columns in order; schemas and the identity of the row bytes follow from them."""

    columns: tuple[WireColumn, ...]

    @cached_property
    def sha256(self) -> str:
        """Hex SHA-256 of the canonical JSON of layout name, framing table and columns."""
        columns = [[c.name, c.pair.target_type, c.pair.target_nullable] for c in self.columns]
        identity = {"layout": LAYOUT_NAME, "framing": framing_as_data(), "columns": columns}
        return hashlib.sha256(rfc8785.dumps(identity)).hexdigest()  # type: ignore[arg-type]

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of target-typed batches; its metadata carries :attr:`sha256`."""
        fields = [pa.field(c.name, c.pair.arrow_type, nullable=c.pair.target_nullable) for c in self.columns]
        return pa.schema(fields, metadata={LAYOUT_METADATA_KEY: self.sha256.encode("ascii")})

    @cached_property
    def raw_schema(self) -> pa.Schema:
        """The schema of the raw projection: no Arrow nulls, ``large_binary`` may stand for ``binary``."""
        return pa.schema([f for i, c in enumerate(self.columns) for f in c.pair.raw_arrow_fields(i)])
