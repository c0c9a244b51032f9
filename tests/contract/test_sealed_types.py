"""From the table to the sealed chunk: every type, every wrapper, every zone, dense and sparse, as a multiset.

What ClickHouse exports as text is compared with the files that the spool seals; both sides go through no code
in common but the engine.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.settings import Limits
from benchmarks.source_memory import SealingRun
from tests.contract.chdb_world import ChdbWorld, EngineWorld, compiled
from tests.contract.native_world import NativeWorld
from tests.contract.test_source_contract import _NO_DICTIONARY, MATRIX, WRAPPERS, as_text

ROWS = 420
COLUMNS = {
    f"c{number}": (wrapper.format(source_type), source_type)
    for number, (wrapper, source_type) in enumerate(
        (wrapper, source_type)
        for source_type in MATRIX
        for wrapper in WRAPPERS
        if not (wrapper.startswith("LowCardinality") and source_type.startswith(_NO_DICTIONARY))
    )
}


@pytest.fixture(params=[ChdbWorld, NativeWorld], ids=["chdb", "native"])
def world(request: pytest.FixtureRequest) -> Iterator[EngineWorld]:
    """A database of its own."""
    made = request.param()
    yield made
    made.drop()


def fill(world: EngineWorld, sparse: bool) -> str:
    """A table with every column; extremes and NULLs in each, in 5 % of the rows or in all."""
    world.execute("SET allow_suspicious_low_cardinality_types = 1, session_timezone = 'UTC'")
    ratio = "0.5" if sparse else "1.0"
    name = world.table(
        ", ".join(f"{column} {kind}" for column, (kind, _) in COLUMNS.items()),
        rest=f"ORDER BY tuple() SETTINGS ratio_of_defaults_for_sparse_serialization = {ratio},"
        " min_bytes_for_wide_part = 0",
    )
    values = ", ".join(_value(kind, source_type, sparse) for kind, source_type in COLUMNS.values())
    world.execute(f"INSERT INTO {name} SELECT {values} FROM numbers({ROWS})")
    return name


def _value(kind: str, source_type: str, sparse: bool) -> str:
    given = [*MATRIX[source_type][1], *(["NULL"] if "Nullable" in kind else [])]
    inner = kind.removeprefix("LowCardinality(").removesuffix(")") if kind.startswith("Low") else kind
    typed = ", ".join(f"CAST({value} AS {inner})" for value in given)
    step = "intDiv(number, 20)" if sparse else "number"
    value = f"[{typed}][{step} % {len(given)} + 1]"
    return f"if(number % 20 = 0, {value}, defaultValueOfTypeName('{_quoted(inner)}'))" if sparse else value


def _quoted(kind: str) -> str:
    return kind.replace("\\", "\\\\").replace("'", "\\'")


def canonical(text: str | None, source_type: str) -> Any:
    """Text of both sides in one form: floats as their bits."""
    if text is None or not source_type.startswith("Float"):
        return text
    return struct.pack("<f" if source_type == "Float32" else "<d", float(text))


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_the_sealed_chunks_hold_what_the_table_holds(
    world: EngineWorld, zone: str, sparse: bool, tmp_path: Path
) -> None:
    """[F1, F3, B09, B10] Exactly, duplicates included, whatever zone the user's sessions have."""
    name = fill(world, sparse)
    kinds = world.rows(
        "SELECT DISTINCT serialization_kind FROM system.parts_columns"
        f" WHERE database = '{world.database}' AND table = 't'"
    )
    assert (["Sparse"] in kinds) is sparse
    exports = ", ".join(MATRIX[source_type][2].format(c=c) for c, (_, source_type) in COLUMNS.items())
    exported = world.rows(f"SELECT {exports} FROM {name}")
    targets = {column: MATRIX[source_type][0] for column, (_, source_type) in COLUMNS.items()}
    with world.source_after(f"SET session_timezone = '{zone}'") as source:
        query, layout = compiled(source, source.describe(world.database, "t"), targets)
        run = SealingRun(tmp_path, layout, Limits(max_rows=100), keep=True)
        chunks = run.seal(source.read(query, nonce="ab" * 32, deadline=Deadline.after(60)))
    types = [source_type for _, source_type in COLUMNS.values()]
    sealed: Counter[Any] = Counter()
    with run.ports.spool as spool:
        for chunk in chunks:
            for batch in spool.read(run.chain.invocation_key, chunk, layout):
                columns = [
                    [canonical(as_text(value, kind, targets[column]), kind) for value in values.to_pylist()]
                    for column, kind, values in zip(targets, types, batch.columns, strict=True)
                ]
                sealed.update(zip(*columns, strict=True))
    expected = Counter(
        tuple(canonical(text, kind) for text, kind in zip(row, types, strict=True)) for row in exported
    )
    assert len(chunks) == 5
    assert sum(sealed.values()) == ROWS
    assert sealed == expected
