"""The stream of one chDB query: block by block, and an end only where the engine said that it is the end."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import SourceUnavailable
from airflow_dpone.source_clickhouse.error_map import error_of
from airflow_dpone.source_clickhouse.session import remaining_sec


class BlockStream(Iterator[pa.RecordBatch]):
    """Batches of one query, which is sent at once. Closing it ends the query.

    :param session: a session of its own; it is closed with the stream.
    :raises SourceUnavailable: from ``next()``: the query failed, the deadline passed, or the stream was
        closed before its end. After an error it never says that it is at its end.
    """

    def __init__(self, session: Any, statement: str, deadline: Deadline) -> None:
        self._session, self._deadline, self._pid = session, deadline, os.getpid()
        self._batches: deque[pa.RecordBatch] = deque()
        self._ended = False
        self._stream: Any = None
        try:
            self._stream = self._guarded(lambda: session.send_query(statement, "Arrow"))
        except BaseException:
            self.close()
            raise

    def __next__(self) -> pa.RecordBatch:
        try:
            while not self._batches and not self._ended:
                self._fetch()
            remaining_sec(self._deadline)
        except BaseException:
            self.close()
            raise
        if self._batches:
            return self._batches.popleft()
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Ends the query if it still runs, and its session; doing so twice is fine."""
        session, stream, self._session, self._stream = self._session, self._stream, None, None
        self._batches.clear()
        if self._pid != os.getpid():
            return
        with suppress(RuntimeError):
            if stream is not None:
                stream.cancel()
        if session is not None:
            session.close()

    def _fetch(self) -> None:
        stream = self._stream
        if stream is None or self._pid != os.getpid():
            raise SourceUnavailable("dpone.source.closed", "The read was closed before the end of the data.")
        # fetch() and not record_batch(): that one gathers a million rows before it hands out the first.
        block = self._guarded(stream.fetch)
        if block is None:
            self._ended = True
        else:
            self._batches.extend(_batches(block.bytes()))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise error_of(str(error), "reading the window") from None


def _batches(block: bytes) -> list[pa.RecordBatch]:
    """The batches of one block that have rows; each block is a whole Arrow file."""
    try:
        reader = pyarrow.ipc.open_file(block)
        found = [reader.get_batch(ordinal) for ordinal in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError, ValueError) as error:
        kind = type(error).__name__
        raise SourceUnavailable(
            "dpone.source.broken_block", f"A block of the source is no complete Arrow file ({kind})."
        ) from None
    return [batch for batch in found if batch.num_rows]
