"""The trigger that waits for custody: admit defers to it, and a sensor."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.errors import CATALOGUE, InternalError, JournalError, LeaseHeld
from airflow_dpone.triggers import polling
from airflow_dpone.triggers.custody import CustodyClearTrigger
from airflow_dpone.triggers.polling import raise_failure
from tests.contract.journal_cases import TARGET, SqliteStore, begin, requester

Sent = Callable[[Any], Any]


def waiting(store: SqliteStore, **changes: Any) -> CustodyClearTrigger:
    fields: dict[str, Any] = {
        "journal_conn_id": None,
        "journal": str(store.path),
        "target_key": TARGET,
        "deadline": time.time() + 60,
        "poll_interval": 0.05,
        **changes,
    }
    return CustodyClearTrigger(**fields)


def test_a_free_target_is_clear_at_once(store: SqliteStore, sent: Sent) -> None:
    """Also when the deadline passed while no triggerer ran: what is true is told."""
    assert sent(waiting(store)) == {"status": "clear", "holder": {}}
    assert sent(waiting(store, deadline=time.time() - 3600)) == {"status": "clear", "holder": {}}


def test_it_waits_until_the_owner_gives_the_target_back(
    store: SqliteStore, journal: JournalPort, sent: Sent
) -> None:
    delivery = begin(journal)
    timer = threading.Timer(0.5, lambda: delivery.go(DeliveryState.FAILED))
    timer.start()
    began = time.monotonic()
    assert sent(waiting(store)) == {"status": "clear", "holder": {}}
    assert time.monotonic() - began > 0.4
    timer.join()


def test_at_the_deadline_it_names_the_owner(store: SqliteStore, journal: JournalPort, sent: Sent) -> None:
    delivery = begin(journal, requester("run-7"))
    event = sent(waiting(store, deadline=time.time() + 0.2))
    assert event["status"] == "timeout"
    assert event["holder"]["run_id"] == "run-7"
    assert event["holder"]["invocation_key"] == delivery.invocation_key
    assert event["holder"]["age_sec"] >= 0
    raise_failure(event)


def test_the_journal_may_be_a_connection_and_its_secrets_stay_in_it(
    store: SqliteStore, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {"conn_type": "sqlite", "host": str(store.path), "password": "hunter2"}
    monkeypatch.setenv("AIRFLOW_CONN_THE_JOURNAL", json.dumps(stored))
    trigger = waiting(store, journal=None, journal_conn_id="the_journal")
    assert "hunter2" not in repr(trigger)
    assert sent(trigger) == {"status": "clear", "holder": {}}


def test_what_no_further_look_mends_is_said_at_once_and_raised_in_the_task(
    store: SqliteStore, sent: Sent
) -> None:
    os.unlink(store.path)
    event = sent(waiting(store))
    assert (event["status"], event["holder"]) == ("failed", {})
    with pytest.raises(JournalError, match="There is no journal") as caught:
        raise_failure(event)
    assert caught.value.code == "dpone.journal.missing"
    assert "db migrate" in caught.value.next_action


def test_a_journal_that_does_not_answer_for_a_while_is_asked_again(
    store: SqliteStore, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Exception | None] = [LeaseHeld("dpone.lease.held", "Not now."), None]
    ask = CustodyClearTrigger.ask

    async def at_first_not(self: CustodyClearTrigger, question: Any) -> Any:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        return await ask(self, question)

    monkeypatch.setattr(CustodyClearTrigger, "ask", at_first_not)
    assert sent(waiting(store))["status"] == "clear"
    assert answers == []


def test_a_journal_that_never_answers_is_a_timeout(
    store: SqliteStore, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: CustodyClearTrigger, question: Any) -> Any:
        raise LeaseHeld("dpone.lease.held", "Not now.")

    monkeypatch.setattr(CustodyClearTrigger, "ask", never)
    assert sent(waiting(store, deadline=time.time() + 0.2)) == {"status": "timeout", "holder": {}}


def test_the_event_loop_goes_on_while_a_journal_hangs(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten triggers that all hang: the loop still turns, and they use four threads."""
    released, inside = threading.Event(), []

    def hangs(where: object, host: str | None) -> Any:
        inside.append(threading.current_thread().name)
        released.wait(60)
        raise LeaseHeld("dpone.lease.held", "Not now.")

    monkeypatch.setattr("airflow_dpone.journal.store.open_journal", hangs)

    async def scene() -> list[Any]:
        async def run() -> list[Any]:
            return [event.payload async for event in waiting(store, deadline=0.0).run()]

        tasks = [asyncio.create_task(run()) for _ in range(10)]
        while len(inside) < 4:
            await asyncio.sleep(0.01)
        turns = 0
        while turns < 20:  # would never end if the loop were blocked
            await asyncio.sleep(0)
            turns += 1
        assert not any(task.done() for task in tasks)
        assert len(inside) == 4
        released.set()
        return [(await task)[0]["status"] for task in tasks]

    assert asyncio.run(scene()) == ["timeout"] * 10
    assert all(name.startswith("dpone-trigger") for name in inside)


def test_a_cancelled_trigger_ends_at_once(store: SqliteStore, journal: JournalPort) -> None:
    """A triggerer that stops, or a task that is cleared: nothing is left to be undone."""
    begin(journal)

    async def scene() -> None:
        async def run() -> None:
            async for _ in waiting(store, poll_interval=3600).run():
                raise RuntimeError("nothing happened that could be told")

        task = asyncio.create_task(run())
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 30)

    asyncio.run(scene())


@pytest.mark.parametrize(
    "event",
    [
        None,
        {"status": "failed", "error": {"code": "dpone.of.tomorrow", "message": "M.", "next_action": "N."}},
    ],
)
def test_an_answer_of_another_version_is_an_error_too(event: Any) -> None:
    with pytest.raises(InternalError) as caught:
        raise_failure(event)
    assert caught.value.retry == "backoff"


def test_every_code_can_travel_in_an_event() -> None:
    for code in CATALOGUE:
        told = polling._told(polling.error_of(code, "What happened."))
        with pytest.raises(Exception, match="What happened") as caught:
            raise_failure({"status": "failed", "error": told})
        assert caught.value.code == code
