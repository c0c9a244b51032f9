"""The embedded target: a DuckDB file behind the target's and the writer's port.

For trying the product and for tests, never for production: one process at a time, proved by the file lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import version
from types import TracebackType

import pyarrow as pa

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.clock import Clock, SystemClock
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, DponeError, Incident, Problem
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.target_embedded import (
    catalog,
    gate,
    installation,
    plan_text,
    publication,
    stages,
    table_checks,
    table_creation,
    writing,
)
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.database_file import DatabaseFile
from airflow_dpone.target_embedded.error_map import mapped
from airflow_dpone.target_embedded.session import Session
from airflow_dpone.target_embedded.window_bounds import WindowBounds
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.sql_type import parse_sql_type
from airflow_dpone.wire.types import WireLayout


class EmbeddedTarget(AbstractContextManager["EmbeddedTarget"]):
    """Target and writer in one, because a second process could not open the file.

    :param path: an existing DuckDB file. :param lock_wait_sec: how long to wait for another process.
    :param clock: of ``published_at`` and ``created_at``.

    A crash survives as DuckDB's own transactions do: every method is one transaction, or none.
    """

    environment = "embedded"
    lock_mode = "embedded-file"
    backend = "embedded"
    proof_capability = "embedded-single-process-v1"
    chunk_format: ChunkFormat = "arrow_ipc"

    def __init__(self, path: str, *, lock_wait_sec: float = 30.0, clock: Clock | None = None) -> None:
        self.path = path
        self.lock_wait_sec = lock_wait_sec
        self.delivery = ""
        self._clock = clock or SystemClock()
        self._file: DatabaseFile | None = None

    def __enter__(self) -> EmbeddedTarget:
        self._file = DatabaseFile(self.path, self.lock_wait_sec)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except DponeError:
            if error is None:  # what happened inside says more than a close that failed after it
                raise

    @property
    def _session(self) -> Session:
        if self._file is None:
            raise RuntimeError("the embedded target is used outside of its `with` block")
        return self._file.session

    # ---- admission --------------------------------------------------------------------------------

    def identify(
        self, schema: str, table: str, *, initialise: bool, may_be_missing: bool = False
    ) -> tr.TargetIdentity:
        """Installation, stored names, incarnation, gate; creates what is missing if ``initialise``."""
        session = self._session
        with mapped("identifying the target"):
            found = None
            if not may_be_missing or catalog.is_there(session, schema, table):
                found = catalog.find_table(session, schema, table)
            if initialise:
                with session.transaction():
                    installed: str | None = installation.initialise(session, self._clock.utc_text())
                    found = catalog.give_incarnation(session, found) if found else None
            else:
                installed = installation.installation_id(session)
            stored = found or catalog.missing_table(session, schema, table)
            answer = tr.TargetIdentity(
                installed,
                stored.schema,
                stored.table,
                stored.object_id,
                catalog.CREATED,
                gate=None,
                is_missing=found is None,
            )
            if installed is None:
                return answer
            return replace(answer, gate=gate.read_gate(session, answer.target_key))

    def describe(self, schema: str, table: str) -> tr.TargetTable:
        """Columns with their T-SQL types, and what stands against delivering into them."""
        with mapped("reading the target's columns"):
            return catalog.describe(self._session, catalog.find_table(self._session, schema, table))

    def new_table(self, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> tr.NewTable:
        """The statements that would make the table, and what stands against it."""
        with mapped("asking whether the target can be created"):
            return table_creation.describe(self._session, schema, table, columns)

    def create_table(self, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> bool:
        """An empty table with the T-SQL types in its comments; False when it is there."""
        with mapped("creating the target"), self._session.transaction():
            return table_creation.create(self._session, schema, table, columns)

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
        return plan_text.statements(target, layout, window_column, checks, after_image_digest)

    def count_window(self, target: tr.TargetRef, window_column: str | None, window: Window) -> int:
        """Rows that a publication would delete now."""
        with mapped("counting the window"):
            table = catalog.find_table(self._session, target.schema, target.table)
            types = {c.name: parse_sql_type(c.type) for c in catalog.describe(self._session, table).columns}
            found = types.get(window_column or "")
            if isinstance(found, str) or (found is None and window_column is not None):
                problem = Problem(
                    "dpone.config.window", str(window_column), found or "is no column of the target"
                )
                raise ConfigurationError.of([problem])
            bounds = WindowBounds.of(window_column, found, window)
            return self._session.number(bounds.count(table.path), bounds.parameters)

    def claim_gate(
        self, target: tr.TargetRef, *, journal_id: str, route_scope: str, fence: int, take_over: bool
    ) -> tr.GateRow:
        """Creates the gate, or raises its fence."""
        wanted = gate.GateClaim(target, journal_id, route_scope, fence)
        with mapped("claiming the gate"), self._session.transaction():
            return gate.claim(self._session, wanted, take_over=take_over)

    def adopt_gate(
        self, target_key: str, *, journal_id: str, fence: int, take_over: bool
    ) -> tr.GateRow | None:
        """The gate belongs to this journal now; None where there is none."""
        with mapped("adopting the gate"):
            if installation.installation_id(self._session) is None:
                return None
            with self._session.transaction():
                return gate.adopt(
                    self._session, target_key, journal_id=journal_id, fence=fence, take_over=take_over
                )

    # ---- staging ----------------------------------------------------------------------------------

    def create_stage(self, name: str, owner: str, layout: WireLayout, *, claim: tr.Claim) -> tr.StageRef:
        """An empty raw table with its mark."""
        with mapped("creating a staging table"), self._session.transaction():
            gate.refuse_replaced(self._session, claim)
            return stages.create(self._session, name, owner, layout)

    def find_stage(self, name: str, owner: str) -> tr.StageRef | None:
        """By name and mark."""
        with mapped("looking for a staging table"):
            return stages.find(self._session, name, owner)

    def grant(self, stage: tr.StageRef, token_sha256: str) -> None:
        """Once per stage."""
        with mapped("granting a staging table"), self._session.transaction():
            stages.grant(self._session, stage, token_sha256)

    def versions(self) -> Mapping[str, str]:
        """Packages that write."""
        return {name: version(name) for name in ("duckdb", "pyarrow")}

    def write(
        self,
        stage: tr.StageRef,
        layout: WireLayout,
        batches: Iterator[pa.RecordBatch],
        *,
        token_sha256: str,
        deadline: Deadline,
    ) -> tr.WriterObservation:
        """All rows in one transaction. ``custody_lost`` when the stage is not granted (any more)."""
        started = time.monotonic()
        with mapped("writing a staging table"):
            outcome, rows = writing.write(self._session, stage, layout, batches, token_sha256, deadline)
        return tr.WriterObservation(outcome, rows, time.monotonic() - started)

    def verify_stage(
        self, stage: tr.StageRef, layout: WireLayout, rows: int, digest: str, *, deadline: Deadline
    ) -> tr.StageObservation:
        """Counts, hashes, seals or retires. The barrier is the file lock: no other writer can live while we
        hold it."""
        with mapped("verifying a staging table"), self._session.transaction():
            return stages.verify(self._session, stage, layout, rows, digest, deadline)

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
        with mapped("building the prepared table"), self._session.transaction():
            gate.refuse_replaced(self._session, claim)
            return stages.build_prepared(self._session, name, owner, layout, raw, expected_rows)

    def count_violations(
        self, prepared: tr.StageRef, layout: WireLayout, checks: Sequence[TableCheck]
    ) -> Sequence[int]:
        """One count for each check."""
        with mapped("checking the prepared table"), self._session.transaction():
            stages.require(self._session, prepared)
            return table_checks.count(self._session, sql.stage_path(prepared.name), layout, checks)

    def drop_stage(self, stage: tr.StageRef) -> bool:
        """By name, object id and mark."""
        with mapped("dropping a staging table"), self._session.transaction():
            return stages.drop(self._session, stage)

    # ---- publication ------------------------------------------------------------------------------

    def publish(self, request: tr.PublishRequest) -> tr.PublishOutcome:
        """The one transaction; any exception means that the outcome is unknown."""
        with mapped("publishing"):
            return publication.publish(self._session, request, self._clock.utc_text)

    def probe(
        self, target: tr.TargetRef, *, operation_id: str, journal_id: str, route_scope: str, fence: int
    ) -> tr.ProbeAnswer:
        """Raises the gate, then reads receipt and gate, in one transaction."""
        session, wanted = self._session, gate.GateClaim(target, journal_id, route_scope, fence)
        with mapped("asking what became of a publication"):
            with session.transaction():
                before = gate.raise_for_probe(session, wanted)
                receipt = gate.read_receipt(session, operation_id)
                if receipt is not None and not catalog.is_same_incarnation(session, target):
                    raise Incident(
                        "dpone.target.incarnation_gone",
                        f"{target.schema}.{target.table} was published, and then dropped or changed.",
                    )
            return tr.ProbeAnswer(receipt, before.last_operation_id, before.in_flight_operation_id)

    def newest_generation(self, delivery_key: str) -> int:
        """Of every journal and table of this file."""
        with mapped("reading receipts"):
            return self._session.number(sql.NEWEST_GENERATION, {"delivery_key": bytes.fromhex(delivery_key)})

    def read_receipt(self, operation_id: str) -> tr.Receipt | None:
        """In a session of its own: what it sees is committed."""
        with mapped("reading a receipt"):
            other = self._session.another()
            try:
                return gate.read_receipt(other, operation_id)
            finally:
                other.close()

    def read_receipts(self, operation_ids: Sequence[str]) -> Mapping[str, tr.Receipt]:
        """Those that are there, by operation, as committed."""
        with mapped("reading receipts"):
            return gate.read_receipts(self._session, operation_ids)
