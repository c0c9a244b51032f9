"""A writer on a SQLite target that writes several chunks at once, as one with processes of its own does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import Deadline, effect
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.types import WireLayout
from tests.fakes.target import SqliteTarget

Hook = Callable[[tr.StageRef, Deadline], None]


class ManyWriters:
    """The writer port on the file of a :class:`~tests.fakes.target.SqliteTarget`: a connection for each
    write.

    :param first: called in each write before a row is written, in the thread that writes.
    """

    backend = "tds"
    proof_capability = "sqlite-stage-mark-v1"
    chunk_format: ChunkFormat = "arrow_ipc"

    def __init__(self, target: SqliteTarget, first: Hook = lambda stage, deadline: None) -> None:
        self._path, self._first = target.path, first

    def versions(self) -> Mapping[str, str]:
        """The engine's version."""
        return {"sqlite": "many"}

    @effect
    def write(
        self,
        stage: tr.StageRef,
        layout: WireLayout,
        batches: Iterator[pa.RecordBatch],
        *,
        token_sha256: str,
        deadline: Deadline,
    ) -> tr.WriterObservation:
        """As the target writes, beside others."""
        self._first(stage, deadline)
        with SqliteTarget(self._path) as own:
            return own.write(stage, layout, batches, token_sha256=token_sha256, deadline=deadline)
