"""One database for this suite, and the target's contract over it: the same tests, over another lab."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.target_sqlserver.session import Session
from tests.contract.target_cases import BEFORE, ORDERS, Delivery
from tests.mssql import server
from tests.mssql.lab import MssqlLab
from tests.mssql.server import OwnDatabase
from tests.mssql.way import Way, is_sent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The stand-in takes many seconds to parse a batch on a busy machine; the signal of the usual limit would
    look like an error of the driver."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def database() -> Iterator[OwnDatabase]:
    """The database of this session."""
    server.get_ready()
    made = OwnDatabase()
    yield made
    made.drop()


@pytest.fixture
def mssql_lab(database: OwnDatabase) -> MssqlLab:
    """The database, emptied."""
    return MssqlLab(database)


# ---- publications into one table; a module may have fixtures of these names of its own ---------------------


@pytest.fixture
def lab(mssql_lab: MssqlLab) -> MssqlLab:
    mssql_lab.create_table("orders", ORDERS)
    mssql_lab.insert("orders", BEFORE)
    return mssql_lab


@pytest.fixture
def delivery(lab: MssqlLab) -> Iterator[Delivery]:
    with lab.open() as target:
        made = Delivery(target)
        made.claim()
        yield made


@pytest.fixture
def way(lab: MssqlLab) -> Iterator[Way]:
    with Way(lab.where) as made:
        yield made


@pytest.fixture
def at_batch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Calls something directly before the batch of a publication is sent."""

    def before(call: Callable[[], None]) -> None:
        sent = Session.results

        def results(session: Session, text: str, *parameters: object) -> Any:
            if is_sent(text, parameters):
                call()
            return sent(session, text, *parameters)

        monkeypatch.setattr(Session, "results", results)

    return before
