"""SQL Server behind the target's port: one session for the work, a new one for everything that is a proof."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import TracebackType

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.lost_writers import WriterSession, WriterSessions
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.target_sqlserver import (
    catalog,
    check_statements,
    error_map,
    gate,
    installation,
    plan_text,
    preflight,
    publication,
    stages,
    table_creation,
    writer_sessions,
)
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.target_sqlserver.session import Session, milliseconds
from airflow_dpone.target_sqlserver.window_bounds import WindowBounds
from airflow_dpone.wire.sql_type import parse_sql_type
from airflow_dpone.wire.types import WireLayout


class SqlServerTarget(AbstractContextManager["SqlServerTarget"]):
    """One database as a target.

    :param where: server, database, login. :param lock_wait_sec: how long a publication waits for the target's
        lock. :param settle_sec: how long a probe waits for it: as long as a server may need to undo what a
        lost session did; default: as long as the publication ran and a minute more, at least two minutes.
        :param writer_settle_sec: how long a verification waits for the end of a session of a writer that
        should be gone.

    Sessions open when they are first needed and are thrown away after any error, so that nothing goes on in a
    transaction that nobody remembers. A crash survives as the server's own transactions do: every method is
    one transaction, or none.
    """

    environment = "sqlserver"
    lock_mode = "table"

    def __init__(
        self,
        where: SqlServerConnection,
        *,
        lock_wait_sec: float = 600.0,
        settle_sec: float | None = None,
        writer_settle_sec: float = stages.WRITER_SETTLE_SEC,
    ) -> None:
        self.where = where
        self.schemas = where.schemas
        self._writer_settle_sec = writer_settle_sec
        self.delivery = ""
        self._lock_ms, self._settle_sec = milliseconds(lock_wait_sec), settle_sec
        self._published_sec = 0.0
        self._rehearsed: set[str] = set()
        self._is_open = False
        self._kept: Session | None = None

    def __enter__(self) -> SqlServerTarget:
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._discard()

    def _discard(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    @property
    def _settle_ms(self) -> int:
        given = self._settle_sec
        return milliseconds(publication.settle_sec(self._published_sec) if given is None else given)

    def _connect(self) -> Session:
        if not self._is_open:
            raise RuntimeError("the target is used outside of its `with` block")
        with error_map.mapped("connecting"):
            return Session.open(self.where, application=f"airflow_dpone {self.delivery[:16]}".strip())

    @contextmanager
    def _session(self, action: str) -> Iterator[Session]:
        """The session of this phase; after an error the next method gets a new one."""
        if self._kept is None:
            self._kept = self._connect()
        try:
            with error_map.mapped(action):
                yield self._kept
        except BaseException:
            self._discard()
            raise

    @contextmanager
    def _own_session(self, action: str) -> Iterator[Session]:
        """A session for one proof: what it sees is committed."""
        session = self._connect()
        try:
            with error_map.mapped(action):
                yield session
        except BaseException:
            self._discard()  # what broke this one may have broken the other
            raise
        finally:
            session.close()

    @contextmanager
    def _transaction(self, action: str) -> Iterator[Session]:
        with self._session(action) as session, session.transaction():
            yield session

    # ---- admission --------------------------------------------------------------------------------

    def initialise(self) -> str:
        """What ``target init`` does: schemas, tables, identity; returns the GUID."""
        with self._session("making the database ready") as session:
            return installation.initialise(session, self.schemas)

    def identify(
        self, schema: str, table: str, *, initialise: bool, may_be_missing: bool = False
    ) -> tr.TargetIdentity:
        """Installation, stored names, incarnation, gate. Creates nothing: that is ``target init``.

        :param initialise: a delivery asks: without an installation it is a ConfigurationError
            ``dpone.target.not_initialised``.
        """
        with self._session("identifying the target") as session:
            find = catalog.find_or_missing if may_be_missing else catalog.find_table
            installed = installation.installation_id(session, self.schemas)
            try:
                found = find(session, schema, table, self.schemas)
            except ConfigurationError as error:
                if installed is not None:
                    raise
                text = installation.missing_text(self.schemas)
                missing = Problem("dpone.target.not_initialised", "target", text)
                raise ConfigurationError.of([*error.problems, missing]) from None
            if initialise and installed is None:
                installed = installation.require_installation(session, self.schemas)
            answer = tr.TargetIdentity(
                installed,
                found.schema,
                found.table,
                found.object_id,
                found.stamp,
                gate=None,
                is_missing=found.is_missing,
            )
            if installed is None:
                return answer
            row = gate.read_gate(session, answer.target_key, self.schemas, lock=False)
            return replace(answer, gate=row)

    def describe(self, schema: str, table: str) -> tr.TargetTable:
        """Columns with their types, and everything that stands against delivering into the table."""
        with self._session("reading the target's columns") as session:
            found = catalog.find_table(session, schema, table, self.schemas)
            return preflight.describe(session, found, self.schemas)

    def new_table(self, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> tr.NewTable:
        """The CREATE TABLE, and all that stands against it and against delivering into the table."""
        with self._session("asking whether the target can be created") as session:
            return table_creation.describe(session, schema, table, columns, self.schemas)

    def create_table(self, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> bool:
        """An empty heap; False when something of that name is there."""
        with self._transaction("creating the target") as session:
            return table_creation.create(session, schema, table, columns, self.schemas, self._settle_ms)

    def statements(
        self,
        target: tr.TargetRef,
        layout: WireLayout,
        window_column: str | None,
        checks: Sequence[TableCheck] = (),
        *,
        after_image_digest: bool = False,
    ) -> Mapping[str, str]:
        """The SQL of staging, checks and publication, by name and in order."""
        return plan_text.statements(target, layout, window_column, self.schemas, checks, after_image_digest)

    def count_window(self, target: tr.TargetRef, window_column: str | None, window: Window) -> int:
        """Rows that a publication would delete now."""
        with self._session("counting the window") as session:
            table = catalog.find_table(session, target.schema, target.table, self.schemas)
            columns = catalog.described(catalog.columns_of(session, table.object_id))
            found = {c.name: parse_sql_type(c.type) for c in columns}.get(window_column or "")
            if isinstance(found, str) or (found is None and window_column is not None):
                problem = Problem(
                    "dpone.config.window", str(window_column), found or "is no column of the target"
                )
                raise ConfigurationError.of([problem])
            bounds = WindowBounds.of(window_column, found, window)
            return session.number(bounds.count(table.path), *bounds.texts)

    def claim_gate(
        self, target: tr.TargetRef, *, journal_id: str, route_scope: str, fence: int, take_over: bool
    ) -> tr.GateRow:
        """Creates the gate, or raises its fence, under the target's lock."""
        wanted = gate.GateClaim(target, journal_id, route_scope, fence)
        with self._transaction("claiming the gate") as session:
            gate.enter(session, target.target_key, self._settle_ms)
            return gate.claim(session, wanted, self.schemas, take_over=take_over)

    def adopt_gate(
        self, target_key: str, *, journal_id: str, fence: int, take_over: bool
    ) -> tr.GateRow | None:
        """The gate belongs to this journal now; None where there is none."""
        with self._session("adopting the gate") as session:
            if installation.installation_id(session, self.schemas) is None:
                return None
            with session.transaction():
                gate.enter(session, target_key, self._settle_ms)
                return gate.adopt(
                    session,
                    target_key,
                    self.schemas,
                    journal_id=journal_id,
                    fence=fence,
                    take_over=take_over,
                )

    # ---- staging ----------------------------------------------------------------------------------

    def create_stage(self, name: str, owner: str, layout: WireLayout, *, claim: tr.Claim) -> tr.StageRef:
        """An empty raw table with its mark."""
        with self._transaction("creating a staging table") as session:
            gate.refuse_replaced(session, claim, self.schemas)
            return stages.create(session, name, owner, layout, self.schemas)

    def find_stage(self, name: str, owner: str) -> tr.StageRef | None:
        """By name and mark."""
        with self._session("looking for a staging table") as session:
            return stages.find(session, name, owner, self.schemas)

    def grant(self, stage: tr.StageRef, token_sha256: str) -> None:
        """Once per stage."""
        with self._transaction("granting a staging table") as session:
            stages.grant(session, stage, token_sha256, self.schemas)

    def verify_stage(
        self, stage: tr.StageRef, layout: WireLayout, rows: int, digest: str, *, deadline: Deadline
    ) -> tr.StageObservation:
        """Takes the writer's lock and the table's, counts, hashes, seals or retires."""
        stages.check_deadline(deadline)
        with self._transaction("verifying a staging table") as session:
            wait = self._writer_settle_sec
            return stages.verify(session, stage, layout, (rows, digest), self.schemas, deadline, wait)

    def build_prepared(
        self,
        name: str,
        owner: str,
        layout: WireLayout,
        raw: Sequence[tr.StageRef],
        expected_rows: int,
        *,
        claim: tr.Claim,
    ) -> tuple[tr.StageRef, tr.StageObservation]:
        """The prepared table of exactly these raw tables."""
        with self._transaction("building the prepared table") as session:
            gate.refuse_replaced(session, claim, self.schemas)
            return stages.build_prepared(session, name, owner, layout, raw, expected_rows, self.schemas)

    def count_violations(
        self, prepared: tr.StageRef, layout: WireLayout, checks: Sequence[TableCheck]
    ) -> Sequence[int]:
        """One count for each check, all of the same rows: the table is locked."""
        path = self.schemas.stage_path(prepared.name)
        with self._transaction("checking the prepared table") as session:
            session.execute(sql.lock_stage(self.schemas, prepared.name))
            stages.require(session, prepared, self.schemas)
            return [
                session.number(check_statements.count(path, layout, check), *check.parameters)
                for check in checks
            ]

    def drop_stage(self, stage: tr.StageRef) -> bool:
        """By name, object id and mark."""
        with self._transaction("dropping a staging table") as session:
            return stages.drop(session, stage, self.schemas)

    def writer_sessions(self) -> WriterSessions:
        """Sessions of bulk writers on the whole server."""
        with self._session("looking for writers' sessions") as session:
            return writer_sessions.find(session)

    def end_writer(self, session: WriterSession) -> None:
        """KILL, of exactly the session that was seen."""
        with self._session("ending a writer's session") as own:
            writer_sessions.end(own, session)

    # ---- publication ------------------------------------------------------------------------------

    def publish(self, request: tr.PublishRequest) -> tr.PublishOutcome:
        """The one transaction; any exception means that the outcome is unknown."""
        with self._own_session("publishing") as session:
            started = time.monotonic()
            try:
                return publication.publish(session, request, self.schemas, self._lock_ms, self._rehearsed)
            finally:
                self._published_sec = time.monotonic() - started

    def probe(
        self, target: tr.TargetRef, *, operation_id: str, journal_id: str, route_scope: str, fence: int
    ) -> tr.ProbeAnswer:
        """Raises the gate, then reads receipt and gate, in one transaction of a new session."""
        wanted = gate.GateClaim(target, journal_id, route_scope, fence)
        with self._own_session("asking what became of a publication") as session:
            return publication.probe(session, wanted, operation_id, self.schemas, self._settle_ms)

    def newest_generation(self, delivery_key: str) -> int:
        """Of every journal and table of this database."""
        with self._session("reading receipts") as session:
            return session.number(sql.newest_generation(self.schemas), bytes.fromhex(delivery_key))

    def read_receipt(self, operation_id: str) -> tr.Receipt | None:
        """In a session of its own: what it sees is committed."""
        with self._own_session("reading a receipt") as session:
            return gate.read_receipt(session, operation_id, self.schemas)

    def read_receipts(self, operation_ids: Sequence[str]) -> Mapping[str, tr.Receipt]:
        """Those that are there, by operation, as committed."""
        with self._session("reading receipts") as session:
            return gate.read_receipts(session, operation_ids, self.schemas)
