"""Both forms of a chunk and both spools obey the same rules: bounds while sealing, a new hash before every
grant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_dpone.delivery.records import SealedChunk
from airflow_dpone.errors import DponeError, SourceDataError, SpoolError
from airflow_dpone.settings import Limits
from airflow_dpone.spool.local import LocalSpool
from airflow_dpone.spool.object_storage import ObjectSpool
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.native_rows import encode_rows
from tests.fakes.world import World, as_set, orders
from tests.unit.delivery.test_chunk_cutter import EMPTY_ROW_BYTES, LAYOUT, ROWS, Cut, digest_of, greedy

FORMS: list[ChunkFormat] = ["arrow_ipc", "mssql_native"]


# ---- bounds -----------------------------------------------------------------------------------------------


def batches_of(cut: Cut, chunk: SealedChunk) -> list[pa.RecordBatch]:
    """What the sealed file holds."""
    return list(cut.spool.read("f" * 64, chunk, LAYOUT))


@settings(max_examples=60)
@given(rows=ROWS, max_rows=st.integers(1, 12), max_bytes=st.integers(60, 400), form=st.sampled_from(FORMS))
def test_every_sealed_file_holds_what_its_event_says_and_no_more_than_the_limits(
    rows: list[tuple[int, str | None]], max_rows: int, max_bytes: int, form: ChunkFormat
) -> None:
    cut = Cut(chunk_format=form, max_rows=max_rows, max_bytes=max_bytes, max_row_bytes=60)
    chunks = cut.all(rows, batch_rows=7)
    assert [(c.rows, c.encoded_bytes) for c in chunks] == [
        (len(sizes), sum(sizes)) for sizes in greedy(rows, max_rows, max_bytes)
    ]
    assert all(c.rows <= max_rows and c.encoded_bytes <= max_bytes for c in chunks)
    if form == "mssql_native":
        assert [c.file_bytes for c in chunks] == [c.encoded_bytes for c in chunks]
    total = DigestSum.zero()
    for chunk in chunks:
        batches = batches_of(cut, chunk)
        sums = [DigestSum.of_hashes(encode_rows(batch, LAYOUT).hashes()) for batch in batches]
        assert sum(sums, DigestSum.zero()) == chunk.digest_sum
        total += chunk.digest_sum
    assert total == digest_of(rows)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_is_too_long_is_named_by_ordinal_and_column(form: ChunkFormat) -> None:
    rows = [(1, "a" * 12), (2, "a" * 13), (3, "")]
    cut = Cut(chunk_format=form, max_row_bytes=EMPTY_ROW_BYTES + 24)
    with pytest.raises(SourceDataError) as raised:
        cut.all(rows, batch_rows=1)
    assert raised.value.code == "dpone.source.row_too_long"
    assert (raised.value.fields["row"], raised.value.fields["column"]) == (1, "note")
    cut.cutter.discard()
    assert (cut.spool.files, cut.journaled) == ({}, [])
    (chunk,) = Cut(chunk_format=form, max_row_bytes=EMPTY_ROW_BYTES + 24).all(rows[:1])
    assert chunk.encoded_bytes == EMPTY_ROW_BYTES + 24


# ---- a new hash before every grant ------------------------------------------------------------------------


@pytest.fixture(params=["local", "object storage"])
def place(request: pytest.FixtureRequest) -> str:
    """The kind of the spool."""
    kind: str = request.param
    return kind


@pytest.fixture(params=FORMS)
def shop(request: pytest.FixtureRequest, place: str, tmp_path: Path) -> World:
    """Two chunks to deliver, on that spool and in that form."""
    world = World.create(tmp_path / "shop", orders(6))
    spool: Any = LocalSpool(str(world.root / "spool"), host_id="test-host")
    if place == "object storage":
        spool = ObjectSpool(f"file://{world.root}/spool", str(world.root / "cache"))
    world.spool = spool
    world.target.chunk_format = request.param
    return world


def chunk_files(world: World) -> list[Path]:
    """The sealed files, by ordinal, without their format files."""
    return [path for path in world.spool_files() if path.suffix in (".arrow", ".native")]


def test_a_delivery(shop: World) -> None:
    result = shop.deliver()
    assert (result.rows, result.chunks) == (6, 2)
    assert shop.rows() == as_set(orders(6))
    assert shop.untidy() == []
    assert not [path for path in (shop.root / "cache").rglob("*") if path.is_file()]


def _flip(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


DAMAGES: Sequence[Any] = [
    pytest.param(_flip, "dpone.spool.damaged", id="changed"),
    pytest.param(lambda data: data[:-1], "dpone.spool.damaged", id="cut"),
    pytest.param(lambda data: b"", "dpone.spool.damaged", id="emptied"),
    pytest.param(lambda data: data + b"\0", "dpone.spool.damaged", id="longer"),
    pytest.param(None, "dpone.spool.missing", id="gone"),
]


def _harm(path: Path, change: Callable[[bytes], bytes] | None) -> None:
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))


def one_extraction(shop: World) -> Limits:
    """The limits of this world, but a lost extraction is not read again."""
    return Limits(**{**shop.limits.model_dump(), "extraction_attempts": 1})


@pytest.mark.parametrize(("change", "code"), DAMAGES)
def test_a_lost_chunk_is_read_again_in_whatever_form_it_was(
    shop: World, change: Callable[[bytes], bytes] | None, code: str
) -> None:
    """Chunk 1 is damaged while chunk 0 is loaded: the same call reads the window again."""
    harmed: list[Path] = []

    def harm_the_second(point: str) -> None:
        if point == "before_writer_write" and not harmed:
            harmed.append(chunk_files(shop)[1])
            _harm(harmed[0], change)

    shop.deliver(observer=harm_the_second)
    abandoned = [e.body["payload"] for e in shop.events() if e.event == "EPOCH_ABANDONED"]
    assert abandoned == [{"extraction_epoch": 0, "reason": code}]
    assert shop.rows() == as_set(orders(6))
    assert shop.untidy() == []


@pytest.mark.parametrize(("change", "code"), DAMAGES)
def test_a_chunk_that_was_damaged_is_never_granted(
    shop: World, change: Callable[[bytes], bytes] | None, code: str
) -> None:
    """Chunk 1 is damaged while chunk 0 is loaded: there is one grant, and the file is named."""
    shop.limits = one_extraction(shop)
    harmed: list[Path] = []

    def harm_the_second(point: str) -> None:
        if point == "before_writer_write" and not harmed:
            harmed.append(chunk_files(shop)[1])
            _harm(harmed[0], change)

    before = shop.rows()
    with pytest.raises(SpoolError) as raised:
        shop.deliver(observer=harm_the_second)
    assert (raised.value.code, raised.value.fields["ordinal"]) == (code, 1)
    assert str(raised.value.fields["path"]).endswith(str(harmed[0]))
    assert shop.target.calls().count("grant") == 1
    assert shop.rows() == before
    assert shop.untidy() == []


def test_a_second_write_of_a_chunk_hashes_it_again(shop: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first writer breaks off; before the second is granted the file has changed."""
    shop.limits = one_extraction(shop)
    shop.target.arm("write", "breaks")

    def harm_it_while_waiting(_: float) -> None:
        _harm(chunk_files(shop)[0], _flip)

    monkeypatch.setattr(shop.clock, "sleep", harm_it_while_waiting)
    with pytest.raises(DponeError) as raised:
        shop.deliver()
    assert (raised.value.code, raised.value.fields["ordinal"]) == ("dpone.spool.damaged", 0)
    assert shop.target.calls().count("grant") == 1
    assert shop.untidy() == []


def test_with_object_storage_another_machine_goes_on(tmp_path: Path) -> None:
    """[2.17] A phase on another worker reads the same place; on a local spool it must not."""
    world = World.create(tmp_path / "shop", orders(6))
    world.limits = Limits(max_rows=4, chunk_attempts=1)
    world.spool = ObjectSpool(f"file://{world.root}/spool", str(world.root / "cache"))  # type: ignore[assignment]
    world.target.arm("write", "breaks")
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == "EXTRACTED"
    world.spool = ObjectSpool(f"file://{world.root}/spool", str(world.root / "other"))  # type: ignore[assignment]
    assert world.deliver().resumed_from == "EXTRACTED"
    assert world.rows() == as_set(orders(6))
    assert world.untidy() == []
