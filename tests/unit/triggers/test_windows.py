"""The trigger that waits for delivered windows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery.identity import key_of
from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.triggers.windows import MAX_GAPS, WindowsDeliveredTrigger
from tests.contract.journal_cases import ROUTE, TARGET, SqliteStore, begin, checkpoint

Sent = Callable[[Any], Any]


def day(first: int, last: int | None = None) -> str:
    last = first + 1 if last is None else last
    return f"2025-01-{first:02d}T00:00:00.000000Z/2025-01-{last:02d}T00:00:00.000000Z"


def waiting(store: SqliteStore, window: str, **changes: Any) -> WindowsDeliveredTrigger:
    fields: dict[str, Any] = {
        "journal_conn_id": None,
        "journal": str(store.path),
        "target_key": TARGET,
        "window": window,
        "exact": False,
        "deadline": time.time() + 0.1,
        "poll_interval": 0.05,
        **changes,
    }
    return WindowsDeliveredTrigger(**fields)


def deliver(journal: JournalPort, *windows: str) -> None:
    delivery = begin(journal)
    for window in windows:
        journal.append(delivery.lease, jr.PutCheckpoint(checkpoint(window=window), 0))


def test_days_cover_their_week_and_a_missing_one_is_named(
    store: SqliteStore, journal: JournalPort, sent: Sent
) -> None:
    deliver(journal, day(1), day(2), day(4), day(7))
    assert sent(waiting(store, day(1, 3))) == {"status": "delivered", "gaps": [], "gap_count": 0}
    assert sent(waiting(store, day(1, 9))) == {
        "status": "timeout",
        "gaps": [day(3), day(5, 7), day(8)],
        "gap_count": 3,
    }


def test_exactly_one_window_is_not_the_windows_that_cover_it(
    store: SqliteStore, journal: JournalPort, sent: Sent
) -> None:
    deliver(journal, day(1), day(2), day(5, 9))
    assert sent(waiting(store, day(1, 3), exact=True))["gaps"] == [day(1, 3)]
    assert sent(waiting(store, day(6), exact=True))["gaps"] == [day(6)]
    assert sent(waiting(store, day(5, 9), exact=True))["status"] == "delivered"
    assert sent(waiting(store, "full", exact=True))["gaps"] == ["full"]


def test_another_route_and_another_target_do_not_count(
    store: SqliteStore, journal: JournalPort, sent: Sent
) -> None:
    deliver(journal, day(1))
    assert sent(waiting(store, day(1), route_scope=ROUTE))["status"] == "delivered"
    assert sent(waiting(store, day(1), route_scope=key_of(["another"])))["status"] == "timeout"
    assert sent(waiting(store, day(1), target_key=key_of(["another"])))["status"] == "timeout"


def test_it_goes_on_as_soon_as_the_last_window_is_there(
    store: SqliteStore, journal: JournalPort, sent: Sent
) -> None:
    timer = threading.Timer(0.4, lambda: deliver(journal, day(1)))
    timer.start()
    assert sent(waiting(store, day(1), deadline=time.time() + 60))["status"] == "delivered"
    timer.join()


def test_an_event_stays_small_however_many_windows_are_missing(
    store: SqliteStore, journal: JournalPort, sent: Sent
) -> None:
    hours = [f"2025-01-{d:02d}T{h:02d}:00:00.000000Z" for d in range(1, 30) for h in range(24)]
    deliver(journal, *(f"{start}/{end}" for start, end in zip(hours[::2], hours[1::2], strict=True)))
    event = sent(waiting(store, day(1, 29)))
    assert (event["gap_count"], len(event["gaps"])) == (28 * 12, MAX_GAPS)


def test_a_journal_that_is_gone_is_a_failure(store: SqliteStore, sent: Sent) -> None:
    os.unlink(store.path)
    event = sent(waiting(store, day(1)))
    assert (event["status"], event["error"]["code"]) == ("failed", "dpone.journal.missing")
