"""A target in a SQLite file: TargetPort and WriterPort that several processes may have open at the same time.

Between two calls nothing is locked: two live deliveries really interleave, and only gate, fence, marks and
receipts keep them apart. Each method's effect is one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import pyarrow as pa

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import Deadline, effect
from airflow_dpone.delivery.window import Window, instant_text
from airflow_dpone.errors import (
    ConfigurationError,
    DponeError,
    Fenced,
    Incident,
    JournalError,
    Problem,
    SourceDataError,
    TargetBusy,
)
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.types import SqlType, WireLayout
from tests.fakes import target_faults as faults
from tests.fakes import target_storage as storage
from tests.fakes.sqlite_publication import is_same_target, make_receipt, publish_in
from tests.fakes.target_storage import transaction

_GATE = (
    "target_key, target_object_id, target_created, journal_id, route_scope, fence, "
    "in_flight_operation_id, last_operation_id, last_receipt_sha256"
)
WRITE_ROWS = 500


class SqliteTarget(faults.TargetFile):
    """Both ports over one file. Faults: see :meth:`~tests.fakes.target_faults.TargetFile.arm`.

    Every method: ``unreachable``, or ``fine`` to let a call pass. publish: ``lost_answer`` (committed, then
    no answer), ``never_sent``, ``held_back`` (until :meth:`let_late_sends_arrive`), ``half_committed``, and
    ``rolled_back`` with a code. verify_stage, read_receipt: ``vanish``. verify_stage also: ``writer_lives``.
    write: ``drop_row``, ``double_row``, ``change_cell``, ``swap_columns``, ``nothing``, ``breaks`` (half of
    the rows, then an error), ``says_lost`` (all rows, but it reports ``lost_ack``).
    """

    environment = "embedded"
    lock_mode = "database"
    backend = "embedded"
    proof_capability = "sqlite-stage-mark-v1"
    chunk_format: ChunkFormat = "arrow_ipc"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.delivery = ""
        self._connection: sqlite3.Connection | None = None
        self._depth = 0

    def __enter__(self) -> SqliteTarget:
        if self._depth == 0:
            self._connection = storage.connect(self.path)
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0 and self._connection is not None:
            self._connection.close()
            self._connection = None

    def _begin(self, method: str) -> tuple[sqlite3.Connection, tuple[str, str] | None]:
        """The open connection and the fault of this call. Raises for an unreachable target."""
        if self._connection is None:
            raise TargetBusy("dpone.target.failed", f"{method}: the SQLite target is not open.")
        self.note(method)
        fault = self.take_fault(method)
        if fault is not None and fault[0] == "unreachable":
            raise faults.unreachable(method)
        return self._connection, fault

    # ---- admission -----------------------------------------------------------------------------------

    def identify(
        self, schema: str, table: str, *, initialise: bool, may_be_missing: bool = False
    ) -> tr.TargetIdentity:
        """Installation, incarnation and gate."""
        connection, _ = self._begin("identify")
        missing = may_be_missing and not storage.is_there(connection, schema, table)
        found = (0, "0" * 16) if missing else self._incarnation(connection, schema, table)
        if initialise:
            connection.executescript(storage.TABLES)
            values = (str(uuid4()), instant_text(datetime.now(UTC)))
            connection.execute('INSERT OR IGNORE INTO "dpone.installation" VALUES (1, ?, 1, ?)', values)
        guid = self._installation(connection)
        identity = tr.TargetIdentity(guid, schema, table, *found, gate=None, is_missing=missing)
        if guid is None:
            return identity
        return replace(identity, gate=self._gate(connection, identity.target_key))

    def _incarnation(self, connection: sqlite3.Connection, schema: str, table: str) -> tuple[int, str]:
        found = storage.incarnation(connection, schema, table)
        if found is not None:
            return found
        wanted, rows = (
            f"{schema}.{table}",
            connection.execute("SELECT name, type FROM sqlite_master").fetchall(),
        )
        if (wanted, "view") in rows:
            raise ConfigurationError.of([Problem("dpone.target.not_a_table", wanted, "is a view")])
        near = get_close_matches(wanted, [name for name, kind in rows if kind == "table"], n=3)
        text = f"there is no such table; close names: {', '.join(near)}"
        raise ConfigurationError.of([Problem("dpone.target.table_missing", wanted, text)])

    def _installation(self, connection: sqlite3.Connection) -> str | None:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'dpone.installation'").fetchone():
            return None
        row = connection.execute('SELECT installation_id FROM "dpone.installation"').fetchone()
        return row[0] if row else None

    def _gate(self, connection: sqlite3.Connection, target_key: str) -> tr.GateRow | None:
        row = connection.execute(
            f'SELECT {_GATE} FROM "dpone.target_gate" WHERE target_key = ?', (target_key,)
        ).fetchone()
        return tr.GateRow(*row) if row else None

    def describe(self, schema: str, table: str) -> tr.TargetTable:
        """Columns as declared."""
        connection, _ = self._begin("describe")
        self._incarnation(connection, schema, table)
        columns = [tr.TargetColumn(*column) for column in storage.columns_of(connection, schema, table)]
        must_be_fed = storage.must_be_fed(connection, schema, table)
        return tr.TargetTable(tuple(columns), must_be_fed=must_be_fed)

    def new_table(self, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> tr.NewTable:
        """The statement; any schema will do but ours, and the one called ``nowhere``."""
        self._begin("new_table")
        problems = []
        if schema == storage.STAGE_SCHEMA or schema == "dpone":
            problems.append(Problem("dpone.target.not_a_table", f"{schema}.{table}", "is ours"))
        if schema == "nowhere":
            problems.append(Problem("dpone.target.schema_missing", schema, "there is no such schema"))
        text = storage.ddl(schema, table, [(c.name, c.type, c.nullable) for c in columns])
        return tr.NewTable(tr.TargetTable(tuple(columns), tuple(problems)), text)

    @effect
    def create_table(self, schema: str, table: str, columns: Sequence[tr.TargetColumn]) -> bool:
        """An empty table, unless something is there."""
        connection, _ = self._begin("create_table")
        with transaction(connection):
            if storage.is_there(connection, schema, table):
                return False
            connection.execute(storage.ddl(schema, table, [(c.name, c.type, c.nullable) for c in columns]))
        return True

    def statements(
        self,
        target: tr.TargetRef,
        layout: WireLayout,
        window_column: str | None,
        checks: Sequence[TableCheck] = (),
        *,
        after_image_digest: bool = False,
    ) -> Mapping[str, str]:
        """One line for each kind of statement."""
        name = storage.table_name(target.schema, target.table)
        columns = [(c.name, c.pair.target_type, c.pair.target_nullable) for c in layout.columns]
        where = (
            f" WHERE {storage.quoted(window_column)} >= ? AND {storage.quoted(window_column)} < ?"
            if window_column
            else ""
        )
        return {
            "create_stage": storage.ddl(storage.STAGE_SCHEMA, "r_...", columns),
            **{check.name: f"SELECT count(*) FROM p_... -- {check.columns}" for check in checks},
            "delete_window": f"DELETE FROM {name}{where}",
            "insert_window": f"INSERT INTO {name} SELECT * FROM p_...",
            **({"hash_window": f"SELECT * FROM {name}{where}"} if after_image_digest else {}),
        }

    def count_window(self, target: tr.TargetRef, window_column: str | None, window: Window) -> int:
        """Rows of the window now."""
        connection, _ = self._begin("count_window")
        name = storage.table_name(target.schema, target.table)
        types = {
            n: SqlType.parse(t) for n, t, _ in storage.columns_of(connection, target.schema, target.table)
        }
        where, bounds = storage.window_clause(window_column, types.get(window_column or ""), window)
        count: int = connection.execute(f"SELECT count(*) FROM {name}{where}", bounds).fetchone()[0]
        return count

    @effect
    def claim_gate(
        self, target: tr.TargetRef, *, journal_id: str, route_scope: str, fence: int, take_over: bool
    ) -> tr.GateRow:
        """Creates or raises the gate, for this journal and route, upward only."""
        connection, _ = self._begin("claim_gate")
        with transaction(connection):
            gate = self._gate(connection, target.target_key)
            refusal = _claim_refused(gate, target, journal_id, route_scope, fence, take_over)
            if refusal is not None:
                raise refusal
            ours = (target.object_id, target.created, journal_id, route_scope, fence)
            if gate is None:
                connection.execute(
                    'INSERT INTO "dpone.target_gate" (target_key, schema_name, table_name, target_object_id, '
                    "target_created, journal_id, route_scope, fence) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (target.target_key, target.schema, target.table, *ours),
                )
            else:
                connection.execute(
                    'UPDATE "dpone.target_gate" SET target_object_id = ?, target_created = ?, '
                    "journal_id = ?, route_scope = ?, fence = ? WHERE target_key = ?",
                    (*ours, target.target_key),
                )
            claimed = self._gate(connection, target.target_key)
        if claimed is None:
            raise Incident("dpone.target.gate_missing", "The gate row is gone.")
        return claimed

    @effect
    def adopt_gate(
        self, target_key: str, *, journal_id: str, fence: int, take_over: bool
    ) -> tr.GateRow | None:
        """The gate belongs to this journal now."""
        connection, _ = self._begin("adopt_gate")
        if self._installation(connection) is None:
            return None
        with transaction(connection):
            before = self._gate(connection, target_key)
            if before is not None and before.journal_id != journal_id and not take_over:
                raise JournalError("dpone.journal.not_bound_to_target", "Another journal governs it.")
            if before is not None and before.fence >= fence:
                raise Fenced("dpone.target.fenced", f"The gate is at fence {before.fence}.")
            connection.execute(
                'UPDATE "dpone.target_gate" SET journal_id = ?, fence = ?, in_flight_operation_id = NULL '
                "WHERE target_key = ?",
                (journal_id, fence, target_key),
            )
        return before

    # ---- staging -------------------------------------------------------------------------------------

    @effect
    def create_stage(self, name: str, owner: str, layout: WireLayout, *, claim: tr.Claim) -> tr.StageRef:
        """Table and mark in one transaction."""
        connection, _ = self._begin("create_stage")
        with transaction(connection):
            self._refuse_replaced(connection, claim)
            return self._create(connection, name, owner, layout, "created")

    def _create(
        self, connection: sqlite3.Connection, name: str, owner: str, layout: WireLayout, state: str
    ) -> tr.StageRef:
        if self._find(connection, name, owner) is not None:
            raise Incident("dpone.target.stage_state", f"{name} exists; names are never used twice.")
        columns = [(c.name, c.pair.target_type, c.pair.target_nullable) for c in layout.columns]
        connection.execute(storage.ddl(storage.STAGE_SCHEMA, name, columns))
        found = storage.incarnation(connection, storage.STAGE_SCHEMA, name)
        object_id = found[0] if found else 0
        connection.execute(
            'INSERT INTO "dpone.stage_mark" VALUES (?, ?, ?, ?)', (name, owner, object_id, state)
        )
        return tr.StageRef(name, owner, object_id)

    def find_stage(self, name: str, owner: str) -> tr.StageRef | None:
        """By name and mark."""
        connection, _ = self._begin("find_stage")
        return self._find(connection, name, owner)

    def _find(self, connection: sqlite3.Connection, name: str, owner: str) -> tr.StageRef | None:
        found = storage.incarnation(connection, storage.STAGE_SCHEMA, name)
        if found is None:
            return None
        mark = connection.execute(
            'SELECT owner, object_id FROM "dpone.stage_mark" WHERE name = ?', (name,)
        ).fetchone()
        if mark != (owner, found[0]):
            raise Incident("dpone.target.stage_not_ours", f"{name} does not carry this delivery's mark.")
        return tr.StageRef(name, owner, found[0])

    def _require(self, connection: sqlite3.Connection, stage: tr.StageRef) -> str:
        """The state of a stage that must be there."""
        found = self._find(connection, stage.name, stage.owner)
        if found is None:
            raise Incident("dpone.target.stage_missing", f"{stage.name} is gone.")
        if found != stage:
            raise Incident("dpone.target.stage_not_ours", f"{stage.name} is another object.")
        state: str = connection.execute(
            'SELECT state FROM "dpone.stage_mark" WHERE name = ?', (stage.name,)
        ).fetchone()[0]
        return state

    def _mark(self, connection: sqlite3.Connection, stage: tr.StageRef, state: str) -> None:
        connection.execute('UPDATE "dpone.stage_mark" SET state = ? WHERE name = ?', (state, stage.name))

    @effect
    def grant(self, stage: tr.StageRef, token_sha256: str) -> None:
        """created -> granted, once."""
        connection, _ = self._begin("grant")
        with transaction(connection):
            if self._require(connection, stage) != "created":
                raise Incident("dpone.target.stage_state", f"{stage.name} was granted before.")
            self._mark(connection, stage, f"granted:{token_sha256}")

    @effect
    def verify_stage(
        self, stage: tr.StageRef, layout: WireLayout, rows: int, digest: str, *, deadline: Deadline
    ) -> tr.StageObservation:
        """Observes and judges in one transaction: whoever still writes finds the stage sealed or retired."""
        connection, fault = self._begin("verify_stage")
        if fault is not None and fault[0] == "vanish":
            self.execute(f"DROP TABLE {storage.table_name(storage.STAGE_SCHEMA, stage.name)}")
        if fault is not None and fault[0] == "writer_lives":
            raise TargetBusy("dpone.target.writer_lives", f"The writer of {stage.name} has not ended.")
        if deadline.remaining_sec() <= 0:
            raise TargetBusy("dpone.target.deadline", "The time for the verification is over.")
        with transaction(connection):
            is_retired = self._require(connection, stage) == "retired"
            seen = storage.observe(connection, _path(stage), layout, rows)
            if not is_retired:
                self._mark(connection, stage, "sealed" if seen.holds(rows, digest) else "retired")
        return seen.without_proof if is_retired else seen

    def _refuse_replaced(self, connection: sqlite3.Connection, claim: tr.Claim) -> None:
        gate = self._gate(connection, claim.target_key)
        if gate is not None and gate.fence > claim.fence:
            raise Fenced("dpone.target.fenced", f"The gate is at fence {gate.fence}.")

    @effect
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
        """One table from exactly the sealed raw ones."""
        connection, _ = self._begin("build_prepared")
        with transaction(connection):
            self._refuse_replaced(connection, claim)
            self._drop(connection, self._find(connection, name, owner))
            prepared = self._create(connection, name, owner, layout, "sealed")
            for stage in raw:
                if self._require(connection, stage) != "sealed":
                    raise Incident("dpone.target.stage_state", f"{stage.name} is not sealed.")
                connection.execute(f"INSERT INTO {_path(prepared)} SELECT * FROM {_path(stage)}")
            return prepared, storage.observe(connection, _path(prepared), layout, expected_rows)

    def count_violations(
        self, prepared: tr.StageRef, layout: WireLayout, checks: Sequence[TableCheck]
    ) -> Sequence[int]:
        """One count for each check."""
        connection, _ = self._begin("count_violations")
        self._require(connection, prepared)
        return [storage.count_violations(connection, _path(prepared), layout, check) for check in checks]

    @effect
    def drop_stage(self, stage: tr.StageRef) -> bool:
        """By name, object id and owner."""
        connection, _ = self._begin("drop_stage")
        with transaction(connection):
            found = self._find(connection, stage.name, stage.owner)
            if found is not None and found != stage:
                raise Incident("dpone.target.stage_not_ours", f"{stage.name} is another object.")
            return self._drop(connection, found)

    def _drop(self, connection: sqlite3.Connection, stage: tr.StageRef | None) -> bool:
        if stage is None:
            return False
        connection.execute(f"DROP TABLE {_path(stage)}")
        connection.execute('DELETE FROM "dpone.stage_mark" WHERE name = ?', (stage.name,))
        return True

    # ---- publication ---------------------------------------------------------------------------------

    @effect
    def publish(self, request: tr.PublishRequest) -> tr.PublishOutcome:
        """The one transaction, and what may happen to its answer."""
        connection, fault = self._begin("publish")
        kind, argument = fault or ("", "")
        if kind == "rolled_back":
            return tr.PublishOutcome("rolled_back", argument, 2627)
        if kind in ("never_sent", "held_back"):
            if kind == "held_back":
                self.hold_back(request)
            raise faults.unreachable("publishing")
        outcome = publish_in(connection, request, half=kind == "half_committed")
        if kind in ("lost_answer", "half_committed"):
            raise faults.unreachable("committing")
        return outcome

    def let_late_sends_arrive(self) -> list[tr.PublishOutcome]:
        """Publications that were ``held_back`` reach the target now, from a session of their own."""
        with storage.session(self.path) as connection:
            return self.let_arrive(lambda request: publish_in(connection, request))

    @effect
    def probe(
        self, target: tr.TargetRef, *, operation_id: str, journal_id: str, route_scope: str, fence: int
    ) -> tr.ProbeAnswer:
        """Raises the gate, then reads receipt and gate, in one transaction."""
        connection, _ = self._begin("probe")
        with transaction(connection):
            gate = self._gate(connection, target.target_key)
            refusal = _probe_refused(gate, target, journal_id, route_scope, fence)
            if refusal is not None:
                raise refusal
            connection.execute(
                'UPDATE "dpone.target_gate" SET fence = ? WHERE target_key = ?', (fence, target.target_key)
            )
            receipt = make_receipt(connection, operation_id)
            if not is_same_target(connection, target):
                raise Incident("dpone.target.incarnation_gone", f"{target.table} was replaced.")
        return tr.ProbeAnswer(
            receipt, gate.last_operation_id if gate else None, gate.in_flight_operation_id if gate else None
        )

    def newest_generation(self, delivery_key: str) -> int:
        """Of every journal and table of this file."""
        connection, _ = self._begin("newest_generation")
        query = 'SELECT coalesce(max(generation), 0) FROM "dpone.delivery_receipt" WHERE delivery_key = ?'
        return int(connection.execute(query, (delivery_key,)).fetchone()[0])

    def read_receipt(self, operation_id: str) -> tr.Receipt | None:
        """In a session of its own."""
        _, fault = self._begin("read_receipt")
        with storage.session(self.path) as connection:
            if fault is not None and fault[0] == "vanish":
                connection.execute('DELETE FROM "dpone.delivery_receipt"')
            return make_receipt(connection, operation_id)

    def read_receipts(self, operation_ids: Sequence[str]) -> Mapping[str, tr.Receipt]:
        """One after the other."""
        connection, _ = self._begin("read_receipts")
        found = {key: make_receipt(connection, key) for key in operation_ids}
        return {key: receipt for key, receipt in found.items() if receipt is not None}

    # ---- the bulk writer -----------------------------------------------------------------------------

    def versions(self) -> Mapping[str, str]:
        """The engine's version."""
        return {"sqlite": sqlite3.sqlite_version}

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
        """Small transactions, each only while the stage is granted: a killed writer leaves a prefix."""
        connection, fault = self._begin("write")
        kind = fault[0] if fault else ""
        rows = [row for batch in batches for row in _stored_rows(batch, layout)]
        told = len(rows)
        if kind in ("drop_row", "double_row", "change_cell", "swap_columns"):
            rows = faults.lie(rows, kind)
        elif kind:
            rows = {"breaks": rows[: len(rows) // 2], "nothing": []}.get(kind, rows)
        left = iter(rows)
        while part := list(islice(left, WRITE_ROWS)):
            if deadline.remaining_sec() <= 0:
                return tr.WriterObservation("timeout", None)
            with transaction(connection):
                if self._require(connection, stage) != f"granted:{token_sha256}":
                    return tr.WriterObservation("custody_lost", None)
                marks = ", ".join("?" for _ in layout.columns)
                connection.executemany(f"INSERT INTO {_path(stage)} VALUES ({marks})", part)
        if kind == "breaks":
            raise faults.unreachable("writing")
        return (
            tr.WriterObservation("lost_ack", None)
            if kind == "says_lost"
            else tr.WriterObservation("success", told)
        )


def _path(stage: tr.StageRef) -> str:
    return storage.table_name(storage.STAGE_SCHEMA, stage.name)


def _stored_rows(batch: pa.RecordBatch, layout: WireLayout) -> list[list[Any]]:
    if not batch.schema.equals(layout.arrow_schema):
        raise SourceDataError("dpone.wire.layout", "A batch is not of the stage's layout.")
    types = [column.pair.sql_type for column in layout.columns]
    columns = [column.to_pylist() for column in batch.columns]
    return [
        [storage.stored(v, t) for v, t in zip(row, types, strict=True)] for row in zip(*columns, strict=True)
    ]


def _claim_refused(
    gate: tr.GateRow | None,
    target: tr.TargetRef,
    journal_id: str,
    route_scope: str,
    fence: int,
    take_over: bool,
) -> DponeError | None:
    if gate is None:
        return None
    if gate.journal_id != journal_id:
        return JournalError("dpone.journal.not_bound_to_target", "Another journal governs this target.")
    if gate.fence >= fence:
        return Fenced("dpone.target.fenced", f"The gate is at fence {gate.fence}, this process has {fence}.")
    if gate.in_flight_operation_id is not None:
        return Incident("dpone.target.in_flight_committed", "Half of a publication was committed.")
    if gate.route_scope != route_scope and not take_over:
        return ConfigurationError(
            "dpone.target.owned_by_other_route", f"Another route delivers {target.table}."
        )
    return None


def _probe_refused(
    gate: tr.GateRow | None, target: tr.TargetRef, journal_id: str, route_scope: str, fence: int
) -> DponeError | None:
    if gate is None:
        return Incident("dpone.target.gate_missing", "The gate row is gone.")
    if gate.journal_id != journal_id:
        return JournalError("dpone.journal.not_bound_to_target", "Another journal governs this target.")
    if gate.fence >= fence:
        return Fenced("dpone.target.fenced", f"The gate is at fence {gate.fence}, this process has {fence}.")
    if gate.route_scope != route_scope:
        return ConfigurationError(
            "dpone.target.owned_by_other_route", f"Another route delivers {target.table}."
        )
    if (gate.target_object_id, gate.target_created) != (target.object_id, target.created):
        return Incident("dpone.target.changed", "The gate belongs to another incarnation.")
    return None
