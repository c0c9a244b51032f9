"""The bulk writer against a server: what arrives, who may write, and what becomes of writers that die."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_dpone.bulk_writer.writer import TdsWriter
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.cancel import Cancel
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import Fenced, TargetBusy
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.target_sqlserver.quoting import quoted
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.types import SqlType, WireColumn, WireLayout
from benchmarks.tables import TABLES
from tests.contract.target_cases import NEW, ORDERS, Column, batch_of, layout_of, sum_of
from tests.mssql.cable import Cable
from tests.mssql.lab import MssqlLab
from tests.unit.bulk_writer.test_writer_process import children, until
from tests.unit.wire.batches import pair, python_value, source_of, target_batch
from tests.unit.wire.test_vectors import CELLS, TYPES, is_expressible

LAYOUT = layout_of(ORDERS)
BATCH = batch_of(NEW, LAYOUT)


@dataclass
class Stage:
    """A granted stage, and the world around it."""

    lab: MssqlLab
    layout: WireLayout
    ref: tr.StageRef
    token: str

    def write(
        self,
        batches: Iterator[pa.RecordBatch],
        *,
        token: str | None = None,
        seconds: float = 60,
        where: SqlServerConnection | None = None,
        cancel: Cancel | None = None,
        ref: tr.StageRef | None = None,
    ) -> tr.WriterObservation:
        return TdsWriter(where or self.lab.where).write(
            ref or self.ref,
            self.layout,
            batches,
            token_sha256=token or self.token,
            deadline=Deadline.after(seconds, cancel),
        )

    def verify(self, expected_rows: int, *, seconds: float = 60) -> tr.StageObservation:
        with self.lab.open() as target:
            in_time, digest = Deadline.after(seconds), sum_of(NEW, LAYOUT).digest
            return target.verify_stage(self.ref, self.layout, expected_rows, digest, deadline=in_time)

    def count(self) -> int:
        return int(self.lab.run(f"SELECT COUNT(*) FROM [dpone_stage].{quoted(self.ref.name)}")[0][0])

    def lock_is_free(self) -> bool:
        """Whether another session could take the grant's lock now."""
        asked = "SELECT APPLOCK_TEST('public', ?, 'Exclusive', 'Session')"
        return bool(self.lab.run(asked, sql.stage_lock(self.token))[0][0])


@pytest.fixture
def new_stage(mssql_lab: MssqlLab) -> Callable[..., Stage]:
    """Makes a stage and grants it."""
    mssql_lab.create_table("orders", ORDERS)
    with mssql_lab.open() as target:
        target.identify("shop", "orders", initialise=True)

    def make(layout: WireLayout = LAYOUT) -> Stage:
        token, owner = secrets.token_hex(32), secrets.token_hex(32)
        with mssql_lab.open() as target:
            claim = tr.Claim(secrets.token_hex(32), 1)  # of a target without a gate
            ref = target.create_stage(f"r_{secrets.token_hex(16)}", owner, layout, claim=claim)
            target.grant(ref, token)
        return Stage(mssql_lab, layout, ref, token)

    return make


@pytest.fixture
def stage(new_stage: Callable[..., Stage]) -> Stage:
    """One granted stage of four columns."""
    return new_stage()


def ended(said: tr.WriterObservation) -> tuple[str, str]:
    return said.outcome, (said.diagnostic_code or "").removeprefix("dpone.writer.")


# ---- what arrives ----


def vectors(*, without_nul: bool) -> tuple[WireLayout, list[list[Any]]]:
    """Every golden cell that a source can hold: one column for each type, nullability and source type.

    :param without_nul: the stand-in cannot store U+0000 in a text, SQL Server can.
    """
    columns: dict[tuple[str, str, bool], list[Any]] = {}
    for text, nullable in TYPES:
        sql_type = SqlType.parse(text)
        for cell in CELLS:
            if (cell["type"], cell["nullable"]) != (text, nullable) or not is_expressible(cell):
                continue
            value = python_value(cell["value"], sql_type)
            if without_nul and isinstance(value, str) and "\0" in value:
                continue
            source = source_of(sql_type, value, nullable)
            if source is not None:
                columns.setdefault((source, text, nullable), []).append(value)
    height = max(map(len, columns.values()))
    layout = WireLayout(
        tuple(WireColumn(f"c{i} {text}", pair(*key)) for i, key in enumerate(columns) for text in [key[1]])
    )
    return layout, [[*values, *[values[-1]] * (height - len(values))] for values in columns.values()]


def test_every_type_arrives_exactly(new_stage: Callable[..., Stage], mssql_lab: MssqlLab) -> None:
    """B23 and the golden vectors: each cell is read back, and the server's own digest is ours.

    The stand-in makes no digest here: it plans one of a hundred columns for a minute or more, and it calls a
    datetime2(7) a datetime2(6).
    """
    layout, columns = vectors(without_nul=mssql_lab.is_standin)
    assert len(layout.columns) > 60
    rows = list(zip(*columns, strict=True))
    batch = target_batch(rows, layout)
    made = new_stage(layout)
    assert ended(made.write(iter([batch]))) == ("success", "")
    path, wrong = f"[dpone_stage].{quoted(made.ref.name)}", []
    for column, sent in zip(layout.columns, columns, strict=True):
        found = [_plain(value) for (value,) in made.lab.run(f"SELECT {quoted(column.name)} FROM {path}")]
        if sorted(found, key=repr) != sorted(map(_plain, sent), key=repr):
            wrong.append((column.name, column.pair.source_type, sent, found))
    assert wrong == []
    if not mssql_lab.is_standin:
        expected = DigestSum.of_hashes(encode_rows(batch, layout).hashes())
        assert made.verify(len(rows)).proves(expected)


def _plain(value: Any) -> Any:
    """One form for what has several."""
    if isinstance(value, uuid.UUID):
        return str(value).upper()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):
        return value.as_integer_ratio()
    return value.upper() if isinstance(value, str) and len(value) == 36 and value.count("-") == 4 else value


@pytest.mark.parametrize(("name", "rows"), [("narrow", 30_000), ("orders", 10_000)])
def test_many_batches_are_one_load(name: str, rows: int, new_stage: Callable[..., Stage]) -> None:
    table = TABLES[name][0](rows)
    batch = to_target_batch(table.raw, table.layout, first_row=0)
    step = -(-batch.num_rows // 7)
    made = new_stage(table.layout)
    said = made.write(batch.slice(start, step) for start in range(0, batch.num_rows, step))
    assert (ended(said), said.rows) == (("success", ""), batch.num_rows)
    expected = DigestSum.of_hashes(encode_rows(batch, table.layout).hashes())
    assert made.verify(batch.num_rows).proves(expected)


def test_no_row_is_a_success_too(stage: Stage) -> None:
    assert stage.write(iter([])).rows == 0
    assert stage.verify(0).proves(DigestSum.zero())


def test_columns_are_found_by_name(new_stage: Callable[..., Stage], mssql_lab: MssqlLab) -> None:
    """Whatever a name looks like. The stand-in's QUOTENAME doubles quotes inside of brackets."""
    names = ["b b", "a.a", "x,y;z", "ID", *([] if mssql_lab.is_standin else ["it's", 'q"q', "b]b"])]
    layout = layout_of([Column(name, "Int64", "bigint") for name in names])
    made = new_stage(layout)
    path = f"[dpone_stage].{quoted(made.ref.name)}"
    sent = batch_of([tuple(range(1, len(names) + 1))], layout)
    assert made.write(iter([sent])).rows == 1
    for value, name in enumerate(names, start=1):
        assert made.lab.run(f"SELECT {quoted(name)} FROM {path}") == [(value,)]


def test_two_writers_at_once(new_stage: Callable[..., Stage]) -> None:
    first, second = new_stage(), new_stage()
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda made: made.write(iter([BATCH])), [first, second]))
    assert [one.outcome for one in said] == ["success", "success"]
    for made in (first, second):
        assert made.verify(len(NEW)).proves(sum_of(NEW, LAYOUT))


# ---- who may write ----


def test_the_lock_is_held_from_before_the_load_until_the_disconnect(stage: Stage) -> None:
    """[B6] and the session has the grant's name, where an administrator finds it."""
    seen: list[Any] = []

    def batches() -> Iterator[pa.RecordBatch]:
        until(lambda: not stage.lock_is_free())
        yield BATCH
        found = "SELECT program_name FROM sys.dm_exec_sessions WHERE SUBSTRING(context_info, 1, 32) = ?"
        seen.extend(stage.lab.run(found, bytes.fromhex(stage.token)))
        seen.append(stage.lock_is_free())
        yield BATCH

    assert stage.lock_is_free()
    assert stage.write(batches()).rows == 2 * len(NEW)
    assert seen == [("airflow-dpone writer",), False]
    until(stage.lock_is_free)


def test_a_lock_that_somebody_holds_is_not_waited_for(stage: Stage) -> None:
    resource = sql.stage_lock(stage.token)
    taken = stage.lab.run(
        "DECLARE @got int; EXEC @got = sp_getapplock @Resource = ?, @LockMode = 'Shared', "
        "@LockOwner = 'Session', @LockTimeout = 0, @DbPrincipal = 'public'; SELECT @got",
        resource,
    )
    assert taken == [(0,)]
    assert ended(stage.write(iter([BATCH]))) == ("custody_lost", "lock_refused")
    assert stage.count() == 0


def test_a_stage_that_is_not_granted_to_this_writer_gets_no_row(stage: Stage) -> None:
    said = stage.write(iter([BATCH]), token=secrets.token_hex(32))
    assert ended(said) == ("custody_lost", "grant_revoked")
    assert stage.count() == 0


@pytest.mark.parametrize("field", ["owner", "object_id"])
def test_another_table_gets_no_row(stage: Stage, field: str) -> None:
    other = {"owner": secrets.token_hex(32), "object_id": stage.ref.object_id + 1}
    said = stage.write(iter([BATCH]), ref=replace(stage.ref, **{field: other[field]}))  # type: ignore[arg-type]
    assert ended(said) == ("custody_lost", "grant_revoked")
    assert stage.count() == 0


def test_a_stage_that_is_gone_gets_no_row(stage: Stage) -> None:
    """[B3] its name is never used again."""
    with stage.lab.open() as target:
        target.drop_stage(stage.ref)
    assert ended(stage.write(iter([BATCH]))) == ("custody_lost", "grant_revoked")


def test_a_stage_with_other_columns_is_a_failure(stage: Stage) -> None:
    stage.lab.run(f"ALTER TABLE [dpone_stage].{quoted(stage.ref.name)} DROP COLUMN amount")
    assert ended(stage.write(iter([BATCH]))) == ("failure", "load")


def test_a_writer_that_slept_before_its_lock_adds_no_row(stage: Stage) -> None:
    """[B2] paused before ``sp_getapplock``; meanwhile the stage is judged, and sealed with the judgement."""
    with Cable(stage.lab.where) as cable:
        cable.flows.clear()
        with ThreadPoolExecutor(1) as pool:
            before = children()
            said = pool.submit(stage.write, iter([BATCH]), where=cable.where)
            until(lambda: cable.connections)
            (pid,) = children() - before
            os.kill(pid, signal.SIGSTOP)
            cable.flows.set()
            assert stage.lock_is_free()
            assert stage.verify(len(NEW)).rows == 0
            os.kill(pid, signal.SIGCONT)
            assert ended(said.result()) == ("custody_lost", "grant_revoked")
    assert stage.count() == 0


def test_a_writer_that_sleeps_with_its_lock_is_waited_for(stage: Stage) -> None:
    """The verification does not judge while it could still write."""
    may_go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        before = children()
        said = pool.submit(stage.write, _once(may_go_on.wait), seconds=90)
        try:
            until(lambda: not stage.lock_is_free(), 60)
            (pid,) = children() - before
            os.kill(pid, signal.SIGSTOP)
            with pytest.raises(TargetBusy, match="has not ended"):
                stage.verify(len(NEW), seconds=3)
            os.kill(pid, signal.SIGCONT)
        finally:
            may_go_on.set()
        assert said.result().rows == len(NEW)
    assert stage.verify(len(NEW)).proves(sum_of(NEW, LAYOUT))


def _once(first: Callable[[], object], *batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Batches, and what happens before the first."""
    first()
    yield from batches or [BATCH]


# ---- writers and connections that die ----


def test_a_connection_that_is_cut_between_lock_and_load_has_lost_its_lock(stage: Stage) -> None:
    """[B1] new connections would be accepted at once, and the core makes none."""
    with Cable(stage.lab.where) as cable:

        def cut() -> None:
            until(lambda: not stage.lock_is_free(), 60)
            cable.cut()
            until(stage.lock_is_free)

        said = stage.write(_once(cut), where=cable.where)
        assert ended(said) == ("custody_lost", "session_lost")
        assert cable.connections == 1
    assert stage.count() == 0


def test_a_connection_that_is_cut_in_the_load_leaves_the_judgement_to_the_barrier(stage: Stage) -> None:
    with Cable(stage.lab.where) as cable:

        def batches() -> Iterator[pa.RecordBatch]:
            yield BATCH
            until(lambda: not stage.lock_is_free(), 60)
            time.sleep(1.0)  # the child has begun the load by now
            cable.cut()
            yield from [BATCH] * 50

        said = stage.write(batches(), where=cable.where)
        assert ended(said) in (("lost_ack", "session_lost"), ("custody_lost", "session_lost"))
    assert stage.verify(51 * len(NEW)).rows == 0


def _killed_in_the_copy(stage: Stage, where: SqlServerConnection, number: int = signal.SIGKILL) -> None:
    """Its process dies when rows are on their way."""
    before = children()
    large = pa.concat_batches([BATCH] * 4000)

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(40):
            if n == 5:
                assert not stage.lock_is_free()
                (pid,) = children() - before
                os.kill(pid, number)
            yield large

    assert ended(stage.write(batches(), where=where)) == ("lost_ack", "process_lost")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_writer_killed_in_the_copy_leaves_the_judgement_to_the_barrier(
    new_stage: Callable[..., Stage], number: int
) -> None:
    """[B7] the stage is no success and is never appended to; a new attempt writes the same rows elsewhere."""
    first, second = new_stage(), new_stage()
    _killed_in_the_copy(first, first.lab.where, number)
    seen = first.verify(len(NEW))
    assert not seen.proves(sum_of(NEW, LAYOUT))
    assert seen.rows == 0, "one transaction"
    assert ended(first.write(iter([BATCH]))) == ("custody_lost", "grant_revoked")
    assert second.write(iter([BATCH])).rows == len(NEW)
    assert second.verify(len(NEW)).proves(sum_of(NEW, LAYOUT))


def test_a_session_that_the_server_still_believes_in_blocks_the_judgement(stage: Stage) -> None:
    """[B5] half-open TCP. The stage cannot be judged until the server gives the session up."""
    with Cable(stage.lab.where, swallows_the_end=True) as cable:
        _killed_in_the_copy(stage, cable.where)
        time.sleep(1.0)
        assert not stage.lock_is_free()
        with pytest.raises(TargetBusy, match="has not ended"):
            stage.verify(len(NEW), seconds=2)
        cable.cut()
        until(stage.lock_is_free)
    assert stage.verify(len(NEW)).rows == 0


def test_a_deadline_in_the_copy_ends_the_session(stage: Stage) -> None:
    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield BATCH
            time.sleep(0.05)

    assert ended(stage.write(endless(), seconds=6)) == ("timeout", "deadline")
    assert stage.verify(len(NEW)).rows == 0


def test_a_cancelled_work_ends_the_session(stage: Stage) -> None:
    cancel = Cancel()

    def taken_over() -> Iterator[pa.RecordBatch]:
        yield BATCH
        until(lambda: not stage.lock_is_free(), 60)
        cancel.set(Fenced("dpone.journal.fenced", "Another process has taken over."))
        while True:
            yield BATCH

    with pytest.raises(Fenced):
        stage.write(taken_over(), cancel=cancel)
    until(stage.lock_is_free)
    assert stage.verify(len(NEW)).rows == 0


def test_a_wrong_password_is_a_failure_that_says_nothing(stage: Stage) -> None:
    where = replace(stage.lab.where, password="wrong-4711")
    said = stage.write(iter([BATCH]), where=where)
    assert ended(said) == ("failure", "connect")


def test_another_database_gets_no_row(stage: Stage) -> None:
    said = stage.write(iter([BATCH]), where=replace(stage.lab.where, database="master"))
    assert ended(said) == ("custody_lost", "grant_revoked")
    assert stage.count() == 0


def test_the_password_is_nowhere_in_proc_while_rows_are_written(stage: Stage) -> None:
    seen: list[bytes] = []

    def look() -> None:
        until(lambda: not stage.lock_is_free(), 60)
        for pid in children():
            seen.extend((Path(f"/proc/{pid}") / name).read_bytes() for name in ("cmdline", "environ"))

    assert stage.write(_once(look)).rows == len(NEW)
    assert seen
    assert not [text for text in seen if stage.lab.where.password.encode() in text]
