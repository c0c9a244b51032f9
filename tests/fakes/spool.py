"""A spool in memory, for tests that seal thousands of chunks."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from types import TracebackType

import pyarrow as pa

from airflow_dpone.delivery.ports import effect
from airflow_dpone.delivery.records import SealedChunk
from airflow_dpone.errors import SpoolError
from airflow_dpone.wire.chunk_format import ChunkFormat, format_file_of, new_writer, read_chunk
from airflow_dpone.wire.types import WireLayout

Place = tuple[str, int, int]


class _Bytes:
    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes | memoryview, /) -> int:
        self.data += data
        return len(data)


class MemorySink:
    """An open chunk."""

    def __init__(
        self, spool: MemorySpool, place: Place, layout: WireLayout, chunk_format: ChunkFormat
    ) -> None:
        self._spool, self._place, self._bytes = spool, place, _Bytes()
        self._writer = new_writer(chunk_format, self._bytes, layout)
        beside = format_file_of(chunk_format, layout)
        self.format_file_sha256 = None if beside is None else hashlib.sha256(beside).hexdigest()

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows."""
        self._writer.write(batch)

    @effect
    def seal(self) -> tuple[int, str]:
        """Keeps the bytes."""
        self._writer.close()
        self._spool.files[self._place] = bytes(self._bytes.data)
        return self._writer.size_bytes, self._writer.sha256

    def discard(self) -> None:
        """Forgets what was written."""
        self._bytes.data.clear()


class MemorySpool:
    """A SpoolPort whose files are in a dict."""

    host_id = "memory"

    def __init__(self, free: int = 2**60) -> None:
        self.files: dict[Place, bytes] = {}
        self.free = free

    def __enter__(self) -> MemorySpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def free_bytes(self) -> int:
        """As the test says."""
        return self.free

    @effect
    def begin(
        self,
        invocation_key: str,
        extraction_epoch: int,
        ordinal: int,
        layout: WireLayout,
        chunk_format: ChunkFormat = "arrow_ipc",
    ) -> MemorySink:
        """Opens a chunk."""
        return MemorySink(self, (invocation_key, extraction_epoch, ordinal), layout, chunk_format)

    def _data(self, invocation_key: str, chunk: SealedChunk) -> bytes:
        place = (invocation_key, chunk.extraction_epoch, chunk.ordinal)
        if place not in self.files:
            raise SpoolError("dpone.spool.missing", f"Sealed chunk {chunk.ordinal} is not there.")
        return self.files[place]

    def verify(self, invocation_key: str, chunk: SealedChunk) -> None:
        """Hashes again."""
        for _ in read_sealed_checked(self._data(invocation_key, chunk), chunk):
            break

    def read(self, invocation_key: str, chunk: SealedChunk, layout: WireLayout) -> Iterator[pa.RecordBatch]:
        """The batches."""
        file = io.BytesIO(self._data(invocation_key, chunk))
        return read_chunk(chunk.chunk_format, file, layout, rows=chunk.rows)

    @effect
    def discard_epoch(self, invocation_key: str, extraction_epoch: int) -> None:
        """Forgets an epoch."""
        self.files = {p: d for p, d in self.files.items() if p[:2] != (invocation_key, extraction_epoch)}

    @effect
    def discard(self, invocation_key: str) -> None:
        """Forgets an invocation."""
        self.files = {place: data for place, data in self.files.items() if place[0] != invocation_key}


def read_sealed_checked(data: bytes, chunk: SealedChunk) -> Iterator[bytes]:
    """The data, when it has the chunk's size and hash."""
    if (len(data), hashlib.sha256(data).hexdigest()) != (chunk.file_bytes, chunk.file_sha256):
        raise SpoolError("dpone.spool.damaged", f"Sealed chunk {chunk.ordinal} is damaged.")
    yield data
