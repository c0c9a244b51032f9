"""One database for this suite, and the target's contract over it: the same tests, over another lab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mssql import server
from tests.mssql.lab import MssqlLab
from tests.mssql.server import OwnDatabase


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The stand-in takes many seconds to parse a batch on a busy machine; the signal of the usual limit would
    look like an error of the driver."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def database() -> Iterator[OwnDatabase]:
    """The database of this session."""
    lack = server.missing()
    if lack is not None:
        pytest.skip(lack)
    server.start()
    if server.is_standin(server.login()):
        server.use_standin()
    made = OwnDatabase()
    yield made
    made.drop()


@pytest.fixture(scope="session")
def connection(database: OwnDatabase) -> Iterator[Any]:
    """A connection past the product."""
    made = server.connect(database.where)
    yield made
    made.close()


@pytest.fixture
def mssql_lab(database: OwnDatabase, connection: Any) -> MssqlLab:
    """The database, emptied."""
    return MssqlLab(database.where, connection, is_standin=database.is_standin)
