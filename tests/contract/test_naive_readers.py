"""Each fault that was seen with ClickHouse or its driver: a naive reader falls for it here and now, the
source does not.

A naive reader is what one writes first: the driver's ``execute`` or Arrow stream over ``SELECT *``, bounds as
they come, one loop until the end. Ids in brackets are rules of the protocol; all of it is [D11]: chunk and
digest come from one batch, so no digest sees a fault of this leg.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from clickhouse_driver import Client

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import SourceUnavailable
from airflow_dpone.source_clickhouse.reader import REVISION
from airflow_dpone.source_clickhouse.source import ClickHouseSource
from airflow_dpone.wire.from_raw import to_target_batch
from tests.contract.chdb_world import compiled
from tests.contract.native_world import NativeWorld, address, plain_client

NONCE = "ab" * 32
DAY = datetime(2025, 1, 1, tzinfo=UTC)
ONE_DAY = Window(DAY, DAY + timedelta(days=1))


@pytest.fixture
def world() -> Iterator[NativeWorld]:
    """A database of its own."""
    made = NativeWorld()
    yield made
    made.drop()


@pytest.fixture
def naive() -> Iterator[Any]:
    """The driver as it is."""
    client = plain_client(address())
    yield client
    client.disconnect()


@pytest.fixture
def naive_arrow() -> Iterator[Any]:
    """The driver's fast path, as one meets it in its documentation."""
    client = Client(address().host, address().port, client_revision=REVISION, settings={"use_numpy": True})
    yield client
    client.disconnect()


def delivered(
    world: NativeWorld,
    targets: dict[str, str],
    column: str | None = None,
    window: Window | None = None,
    source: ClickHouseSource | None = None,
) -> list[tuple[Any, ...]]:
    """What the source delivers, sorted."""
    with source or world.source() as opened:
        table = opened.describe(world.database, "t")
        assert table.problems == ()
        query, layout = compiled(opened, table, targets, column, window)
        rows: list[tuple[Any, ...]] = []
        for batch in opened.read(query, nonce=NONCE, deadline=Deadline.after(60)):
            made = to_target_batch(batch, layout, first_row=len(rows))
            rows += zip(*(values.to_pylist() for values in made.columns), strict=True)
    return sorted(rows)


def test_a_window_over_a_date_column(world: NativeWorld, naive: Any) -> None:
    """[F1] Bounds as instants, a session in Asia/Tokyo: another day's rows. Where that day has none, nothing
    is read, and an empty window deletes the target's."""
    name = world.table("d Date")
    world.execute(f"INSERT INTO {name} SELECT toDate(20088 + number % 3) FROM numbers(300)")
    start, end = ONE_DAY.bounds_us
    bounds = f"d >= fromUnixTimestamp64Micro({start}) AND d < fromUnixTimestamp64Micro({end})"
    days = {}
    for zone in ("UTC", "Asia/Tokyo"):
        naive.execute(f"SET session_timezone = '{zone}'")
        days[zone] = naive.execute(f"SELECT DISTINCT toUInt16(d) FROM {name} WHERE {bounds}")
        source = world.source_after(f"SET session_timezone = '{zone}'")
        assert delivered(world, {"d": "date"}, "d", ONE_DAY, source) == [(DAY.date(),)] * 100
    assert days == {"UTC": [(20_089,)], "Asia/Tokyo": [(20_090,)]}


@pytest.mark.parametrize(
    ("profile", "seen"),
    [
        ("limit = 3", 3),
        ("offset = 149999", 1),
        ("additional_table_filters = {{'{table}': 'k < 7'}}", 7),
        ("apply_deleted_mask = 0", 150_001),
    ],
)
def test_a_profile_that_changes_the_rows(world: NativeWorld, naive: Any, profile: str, seen: int) -> None:
    """[F2] No error, a normal end, other rows."""
    name = world.table("k Int64", rest="ORDER BY k")
    world.execute(f"INSERT INTO {name} SELECT number FROM numbers(150001)")
    world.execute(f"DELETE FROM {name} WHERE k = 150000")
    setting = "SET " + profile.format(table=name)
    naive.execute(setting)
    assert len(naive.execute(f"SELECT k FROM {name}")) == seen
    source = world.source_after(setting)
    assert delivered(world, {"k": "bigint"}, source=source) == [(k,) for k in range(150_000)]


def test_a_profile_that_stops_at_a_bound(world: NativeWorld, naive: Any) -> None:
    """[F2, F9] A few rows and a normal end, where the source gets an error."""
    name = world.table("k Int64", rest="ORDER BY k SETTINGS index_granularity = 512")
    world.execute(f"INSERT INTO {name} SELECT number FROM numbers(150000)")
    setting = (
        "SET max_rows_to_read = 1000, read_overflow_mode = 'break', max_block_size = 512, max_threads = 1"
    )
    naive.execute(setting)
    assert 0 < len(naive.execute(f"SELECT k FROM {name}")) < 150_000
    with pytest.raises(SourceUnavailable) as caught:
        delivered(world, {"k": "bigint"}, source=world.source_after(setting))
    assert caught.value.code == "dpone.source.limit"


def test_a_profile_that_hides_an_update(world: NativeWorld, naive: Any) -> None:
    """[F2, F5] An update that is no mutation, and whose part no row names."""
    name = world.table(
        "k Int64, v String",
        rest="ORDER BY k SETTINGS enable_block_number_column = 1, enable_block_offset_column = 1",
    )
    world.execute(f"INSERT INTO {name} SELECT number, 'old' FROM numbers(10)")
    world.execute("SET enable_lightweight_update = 1")
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"k": "bigint"})
        before = source.snapshot(query)
        world.execute(f"UPDATE {name} SET v = 'new' WHERE k = 3")
        after = source.snapshot(query)
    assert after.mutations == before.mutations, "what a naive check looks at says nothing"
    assert naive.execute(f"SELECT DISTINCT _part FROM {name}") == [("all_1_1_0",)]
    assert after.moved_since(before) == "a lightweight update ran"
    naive.execute("SET apply_patch_parts = 0")
    assert naive.execute(f"SELECT v FROM {name} WHERE k = 3") == [("old",)]
    source = world.source_after("SET apply_patch_parts = 0")
    assert (3, "new") in delivered(world, {"k": "bigint", "v": "nvarchar(9)"}, source=source)


def test_extremes_in_the_data(world: NativeWorld, naive: Any) -> None:
    """[F3 a] ``execute`` appends every block to the rows: those of totals and extremes too."""
    world.execute(f"INSERT INTO {world.table('k Int64')} SELECT number FROM numbers(10)")
    text = f"SELECT k AS c0 FROM {world.database}.t"
    assert len(naive.execute(f"{text} /* fault: totals 0 */")) == 12
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"k": "bigint"})
        asked = replace(query, text=f"{query.text}\n/* fault: totals 0 */")
        assert sum(b.num_rows for b in source.read(asked, nonce=NONCE, deadline=Deadline.after(60))) == 10


def test_bytes_that_end_or_begin_with_nul(world: NativeWorld, naive: Any, naive_arrow: Any) -> None:
    """[F3 b, d, h] Trimmed by the driver, by numpy, by Arrow over numpy, and by ClickHouse's own casts."""
    name = world.table("k Int64, f FixedString(4), n Nullable(FixedString(4)), s String")
    ends, begins = "unhex('61620000')", "unhex('00007800')"
    world.execute(f"INSERT INTO {name} VALUES (1, {ends}, {ends}, {ends}), (2, {begins}, {begins}, {begins})")
    whole = [(1, b"ab\0\0", b"ab\0\0", "ab\0\0"), (2, b"\0\0x\0", b"\0\0x\0", "\0\0x\0")]
    assert naive.execute(f"SELECT f FROM {name} ORDER BY k") == [("ab",), ("\0\0x",)]
    assert naive.execute(f"SELECT toString(f) FROM {name} ORDER BY k") == [("ab",), ("\0\0x",)]
    assert np.array([b"a\0\0", b"\0\0x\0"]).tolist() == [b"a", b"\0\0x"]
    assert pa.array(np.array([b"\0\0x\0"])).to_pylist() == [b""]
    found = naive_arrow.query_arrow_stream(f"SELECT n FROM {name} ORDER BY k").read_all()
    assert found.column(0).to_pylist() != ["ab\0\0", "\0\0x\0"]
    targets = {"k": "bigint", "f": "binary(4)", "n": "binary(4)", "s": "nvarchar(4)"}
    assert delivered(world, targets) == whole


def test_far_times_and_fine_ones(world: NativeWorld, naive: Any, naive_arrow: Any) -> None:
    """[F3 c] Nanoseconds of numpy overflow beyond 2262, and plain reading takes them through a float."""
    name = world.table("k Int64, at DateTime64(6, 'UTC')")
    last = 10_413_791_999_999_999
    world.execute(f"INSERT INTO {name} SELECT 1, reinterpret(toInt64({last}), 'DateTime64(6, \\'UTC\\')')")
    exact = datetime(2299, 12, 31, 23, 59, 59, 999_999)
    ((plain,),) = naive.execute(f"SELECT at FROM {name}")
    assert plain.replace(tzinfo=None) != exact
    as_nanoseconds = np.array([last], dtype=np.int64) * 1000
    assert as_nanoseconds.astype("datetime64[ns]").astype("datetime64[Y]").astype(str)[0] != "2299"
    with pytest.raises(pa.ArrowInvalid):
        naive_arrow.query_arrow_stream(f"SELECT at FROM {name}").read_all()
    fine = "toDateTime64('2025-01-01 00:00:00.123456789', 9, 'UTC')"
    assert naive.execute(f"SELECT toUnixTimestamp64Micro({fine}) % 1000000") == [(123_456,)], "cut, no error"
    assert delivered(world, {"k": "bigint", "at": "datetime2(6)"}) == [(1, exact)]


def test_a_time_that_comes_twice_a_year(world: NativeWorld, naive: Any) -> None:
    """[F3 e] Two instants of the autumn night have one wall clock; what is read must be the instant."""
    name = world.table("k Int64, at DateTime('Europe/Berlin')")
    world.execute(f"INSERT INTO {name} VALUES (1, 1729987200), (2, 1729990800)")
    assert len(set(naive.execute(f"SELECT toString(at) FROM {name}"))) == 1
    assert delivered(world, {"k": "bigint", "at": "datetime2(0)"}) == [
        (1, datetime(2024, 10, 27, 0)),
        (2, datetime(2024, 10, 27, 1)),
    ]


def test_text_that_is_not_utf8(world: NativeWorld, naive: Any) -> None:
    """[F3 f] One path gives bytes among texts; the source gives bytes, and the wire refuses them by row."""
    world.execute(f"INSERT INTO {world.table('s String')} VALUES (unhex('ff41')), ('ok')")
    found = {type(text) for (text,) in naive.execute(f"SELECT s FROM {world.database}.t")}
    assert found == {bytes, str}
    with pytest.raises(Exception, match="row 0") as caught:
        delivered(world, {"s": "nvarchar(9)"})
    assert getattr(caught.value, "code", "") == "dpone.source.utf8"


def test_an_exception_in_the_stream(world: NativeWorld, naive_arrow: Any) -> None:
    """[F9, B64] The Arrow reader says that it is at its end when it is asked again after an error."""
    name = world.table("k Int64", rest="ORDER BY k")
    world.execute(f"INSERT INTO {name} SELECT number FROM numbers(300000)")
    text = f"SELECT k FROM {name} WHERE NOT throwIf(k = 200000)"
    stream = naive_arrow.query_arrow_stream(text, settings=None)
    rows, errors = 0, 0
    while True:
        try:
            rows += stream.read_next_batch().num_rows
        except StopIteration:
            break
        except Exception:  # noqa: BLE001 - what such a loop does
            errors += 1
    assert errors == 1
    assert rows < 300_000
    with world.source() as source:
        query, _ = compiled(source, source.describe(world.database, "t"), {"k": "bigint"})
        broken = replace(query, text=f"{query.text}\nWHERE NOT throwIf(k = 200000)")
        read = source.read(broken, nonce=NONCE, deadline=Deadline.after(60))
        for _ in range(20):
            try:
                next(read)
            except SourceUnavailable:
                break
        for _ in range(3):
            with pytest.raises(SourceUnavailable):
                next(read)
