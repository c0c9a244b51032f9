"""One database for this suite, and the target's contract over it: the same tests, over another lab."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mssql import server
from tests.mssql.lab import MssqlLab
from tests.mssql.server import OwnDatabase


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


@pytest.fixture
def mssql_lab(database: OwnDatabase) -> Iterator[MssqlLab]:
    """The database, emptied."""
    made = MssqlLab(database.where, is_standin=database.is_standin)
    yield made
    made.close()
