"""The trigger that waits for a quiet source: what it makes of what it has seen."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.source_clickhouse.activity import Activity, Insert
from airflow_dpone.triggers.custody import CustodyClearTrigger
from airflow_dpone.triggers.source import MAX_PARTITIONS, SourceSettledTrigger
from tests.contract.journal_cases import SqliteStore


class Told(SourceSettledTrigger):
    """Is told what happens, one moment after the other."""

    moments: tuple[Activity, ...] = ()
    clock = 0.0

    async def _activity(self) -> Activity:
        self.moments, (now, *_) = self.moments[1:], self.moments
        return now


def trigger(*moments: Activity, **changes: Any) -> Told:
    fields: dict[str, Any] = {
        "source": "chdb:///shop",
        "source_table": ["shop", "orders"],
        "window_column": "at",
        "window": "2025-01-01T00:00:00.000000Z/2025-01-02T00:00:00.000000Z",
        "quiet_sec": 60.0,
        "allow_empty": True,
        "deadline": time.time() + 60,
        "poll_interval": 0.0,
        **changes,
    }
    made = Told(**fields)
    made.moments = moments
    return made


def looks(told: Told, monkeypatch: pytest.MonkeyPatch, at: list[float]) -> list[Any]:
    answers = []
    for now in at:
        monkeypatch.setattr("airflow_dpone.triggers.source.time.monotonic", lambda now=now: now)
        answers.append(asyncio.run(told.look()))
    return answers


def of(mutations: int = 0, **newest: tuple[int, int]) -> Activity:
    return Activity(mutations, {name: Insert(*seen) for name, seen in newest.items()})


def test_sources_that_hang_keep_no_delivery_from_its_turn(
    store: SqliteStore, journal: JournalPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many of them as there are threads: whoever asks the journal is answered all the same."""
    answered = threading.Event()
    monkeypatch.setattr("airflow_dpone.wiring.source_activity", lambda *_: answered.wait(300) and of())
    told = trigger()
    hanging = [SourceSettledTrigger(**told.serialize()[1]) for _ in range(12)]
    custody = CustodyClearTrigger(
        journal_conn_id=None,
        journal=str(store.path),
        target_key="ab" * 32,
        deadline=time.time() + 300,
        poll_interval=0.1,
    )

    async def both() -> str | None:
        looks = [asyncio.ensure_future(one.look()) for one in hanging]
        await asyncio.sleep(0)
        try:
            status, _ = await asyncio.wait_for(custody.look(), 120)
        finally:
            answered.set()
        assert {status for status, _ in await asyncio.gather(*looks)} == {"settled"}
        return status

    assert asyncio.run(both()) == "clear"


def test_a_merge_that_hides_the_age_does_not_begin_the_wait_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that the block came in is gone after minutes; the merged one is young, its block the same."""
    told = trigger(of(march=(7, 40)), of(march=(7, 0)), of(march=(7, 5)), of(march=(7, 9)))
    found = looks(told, monkeypatch, [100.0, 130.0, 155.0, 161.0])
    assert [status for status, _ in found] == [None, None, None, "settled"]
    assert [answer["busy"] for _, answer in found] == [{"march": 40.0}, {"march": 30.0}, {"march": 55.0}, {}]


def test_an_insert_begins_it_anew_for_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    told = trigger(of(march=(7, 90), april=(3, 50)), of(march=(8, 1), april=(3, 70)), of(march=(8, 61)))
    found = looks(told, monkeypatch, [0.0, 20.0, 80.0])
    assert [status for status, _ in found] == [None, None, "settled"]
    assert found[1][1]["busy"] == {"march": 1.0}


def test_an_unfinished_mutation_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told = trigger(of(1, march=(7, 90)), of(0, march=(7, 91)))
    assert [status for status, _ in looks(told, monkeypatch, [0.0, 1.0])] == [None, "settled"]


@pytest.mark.parametrize(("allow_empty", "expected"), [(True, "settled"), (False, None)])
def test_nothing_at_all_is_quiet_unless_a_row_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, allow_empty: bool, expected: str | None
) -> None:
    told = trigger(of(), allow_empty=allow_empty)
    assert looks(told, monkeypatch, [0.0])[0][0] == expected


def test_an_event_names_the_busiest_partitions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    told = trigger(of(**{f"p{number}": (1, number) for number in range(50)}))
    answer = looks(told, monkeypatch, [0.0])[0][1]
    assert answer["partitions"] == 50
    assert list(answer["busy"]) == [f"p{number}" for number in range(MAX_PARTITIONS)]


def test_it_is_made_anew_from_what_is_stored() -> None:
    """A triggerer that is restarted knows everything but what the old one had seen."""
    path, arguments = trigger().serialize()
    assert path.endswith(".Told")
    again = SourceSettledTrigger(**arguments)
    assert again.serialize() == ("airflow_dpone.triggers.source.SourceSettledTrigger", arguments)
