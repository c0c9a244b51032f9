"""One small world for the engine's tests: a scripted shop, a SQLite target, a real journal and a real spool.

It lives in one directory, so that another process opens the same world by its path.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.clock import SystemClock
from airflow_dpone.delivery.deliver import deliver
from airflow_dpone.delivery.ports import Observer, Ports
from airflow_dpone.delivery.run import Request
from airflow_dpone.delivery.window import Window
from airflow_dpone.journal.store import SqlJournal, open_journal
from airflow_dpone.settings import Limits, Options, Quality, Route
from airflow_dpone.spool.local import LocalSpool
from tests.fakes.source import ScriptedSource
from tests.fakes.target import SqliteTarget

HOST = "test-host"
JOURNAL_URL = "journal.url"
START = datetime(2025, 1, 1, tzinfo=UTC)
DAY = Window(START, START + timedelta(days=1))
NEXT_DAY = Window(START + timedelta(days=1), START + timedelta(days=2))
SCHEMA, TABLE = "dbo", "orders"

SOURCE_COLUMNS = [
    ("id", "Int64"),
    ("customer", "Int64"),
    ("amount", "Decimal(18, 4)"),
    ("price", "Float64"),
    ("paid", "Bool"),
    ("note", "Nullable(String)"),
    ("ref", "Nullable(UUID)"),
    ("day", "Date"),
    ("at", "DateTime64(6)"),
]
TARGET_COLUMNS = [
    ("id", "bigint", False),
    ("customer", "bigint", False),
    ("amount", "decimal(18,4)", False),
    ("price", "float(53)", False),
    ("paid", "bit", False),
    ("note", "nvarchar(max)", True),
    ("ref", "uniqueidentifier", True),
    ("day", "date", False),
    ("at", "datetime2(6)", False),
]


def order(number: int, *, day: int = 0, **changes: Any) -> list[Any]:
    """One order; each third has no note, each fifth no reference."""
    at = datetime(2025, 1, 1) + timedelta(days=day, seconds=number, microseconds=number)
    row = {
        "id": number,
        "customer": 1_000 + number % 7,
        "amount": Decimal(number * 37 - 50).scaleb(-4),
        "price": number / 3,
        "paid": number % 2 == 0,
        "note": None if number % 3 == 0 else f"order {number} \U0001f600",
        "ref": None if number % 5 == 0 else UUID(bytes=hashlib.md5(b"%d" % number).digest()),
        "day": date(2025, 1, 1) + timedelta(days=day),
        "at": at,
    }
    return list((row | changes).values())


def orders(count: int, *, first: int = 1, day: int = 0) -> list[list[Any]]:
    """Orders with rising numbers."""
    return [order(number, day=day) for number in range(first, first + count)]


def as_set(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows as a sorted list: a multiset that compares."""
    return sorted((tuple(row) for row in rows), key=repr)


class TestClock(SystemClock):
    """The real clock, but waiting costs nothing; ``slept`` says how long it would have been."""

    __test__ = False

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Notes the wait."""
        self.slept.append(seconds)


@dataclass
class World:
    """Everything that a delivery needs, in one directory.

    :param root: the directory. :param limits: of the route; small chunks, so that there are several.
    """

    root: Path
    limits: Limits = field(default_factory=lambda: Limits(max_rows=4))
    quality: Quality = field(default_factory=Quality)
    options: Options = field(default_factory=Options)
    clock: TestClock = field(default_factory=TestClock)
    journal_name: str = "journal.db"
    child_module: ClassVar[str] = "tests.fakes.kill_child"

    def __post_init__(self) -> None:
        self.root = Path(self.root)
        self.source = ScriptedSource(self.root / "source.script")
        self.target = SqliteTarget(self.root / "target.db")
        self.spool = LocalSpool(str(self.root / "spool"), host_id=HOST)

    @classmethod
    def create(
        cls,
        root: Path,
        rows: Sequence[Sequence[Any]] | None = None,
        *,
        unique: bool = False,
        journal_url: str | None = None,
    ) -> World:
        """A new world: six orders of the day to deliver, unless rows are given, and an empty target.

        :param journal_url: a journal on a server, for this world and whoever opens it by its path.
        """
        from airflow_dpone.journal.migrate import migrate  # a child that opens a world does not wait for it

        Path(root).mkdir(parents=True, exist_ok=True)
        world = cls(root)
        ScriptedSource.create(world.source.path, SOURCE_COLUMNS, orders(6) if rows is None else rows)
        world.target.add_table(SCHEMA, TABLE, TARGET_COLUMNS, rest=', UNIQUE ("id")' if unique else "")
        if journal_url is not None:
            (world.root / JOURNAL_URL).write_text(journal_url)
        migrate(world.journal_address, host=HOST)
        return world

    def copy(self, root: Path) -> World:
        """The same world in another directory; nobody may work in this one meanwhile."""
        shutil.copytree(self.root, root)
        return replace(self, root=root, clock=TestClock())

    @property
    def journal_path(self) -> Path:
        """The journal's file."""
        return self.root / self.journal_name

    @property
    def journal_address(self) -> str | Path:
        """The journal's file, or its URL on a server."""
        url = self.root / JOURNAL_URL
        return url.read_text() if url.exists() else self.journal_path

    def open_journal(self) -> SqlJournal:
        """The real journal."""
        return open_journal(self.journal_address, host=HOST)

    def me(self, who: r.Requester | None) -> r.Requester:
        """Who asks: the first try of the shop's task, unless another one is given."""
        return who or requester()

    def route(self, **changes: Any) -> Route:
        """The route of this world."""
        fields: dict[str, Any] = {
            "source": "chdb:///fake",
            "source_table": ("shop", "orders"),
            "target": "duckdb:///fake",
            "target_table": (SCHEMA, TABLE),
            "window_column": "at",
            "limits": self.limits,
            "quality": self.quality,
            "options": self.options,
        }
        return Route(**(fields | changes))

    def ports(self, journal: Any, **changes: Any) -> Ports:
        """The ports of one call."""
        ports = Ports(
            source=self.source,
            spool=self.spool,
            target=self.target,
            writer=self.target,
            journal=journal,
            clock=self.clock,
        )
        return replace(ports, **changes)

    def deliver(
        self,
        who: r.Requester | None = None,
        *,
        window: Window = DAY,
        route: Route | None = None,
        observer: Observer | None = None,
        wrap_journal: Callable[[SqlJournal], Any] = lambda journal: journal,
        **asked: Any,
    ) -> r.DeliveryResult:
        """One call of the engine. ``asked``: rerun, deadline_sec, lease_ttl_sec."""
        with self.open_journal() as journal:
            ports = self.ports(wrap_journal(journal), observer=observer)
            return deliver(ports, Request(route or self.route(), window, self.me(who), **asked))

    # ---- what became of it --------------------------------------------------------------------------------

    def rows(self) -> list[tuple[Any, ...]]:
        """The target's rows, sorted."""
        return self.target.rows(SCHEMA, TABLE)

    def invocation(self, who: r.Requester | None = None) -> jr.Invocation:
        """The newest generation of a requester."""
        with self.open_journal() as journal:
            found = journal.newest_invocation(self.me(who).delivery_key)
        if found is None:
            raise LookupError("this requester has no delivery")
        return found

    def events(self, who: r.Requester | None = None) -> tuple[jr.Event, ...]:
        """Every event of the newest generation."""
        invocation = self.invocation(who)
        with self.open_journal() as journal:
            return journal.events(invocation.invocation_key)

    def receipts(self) -> list[tuple[str, int, str, int]]:
        """(delivery key, generation, operation id, rows) of every receipt."""
        return self.target.receipts()

    def stages(self) -> list[str]:
        """Names of the staging tables that exist."""
        return self.target.stages

    def custody(self) -> jr.Custody:
        """Who owns the target."""
        with self.target as target:
            key = target.identify(SCHEMA, TABLE, initialise=True).target_key
        with self.open_journal() as journal:
            return journal.custody(key)

    def checkpoint(self, result: r.DeliveryResult) -> jr.Checkpoint | None:
        """The checkpoint row of a result's window."""
        invocation_key = result.invocation_key
        with self.open_journal() as journal:
            found = journal.invocation(invocation_key)
            if found is None:
                raise LookupError("no such invocation")
            return journal.checkpoint(found.target_key, found.route_scope, found.window_key)

    def spool_files(self) -> list[Path]:
        """Every file that is left in the spool."""
        return sorted(path for path in (self.root / "spool").rglob("*") if path.is_file())

    def untidy(self) -> list[str]:
        """What a finished or failed delivery must not leave behind; empty when all is clean."""
        found = [f"stage {name}" for name in self.stages()]
        found += [f"file {path.name}" for path in self.spool_files()]
        custody = self.custody()
        return found + ([f"custody of {custody.holder_key}"] if custody.held else [])


def requester(run_id: str = "run-1", **changes: Any) -> r.Requester:
    """The first try of the shop's task, with two retries."""
    fields: dict[str, Any] = {
        "dag_id": "shop",
        "run_id": run_id,
        "task_id": "deliver_orders",
        "try_number": 1,
        "ti_id": f"{run_id}-try-1",
        "max_tries": 2,
    }
    return r.Requester(**(fields | changes))
