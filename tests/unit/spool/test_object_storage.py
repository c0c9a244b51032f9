"""The spool in an object store: what a store may do to it, and what it asks of a store.

The store is one in memory, which has no directories, as real ones; Airflow attaches it like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.io import attach
from airflow.sdk.io.store import _STORE_CACHE
from airflow.sdk.lineage import get_hook_lineage_collector
from fsspec.implementations.memory import MemoryFileSystem

from airflow_dpone.errors import CapacityError, ConfigurationError, SpoolError
from airflow_dpone.spool.addresses import url_problem
from airflow_dpone.spool.object_storage import ObjectSpool
from tests.contract.test_spool_contract import KEY, LAYOUT, batch, seal

URL = "memory://bucket/dpone"


class Store(MemoryFileSystem):  # type: ignore[misc]
    """A store in memory that notes what is asked, and may do it badly."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[str] = []
        self.fault: Exception | None = None
        self.keep: Callable[[bytes], bytes] = bytes
        self.said: int | None = None

    def _step(self) -> None:
        if self.fault is not None:
            raise self.fault

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """The one way in."""
        self._step()
        self.puts.append(rpath)
        self.pipe_file(rpath, self.keep(Path(lpath).read_bytes()))

    def info(self, path: str, **options: Any) -> Any:
        """Length."""
        self._step()
        found = super().info(path, **options)
        return found if self.said is None else {**found, "size": self.said}

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removal."""
        self._step()
        super().rm(path, recursive=recursive, maxdepth=maxdepth)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Attached as ``memory://``, empty."""
    made = Store()
    monkeypatch.setitem(_STORE_CACHE, "memory", attach("memory", alias="dpone-test", fs=made))
    yield made
    made.store.clear()
    _STORE_CACHE.pop("dpone-test", None)


@pytest.fixture
def spool(store: Store, tmp_path: Path) -> ObjectSpool:
    return ObjectSpool(URL, str(tmp_path / "cache"))


def local_files(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_one_put_to_a_key_that_contains_the_hash(spool: ObjectSpool, store: Store, tmp_path: Path) -> None:
    """[C12] And the format file of native rows before the chunk that it belongs to."""
    plain, native = seal(spool, 3), seal(spool, 4, form="mssql_native")
    root = f"/bucket/dpone/{KEY}/1"
    assert [key.removeprefix("memory:/") for key in store.puts] == [
        f"{root}/000003.{plain.file_sha256}.arrow",
        f"{root}/000004.{native.file_sha256}.fmt",
        f"{root}/000004.{native.file_sha256}.native",
    ]
    content = store.cat_file(store.puts[0])
    assert (len(content), hashlib.sha256(content).hexdigest()) == (plain.file_bytes, plain.file_sha256)
    assert local_files(tmp_path) == []


def test_what_is_proved_is_a_private_local_copy_and_it_is_what_is_read(
    spool: ObjectSpool, store: Store, tmp_path: Path
) -> None:
    chunk = seal(spool)
    spool.verify(KEY, chunk)
    (copy,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path.stat().st_mode & 0o777 for path in (copy, copy.parent, tmp_path / "cache")] == [
        0o600,
        0o700,
        0o700,
    ]
    store.pipe_file(store.puts[0], b"changed after the proof")
    assert sum(b.num_rows for b in spool.read(KEY, chunk, LAYOUT)) == 1000
    assert local_files(tmp_path) == []
    with pytest.raises(SpoolError, match="bytes"):
        spool.verify(KEY, chunk)


def test_a_second_proof_looks_at_the_object_again(spool: ObjectSpool, store: Store) -> None:
    """Before *every* grant: a copy that is still there proves nothing about it."""
    chunk = seal(spool)
    spool.verify(KEY, chunk)
    content = store.cat_file(store.puts[0])
    store.pipe_file(store.puts[0], content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(SpoolError, match="SHA-256"):
        spool.verify(KEY, chunk)


@pytest.mark.parametrize("whole", [True, False])
def test_a_discard_removes_the_local_copy_too(spool: ObjectSpool, tmp_path: Path, whole: bool) -> None:
    chunk = seal(spool)
    spool.verify(KEY, chunk)
    assert len(local_files(tmp_path)) == 1
    spool.discard(KEY) if whole else spool.discard_epoch(KEY, 1)
    assert local_files(tmp_path) == []


def test_a_copy_that_was_not_proved_by_this_process_is_not_read(
    spool: ObjectSpool, store: Store, tmp_path: Path
) -> None:
    """A dead process may have left one."""
    chunk = seal(spool)
    spool.verify(KEY, chunk)
    (copy,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    copy.write_bytes(b"left by somebody")
    later = ObjectSpool(URL, str(tmp_path / "cache"))
    assert sum(b.num_rows for b in later.read(KEY, chunk, LAYOUT)) == 1000


def test_a_reader_that_gives_up_leaves_no_copy(spool: ObjectSpool, tmp_path: Path) -> None:
    chunk = seal(spool)
    batches = spool.read(KEY, chunk, LAYOUT)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert local_files(tmp_path) == []


@pytest.mark.parametrize(
    "keep",
    [lambda data: data[:-1], lambda data: data + b"\0", lambda data: data[:-1] + bytes([data[-1] ^ 1])],
    ids=["cut", "longer", "changed"],
)
def test_a_store_that_keeps_something_else_is_found_out_when_the_chunk_is_sealed(
    spool: ObjectSpool, store: Store, tmp_path: Path, keep: Callable[[bytes], bytes]
) -> None:
    """[C12] Length and bytes are read back."""
    store.keep = keep
    sink = spool.begin(KEY, 1, 0, LAYOUT)
    sink.write(batch())
    with pytest.raises(SpoolError, match="read back") as caught:
        sink.seal()
    assert (caught.value.code, caught.value.retry) == ("dpone.spool.store_failed", "backoff")
    assert str(caught.value.fields["path"]).startswith(URL)
    sink.discard()
    sink.discard()
    assert local_files(tmp_path) == []


def test_the_stores_own_length_counts_as_well_as_the_bytes(spool: ObjectSpool, store: Store) -> None:
    """[C12] What a later reader is told by the store must be what was sent."""
    store.said = 7
    with pytest.raises(SpoolError, match="read back"):
        seal(spool)


class _ClientError(Exception):
    """What a store's client raises: not an OSError, and with more in its text than anybody should see."""


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (_ClientError("https://store/?signature=SECRET"), "dpone.spool.store_failed"),
        (ConnectionResetError("SECRET"), "dpone.spool.store_failed"),
        (TimeoutError("SECRET"), "dpone.spool.store_failed"),
        (PermissionError("SECRET"), "dpone.spool.unusable"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_a_store_that_fails_is_named_and_its_text_is_not_repeated(
    spool: ObjectSpool, store: Store, tmp_path: Path, fault: Exception, code: str
) -> None:
    chunk = seal(spool)
    sink = spool.begin(KEY, 1, 1, LAYOUT)
    sink.write(batch())
    spool.verify(KEY, chunk)
    store.fault = fault
    for act in (
        sink.seal,
        lambda: spool.verify(KEY, chunk),
        lambda: spool.discard_epoch(KEY, 1),
        lambda: spool.discard(KEY),
    ):
        with pytest.raises(SpoolError) as caught:
            act()
        assert caught.value.code == code
        assert "SECRET" not in str(caught.value)
        assert "memory://bucket/dpone" in str(caught.value)
    assert local_files(tmp_path) == [], "rows must not stay here because the store does not answer"
    store.fault = None
    spool.discard(KEY)
    assert store.store == {}


def test_an_epoch_that_another_process_discarded_while_it_was_sealed(
    spool: ObjectSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A successor of this process on the same machine: an error of ours, nothing is sent."""
    sink = spool.begin(KEY, 1, 0, LAYOUT)
    send = spool.send

    def too_late(key: str, chunk: Any) -> None:
        ObjectSpool(URL, str(tmp_path / "cache")).discard_epoch(KEY, 1)
        send(key, chunk)

    monkeypatch.setattr(spool, "send", too_late)
    with pytest.raises(SpoolError) as caught:
        sink.seal()
    assert caught.value.code == "dpone.spool.io"
    sink.discard()


def test_a_missing_bucket_is_no_missing_chunk(spool: ObjectSpool, store: Store) -> None:
    sink = spool.begin(KEY, 1, 0, LAYOUT)
    store.fault = FileNotFoundError("bucket")
    with pytest.raises(SpoolError, match="bucket or directory") as caught:
        sink.seal()
    assert caught.value.code == "dpone.spool.unusable"


def test_a_full_cache_is_a_capacity_error(spool: ObjectSpool, monkeypatch: pytest.MonkeyPatch) -> None:
    """[2.22] A copy that finds no room."""
    chunk = seal(spool)
    from airflow_dpone.spool import local

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(local.os, "rename", full)
        with pytest.raises(CapacityError, match="free"):
            spool.verify(KEY, chunk)
    spool.verify(KEY, chunk)


def test_a_mounted_directory_that_is_full_or_open_to_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "share"
    spool = ObjectSpool(f"file://{place}", str(tmp_path / "cache"))
    sink = spool.begin(KEY, 1, 0, LAYOUT)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", full)
        with pytest.raises(CapacityError) as caught:
            sink.seal()
    assert caught.value.fields["free_bytes"] > 0
    place.chmod(0o777)
    with pytest.raises(SpoolError, match="Everybody"), ObjectSpool(f"file://{place}", str(tmp_path / "c")):
        pass


def test_the_place_is_the_same_from_every_worker(tmp_path: Path) -> None:
    """[2.17] An object store is not bound to a machine: its name stands for the host's."""
    here, there = ObjectSpool(URL, str(tmp_path / "a")), ObjectSpool(f"{URL}/", str(tmp_path / "b"))
    assert here.host_id == there.host_id == URL
    assert here.free_bytes() > 0


@pytest.mark.parametrize("url", ["nostore://bucket/x", "s3x://bucket/x"])
def test_a_scheme_without_a_provider_is_unusable(tmp_path: Path, url: str) -> None:
    with pytest.raises(SpoolError) as caught, ObjectSpool(url, str(tmp_path / "cache")):
        pass
    assert caught.value.code == "dpone.spool.unusable"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("s3://AKIA:secret@bucket/x", "dpone.config.secret_in_uri"),
        ("s3://conn@bucket/x", "dpone.config.secret_in_uri"),
        ("s3://bucket/x?endpoint=y", "dpone.config.uri"),
        ("s3://bucket/x#y", "dpone.config.uri"),
        ("s3://bucket/*", "dpone.config.uri"),
        ("s3://bucket/a/../b", "dpone.config.uri"),
        ("s3:///x", "dpone.config.uri"),
        ("://x", "dpone.config.uri"),
        ("file://host/x", "dpone.config.uri"),
        ("file:///", "dpone.config.uri"),
        ("file:////tmp/x", "dpone.config.uri"),
        ("FILE:///tmp/x", "dpone.config.uri"),
        ("s3://key:with/secret@bucket/p", "dpone.config.secret_in_uri"),
        ("s3://key%3Awithsecret%40bucket/p", "dpone.config.secret_in_uri"),
        ("gs://key:secret", "dpone.config.secret_in_uri"),
    ],
)
def test_a_url_that_cannot_be_a_place_is_refused_and_not_repeated(
    tmp_path: Path, url: str, code: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ObjectSpool(url, str(tmp_path))
    assert [problem.code for problem in caught.value.problems] == [code]
    assert "with/secret" not in str(caught.value)
    assert code != "dpone.config.secret_in_uri" or url not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://b", "s3://b/p/q", "gs://b/p", "abfs://c/p", "file:///mnt/share/dpone"])
def test_a_url_that_can_be_a_place(url: str) -> None:
    assert url_problem(url) is None


def test_sealed_chunks_are_nobodys_lineage(spool: ObjectSpool) -> None:
    before = get_hook_lineage_collector().collected_assets
    chunk = seal(spool)
    spool.verify(KEY, chunk)
    list(spool.read(KEY, chunk, LAYOUT))
    assert get_hook_lineage_collector().collected_assets == before


def test_another_process_that_removes_the_local_copy_does_not_stop_a_read(
    spool: ObjectSpool, tmp_path: Path
) -> None:
    """A replaced process and its successor work on the same chunk for a moment, on one machine."""
    chunk = seal(spool)
    other = ObjectSpool(URL, str(tmp_path / "cache"))
    spool.verify(KEY, chunk)
    other.forget(KEY, chunk)
    assert sum(batch.num_rows for batch in spool.read(KEY, chunk, LAYOUT)) == chunk.rows


def test_a_copy_that_vanishes_every_time_is_a_matter_for_a_retry(
    spool: ObjectSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = seal(spool)
    whole = spool._cache.adopt

    def adopt_and_lose(*given: Any) -> None:
        whole(*given)
        spool._cache.drop(KEY, chunk)

    monkeypatch.setattr(spool._cache, "adopt", adopt_and_lose)
    with pytest.raises(SpoolError) as caught:
        spool.verify(KEY, chunk)
    assert (caught.value.code, caught.value.retry) == ("dpone.spool.store_failed", "backoff")
