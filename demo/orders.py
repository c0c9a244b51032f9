"""The demo's shop: realistic orders in chDB, what happens to them later, and an empty target in DuckDB.

Every function opens an engine, so each runs in a process of its own (``demo/child.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FIRST_DAY = "2026-03-01"
DAYS = 6
ORDERS_PER_DAY = 20_000

SOURCE_TABLE = """
CREATE TABLE shop.orders (
    order_id     Int64,
    customer     UUID,
    ordered_at   Nullable(DateTime64(6, 'UTC')),
    updated_at   DateTime64(3, 'UTC'),
    ship_date    Nullable(Date32),
    items        Int32,
    amount       Decimal(18, 4),
    discount     Nullable(Float64),
    paid         Bool,
    status       LowCardinality(String),
    channel      Enum8('web' = 1, 'app' = 2, 'shop' = 3),
    note         Nullable(String)
) ENGINE = MergeTree ORDER BY order_id
"""

TARGET_TABLE = """
CREATE SCHEMA IF NOT EXISTS sales;
CREATE TABLE sales.orders (
    order_id     BIGINT NOT NULL,
    customer     UUID NOT NULL,
    ordered_at   TIMESTAMP,
    updated_at   TIMESTAMP_MS NOT NULL,
    ship_date    DATE,
    items        INTEGER NOT NULL,
    amount       DECIMAL(18, 4) NOT NULL,
    discount     DOUBLE,
    paid         BOOLEAN NOT NULL,
    status       VARCHAR NOT NULL,
    channel      VARCHAR NOT NULL,
    note         VARCHAR
);
COMMENT ON COLUMN sales.orders.status IS 'nvarchar(20)';
COMMENT ON COLUMN sales.orders.channel IS 'nvarchar(10)';
"""

# {first} and {count}: order numbers; {day}: days after FIRST_DAY. {undated}: which have no order time
# yet (they are in no window, only in a full load). Every 97th order is stored twice, every 13th has no
# discount, and notes are of any length, with accents and emoji.
NEW_ORDERS = """
INSERT INTO shop.orders
SELECT
    {first} + n                                                               AS order_id,
    reinterpretAsUUID(concat(sipHash128(n, {first}), ''))                     AS customer,
    if({undated}, NULL, moment)                                                AS ordered_at,
    coalesce(moment, now64(6)) + INTERVAL (n % 900) SECOND                    AS updated_at,
    if(n % 5 = 0, NULL, toDate32(moment) + n % 9)                             AS ship_date,
    1 + n % 12                                                                AS items,
    toDecimal64(cityHash64(n, 1) % 100000000, 4) / 10000                      AS amount,
    if(n % 13 = 0, NULL, (n % 100) / 256)                                     AS discount,
    n % 3 != 0                                                                AS paid,
    ['new', 'packed', 'sent', 'returned'][1 + n % 4]                          AS status,
    ['web', 'app', 'shop'][1 + n % 3]                                         AS channel,
    multiIf(n % 7 = 0, NULL, n % 7 = 1, '', repeat('für dich 🎁 ', n % 20))   AS note
FROM (
    SELECT
        number % {count} AS n,
        toDateTime64('{start} 00:00:00', 6, 'UTC') + INTERVAL {day} DAY
            + INTERVAL (cityHash64(n) % 86400000000) MICROSECOND AS moment
    FROM numbers({count} + intDiv({count}, 97))
)
"""


@contextmanager
def shop(home: str) -> Iterator[Callable[[str], Any]]:
    """An open chDB directory; calls run a statement."""
    from chdb.session import Session

    session = Session(os.path.join(home, "shop"))
    try:
        yield lambda statement: session.query(statement, "TSV")
    finally:
        session.close()


def create(home: str) -> None:
    """The source with all days, and the empty target."""
    import duckdb

    with shop(home) as run:
        run("CREATE DATABASE shop ENGINE = Atomic")
        run(SOURCE_TABLE)
        for day in range(DAYS):
            run(_orders(day, ORDERS_PER_DAY, undated="n % 500 = 499"))
    with duckdb.connect(os.path.join(home, "warehouse.duckdb")) as warehouse:
        warehouse.execute(TARGET_TABLE)


def _orders(day: int, count: int, first: int | None = None, undated: str = "0") -> str:
    first = 1_000_000 * (day + 1) if first is None else first
    return NEW_ORDERS.format(first=first, count=count, day=day, start=FIRST_DAY, undated=undated)


def _in_day(day: int) -> str:
    start = f"toDateTime64('{FIRST_DAY} 00:00:00', 6, 'UTC') + INTERVAL {day} DAY"
    return f"ordered_at >= {start} AND ordered_at < {start} + INTERVAL 1 DAY"


def new_day(home: str) -> None:
    """One more day of orders arrives."""
    with shop(home) as run:
        run(_orders(DAYS, ORDERS_PER_DAY))


def correct(home: str, day: int) -> None:
    """Late corrections of an old day: some orders change, some vanish, some arrive late, some twice."""
    with shop(home) as run:
        run(
            "ALTER TABLE shop.orders UPDATE status = 'returned', amount = amount / 2 "
            f"WHERE {_in_day(day)} AND order_id % 10 = 3 SETTINGS mutations_sync = 2"
        )
        run(
            f"ALTER TABLE shop.orders DELETE WHERE {_in_day(day)} AND order_id % 10 = 7 "
            "SETTINGS mutations_sync = 2"
        )
        run(_orders(day, 700, first=1_000_000 * (day + 1) + 500_000))


def empty(home: str, day: int) -> None:
    """Every order of a day is cancelled."""
    with shop(home) as run:
        run(f"ALTER TABLE shop.orders DELETE WHERE {_in_day(day)} SETTINGS mutations_sync = 2")


def poison(home: str, day: int) -> None:
    """A faulty job writes a NaN, which SQL Server cannot hold."""
    with shop(home) as run:
        run(
            "ALTER TABLE shop.orders UPDATE discount = nan "
            f"WHERE {_in_day(day)} AND order_id % 10000 = 42 SETTINGS mutations_sync = 2"
        )


def mend(home: str, day: int) -> None:
    """The faulty values are set right."""
    with shop(home) as run:
        run(
            "ALTER TABLE shop.orders UPDATE discount = 0.5 "
            f"WHERE {_in_day(day)} AND isNaN(assumeNotNull(discount)) SETTINGS mutations_sync = 2"
        )
