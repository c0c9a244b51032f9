"""The spool in an object store: every worker that reaches the store may resume a delivery.

``<url>/<invocation_key>/<extraction_epoch>/<ordinal>.<sha256>.arrow`` (``.native`` and ``.fmt`` for native
rows). An object store has no rename and no fsync, so a chunk is written to a local file first, hashed, and
sent in ONE PUT to a key that contains its SHA-256; then it is read back, length and bytes. Two writers of one
ordinal therefore never share a key, and no key ever holds other bytes than its name says without being found.

Before a chunk is given to a writer it is copied to the local cache and the *copy* is hashed: what is read is
what was proved. The cache (directories 0700, files 0600) holds one chunk that is written or read; a discard
removes what a dead process left there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType

import pyarrow as pa

from airflow_dpone.delivery.ports import ChunkSink, effect
from airflow_dpone.delivery.records import SealedChunk
from airflow_dpone.errors import ConfigurationError, SpoolError
from airflow_dpone.spool.addresses import checked, sealed_files, url_problem
from airflow_dpone.spool.chunk_file import spool_error
from airflow_dpone.spool.local import LocalSpool, damaged, missing
from airflow_dpone.spool.object_store import ObjectStore
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.types import WireLayout

COPY_ATTEMPTS = 5
_MISSING = "dpone.spool.missing"


class _CopyGoneError(Exception):
    """The local copy vanished between being made and being hashed."""


class ObjectSpool(AbstractContextManager["ObjectSpool"]):
    """A :class:`~airflow_dpone.delivery.ports.SpoolPort` below one URL.

    :param url: ``s3://bucket/prefix`` and the like; no user, no parameters.
    :param cache_dir: local directory for the chunk in work, made when it is needed.
    :param conn_id: the Airflow connection that holds the credentials.

    ``host_id`` is the URL: it says where the chunks are, and that is the same from every worker. So a phase
    may run on another machine than the one before; only another URL is ``dpone.spool.on_other_host``.
    """

    def __init__(self, url: str, cache_dir: str, *, conn_id: str | None = None) -> None:
        problem = url_problem(url)
        if problem is not None:
            raise ConfigurationError.of([problem])
        self.url = self.host_id = url.rstrip("/")
        self._conn_id = conn_id
        self._cache = LocalSpool(cache_dir, host_id=self.host_id)
        self._opened: ObjectStore | None = None
        self._proved: set[tuple[str, str]] = set()

    def __enter__(self) -> ObjectSpool:
        with self._cache:
            self._store  # noqa: B018 - opened here, so that a bad URL is said before anything is read
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @property
    def _store(self) -> ObjectStore:
        if self._opened is None:
            self._opened = ObjectStore(self.url, self._conn_id)
        return self._opened

    def free_bytes(self) -> int:
        """Free space for the chunk in work, of the cache's file system: a store does not say how much it
        has."""
        return self._cache.free_bytes()

    @effect
    def begin(
        self,
        invocation_key: str,
        extraction_epoch: int,
        ordinal: int,
        layout: WireLayout,
        chunk_format: ChunkFormat = "arrow_ipc",
    ) -> ChunkSink:
        """Opens a new chunk in the cache; the store sees it when it is sealed."""
        inner = self._cache.begin(invocation_key, extraction_epoch, ordinal, layout, chunk_format)
        return ObjectChunk(self, inner, (invocation_key, extraction_epoch, ordinal), chunk_format)

    def verify(self, invocation_key: str, chunk: SealedChunk) -> None:
        """Copies the chunk into the cache and hashes the copy.

        :raises SpoolError: it is missing, or not the bytes that were sealed; with ``path`` (the object's URL)
            and ``ordinal``. ``dpone.spool.store_failed``: the store did not answer; the task tries again.
        """
        for last in (False,) * (COPY_ATTEMPTS - 1) + (True,):
            try:
                self._copy_and_hash(invocation_key, chunk)
                return
            except _CopyGoneError:
                if last:
                    raise self._copy_lost(invocation_key, chunk) from None

    def _copy_and_hash(self, invocation_key: str, chunk: SealedChunk) -> None:
        self._proved.discard((invocation_key, chunk.file_sha256))
        folder = (checked(invocation_key), str(chunk.extraction_epoch))
        try:
            for name, file_bytes, _ in sealed_files(chunk):
                path = self._store.url_of(*folder, name)
                size = self._store.size(*folder, name)
                if file_bytes is not None and size != file_bytes:
                    raise damaged(path, chunk, f"has {size} bytes, {file_bytes} were sealed")
                self._cache.adopt(invocation_key, chunk, name, self._store.blocks(*folder, name))
            self._cache.verify(invocation_key, chunk)
        except FileNotFoundError:
            raise missing(path, chunk) from None
        except SpoolError as error:
            self.forget(invocation_key, chunk)
            if error.code == _MISSING and error.fields.get("path") != path:
                raise _CopyGoneError from error
            raise self._of_the_object(error, invocation_key, chunk) from error
        self._proved.add((invocation_key, chunk.file_sha256))

    def _copy_lost(self, invocation_key: str, chunk: SealedChunk) -> SpoolError:
        url = self._store.url_of(invocation_key, str(chunk.extraction_epoch), sealed_files(chunk)[-1][0])
        text = f"Another process of this machine keeps removing the local copy of {url}."
        return SpoolError("dpone.spool.store_failed", text, path=url, ordinal=chunk.ordinal)

    def read(self, invocation_key: str, chunk: SealedChunk, layout: WireLayout) -> Iterator[pa.RecordBatch]:
        """The batches of the copy that :meth:`verify` proved, which is removed afterwards; without one, the
        chunk is verified first."""
        try:
            first, batches = self._opened_copy(invocation_key, chunk, layout)
            yield from first
            yield from batches
        except SpoolError as error:
            raise self._of_the_object(error, invocation_key, chunk) from error
        finally:
            self.forget(invocation_key, chunk)

    def _opened_copy(
        self, invocation_key: str, chunk: SealedChunk, layout: WireLayout
    ) -> tuple[list[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """The first batch, and the rest. Once it is open, nobody can take the copy away; before, a process of
        this machine that works on the same chunk may, and then it is copied and proved again."""
        for _ in range(COPY_ATTEMPTS):
            if (invocation_key, chunk.file_sha256) not in self._proved:
                self.verify(invocation_key, chunk)
            batches = self._cache.read(invocation_key, chunk, layout)
            try:
                return [batch for batch in (next(batches, None),) if batch is not None], batches
            except SpoolError as error:
                if error.code != _MISSING:
                    raise
                self._proved.discard((invocation_key, chunk.file_sha256))
        raise self._copy_lost(invocation_key, chunk)

    @effect
    def discard_epoch(self, invocation_key: str, extraction_epoch: int) -> None:
        """Removes every object of one extraction epoch, here and in the store; gone already is fine."""
        self._cache.discard_epoch(invocation_key, extraction_epoch)
        self._store.remove(checked(invocation_key), str(int(extraction_epoch)))

    @effect
    def discard(self, invocation_key: str) -> None:
        """Removes every object of the invocation, here and in the store; gone already is fine."""
        self._cache.discard(invocation_key)
        self._store.remove(checked(invocation_key))

    def _of_the_object(self, error: SpoolError, invocation_key: str, chunk: SealedChunk) -> SpoolError:
        """The same error about the object instead of its local copy, which is gone by now."""
        name = sealed_files(chunk)[-1][0]
        url = self._store.url_of(invocation_key, str(chunk.extraction_epoch), name)
        folder = self._cache.path_of(invocation_key, chunk, "")
        there = self._store.url_of(invocation_key, str(chunk.extraction_epoch), "")
        path = str(error.fields.get("path", url)).replace(folder, there)
        fields = {**error.fields, "path": path, "ordinal": chunk.ordinal}
        return SpoolError(error.code, error.message.replace(folder, there), **fields)

    def send(self, invocation_key: str, chunk: SealedChunk) -> None:
        """One PUT for each file of a chunk in the cache, each read back; then the cache forgets them."""
        for name, _, sha256 in sealed_files(chunk):
            names = (invocation_key, str(chunk.extraction_epoch), name)
            local = self._cache.path_of(invocation_key, chunk, name)
            try:
                size = os.path.getsize(local)
            except OSError as error:  # another process discarded the epoch meanwhile
                raise spool_error(error, local, ordinal=chunk.ordinal) from error
            self._store.put(local, *names)
            # The store's own length first, then all bytes: no store tells a SHA-256 that it made itself.
            if not self._holds(names, size, sha256):
                url = self._store.url_of(*names)
                text = f"Chunk {chunk.ordinal} was sent, but what is read back is not the same: {url}."
                raise SpoolError("dpone.spool.store_failed", text, path=url, ordinal=chunk.ordinal)
        self.forget(invocation_key, chunk)

    def _holds(self, names: tuple[str, ...], size: int, sha256: str) -> bool:
        found = hashlib.sha256()
        try:
            if self._store.size(*names) != size:
                return False
            for block in self._store.blocks(*names):
                found.update(block)
        except FileNotFoundError:
            return False
        return found.hexdigest() == sha256

    def forget(self, invocation_key: str, chunk: SealedChunk) -> None:
        """Removes a chunk from the cache."""
        self._proved.discard((invocation_key, chunk.file_sha256))
        self._cache.drop(invocation_key, chunk)


class ObjectChunk:
    """A :class:`~airflow_dpone.delivery.ports.ChunkSink`: a local file until :meth:`seal` sends it."""

    def __init__(
        self, spool: ObjectSpool, inner: ChunkSink, place: tuple[str, int, int], chunk_format: ChunkFormat
    ) -> None:
        self._spool, self._inner, self._place, self._format = spool, inner, place, chunk_format
        self._unsent: SealedChunk | None = None
        self.format_file_sha256 = inner.format_file_sha256

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows to the local file."""
        self._inner.write(batch)

    @effect
    def seal(self) -> tuple[int, str]:
        """Ends the local file, sends it and reads it back.

        :return: bytes and hex SHA-256 of the object.
        :raises SpoolError: ``dpone.spool.store_failed``; what the store has of it, a discard of the epoch
            removes.
        """
        size, sha256 = self._inner.seal()
        key, epoch, ordinal = self._place
        form = (self._format, self.format_file_sha256)
        # Rows and digest are the engine's to know; here it is only a name with a hash.
        self._unsent = SealedChunk(epoch, ordinal, 0, 0, size, sha256, DigestSum.zero(), *form)
        self._spool.send(key, self._unsent)
        self._unsent = None
        return size, sha256

    def discard(self) -> None:
        """Removes the local file; after :meth:`seal`, or a second time, it does nothing."""
        self._inner.discard()
        if self._unsent is not None:
            self._spool.forget(self._place[0], self._unsent)
            self._unsent = None
