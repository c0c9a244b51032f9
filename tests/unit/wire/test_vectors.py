"""Both encoders and the digest against the golden vectors (B01, B18, B23, B26, B31, B35, B74)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.wire.digest import ALGORITHM, DigestSum
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.reference_rows import encode_cell, encode_row
from airflow_dpone.wire.types import SqlType, WireColumn, WireLayout
from tests.unit.wire.batches import layout, pair, python_value, source_of, target_batch

VECTORS = Path(__file__).parents[3] / "companion" / "vectors"


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / name).read_text(encoding="ascii"))
    return loaded


CELLS = load("cells.json")["cells"]
ROWS = load("rows.json")["rows"]
SETS = load("digest.json")["sets"]
TYPES = sorted({(cell["type"], cell["nullable"]) for cell in CELLS})


def is_expressible(cell: dict[str, Any]) -> bool:
    """Whether Python and a source type can hold it; the others say so in their note."""
    return "note" not in cell


def has_seven_digits(cell: dict[str, Any]) -> bool:
    """Whether it is a moment that a Python datetime cannot hold."""
    return cell["type"] == "datetime2(7)" and len((cell["value"] or "").partition(".")[2]) == 7


def test_the_vectors_cover_every_framing_and_nullability() -> None:
    names = {SqlType.parse(t).name for t, _ in TYPES}
    assert names == {
        "bigint", "int", "smallint", "tinyint", "bit", "real", "float", "decimal", "date", "datetime2",
        "nvarchar", "binary", "varbinary", "uniqueidentifier",
    }  # fmt: skip
    assert {SqlType.parse(t).name for t, nullable in TYPES if not nullable} == names
    assert {t for t, _ in TYPES} >= {f"datetime2({n})" for n in range(8)} | {
        "nvarchar(max)",
        "varbinary(max)",
    }
    assert {SqlType.parse(c["type"]).name for c in CELLS if c["value"] is None} == names


def test_only_noted_vectors_are_beyond_the_sources() -> None:
    beyond = {(c["type"], c["value"]) for c in CELLS if not is_expressible(c)}
    assert beyond == {
        *((c["type"], c["value"]) for c in CELLS if has_seven_digits(c)),
        ("varbinary(9)", ""),
        ("varbinary(max)", ""),
    }


@pytest.mark.parametrize(("text", "nullable"), TYPES)
def test_reference_cells(text: str, nullable: bool) -> None:
    """B74: the bytes that every side must make, from one file."""
    sql_type = SqlType.parse(text)
    for cell in CELLS:
        if (cell["type"], cell["nullable"]) == (text, nullable) and not has_seven_digits(cell):
            value = python_value(cell["value"], sql_type)
            assert encode_cell(value, sql_type, nullable).hex() == cell["hex"], cell["value"]


@pytest.mark.parametrize(("text", "nullable"), TYPES)
def test_columnar_cells(text: str, nullable: bool) -> None:
    sql_type = SqlType.parse(text)
    by_source: dict[str, list[tuple[Any, str]]] = {}
    for cell in CELLS:
        if (cell["type"], cell["nullable"]) == (text, nullable) and is_expressible(cell):
            value = python_value(cell["value"], sql_type)
            source = source_of(sql_type, value, nullable)
            assert source is not None
            by_source.setdefault(source, []).append((value, cell["hex"]))
    assert by_source
    for source, cells in by_source.items():
        of = layout((source, text, nullable))
        encoded = encode_rows(target_batch([[value] for value, _ in cells], of), of)
        assert [encoded.row(i).hex() for i in range(len(encoded))] == [expected for _, expected in cells]


def row_layout(row: dict[str, Any]) -> tuple[WireLayout, list[Any]]:
    columns, values = [], []
    for column, text in zip(row["columns"], row["values"], strict=True):
        sql_type = SqlType.parse(column["type"])
        values.append(python_value(text, sql_type))
        source = source_of(sql_type, values[-1], column["nullable"])
        assert source is not None
        columns.append(WireColumn(column["name"], pair(source, column["type"], column["nullable"])))
    return WireLayout(tuple(columns)), values


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_rows(row: dict[str, Any]) -> None:
    of, values = row_layout(row)
    encoded = encode_rows(target_batch([values], of), of)
    assert encoded.row(0).hex() == row["hex"] == "".join(row["cells"])
    assert encode_row(values, of).hex() == row["hex"]
    assert encoded.hashes().tobytes().hex() == row["sha256"]


def test_the_published_row_hash() -> None:
    published = next(row for row in ROWS if row["name"] == "published")
    assert published["sha256"] == "59153a137993293f4f74af1a5d9256463de73372cfd75764f92080a7c0b96897"


def test_rows_that_text_forms_confuse_have_different_hashes() -> None:
    """B73: NULL, empty and 'NULL'; a cut moved between cells; blanks; case; swapped cells."""
    apart = [row["sha256"] for row in ROWS if len(row["columns"]) == 2 and row["columns"][0]["name"] == "a"]
    assert len(apart) == 9
    assert len(set(apart)) == len(apart)


@pytest.mark.parametrize("vector", SETS, ids=[vector["name"] for vector in SETS])
def test_digests(vector: dict[str, Any]) -> None:
    hashes = [hashlib.sha256(bytes.fromhex(row)).digest() for row in vector["rows"]]
    total = DigestSum.of_hash_iter(hashes)
    assert total.to_json() == {"rows": vector["count"], "limbs": vector["limbs"]}
    assert str(total.total) == vector["total"]
    assert total.digest == vector["digest"]
    assert vector["preimage"] == f'["{ALGORITHM}", {vector["count"]}, {vector["total"]}]'
    assert hashlib.sha256(vector["preimage"].encode()).hexdigest() == vector["digest"]
