"""Whole deliveries whose every byte is decided here: the product's engine and journal, with chance taken out.

Fixed are: nonces, the journal database's clock (SQLite's ``strftime``), the clock of source and target, the
ids that databases make for themselves, package versions, and size and hash of the sealed files, which belong
to one version of Arrow (``sealed_chunk.arrow`` is about those). Everything else is written by the product as
in any other delivery.
"""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock
from uuid import UUID

import duckdb
import pyarrow as pa

from airflow_dpone.delivery import phase6_evidence
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.deliver import deliver
from airflow_dpone.delivery.ports import Deadline, effect
from airflow_dpone.delivery.run import Request
from airflow_dpone.delivery.window import instant_text
from airflow_dpone.errors import DponeError
from airflow_dpone.journal import sqlite_sessions
from airflow_dpone.settings import Limits, Quality, RowCount
from airflow_dpone.source_clickhouse import introspect, statements
from airflow_dpone.target_embedded.target import EmbeddedTarget
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.types import WireLayout
from tests.fakes import sqlite_publication, target_storage
from tests.fakes.source import ReadFault, ScriptedSource
from tests.fakes.spool import MemorySink, MemorySpool
from tests.fakes.target import SqliteTarget
from tests.fakes.world import DAY, SCHEMA, TABLE, TARGET_COLUMNS, TestClock, World, order, requester

NOW = datetime(2025, 3, 1, 12, 30, 15, 123_000, tzinfo=UTC)
JOURNAL_ID = "0a1b2c3d-0000-4000-8000-00000000000a"
INSTALLATION_ID = "0a1b2c3d-0000-4000-8000-00000000000b"
INCARNATION = "0a1b2c3d-0000-4000-8000-00000000000c"
DUCKDB_TYPES = {
    "bigint": "BIGINT",
    "decimal(18,4)": "DECIMAL(18,4)",
    "float(53)": "DOUBLE",
    "bit": "BOOLEAN",
    "nvarchar(max)": "VARCHAR",
    "uniqueidentifier": "UUID",
    "date": "DATE",
    "datetime2(6)": "TIMESTAMP",
}
SECOND_TRY = requester(try_number=2, ti_id="run-1-try-2")


class FixedClock(TestClock):
    """No time passes, and nonces are numbered."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__()
        self._nonces = itertools.count(1)

    def utc_text(self) -> str:
        """Always the same."""
        return instant_text(NOW)

    def monotonic(self) -> float:
        """Always the same."""
        return 0.0

    def nonce(self) -> str:
        """64 hex digits: the number of the nonce."""
        return f"{next(self._nonces):064x}"


class FixedSource(ScriptedSource):
    """Asks as the ClickHouse source asks, and describes parts as it does; answers from the script."""

    def compile(self, *asked: Any) -> r.SourceQuery:
        """The statement for ClickHouse."""
        self._asked = asked
        return statements.compile_query(*asked)

    def read(self, query: r.SourceQuery, *, nonce: str, deadline: Deadline) -> Iterator[pa.RecordBatch]:
        """The same window and columns, in the script's own words."""
        return super().read(super().compile(*self._asked), nonce=nonce, deadline=deadline)

    def snapshot(self, query: r.SourceQuery) -> r.SourceSnapshot:
        """One part, at one moment."""
        rows = str(len(self.script.rows))
        parts = (introspect._part(["all_1_3_1", "all", rows, "1", "3"]),)
        return replace(super().snapshot(query), parts=parts, read_at=instant_text(NOW))


class FixedTarget(SqliteTarget):
    """What the embedded target says of itself, on the fake that can fail."""

    lock_mode = "embedded-file"
    proof_capability = "embedded-single-process-v1"

    def versions(self) -> Mapping[str, str]:
        """Of no release in particular."""
        return {"duckdb": "1.0.0", "pyarrow": "1.0.0"}


class FixedSink(MemorySink):
    """Says a size and a hash that follow from the chunk's place."""

    def __init__(
        self, spool: MemorySpool, place: tuple[str, int, int], layout: WireLayout, chunk_format: ChunkFormat
    ) -> None:
        super().__init__(spool, place, layout, chunk_format)
        self._said = f"epoch {place[1]}, chunk {place[2]}"

    @effect
    def seal(self) -> tuple[int, str]:
        """Keeps the bytes."""
        super().seal()
        return 4_096, hashlib.sha256(self._said.encode("ascii")).hexdigest()


class FixedSpool(MemorySpool):
    """A spool whose files do not depend on Arrow's version, as far as the journal can see."""

    host_id = "0123456789abcdef0123456789abcdef"

    @effect
    def begin(
        self,
        invocation_key: str,
        extraction_epoch: int,
        ordinal: int,
        layout: WireLayout,
        chunk_format: ChunkFormat = "arrow_ipc",
    ) -> MemorySink:
        """Opens a chunk."""
        return FixedSink(self, (invocation_key, extraction_epoch, ordinal), layout, chunk_format)

    def verify(self, invocation_key: str, chunk: r.SealedChunk) -> None:
        """Is it there?"""
        self._data(invocation_key, chunk)


@dataclass
class FixedWorld(World):
    """The engine's test world without chance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.clock = FixedClock()
        self.source = FixedSource(self.root / "source.script")
        self.target = FixedTarget(self.root / "target.db")
        self.spool = FixedSpool()  # type: ignore[assignment]

    def stored(self, statement: str) -> list[dict[str, Any]]:
        """Rows of the journal's database as they are."""
        with closing(sqlite3.connect(self.journal_path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(statement)]


def _strftime(form: str, moment: str, shift: str) -> str:
    """SQLite's function at one moment; the journal asks for it with milliseconds and no zone."""
    if (form, moment) != ("%Y-%m-%dT%H:%M:%f", "now"):
        raise ValueError("the journal's clock is asked in another way than before")
    at = NOW + timedelta(seconds=float(shift.removesuffix(" seconds")))
    return instant_text(at)[:-4]


@contextmanager
def without_chance() -> Iterator[None]:
    """Clocks and random numbers that the ports do not already give."""
    configure = sqlite_sessions._configure
    random_bits, random_hex = itertools.count(1), itertools.count(1)

    def configured(connection: sqlite3.Connection) -> None:
        configure(connection)
        connection.create_function("strftime", 3, _strftime)

    fixed_secrets = mock.Mock(
        randbits=lambda bits: next(random_bits) * 2**54, token_hex=lambda n: f"{next(random_hex):0{2 * n}x}"
    )
    patches = [
        mock.patch.object(sqlite_sessions, "_configure", configured),
        mock.patch.object(sqlite_publication, "instant_text", return_value=instant_text(NOW)),
        mock.patch.object(target_storage, "secrets", fixed_secrets),
        mock.patch.object(phase6_evidence, "version", return_value="1.0.0"),
    ]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def create(root: Path, rows: Sequence[Sequence[Any]] | None = None) -> FixedWorld:
    """A new world with known identities."""
    world = FixedWorld.create(root, rows)
    with closing(sqlite3.connect(world.journal_path)) as connection, connection:
        connection.execute("UPDATE dpone_journal SET journal_id = ?", (JOURNAL_ID,))
    for statement in target_storage.TABLES.split(";\n"):
        world.target.execute(statement)
    values = (INSTALLATION_ID, instant_text(NOW))
    world.target.execute('INSERT INTO "dpone.installation" VALUES (1, ?, 1, ?)', values)
    return world


def fails(world: World, code: str, *arguments: Any, **asked: Any) -> None:
    """A call that must end in this error."""
    try:
        world.deliver(*arguments, **asked)
    except DponeError as error:
        if error.code != code:
            raise
        return
    raise RuntimeError(f"the delivery did not fail with {code}")


# ---- the stories -------------------------------------------------------------------------------------------


def delivered(world: FixedWorld) -> None:
    """Everything goes well: two chunks, two checks."""
    world.quality = Quality(row_count=RowCount(min_rows=1), not_null=("id",))
    world.deliver()


def again(world: FixedWorld) -> None:
    """The same window twice; the second time it is empty in the source."""
    world.deliver()
    world.source.edit(rows=[])
    world.deliver(rerun=True)


def doubtful(world: FixedWorld) -> None:
    """The source moves, a writer stops, a send is lost, proved lost, sent again, refused, half committed."""
    world.source.edit(faults=[ReadFault("moved"), None])
    world.target.arm("write", "breaks")
    world.target.arm("publish", "never_sent")
    world.target.arm("probe", "unreachable")
    fails(world, "dpone.publish.outcome_unknown")
    world.limits = Limits(max_rows=5)
    world.target.arm("publish", "rolled_back", "dpone.publish.failed")
    fails(world, "dpone.publish.failed", SECOND_TRY)
    world.target.arm("publish", "half_committed")
    fails(world, "dpone.publish.partial", SECOND_TRY)


def refused(world: FixedWorld) -> None:
    """A value that the target does not have."""
    world.source.edit(rows=[order(1), order(2, price=float("nan"))])
    fails(world, "dpone.source.nan")


def replanned(world: FixedWorld) -> None:
    """Both tables gain a column before anything is extracted: retired, and planned anew."""
    world.source.edit(faults=[ReadFault("ends_early")] * 3)
    fails(world, "dpone.source.broken_block")
    world.target.execute('ALTER TABLE "dbo.orders" ADD COLUMN "more" "blob bigint"')
    script = world.source.script
    columns = [*script.columns, ("more", "Int64")]
    world.source.edit(columns=columns, rows=[[*row, 1] for row in script.rows])
    world.deliver(SECOND_TRY)


def long_list(world: FixedWorld) -> None:
    """As ``delivered``, with a list of chunks that is too long for the evidence."""
    with mock.patch.object(phase6_evidence, "MAX_CHUNK_LIST_BYTES", 1):
        delivered(world)


STORIES: dict[str, Callable[[FixedWorld], None]] = {
    "delivered": delivered,
    "again": again,
    "doubtful": doubtful,
    "refused": refused,
    "replanned": replanned,
    "long_list": long_list,
}
TABLES = ("dpone_event", "dpone_evidence", "dpone_checkpoint")


@cache
def told(name: str) -> dict[str, list[dict[str, Any]]]:
    """The rows that a story leaves in the journal, by table, in the order of writing."""
    with TemporaryDirectory() as folder, without_chance():
        world = create(Path(folder, "world"))
        STORIES[name](world)
        return {table: world.stored(f"SELECT * FROM {table} ORDER BY rowid") for table in TABLES}


@contextmanager
def delivered_to_duckdb() -> Iterator[duckdb.DuckDBPyConnection]:
    """The file of an embedded target after one delivery."""
    made = [UUID(INSTALLATION_ID), UUID(INCARNATION)]
    with TemporaryDirectory() as folder, without_chance():
        world = create(Path(folder, "world"))
        path = str(world.root / "target.duckdb")
        with duckdb.connect(path) as connection:
            columns = ", ".join(
                f'"{name}" {DUCKDB_TYPES[kind]}{"" if nullable else " NOT NULL"}'
                for name, kind, nullable in TARGET_COLUMNS
            )
            connection.execute(f"CREATE SCHEMA {SCHEMA}")
            connection.execute(f"CREATE TABLE {SCHEMA}.{TABLE} ({columns})")
        target = EmbeddedTarget(path, lock_wait_sec=0, clock=world.clock)
        with mock.patch("uuid.uuid4", side_effect=made), world.open_journal() as journal:
            deliver(
                world.ports(journal, target=target, writer=target), Request(world.route(), DAY, requester())
            )
        with duckdb.connect(path) as connection:
            yield connection
