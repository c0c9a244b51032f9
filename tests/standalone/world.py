"""Homes of deliveries, what a test does to them, and what is there afterwards."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_dpone.delivery.identity import delivery_key
from airflow_dpone.embedded_lock import EmbeddedLock
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.journal.store import open_journal
from tests.crash import embedded_world
from tests.fakes.world import HOST
from tests.fakes.world import World as Fakes
from tests.standalone.airflow_server import Run, until


@dataclass(frozen=True)
class Home:
    """A directory with source, target, journal and spool."""

    path: Path

    @classmethod
    def of_engines(cls, path: Path) -> Home:
        """chDB and DuckDB: 12 rows in the window, in two chunks."""
        path.mkdir()
        embedded_world.in_shop(
            path, "CREATE DATABASE shop ENGINE = Atomic", embedded_world.SOURCE, embedded_world.ROWS
        )
        embedded_world.in_warehouse(path, embedded_world.TARGET)
        migrate(path / "journal.db", host=HOST)
        return cls(path)

    @classmethod
    def of_fakes(cls, path: Path) -> Home:
        """A scripted source and a SQLite target: six rows in the window, in two chunks."""
        Fakes.create(path)
        return cls(path)

    @property
    def fakes(self) -> Fakes:
        """The fakes of such a home."""
        return Fakes(self.path)

    # ---- holding a delivery ----------------------------------------------------------------------------

    def hold(self, *points: str, **who: Any) -> None:
        """The next delivery waits at the last of these crash points, after it has passed the others."""
        self.hold_each([{"points": points, **who}])

    def hold_each(self, holds: list[dict[str, Any]]) -> None:
        """The same for several tasks."""
        (self.path / "held.json").unlink(missing_ok=True)
        draft = self.path / "hold.draft"
        draft.write_text(json.dumps(holds))
        draft.rename(self.path / "hold.json")

    def held(self) -> dict[str, Any]:
        """Waits until it waits there; who it is."""
        until(f"{self.path.name} is held", lambda: self.is_held)
        found: dict[str, Any] = json.loads((self.path / "held.json").read_text())
        return found

    @property
    def is_held(self) -> bool:
        """Whether somebody waits there now."""
        return (self.path / "held.json").exists()

    def let_go(self) -> None:
        """Nobody waits any more."""
        (self.path / "hold.json").unlink(missing_ok=True)

    def signal_held(self, number: int = signal.SIGKILL) -> dict[str, Any]:
        """A signal for the task's process where it stands. A hold that does not say which try stays."""
        held = self.held()
        os.kill(held["pid"], number)
        (self.path / "held.json").unlink()
        return held

    def outcomes(self) -> list[dict[str, Any]]:
        """How each call ended that came to its end."""
        path = self.path / "outcomes.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    # ---- what is there ---------------------------------------------------------------------------------

    def invocation(self, run: Run, task_id: str = "deliver", map_index: int = -1) -> Any:
        """The newest generation of a run's delivery, its chain proved; custody must be clear at its end."""
        with open_journal(self.path / "journal.db", host=HOST) as journal:
            newest = journal.newest_invocation(delivery_key(run.dag_id, run.run_id, task_id, map_index))
            if newest is not None:
                journal.events(newest.invocation_key)
        return newest

    def holder(self, target_key: str) -> Any:
        """Who owns the target."""
        with open_journal(self.path / "journal.db", host=HOST) as journal:
            return journal.holder(target_key)

    def ask_warehouse(self, statement: str) -> list[tuple[Any, ...]]:
        """Reads the DuckDB file, read-only and behind the product's own lock."""
        import duckdb

        file = str(self.path / "warehouse.duckdb")
        with EmbeddedLock(f"{os.path.realpath(file)}.dpone.lock", 120.0):
            with duckdb.connect(file, read_only=True) as warehouse:
                return warehouse.execute(statement).fetchall()

    def rows(self) -> list[tuple[Any, ...]]:
        """Every row of the embedded target."""
        return self.ask_warehouse("SELECT * FROM sales.orders ORDER BY ALL")

    def receipts(self) -> list[int]:
        """The generations of all receipts of the embedded target."""
        found = self.ask_warehouse("SELECT generation FROM dpone.delivery_receipt ORDER BY ALL")
        return [generation for (generation,) in found]

    def fake_receipts(self) -> list[int]:
        """The generations of all receipts of the fake target."""
        with closing(sqlite3.connect(self.path / "target.db")) as target:
            found = target.execute('SELECT generation FROM "dpone.delivery_receipt" ORDER BY 1').fetchall()
        return [generation for (generation,) in found]

    def untidy(self) -> list[str]:
        """What a finished delivery must not leave behind."""
        stages = self.ask_warehouse(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dpone_stage'"
        )
        files = [path for path in (self.path / "spool").rglob("*") if path.is_file()]
        return [f"stage {name}" for (name,) in stages] + [f"file {path.name}" for path in files]


def as_they_are_held(homes: Iterable[Home]) -> Iterator[Home]:
    """Each home once, as soon as somebody waits in it: fewer tasks run at once than there are homes."""
    waiting = list(homes)
    while waiting:
        found = until("the next one is held", lambda: next((home for home in waiting if home.is_held), None))
        waiting.remove(found)
        yield found
