"""Sealed chunks as bytes: an uncompressed Arrow IPC file of target-typed batches that names its row layout.

No paths here: a sink needs ``write()`` only, a source is bytes or a seekable binary file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.ipc

from airflow_dpone.errors import SourceDataError, SpoolError
from airflow_dpone.wire.types import WireLayout

MAX_BATCH_ROWS = 65_536

_HASH_BLOCK_BYTES = 1 << 20
_READ_ERRORS = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError)


class Sink(Protocol):
    """What a :class:`SealedWriter` writes to."""

    def write(self, data: bytes | memoryview, /) -> int | None:
        """Take bytes; a smaller return value than given means that the rest was not taken."""
        ...


class CountingSink:
    """A file object in front of a sink, as Arrow wants one: counts and hashes what passes."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.hash = hashlib.sha256()
        self.size_bytes = 0
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        """Gives all bytes to the sink."""
        view = memoryview(data).cast("B")
        self.hash.update(view)
        rest = view
        while rest:
            taken = self._sink.write(rest)
            rest = rest[len(rest) if taken is None else taken :]
        self.size_bytes += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class SealedWriter:
    """Writes one sealed chunk. The bytes are complete after :meth:`close` only.

    :param sink: receives the bytes in order; it is neither flushed nor closed.
    :param layout: the layout of every batch; its SHA-256 stands in the file.
    """

    def __init__(self, sink: Sink, layout: WireLayout) -> None:
        self._counting = CountingSink(sink)
        self._schema = layout.arrow_schema
        self._open = True
        self.rows = 0
        """Rows written so far."""
        self._writer = pyarrow.ipc.new_file(
            self._counting, self._schema, options=pyarrow.ipc.IpcWriteOptions(compression=None)
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch, cut to at most 65,536 rows each.

        :raises SourceDataError: ``dpone.wire.layout``: other columns than the layout's, or NULL in a NOT NULL
            column.
        """
        if not batch.schema.equals(self._schema):
            raise SourceDataError(
                "dpone.wire.layout", "A batch to seal does not have the columns of the layout."
            )
        for field, column in zip(self._schema, batch.columns, strict=True):
            if not field.nullable and column.null_count:
                raise SourceDataError(
                    "dpone.wire.layout", f"A batch to seal has NULL in {field.name!r}.", column=field.name
                )
        whole = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        for start in range(0, whole.num_rows, MAX_BATCH_ROWS):
            self._writer.write_batch(whole.slice(start, MAX_BATCH_ROWS))
        self.rows += whole.num_rows

    def close(self) -> None:
        """Write the end of the file; a second call does nothing."""
        if self._open:
            self._open = False
            self._writer.close()

    @property
    def size_bytes(self) -> int:
        """Bytes given to the sink so far."""
        return self._counting.size_bytes

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the bytes given to the sink so far."""
        return self._counting.hash.hexdigest()


def read_sealed(
    source: bytes | bytearray | memoryview | pa.Buffer | BinaryIO,
    layout: WireLayout,
    *,
    sha256: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches of a sealed chunk, each checked before it is handed out.

    Arrow IPC has no checksum: a changed *value* is found by ``sha256`` only, so give it unless the bytes were
    compared with it just before.

    :param source: the whole file.
    :param layout: the layout that it must name.
    :param sha256: the hex SHA-256 that was noted when the chunk was sealed.
    :raises SpoolError: ``dpone.spool.damaged``, at the call or while iterating.
    """
    if sha256 is not None and _sha256(source) != sha256:
        raise _damaged("its SHA-256 is not the one that was noted when it was sealed")
    try:
        reader = pyarrow.ipc.open_file(source)
        schema, batches = reader.schema, reader.num_record_batches
    except _READ_ERRORS as error:
        raise _damaged(f"it is no complete Arrow file ({type(error).__name__})") from error
    if not schema.equals(layout.arrow_schema, check_metadata=True):
        raise _damaged("its schema or layout SHA-256 is another one")
    return _batches(reader, batches)


def _batches(reader: pyarrow.ipc.RecordBatchFileReader, count: int) -> Iterator[pa.RecordBatch]:
    for ordinal in range(count):
        try:
            batch = reader.get_batch(ordinal)
            batch.validate(full=True)
        except _READ_ERRORS as error:
            raise _damaged(f"batch {ordinal} cannot be read ({type(error).__name__})") from error
        if batch.num_rows > MAX_BATCH_ROWS:
            raise _damaged(f"batch {ordinal} has {batch.num_rows} rows, more than {MAX_BATCH_ROWS}")
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if not field.nullable and column.null_count:
                raise _damaged(f"batch {ordinal} has NULL in the NOT NULL column {field.name!r}")
        yield batch


def _sha256(source: bytes | bytearray | memoryview | pa.Buffer | BinaryIO) -> str:
    digest = hashlib.sha256()
    if isinstance(source, (bytes, bytearray, memoryview, pa.Buffer)):
        digest.update(source)
        return digest.hexdigest()
    source.seek(0)
    while block := source.read(_HASH_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _damaged(detail: str) -> SpoolError:
    return SpoolError("dpone.spool.damaged", f"A sealed chunk is damaged: {detail}.")
