"""What every ClickHouse source does alike: settings, introspection, the statement, the one read.

A subclass knows how to open a session (``embedded``: the engine in this process; ``reader``: a server).
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import pyarrow as pa

from airflow_dpone.delivery.ports import Deadline, effect
from airflow_dpone.delivery.records import SourceQuery, SourceSnapshot, SourceTable
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, DponeError, Problem, SourceMoved, SourceUnavailable
from airflow_dpone.source_clickhouse import activity, introspect, query_settings, statements
from airflow_dpone.source_clickhouse.activity import Activity
from airflow_dpone.source_clickhouse.error_map import (
    ACCESS_DENIED,
    CONSTRAINT,
    READONLY,
    UNKNOWN_SETTING,
)
from airflow_dpone.source_clickhouse.introspect import Admission
from airflow_dpone.source_clickhouse.query_settings import Sendable, Setting
from airflow_dpone.source_clickhouse.session import Session, remaining_sec
from airflow_dpone.source_clickhouse.window_read import WindowRead
from airflow_dpone.wire.types import WireLayout

_ASKED = (
    *query_settings.ALWAYS_SENT,
    *query_settings.SENT_IF_KNOWN,
    *query_settings.SENT_WITH_A_READ,
    "readonly",
)


class ClickHouseSource(ABC):
    """A :class:`~airflow_dpone.delivery.ports.SourcePort` over sessions of one ClickHouse engine.

    :param admission: what the route lets through.
    """

    capabilities: Mapping[str, str] = {}
    own_settings: frozenset[str] = frozenset()
    """What this kind of engine changes by itself in every session."""
    format_settings: Mapping[str, str] = {}
    """What the form of the results needs, beside the closed list."""
    unused_forms: tuple[str, ...] = ()
    """Beginnings of settings of forms in which results never come."""

    def __init__(self, admission: Admission | None = None) -> None:
        self._admission = admission or Admission()
        self._catalog: Session | None = None
        self._sendable = Sendable({}, {})
        self._profiles = ""
        self._pid = 0
        self._reads: list[WindowRead] = []
        self._finished: tuple[SourceQuery, Mapping[str, int] | None] | None = None

    # ---- open and close --------------------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str:
        """What a message calls this source; no secret."""

    @abstractmethod
    def _new_session(self) -> Session:
        """Another session."""

    @abstractmethod
    def _acquire(self) -> None:
        """Takes what is needed before the first session."""

    @abstractmethod
    def _release(self) -> None:
        """The reverse of a successful :meth:`_acquire`."""

    def __enter__(self) -> Self:
        self._acquire()
        self._pid = os.getpid()
        try:
            self._catalog = self._new_session()
            self._sendable = self._negotiate(self._catalog)
            named = self._ask(statements.PROFILES)
            self._profiles = named[0][0] if named else ""
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        session, self._catalog = self._catalog, None
        reads, self._reads = self._reads, []
        pid, self._pid, self._finished = self._pid, 0, None
        try:
            for read in reads:
                read.close()
            if session is not None:
                session.close()
        finally:
            if pid:
                self._release()

    def _check_usable(self) -> None:
        if not self._pid:
            raise SourceUnavailable("dpone.source.closed", f"{self.name} is not open.")
        if self._pid != os.getpid():
            text = f"{self.name} was opened before this process was forked and cannot be used here."
            raise SourceUnavailable("dpone.source.closed", text)

    # ---- settings --------------------------------------------------------------------------------------

    def _negotiate(self, session: Session) -> Sendable:
        """The closed list as far as this engine knows it and this user may send it. Already the first
        question carries it: a profile could cut the answer."""
        everything = query_settings.settings_to_send(query_settings.SENT_IF_KNOWN)
        for sent in (everything, query_settings.ALWAYS_SENT):
            try:
                found = self._settings(session, sent)
            except DponeError as error:
                number = error.fields.get("clickhouse_code")
                if number == UNKNOWN_SETTING:
                    continue
                if number in (READONLY, CONSTRAINT):
                    break
                raise
            return Sendable(query_settings.settings_to_send(found), found)
        return query_settings.what_a_user_can_send(self._settings(session, {}))

    def _settings(self, session: Session, sent: Mapping[str, str]) -> dict[str, Setting]:
        """``system.settings`` while these settings are sent; empty if the profile hides it."""
        self._check_usable()
        names = (*_ASKED, *self.format_settings)
        rows = session.rows(statements.with_settings(statements.settings_of(names), sent))
        found = {}
        for one in rows[0][0].split() if rows else ():
            texts = [bytes.fromhex(text).decode("utf-8", "replace") for text in one.split(".")]
            name, value, changed, fixed, least, most = texts
            found[name] = Setting(value, changed == "1", fixed == "1", least, most)
        return found

    def _setting_problems(self, session: Session) -> list[Problem]:
        sent = {**self._sendable.sent, **self.format_settings}
        seen = self._settings(session, sent)
        known = self._sendable.found
        wanted = {**query_settings.settings_to_send(known), **self.format_settings}
        if not seen:
            text = "shows nothing to this user: no profile may limit, filter or skip its rows"
            return [Problem("dpone.source.setting", "system.settings", text)]
        return query_settings.setting_problems(
            seen, wanted, self.own_settings, self._profiles, self.unused_forms
        )

    def _settings_of(self, query: SourceQuery) -> dict[str, str]:
        """The closed list for a query, with blocks that fit the table's rows."""
        return {**self._sendable.sent, **self._sendable.block_settings(self._row_bytes(query))}

    def _row_bytes(self, query: SourceQuery) -> int:
        names = {"database": query.database, "table": query.table}
        return int(self._ask(statements.render(statements.ROW_BYTES, **names))[0][0])

    # ---- metadata --------------------------------------------------------------------------------------

    def describe(self, database: str, table: str) -> SourceTable:
        """Introspection; see the port. Settings of the session that would change results are problems."""
        problems = tuple(self._setting_problems(self._opened()))
        return introspect.describe(
            self._ask,
            database,
            table,
            capabilities=self.capabilities,
            admission=self._admission,
            problems=problems,
        )

    def compile(
        self,
        table: SourceTable,
        layout: WireLayout,
        source_columns: Sequence[str],
        window_column: str | None,
        window: Window,
    ) -> SourceQuery:
        """The statement that reads the window; see the port. It was tried: the user may read these columns.

        :raises ConfigurationError: also when rows of the window are about to go by their TTL.
        """
        query = statements.compile_query(table, layout, source_columns, window_column, window)
        self._probe(query)
        self._check_ttl(query)
        return query

    def _probe(self, query: SourceQuery) -> None:
        try:
            self._ask(statements.PROBE.format(text=query.text))
        except ConfigurationError as error:
            if error.fields.get("clickhouse_code") != ACCESS_DENIED:
                raise
            where = f"{query.database}.{query.table}"
            text = "may not be read: GRANT SELECT on the delivered columns and the window column to this user"
            raise ConfigurationError.of([Problem("dpone.source.access", where, text)]) from None

    def find_rows_hint(self, query: SourceQuery, column: str, code: str) -> str:
        """A query that finds the rows of a data error; ``column`` is the source's name."""
        return statements.find_rows(query, column, code)

    def snapshot(self, query: SourceQuery) -> SourceSnapshot:
        """The table now; see the port. After a finished read of the query also what that read saw."""
        parts = self._finished[1] if self._finished and self._finished[0] == query else None
        return introspect.snapshot(self._ask, query, self._settings_of(query), parts)

    def activity(self, database: str, table: str, window_column: str | None, window: Window) -> Activity:
        """What happens to the window's rows now; see :mod:`~airflow_dpone.source_clickhouse.activity`."""
        described = self.describe(database, table)
        return activity.look(self._ask, described, window_column, window)

    def _check_ttl(self, query: SourceQuery) -> None:
        if self._admission.allow_ttl:
            problems = introspect.window_ttl_problems(self._ask, query, datetime.now(UTC))
            if problems:
                raise ConfigurationError.of(problems)

    def _ask(self, statement: str) -> list[list[str]]:
        return self._opened().rows(statements.with_settings(statement, self._sendable.sent))

    def _opened(self) -> Session:
        self._check_usable()
        if self._catalog is None:  # only while __enter__ fails
            raise SourceUnavailable("dpone.source.closed", f"{self.name} is not open.")
        return self._catalog

    # ---- the read --------------------------------------------------------------------------------------

    @effect
    def read(self, query: SourceQuery, *, nonce: str, deadline: Deadline) -> Iterator[pa.RecordBatch]:
        """Runs the query once and yields raw batches; see the port. Leaving ``with`` ends it.

        :raises SourceUnavailable: the stream ended early, for whatever reason, or the deadline is over.
        :raises SourceMoved: another server answers than the one that was introspected.
        :raises SourceDataError: the engine cannot read its own data.
        """
        self._check_usable()
        seconds = math.ceil(remaining_sec(deadline))
        self._finished = None
        settings = {
            **self._settings_of(query),
            **self.format_settings,
            **self._sendable.with_a_read({"max_execution_time": str(seconds), "log_comment": nonce}),
        }
        self._check_ttl(query)
        names = {"database": query.database, "table": query.table}
        newest = {
            one: int(block) for one, block in self._ask(statements.render(statements.NEWEST_BLOCKS, **names))
        }
        session = self._new_session()
        try:
            self._check_read_session(session, query)
            text = statements.with_part(query)
            stream = session.stream(
                statements.with_settings(text or query.text, settings),
                query_id=f"dpone-{nonce}",
                deadline=deadline,
            )
        except BaseException:
            session.close()
            raise

        def finished(parts: Mapping[str, int] | None) -> None:
            if parts is not None:
                self._check_whole(query, parts, newest)
            self._finished = (query, parts)

        read = WindowRead(stream, text is not None, finished)
        self._reads.append(read)
        return read

    def _check_whole(self, query: SourceQuery, seen: Mapping[str, int], newest: Mapping[str, int]) -> None:
        """A query that is killed can end like one that is done: seen with this engine. So the rows are
        counted once more, part by part."""
        now = {name: int(rows) for name, rows in self._ask(statements.part_rows(query))}
        missing = introspect.unread(seen, now, newest)
        if missing is not None:
            text = f"The read of {query.database}.{query.table} ended early: {missing}."
            raise SourceUnavailable("dpone.source.incomplete", text)

    def _check_read_session(self, session: Session, query: SourceQuery) -> None:
        """The session of the read is another one: it must see the same server and the same settings."""
        server = statements.with_settings(statements.SERVER_ID, self._sendable.sent)
        if session.rows(server) != self._ask(statements.SERVER_ID):
            raise SourceMoved("dpone.source.moved", "Two connections reached two servers behind one name.")
        problems = [
            *self._setting_problems(session),
            *self._sendable.block_problems(self._row_bytes(query)),
        ]
        if problems:
            raise ConfigurationError.of(problems)
