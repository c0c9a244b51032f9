"""The two forms of a sealed chunk, and the one place that tells them apart.

Which one is used is a property of the bulk writer: ``arrow_ipc`` for writers that take batches,
``mssql_native`` for writers that read a data file of SQL Server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Literal

import pyarrow as pa

from airflow_dpone.wire.mssql_native import NativeWriter, format_file, read_native
from airflow_dpone.wire.sealed import SealedWriter, Sink, read_sealed
from airflow_dpone.wire.types import WireLayout

ChunkFormat = Literal["arrow_ipc", "mssql_native"]
SUFFIXES: dict[ChunkFormat, str] = {"arrow_ipc": "arrow", "mssql_native": "native"}
"""How the name of a sealed file ends."""
FORMAT_FILE_SUFFIX = "fmt"


def new_writer(chunk_format: ChunkFormat, sink: Sink, layout: WireLayout) -> SealedWriter | NativeWriter:
    """A writer of one sealed chunk."""
    return SealedWriter(sink, layout) if chunk_format == "arrow_ipc" else NativeWriter(sink, layout)


def format_file_of(chunk_format: ChunkFormat, layout: WireLayout) -> bytes | None:
    """The file that goes beside the chunk, or None if the chunk describes itself."""
    return None if chunk_format == "arrow_ipc" else format_file(layout)


def read_chunk(
    chunk_format: ChunkFormat, file: BinaryIO, layout: WireLayout, *, rows: int
) -> Iterator[pa.RecordBatch]:
    """The batches of a sealed chunk. Neither form has a checksum: compare the file's SHA-256 before.

    :param rows: rows that were sealed; only a chunk of native rows needs to be told.
    :raises SpoolError: ``dpone.spool.damaged``, at the call or while iterating.
    """
    if chunk_format == "arrow_ipc":
        return read_sealed(file, layout)
    return read_native(file, layout, rows=rows)
