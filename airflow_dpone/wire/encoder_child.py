"""The process that encodes and hashes rows for another one: ``python -m ...encoder_child PID MEMORY``.

It has its standard input and output and the memory that is open as MEMORY, and knows nothing but a layout and
rows. A *frame* is a kind (one byte), a length (eight bytes, little-endian) and so many bytes:

    in   L  the layout, JSON
         B  a batch is in the memory: the bytes of its Arrow IPC stream, eight bytes little-endian
    out  H  per row int64 lengths, then 32-byte hashes
         E  JSON: code, message and fields of a SourceDataError      X  the name of any other exception

It ends with the process PID that started it: at the end of its input, and by a signal from the kernel.
"""

from __future__ import annotations

import json
import mmap
import signal
import sys
from contextlib import suppress
from io import FileIO
from typing import NoReturn

import pyarrow as pa
import pyarrow.ipc

from airflow_dpone.errors import SourceDataError
from airflow_dpone.wire.child_process import end_with
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout

_HEAD_BYTES = 9


def write_frame(stream: FileIO, kind: bytes, *parts: bytes | memoryview) -> None:
    """One frame; the stream is unbuffered."""
    size = sum(len(part) for part in parts)
    for part in (kind + size.to_bytes(8, "little"), *parts):
        rest = memoryview(part)
        while rest:
            rest = rest[stream.write(rest) :]


_KINDS = (b"L", b"B", b"H", b"E", b"X")


def read_frame(stream: FileIO) -> tuple[bytes, bytearray]:
    """One frame. Raises EOFError at the end of the stream, also in the middle of a frame, and when what comes
    is no frame: somebody's start-up hook may print."""
    head = _read_exactly(stream, _HEAD_BYTES)
    if bytes(head[:1]) not in _KINDS:
        raise EOFError("what was sent is no frame")
    return bytes(head[:1]), _read_exactly(stream, int.from_bytes(head[1:], "little"))


def _read_exactly(stream: FileIO, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        taken = stream.readinto(rest)
        if not taken:
            raise EOFError
        rest = rest[taken:]
    return data


def layout_as_bytes(layout: WireLayout) -> bytes:
    """The payload of frame L."""
    return json.dumps([[column.name, column.pair.to_json()] for column in layout.columns]).encode("utf-8")


def layout_of_bytes(data: bytes | bytearray) -> WireLayout:
    """The reverse of :func:`layout_as_bytes`."""
    columns = json.loads(data)
    return WireLayout(tuple(WireColumn(name, TypePair.from_json(pair)) for name, pair in columns))


def serve(requests: FileIO, answers: FileIO, memory: int) -> NoReturn:
    """Answers each batch; the end of the requests is an EOFError.

    The memory holds the batch until its answer is written; then the other side may put the next one there.
    """
    layout, mapped = WireLayout(()), memoryview(b"")
    while True:
        kind, data = read_frame(requests)
        if kind == b"L":
            layout = layout_of_bytes(data)
            continue
        size = int.from_bytes(data, "little")
        if size > len(mapped):
            mapped = memoryview(mmap.mmap(memory, size, access=mmap.ACCESS_READ))
        write_frame(answers, *_answer(mapped[:size], layout))


def _answer(stream: memoryview, layout: WireLayout) -> tuple[bytes, ...]:
    """Kind and parts; what was encoded is gone before the next batch comes."""
    with pyarrow.ipc.open_stream(pa.py_buffer(stream)) as reader:
        batch = reader.read_next_batch()
    try:
        encoded = encode_rows(batch, layout)
    except SourceDataError as error:
        said = {"code": error.code, "message": error.message, "fields": error.fields}
        return b"E", json.dumps(said).encode("utf-8")
    return b"H", encoded.lengths.tobytes(), encoded.hashes().tobytes()


def main(arguments: list[str]) -> int:
    """Serve on standard input and output; see the module's text for the arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends this one
    if not end_with(int(arguments[0])):
        return 1
    requests, answers = FileIO(0, "rb", closefd=False), FileIO(1, "wb", closefd=False)
    try:
        serve(requests, answers, int(arguments[1]))
    except (EOFError, BrokenPipeError):
        return 0
    except Exception as error:  # noqa: BLE001 - its text may hold a value, so only its name leaves the process
        with suppress(OSError):
            write_frame(answers, b"X", type(error).__name__.encode("ascii", "replace"))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
