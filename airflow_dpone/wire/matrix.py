"""The matrix of types as a list to read: for ``python -m airflow_dpone types`` and docs/reference/types.md.

It asks :func:`~airflow_dpone.wire.types.resolve` about each pair, so it cannot promise what the code refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_dpone.wire.source_type import REFUSED_SOURCES, parse_source_type
from airflow_dpone.wire.types import TypePair, resolve

# One source type of each family that is delivered, and target types of every kind. Numbers are examples.
SOURCES = (
    "Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Float32 Float64 Decimal(9,2) Decimal(18,4) "
    "Decimal(38,10) Bool String Enum8 Enum16 FixedString(16) UUID Date Date32 DateTime DateTime64(3) "
    "DateTime64(6)"
).split()
TARGETS = (
    "tinyint smallint int bigint bit real float(53) decimal(9,2) decimal(18,2) decimal(18,4) decimal(20,0) "
    "decimal(38,0) decimal(38,4) decimal(38,10) date datetime2(0) datetime2(3) datetime2(6) datetime2(7) "
    "nvarchar(20) nvarchar(max) binary(16) binary(20) varbinary(16) varbinary(20) varbinary(max) "
    "uniqueidentifier"
).split()
_REFUSED_BY_NUMBER = ("Decimal(76,4)", "DateTime64(9)", "IntervalDay")


@dataclass(frozen=True)
class ExactPairs:
    """A source type and the target types of the list that hold each of its values exactly.

    :param arrow: the Arrow types of the column in a sealed chunk.
    """

    source: str
    targets: tuple[str, ...]
    arrow: tuple[str, ...]


def exact_pairs() -> list[ExactPairs]:
    """Every source type of the list."""
    return [_exact(source) for source in SOURCES]


def _exact(source: str) -> ExactPairs:
    found = [pair for target in TARGETS if isinstance(pair := resolve("c", source, target, True), TypePair)]
    arrow = dict.fromkeys(str(pair.arrow_type) for pair in found)
    return ExactPairs(source, tuple(pair.target_type for pair in found), tuple(arrow))


def refused_sources() -> dict[str, str]:
    """Source types that are never delivered, with the reason and what to do."""
    return REFUSED_SOURCES | {name: str(parse_source_type(name)) for name in _REFUSED_BY_NUMBER}
