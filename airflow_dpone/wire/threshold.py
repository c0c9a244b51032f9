"""A threshold of a quality check as the text of a value that its column could hold.

The comparison is made by the target, between two values of the column's own type: so a threshold that the
type cannot say exactly is refused, and not rounded. ``real`` and ``float`` take the nearest number that they
have, as they do with every value.
"""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Context, Decimal

from airflow_dpone.quality_settings import threshold_value
from airflow_dpone.wire.sql_type import SqlType

_WHOLE = {
    "bigint": (-(2**63), 2**63 - 1),
    "int": (-(2**31), 2**31 - 1),
    "smallint": (-(2**15), 2**15 - 1),
    "tinyint": (0, 255),
}
_LIMITS = {"real": (1.1754944e-38, 3.4028234e38), "float": (2.2250738585072014e-308, math.inf)}
"""Least and greatest magnitude but zero: neither type has subnormals."""
ORDERED = (*_WHOLE, *_LIMITS, "decimal", "date", "datetime2")
"""Types that have a ``min`` and a ``max`` here. Text is none: its order is a collation's."""


def typed_threshold(text: str, sql_type: SqlType) -> str:
    """A number in digits, a day as ``2025-01-31``, an instant of UTC as ``2025-01-31T00:00:00.000``.

    :raises ValueError: why a column of that type has no such value, for a sentence about the check.
    """
    if sql_type.name not in ORDERED:
        raise ValueError(f"compares numbers, days and times, and the column is {sql_type}")
    meant = threshold_value(text)
    if isinstance(meant, Decimal) is (sql_type.name in ("date", "datetime2")):
        raise ValueError(f"needs a threshold of another kind: the column is {sql_type}")
    found = _number(meant, sql_type) if isinstance(meant, Decimal) else _moment(meant, sql_type)
    if found is None:
        raise ValueError(f"has a threshold that a {sql_type} does not hold exactly: {text}")
    return found


def _number(meant: Decimal, sql_type: SqlType) -> str | None:
    if sql_type.name in _LIMITS:
        least, most = _LIMITS[sql_type.name]
        number = float(meant)
        fits = math.isfinite(number) and (number == 0 or least <= abs(number) <= most)
        return repr(number + 0.0) if fits and (number != 0 or meant == 0) else None
    scale = sql_type.scale or 0
    if meant.is_zero():
        return "0"
    if abs(meant.adjusted()) > 40:
        return None
    meant = meant.normalize(Context(prec=100))
    if -int(meant.as_tuple().exponent) > scale:
        return None
    if sql_type.name == "decimal":
        fits = meant.adjusted() < (sql_type.precision or 0) - scale
    else:
        low, high = _WHOLE[sql_type.name]
        fits = low <= meant <= high
    return format(meant, "f") if fits else None


def _moment(meant: datetime, sql_type: SqlType) -> str | None:
    if sql_type.name == "date":
        return meant.date().isoformat() if meant.time() == datetime.min.time() else None
    scale = min(sql_type.scale or 0, 6)
    if meant.microsecond % 10 ** (6 - scale):
        return None
    return meant.isoformat(timespec="microseconds")[: 19 if scale == 0 else 20 + scale]
