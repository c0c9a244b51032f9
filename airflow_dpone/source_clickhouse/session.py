"""What a connection to ClickHouse does for a source, whichever way it is made.

Two implementations: an engine session of chDB in this process (``embedded``) and a TCP connection to a
server (``reader``). Everything above them is common: statements, settings, introspection, the read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import SourceUnavailable


class BatchStream(Iterator[pa.RecordBatch], Protocol):
    """Batches of one query. It is exhausted only when the engine said that this is the end; after an error
    it never says so."""

    def close(self) -> None:
        """Ends the query if it still runs, and its session; doing so twice is fine."""


class Session(Protocol):
    """One connection or engine session."""

    def rows(self, statement: str) -> list[list[str]]:
        """Runs a statement whose columns are all String, and returns its rows as text.

        :raises DponeError: as ``error_map`` says for ClickHouse's number.
        """

    def stream(self, statement: str, *, query_id: str, deadline: Deadline) -> BatchStream:
        """Sends the one query of a read. The stream takes the session over and closes it."""

    def close(self) -> None:
        """Gives the connection back; doing so twice is fine."""


def remaining_sec(deadline: Deadline) -> float:
    """Seconds left, more than 0.

    :raises SourceUnavailable: ``dpone.source.deadline``.
    """
    left = deadline.remaining_sec()
    if left <= 0:
        raise SourceUnavailable("dpone.source.deadline", "The deadline passed while the window was read.")
    return left
