"""Source and target row by row: both read by their own engine, written as text, compared as multisets."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from datetime import datetime
from typing import Any

SOURCE_ROWS = """
SELECT toString(order_id), toString(customer), toString(ordered_at), toString(updated_at),
       toString(ship_date), toString(items), toDecimalString(amount, 4),
       leftPad(hex(reinterpretAsUInt64(assumeNotNull(discount))), 16, '0'), isNull(discount),
       toString(paid), toString(status), toString(channel), note
FROM shop.orders
"""


def compare(home: str) -> dict[str, Any]:
    """Counts of both sides, and of rows that only one of them has."""
    source, target = _source(home), _target(home)
    return {
        "source_rows": source.total(),
        "target_rows": target.total(),
        "missing": (source - target).total(),
        "unexpected": (target - source).total(),
    }


def _source(home: str) -> Counter[tuple[Any, ...]]:
    from chdb.session import Session

    session = Session(os.path.join(home, "shop"))
    try:
        answer = session.query(SOURCE_ROWS, "JSONCompactEachRow")
        rows = (json.loads(line) for line in str(answer).split("\n") if line)
        return Counter(_plain(row) for row in rows)
    finally:
        session.close()


def _plain(row: list[Any]) -> tuple[Any, ...]:
    *before, bits, is_null, paid, status, channel, note = row
    return (*before, None if is_null else bits, paid, status, channel, note)


def _target(home: str) -> Counter[tuple[Any, ...]]:
    import duckdb

    with duckdb.connect(os.path.join(home, "warehouse.duckdb"), read_only=True) as warehouse:
        rows = warehouse.execute(
            "SELECT order_id, customer, ordered_at, updated_at, ship_date, items, amount, discount, "
            "paid, status, channel, note FROM sales.orders"
        )
        found: Counter[tuple[Any, ...]] = Counter()
        while batch := rows.fetchmany(10_000):
            found.update(_as_text(row) for row in batch)
        return found


def _as_text(row: tuple[Any, ...]) -> tuple[Any, ...]:
    order, customer, ordered, updated, shipped, items, amount, discount, paid, status, channel, note = row
    return (
        str(order),
        str(customer),
        _instant(ordered, 6),
        _instant(updated, 3),
        None if shipped is None else shipped.isoformat(),
        str(items),
        str(amount),
        None if discount is None else struct.pack(">d", discount).hex().upper(),
        "true" if paid else "false",
        status,
        channel,
        note,
    )


def _instant(value: datetime | None, digits: int) -> str | None:
    if value is None:
        return None
    return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond:06d}"[:digits]
