"""The contract of a spool: what is sealed is found again byte for byte, or the file is named.

Over the local file system and over object storage on ``file://``, each in both forms of a chunk where the
form can matter. Full disks and kills happen in new interpreters, never in this process.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_dpone.delivery.ports import SpoolPort
from airflow_dpone.delivery.records import SealedChunk
from airflow_dpone.errors import CapacityError, SourceDataError, SpoolError
from airflow_dpone.host_identity import host_id
from airflow_dpone.spool.local import LocalSpool
from airflow_dpone.spool.object_storage import ObjectSpool
from airflow_dpone.wire.chunk_format import SUFFIXES, ChunkFormat
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.mssql_native import format_file
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve

KEY = "ab" * 32


def pair(source_type: str, target_type: str) -> TypePair:
    made = resolve("c", source_type, target_type, True)
    assert isinstance(made, TypePair)
    return made


LAYOUT = WireLayout(
    (WireColumn("k", pair("Int64", "bigint")), WireColumn("s", pair("Nullable(String)", "nvarchar(max)")))
)
OTHER_LAYOUT = WireLayout((WireColumn("k", pair("Int64", "bigint")),))


def batch(rows: int = 1000) -> pa.RecordBatch:
    texts = [None if k % 3 == 0 else f"row {k}" for k in range(rows)]
    return pa.RecordBatch.from_arrays(
        [pa.array(range(rows), pa.int64()), pa.array(texts, pa.large_string())], schema=LAYOUT.arrow_schema
    )


def opened(kind: str, place: Path) -> SpoolPort:
    """The spool at a place; an object store's local cache lies beside it."""
    if kind == "local":
        return LocalSpool(str(place))
    return ObjectSpool(f"file://{place}", str(place.with_name("cache")))


@pytest.fixture(params=["local", "object storage"])
def new_spool(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], SpoolPort]:
    """Opens the same place each time it is called, as another process would."""
    return lambda: opened(request.param, tmp_path / "spool")


@pytest.fixture
def spool(new_spool: Callable[[], SpoolPort]) -> SpoolPort:
    return new_spool()


@pytest.fixture
def local(tmp_path: Path) -> LocalSpool:
    """For what only a file system has: renames, links, modes of its parts."""
    return LocalSpool(str(tmp_path / "spool"))


FORMATS: list[ChunkFormat] = ["arrow_ipc", "mssql_native"]


@pytest.fixture(params=FORMATS)
def form(request: pytest.FixtureRequest) -> ChunkFormat:
    """The form of the chunks."""
    found: ChunkFormat = request.param
    return found


def seal(
    spool: SpoolPort,
    ordinal: int = 0,
    *,
    epoch: int = 1,
    rows: int = 1000,
    key: str = KEY,
    form: ChunkFormat = "arrow_ipc",
) -> SealedChunk:
    sink = spool.begin(key, epoch, ordinal, LAYOUT, form)
    sink.write(batch(rows))
    size, sha256 = sink.seal()
    beside = sink.format_file_sha256
    return SealedChunk(epoch, ordinal, rows, 0, size, sha256, DigestSum.zero(), form, beside)


def path_of(tmp_path: Path, chunk: SealedChunk, key: str = KEY) -> Path:
    name = f"{chunk.ordinal:06d}.{chunk.file_sha256}.{SUFFIXES[chunk.chunk_format]}"
    return tmp_path / "spool" / key / str(chunk.extraction_epoch) / name


def files(tmp_path: Path, folder: str = "spool") -> list[str]:
    root = tmp_path / folder
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


# ---- what a sealed chunk is -------------------------------------------------------------------------------


def test_a_sealed_chunk_reads_back(
    spool: SpoolPort, new_spool: Callable[[], SpoolPort], form: ChunkFormat, tmp_path: Path
) -> None:
    """Also by another process, and in batches of at most 65,536 rows; no copy is left behind."""
    with spool:
        chunk = seal(spool, rows=70_000, form=form)
    with new_spool() as reader:
        reader.verify(KEY, chunk)
        found = list(reader.read(KEY, chunk, LAYOUT))
    assert [b.num_rows for b in found] == [65_536, 4_464]
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([batch(70_000)]))
    assert files(tmp_path, "cache") == []


def test_a_chunk_of_native_rows_is_the_bytes_that_are_hashed_and_has_a_format_file(
    spool: SpoolPort, tmp_path: Path
) -> None:
    """[D2] Beside the chunk, with a hash of its own that is journaled with it."""
    chunk = seal(spool, 7, form="mssql_native")
    path = path_of(tmp_path, chunk)
    assert path.read_bytes() == bytes(encode_rows(batch(), LAYOUT).data)
    beside = path.with_suffix(".fmt")
    assert beside.read_bytes() == format_file(LAYOUT)
    assert hashlib.sha256(format_file(LAYOUT)).hexdigest() == chunk.format_file_sha256
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, beside)] == [0o600, 0o600]
    assert len(files(tmp_path)) == 2
    told = dataclasses.replace(chunk, digest_sum=DigestSum(1000, (1,) * 8))
    assert SealedChunk.from_json(told.to_json()) == told


def test_the_name_is_the_hash_and_nobody_else_may_read(spool: SpoolPort, tmp_path: Path) -> None:
    """[C12, 3.6] Path, hash, sizes and modes."""
    old = os.umask(0)
    try:
        chunk = seal(spool, 7)
    finally:
        os.umask(old)
    path = path_of(tmp_path, chunk)
    content = path.read_bytes()
    assert (len(content), pa.ipc.open_file(content).schema.metadata) == (
        chunk.file_bytes,
        {b"dpone.wire_layout_sha256": LAYOUT.sha256.encode()},
    )
    modes = [
        stat.S_IMODE(p.stat().st_mode) for p in (path, path.parent, path.parent.parent, tmp_path / "spool")
    ]
    assert modes == [0o600, 0o700, 0o700, 0o700]
    assert files(tmp_path) == [f"{KEY}/1/000007.{chunk.file_sha256}.arrow"]


def test_an_unsealed_chunk_has_no_final_name(local: LocalSpool, tmp_path: Path) -> None:
    sink = local.begin(KEY, 1, 0, LAYOUT)
    sink.write(batch())
    assert files(tmp_path) == [f"{KEY}/1/000000.part"]
    sink.discard()
    sink.discard()
    assert files(tmp_path) == []


def test_sealing_syncs_the_file_before_its_name_and_the_directory_after(
    local: LocalSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[3.6] A name must never stand for bytes that a power cut takes back."""
    seen: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watched_fsync(fd: int) -> None:
        seen.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def watched_rename(*args: object, **options: object) -> None:
        seen.append("rename")
        rename(*args, **options)  # type: ignore[arg-type]

    sink = local.begin(KEY, 1, 0, LAYOUT)
    sink.write(batch())
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    sink.seal()
    assert seen == ["file", "rename", "directory"]


def test_discarding_after_sealing_keeps_the_chunk(spool: SpoolPort) -> None:
    sink = spool.begin(KEY, 1, 0, LAYOUT)
    sink.write(batch())
    size, sha256 = sink.seal()
    sink.discard()
    spool.verify(KEY, SealedChunk(1, 0, 1000, 0, size, sha256, DigestSum.zero()))


def test_a_chunk_without_rows_is_a_chunk(spool: SpoolPort) -> None:
    size, sha256 = spool.begin(KEY, 1, 0, LAYOUT).seal()
    chunk = SealedChunk(1, 0, 0, 0, size, sha256, DigestSum.zero())
    spool.verify(KEY, chunk)
    assert list(spool.read(KEY, chunk, LAYOUT)) == []


def test_another_layout_is_refused(spool: SpoolPort) -> None:
    sink = spool.begin(KEY, 1, 0, OTHER_LAYOUT)
    with pytest.raises(SourceDataError, match="layout"):
        sink.write(batch())
    sink.discard()
    chunk = seal(spool)
    with pytest.raises(SpoolError, match="layout") as caught:
        list(spool.read(KEY, chunk, OTHER_LAYOUT))
    assert caught.value.fields["ordinal"] == 0


# ---- damage -----------------------------------------------------------------------------------------------


def is_named(error: SpoolError, path: Path, ordinal: int = 3) -> bool:
    """As data and in the message: a path, or the URL that ends with it."""
    named = str(error.fields["path"])
    return named.endswith(str(path)) and named in str(error) and error.fields["ordinal"] == ordinal


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("at", [0, 1, 500, 5000, -1, -20])
def test_a_flipped_bit_is_found_and_named(
    spool: SpoolPort, form: ChunkFormat, tmp_path: Path, at: int
) -> None:
    chunk = seal(spool, 3, form=form)
    path = path_of(tmp_path, chunk)
    flip(path, at)
    with pytest.raises(SpoolError) as caught:
        spool.verify(KEY, chunk)
    assert caught.value.code == "dpone.spool.damaged"
    assert is_named(caught.value, path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("at", [0, 5, -1])
def test_a_changed_format_file_is_found_and_named(spool: SpoolPort, tmp_path: Path, at: int) -> None:
    """[D2] It decides what the bytes mean."""
    chunk = seal(spool, 3, form="mssql_native")
    beside = path_of(tmp_path, chunk).with_suffix(".fmt")
    flip(beside, at)
    with pytest.raises(SpoolError) as caught:
        spool.verify(KEY, chunk)
    assert caught.value.code == "dpone.spool.damaged"
    assert is_named(caught.value, beside)
    beside.unlink()
    with pytest.raises(SpoolError) as caught:
        spool.verify(KEY, chunk)
    assert caught.value.code == "dpone.spool.missing"
    assert is_named(caught.value, beside)


@pytest.mark.parametrize("keep", [0, 1, 1000, -1])
def test_a_cut_file_is_found_and_named(
    spool: SpoolPort, form: ChunkFormat, tmp_path: Path, keep: int
) -> None:
    chunk = seal(spool, 3, form=form)
    path = path_of(tmp_path, chunk)
    path.write_bytes(path.read_bytes()[:keep])
    for look in (lambda: spool.verify(KEY, chunk), lambda: list(spool.read(KEY, chunk, LAYOUT))):
        with pytest.raises(SpoolError) as caught:
            look()
        assert caught.value.code == "dpone.spool.damaged"
        assert is_named(caught.value, path)


def test_appended_bytes_are_found(spool: SpoolPort, form: ChunkFormat, tmp_path: Path) -> None:
    chunk = seal(spool, form=form)
    with path_of(tmp_path, chunk).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(SpoolError, match="bytes"):
        spool.verify(KEY, chunk)


def test_a_missing_chunk_is_named(spool: SpoolPort, form: ChunkFormat, tmp_path: Path) -> None:
    chunk = seal(spool, 3, form=form)
    path = path_of(tmp_path, chunk)
    path.unlink()
    never = dataclasses.replace(chunk, extraction_epoch=9)
    for look in (
        lambda: spool.verify(KEY, chunk),
        lambda: list(spool.read(KEY, chunk, LAYOUT)),
        lambda: spool.verify(KEY, never),
        lambda: spool.verify("cd" * 32, chunk),
    ):
        with pytest.raises(SpoolError) as caught:
            look()
        assert caught.value.code == "dpone.spool.missing"
        assert caught.value.fields["ordinal"] == 3


def test_a_link_in_the_place_of_a_chunk_is_not_followed(local: LocalSpool, tmp_path: Path) -> None:
    chunk = seal(local)
    path = path_of(tmp_path, chunk)
    elsewhere = tmp_path / "copy.arrow"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(SpoolError) as caught:
        local.verify(KEY, chunk)
    assert caught.value.code == "dpone.spool.unusable"


# ---- two writers [C12] ------------------------------------------------------------------------------------


def test_two_epochs_do_not_meet(spool: SpoolPort, new_spool: Callable[[], SpoolPort]) -> None:
    """[C12] The same ordinal of two tries; dropping one leaves the other."""
    first = seal(spool, 3, epoch=1)
    second = seal(new_spool(), 3, epoch=2, rows=10)
    spool.discard_epoch(KEY, 1)
    spool.verify(KEY, second)
    with pytest.raises(SpoolError, match="not there"):
        spool.verify(KEY, first)


def test_a_fenced_writer_cannot_seal_the_file_of_its_successor(
    spool: SpoolPort, new_spool: Callable[[], SpoolPort], tmp_path: Path
) -> None:
    """[C12] Same epoch and ordinal: the old one keeps its own bytes and gets no name for them."""
    old = spool.begin(KEY, 1, 0, LAYOUT)
    old.write(batch(10))
    new = new_spool().begin(KEY, 1, 0, LAYOUT)
    new.write(batch(20))
    old.write(batch(10))
    with pytest.raises(SpoolError, match="Another process"):
        old.seal()
    old.discard()
    size, sha256 = new.seal()
    chunk = SealedChunk(1, 0, 20, 0, size, sha256, DigestSum.zero())
    spool.verify(KEY, chunk)
    assert sum(b.num_rows for b in spool.read(KEY, chunk, LAYOUT)) == 20
    assert files(tmp_path) == [f"{KEY}/1/000000.{sha256}.arrow"]


def test_a_part_of_a_dead_process_is_replaced(local: LocalSpool, tmp_path: Path) -> None:
    chunk = seal(local, 0)
    part = path_of(tmp_path, chunk).with_name("000001.part")
    part.write_bytes(b"x" * 10_000_000)
    part.chmod(0o644)
    later = seal(local, 1)
    local.verify(KEY, later)
    assert later.file_bytes < 100_000
    assert stat.S_IMODE(path_of(tmp_path, later).stat().st_mode) == 0o600
    assert not part.exists()


def test_a_planted_link_is_not_written_through(local: LocalSpool, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    chunk = seal(local, 0)
    path_of(tmp_path, chunk).with_name("000001.part").symlink_to(victim)
    seal(local, 1)
    assert victim.read_text() == "precious"


# ---- discarding -------------------------------------------------------------------------------------------


def test_discarding_twice_is_fine_and_leaves_others_alone(spool: SpoolPort, tmp_path: Path) -> None:
    seal(spool, 0)
    seal(spool, 1, epoch=2)
    other = seal(spool, 0, key="cd" * 32)
    open_chunk = spool.begin(KEY, 2, 2, LAYOUT)
    spool.discard(KEY)
    spool.discard(KEY)
    spool.discard_epoch(KEY, 1)
    open_chunk.discard()
    spool.verify("cd" * 32, other)
    assert [name.split("/")[0] for name in files(tmp_path)] == ["cd" * 32]


def test_discarding_what_never_was_is_fine(spool: SpoolPort) -> None:
    spool.discard(KEY)
    spool.discard_epoch(KEY, 5)


@pytest.mark.parametrize("where", ["invocation", "epoch"])
def test_discarding_never_follows_a_link(local: LocalSpool, tmp_path: Path, where: str) -> None:
    """A planted link is refused, what it points to stays."""
    seal(local)
    outside = tmp_path / "outside" / "1"
    outside.mkdir(parents=True)
    (outside / "precious").write_text("precious")
    link = tmp_path / "spool" / ("cd" * 32) if where == "invocation" else tmp_path / "spool" / KEY / "7"
    link.symlink_to(outside.parent if where == "invocation" else outside)
    with pytest.raises(SpoolError) as caught:
        local.discard_epoch(*(("cd" * 32, 1) if where == "invocation" else (KEY, 7)))
    assert caught.value.code == "dpone.spool.unusable"
    if where == "invocation":
        with pytest.raises(SpoolError):
            local.discard("cd" * 32)
    else:
        local.discard(KEY)
    assert (outside / "precious").read_text() == "precious"


@pytest.mark.parametrize("key", ["..", ".", "", "a/b", "/etc", "a.b", "x" * 200])
def test_a_key_is_one_plain_name(spool: SpoolPort, tmp_path: Path, key: str) -> None:
    (tmp_path / "precious").write_text("precious")
    chunk = SealedChunk(1, 0, 0, 0, 0, "ab" * 32, DigestSum.zero())
    for act in (
        lambda: spool.discard(key),
        lambda: spool.discard_epoch(key, 1),
        lambda: spool.begin(key, 1, 0, LAYOUT),
        lambda: spool.verify(key, chunk),
    ):
        with pytest.raises(SpoolError) as caught:
            act()
        assert caught.value.code == "dpone.spool.unusable"
    assert (tmp_path / "precious").exists()


def test_a_spool_for_everybody_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool").chmod(0o777)
    with pytest.raises(SpoolError) as caught, LocalSpool(str(tmp_path / "spool")):
        pass
    assert caught.value.code == "dpone.spool.unusable"


# ---- room [2.22] ------------------------------------------------------------------------------------------


def test_free_bytes_does_not_need_the_directory(tmp_path: Path) -> None:
    """plan asks before anything is made."""
    spool = LocalSpool(str(tmp_path / "not" / "yet"))
    found = os.statvfs(tmp_path)
    assert 0 < spool.free_bytes() <= found.f_blocks * found.f_frsize
    assert list(tmp_path.iterdir()) == []


def test_the_host_has_a_name(tmp_path: Path) -> None:
    """[3.20]"""
    assert LocalSpool(str(tmp_path)).host_id == host_id() != ""
    assert LocalSpool(str(tmp_path), host_id="worker-7").host_id == "worker-7"


def run_child(code: str, *arguments: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    prelude = (
        "from tests.contract.test_spool_contract import *\nimport sys\nspool = LocalSpool(sys.argv[1])\n"
    )
    return subprocess.run(
        [*before, sys.executable, "-c", prelude + textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def test_a_full_disk_is_a_capacity_error(tmp_path: Path) -> None:
    """[2.22] EFBIG, mapped like ENOSPC; then the rest is discarded and a smaller chunk fits."""
    done = run_child(
        """
        import pickle, resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        sink = spool.begin(KEY, 1, 0, LAYOUT)
        try:
            for _ in range(100):
                sink.write(batch())
            sink.seal()
        except CapacityError as error:
            error = pickle.loads(pickle.dumps(error))
            print(error.code, error.fields["free_bytes"] > 0, str(error.fields["free_bytes"]) in str(error))
            print(error.retry, error.fields["ordinal"])
        sink.discard()
        print(sorted(os.listdir(os.path.join(spool.path, KEY, "1"))))
        spool.verify(KEY, seal(spool, 0, rows=10))
        """,
        str(tmp_path / "spool"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["dpone.spool.full True True", "backoff 0", "[]"]


def test_a_really_full_file_system_is_a_capacity_error(tmp_path: Path) -> None:
    """[2.22] ENOSPC from the kernel: a file system of 64 KiB, where this user may mount one."""
    mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=64k none "$1" && shift && exec "$@"', "sh"]
    place = tmp_path / "small"
    place.mkdir()
    if (
        shutil.which("unshare") is None
        or subprocess.run([*mount, str(place), "true"], check=False).returncode
    ):
        pytest.skip("capability gap: this user may not mount a file system")
    code = """
        try:
            seal(spool, 0, rows=100_000)
        except CapacityError as error:
            print(error.code, error.fields["free_bytes"] < 65_536)
        """
    done = run_child(code, str(place / "spool"), before=[*mount, str(place)])
    assert (done.returncode, done.stdout) == (0, "dpone.spool.full True\n"), done.stderr


def test_a_full_file_system_is_a_capacity_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC where it really comes late: at fsync and at mkdir."""
    spool = LocalSpool(str(tmp_path / "spool"))
    sink = spool.begin(KEY, 1, 0, LAYOUT)
    sink.write(batch())

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CapacityError, match="free"):
            sink.seal()
    sink.discard()
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", full)
        with pytest.raises(CapacityError):
            spool.begin(KEY, 2, 0, LAYOUT)
    assert files(tmp_path) == []


# ---- a killed writer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["writing", "closing", "renaming"])
def test_a_killed_writer_leaves_nothing_that_counts(tmp_path: Path, moment: str) -> None:
    """SIGKILL while it writes, before fsync, before the rename: no sealed name; the next writer goes on."""
    done = run_child(
        """
        import signal
        def die(*_, **__):
            os.kill(os.getpid(), signal.SIGKILL)
        seal(spool, 0)
        sink = spool.begin(KEY, 1, 1, LAYOUT)
        sink.write(batch())
        if sys.argv[2] == "closing":
            os.fsync = die
        if sys.argv[2] == "renaming":
            os.rename = die
        if sys.argv[2] == "writing":
            die()
        sink.seal()
        """,
        str(tmp_path / "spool"),
        moment,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = [name.rsplit("/", 1)[1] for name in files(tmp_path)]
    assert [name.startswith("000000.") and name.endswith(".arrow") for name in names] == [True, False]
    assert names[1] == "000001.part"
    spool = LocalSpool(str(tmp_path / "spool"))
    spool.verify(KEY, seal(spool, 1))
    assert [name.endswith(".arrow") for name in files(tmp_path)] == [True, True]


@pytest.mark.parametrize("moment", ["sending", "reading back", "tidying"])
def test_a_writer_killed_while_it_sends_leaves_nothing_that_counts(
    tmp_path: Path, form: ChunkFormat, moment: str
) -> None:
    """SIGKILL with half an object in the store, and after it; the next process removes the whole epoch."""
    done = run_child(
        """
        from airflow_dpone.spool.object_store import ObjectStore
        def die(*_):
            os.kill(os.getpid(), signal.SIGKILL)
        def send_half(self, local, *names):
            content = Path(local).read_bytes()
            key = Path(self._key(names))
            key.parent.mkdir(parents=True)
            key.write_bytes(content[: len(content) // 2])
            die()
        spool = opened("object storage", Path(sys.argv[1]))
        moment, form = sys.argv[2:]
        seal(spool, 0, form=form)
        if moment == "sending":
            ObjectStore.put = send_half
        if moment == "reading back":
            ObjectStore.blocks = die
        if moment == "tidying":
            LocalSpool.drop = die
        seal(spool, 1, epoch=2, form=form)
        """,
        str(tmp_path / "spool"),
        moment,
        form,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert any(name.startswith(f"{KEY}/2/000001.") for name in files(tmp_path))
    assert files(tmp_path, "cache") != []
    spool = opened("object storage", tmp_path / "spool")
    spool.discard_epoch(KEY, 2)
    assert {name.split("/")[1] for name in files(tmp_path)} == {"1"}
    spool.verify(KEY, seal(spool, 1, epoch=3, form=form))
    spool.discard(KEY)
    assert files(tmp_path) == files(tmp_path, "cache") == []
