"""The starting side of :mod:`airflow_dpone.wire.encoder_child`.

A new interpreter, never a fork: an embedded engine, open in this process, hangs in a forked child. It is not
``multiprocessing`` with *spawn* either: that runs the caller's main module again and hands the whole
environment over, and in Airflow there are connections with passwords in it.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from contextlib import suppress
from io import FileIO
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc

from airflow_dpone.errors import CapacityError, error_of
from airflow_dpone.wire.child_process import child_environment
from airflow_dpone.wire.encoder_child import layout_as_bytes, read_frame, write_frame
from airflow_dpone.wire.types import WireLayout

_HASH_BYTES, _LENGTH_BYTES = 32, 8


class EncoderProcess:
    """One child, which encodes one batch at a time. The thread that makes it must outlive it.

    (The kernel ends a child when the *thread* that started it ends, not only the process.)
    """

    def __init__(self, layout: WireLayout) -> None:
        self._memory = _SharedMemory()
        try:
            self._process = _start(self._memory.descriptor)
        except OSError as error:
            self._memory.close()
            raise _no_process("could not be started", error) from error
        self._requests = cast(FileIO, self._process.stdin)
        self._answers = cast(FileIO, self._process.stdout)
        self._write(b"L", layout_as_bytes(layout))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, batch: pa.RecordBatch) -> None:
        """Gives it a batch; :meth:`receive` must come before the next.

        :raises CapacityError: ``dpone.encoding.process_lost``: it has ended.
        """
        try:
            size = self._memory.write(batch)
        except OSError as error:
            raise _no_process("could not be given rows", error) from error
        self._write(b"B", size.to_bytes(8, "little"))

    def receive(self, rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Lengths and hashes of the rows that were sent; waits for them.

        :raises SourceDataError: the error of ``encode_rows``, as it is.
        :raises CapacityError: ``dpone.encoding.process_lost``: it has ended.
        """
        try:
            kind, data = read_frame(self._answers)
        except (EOFError, OSError, ValueError):  # ValueError: it was lost before, and its pipes are closed
            raise self._lost() from None
        if kind == b"E":
            said: dict[str, Any] = json.loads(data)
            raise error_of(said["code"], said["message"], **said["fields"])
        if kind != b"H" or len(data) != rows * (_LENGTH_BYTES + _HASH_BYTES):
            raise self._lost(f" ({data.decode('ascii', 'replace')})" if kind == b"X" else "")
        lengths = np.frombuffer(data, dtype=np.int64, count=rows)
        hashes = np.frombuffer(data, dtype=np.uint8, offset=rows * _LENGTH_BYTES)
        return lengths, hashes.reshape(rows, _HASH_BYTES)

    def end(self) -> None:
        """Ends it at once: it holds nothing that could be lost."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._answers):
            with suppress(OSError):
                pipe.close()
        self._memory.close()

    def _write(self, kind: bytes, data: bytes | memoryview) -> None:
        try:
            write_frame(self._requests, kind, data)
        except (OSError, ValueError):
            raise self._lost() from None

    def _lost(self, why: str = "") -> CapacityError:
        with suppress(subprocess.TimeoutExpired):  # its pipes close a moment before it is gone
            self._process.wait(1.0)
        self.end()
        code = self._process.wait()
        known = {number.value: number.name for number in signal.Signals}
        how = f"was ended by {known.get(-code, -code)}" if code < 0 else f"ended with exit code {code}"
        text = f"An encoding process (pid {self.pid}) {how}{why}."
        return CapacityError("dpone.encoding.process_lost", text, pid=self.pid)


def _no_process(what: str, error: OSError) -> CapacityError:
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return CapacityError("dpone.encoding.process_lost", f"An encoding process {what} ({reason}).")


class _SharedMemory:
    """A file in memory through which batches reach a child without a copy on its side."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("dpone-rows")
        self._map: mmap.mmap | None = None

    def write(self, batch: pa.RecordBatch) -> int:
        """Writes an Arrow IPC stream from the start on; returns its bytes. Of a slice only its rows."""
        counted = pa.MockOutputStream()
        _stream(batch, counted)
        size = int(counted.size())
        if self._map is None or len(self._map) < size:
            os.ftruncate(self.descriptor, size)
            self._map = mmap.mmap(self.descriptor, size)
        _stream(batch, pa.FixedSizeBufferWriter(pa.py_buffer(self._map)))
        return size

    def close(self) -> None:
        """Gives the memory back, once; the map goes when nothing looks into it any more."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self._map = -1, None


def _stream(batch: pa.RecordBatch, sink: pa.NativeFile) -> None:
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _start(memory: int) -> subprocess.Popen[bytes]:
    module, own = "airflow_dpone.wire.encoder_child", str(os.getpid())
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, own, str(memory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
        pass_fds=(memory,),
        bufsize=0,
    )
