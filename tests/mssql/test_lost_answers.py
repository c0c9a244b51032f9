"""Publications whose request is late, whose answer is lost, or whose transaction somebody else ended.

The scenarios of the specification of the batches that the target's contract does not hold by itself.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyodbc
import pytest

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import TargetBusy
from airflow_dpone.target_sqlserver import odbc
from airflow_dpone.target_sqlserver import publication_statements as batches
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.session import Session
from airflow_dpone.target_sqlserver.target import SqlServerTarget
from tests.contract.target_cases import NEW, Delivery
from tests.mssql import server
from tests.mssql.lab import LabTarget, MssqlLab
from tests.mssql.publishing import in_background, published, unknown, unpublished
from tests.mssql.way import Way


def test_a_late_request_is_fenced_by_the_probe(
    lab: MssqlLab, delivery: Delivery, way: Way, at_batch: Any
) -> None:
    """[A2] Scenario 4: the same process asks while its own request still waits somewhere."""
    request = delivery.request(delivery.prepare(NEW), NEW)
    at_batch(way.requests.clear)
    with LabTarget(way.where) as slow:
        sent = in_background(lambda: slow.publish(request))
        assert way.waiting.wait(60)
        assert delivery.probe() == tr.ProbeAnswer(None, None, None)
        way.requests.set()
        outcome = sent.result(60)
    assert (outcome.kind, outcome.code) == ("rolled_back", "dpone.publish.fenced")
    assert unpublished(lab)
    assert delivery.send(request).kind == "committed"
    assert published(lab)


def test_a_lost_answer_is_found_by_the_probe(
    lab: MssqlLab, delivery: Delivery, way: Way, at_batch: Any
) -> None:
    """[A10] Scenario 5: committed, and nobody was told."""
    request = delivery.request(delivery.prepare(NEW), NEW)
    at_batch(way.answers.clear)
    with LabTarget(way.where) as slow:
        sent = in_background(lambda: slow.publish(request))
        assert way.waiting.wait(60)
        way.cut()
        unknown(lambda: sent.result(60))
    answer = delivery.probe()
    assert answer.receipt is not None
    assert answer.receipt.draft == request.draft
    assert published(lab)
    assert delivery.send(request) == tr.PublishOutcome("already")
    assert lab.count_receipts() == 1


@pytest.mark.parametrize("arrived", ["nothing", "half of it"])
def test_a_lost_request_is_not_effective(
    lab: MssqlLab, delivery: Delivery, way: Way, at_batch: Any, arrived: str
) -> None:
    """Scenario 6: cut before it reached the server, or in the middle. The old fence stays useless, a new one
    works."""
    request = delivery.request(delivery.prepare(NEW), NEW)
    way.lets_half_through = arrived != "nothing"
    at_batch(way.requests.clear)
    with LabTarget(way.where) as slow:
        sent = in_background(lambda: slow.publish(request))
        assert way.waiting.wait(60)
        way.cut()
        unknown(lambda: sent.result(60))
    assert delivery.probe() == tr.ProbeAnswer(None, None, None)
    assert delivery.target.publish(request).code == "dpone.publish.fenced"
    assert unpublished(lab)
    assert delivery.send(request).kind == "committed"


TRIGGERS = {
    "ROLLBACK": ("ROLLBACK TRANSACTION;", "ended_early", None),
    "THROW": ("THROW 50007, 'no', 1;", "rolled_back", None),
    "COMMIT": ("COMMIT TRANSACTION;", "ended_early", "partial"),
    "COMMIT and BEGIN": ("COMMIT TRANSACTION; BEGIN TRANSACTION;", "ended_early", "partial"),
}


@pytest.mark.parametrize("kind", sorted(TRIGGERS))
def test_a_trigger_that_ends_the_transaction_is_never_a_rollback(
    lab: MssqlLab, delivery: Delivery, kind: str
) -> None:
    """[A9] Scenario 8: admission refuses triggers; this one came later."""
    text, outcome, found = TRIGGERS[kind]
    request = delivery.request(delivery.prepare(NEW), NEW)
    lab.run(
        f"CREATE TRIGGER [shop].[late] ON [shop].[orders] AFTER DELETE AS BEGIN SET NOCOUNT ON; {text} END"
    )
    assert delivery.target.publish(request).kind == outcome
    answer = delivery.probe()
    assert answer.receipt is None
    assert answer.last_operation_id is None
    assert answer.in_flight_operation_id == (delivery.operation_id if found == "partial" else None)
    if found != "partial":
        assert unpublished(lab)


@pytest.mark.parametrize("how", ["autocommit off", "implicit transactions"])
def test_a_session_that_opens_transactions_by_itself_is_refused_before_any_lock(
    lab: MssqlLab, how: str
) -> None:
    """[A1] Scenario 10."""
    connection = server.connect(lab.where)
    if how == "autocommit off":
        connection.autocommit = False
    else:
        connection.execute("SET IMPLICIT_TRANSACTIONS ON")
    session = Session(connection)
    try:
        for text in (sql.session_settings(1000), batches.probe(lab.where.schemas)):
            parameters = (b"\0" * 32, b"\0" * 32, "6f0c3a52-92a7-4d25-8f52-1d0a4b1f7c11", b"\0" * 32, 1)
            gate_head = ("dpone:target:x", 0, 1, "2026-01-01 00:00:00.000", b"\0" * 8)
            given = (*parameters, *gate_head) if "?" in text else ()
            with pytest.raises(pyodbc.Error, match=r"\(51001\)"):
                session.execute(text, *given)
    finally:
        session.close()


def test_while_the_target_is_locked_nothing_is_published_and_nothing_is_known(
    lab: MssqlLab, delivery: Delivery
) -> None:
    """[A12] Scenario 11: a publication waits and gives up as a proved rollback, a probe as unknown."""
    request = delivery.request(delivery.prepare(NEW), NEW)
    holder = Session.open(lab.where, application="dpone tests")
    try:
        with holder.transaction(), SqlServerTarget(lab.where, lock_wait_sec=0.2, settle_sec=0.2) as hasty:
            assert holder.lock(sql.target_lock(delivery.ref.target_key), 0)
            assert hasty.publish(request).code == "dpone.publish.failed"
            with pytest.raises(TargetBusy) as caught:
                hasty.probe(
                    delivery.ref,
                    operation_id=delivery.operation_id,
                    journal_id=request.draft.journal_id,
                    route_scope=request.draft.route_scope,
                    fence=delivery.next_fence(),
                )
            assert caught.value.code == "dpone.target.busy"
        assert unpublished(lab)
    finally:
        holder.close()
    assert delivery.send(request).kind == "committed"


def test_two_publications_stand_in_line(lab: MssqlLab, delivery: Delivery) -> None:
    """Scenario 11: the one with the lower fence is fenced whichever comes first, and one receipt is there."""
    request = delivery.request(delivery.prepare(NEW), NEW)
    later = tr.PublishRequest(**{**vars(request), "draft": _with_fence(request.draft, delivery.next_fence())})
    start = threading.Barrier(2)

    def send(one: tr.PublishRequest) -> tr.PublishOutcome:
        with SqlServerTarget(lab.where) as target:
            start.wait(60)
            return target.publish(one)

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(send, (request, later)))
    kinds = sorted(outcome.kind for outcome in outcomes)
    assert kinds in (["already", "committed"], ["committed", "rolled_back"])
    assert lab.count_receipts() == 1
    assert published(lab)


def _with_fence(draft: tr.ReceiptDraft, fence: int) -> tr.ReceiptDraft:
    return tr.ReceiptDraft(**{**vars(draft), "fence": fence})


def test_a_prepared_table_that_goes_in_the_last_moment_leaves_no_sentinel(
    lab: MssqlLab, delivery: Delivery, at_batch: Any
) -> None:
    """Scenario 3: an error that no CATCH sees; the probe says that nothing happened."""
    prepared = delivery.prepare(NEW)
    request = delivery.request(prepared, NEW)
    at_batch(lambda: lab.drop_stage(prepared.name))
    unknown(lambda: delivery.target.publish(request))
    assert delivery.probe() == tr.ProbeAnswer(None, None, None)
    assert unpublished(lab)


def test_an_operation_that_has_a_receipt_is_never_called_rolled_back(
    lab: MssqlLab, delivery: Delivery
) -> None:
    """What the client refuses by itself is sure only while the operation was not published before."""
    request, _ = delivery.deliver(NEW)
    lab.drop_stage(request.prepared.name)
    unknown(lambda: delivery.send(request))
    lab.add_column("orders", "more")
    unknown(lambda: delivery.send(request))


def test_a_cut_session_is_not_silently_another_one(lab: MssqlLab, way: Way) -> None:
    """[A11] The next statement fails instead of running in a session without the lock."""
    session = Session.open(way.where, application="dpone tests")
    way.cut()
    with pytest.raises(pyodbc.Error):
        session.row("SELECT @@SPID;")
    session.close()


def test_the_server_s_names_are_one_target(lab: MssqlLab) -> None:
    """[A8] By two names: the same key, and the lock of one is the lock of the other."""
    with lab.open() as one:
        first = one.identify("shop", "orders", initialise=True)
    other = type(lab.where)(**{**vars(lab.where), "server": "localhost"})
    with SqlServerTarget(other) as two:
        second = two.identify("shop", "orders", initialise=True)
    assert second.target_key == first.target_key
    holder, asker = (Session.open(w, application="dpone tests") for w in (lab.where, other))
    try:
        with holder.transaction(), asker.transaction():
            assert holder.lock(sql.target_lock(first.target_key), 0)
            assert not asker.lock(sql.target_lock(first.target_key), 0)
    finally:
        holder.close()
        asker.close()


def test_forced_options_are_the_session_s(lab: MssqlLab) -> None:
    """[A11] What reaches the driver; the other half is in the unit tests."""
    text = odbc.connection_string(lab.where, driver="d", application="a")
    assert text.endswith("ConnectRetryCount={0};MARS_Connection={no};ApplicationIntent={ReadWrite}")
