"""The world of the machine: one target table, one source whose rows change, three requesters of two windows.

Rows of one version of the source appear in no other, so that a mixture of two reads can be told from both.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.clock import SystemClock
from airflow_dpone.delivery.window import Window
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.settings import Limits
from tests.fakes import target_storage as storage
from tests.fakes.source import ScriptedSource
from tests.fakes.target import SqliteTarget
from tests.fakes.world import DAY, HOST, NEXT_DAY, SCHEMA, TABLE, World, requester

SOURCE_COLUMNS = [
    ("id", "Int64"),
    ("version", "Int64"),
    ("note", "Nullable(String)"),
    ("at", "DateTime64(6)"),
]
TARGET_COLUMNS = [
    ("id", "bigint", False),
    ("version", "bigint", False),
    ("note", "nvarchar(max)", True),
    ("at", "datetime2(6)", False),
]
LIMITS = Limits(max_rows=2)
WINDOWS: dict[str, Window] = {"run-a": DAY, "run-b": DAY, "run-c": NEXT_DAY}
"""Run ids of the requesters, and what each delivers; two of them deliver the same window."""
WAITS = {"run-b": 5.0}
"""How long a requester waits, in seconds, for a target that is taken; the others do not."""
RETRIES = 2
FIRST_DAY = datetime(2025, 1, 1)
BEFORE = -1
"""The version of the rows that were in the target before the first delivery."""

Row = tuple[int, int, str | None, str]
"""A row as the target's file keeps it: SQLite sorts its moments as texts."""


def source_row(version: int, day: int, number: int) -> list[Any]:
    """A row of the source. The first two of a day are equal: duplicates are delivered as they are."""
    number = max(number, 1)
    at = FIRST_DAY + timedelta(days=day, seconds=number, microseconds=version + 1)
    return [day * 10 + number, version, None if number == 2 else f"{version}/{number}", at]


def source_rows(version: int) -> list[list[Any]]:
    """Both windows of one version: two to four rows for each, in one or two chunks; and a row of neither."""
    rows = [source_row(version, day, n) for day in (0, 1) for n in range(2 + (version + day) % 3)]
    return [*rows, source_row(version, 7, 1)]


def stored(row: list[Any]) -> Row:
    """A row of the source as the target's file keeps it."""
    number, version, note, at = row
    return number, version, note, at.isoformat(timespec="microseconds")


def window_rows(version: int, window: Window) -> list[Row]:
    """What a delivery of this version of a window must show, sorted."""
    return sorted((row for row in map(stored, source_rows(version)) if in_window(row, window)), key=repr)


def in_window(row: Row, window: Window) -> bool:
    """Whether the row belongs to the window."""
    if window.start is None or window.end is None:
        return True
    low, high = (
        t.replace(tzinfo=None).isoformat(timespec="microseconds") for t in (window.start, window.end)
    )
    return low <= row[3] < high


OUTSIDE = [source_row(BEFORE, -1, 1), source_row(BEFORE, 5, 1), source_row(BEFORE, 5, 0)]
INSIDE = [source_row(BEFORE, 0, 1), source_row(BEFORE, 1, 2)]

# Each changed row of the target is written down with the operation that the gate names at that moment.
AUDIT = f"""
CREATE TABLE "test.audit" (operation_id TEXT, verb TEXT NOT NULL);
CREATE TRIGGER "test.inserted" AFTER INSERT ON "{SCHEMA}.{TABLE}" BEGIN
  INSERT INTO "test.audit" SELECT (SELECT in_flight_operation_id FROM "dpone.target_gate"), 'insert'; END;
CREATE TRIGGER "test.deleted" AFTER DELETE ON "{SCHEMA}.{TABLE}" BEGIN
  INSERT INTO "test.audit" SELECT (SELECT in_flight_operation_id FROM "dpone.target_gate"), 'delete'; END;
CREATE TRIGGER "test.updated" AFTER UPDATE ON "{SCHEMA}.{TABLE}" BEGIN
  INSERT INTO "test.audit" VALUES (NULL, 'update'); END;
"""


def create_shop(root: Path) -> World:
    """A new world: version 0 of the source, a target with rows inside and outside of both windows."""
    root.mkdir(parents=True)
    world = World(root, limits=LIMITS)
    ScriptedSource.create(world.source.path, SOURCE_COLUMNS, source_rows(0))
    world.target.add_table(SCHEMA, TABLE, TARGET_COLUMNS)
    world.target.insert(SCHEMA, TABLE, [*OUTSIDE, *INSIDE])
    with world.target as target:
        target.identify(SCHEMA, TABLE, initialise=True)
    with storage.session(world.target.path) as connection:
        connection.executescript(AUDIT)
    migrate(world.journal_path, host=HOST)
    return world


@dataclass
class Faults:
    """What goes wrong next, by method of the target, each once, in the order of arming."""

    armed: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def arm(self, method: str, kind: str, argument: str = "") -> None:
        """One more."""
        self.armed.setdefault(method, []).append((kind, argument))

    def take(self, method: str) -> tuple[str, str] | None:
        """The fault that this call gets."""
        waiting = self.armed.get(method)
        return waiting.pop(0) if waiting else None


class ShopTarget(SqliteTarget):
    """The SQLite target with its faults in memory: all workers of the machine are in one process."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self.path = path
        self._connection, self._depth = None, 0
        self._faults = faults
        self.met: list[tuple[str, str]] = []

    def note(self, method: str) -> None:
        """Nobody counts calls here, and a file that does not change need not be looked at again."""

    def take_fault(self, method: str) -> tuple[str, str] | None:
        """From memory; ``met`` keeps what this worker has met."""
        fault = self._faults.take(method)
        if fault is not None:
            self.met.append((method, fault[0]))
        return fault


@dataclass
class AirflowTask:
    """What Airflow says of the one task of a run, and how a user's or the scheduler's doing changes it."""

    run_id: str
    try_number: int = 0
    max_tries: int = RETRIES
    ti_id: str = ""

    def next_try(self, how: str, ids: itertools.count[int]) -> r.Requester:
        """The requester of the call that follows.

        :param how: ``retry`` (by the scheduler while there are tries left, else a clear), ``again`` (the same
            try starts twice), ``clear``, ``recreate`` (the run was deleted and made again).
        """
        if how == "retry" and self.try_number > self.max_tries:
            how = "clear"
        if how == "clear" and self.try_number:
            self.max_tries = self.try_number + RETRIES
        if how == "recreate":
            self.try_number, self.max_tries = 0, RETRIES
        if how != "again" or not self.try_number:
            self.try_number += 1
            self.ti_id = ordered_id(next(ids))
        return requester(self.run_id, try_number=self.try_number, max_tries=self.max_tries, ti_id=self.ti_id)


def ordered_id(number: int) -> str:
    """A UUID of version 7, as Airflow gives its task instances: later ones are greater."""
    return str(UUID(int=(number << 80) | (0x7 << 76) | (0b10 << 62)))


class ShopClock(SystemClock):
    """Nonces that are the same in each run of the same steps; waiting costs nothing and lets others go on.

    :param nonces: shared by all workers. :param wait: called with the seconds of each sleep.
    """

    def __init__(self, nonces: itertools.count[int], wait: Any) -> None:
        self._nonces, self._wait, self._slept = nonces, wait, 0.0

    def monotonic(self) -> float:
        """The real clock, plus what was slept."""
        return super().monotonic() + self._slept

    def sleep(self, seconds: float) -> None:
        """Others may go on meanwhile."""
        self._slept += seconds
        self._wait(f"sleeping {seconds:g} s")

    def nonce(self) -> str:
        """The next one."""
        return hashlib.sha256(b"%d" % next(self._nonces)).hexdigest()
