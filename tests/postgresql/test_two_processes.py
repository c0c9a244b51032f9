"""Two real processes with the journal on PostgreSQL: the same tests as on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.test_kill_matrix_fakes import OUTSIDE
from tests.crash.test_two_processes import *  # noqa: F403
from tests.fakes.world import SCHEMA, TABLE, World, order
from tests.servers.postgresql import PostgresqlServer


class ServerJournals:
    """A database of its own for each world."""

    def __init__(self, server: PostgresqlServer) -> None:
        self._server = server
        self.made: list[str] = []

    def new_world(self, root: Path) -> World:
        """Six orders in two chunks; the target holds old rows inside and outside of the window."""
        url = self._server.new_database()
        self.made.append(url)
        world = World.create(root, journal_url=url)
        world.target.insert(SCHEMA, TABLE, [order(902), *OUTSIDE])
        return world

    def restart(self, world: World) -> None:
        """The whole server, under whoever is connected."""
        self._server.restart()


@pytest.fixture
def store(server: PostgresqlServer) -> Iterator[ServerJournals]:
    """Where journals are made, and how their database is restarted."""
    journals = ServerJournals(server)
    yield journals
    for url in journals.made:
        server.drop(url)
