"""The server source: ClickHouse over its native TCP protocol, through ``clickhouse-driver``.

Columns are read as whole Arrow columns, one batch for each block, with constant memory. The client speaks an
old revision of the protocol on purpose (:data:`REVISION`). A stream is at its end only when EndOfStream came,
no exception did, and the server's own count of rows is what arrived.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import pyarrow as pa
from clickhouse_driver import Client, errors

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import ConfigurationError, DponeError, Problem, SourceUnavailable
from airflow_dpone.source_clickhouse import statements
from airflow_dpone.source_clickhouse.address import ServerAddress
from airflow_dpone.source_clickhouse.error_map import answered
from airflow_dpone.source_clickhouse.introspect import Admission
from airflow_dpone.source_clickhouse.session import Session, remaining_sec
from airflow_dpone.source_clickhouse.source import ClickHouseSource

log = logging.getLogger(__name__)

REVISION = 54_451
"""Below 54454 a server sends no column in a form of its own choice (sparse ones come as plain ones), and
below 54464 no change of the zone: two things that the driver would have to undo exactly."""
OLDEST_VERSION = (24, 8)
GRACE_SEC = 5.0
"""How much longer than the deadline a read may be silent: the server ends it first and says why."""
CLIENT_NAME = "airflow-dpone"
KEEPALIVE = (60, 15, 4)

_NAMES: dict[int, str] = {
    number: name for name, number in vars(errors.ErrorCodes).items() if isinstance(number, int)
}


class DriverSession:
    """One TCP connection with its client.

    :param kill: ends a query of this server by its id, from another connection.
    """

    def __init__(self, address: ServerAddress, kill: Callable[[str], None] | None = None) -> None:
        self._address, self._kill = address, kill
        options: dict[str, Any] = {
            "ca_certs": address.ca_certs,
            "certfile": address.certfile,
            "keyfile": address.keyfile,
            "server_hostname": address.server_hostname,
        }
        self._client: Any = Client(
            address.host,
            address.real_port,
            user=address.user,
            password=address.password,
            database=address.database,
            secure=address.secure,
            verify=address.verify,
            compression=address.compression or False,
            connect_timeout=address.connect_timeout,
            send_receive_timeout=address.send_receive_timeout,
            client_name=" ".join(filter(None, (CLIENT_NAME, address.client_name))),
            client_revision=REVISION,
            tcp_keepalive=KEEPALIVE,
            settings={"use_numpy": True, "strings_as_bytes": True},
            **{name: value for name, value in options.items() if value is not None},
        )

    def open(self) -> None:
        """Connects.

        :raises ConfigurationError: wrong user or password, no native protocol, or a server that is too old.
        :raises SourceUnavailable: it does not answer.
        """
        connection = self._client.connection
        with _translated("connecting", self._address):
            connection.connect()
        version = connection.server_info.version_tuple()
        if version[:2] < OLDEST_VERSION:
            found, oldest = (".".join(map(str, v)) for v in (version, OLDEST_VERSION))
            text = (
                f"ClickHouse {found} is too old, {oldest} is the oldest that is read: an older one lacks the"
                " settings that make a result complete"
            )
            problem = Problem("dpone.source.version", f"server {self._address}", text)
            raise ConfigurationError.of([problem, *self._old_database_problems(version)])

    def _old_database_problems(self, version: tuple[int, ...]) -> list[Problem]:
        if version >= (20, 10):
            return []
        text = "has no Atomic databases: a replaced table could not be told from this one"
        return [Problem("dpone.source.database", f"server {self._address}", text)]

    def rows(self, statement: str) -> list[list[str]]:
        """See :class:`~airflow_dpone.source_clickhouse.session.Session`."""
        with _translated("reading the catalog", self._address):
            table = self._client.query_arrow_stream(statement, field_metadata=False).read_all()
            columns = [[text.decode("utf-8", "replace") for text in column.to_pylist()] for column in table]
        return [list(row) for row in zip(*columns, strict=True)]

    def stream(self, statement: str, *, query_id: str, deadline: Deadline) -> DriverStream:
        """See :class:`~airflow_dpone.source_clickhouse.session.Session`. From now on a lost connection is an
        error: another one may reach another server, with other settings."""
        self._client.connection.disable_reconnect = True
        return DriverStream(self._client, self._address, statement, query_id, deadline, self._kill)

    def close(self) -> None:
        """Hangs up; doing so twice is fine."""
        with suppress(OSError, errors.Error):
            self._client.disconnect()


class DriverStream(Iterator[pa.RecordBatch]):
    """Batches of one query, one for each block. Closing it before its end cancels the query, and kills it by
    its id in case that the server does not hear.

    :raises SourceUnavailable: from ``next()``: whatever ended it early. After that it never says that it is
        at its end.
    """

    def __init__(
        self,
        client: Any,
        address: ServerAddress,
        statement: str,
        query_id: str,
        deadline: Deadline,
        kill: Callable[[str], None] | None = None,
    ) -> None:
        self._client, self._address, self._kill = client, address, kill
        self._query_id, self._deadline, self._pid = query_id, deadline, os.getpid()
        self._rows, self._open = 0, True
        self._out_of_time, self._unheard = threading.Event(), False
        self._watchdog: threading.Timer | None = None
        self._reader: Any = None
        try:
            self._watch(client.connection.socket)
            self._reader = self._guarded(
                lambda: client.query_arrow_stream(statement, query_id=query_id, field_metadata=False)
            )
            self._unprofiled = client.last_query.profile_info
        except BaseException:
            self.close()
            raise

    def __next__(self) -> pa.RecordBatch:
        if not self._open or self._pid != os.getpid():
            raise SourceUnavailable("dpone.source.closed", "The read was closed before the end of the data.")
        try:
            remaining_sec(self._deadline)
            batch = self._guarded(self._next_with_columns)
            if batch is None:
                self._check_end()
        except BaseException:
            self.close()
            raise
        if batch is None:
            self._open = False
            self._hang_up()
            raise StopIteration
        self._rows += batch.num_rows
        return batch

    def close(self) -> None:
        """Ends the query if it still runs, and its connection; doing so twice is fine."""
        if not self._open or self._pid != os.getpid():
            return
        self._open = False
        running = self._client.connection.connected or self._unheard or self._out_of_time.is_set()
        if self._client.connection.connected:
            with suppress(OSError, EOFError, errors.Error):
                self._client.connection.send_cancel()
        self._hang_up()
        if running and self._kill is not None:
            self._kill(self._query_id)

    def _next_with_columns(self) -> pa.RecordBatch | None:
        """Blocks of nothing at all are no batches; they may be all that is left of a query that was killed,
        which is told at the end."""
        return next((batch for batch in self._reader if batch.num_columns), None)

    def _hang_up(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        with suppress(OSError, errors.Error):
            self._client.disconnect()

    def _watch(self, connected: Any) -> None:
        """Packets without an end, such as reports of progress, must not outlive the deadline."""

        def cut() -> None:
            self._out_of_time.set()
            with suppress(OSError):
                # As a plain socket: that of TLS would take its state away from the thread that reads.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

        self._watchdog = threading.Timer(remaining_sec(self._deadline) + GRACE_SEC, cut)
        self._watchdog.daemon = True
        self._watchdog.start()

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            with _translated("reading the window", self._address, query_id=self._query_id):
                try:
                    return call()
                except TimeoutError:
                    self._unheard = True  # the query may run on
                    raise
        except DponeError:
            if self._out_of_time.is_set():
                remaining_sec(self._deadline)  # raises: the watchdog rings after the deadline only
            raise

    def _check_end(self) -> None:
        """EndOfStream came. That all rows came too is told by the server's own count of them."""
        if not self._reader.schema.names:
            self._incomplete("The answer of the server has no columns")
        profile = self._client.last_query.profile_info
        if profile is self._unprofiled:
            self._incomplete("The server ended the stream without its count of rows")
        if profile.rows != self._rows:
            self._incomplete(f"The server counts {profile.rows} rows, but {self._rows} arrived")

    def _incomplete(self, what: str) -> NoReturn:
        raise SourceUnavailable(
            "dpone.source.incomplete", f"{what}, query_id {self._query_id}.", query_id=self._query_id
        )


class _translated:  # noqa: N801 - used as a function
    """Turns what the driver raises into an error of ours; nothing of a server's text is kept."""

    def __init__(self, doing: str, address: ServerAddress, **fields: str) -> None:
        self._doing, self._address, self._fields = doing, address, fields

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None and not isinstance(error, DponeError) and isinstance(error, Exception):
            raise self._error(error) from None

    def _error(self, error: Exception) -> DponeError:
        if isinstance(error, errors.ServerException):
            if self._doing == "connecting" and error.code == errors.ErrorCodes.UNKNOWN_DATABASE:
                text = "the server has no such database; correct or empty it (statements name theirs)"
                return ConfigurationError.of([Problem("dpone.source.missing", "source, database", text)])
            return answered(error.code, _NAMES.get(error.code), self._doing, **self._fields)
        told = "".join(f", {name} {value}" for name, value in self._fields.items())
        where = f"while {self._doing} at {self._address}{told}"
        kind = type(error).__name__
        wrong_protocol = (errors.UnexpectedPacketFromServerError, errors.UnknownPacketFromServerError)
        if self._doing == "connecting" and isinstance(error, (*wrong_protocol, UnicodeDecodeError)):
            text = (
                f"{self._address} answers, but not in ClickHouse's native protocol: is it an HTTP port (use"
                " 9000, or 9440 with TLS), or a TLS port without secure?"
            )
            problem = Problem("dpone.source.protocol", "source", text)
            return ConfigurationError.of([problem])
        if isinstance(error, OSError | EOFError | errors.NetworkError | errors.SocketTimeoutError):
            what = "No connection" if self._doing == "connecting" else "The connection broke"
            silent = self._doing == "connecting" and isinstance(error, errors.SocketTimeoutError)
            hint = "; an HTTP port stays silent, use 9000, or 9440 with TLS" if silent else ""
            text = f"{what} {where} ({_network_words(error)}){hint}."
            return SourceUnavailable("dpone.source.unavailable", text, **self._fields)
        if isinstance(error, pa.ArrowException | ValueError | KeyError | IndexError | errors.Error):
            text = f"An answer of the server is not readable {where} ({kind})."
            return SourceUnavailable("dpone.source.broken_block", text, **self._fields)
        # In the middle of a stream it may be how a torn answer looks to the driver: worth another read.
        code = "dpone.source.broken_block" if self._fields else "dpone.source.failed"
        return SourceUnavailable(code, f"The driver failed {where} ({kind}).", **self._fields)


def _network_words(error: Exception) -> str:
    """Of the system or of the TLS library; neither knows a secret."""
    if isinstance(error, errors.NetworkError | errors.SocketTimeoutError):
        return f"{type(error).__name__}: {error.message}"
    strerror = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {strerror}" if strerror else type(error).__name__


class ServerSource(ClickHouseSource):
    """A :class:`~airflow_dpone.delivery.ports.SourcePort` over one ClickHouse server.

    One connection serves the catalog while the source is open; each read has one of its own.
    """

    capabilities: Mapping[str, str] = {
        "row_policies": "present",
        "server_identity": "present",
        "query_log": "present",
    }
    unused_forms = ("output_format_arrow_",)

    def __init__(self, address: ServerAddress, *, admission: Admission | None = None) -> None:
        super().__init__(admission)
        self._address = address

    @property
    def name(self) -> str:
        """Host and port."""
        return f"The ClickHouse source {self._address}"

    def _acquire(self) -> None:
        return

    def _release(self) -> None:
        return

    def _new_session(self) -> Session:
        session = DriverSession(self._address, self._end_query)
        try:
            session.open()
        except BaseException:
            session.close()
            raise
        return session

    def _end_query(self, query_id: str) -> None:
        """KILL QUERY over the catalog's connection: the cancel of the read's own may never have arrived."""
        session = self._catalog
        if session is None:
            return
        try:
            session.rows(statements.KILL.format(query_id=statements.quote_text(query_id)))
        except DponeError as error:
            log.info("query %s could not be killed and ends by its own bounds: %s", query_id, error.code)
