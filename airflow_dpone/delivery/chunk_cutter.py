"""Cuts one stream of raw batches into sealed chunks by rows and encoded bytes; memory is bounded by one
batch, and a piece for each encoding process."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.ports import ChunkSink
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.delivery.states import DeliveryEvent
from airflow_dpone.errors import CapacityError, SourceDataError
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.encoder import EncodedPiece, new_encoder
from airflow_dpone.wire.native_rows import cell_lengths

PIECE_BYTES = 16 * 1024 * 1024
PIECE_ROWS = 65_536


class ChunkCutter:
    """Takes raw batches in order; seals a chunk whenever the next row would cross a limit.

    A sealed chunk is journaled at once (CHUNK_SEALED); a crash loses the whole extraction epoch, never a part
    of it.
    """

    def __init__(self, run: DeliveryRun, extraction_epoch: int) -> None:
        self._run, self._epoch = run, extraction_epoch
        self._limits, self._layout = run.frozen.limits, run.frozen.layout
        self._encoder = new_encoder(self._layout, self._limits.encoding_processes)
        self._row_limit = min(self._limits.max_row_bytes, self._limits.max_bytes)
        self.chunks: list[r.SealedChunk] = []
        self.rows, self._rows_put = 0, 0
        self._total_bytes = 0
        self._sink: ChunkSink | None = None
        self._sum, self._bytes = DigestSum.zero(), 0

    def add(self, raw: pa.RecordBatch) -> None:
        """Encodes, hashes and writes one raw batch, or has it encoded and writes what is ready. Raises
        SourceDataError naming column and row."""
        for start, length in pieces_of(raw):
            piece = raw.slice(start, length)
            for encoded in self._encoder.put(piece, first_row=self._rows_put):
                self._take(encoded)
            self._rows_put += length

    def finish(self) -> list[r.SealedChunk]:
        """Waits for what is still being encoded and seals the last chunk; returns all chunks of the epoch."""
        for encoded in self._encoder.rest():
            self._take(encoded)
        if self._sink is not None:
            self._seal()
        return self.chunks

    def discard(self) -> None:
        """Removes the open chunk after an error."""
        if self._sink is not None:
            self._sink.discard()
            self._sink = None

    def close(self) -> None:
        """Ends the encoding processes, if there are any."""
        self._encoder.close()

    def _take(self, encoded: EncodedPiece) -> None:
        self._check_rows(encoded)
        self._cut(encoded)
        self.rows += encoded.batch.num_rows
        self._run.progress("extract", self.rows, None, "rows")

    def _check_rows(self, encoded: EncodedPiece) -> None:
        if int(encoded.lengths.max()) <= self._row_limit:
            return
        row = int(np.argmax(encoded.lengths > self._row_limit))
        column, _ = max(cell_lengths(encoded.batch, self._layout, row), key=lambda cell: cell[1])
        text = (
            f"row {self.rows + row} takes {int(encoded.lengths[row])} bytes, the limit is "
            f"{self._row_limit}; its widest column is {column}"
        )
        raise SourceDataError("dpone.source.row_too_long", text, column=column, row=self.rows + row)

    def _cut(self, encoded: EncodedPiece) -> None:
        batch, hashes = encoded.batch, encoded.hashes
        ends = np.cumsum(encoded.lengths, dtype=np.int64)
        position = 0
        while position < len(ends):
            before = int(ends[position - 1]) if position else 0
            room = self._limits.max_bytes - self._bytes
            fits = int(np.searchsorted(ends, before + room, side="right")) - position
            take = min(fits, self._limits.max_rows - self._sum.rows)
            if take <= 0:
                self._seal()
                continue
            size = int(ends[position + take - 1]) - before
            self._write(batch.slice(position, take), hashes[position : position + take], size)
            position += take

    def _write(self, batch: pa.RecordBatch, hashes: np.ndarray, size: int) -> None:
        self._total_bytes += size
        if self._total_bytes > self._limits.max_total_bytes:
            text = f"the window is larger than max_total_bytes ({self._limits.max_total_bytes})"
            raise CapacityError("dpone.limits.max_total_bytes", text, rows=self.rows)
        if self._sink is None:
            self._sink = self._begin()
        self._sink.write(batch)
        self._sum, self._bytes = self._sum + DigestSum.of_hashes(hashes), self._bytes + size

    def _begin(self) -> ChunkSink:
        ordinal = len(self.chunks)
        if ordinal >= self._limits.max_staging_tables:
            most = self._limits.max_staging_tables
            text = f"the window needs more than {most} chunks; raise max_bytes or max_rows"
            raise CapacityError("dpone.limits.max_staging_tables", text, rows=self.rows)
        free = self._run.ports.spool.free_bytes()
        if free < self._limits.max_bytes:
            text = f"the spool has {free} bytes free, one chunk may take {self._limits.max_bytes}"
            raise CapacityError(
                "dpone.spool.no_space", text, free_bytes=free, needed_bytes=self._limits.max_bytes
            )
        ports, invocation = self._run.ports, self._run.chain.invocation_key
        return ports.spool.begin(
            invocation, self._epoch, ordinal, self._layout, chunk_format=ports.writer.chunk_format
        )

    def _seal(self) -> None:
        if self._sink is None:
            return
        file_bytes, file_sha256 = self._sink.seal()
        chunk = r.SealedChunk(
            extraction_epoch=self._epoch,
            ordinal=len(self.chunks),
            rows=self._sum.rows,
            encoded_bytes=self._bytes,
            file_bytes=file_bytes,
            file_sha256=file_sha256,
            digest_sum=self._sum,
            chunk_format=self._run.ports.writer.chunk_format,
            format_file_sha256=self._sink.format_file_sha256,
        )
        self._sink = None
        self._run.record((DeliveryEvent.CHUNK_SEALED, chunk.to_json()))
        self.chunks.append(chunk)
        self._sum, self._bytes = DigestSum.zero(), 0


def pieces_of(raw: pa.RecordBatch) -> list[tuple[int, int]]:
    """(start, length) of slices of at most PIECE_ROWS rows and about PIECE_BYTES bytes."""
    if raw.num_rows == 0:
        return []
    per_row = max(1, raw.nbytes // raw.num_rows)
    step = max(1, min(PIECE_ROWS, PIECE_BYTES // per_row))
    return [(start, min(step, raw.num_rows - start)) for start in range(0, raw.num_rows, step)]
