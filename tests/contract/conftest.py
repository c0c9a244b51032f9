"""Fixtures that more than one contract suite uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_dpone.delivery.ports import JournalPort
from tests.contract.journal_cases import STORES, Store


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each journal database in turn."""
    return STORES[request.param](tmp_path)


@pytest.fixture
def journal(store: Store) -> Iterator[JournalPort]:
    """An open, empty journal."""
    with store.open() as opened:
        yield opened


@pytest.fixture
def second(store: Store) -> Iterator[JournalPort]:
    """Another session of the same journal, as another process would have it."""
    with store.open() as opened:
        yield opened
