"""One server for this suite, and the journal's contract over it: the same tests, over another store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.journal.store import open_journal
from tests.contract.conftest import journal, second
from tests.servers import postgresql
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.postgresql import PostgresqlServer

__all__ = ["journal", "second"]


class PostgresqlStore:
    """A journal in a database of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def open(self) -> JournalPort:
        return open_journal(self.url)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresqlServer]:
    """The server of this suite. A test that stops it starts it again."""
    lack = postgresql.missing()
    if lack is not None:
        pytest.skip(lack)
    with PostgresqlServer() as running:
        yield running


@pytest.fixture(scope="session")
def shared_url(server: PostgresqlServer) -> str:
    """The journal that most tests use one after another."""
    return server.new_database()


@pytest.fixture
def url(server: PostgresqlServer, shared_url: str) -> Iterator[str]:
    """A migrated, empty journal."""
    yield shared_url
    server.empty(shared_url)


@pytest.fixture
def own_url(server: PostgresqlServer) -> Iterator[str]:
    """A migrated, empty journal whose database nobody else uses: its settings may be changed."""
    made = server.new_database()
    yield made
    server.drop(made)


@pytest.fixture
def empty_url(server: PostgresqlServer) -> Iterator[str]:
    """A database without tables."""
    made = server.new_database(migrated=False)
    yield made
    server.drop(made)


@pytest.fixture
def proxy(server: PostgresqlServer) -> Iterator[CuttingProxy]:
    """A way to the server that can lose an answer."""
    with contextlib.closing(CuttingProxy(server.port)) as made:
        yield made


@pytest.fixture
def store(url: str) -> PostgresqlStore:
    """Instead of the contract's own stores."""
    return PostgresqlStore(url)
