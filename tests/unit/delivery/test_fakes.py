"""The scripted source and the spool in memory keep their contracts; the SQLite target has a suite."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, SourceUnavailable, SpoolError
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve
from tests.fakes.kill_child import ROOT
from tests.fakes.source import ReadFault, ScriptedSource
from tests.fakes.spool import MemorySpool
from tests.fakes.world import DAY, SOURCE_COLUMNS, START, TARGET_COLUMNS, World, order, orders


def _layout() -> WireLayout:
    types = dict(SOURCE_COLUMNS)
    columns = []
    for name, target, nullable in TARGET_COLUMNS:
        pair = resolve(name, types[name], target, nullable)
        assert isinstance(pair, TypePair)
        columns.append(WireColumn(name, pair))
    return WireLayout(tuple(columns))


LAYOUT = _layout()
NAMES = [name for name, _ in SOURCE_COLUMNS]


@pytest.fixture
def source(world: World) -> Iterator[ScriptedSource]:
    """Six orders, open."""
    with world.source as opened:
        yield opened


def query_of(source: ScriptedSource, window: Window = DAY, column: str | None = "at") -> r.SourceQuery:
    return source.compile(source.describe("shop", "orders"), LAYOUT, NAMES, column, window)


def ids(source: ScriptedSource, query: r.SourceQuery, deadline: Deadline | None = None) -> list[int]:
    found: list[int] = []
    for batch in source.read(query, nonce="n", deadline=deadline or Deadline.after(60)):
        assert batch.schema == LAYOUT.raw_schema
        found += to_target_batch(batch, LAYOUT, first_row=len(found)).column("id").to_pylist()
    return found


def test_a_missing_table_or_column_is_a_configuration_error(source: ScriptedSource) -> None:
    with pytest.raises(ConfigurationError) as raised:
        source.describe("shop", "order")
    assert raised.value.code == "dpone.source.missing"
    with pytest.raises(ConfigurationError) as raised:
        source.compile(source.describe("shop", "orders"), LAYOUT, [*NAMES[:-1], "nothing"], "at", DAY)
    assert raised.value.code == "dpone.source.column"


def test_values_survive_the_raw_projection_whatever_stands_under_null(source: ScriptedSource) -> None:
    batches = source.read(query_of(source), nonce="n", deadline=Deadline.after(60))
    made = [to_target_batch(batch, LAYOUT, first_row=0).to_pylist() for batch in batches]
    expected = [dict(zip(NAMES, row, strict=True)) for row in orders(6)]
    for row in expected:
        row["ref"] = row["ref"] and row["ref"].bytes
    assert made == [expected]


def test_the_window_is_half_open_and_rows_without_a_time_are_outside(source: ScriptedSource) -> None:
    tick = timedelta(microseconds=1)
    begin, end = START.replace(tzinfo=None), (START + timedelta(days=1)).replace(tzinfo=None)
    times: list[Any] = [begin - tick, begin, end - tick, end, None]
    source.edit(rows=[order(number, at=at) for number, at in enumerate(times)])
    assert ids(source, query_of(source)) == [1, 2]
    source.edit(rows=[order(number, at=at) for number, at in enumerate(times[:4])])
    assert ids(source, query_of(source, Window.full(), None)) == [0, 1, 2, 3]


def test_bounds_that_the_column_cannot_say_are_refused(source: ScriptedSource) -> None:
    half = Window(START + timedelta(hours=12), START + timedelta(days=1))
    with pytest.raises(ConfigurationError) as raised:
        query_of(source, half, "day")
    assert raised.value.code == "dpone.source.window_bound"
    with pytest.raises(ConfigurationError) as raised:
        query_of(source, DAY, "price")
    assert raised.value.code == "dpone.source.window_type"


def test_a_source_that_is_not_open_says_so(world: World) -> None:
    with pytest.raises(SourceUnavailable) as raised:
        world.source.describe("shop", "orders")
    assert raised.value.code == "dpone.source.closed"


def test_a_read_after_its_deadline_does_not_end_normally(source: ScriptedSource) -> None:
    with pytest.raises(SourceUnavailable) as raised:
        ids(source, query_of(source), Deadline.after(0))
    assert raised.value.code == "dpone.source.deadline"


def test_faults_are_drawn_one_by_each_read(source: ScriptedSource) -> None:
    query = query_of(source)
    source.edit(faults=[None, ReadFault("ends_early", 2), ReadFault("moved", 2)])
    assert len(ids(source, query)) == 6
    with pytest.raises(SourceUnavailable):
        ids(source, query)
    before = source.snapshot(query)
    assert len(ids(source, query)) == 6
    assert source.snapshot(query).moved_since(before) == "a mutation ran"
    assert source.script.reads == 3


def test_another_process_sees_the_same_script(world: World) -> None:
    program = (
        "import sys; from tests.fakes.source import *; s = ScriptedSource(sys.argv[1]);"
        "s.edit(rows=s.script.rows[:2])"
    )
    subprocess.run([sys.executable, "-c", program, str(world.source.path)], check=True, cwd=ROOT)
    with world.source as source:
        assert ids(source, query_of(source)) == [1, 2]


def test_the_spool_in_memory_gives_back_what_was_sealed_and_notices_damage() -> None:
    spool = MemorySpool()
    sink = spool.begin("k", 0, 0, LAYOUT)
    size, sha256 = sink.seal()
    chunk = r.SealedChunk(0, 0, 0, 0, size, sha256, DigestSum.zero())
    assert hashlib.sha256(spool.files[("k", 0, 0)]).hexdigest() == sha256
    spool.verify("k", chunk)
    assert list(spool.read("k", chunk, LAYOUT)) == []
    with pytest.raises(SpoolError) as raised:
        spool.verify("k", replace(chunk, file_sha256="0" * 64))
    assert raised.value.code == "dpone.spool.damaged"
    spool.discard_epoch("k", 0)
    with pytest.raises(SpoolError) as raised:
        spool.verify("k", chunk)
    assert raised.value.code == "dpone.spool.missing"
