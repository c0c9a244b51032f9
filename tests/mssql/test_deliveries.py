"""Whole deliveries into SQL Server, also when something dies on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.target_sqlserver.session import Session
from tests.contract.target_cases import ORDERS, Delivery, sorted_rows, sum_of
from tests.fakes.world import orders, requester
from tests.mssql.lab import LabTarget, MssqlLab
from tests.mssql.way import Way, is_sent
from tests.mssql.world import OUTSIDE, MssqlWorld

EXPECTED = sorted_rows([*OUTSIDE, *[tuple(row) for row in orders(6)]])
MOMENT = datetime(2025, 1, 2, 3, 4, 5, 678_000)
HIGHER_TRY = {"who": requester(try_number=2)}


@pytest.fixture
def world(tmp_path: Path, mssql_lab: MssqlLab) -> MssqlWorld:
    return MssqlWorld.on(tmp_path / "world", mssql_lab)


def problems(world: MssqlWorld) -> list[str]:
    """What is wrong with a finished world; nothing, after every way to finish."""
    found = []
    if world.rows() != EXPECTED:
        found.append("the rows differ")
    if world.lab.count_receipts() != 1:
        found.append(f"{world.lab.count_receipts()} receipts")
    if world.lab.stage_names():
        found.append(f"staging tables are left: {world.lab.stage_names()}")
    return found


def test_a_window_is_delivered_exactly(world: MssqlWorld) -> None:
    result = world.deliver()
    assert (result.state, result.rows, result.chunks) == ("COMPLETED", 6, 2)
    assert problems(world) == []
    with world.open_journal() as journal:
        evidence = json.loads(journal.evidence(result.evidence_sha256) or b"{}")
    assert (evidence["environment"], evidence["business_rows_read_back"]) == ("sqlserver", 0)
    assert world.deliver().already
    again = world.deliver(rerun=True)
    assert (again.generation, again.deleted_rows) == (2, 6)
    assert world.rows() == EXPECTED


POINTS = [
    "after_target_claim_gate",
    "after_target_create_stage",
    "after_target_grant",
    "after_writer_write",
    "after_target_verify_stage",
    "after_target_build_prepared",
    "before_target_publish",
    "after_target_publish",
    "after_target_drop_stage",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_delivery_that_was_interrupted_is_finished_by_the_next_call(world: MssqlWorld, point: str) -> None:
    passed = []

    def stop(fired: str) -> None:
        passed.append(str(fired))
        if str(fired) == point:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.deliver(observer=stop)
    assert point in passed
    assert world.deliver(**HIGHER_TRY).state == "COMPLETED"
    assert problems(world) == []


@pytest.fixture
def way(world: MssqlWorld) -> Iterator[Way]:
    with Way(world.where) as made:
        yield made


def test_a_lost_answer_is_settled_within_the_same_call(
    world: MssqlWorld, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is cut between COMMIT and its answer: one receipt, and the delivery goes on."""
    sent, cuts = Session.results, []

    def results(session: Session, text: str, *parameters: object) -> Any:
        found = sent(session, text, *parameters)
        if is_sent(text, parameters) and not cuts:
            cuts.append(1)
            way.cut()
            sent(session, "SELECT 1;")
        return found

    monkeypatch.setattr(Session, "results", results)
    world.where = way.where
    assert world.deliver().state == "COMPLETED"
    assert cuts
    assert problems(world) == []


def test_no_business_row_comes_back(mssql_lab: MssqlLab) -> None:
    """A hundred times as many rows are proved and published with the same bytes from the server."""
    mssql_lab.create_table("orders", ORDERS)
    with Way(mssql_lab.where) as way:
        # The first one also pays for the sessions that the others find open.
        _, few, many = [
            _bytes_for(mssql_lab, way, n, rows) for n, rows in ((1, 1_000), (2, 1_000), (3, 100_000))
        ]
    assert abs(many - few) < 4_096, (few, many)


def _bytes_for(lab: MssqlLab, way: Way, generation: int, rows: int) -> int:
    with LabTarget(way.where) as target:
        delivery = Delivery(target, invocation=str(generation), generation=generation, fence=generation * 100)
        delivery.claim()
        stage = delivery.create()
        delivery.grant(stage)
        _fill(lab, stage.name, rows)
        content = [(number, "row", Decimal("1.50"), MOMENT) for number in range(rows)]
        before = way.answered_bytes
        assert delivery.verify(stage, rows, content).proves(sum_of(content, delivery.layout))
        prepared, _ = delivery.build(*delivery.names("prepared"), [stage], rows)
        request = delivery.request(prepared, content)
        assert target.publish(request).kind == "committed"
        return way.answered_bytes - before


def _fill(lab: MssqlLab, name: str, rows: int) -> None:
    """Rows made inside the server: nothing of them travels."""
    digits = "(VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9))"
    count = len(str(rows)) - 1
    tables = " CROSS JOIN ".join(f"{digits} AS d{i}(n)" for i in range(count))
    number = " + ".join(f"d{i}.n * {10**i}" for i in range(count))
    lab.run(
        f"INSERT INTO [dpone_stage].[{name}] (id, name, amount, ts) SELECT {number}, N'row', 1.5, "
        f"CONVERT(datetime2(3), '{MOMENT.isoformat(timespec='milliseconds')}', 126) FROM {tables}"
    )
