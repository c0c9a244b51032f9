"""The journal that the tests with two processes use. Another suite runs them over a ``store`` of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.fakes.world import SCHEMA, TABLE, World, order


class SqliteJournals:
    """Journals in a file beside the world."""

    def new_world(self, root: Path) -> World:
        """Six orders in two chunks; the target holds old rows inside and outside of the window."""
        world = World.create(root)
        world.target.insert(SCHEMA, TABLE, [order(902), order(900, day=-1), order(901, day=1)])
        return world

    def restart(self, world: World) -> None:
        """What a file has for a restart: the log is moved into the file and begun anew, under its readers."""
        with closing(sqlite3.connect(world.journal_path)) as journal:
            busy, _, _ = journal.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise RuntimeError("somebody stands inside a transaction")


@pytest.fixture
def store() -> SqliteJournals:
    """Where journals are made, and how their database is restarted."""
    return SqliteJournals()
