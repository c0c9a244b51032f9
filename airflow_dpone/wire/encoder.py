"""From raw pieces to what a chunk is made of: target-typed rows, their encoded lengths and their hashes.

With ``encoding_parallelism`` 1 a piece is encoded where it is put. With more, rows are encoded and hashed in
child processes, a window that is small apart. Threads were measured first and gain nothing worth having: most
of the time goes into one hash per row, and ``hashlib`` holds the interpreter's lock for each row of up to
2,047 bytes. Values are checked here in both cases, so that a child never sees a bad one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_dpone.errors import SourceDataError
from airflow_dpone.wire.encoder_process import EncoderProcess
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.types import WireLayout

START_ROWS = 500_000
START_BYTES = 128 * 1024 * 1024
"""Processes are started for what comes after these: encoding as much takes about as long as their start."""


@dataclass(frozen=True, eq=False)
class EncodedPiece:
    """Some rows, ready to be cut into chunks.

    :param batch: target-typed. :param lengths: encoded bytes of each row, int64.
    :param hashes: SHA-256 of each row, shape (rows, 32).
    """

    batch: pa.RecordBatch
    lengths: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint8]


class Encoder(Protocol):
    """A line of pieces: what goes in comes out in the same order, some of it later."""

    def put(self, raw: pa.RecordBatch, *, first_row: int) -> Iterator[EncodedPiece]:
        """Takes a raw piece, and gives what has become ready. Use it up before the next call.

        :param first_row: ordinal of the piece's first row in this read, for messages.
        :raises SourceDataError: as ``to_target_batch``, after every piece before it was given.
        :raises CapacityError: ``dpone.encoding.process_lost``.
        """

    def rest(self) -> Iterator[EncodedPiece]:
        """Waits for every piece that was put and is not yet given."""

    def close(self) -> None:
        """Drops what is not ready and ends every process; may be called twice."""


def new_encoder(layout: WireLayout, processes: int) -> Encoder:
    """The encoder for an ``encoding_parallelism``."""
    return InlineEncoder(layout) if processes == 1 else ParallelEncoder(layout, processes)


class InlineEncoder:
    """Encodes each piece where it is put."""

    def __init__(self, layout: WireLayout) -> None:
        self._layout = layout

    def put(self, raw: pa.RecordBatch, *, first_row: int) -> Iterator[EncodedPiece]:
        """As of :class:`Encoder`."""
        yield _encode(to_target_batch(raw, self._layout, first_row=first_row), self._layout)

    def rest(self) -> Iterator[EncodedPiece]:
        """As of :class:`Encoder`."""
        return iter(())

    def close(self) -> None:
        """As of :class:`Encoder`."""


class ParallelEncoder:
    """Deals pieces to child processes in turn: one piece each, and at most one more is held here.

    So memory holds ``processes`` + 1 pieces, a child never has an answer that nobody fetches while it is sent
    the next piece, and the oldest piece is always that of the next child.

    :param start_rows: encode so many rows here before any process starts.
    :param start_bytes: or so many raw bytes.
    """

    def __init__(
        self,
        layout: WireLayout,
        processes: int,
        *,
        start_rows: int = START_ROWS,
        start_bytes: int = START_BYTES,
    ) -> None:
        self._layout, self._processes = layout, processes
        self._rows_before_start, self._bytes_before_start = start_rows, start_bytes
        self._idle: deque[EncoderProcess] = deque()
        self._waiting: deque[tuple[EncoderProcess, pa.RecordBatch]] = deque()
        self._children: list[EncoderProcess] = []

    def put(self, raw: pa.RecordBatch, *, first_row: int) -> Iterator[EncodedPiece]:
        """As of :class:`Encoder`."""
        try:
            batch = to_target_batch(raw, self._layout, first_row=first_row)
        except SourceDataError:
            yield from self.rest()  # a row before may be wrong in another way, and is then the first bad one
            raise
        if not self._children and self._is_still_small(raw):
            yield _encode(batch, self._layout)
            return
        self._start()
        ready = None if self._idle else self._receive()
        child = self._idle.popleft()
        child.send(batch)
        self._waiting.append((child, batch))
        if ready is not None:  # given last, so that the child works while the caller does
            yield ready

    def rest(self) -> Iterator[EncodedPiece]:
        """As of :class:`Encoder`."""
        while self._waiting:
            yield self._receive()

    def close(self) -> None:
        """As of :class:`Encoder`."""
        children, self._children = self._children, []
        self._idle.clear()
        self._waiting.clear()
        for child in children:
            child.end()

    @property
    def pids(self) -> list[int]:
        """The processes, none before the first piece that is worth one."""
        return [child.pid for child in self._children]

    def _is_still_small(self, raw: pa.RecordBatch) -> bool:
        small = self._rows_before_start > 0 and self._bytes_before_start > 0
        self._rows_before_start -= raw.num_rows
        self._bytes_before_start -= raw.nbytes
        return small

    def _start(self) -> None:
        while len(self._children) < self._processes:
            child = EncoderProcess(self._layout)
            self._children.append(child)
            self._idle.append(child)

    def _receive(self) -> EncodedPiece:
        child, batch = self._waiting.popleft()
        self._idle.append(child)  # also after the error of a value: it waits for the next piece
        lengths, hashes = child.receive(batch.num_rows)
        return EncodedPiece(batch, lengths, hashes)


def _encode(batch: pa.RecordBatch, layout: WireLayout) -> EncodedPiece:
    encoded = encode_rows(batch, layout)
    return EncodedPiece(batch, encoded.lengths, encoded.hashes())
