"""How much memory an extraction from a ClickHouse server takes, and how fast it is.

    python benchmarks/source_memory.py [--rows N] [--server HOST:PORT] [--json]

A window of N rows and one of ten times as many are read, encoded, hashed and sealed, each by a process of its
own. ``peak growth`` is the greatest resident memory (VmHWM of Linux) above what the process held when all was
imported and 100,000 rows had been read. The default N gives more than 256 MB of encoded bytes. Without
``--server`` the test server of this repository serves ClickHouse's engine; the named server must let the
default user make the database ``dpone_benchmark``. Sealed files are removed as soon as they are sealed.

JSON is the last line of standard output. Nothing here passes or fails: a measurement is no test.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa

from airflow_dpone.delivery.chunk_cutter import ChunkCutter
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.records import SealedChunk
from airflow_dpone.delivery.window import Window
from airflow_dpone.settings import Limits
from airflow_dpone.source_clickhouse.address import ServerAddress
from airflow_dpone.source_clickhouse.query_settings import EMBEDDED_OWN
from airflow_dpone.source_clickhouse.reader import DriverSession, ServerSource
from airflow_dpone.spool.local import LocalSpool
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve

ROOT = Path(__file__).resolve().parent.parent
DATABASE = "dpone_benchmark"
COLUMNS = {
    # name: (ClickHouse, SQL Server, value of row `number`)
    "id": ("Int64", "bigint", "number"),
    "at": ("DateTime64(6)", "datetime2(6)", "toDateTime64(1735689600 + number / 1000, 6, 'UTC')"),
    "price": ("Decimal(38, 10)", "decimal(38,10)", "toDecimal128(number, 10)"),
    "rate": ("Nullable(Float64)", "float(53)", "if(number % 11 = 0, NULL, number / 7)"),
    "note": ("Nullable(String)", "nvarchar(max)", "if(number % 7 = 0, NULL, repeat('ab', number % 64))"),
    "kind": ("LowCardinality(String)", "nvarchar(20)", "toString(number % 100)"),
}
DEFAULT_ROWS = 2_200_000
WARM_ROWS = 100_000


def fill(address: ServerAddress, rows: int) -> None:
    """A table with so many rows, made by the server."""
    session = DriverSession(address)
    session.open()
    try:
        session.rows(f"CREATE DATABASE IF NOT EXISTS {DATABASE} ENGINE = Atomic")
        columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in COLUMNS.items())
        session.rows(f"DROP TABLE IF EXISTS {DATABASE}.t SYNC")
        session.rows(f"CREATE TABLE {DATABASE}.t ({columns}) ENGINE = MergeTree ORDER BY id")
        values = ", ".join(value for *_, value in COLUMNS.values())
        session.rows(f"INSERT INTO {DATABASE}.t SELECT {values} FROM numbers({rows})")  # noqa: S608
    finally:
        session.close()


class _Source(ServerSource):
    """The engine behind the test server changes some settings and shows no row policies."""

    own_settings = EMBEDDED_OWN
    capabilities = {"row_policies": "absent"}  # noqa: RUF012


def _layout() -> WireLayout:
    columns = []
    for name, (source, target, _) in COLUMNS.items():
        pair = resolve(name, source, target, True)
        if not isinstance(pair, TypePair):
            raise TypeError(pair)
        columns.append(WireColumn(name, pair))
    return WireLayout(tuple(columns))


class SealingRun:
    """What the cutter needs of a delivery: limits, a layout, a spool.

    :param keep: leave the sealed files; otherwise they go as soon as they are sealed.
    """

    def __init__(self, root: Path, layout: WireLayout, limits: Limits, *, keep: bool) -> None:
        self.frozen = SimpleNamespace(limits=limits, layout=layout)
        self._root, self._keep = root, keep
        spool = LocalSpool(str(root / "spool"), host_id="benchmark")
        self.ports = SimpleNamespace(spool=spool, writer=SimpleNamespace(chunk_format="arrow_ipc"))
        self.chain = SimpleNamespace(invocation_key="ab" * 32)
        self.encoded_bytes = 0

    def record(self, *events: Any) -> None:
        """A chunk was sealed."""
        for _, payload in events:
            self.encoded_bytes += payload["encoded_bytes"]
        if not self._keep:
            for file in (self._root / "spool").rglob("*.arrow"):
                file.unlink()

    def progress(self, *_: Any) -> None:
        """Nobody looks."""

    def seal(self, batches: Iterator[pa.RecordBatch]) -> list[SealedChunk]:
        """Encodes, hashes and seals all rows."""
        with self.ports.spool:
            cutter = ChunkCutter(self, 1)  # type: ignore[arg-type]
            try:
                for batch in batches:
                    cutter.add(batch)
                return cutter.finish()
            finally:
                cutter.close()


def extract(address: ServerAddress, below: int, root: Path) -> dict[str, Any]:
    """Reads, encodes, hashes and seals the rows with smaller ids."""
    layout = _layout()
    run = SealingRun(root, layout, Limits(), keep=False)
    with _Source(address) as source:
        table = source.describe(DATABASE, "t")
        whole = source.compile(table, layout, list(COLUMNS), None, Window.full())
        query = replace(whole, predicate=f"id < {below}", text=f"{whole.text}\nWHERE id < {below}")
        chunks = run.seal(source.read(query, nonce="ab" * 32, deadline=Deadline.after(3_600)))
    return {"rows": sum(chunk.rows for chunk in chunks), "encoded_bytes": run.encoded_bytes}


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this system does not tell {field}")


def in_this_process(address: ServerAddress, rows: int) -> dict[str, Any]:
    """One extraction, after a warm one."""
    with tempfile.TemporaryDirectory(prefix="dpone-benchmark-") as scratch:
        extract(address, WARM_ROWS, Path(scratch))
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        started = time.monotonic()
        done = extract(address, rows, Path(scratch))
        seconds = time.monotonic() - started
    done["seconds"] = round(seconds, 2)
    done["rows_per_sec"] = int(done["rows"] / seconds)
    done["base_bytes"], done["peak_growth_bytes"] = before, _memory("VmHWM") - before
    return done


def measured(address: ServerAddress, rows: int) -> dict[str, Any]:
    """One extraction in a process of its own, from a table that has at least so many rows."""
    command = [sys.executable, __file__, "--child", "--rows", str(rows), "--server", str(address)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(ran.stderr[-2000:])
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main() -> None:
    """See the head of the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--server", metavar="HOST:PORT")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.server:
        host, _, port = given.server.rpartition(":")
        address = ServerAddress(host, int(port))
        if given.child:
            print(json.dumps(in_this_process(address, given.rows)))
            return
        _compare(address, given.rows, given.json)
        return
    program = ROOT / "tests" / "servers" / "native_server.py"
    with tempfile.TemporaryDirectory(prefix="dpone-benchmark-") as scratch:
        command = [sys.executable, str(program), "--directory", str(Path(scratch, "engine"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, cwd=scratch, **pipes) as server:  # type: ignore[call-overload]
            port = int(server.stdout.readline().split()[1])
            _compare(ServerAddress("127.0.0.1", port), given.rows, given.json)
            server.stdin.close()


def _compare(address: ServerAddress, rows: int, only_json: bool) -> None:
    fill(address, 10 * rows)
    windows = [measured(address, size) for size in (rows, 10 * rows)]
    if not only_json:
        for one in windows:
            size, base, peak = (one[f"{name}_bytes"] / 1e6 for name in ("encoded", "base", "peak_growth"))
            text = f"{one['rows']:>12,} rows {size:>9.1f} MB {one['rows_per_sec']:>9,} rows/s"
            print(f"{text}  {base:>7.1f} MB before {peak:>7.1f} MB peak growth", file=sys.stderr)
    print(json.dumps({"windows": windows}))


if __name__ == "__main__":
    main()
