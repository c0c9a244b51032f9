"""The rules of the bulk writer that need another session, or types of their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyodbc
import pytest

from airflow_dpone.errors import DponeError
from airflow_dpone.target_sqlserver.quoting import quoted
from airflow_dpone.target_sqlserver.session import Session
from airflow_dpone.wire.types import resolve
from tests.contract.target_cases import Column, batch_of, layout_of, sum_of
from tests.crash.test_kill_matrix_fakes import EXPECTED, HIGHER_TRY, problems_after
from tests.fakes.world import as_set
from tests.mssql.lab import MssqlLab
from tests.mssql.test_bulk_writer import BATCH, LAYOUT, NEW, Stage, ended, new_stage, stage  # noqa: F401
from tests.mssql.test_kill_matrix import INSIDE_AND_OUT
from tests.mssql.world import MssqlWorld


@pytest.fixture
def world(mssql_lab: MssqlLab, tmp_path: Path) -> MssqlWorld:
    """Six orders in two chunks, and rows that are there already."""
    return MssqlWorld.on(tmp_path / "world", mssql_lab, outside=INSIDE_AND_OUT)


class Died(BaseException):
    """The process ended here."""


def test_a_process_that_dies_between_the_table_and_its_note_leaves_no_table(world: MssqlWorld) -> None:
    """[B4] The intent names table, nonce and owner; the next call finds the table by them."""

    def die(point: str) -> None:
        if point == "after_target_create_stage":
            raise Died

    with pytest.raises(Died):
        world.deliver(observer=die)
    (left,) = world.stages()
    attempts = [e for e in world.events() if e.stream.startswith("attempt/")]
    assert [(e.event, e.body["stage_binding"]["stage_name"]) for e in attempts] == [("INTENT", left)]
    assert attempts[0].body["stage_binding"]["object_id"] is None
    assert problems_after(world, **HIGHER_TRY) == []


def test_a_table_of_that_name_without_the_owner_is_an_incident(world: MssqlWorld) -> None:
    """[B4] It is not ours, and it is not touched."""

    def die(point: str) -> None:
        if point == "after_target_create_stage":
            raise Died

    with pytest.raises(Died):
        world.deliver(observer=die)
    (left,) = world.stages()
    world.lab.drop_stage(left)
    world.lab.create_foreign_stage(left)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert (raised.value.code, raised.value.state_after) == ("dpone.target.stage_not_ours", "INCIDENT")
    assert world.stages() == [left]
    assert world.custody().held


def _add_a_row(lab: MssqlLab, name: str) -> None:
    path = f"[dpone_stage].{quoted(name)}"
    lab.run(f"INSERT INTO {path} SELECT TOP (1) * FROM {path}")


def _try_to_add_a_row(lab: MssqlLab, name: str) -> str:
    second = lab.second_connection()
    try:
        second.execute("SET LOCK_TIMEOUT 1000")
        path = f"[dpone_stage].{quoted(name)}"
        second.execute(f"INSERT INTO {path} SELECT TOP (1) * FROM {path} WITH (NOLOCK)")
    except pyodbc.Error as error:
        return "blocked" if "1222" in str(error) else str(error)
    finally:
        second.close()
    return "in"


def test_a_row_of_somebody_else_before_the_judgement_is_an_overflow(stage: Stage) -> None:  # noqa: F811
    """[B6] The lock says that the writer has gone, not that nobody else wrote."""
    assert ended(stage.write(iter([BATCH]))) == ("success", "")
    _add_a_row(stage.lab, stage.ref.name)
    seen = stage.verify(len(NEW))
    assert (seen.overflow, seen.proves(sum_of(NEW, LAYOUT))) == (True, False)


def test_a_row_of_somebody_else_during_the_judgement_waits_for_it_and_is_not_published(
    world: MssqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[B6] The table is locked until the verdict is committed; after it, the row is found by what follows.

    The stand-in ignores the hint that locks: there the row goes in at once, unseen by the count before it.
    """
    execute, tried = Session.execute, []

    def judged(session: Session, text: str, *parameters: object) -> None:
        if not tried and "sp_updateextendedproperty" in text and "state=sealed" in str(parameters[-1]):
            (raw,) = (name for name in world.stages() if name in text)
            tried.append(_try_to_add_a_row(world.lab, raw))
        execute(session, text, *parameters)

    monkeypatch.setattr(Session, "execute", judged)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert tried == ["in" if world.lab.is_standin else "blocked"]
    assert raised.value.state_after in ("FAILED", "STAGED"), raised.value
    assert as_set(world.rows()) == as_set(INSIDE_AND_OUT)
    assert world.receipts() == []
    assert world.deliver().state == "COMPLETED"
    assert as_set(world.rows()) == EXPECTED


def test_a_row_of_somebody_else_after_the_judgement_is_not_published(world: MssqlWorld) -> None:
    """[B6] The prepared table is compared with what was sealed, and once more inside the publication."""

    def add(point: str) -> None:
        if point == "before_target_build_prepared":
            _add_a_row(world.lab, next(name for name in world.stages() if name.startswith("r_")))

    with pytest.raises(DponeError) as raised:
        world.deliver(observer=add)
    assert raised.value.state_after in ("FAILED", "STAGED"), raised.value
    assert as_set(world.rows()) == as_set(INSIDE_AND_OUT)
    assert world.receipts() == []

    def add_to_prepared(point: str) -> None:
        if point == "before_target_publish":
            _add_a_row(world.lab, next(name for name in world.stages() if name.startswith("p_")))

    with pytest.raises(DponeError) as raised:
        world.deliver(observer=add_to_prepared)
    assert raised.value.code.startswith("dpone.publish."), raised.value
    assert as_set(world.rows()) == as_set(INSIDE_AND_OUT)
    assert world.receipts() == []
    assert world.deliver().state == "COMPLETED"
    assert as_set(world.rows()) == EXPECTED


def test_the_largest_integer_and_a_moment_of_another_zone_arrive_exactly(
    new_stage: Callable[..., Stage],  # noqa: F811
) -> None:
    """[B8] UInt64 goes as a decimal, moments go as UTC without a zone: the core refuses one with it."""
    columns = [
        Column("big", "UInt64", "decimal(20,0)"),
        Column("moment", "DateTime64(6, 'Asia/Tokyo')", "datetime2(6)"),
        Column("second", "DateTime('America/New_York')", "datetime2(0)"),
    ]
    layout = layout_of(columns)
    rows = [
        (Decimal(2**64 - 1), datetime(2299, 12, 31, 23, 59, 59, 999_999), datetime(2106, 2, 7, 6, 28, 15)),
        (Decimal(0), datetime(1900, 1, 1), datetime(1970, 1, 1)),
    ]
    made = new_stage(layout)
    assert ended(made.write(iter([batch_of(rows, layout)]))) == ("success", "")
    found = made.lab.run(f"SELECT * FROM [dpone_stage].{quoted(made.ref.name)} ORDER BY big DESC")
    assert [tuple(row) for row in found] == rows
    assert made.verify(len(rows)).proves(sum_of(rows, layout))


def test_what_is_finer_than_the_core_s_moments_is_refused_before_anything_is_read() -> None:
    """[B8] Nanoseconds of Arrow end in 2262."""
    problem = resolve("t", "DateTime64(7)", "datetime2(7)", False)
    assert getattr(problem, "code", None) in ("dpone.types.unsupported", "dpone.types.pair")
