"""How one stream of rows becomes sealed chunks: where each of them ends, and that nothing gets lost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_dpone.delivery import chunk_cutter
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.chunk_cutter import ChunkCutter
from airflow_dpone.errors import CapacityError, SourceDataError
from airflow_dpone.settings import Limits
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.encoder import Encoder, ParallelEncoder
from airflow_dpone.wire.reference_rows import encode_row
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve
from tests.fakes.raw_values import raw_batch
from tests.fakes.spool import MemorySpool


def _pair(source: str, target: str, nullable: bool) -> TypePair:
    pair = resolve("c", source, target, nullable)
    assert isinstance(pair, TypePair)
    return pair


LAYOUT = WireLayout(
    (
        WireColumn("id", _pair("Int64", "bigint", False)),
        WireColumn("note", _pair("Nullable(String)", "nvarchar(max)", True)),
    )
)
EMPTY_ROW_BYTES = 16
"""8 for the id, 8 for the length of an empty note."""


class Cut:
    """A cutter on a spool in memory, and what it journaled."""

    def __init__(
        self, encoder: Encoder | None = None, chunk_format: ChunkFormat = "arrow_ipc", **limits: Any
    ) -> None:
        self.spool = MemorySpool()
        self.journaled: list[r.Json] = []
        bounds = Limits.model_construct(**(Limits().model_dump() | limits))
        run: Any = SimpleNamespace(
            frozen=SimpleNamespace(limits=bounds, layout=LAYOUT),
            ports=SimpleNamespace(spool=self.spool, writer=SimpleNamespace(chunk_format=chunk_format)),
            chain=SimpleNamespace(invocation_key="f" * 64),
            record=lambda *said: self.journaled.extend(payload for _, payload in said),
            progress=lambda *_: None,
        )
        self.cutter = ChunkCutter(run, 0)
        if encoder is not None:
            self.cutter._encoder = encoder

    def all(self, rows: Sequence[Sequence[Any]], batch_rows: int = 1_000) -> list[r.SealedChunk]:
        """The chunks of these rows."""
        for start in range(0, len(rows), batch_rows):
            self.cutter.add(raw_batch(rows[start : start + batch_rows], LAYOUT))
        return self.cutter.finish()

    def rows_of(self, chunk: r.SealedChunk) -> list[tuple[Any, ...]]:
        """The rows that the sealed file holds."""
        batches = list(self.spool.read("f" * 64, chunk, LAYOUT))
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def greedy(rows: Sequence[Sequence[Any]], max_rows: int, max_bytes: int) -> list[list[int]]:
    """The encoded lengths of each chunk, cut row by row: it ends before the row that would be too much."""
    chunks: list[list[int]] = []
    for row in rows:
        size = len(encode_row(row, LAYOUT))
        if not chunks or len(chunks[-1]) == max_rows or sum(chunks[-1]) + size > max_bytes:
            chunks.append([])
        chunks[-1].append(size)
    return chunks


def digest_of(rows: Sequence[Sequence[Any]]) -> DigestSum:
    """One sum over all rows, encoded one by one."""
    return DigestSum.of_hash_iter(hashlib.sha256(encode_row(row, LAYOUT)).digest() for row in rows)


NOTES = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
ROWS = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), NOTES), max_size=40)


@given(
    rows=ROWS,
    max_rows=st.integers(1, 12),
    max_bytes=st.integers(60, 400),
    batch_rows=st.integers(1, 20),
    piece_rows=st.integers(1, 20),
    piece_bytes=st.integers(1, 2_000),
)
def test_chunks_are_cut_exactly_at_the_limits_and_add_up_to_all_rows(
    rows: list[tuple[int, str | None]],
    max_rows: int,
    max_bytes: int,
    batch_rows: int,
    piece_rows: int,
    piece_bytes: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_cutter, "PIECE_ROWS", piece_rows)
        patch.setattr(chunk_cutter, "PIECE_BYTES", piece_bytes)
        cut = Cut(max_rows=max_rows, max_bytes=max_bytes, max_row_bytes=60)
        chunks = cut.all(rows, batch_rows)
    expected = greedy(rows, max_rows, max_bytes)
    assert [(c.rows, c.encoded_bytes) for c in chunks] == [(len(sizes), sum(sizes)) for sizes in expected]
    assert [c.ordinal for c in chunks] == list(range(len(expected)))
    assert sum((c.digest_sum for c in chunks), DigestSum.zero()) == digest_of(rows)
    assert [row for c in chunks for row in cut.rows_of(c)] == rows
    assert cut.journaled == [c.to_json() for c in chunks]
    assert [r.SealedChunk.from_json(told) for told in cut.journaled] == chunks


@pytest.mark.parametrize(("rows", "sizes"), [(3, [3]), (4, [4]), (5, [4, 1]), (8, [4, 4]), (9, [4, 4, 1])])
def test_a_chunk_holds_max_rows_and_not_one_more(rows: int, sizes: list[int]) -> None:
    assert [c.rows for c in Cut(max_rows=4).all([(n, "") for n in range(rows)])] == sizes


@pytest.mark.parametrize(("spare", "sizes"), [(-1, [2, 2]), (0, [3, 1]), (1, [3, 1])])
def test_a_chunk_holds_max_bytes_and_not_one_more(spare: int, sizes: list[int]) -> None:
    limit = 3 * EMPTY_ROW_BYTES + spare
    chunks = Cut(max_bytes=limit, max_row_bytes=limit).all([(n, "") for n in range(4)])
    assert [c.rows for c in chunks] == sizes
    assert all(c.encoded_bytes <= limit for c in chunks)


def test_no_row_makes_no_chunk() -> None:
    cut = Cut()
    assert cut.all([]) == []
    cut.cutter.add(raw_batch([], LAYOUT))
    assert (cut.cutter.finish(), cut.spool.files) == ([], {})


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_a_row_of_max_row_bytes_passes_and_a_longer_one_is_named(batch_rows: int) -> None:
    rows = [(1, "a" * 10), (2, "a" * 12), (3, "a" * 13)]
    cut = Cut(max_row_bytes=EMPTY_ROW_BYTES + 24)
    with pytest.raises(SourceDataError) as raised:
        cut.all(rows, batch_rows)
    assert raised.value.code == "dpone.source.row_too_long"
    assert (raised.value.fields["column"], raised.value.fields["row"]) == ("note", 2)
    assert "aaaa" not in str(raised.value)
    assert Cut(max_row_bytes=EMPTY_ROW_BYTES + 24).all(rows[:2])[0].rows == 2


def test_a_bad_value_is_named_with_its_place_in_the_whole_read() -> None:
    with pytest.raises(SourceDataError) as raised:
        Cut(max_rows=2).all([(n, "") for n in range(6)] + [(6, b"\xff")], batch_rows=3)
    assert (raised.value.fields["column"], raised.value.fields["row"]) == ("note", 6)


def test_the_whole_window_may_have_max_total_bytes_and_not_one_more() -> None:
    rows = [(n, "") for n in range(4)]
    total = 4 * EMPTY_ROW_BYTES
    assert sum(c.rows for c in Cut(max_total_bytes=total, max_rows=2).all(rows)) == 4
    with pytest.raises(CapacityError) as raised:
        Cut(max_total_bytes=total - 1, max_rows=2).all(rows)
    assert raised.value.code == "dpone.limits.max_total_bytes"


def test_the_window_may_have_max_staging_tables_chunks_and_not_one_more() -> None:
    rows = [(n, "") for n in range(6)]
    assert len(Cut(max_rows=2, max_staging_tables=3).all(rows)) == 3
    with pytest.raises(CapacityError) as raised:
        Cut(max_rows=2, max_staging_tables=2).all(rows)
    assert raised.value.code == "dpone.limits.max_staging_tables"


def test_a_full_spool_stops_before_the_next_chunk_begins() -> None:
    cut = Cut(max_rows=2)
    cut.cutter.add(raw_batch([(1, ""), (2, "")], LAYOUT))
    cut.spool.free = Limits().max_bytes - 1
    with pytest.raises(CapacityError) as raised:
        cut.cutter.add(raw_batch([(3, "")], LAYOUT))
    assert raised.value.code == "dpone.spool.no_space"


@pytest.fixture(scope="module", params=[2, 3])
def processes(request: pytest.FixtureRequest) -> Iterator[ParallelEncoder]:
    """Encoding processes, started once: an encoder that was emptied is as a new one."""
    encoder = ParallelEncoder(LAYOUT, request.param, start_rows=0)
    yield encoder
    encoder.close()


@settings(max_examples=25, deadline=None)
@given(
    rows=ROWS,
    max_rows=st.integers(1, 12),
    max_bytes=st.integers(60, 400),
    batch_rows=st.integers(1, 20),
    piece_rows=st.integers(1, 20),
)
def test_encoding_processes_change_no_chunk(
    processes: ParallelEncoder,
    rows: list[tuple[int, str | None]],
    max_rows: int,
    max_bytes: int,
    batch_rows: int,
    piece_rows: int,
) -> None:
    limits = {"max_rows": max_rows, "max_bytes": max_bytes, "max_row_bytes": 60}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_cutter, "PIECE_ROWS", piece_rows)
        alone, together = Cut(**limits), Cut(processes, **limits)
        assert together.all(rows, batch_rows) == alone.all(rows, batch_rows)
    assert together.spool.files == alone.spool.files
    assert together.journaled == alone.journaled


BAD, LONG = b"\xff", "a" * 13


@pytest.mark.parametrize(
    ("notes", "code", "row"),
    [
        ({5: LONG, 6: BAD}, "dpone.source.row_too_long", 5),
        ({5: BAD, 6: LONG}, "dpone.source.utf8", 5),
        ({3: LONG, 8: LONG}, "dpone.source.row_too_long", 3),
        ({3: BAD, 8: BAD}, "dpone.source.utf8", 3),
    ],
)
def test_the_first_bad_row_wins_whoever_finds_it(
    processes: ParallelEncoder, notes: dict[int, Any], code: str, row: int
) -> None:
    """A text is checked when its piece is put, a row's length when its piece comes back."""
    rows = [(n, notes.get(n, "")) for n in range(10)]
    for encoder in (None, processes):
        with pytest.raises(SourceDataError) as raised:
            Cut(encoder, max_row_bytes=EMPTY_ROW_BYTES + 24).all(rows, batch_rows=1)
        assert (raised.value.code, raised.value.fields["row"]) == (code, row)
    assert len(list(processes.rest())) <= 3, "what was on its way is dropped"


def test_the_setting_decides_how_many_processes_encode() -> None:
    assert [type(Cut(**limits).cutter._encoder).__name__ for limits in ({}, {"encoding_parallelism": 2})] == [
        "InlineEncoder",
        "ParallelEncoder",
    ]
    assert (
        Limits().encoding_processes == Limits(parallelism=2, encoding_parallelism=1).encoding_processes == 1
    )
    assert Limits(parallelism=3).encoding_processes == 3
