"""The publication when DuckDB itself fails, or the process is killed in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import OutcomeUnknown
from airflow_dpone.target_embedded import gate, publication
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.session import Session
from tests.contract.target_cases import BEFORE, NEW, ORDERS, OUTSIDE, Delivery, EmbeddedLab, sorted_rows


@pytest.fixture
def lab(tmp_path: Path) -> EmbeddedLab:
    made = EmbeddedLab(tmp_path)
    made.create_table("orders", ORDERS)
    made.insert("orders", BEFORE)
    return made


class Failing(Session):
    """A session that fails at one statement, before or after DuckDB ran it."""

    def __init__(self, inner: Session, text: str, error: BaseException, *, after: bool = False) -> None:
        super().__init__(inner._connection)
        self.fail_at = text
        self.error = error
        self.after = after
        self.sent: list[str] = []

    def execute(self, text: str, parameters: Any = None) -> Any:
        self.sent.append(text)
        if text.strip().startswith(self.fail_at):
            if self.after:
                super().execute(text, parameters)
            raise self.error
        return super().execute(text, parameters)


def now() -> str:
    return "2025-02-03T04:05:06.000007Z"


def publish(lab: EmbeddedLab, text: str, error: BaseException, *, after: bool = False) -> Any:
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.claim()
        request = delivery.request(delivery.prepare(NEW), NEW)
        return publication.publish(Failing(target._session, text, error, after=after), request, now)


@pytest.mark.parametrize(
    "text",
    [
        "UPDATE dpone.target_gate SET fence",
        "DELETE FROM",
        'INSERT INTO "shop"',
        "INSERT INTO dpone.delivery_receipt",
    ],
)
@pytest.mark.parametrize("error", [duckdb.IOException("full"), duckdb.OutOfMemoryException("no")])
def test_an_error_inside_is_a_proved_rollback(lab: EmbeddedLab, text: str, error: duckdb.Error) -> None:
    outcome = publish(lab, text, error)
    name = type(error).__name__
    assert outcome == tr.PublishOutcome("rolled_back", "dpone.publish.failed", None, f"DuckDB said {name}")
    assert lab.rows("orders") == sorted_rows(BEFORE)
    assert lab.count_receipts() == 0


@pytest.mark.parametrize("after", [False, True], ids=["lost before", "lost after"])
def test_a_commit_without_an_answer_is_unknown(lab: EmbeddedLab, after: bool) -> None:
    with pytest.raises(OutcomeUnknown):
        publish(lab, sql.COMMIT, duckdb.FatalException("gone"), after=after)
    assert lab.rows("orders") == sorted_rows([*OUTSIDE, *NEW] if after else BEFORE)
    with lab.open() as target:
        delivery = Delivery(target, fence=10)
        assert (delivery.probe().receipt is not None) is after


def test_a_rollback_without_an_answer_is_unknown(lab: EmbeddedLab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        request = delivery.request(delivery.prepare(NEW), NEW)  # no gate: it would be rolled back
        failing = Failing(target._session, sql.ROLLBACK, duckdb.FatalException("gone"))
        with pytest.raises(OutcomeUnknown):
            publication.publish(failing, request, now)


def test_an_interrupt_passes_and_leaves_nothing(lab: EmbeddedLab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.claim()
        request = delivery.request(delivery.prepare(NEW), NEW)
        failing = Failing(target._session, "DELETE FROM", KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            publication.publish(failing, request, now)
        assert lab.rows("orders") == sorted_rows(BEFORE)
        assert delivery.send(request).kind == "committed"  # no transaction is left open


def test_a_gate_that_changes_inside_is_a_rollback(lab: EmbeddedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "finish", lambda *_: False)
    with lab.open() as target:
        _, outcome = Delivery(target).deliver(NEW)
    assert (outcome.kind, outcome.code) == ("rolled_back", "dpone.publish.failed")
    assert lab.rows("orders") == sorted_rows(BEFORE)


def test_rows_that_do_not_arrive_are_a_rollback(lab: EmbeddedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sql.insert_rows
    monkeypatch.setattr(sql, "insert_rows", lambda *a: plain(*a) + " LIMIT 3")
    with lab.open() as target:
        _, outcome = Delivery(target).deliver(NEW)
    assert (outcome.kind, outcome.code) == ("rolled_back", "dpone.publish.after_image")
    assert lab.rows("orders") == sorted_rows(BEFORE)


def test_rows_that_stay_are_a_rollback(lab: EmbeddedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sql.delete_rows
    monkeypatch.setattr(sql, "delete_rows", lambda *a: plain(*a) + " AND id <> 3")
    with lab.open() as target:
        _, outcome = Delivery(target).deliver(NEW)
    assert (outcome.kind, outcome.code) == ("rolled_back", "dpone.publish.after_image")
    assert lab.rows("orders") == sorted_rows(BEFORE)


def test_as_many_rows_that_stay_as_do_not_arrive_are_a_rollback(
    lab: EmbeddedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete, insert = sql.delete_rows, sql.insert_rows
    monkeypatch.setattr(sql, "delete_rows", lambda *a: delete(*a) + " AND id <> 3")
    monkeypatch.setattr(sql, "insert_rows", lambda *a: insert(*a) + " LIMIT 3")
    with lab.open() as target:
        _, outcome = Delivery(target).deliver(NEW)
    assert (outcome.kind, outcome.code) == ("rolled_back", "dpone.publish.after_image")
    assert lab.rows("orders") == sorted_rows(BEFORE)


def test_a_prepared_table_with_another_column_is_not_the_proved_one(lab: EmbeddedLab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.claim()
        request = delivery.request(delivery.prepare(NEW), NEW)
        lab.run(f"ALTER TABLE dpone_stage.{request.prepared.name} ADD COLUMN more INTEGER")
        outcome = target.publish(request)
    assert (outcome.kind, outcome.code) == ("rolled_back", "dpone.publish.prepared_identity")
    assert lab.rows("orders") == sorted_rows(BEFORE)


def test_the_steps_are_in_the_order_of_the_protocol(lab: EmbeddedLab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.claim()
        request = delivery.request(delivery.prepare(NEW), NEW)
        watching = Failing(target._session, "nothing", ValueError())
        assert publication.publish(watching, request, now).kind == "committed"
        prepared = sql.stage_path(request.prepared.name)
    marks = [
        sql.BEGIN,
        "UPDATE dpone.target_gate SET fence",
        "SELECT operation_id",
        f'SELECT "id", "name", "amount", "ts" FROM {prepared}',
        f"SELECT count(*) FROM {prepared} WHERE (",
        "DELETE FROM",
        'INSERT INTO "shop"',
        'SELECT count(*) FROM "shop"',
        "INSERT INTO dpone.delivery_receipt",
        "UPDATE dpone.target_gate\n   SET in_flight_operation_id = NULL",
        sql.COMMIT,
    ]
    sent = iter(watching.sent)
    for mark in marks:
        assert any(text.strip().startswith(mark) for text in sent), mark
    assert list(sent) == []


def test_the_clock_dates_the_receipt(lab: EmbeddedLab) -> None:
    assert publish(lab, "nothing", ValueError()).kind == "committed"
    with lab.open() as target:
        found = target.read_receipt(Delivery(target).operation_id)
        assert found is not None
        assert found.published_at == now()


def test_a_unique_index_fault_has_the_number_of_one(lab: EmbeddedLab) -> None:
    lab.run("DELETE FROM shop.orders")
    lab.run("CREATE UNIQUE INDEX by_name ON shop.orders (lower(name))")
    with lab.open() as target:
        _, outcome = Delivery(target).deliver(NEW)
    assert (outcome.code, outcome.error_number) == ("dpone.publish.constraint", 2627)


def test_a_missing_parent_has_the_number_of_a_foreign_key(tmp_path: Path) -> None:
    lab = EmbeddedLab(tmp_path)
    lab.run("CREATE TABLE shop.parent (id BIGINT PRIMARY KEY)")
    lab.create_table("orders", ORDERS, "FOREIGN KEY (id) REFERENCES shop.parent (id)")
    with lab.open() as target:
        _, outcome = Delivery(target).deliver(NEW)
    assert (outcome.code, outcome.error_number) == ("dpone.publish.constraint", 547)


CHILD = """
    import os, signal, sys
    from pathlib import Path
    from airflow_dpone.target_embedded import publication
    from airflow_dpone.target_embedded import statements as sql
    from airflow_dpone.target_embedded.session import Session
    from tests.contract.target_cases import NEW, Delivery, EmbeddedTarget

    moment, plain = sys.argv[2], Session.execute

    def execute(self, text, parameters=None):
        commit = text == sql.COMMIT and armed
        if moment == "before commit" and commit:
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == "after delete" and armed and text.startswith("INSERT INTO"):
            os.kill(os.getpid(), signal.SIGKILL)
        found = plain(self, text, parameters)
        if moment == "after commit" and commit:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    armed = False
    with EmbeddedTarget(sys.argv[1], lock_wait_sec=0) as target:
        delivery = Delivery(target)
        delivery.claim()
        request = delivery.request(delivery.prepare(NEW), NEW)
        Session.execute, armed = execute, True
        target.publish(request)
"""


@pytest.mark.parametrize("moment", ["after delete", "before commit", "after commit"])
def test_a_killed_process_leaves_all_or_nothing(lab: EmbeddedLab, moment: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(CHILD), lab.path, moment]
    root = Path(__file__).parents[3]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    with lab.open() as target:
        delivery = Delivery(target, fence=10)
        answer = delivery.probe()
        if moment == "after commit":
            assert answer.receipt is not None
            assert answer.last_operation_id == delivery.operation_id
        else:
            assert answer == tr.ProbeAnswer(None, None, None)
    assert lab.rows("orders") == sorted_rows([*OUTSIDE, *NEW] if moment == "after commit" else BEFORE)


@pytest.mark.parametrize("asked", [True, False])
def test_a_row_that_changes_on_its_way_into_the_target_is_found_by_the_after_image(
    lab: EmbeddedLab, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """[A16] The count alone does not see it."""
    monkeypatch.setattr(
        sql,
        "insert_rows",
        lambda path, columns, prepared: (
            f"INSERT INTO {path} SELECT * REPLACE (coalesce(name, 'x') AS name) FROM {prepared}"
        ),
    )
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.claim()
        request = delivery.request(delivery.prepare(NEW), NEW)
        outcome = target.publish(replace(request, after_image_digest=asked))
    if asked:
        assert (outcome.kind, outcome.code) == ("rolled_back", "dpone.publish.after_image")
        assert lab.rows("orders") == sorted_rows(BEFORE)
    else:
        assert outcome.kind == "committed"
