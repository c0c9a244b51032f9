"""How fast rows are encoded and hashed on this machine.

    python benchmarks/encode.py [--seconds N] [--json] [--tables NAME ...]

For each table: the encoder (raw rows to target-typed rows to row bytes), the digest (one SHA-256 per row, and
their sum) and both, in one process; then both with two encoding processes. Each is repeated for N seconds,
and the best pass counts. ``cpu`` rates divide by the processor time of all processes: other programs change
them less than the plain rates, which are by the clock. MB are millions of encoded bytes.

The table for people goes to standard error, JSON is the last line of standard output (``--json``: nothing
else is printed). Nothing here passes or fails: a measurement is no test.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa

from airflow_dpone.delivery.chunk_cutter import pieces_of
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.encoder import Encoder, InlineEncoder, ParallelEncoder
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.native_rows import EncodedRows, encode_rows
from benchmarks.tables import TABLES, Table

PROCESSES = 2


@dataclass(frozen=True)
class Spent:
    """One pass: seconds by the clock, and of processor time in all processes that took part."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Rate:
    """What one step does in a second."""

    table: str
    step: str
    processes: int
    rows_per_sec: int
    mb_per_sec: float
    cpu_rows_per_sec: int
    cpu_mb_per_sec: float
    passes: int


def measure(table: Table, seconds: float) -> list[Rate]:
    """Every step of one table, for about so many seconds each."""
    pieces = [table.raw.slice(start, length) for start, length in pieces_of(table.raw)]
    encoded = _encode(pieces, table)
    encoded_bytes = sum(int(one.offsets[-1]) for one in encoded)
    inline, parallel = InlineEncoder(table.layout), _started(table, pieces[0])
    try:
        steps: list[tuple[str, int, list[Spent]]] = [
            ("encoder", 1, _repeat(lambda: _encode(pieces, table), [], seconds)),
            ("digest", 1, _repeat(lambda: _digest(encoded), [], seconds)),
            ("both", 1, _repeat(lambda: _run(inline, pieces), [], seconds)),
            ("both", PROCESSES, _repeat(lambda: _run(parallel, pieces), parallel.pids, seconds)),
        ]
    finally:
        parallel.close()
    return [_rate(table, step, processes, encoded_bytes, spent) for step, processes, spent in steps]


def _encode(pieces: Sequence[pa.RecordBatch], table: Table) -> list[EncodedRows]:
    return [encode_rows(to_target_batch(piece, table.layout, first_row=0), table.layout) for piece in pieces]


def _digest(encoded: Sequence[EncodedRows]) -> str:
    return sum((DigestSum.of_hashes(one.hashes()) for one in encoded), DigestSum.zero()).digest


def _run(encoder: Encoder, pieces: Sequence[pa.RecordBatch]) -> str:
    """What an extraction does with its pieces, but for the sealing."""
    total, rows = DigestSum.zero(), 0
    for piece in pieces:
        for ready in encoder.put(piece, first_row=rows):
            total += DigestSum.of_hashes(ready.hashes)
        rows += piece.num_rows
    return sum((DigestSum.of_hashes(ready.hashes) for ready in encoder.rest()), total).digest


def _started(table: Table, piece: pa.RecordBatch) -> ParallelEncoder:
    """Its processes have imported everything and have touched their memory."""
    encoder = ParallelEncoder(table.layout, PROCESSES, start_rows=0)
    _run(encoder, [piece] * PROCESSES)
    return encoder


def _repeat(work: Callable[[], object], pids: list[int], seconds: float) -> list[Spent]:
    spent: list[Spent] = []
    end = time.perf_counter() + seconds
    while not spent or time.perf_counter() < end:
        wall, cpu = time.perf_counter(), _cpu_seconds(pids)
        work()
        spent.append(Spent(time.perf_counter() - wall, _cpu_seconds(pids) - cpu))
    return spent


def _cpu_seconds(pids: list[int]) -> float:
    return time.process_time() + sum(map(_cpu_seconds_of, pids))


def _cpu_seconds_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rate(table: Table, step: str, processes: int, encoded_bytes: int, spent: list[Spent]) -> Rate:
    wall = min(one.wall for one in spent)
    # The kernel counts a child's time in steps of 10 ms, too coarse for one pass.
    cpu = sum(one.cpu for one in spent) / len(spent) if processes > 1 else min(one.cpu for one in spent)
    rows, megabytes, cpu = table.raw.num_rows, encoded_bytes / 1e6, max(cpu, 1e-6)
    return Rate(
        table.name,
        step,
        processes,
        int(rows / wall),
        round(megabytes / wall, 1),
        int(rows / cpu),
        round(megabytes / cpu, 1),
        len(spent),
    )


def _show(rates: list[Rate]) -> None:
    from rich.console import Console
    from rich.table import Table as Shown

    shown = Shown(title="Encoder and digest")
    for name in ("table", "step", "processes", "rows/s", "MB/s", "rows/s cpu", "MB/s cpu", "passes"):
        shown.add_column(name, justify="left" if name in ("table", "step") else "right")
    for rate in rates:
        name, step, *numbers = asdict(rate).values()
        shown.add_row(name, step, *(f"{number:,}" for number in numbers))
    Console(stderr=True, width=110).print(shown)


def main(arguments: Sequence[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How fast rows are encoded and hashed on this machine.")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each step of each table (3)")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="all by default")
    parser.add_argument("--rows", type=int, help="rows of one pass, instead of the table's own number")
    chosen = parser.parse_args(arguments)
    rates: list[Rate] = []
    for name in chosen.tables:
        make, rows = TABLES[name]
        rates += measure(make(chosen.rows or rows), chosen.seconds)
    if not chosen.json:
        _show(rates)
    load = [round(one, 1) for one in os.getloadavg()]
    said = {
        "schema": "dpone.benchmark-encode.v1",
        "cpus": os.cpu_count(),
        "load": load,
        "rates": [asdict(rate) for rate in rates],
    }
    print(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
