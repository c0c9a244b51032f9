"""The batches of one read, and the parts that they came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from airflow_dpone.source_clickhouse.session import BatchStream
from airflow_dpone.source_clickhouse.statements import PART


class WindowRead(Iterator[pa.RecordBatch]):
    """A stream without the column of parts, which is counted instead. Memory is that of one batch.

    :param stream: is closed with this, and by its own end. :param has_parts: whether the query asks for them.
    :param on_end: called once with rows by part (None: not asked for) when the stream is exhausted.
    """

    def __init__(
        self, stream: BatchStream, has_parts: bool, on_end: Callable[[Mapping[str, int] | None], None]
    ) -> None:
        self._stream, self._on_end = stream, on_end
        self._parts: Counter[str] | None = Counter() if has_parts else None

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._stream)
        except StopIteration:
            self._on_end(self._parts)
            raise
        if self._parts is None or batch.schema.names[-1] != PART:
            return batch  # a statement that is not ours; what it lacks is found where rows are checked
        for counted in pc.value_counts(batch.column(batch.num_columns - 1)).to_pylist():
            self._parts[counted["values"].decode()] += counted["counts"]
        return batch.select(batch.schema.names[:-1])

    def close(self) -> None:
        """Ends the query if it still runs; doing so twice is fine."""
        self._stream.close()
