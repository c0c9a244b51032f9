"""What the triggers wait for, in a real journal; and how Airflow runs a trigger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_dpone.delivery.ports import JournalPort
from tests.contract.journal_cases import SqliteStore


def sent_by(trigger: BaseTrigger) -> Any:
    """The one event of a trigger, made anew from what would be stored, as in another triggerer."""
    from airflow._shared.module_loading import import_string

    path, arguments = trigger.serialize()
    again = import_string(path)(**json.loads(json.dumps(arguments)))
    assert again.serialize() == trigger.serialize()

    async def run() -> list[Any]:
        return [event.payload async for event in again.run()]

    (event,) = asyncio.run(run())
    json.dumps(event)
    return event


@pytest.fixture
def sent() -> Callable[[BaseTrigger], Any]:
    """Runs a trigger to its event."""
    return sent_by


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    """A journal in a file."""
    return SqliteStore(tmp_path)


@pytest.fixture
def journal(store: SqliteStore) -> Iterator[JournalPort]:
    """One session of it."""
    with store.open() as session:
        yield session
