"""One write on the TDS core: lock, custody, load, custody again; every end has a name.

The core's errors are one class with a text, so nothing is decided by them: what happened follows from the
step, from the clock, and from what the same session says afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from airflow_dpone.bulk_writer import messages
from airflow_dpone.bulk_writer.messages import Diagnostic, Kind, Outcome
from airflow_dpone.bulk_writer.tds_session import Custody, Json, NoAnswer, Session, Stop
from airflow_dpone.target_sqlserver.quoting import qualified
from airflow_dpone.wire.types import LAYOUT_METADATA_KEY

# The core panics on a decimal that does not begin at a multiple of 16 bytes; a stream promises 8.
_ALIGNED = pyarrow.ipc.IpcReadOptions(ensure_alignment=pyarrow.ipc.Alignment.At64Byte)


class Rows:
    """The Arrow stream of one chunk; it is whole only when the frame after it says so.

    :param stream: a buffered reader of the pipe.
    """

    def __init__(self, stream: messages.Readable, request: Json) -> None:
        self._stream, self._request = stream, request
        self.taken = 0
        """Rows handed out so far."""
        self.is_whole = False
        self.has_failed = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The batches. Raises when the stream is cut off, of another layout, or not so long as was said."""
        try:
            yield from self._batches()
        except Exception:
            self.has_failed = True
            raise

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with pyarrow.ipc.open_stream(self._stream, options=_ALIGNED) as reader:
            named = (reader.schema.metadata or {}).get(LAYOUT_METADATA_KEY)
            if named != self._request["layout_sha256"].encode("ascii"):
                raise messages.ProtocolFault("the rows are of another layout than the request")
            if reader.schema.names != [column["target_name"] for column in self._request["columns"]]:
                raise messages.ProtocolFault("the rows have other columns than the request")
            for batch in reader:
                self.taken += batch.num_rows
                yield batch
        # Arrow takes the end of a pipe for the end of a stream.
        if messages.read(Kind.END_OF_ROWS, self._stream)["rows"] != self.taken:
            raise messages.ProtocolFault("the rows are not as many as were sent")
        self.is_whole = True


class Write:
    """One write, from the connection to the disconnection.

    :param connect: makes a connection of the core, or something like it.
    :param ends: the deadline, by the monotonic clock.
    """

    def __init__(
        self, request: Json, rows: Rows, connect: Callable[[], Any], *, database: str, ends: float
    ) -> None:
        self._request, self._rows, self._connect = request, rows, connect
        self._database, self._ends = database, ends
        self._holder: Custody | None = None
        self._session: Session | None = None
        self._metrics: dict[str, int | None] = dict.fromkeys(("connect_ms", "write_ms", "dispose_ms"))

    def run(self) -> dict[str, Any]:
        """Writes and disconnects; the body of the result frame. Never raises."""
        try:
            session = self._timed("connect_ms", self._open)
            self._timed("write_ms", lambda: self._load(session))
            outcome, why = self._closed(Outcome.SUCCESS, None)
        except Stop as stop:
            outcome, why = self._closed(stop.outcome, stop.why)
        except Exception:  # noqa: BLE001 - a fault of ours; its text may hold anything
            outcome, why = self._closed(Outcome.FAILURE, Diagnostic.FAULT)
        except BaseException:  # noqa: BLE001 - a panic of the core: it is not touched again
            outcome, why = Outcome.FAILURE, Diagnostic.PANIC
        return self._result(outcome, why)

    def _open(self) -> Session:
        try:
            self._session = Session(self._connect())
        except Exception as error:
            raise self._stop(Outcome.FAILURE, Diagnostic.CONNECT) from error
        try:
            self._session.settle(self._database)
        except NoAnswer as error:
            raise self._stop(Outcome.FAILURE, Diagnostic.SESSION) from error
        return self._session

    def _load(self, session: Session) -> None:
        before, batches = self._take_custody(session)
        try:
            copied = self._copy(session, batches) if batches else 0
        except Exception as error:
            raise self._why_it_failed(session, before) from error
        if self._custody(session) != before:
            raise Stop(Outcome.CUSTODY_LOST, Diagnostic.SESSION_CHANGED)
        if not self._rows.is_whole:
            raise self._stop(Outcome.FAILURE, Diagnostic.ROWS_CUT_OFF)
        if copied != self._rows.taken:
            raise Stop(Outcome.FAILURE, Diagnostic.ROW_COUNT)

    def _take_custody(self, session: Session) -> tuple[Custody, Iterator[pa.RecordBatch] | None]:
        """The lock, then the first rows, then whether this session may write: as late as it can be asked.

        Without any rows there is nothing to copy.
        """
        try:
            locked = session.take_lock(self._request)
        except NoAnswer as error:
            raise self._stop(Outcome.CUSTODY_LOST, Diagnostic.SESSION_LOST) from error
        if not locked:
            raise Stop(Outcome.CUSTODY_LOST, Diagnostic.LOCK_REFUSED)
        batches = self._rows.batches()
        try:
            first = list(islice(batches, 1))
        except Exception as error:
            raise self._stop(Outcome.FAILURE, Diagnostic.ROWS_CUT_OFF) from error
        custody = self._custody(session)
        if not custody.is_of(self._request):
            raise Stop(Outcome.CUSTODY_LOST, Diagnostic.SESSION_CHANGED)
        self._holder = custody
        if not custody.admits(self._request):
            raise Stop(Outcome.CUSTODY_LOST, Diagnostic.GRANT_REVOKED)
        return custody, chain(first, batches) if first else None

    def _custody(self, session: Session) -> Custody:
        """Asks the session who it is; one that does not answer holds nothing that could be proved."""
        try:
            return session.custody(self._request)
        except NoAnswer as error:
            raise self._stop(Outcome.CUSTODY_LOST, Diagnostic.SESSION_LOST) from error

    def _copy(self, session: Session, batches: Iterator[pa.RecordBatch]) -> int:
        """INSERT BULK on the same cursor, in one transaction; the core's own defaults are others.

        When the source of its batches fails the core commits what it has sent: the verification finds that.
        """
        names = [(column["ordinal"], column["target_name"]) for column in self._request["columns"]]
        said = session.cursor.bulkcopy_arrow(
            qualified(self._request["stage_schema"], self._request["stage_name"]),
            batches,
            batch_size=0,
            timeout=max(1, round(self._ends - time.monotonic())),
            column_mappings=names,
            keep_identity=False,
            check_constraints=False,
            table_lock=True,
            keep_nulls=True,
            fire_triggers=False,
            use_internal_transaction=True,
        )
        return int(said["rows_copied"])

    def _why_it_failed(self, session: Session, before: Custody) -> Stop:
        """The same session still answers: the load failed. It does not: nobody knows what has arrived."""
        if self._is_late():
            return Stop(Outcome.TIMEOUT, Diagnostic.DEADLINE)
        try:
            after = session.custody(self._request)
        except NoAnswer:
            lost = Outcome.LOST_ACK if self._rows.taken else Outcome.CUSTODY_LOST
            return Stop(lost, Diagnostic.SESSION_LOST)
        if after != before:
            return Stop(Outcome.CUSTODY_LOST, Diagnostic.SESSION_CHANGED)
        return Stop(Outcome.FAILURE, Diagnostic.ROWS_CUT_OFF if self._rows.has_failed else Diagnostic.LOAD)

    def _closed(self, outcome: Outcome, why: Diagnostic | None) -> tuple[Outcome, Diagnostic | None]:
        """Disconnects. What was a success is none when that does not end well."""
        if self._session is None:
            return outcome, why
        try:
            self._timed("dispose_ms", self._session.close)
        except BaseException:  # noqa: BLE001 - also a panic
            return (Outcome.LOST_ACK, Diagnostic.DISCONNECT) if why is None else (outcome, why)
        return outcome, why

    def _stop(self, outcome: Outcome, why: Diagnostic) -> Stop:
        """What it is when there was time; after the deadline everything is a timeout."""
        return Stop(Outcome.TIMEOUT, Diagnostic.DEADLINE) if self._is_late() else Stop(outcome, why)

    def _is_late(self) -> bool:
        return time.monotonic() >= self._ends

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        try:
            return work()
        finally:
            self._metrics[name] = round((time.monotonic() - began) * 1000)

    def _result(self, outcome: Outcome, why: Diagnostic | None) -> dict[str, Any]:
        holder = self._holder
        return {
            "schema_version": 1,
            "protocol": messages.PROTOCOL,
            "grant_token_sha256": self._request["grant_token_sha256"],
            "classification": str(outcome),
            "diagnostic_code": None if why is None else str(why),
            "input_rows_consumed": self._rows.taken if why is None else None,
            "session": holder and {"spid": holder.spid, "login_time": holder.login_time},
            "metrics": self._metrics,
        }
