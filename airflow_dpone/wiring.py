"""Settings in, ready delivery out: the one place that knows every adapter, each imported only when it is
used."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack
from urllib.parse import urlsplit

from airflow_dpone.call_checks import Places, airflow_home, call_problems, kind_problems
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.settings import (
    Options,
    Route,
    SourcePlace,
    TargetPlace,
    checked_target,
    uri_path,
)

if TYPE_CHECKING:
    from airflow_dpone.connections import AirflowConnection
    from airflow_dpone.delivery.cancel import Cancel
    from airflow_dpone.delivery.deliver import Done
    from airflow_dpone.delivery.lost_writers import SessionsPort
    from airflow_dpone.delivery.ports import (
        JournalPort,
        Observer,
        Ports,
        Progress,
        RecoveryPorts,
        SpoolPort,
        TargetPort,
        WriterPort,
    )
    from airflow_dpone.delivery.records import DeliveryResult, Plan, Requester
    from airflow_dpone.delivery.window import Window
    from airflow_dpone.journal.address import JournalAddress
    from airflow_dpone.source_clickhouse.activity import Activity
    from airflow_dpone.source_clickhouse.source import ClickHouseSource
    from airflow_dpone.target_embedded.target import EmbeddedTarget
    from airflow_dpone.target_sqlserver.connection import SqlServerConnection
    from airflow_dpone.target_sqlserver.target import SqlServerTarget


class Asked(TypedDict, total=False):
    """Fields of the engine's ``Request`` that an operator sets."""

    last_phase: str
    may_open: bool
    deadline_sec: float
    lease_ttl_sec: float
    lease_wait_sec: float
    cancel: Cancel
    first_ti_id: str


def deliver(
    route: Route,
    window: Window,
    *,
    journal: str | Path | JournalAddress,
    spool: str | Path,
    requester: Requester,
    rerun: bool = False,
    deadline_sec: float = 14_400.0,
    lease_ttl_sec: float = 60.0,
    custody_wait_sec: float = 0.0,
    host_id: str | None = None,
    spool_conn_id: str | None = None,
    on_progress: Progress | None = None,
    observer: Observer | None = None,
) -> DeliveryResult:
    """Delivers one window, or goes on where an earlier call of the same requester stopped.

    :param route: what goes where. :param window: ``Window(start, end)``, or ``Window.full()`` for a full
        refresh.
    :param journal: path of a SQLite file, or a SQLAlchemy URL (``postgresql://user@host/database``); must be
        migrated (``db migrate``).
    :param spool: directory for sealed chunks, made if absent, private to the user; or the URL of a place in
        an object store that every worker reaches (``s3://bucket/prefix``).
    :param requester: who asks; the same requester resumes, another one is refused while this one is
        unfinished.
    :param rerun: deliver a finished window again, as the next generation.
    :param deadline_sec: budget of this call. :param lease_ttl_sec: 2..600, how long a silent owner is
        believed.
    :param custody_wait_sec: how long this call waits while an unfinished delivery of another requester owns
        the target, or another process works on this one; then CustodyHeld or LeaseHeld.
    :param host_id: this machine's name for a SQLite journal and a local spool; default: /etc/machine-id. For
        containers, the same as at ``db migrate --host-id``.
    :param spool_conn_id: the Airflow connection that holds the credentials of a spool's URL.
    :param on_progress: called with (phase, done, total or None, unit).
    :param observer: called with each crash point (tests).
    :returns: only for a completed delivery, also one that was completed before (``already=True``).
    :raises DponeError: everything else; ``state_after`` says where the delivery stands.

    Survives SIGKILL at any point: call it again with the same requester. A publication whose answer was lost
    is looked up in the target, never sent blindly.
    """
    from airflow_dpone.delivery.deliver import deliver as run_delivery
    from airflow_dpone.delivery.run import Request
    from airflow_dpone.delivery.window import Window

    places = Places(journal, spool, host_id, spool_conn_id)
    problems = [
        *call_problems(places, deadline_sec, lease_ttl_sec, custody_wait_sec),
        *kind_problems(route, window, requester),
    ]
    if isinstance(route, Route):
        problems += route_problems(route, window if isinstance(window, Window) else None)
    if problems:
        raise ConfigurationError.of(problems)
    with open_ports(route, places, progress=on_progress, observer=observer) as ports:
        limits = (deadline_sec, lease_ttl_sec, custody_wait_sec)
        return run_delivery(ports, Request(route, window, requester, rerun, *limits))


def run_phases(
    route: Route,
    window: Window | None,
    requester: Requester,
    places: Places,
    *,
    keep_window: bool = False,
    **asked: Unpack[Asked],
) -> Done:
    """What the operators call: as :func:`deliver`, up to ``last_phase``. The caller has checked the
    parameters.

    :param window: None where only the stored one counts: that of the delivery that was admitted.
    :param keep_window: the window of an earlier call of this requester counts before this one.
    """
    from airflow_dpone.delivery.deliver import run_phases as run_delivery
    from airflow_dpone.delivery.run import Request
    from airflow_dpone.delivery.standing import not_admitted, stored_window

    with open_ports(route, places) as ports:
        keeps, first = keep_window or window is None, asked.get("first_ti_id", "")
        stored = stored_window(ports.journal, requester, window, first) if keeps else None
        chosen = stored or window
        if chosen is None:
            raise not_admitted(requester, None)
        return run_delivery(ports, Request(route, chosen, requester, **asked))


def plan(route: Route, window: Window) -> Plan:
    """What :func:`deliver` would do: types, mapping, refusals and statements, from read-only metadata
    queries.

    Raises only when it cannot connect and nothing is wrong otherwise; everything else, a missing table or
    connection too, is in ``refusals``.
    """
    from airflow_dpone.delivery.plan_preview import preview
    from airflow_dpone.delivery.records import Plan

    problems = route_problems(route, window)
    if problems:  # as a delivery, which opens nothing then
        return Plan(route, window, (), tuple(problems), {}, None, ())
    target, writer = _target_and_writer(route)
    return preview(_source(route.source, route.options), target, writer, route, window)


class open_ports:  # noqa: N801 - used as a function
    """The ports of one route, with an open journal. A context manager; engines open only while a phase uses
    them."""

    def __init__(
        self,
        route: Route,
        places: Places,
        *,
        progress: Progress | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._route, self._places = route, places
        self._progress, self._observer = progress, observer
        self._stack = ExitStack()

    def __enter__(self) -> Ports:
        from airflow_dpone.delivery.clock import SystemClock
        from airflow_dpone.delivery.ports import Ports

        source = _source(self._route.source, self._route.options)
        target, writer = _target_and_writer(self._route)
        with ExitStack() as stack:
            journal = stack.enter_context(_open_journal(self._places.journal, self._places.host_id))
            spool = stack.enter_context(_open_spool(self._places))
            self._stack = stack.pop_all()
        clock = SystemClock()
        return Ports(
            source=source,
            spool=spool,
            target=target,
            writer=writer,
            journal=journal,
            clock=clock,
            observer=self._observer,
            progress=self._progress,
        )

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


@contextmanager
def open_recovery(target: str, places: Places) -> Iterator[RecoveryPorts]:
    """The ports of a recovery command: no source, no writer. Raises ConfigurationError, or JournalError as a
    delivery does."""
    from airflow_dpone.delivery.clock import SystemClock
    from airflow_dpone.delivery.ports import RecoveryPorts

    opened = closed_target(target)
    with _open_journal(places.journal, places.host_id) as journal, _open_spool(places) as spool:
        yield RecoveryPorts(spool=spool, target=opened, journal=journal, clock=SystemClock())


@contextmanager
def open_writer_search(
    target: str, journal: JournalAddress, host_id: str | None
) -> Iterator[tuple[JournalPort, SessionsPort]]:
    """The open journal and the closed target of ``recovery writer``, which needs no spool.

    Raises ConfigurationError, also for an embedded target, or JournalError as a delivery does.
    """
    from airflow_dpone.target_sqlserver.target import SqlServerTarget

    none = "is an embedded target: its writers have no sessions, each ends with the process of its task"
    where = sql_server(checked_target(target), none)
    with _open_journal(journal, host_id) as opened:
        yield opened, SqlServerTarget(where)


def route_problems(route: Route, window: Window | None, unread: Collection[str] = ()) -> list[Problem]:
    """What can be told of a route, and of a window if one is given, without opening anything.

    :param unread: fields that say nothing, since they are wrong: see ``settings.readable_route``.
    """
    from airflow_dpone.delivery.planning import request_problems

    problems: list[Problem] = []
    backend = None
    try:
        if "source" not in unread:
            _source(route.source, route.options)
    except ConfigurationError as error:
        problems += error.problems
    try:
        if "target" not in unread:
            path, connection = _embedded_path("target", route.target, "duckdb")
            backend = "tds" if path is None else "embedded"
            if path is None:
                _sql_server(route.target, connection)
    except ConfigurationError as error:
        problems += error.problems
    return [*request_problems(route, window, backend), *problems]


def _embedded_path(
    field: str, value: str, engine: str, found: AirflowConnection | None = None
) -> tuple[str | None, AirflowConnection | None]:
    """The path of this engine, if a URI or a connection names one; else None, and the connection."""
    from airflow_dpone.connections import EMBEDDED_TYPE, embedded_path, read_connection

    if "://" in value:
        return (uri_path(value) if urlsplit(value).scheme == engine else None), None
    found = found or read_connection(value, field)
    return (embedded_path(found, engine) if found.conn_type == EMBEDDED_TYPE else None), found


def source_activity(
    place: SourcePlace, window: Window, connection: AirflowConnection | None = None
) -> Activity:
    """What happens to a window's rows in the source now: inserts by their age, unfinished mutations.

    :param connection: the source's connection, where it was read already: in an event loop.
    :raises DponeError: the source does not answer, or there is no such table, or its parts say nothing.
    """
    # What a delivery asks of a table is not asked here, and a directory that is in use is not waited for.
    lenient = Options(allow_ttl=True, accept_unseen_row_policies=True, embedded_lock_wait_sec=1)
    with _source(place.source, lenient, connection) as source:
        return source.activity(*place.source_table, place.window_column, window)


def _source(source: str, options: Options, connection: AirflowConnection | None = None) -> ClickHouseSource:
    """The closed source of a route. An Airflow connection is read for it; nothing else is opened."""
    from airflow_dpone.source_clickhouse.introspect import Admission

    admission = Admission(options.allow_ttl, options.accept_unseen_row_policies)
    path, connection = _embedded_path("source", source, "chdb", connection)
    if path is not None:
        from airflow_dpone.source_clickhouse.embedded import EmbeddedSource

        return EmbeddedSource(path, lock_wait_sec=options.embedded_lock_wait_sec, admission=admission)
    from airflow_dpone.source_clickhouse.address import ServerAddress
    from airflow_dpone.source_clickhouse.reader import ServerSource

    if connection is None:
        return ServerSource(ServerAddress.of_uri(source), admission=admission)
    return ServerSource(ServerAddress.of_connection(connection), admission=admission)


NO_SERVER = "is an embedded target: there is nothing to prepare or to grant, its first delivery does that"


def sql_server(target: str, if_embedded: str = NO_SERVER) -> SqlServerConnection:
    """The SQL Server database that a URI or an Airflow connection id names. Opens nothing.

    :param if_embedded: why an embedded target is refused.
    :raises ConfigurationError: every problem of it.
    """
    path, connection = _embedded_path("target", target, "duckdb")
    if path is not None:
        raise ConfigurationError.of([Problem("dpone.config.field", "target", if_embedded)])
    return _sql_server(target, connection)


def _sql_server(target: str, connection: AirflowConnection | None) -> SqlServerConnection:
    from airflow_dpone.target_sqlserver.connection import SqlServerConnection

    if connection is None:
        return SqlServerConnection.of_uri(target)
    return SqlServerConnection.of_connection(connection)


def initialise_target(where: SqlServerConnection) -> str:
    """Makes a SQL Server database ready for deliveries and returns its installation GUID.

    :raises DponeError: it cannot be reached, or the login may not create schemas and tables.
    """
    from airflow_dpone.target_sqlserver.target import SqlServerTarget

    with SqlServerTarget(where) as target:
        return target.initialise()


def find_target_key(place: TargetPlace) -> str:
    """The key of a target's lease, custody and checkpoints: asks the target once, as a delivery would.

    :raises ConfigurationError: there is no such table, or the database is not initialised.
    :raises TargetBusy: the target does not answer.
    """
    with closed_target(place.target) as target:
        return target.identify(*place.target_table, initialise=True).target_key


def closed_target(target: str) -> EmbeddedTarget | SqlServerTarget:
    """The target that a URI or a connection id names. An Airflow connection is read for it; nothing else is
    opened. Raises ConfigurationError."""
    path, connection = _embedded_path("target", checked_target(target), "duckdb")
    if path is not None:
        from airflow_dpone.target_embedded.target import EmbeddedTarget

        return EmbeddedTarget(path)
    from airflow_dpone.target_sqlserver.target import SqlServerTarget

    return SqlServerTarget(_sql_server(target, connection))


def _target_and_writer(route: Route) -> tuple[TargetPort, WriterPort]:
    """An embedded target writes itself; a server's writer has sessions and processes of its own."""
    path, connection = _embedded_path("target", route.target, "duckdb")
    if path is not None:
        from airflow_dpone.target_embedded.target import EmbeddedTarget

        embedded = EmbeddedTarget(path, lock_wait_sec=route.options.embedded_lock_wait_sec)
        return embedded, embedded
    from airflow_dpone.bulk_writer.writer import TdsWriter
    from airflow_dpone.target_sqlserver.target import SqlServerTarget

    where = _sql_server(route.target, connection)
    return SqlServerTarget(where), TdsWriter(where)


def _open_journal(journal: str | Path | JournalAddress, host_id: str | None) -> JournalPort:
    from airflow_dpone.journal.store import open_journal

    return open_journal(journal, host=host_id)


def _open_spool(places: Places) -> SpoolPort:
    from airflow_dpone.spool.addresses import is_url

    if is_url(places.spool):
        from airflow_dpone.spool.object_storage import ObjectSpool

        cache = os.path.join(airflow_home(), "dpone", "spool_cache")
        return ObjectSpool(str(places.spool), cache, conn_id=places.spool_conn_id)
    from airflow_dpone.spool.local import LocalSpool

    return LocalSpool(str(places.spool), host_id=places.host_id)
