"""ClickHouse column types as ClickHouse prints them, and why some are not delivered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_SHAPE = re.compile(r"([A-Za-z][A-Za-z0-9_]*)\s*(?:\((.*)\))?", re.DOTALL)
_DECIMAL_BITS = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
_WIDE_INTEGER = (
    "is wider than any SQL Server integer; add a column with toDecimal128(c, 0) and deliver that, "
    "if 38 digits are enough"
)
_ADDRESS = "has no SQL Server type; add a column with toString(c) and deliver that into nvarchar({})"
_GEO = "is a geometry; add a column with wkt(c) and deliver that into nvarchar(max)"
_ANY_TYPE = (
    "has a type per value; add a column with one typed subcolumn, or with toString(c), and deliver that"
)
_CLOCK = "is a time of day without a date; add a column with the seconds as an integer and deliver that"

REFUSED_SOURCES: dict[str, str] = {
    "Int128": _WIDE_INTEGER,
    "UInt128": _WIDE_INTEGER,
    "Int256": _WIDE_INTEGER,
    "UInt256": _WIDE_INTEGER,
    "BFloat16": "has no SQL Server type; add a column with toFloat32(c), which is exact, for real",
    "Array": "holds many values in one cell; add a column with toJSONString(c), or one row per element",
    "Map": "holds many values in one cell; add a column with toJSONString(c), or one column per key",
    "Tuple": "holds many values in one cell; add one column per element and deliver those",
    "Nested": "holds many values in one cell; deliver a table with one row per element",
    "JSON": "rewrites what it stores; add a column with toJSONString(c) and deliver that into nvarchar(max)",
    "Object": "is the old JSON type; add a column with toJSONString(c) and deliver that into nvarchar(max)",
    "Variant": _ANY_TYPE,
    "Dynamic": _ANY_TYPE,
    "IPv4": _ADDRESS.format(15),
    "IPv6": _ADDRESS.format(39),
    "AggregateFunction": "holds an unfinished aggregate; add a column with finalizeAggregation(c)",
    "SimpleAggregateFunction": (
        "changes its rows while parts merge; deliver a table that holds them aggregated to plain types"
    ),
    "Point": _GEO,
    "Ring": _GEO,
    "LineString": _GEO,
    "MultiLineString": _GEO,
    "Polygon": _GEO,
    "MultiPolygon": _GEO,
    "Geometry": _GEO,
    "Time": _CLOCK,
    "Time64": _CLOCK,
    "Nothing": "holds no value but NULL; add a column of a real type and deliver that",
    "QBit": "holds many values in one cell; add one column per element and deliver those",
}


@dataclass(frozen=True)
class SourceType:
    """A ClickHouse column type without its ``Nullable`` and ``LowCardinality`` wrappers.

    :param name: the family: ``Decimal`` for every spelling of it, otherwise ClickHouse's name.
    :param numbers: ``Decimal``: precision and scale; ``DateTime64``: scale; ``FixedString``: bytes.
    :param nullable: whether a ``Nullable`` wrapper was there.
    """

    name: str
    numbers: tuple[int, ...]
    nullable: bool


@lru_cache(maxsize=4096)
def parse_source_type(text: str) -> SourceType | str:
    """Read a type as ``system.columns`` prints it; a refusal is returned as its message."""
    inner, _ = _unwrap(text.strip(), "LowCardinality")
    inner, nullable = _unwrap(inner, "Nullable")
    match = _SHAPE.fullmatch(inner)
    if match is None:
        return f"{text!r} is not a ClickHouse type"
    name, arguments = match[1], (match[2] or "").strip()
    if name.startswith("Interval"):
        return (
            f"{name} is a span of time; add a column with the number of its units as Int64 and deliver that"
        )
    if name in REFUSED_SOURCES:
        return f"{name} {REFUSED_SOURCES[name]}"
    if name == "Decimal" or name in _DECIMAL_BITS:
        return _decimal(name, arguments, nullable)
    if name == "DateTime64":
        return _datetime64(arguments, nullable)
    if name == "FixedString":
        numbers = _integers(arguments)
        return SourceType(name, numbers, nullable) if len(numbers) == 1 else f"{text!r} has no length"
    if name in _KNOWN:
        return SourceType(name, (), nullable)
    return f"{name} is not a source type of this product; see `python -m airflow_dpone types`"


_KNOWN = frozenset(
    "Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Float32 Float64 Bool String UUID "
    "Date Date32 DateTime Enum8 Enum16".split()
)


def _unwrap(text: str, wrapper: str) -> tuple[str, bool]:
    match = re.fullmatch(rf"{wrapper}\s*\((.*)\)", text, re.DOTALL)
    return (match[1].strip(), True) if match else (text, False)


def _integers(arguments: str) -> tuple[int, ...]:
    """The leading integer arguments; a time zone or anything else ends them."""
    numbers = []
    for part in arguments.split(","):
        if not part.strip().isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _decimal(name: str, arguments: str, nullable: bool) -> SourceType | str:
    numbers = _integers(arguments)
    if name in _DECIMAL_BITS:
        numbers = (_DECIMAL_BITS[name], *numbers[:1])
    precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
    if precision > 38:
        return (
            f"Decimal({precision}, {scale}) has more digits than SQL Server's 38; "
            f"add a column with toDecimal128(c, {scale}) and deliver that if 38 digits are enough"
        )
    return SourceType("Decimal", (precision, scale), nullable)


def _datetime64(arguments: str, nullable: bool) -> SourceType | str:
    scale = (*_integers(arguments), 3)[0]
    if scale > 6:
        return (
            f"DateTime64({scale}) counts finer than the microseconds of this product; "
            "add a column with toDateTime64(c, 6, 'UTC') and deliver that if the digits behind are zero"
        )
    return SourceType("DateTime64", (scale,), nullable)
