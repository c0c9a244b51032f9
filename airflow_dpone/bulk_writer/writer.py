"""The bulk writer of SQL Server: one process for each write, on Microsoft's TDS core.

Arrow batches go through a pipe as they are, with no Python object for a cell; one batch and what the pipe
holds are in memory. Nothing that the process says is believed alone: a success has to be what was asked and
as many rows as were sent, and even then it is an observation. Several threads may write at once, each its own
stage.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from airflow_dpone.bulk_writer import messages
from airflow_dpone.bulk_writer.messages import Diagnostic, Kind, Outcome
from airflow_dpone.bulk_writer.supervisor import OutOfTime, ProcessLost, TooMuchSaid, WriterProcess
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import SourceDataError
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.types import WireLayout

log = logging.getLogger(__name__)

_Verdict = tuple[Outcome, int | None, Diagnostic | None]

CHILD_MODULE = "airflow_dpone.bulk_writer.child_tds"
_CREDENTIALS = (
    *("server", "port", "database", "user", "password", "access_token", "encrypt"),
    *("trust_server_certificate", "host_name_in_certificate", "login_timeout_sec"),
)
_PACKAGES = ("mssql-python", "mssql-python-rs", "pyarrow")


class TdsWriter:
    """The writer port on a SQL Server database.

    :param where: the database, and as whom; it may be another login than the target's, with INSERT on the
        stage schema only.
    :param child_module: the program of the process; tests run others.
    """

    backend = "tds"
    proof_capability = messages.PROOF_CAPABILITY
    chunk_format: ChunkFormat = "arrow_ipc"

    def __init__(self, where: SqlServerConnection, *, child_module: str = CHILD_MODULE) -> None:
        self._where, self._child_module = where, child_module

    def versions(self) -> Mapping[str, str]:
        """Versions of what writes."""
        return {name: metadata.version(name) for name in _PACKAGES}

    def write(
        self,
        stage: tr.StageRef,
        layout: WireLayout,
        batches: Iterator[pa.RecordBatch],
        *,
        token_sha256: str,
        deadline: Deadline,
    ) -> tr.WriterObservation:
        """Writes all rows in a process of its own, which has ended when this returns or raises.

        Only ``success`` carries rows. Every other outcome leaves open what is in the stage; a killed process
        too leaves it to the stage's verification. :raises DponeError: a batch could not be read or is not of
        the layout, or the work was cancelled.
        """
        began = time.monotonic()
        try:
            outcome, rows, why = self._write(stage, layout, batches, token_sha256, deadline)
        except OutOfTime:
            outcome, rows, why = _not(Outcome.TIMEOUT, Diagnostic.DEADLINE)
        if why is not None:
            log.warning("Stage %s: its writer ended with %s (%s)", stage.name, outcome, why)
        took = round(time.monotonic() - began, 3)
        return tr.WriterObservation(str(outcome), rows, took, None if why is None else str(why))

    def _write(
        self,
        stage: tr.StageRef,
        layout: WireLayout,
        batches: Iterator[pa.RecordBatch],
        token_sha256: str,
        deadline: Deadline,
    ) -> _Verdict:
        left = deadline.remaining_sec()
        if left <= 0:
            raise OutOfTime
        schema = self._where.stage_schema
        asked = request_body(stage, layout, token_sha256, stage_schema=schema, budget_sec=left)
        try:
            request, secret = messages.encode(Kind.WRITE_REQUEST, asked), self._credentials()
        except messages.ProtocolFault:
            return _not(Outcome.FAILURE, Diagnostic.REQUEST)
        longest = messages.HEAD_BYTES + messages.MAX_BYTES[Kind.WRITE_RESULT]
        try:
            process = WriterProcess(self._child_module, answer_bytes=longest, deadline=deadline)
        except OSError:
            return _not(Outcome.FAILURE, Diagnostic.NOT_STARTED)
        gone = False
        try:
            sent = _feed(process, request, secret, layout, batches)
            verdict = _judge(process.answer(), token_sha256, sent)
        except OutOfTime:
            verdict = _not(Outcome.TIMEOUT, Diagnostic.DEADLINE)
        except TooMuchSaid:
            verdict = _not(Outcome.LOST_ACK, Diagnostic.PROTOCOL)
        finally:
            gone = process.end()
        return verdict if gone else _not(Outcome.CLEANUP_FAILED, Diagnostic.NOT_REAPED)

    def _credentials(self) -> bytes:
        body = {name: getattr(self._where, name) for name in _CREDENTIALS}
        return messages.encode(Kind.CREDENTIALS, {"schema_version": 1, **body})


def request_body(
    stage: tr.StageRef, layout: WireLayout, token_sha256: str, *, stage_schema: str, budget_sec: float
) -> dict[str, Any]:
    """The body of a request frame. :param budget_sec: what is left of the deadline."""
    return {
        "schema_version": 1,
        "protocol": messages.PROTOCOL,
        "proof_capability": messages.PROOF_CAPABILITY,
        "stage_schema": stage_schema,
        "stage_name": stage.name,
        "object_id": stage.object_id,
        "owner": stage.owner,
        "grant_token_sha256": token_sha256,
        "layout_sha256": layout.sha256,
        "columns": [
            {
                "ordinal": ordinal,
                "target_name": column.name,
                "target_type": column.pair.target_type,
                "nullable": column.pair.target_nullable,
            }
            for ordinal, column in enumerate(layout.columns)
        ],
        "deadline_budget_ms": max(1, int(budget_sec * 1000)),
    }


def _not(outcome: Outcome, why: Diagnostic) -> _Verdict:
    return outcome, None, why


def _feed(
    process: WriterProcess,
    request: bytes,
    secret: bytes,
    layout: WireLayout,
    batches: Iterator[pa.RecordBatch],
) -> int | None:
    """Sends everything; how many rows, or None when the process did not take them all."""
    sent, schema = 0, layout.arrow_schema
    try:
        process.request(request)
        process.secret(secret)
        # Not a context manager: after an error it would still send the end of the stream, and wait for that.
        stream = pyarrow.ipc.new_stream(_RowsPipe(process), schema)
        for batch in batches:
            if not batch.schema.equals(schema, check_metadata=False):
                text = "A batch reached the writer that is not of the planned layout."
                raise SourceDataError("dpone.wire.layout", text)
            stream.write_batch(batch)
            sent += batch.num_rows
        stream.close()
        process.rows(messages.encode(Kind.END_OF_ROWS, {"schema_version": 1, "rows": sent}))
    except ProcessLost:
        return None
    return sent


def _judge(said: bytes, token_sha256: str, sent: int | None) -> _Verdict:
    """What an answer is worth."""
    if not said:
        return _not(Outcome.LOST_ACK, Diagnostic.PROCESS_LOST)
    try:
        result = messages.decode(Kind.WRITE_RESULT, said)
    except messages.ProtocolFault:
        return _not(Outcome.LOST_ACK, Diagnostic.PROTOCOL)
    if result["grant_token_sha256"] != token_sha256:
        return _not(Outcome.LOST_ACK, Diagnostic.PROTOCOL)
    log.info("The writer's session was %(session)s; it took %(metrics)s", result)
    outcome = Outcome(result["classification"])
    if outcome is not Outcome.SUCCESS:
        return _not(outcome, Diagnostic(result["diagnostic_code"]))
    if result["input_rows_consumed"] != sent:
        return _not(Outcome.LOST_ACK, Diagnostic.PROTOCOL)
    return outcome, sent, None


class _RowsPipe:
    """A file object in front of the pipe of the rows, as Arrow wants one."""

    closed = False

    def __init__(self, process: WriterProcess) -> None:
        self._process = process

    def write(self, data: bytes | memoryview) -> int:
        """All of it, or an exception."""
        self._process.rows(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The pipe is closed by its process."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False
