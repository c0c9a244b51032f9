"""Sealed chunks as native rows, for writers that read a SQL Server data file: rows, and nothing else.

The file is the rows' bytes one behind the other, exactly those that the digest hashes. It has no header: what
its columns are stands in a *format file* of ours beside it, which states each column's prefix and type, so
that no reader takes its own defaults for them (they differ by version, and for ``bit NOT NULL`` from ours).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO
from uuid import UUID

import pyarrow as pa

from airflow_dpone.errors import SpoolError
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.reference_decoder import DecodedRow, decode_rows
from airflow_dpone.wire.sealed import MAX_BATCH_ROWS, CountingSink, Sink
from airflow_dpone.wire.types import WireColumn, WireLayout

FORMAT_FILE_VERSION = "13.0"
"""Of SQL Server 2016; a reader of any later version reads it."""

_HOST_TYPES = {
    "bigint": "SQLBIGINT",
    "int": "SQLINT",
    "smallint": "SQLSMALLINT",
    "tinyint": "SQLTINYINT",
    "bit": "SQLBIT",
    "real": "SQLFLT4",
    "float": "SQLFLT8",
    "decimal": "SQLDECIMAL",
    "date": "SQLDATE",
    "datetime2": "SQLDATETIME2",
    "nvarchar": "SQLNCHAR",
    "binary": "SQLBINARY",
    "varbinary": "SQLBINARY",
    "uniqueidentifier": "SQLUNIQUEID",
}


class NativeWriter:
    """Writes one sealed chunk of native rows. The bytes are complete after :meth:`close` only.

    :param sink: receives the bytes in order; it is neither flushed nor closed.
    :param layout: the layout of every batch.
    """

    def __init__(self, sink: Sink, layout: WireLayout) -> None:
        self._counting, self._layout = CountingSink(sink), layout
        self.rows = 0
        """Rows written so far."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch; memory is bounded by the bytes of 65,536 rows.

        :raises SourceDataError: ``dpone.wire.layout``: other columns than the layout's; ``dpone.wire.value``:
            NULL in a NOT NULL column, or a text that is longer than its type.
        """
        for start in range(0, max(1, batch.num_rows), MAX_BATCH_ROWS):
            encoded = encode_rows(batch.slice(start, MAX_BATCH_ROWS), self._layout)
            self._counting.write(memoryview(encoded.data)[: int(encoded.offsets[-1])])
            self.rows += len(encoded)

    def close(self) -> None:
        """Nothing is left to write: the file has no end mark."""

    @property
    def size_bytes(self) -> int:
        """Bytes given to the sink so far."""
        return self._counting.size_bytes

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the bytes given to the sink so far."""
        return self._counting.hash.hexdigest()


def format_file(layout: WireLayout) -> bytes:
    """The non-XML bcp format file of a layout: one line for each column.

    Columns are matched by their number; the name in a line is ``c1``, ``c2`` ..., because a real name may
    hold blanks and quotes and such a file has no way to write them that every reader takes.
    """
    lines = [FORMAT_FILE_VERSION, str(len(layout.columns))]
    for ordinal, column in enumerate(layout.columns, start=1):
        host_type = _HOST_TYPES[column.pair.sql_type.name]
        cells = [ordinal, host_type, column.prefix_bytes, _most_bytes(column), '""', ordinal, f"c{ordinal}"]
        lines.append("\t".join([*map(str, cells), '""']))
    return ("\n".join(lines) + "\n").encode("ascii")


def _most_bytes(column: WireColumn) -> int:
    """Bytes of the longest payload, 0 for ``max``: the prefix alone says it."""
    if column.payload_bytes is not None:
        return column.payload_bytes
    sql_type = column.pair.sql_type
    return (sql_type.length or 0) * (2 if sql_type.name == "nvarchar" else 1)


def read_native(source: bytes | BinaryIO, layout: WireLayout, *, rows: int) -> Iterator[pa.RecordBatch]:
    """The rows as target-typed batches. Slow: for checks and for people, a writer takes the file itself.

    :raises SpoolError: ``dpone.spool.damaged`` while iterating, as of ``decode_rows``; also when the bytes of
        a row are not those that its values have in this layout.
    """
    decoded = decode_rows(source, layout, rows=rows)
    first = 0
    while some := list(islice(decoded, MAX_BATCH_ROWS)):
        yield _batch(some, layout, first)
        first += len(some)


def _batch(decoded: list[DecodedRow], layout: WireLayout, first: int) -> pa.RecordBatch:
    columns = zip(*(row.values for row in decoded), strict=True)
    try:
        arrays = [
            pa.array([v.bytes if isinstance(v, UUID) else v for v in values], type=field.type)
            for values, field in zip(columns, layout.arrow_schema, strict=True)
        ]
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise _not_of_the_layout(decoded, layout, first) from error
    batch = pa.RecordBatch.from_arrays(arrays, schema=layout.arrow_schema)
    # A source's own length or scale may be narrower than the target's, which is all that the decoder knows.
    if not encode_rows(batch, layout).data.equals(pa.py_buffer(b"".join(row.data for row in decoded))):
        raise _not_of_the_layout(decoded, layout, first)
    return batch


def _not_of_the_layout(decoded: list[DecodedRow], layout: WireLayout, first: int) -> SpoolError:
    """Names the first cell that no value of its column's type can be; found cell by cell, damage is rare."""
    for row, one in enumerate(decoded):
        for column, value in zip(layout.columns, one.values, strict=True):
            if not _is_of_the_type(value, column):
                text = (
                    f"A sealed chunk of native rows is damaged: row {first + row}, column {column.name!r} "
                    "holds another type."
                )
                return SpoolError("dpone.spool.damaged", text, row=first + row, column=column.name)
    text = f"A sealed chunk of native rows is damaged: from row {first} on its bytes are not its values."
    return SpoolError("dpone.spool.damaged", text, row=first)


def _is_of_the_type(value: object, column: WireColumn) -> bool:
    plain = value.bytes if isinstance(value, UUID) else value
    try:
        made = pa.array([plain], type=column.pair.arrow_type)
        back = made[0].as_py()
    except (pa.ArrowException, ValueError, OverflowError):
        return False
    return bool(back == plain)
