"""How fast rows are loaded into SQL Server, and what the supervised process costs.

    DPONE_TEST_MSSQL=... python benchmarks/bulk_load.py [--rows N] [--passes N] [--json] [--tables NAME ...]

For each table: the core's bare ``bulkcopy_arrow`` with the writer's options, in this process and on a session
that is open already; the bulk writer with 1, 2 and 4 writers at once, each with all rows, its own process and
its own stage; the writer without a row, which is what a process, a session and its questions cost; the
digest, which the server makes of one stage; the prepared table, built from that stage and hashed once more;
and the publication, which hashes it a third time and replaces the whole table with it. The best pass counts,
by the clock. It makes a database and drops it.

The table for people goes to standard error, JSON is the last line of standard output (``--json``: nothing
else is printed). Nothing here passes or fails: a measurement is no test.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa

from airflow_dpone.bulk_writer.child_tds import core_options
from airflow_dpone.bulk_writer.writer import TdsWriter
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.target_records import Claim, StageRef
from airflow_dpone.delivery.window import Window
from airflow_dpone.target_sqlserver import installation
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.target_sqlserver.quoting import qualified, quoted
from airflow_dpone.target_sqlserver.session import Session
from airflow_dpone.target_sqlserver.target import SqlServerTarget
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.types import WireLayout
from benchmarks.tables import TABLES
from tests.contract.target_cases import SCHEMA, Delivery
from tests.mssql import server

WRITERS = (1, 2, 4)
BATCH_ROWS = 65_536
PATIENCE_SEC = 3600.0
NOT_ALL = "A load did not bring all rows: nothing is measured."


@dataclass(frozen=True)
class Load:
    """What one step takes. :param writers: 0 for the bare core. :param rows: of all writers together."""

    table: str
    step: str
    writers: int
    rows: int
    seconds: float
    rows_per_sec: int
    passes: int


class Bench:
    """One table on one database.

    :param batches: all rows, as a sealed chunk has them.
    """

    def __init__(self, where: SqlServerConnection, layout: WireLayout, batches: list[pa.RecordBatch]) -> None:
        self._where, self._layout, self._batches = where, layout, batches
        content = DigestSum.zero()
        for batch in batches:
            content += DigestSum.of_hashes(encode_rows(batch, layout).hashes())
        self._rows, self._content = content.rows, (content.rows, content.digest)

    def measure(self, name: str, passes: int) -> Iterator[Load]:
        """Every step."""
        yield self._best(name, "bare core", 0, self._rows, passes, self._bare)
        for writers in WRITERS:
            rows = writers * self._rows
            yield self._best(name, "writer", writers, rows, passes, partial(self._writers, writers))
        yield self._best(name, "writer without a row", 1, 0, passes, partial(self._writers, 1, []))
        best = [min(taken) for taken in zip(*(self._whole() for _ in range(passes)), strict=True)]
        for step, seconds in zip(("digest", "prepared table", "publication"), best, strict=True):
            yield self._load(name, step, 0, self._rows, passes, seconds)

    def _best(
        self, table: str, step: str, writers: int, rows: int, passes: int, work: Callable[[], float]
    ) -> Load:
        return self._load(table, step, writers, rows, passes, min(work() for _ in range(passes)))

    @staticmethod
    def _load(table: str, step: str, writers: int, rows: int, passes: int, seconds: float) -> Load:
        return Load(table, step, writers, rows, round(seconds, 3), int(rows / seconds), passes)

    def _bare(self) -> float:
        import mssql_py_core

        stage, _ = self._stage()
        connection = mssql_py_core.PyCoreConnection(core_options(self._where))
        names = [(ordinal, column.name) for ordinal, column in enumerate(self._layout.columns)]
        options = {
            "column_mappings": names,
            "table_lock": True,
            "keep_nulls": True,
            "timeout": int(PATIENCE_SEC),
        }
        began = time.perf_counter()
        said = connection.cursor().bulkcopy_arrow(
            self._where.schemas.stage_path(stage.name),
            iter(self._batches),
            use_internal_transaction=True,
            **options,
        )
        took = time.perf_counter() - began
        connection.close()
        self._require(said["rows_copied"] == self._rows)
        return took

    def _writers(self, writers: int, batches: list[pa.RecordBatch] | None = None) -> float:
        sent = self._batches if batches is None else batches
        stages = [self._stage() for _ in range(writers)]
        writer = TdsWriter(self._where)
        deadline = Deadline.after(PATIENCE_SEC)
        with ThreadPoolExecutor(writers) as pool:
            began = time.perf_counter()
            said = list(
                pool.map(
                    lambda made: writer.write(
                        made[0], self._layout, iter(sent), token_sha256=made[1], deadline=deadline
                    ),
                    stages,
                )
            )
            took = time.perf_counter() - began
        self._require(all(one.outcome == "success" for one in said))
        return took

    def _whole(self) -> tuple[float, float, float]:
        """Digest, prepared table and publication of one stage, in a table that was empty."""
        name = f"b_{secrets.token_hex(8)}"
        deadline = Deadline.after(PATIENCE_SEC)
        session = Session.open(self._where)
        session.execute(f"CREATE TABLE {qualified(SCHEMA, name)} ({self._columns()});")
        session.close()
        with SqlServerTarget(self._where) as target:
            delivery = Delivery(target, table=name, window=Window.full(), window_column=None, invocation=name)
            delivery.layout = self._layout
            delivery.claim()
            stage, token = self._stage()
            TdsWriter(self._where).write(
                stage, self._layout, iter(self._batches), token_sha256=token, deadline=deadline
            )
            target.find_stage(stage.name, stage.owner)  # the session is open
            began = time.perf_counter()
            seen = target.verify_stage(stage, self._layout, *self._content, deadline=deadline)
            digest = time.perf_counter() - began
            content = seen.digest_sum
            began = time.perf_counter()
            prepared, _ = delivery.build(*delivery.names("prepared"), [stage], self._rows)
            building = time.perf_counter() - began
            if content is None or content.rows != self._rows:
                raise SystemExit(NOT_ALL)
            request = delivery.request(prepared, [])
            draft = replace(
                request.draft, row_count=self._rows, digest=content.digest, delivery_key=delivery.key
            )
            began = time.perf_counter()
            outcome = target.publish(replace(request, expected=content, draft=draft))
            publication = time.perf_counter() - began
        self._require(outcome.kind == "committed")
        return digest, building, publication

    def _columns(self) -> str:
        return ", ".join(
            f"{quoted(c.name)} {c.pair.sql_type} {'NULL' if c.pair.target_nullable else 'NOT NULL'}"
            for c in self._layout.columns
        )

    def _stage(self) -> tuple[StageRef, str]:
        token, owner = secrets.token_hex(32), secrets.token_hex(32)
        with SqlServerTarget(self._where) as target:
            claim = Claim(secrets.token_hex(32), 1)  # of a target without a gate
            stage = target.create_stage(f"b_{secrets.token_hex(16)}", owner, self._layout, claim=claim)
            target.grant(stage, token)
        return stage, token

    @staticmethod
    def _require(right: bool) -> None:
        if not right:
            raise SystemExit(NOT_ALL)


def _show(loads: list[Load]) -> None:
    from rich.console import Console
    from rich.table import Table as Shown

    shown = Shown(title="Bulk load")
    for name in ("table", "step", "writers", "rows", "seconds", "rows/s", "passes"):
        shown.add_column(name, justify="left" if name in ("table", "step") else "right")
    for load in loads:
        name, step, *numbers = asdict(load).values()
        shown.add_row(name, step, *(f"{number:,}" for number in numbers))
    Console(stderr=True, width=110).print(shown)


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast rows are loaded into SQL Server.")
    parser.add_argument("--passes", type=int, default=2, help="of each step; the best counts (2)")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="all by default")
    parser.add_argument("--rows", type=int, help="rows of one writer, instead of the table's own number")
    chosen = parser.parse_args(arguments)
    lack = server.missing()
    if lack:
        parser.exit(2, f"{lack}\n")
    server.start()
    database = server.OwnDatabase()
    try:
        if database.is_standin:
            server.use_standin()
        loads = list(_measure(database, chosen.tables, chosen.rows, chosen.passes))
    finally:
        database.drop()
    if not chosen.json:
        _show(loads)
    said = {
        "schema": "dpone.benchmark-bulk-load.v1",
        "cpus": os.cpu_count(),
        "load": [round(one, 1) for one in os.getloadavg()],
        "server": "stand-in" if database.is_standin else "SQL Server",
        "loads": [asdict(load) for load in loads],
    }
    print(json.dumps(said))
    return 0


def _measure(
    database: server.OwnDatabase, names: Sequence[str], rows: int | None, passes: int
) -> Iterator[Load]:
    session = Session.open(database.where)
    installation.initialise(session, database.where.schemas)
    session.execute(f"CREATE SCHEMA {quoted(SCHEMA)};")
    session.close()
    for name in names:
        make, own_rows = TABLES[name]
        table = make(rows or own_rows)
        whole = to_target_batch(table.raw, table.layout, first_row=0)
        batches = [whole.slice(start, BATCH_ROWS) for start in range(0, whole.num_rows, BATCH_ROWS)]
        yield from Bench(database.where, table.layout, batches).measure(name, passes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
