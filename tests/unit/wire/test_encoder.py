"""Encoding in other processes: the same pieces in order, the same errors, and no process left over."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_dpone.errors import CapacityError, SourceDataError
from airflow_dpone.wire import encoder as encoder_module
from airflow_dpone.wire.encoder import EncodedPiece, Encoder, InlineEncoder, ParallelEncoder, new_encoder
from airflow_dpone.wire.encoder_child import layout_as_bytes, layout_of_bytes, read_frame
from airflow_dpone.wire.native_rows import EncodedRows
from airflow_dpone.wire.types import WireLayout
from tests.unit.wire.batches import PAIRS, layout, layouts_with_rows, raw_of

LAYOUT = layout(("Int64", "bigint", False), ("Nullable(String)", "nvarchar(8)", True))
SECRET = "not-for-children"
ROWS = st.lists(
    st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text("aБ😀", max_size=4)), max_size=30
)


def at_once(processes: int, of: WireLayout = LAYOUT) -> ParallelEncoder:
    """An encoder that starts its processes with the first piece."""
    return ParallelEncoder(of, processes, start_rows=0)


@pytest.fixture(scope="module", params=[2, 3])
def warm(request: pytest.FixtureRequest) -> Iterator[ParallelEncoder]:
    """Started once for many examples: an encoder that was emptied is as a new one."""
    found = at_once(request.param)
    yield found
    found.close()


def pieces(rows: list[Any], size: int, of: WireLayout = LAYOUT) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Raw pieces with the ordinal of their first row."""
    for start in range(0, len(rows), size):
        yield start, raw_of(rows[start : start + size], of)


def run(encoder: Encoder, rows: list[Any], size: int, of: WireLayout = LAYOUT) -> list[EncodedPiece]:
    """Every piece that comes out."""
    found: list[EncodedPiece] = []
    for start, raw in pieces(rows, size, of):
        found += encoder.put(raw, first_row=start)
    return [*found, *encoder.rest()]


def plain(found: list[EncodedPiece]) -> list[tuple[Any, ...]]:
    """Pieces as values that can be compared."""
    return [(one.batch.to_pylist(), one.lengths.tolist(), one.hashes.tobytes()) for one in found]


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_until_gone(pids: list[int]) -> None:
    """Fails when one of them lives on."""
    end = time.monotonic() + 30
    while not all(map(gone, pids)):
        assert time.monotonic() < end, "a child lives on"
        time.sleep(0.02)


@settings(max_examples=25, deadline=None)
@given(rows=ROWS, size=st.integers(1, 9))
def test_the_pieces_are_the_same_in_the_same_order(warm: ParallelEncoder, rows: list[Any], size: int) -> None:
    assert plain(run(warm, rows, size)) == plain(run(InlineEncoder(LAYOUT), rows, size))


def test_every_pair_of_types_is_encoded_alike() -> None:
    @settings(max_examples=1, deadline=None, database=None)
    @given(layouts_with_rows(max_columns=len(PAIRS), max_rows=20))
    def check(case: tuple[WireLayout, list[Any]]) -> None:
        of, rows = case
        parallel = at_once(2, of)
        try:
            assert plain(run(parallel, rows, 3, of)) == plain(run(InlineEncoder(of), rows, 3, of))
        finally:
            parallel.close()

    check()


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_child_is_told_the_whole_layout(source: str, target: str) -> None:
    of = layout((source, target, False), (f"Nullable({source})", target, True))
    assert layout_of_bytes(layout_as_bytes(of)) == of


def test_one_process_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    encoder = new_encoder(LAYOUT, 1)
    assert len(run(encoder, [(1, "a"), (2, "b")], 1)) == 2
    encoder.close()


def test_a_small_window_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    encoder = new_encoder(LAYOUT, 64)
    assert isinstance(encoder, ParallelEncoder)
    assert len(run(encoder, [(n, "a") for n in range(100)], 10)) == 10
    assert encoder.pids == []


@pytest.mark.parametrize("limits", [{"start_rows": 20}, {"start_bytes": 400}])
def test_processes_start_once_enough_was_encoded_here(limits: dict[str, int]) -> None:
    encoder = ParallelEncoder(LAYOUT, 2, **limits)
    rows = [(n, "aaaaaaaa") for n in range(60)]
    try:
        started, found = [], []
        for start, raw in pieces(rows, 10):
            found += encoder.put(raw, first_row=start)
            started.append(len(encoder.pids))
        assert started == [0, 0, 2, 2, 2, 2]
        assert plain([*found, *encoder.rest()]) == plain(run(InlineEncoder(LAYOUT), rows, 10))
    finally:
        encoder.close()


def test_memory_holds_one_piece_for_each_process_and_one_more(warm: ParallelEncoder) -> None:
    put = given_back = most = 0
    processes = warm._processes
    for start, raw in pieces([(n, "a") for n in range(40)], 2):
        put += 1
        for _ in warm.put(raw, first_row=start):
            most = max(most, put - given_back)
            given_back += 1
        assert put - given_back <= processes
    assert most == processes + 1
    assert put == given_back + len(list(warm.rest()))


def test_a_bad_value_is_named_with_its_place_after_all_rows_before_it(warm: ParallelEncoder) -> None:
    rows: list[Any] = [(n, "a") for n in range(20)]
    rows[13], rows[17] = (13, "123456789"), (17, "123456789")
    found: list[EncodedPiece] = []
    with pytest.raises(SourceDataError) as raised:
        found.extend(ready for start, raw in pieces(rows, 4) for ready in warm.put(raw, first_row=start))
    assert (raised.value.code, raised.value.fields) == ("dpone.source.too_long", {"column": "k1", "row": 13})
    assert sum(len(one.lengths) for one in found) == 12
    assert list(warm.rest()) == []


def test_an_error_of_a_child_arrives_as_it_is(warm: ParallelEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are checked before they are sent, so this needs a batch that nobody checked."""
    column = [pa.array([1, 2]), pa.array(["a", "123456789"], type=pa.large_string())]
    batch = pa.RecordBatch.from_arrays(column, schema=LAYOUT.arrow_schema)
    monkeypatch.setattr(encoder_module, "to_target_batch", lambda *_, **__: batch)
    inline, child = [_error_of(encoder, batch) for encoder in (InlineEncoder(LAYOUT), warm)]
    assert (type(child), child.code, child.message, child.fields, child.next_action) == (
        type(inline), inline.code, inline.message, inline.fields, inline.next_action,
    )  # fmt: skip
    monkeypatch.undo()
    rows = [(n, "a") for n in range(5)]
    assert plain(run(warm, rows, 1)) == plain(run(InlineEncoder(LAYOUT), rows, 1)), "every child goes on"


def _error_of(encoder: Encoder, batch: pa.RecordBatch) -> SourceDataError:
    with pytest.raises(SourceDataError) as raised:
        _ = [*encoder.put(batch, first_row=0), *encoder.rest()]
    return raised.value


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_child_is_an_error_and_the_others_end_too(number: signal.Signals) -> None:
    encoder = at_once(2)
    _ = list(encoder.put(raw_of([(1, "a")], LAYOUT), first_row=0))
    pids = encoder.pids
    os.kill(pids[1], number)
    with pytest.raises(CapacityError) as raised:
        run(encoder, [(n, "a") for n in range(8)], 1)
    encoder.close()
    assert (raised.value.code, raised.value.fields["pid"]) == ("dpone.encoding.process_lost", pids[1])
    assert number.name in raised.value.message
    assert all(map(gone, pids))


def test_a_child_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    encoder = at_once(2)
    with pytest.raises(CapacityError) as raised:
        run(encoder, [(1, "a")], 1)
    encoder.close()
    assert raised.value.code == "dpone.encoding.process_lost"


def test_a_failure_in_a_child_says_its_kind_and_never_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = at_once(1)
    # The child would look at what it is told is there.
    monkeypatch.setattr("airflow_dpone.wire.encoder_process._SharedMemory.write", lambda *_: 2**50)
    with pytest.raises(CapacityError, match=r"ended with exit code 1 \((OSError|ValueError|OverflowError)\)"):
        run(encoder, [(1, "a")], 1)
    encoder.close()


def test_an_encoder_that_is_dropped_in_the_middle_leaves_nothing() -> None:
    open_files = len(os.listdir("/proc/self/fd"))
    encoder = at_once(3)
    for start, raw in pieces([(n, "a") for n in range(10)], 1):
        _ = list(encoder.put(raw, first_row=start))
    pids = encoder.pids
    assert len(pids) == 3
    encoder.close()
    encoder.close()
    assert all(map(gone, pids))
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_a_child_knows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TARGET", SECRET)
    monkeypatch.setattr(sys, "argv", [*sys.argv, SECRET])
    encoder = at_once(2)
    run(encoder, [(1, "a"), (2, "b")], 1)
    told = [
        Path(f"/proc/{pid}/{what}").read_bytes() for pid in encoder.pids for what in ("environ", "cmdline")
    ]
    encoder.close()
    assert len(told) == 4
    assert all(told)
    assert not any(SECRET.encode() in one for one in told)


PARENT = """
import sys, time
from tests.unit.wire.batches import raw_of
from tests.unit.wire.test_encoder import LAYOUT, at_once
encoder = at_once(2)
for n in range(3):
    list(encoder.put(raw_of([(n, "a")], LAYOUT), first_row=n))
print(*encoder.pids, flush=True)
time.sleep(600)
"""


def test_children_end_with_a_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert not any(map(gone, pids))
    parent.kill()
    parent.communicate(timeout=30)
    wait_until_gone(pids)


def test_a_stopped_child_ends_with_its_parent_too() -> None:
    """It does not look at its input any more: only the kernel ends it."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.communicate(timeout=30)
    wait_until_gone(pids)


def test_a_child_whose_parent_is_already_another_one_does_not_begin() -> None:
    command = [sys.executable, "-m", "airflow_dpone.wire.encoder_child", "1", "0"]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 1


@pytest.mark.parametrize("size", [511, 512, 513, 5_000])
def test_short_and_long_rows_are_hashed_alike(size: int) -> None:
    rows = [bytes([n % 251]) * (size - n % 3) for n in range(9_000 if size < 600 else 40)]
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    encoded = EncodedRows(pa.py_buffer(b"".join(rows)), offsets)
    assert encoded.hashes().tobytes() == b"".join(hashlib.sha256(row).digest() for row in rows)


def test_what_a_start_up_hook_prints_is_no_frame() -> None:
    """Its first bytes would otherwise be taken for a length, and that much memory be asked for."""
    reader, writer = os.pipe()
    os.write(writer, b"coverage is running\n")
    os.close(writer)
    with FileIO(reader, "r") as stream, pytest.raises(EOFError, match="no frame"):
        read_frame(stream)
