"""The benchmarks run and say what they promise to say. How fast they are is not tested."""

from __future__ import annotations

import json
import subprocess
import sys

import pyarrow.compute as pc
import pytest

from benchmarks.tables import TABLES, TEXT_LENGTHS
from tests.architecture.package_source import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """``python benchmarks/encode.py`` on a few rows."""
    command = [sys.executable, "benchmarks/encode.py", "--seconds", "0", "--rows", "40", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


def test_the_encoder_benchmark_says_rows_and_bytes_of_each_step() -> None:
    done = run()
    said = json.loads(done.stdout.splitlines()[-1])
    rates = said["rates"]
    assert [(rate["table"], rate["step"], rate["processes"]) for rate in rates] == [
        (table, *step)
        for table in ("narrow", "orders", "wide100")
        for step in (("encoder", 1), ("digest", 1), ("both", 1), ("both", 2))
    ]
    for rate in rates:
        assert rate["passes"] >= 1
        assert all(rate[name] > 0 for name in ("rows_per_sec", "cpu_rows_per_sec")), rate
    assert "wide100" in done.stderr, "the table for people"


def test_json_only_is_json_only() -> None:
    done = run("--json", "--tables", "narrow")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_the_same_each_time(name: str) -> None:
    make, _ = TABLES[name]
    assert make(60).raw.equals(make(60).raw)
    assert make(60).raw.schema.equals(make(60).layout.raw_schema)


def test_wide100_is_what_it_is_called() -> None:
    table = TABLES["wide100"][0](130)
    raw, columns = table.raw, table.layout.columns
    kinds = [column.pair.target_type for column in columns]
    assert [kinds.count(kind) for kind in dict.fromkeys(kinds)] == [25, 25, 25, 25]
    for column in (0, 30, 74, 99):
        nulls = raw[f"c{column}_null"].to_pylist()
        origin = [row - 1 if row % 13 == 12 else row for row in range(130)]
        assert nulls == [int((row + column) % 11 == 0) for row in origin]
    assert raw.slice(12, 1).to_pylist() == raw.slice(11, 1).to_pylist()
    assert set(pc.binary_length(raw["c60"]).to_pylist()) == set(TEXT_LENGTHS)
