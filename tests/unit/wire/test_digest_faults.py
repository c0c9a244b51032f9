"""The faults that a digest is for: pairs that must not collide (B73), and writers that lie (B76)."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.reference_rows import encode_row
from airflow_dpone.wire.types import WireLayout
from tests.fakes import lies
from tests.unit.wire.batches import layout, target_batch

TEXT = ("Nullable(String)", "nvarchar(20)", True)
LONG = ("Nullable(String)", "nvarchar(max)", True)
INT = ("Nullable(Int32)", "int", True)
FLOAT = ("Float64", "float(53)", False)
Side = tuple[tuple[tuple[str, str, bool], ...], list[list[Any]]]


def digest_of(side: Side) -> str:
    """The digest of some rows, the same from both encoders."""
    columns, rows = side
    of = layout(*columns)
    made = DigestSum.of_hashes(encode_rows(target_batch(rows, of), of).hashes())
    assert made == DigestSum.of_hash_iter(hashlib.sha256(encode_row(row, of)).digest() for row in rows)
    return made.digest


def texts(*rows: list[Any], of: tuple[str, str, bool] = TEXT) -> Side:
    """Rows of texts."""
    return tuple([of] * len(rows[0])), list(rows)


PAIRS: dict[str, tuple[Side, Side]] = {
    "NULL and an empty text": (texts([None]), texts([""])),
    "NULL and the word": (texts([None]), texts(["NULL"])),
    "an empty text and the word": (texts([""]), texts(["NULL"])),
    "NULL and an empty long text": (texts([None], of=LONG), texts([""], of=LONG)),
    "a cut moved between cells": (texts(["a", "bc"]), texts(["ab", "c"])),
    "a cut moved between long cells": (texts(["a", "bc"], of=LONG), texts(["ab", "c"], of=LONG)),
    "a NUL moved between cells": (texts(["a\0", "b"]), texts(["a", "\0b"])),
    "NULL moved between cells": (texts([None, "x"]), texts(["x", None])),
    "1.0 and 1 as text": (texts(["1.0"]), texts(["1"])),
    "1.0 and 1 as decimals": (
        ((("Decimal(2, 1)", "decimal(2,1)", False),), [[Decimal("1.0")]]),
        ((("Decimal(2, 0)", "decimal(2,0)", False),), [[Decimal("1")]]),
    ),
    "1.0 and 1 as numbers": (((FLOAT,), [[1.0]]), ((("Int64", "bigint", False),), [[1]])),
    ".71 and 0.71": (texts([".71"]), texts(["0.71"])),
    "a trailing blank": (texts(["a "]), texts(["a"])),
    "a trailing NUL": (texts(["a\0"]), texts(["a"])),
    "case": (texts(["Ann"]), texts(["ann"])),
    "composed and decomposed": (texts(["\u00e9"]), texts(["e\u0301"])),
    "equal columns swapped": (((INT, INT), [[1, 2]]), ((INT, INT), [[2, 1]])),
    "a column with NULL swapped": (((INT, INT), [[1, None]]), ((INT, INT), [[None, 1]])),
    "NULL and zero": (((INT,), [[None]]), ((INT,), [[0]])),
    "the signs of zero": (((FLOAT,), [[0.0]]), ((FLOAT,), [[-0.0]])),
    "one row and the same twice": (texts(["a"]), texts(["a"], ["a"])),
    "no row and an empty one": ((((TEXT),), []), texts([""])),
    "columns of two rows exchanged": (texts(["a", "b"], ["c", "d"]), texts(["a", "d"], ["c", "b"])),
    "NULL and NOT NULL framing": (((INT,), [[1]]), ((("Int32", "int", False),), [[1]])),
}


@pytest.mark.parametrize(("one", "other"), PAIRS.values(), ids=PAIRS.keys())
def test_pairs_that_must_not_collide(one: Side, other: Side) -> None:
    """B73."""
    assert digest_of(one) != digest_of(other)


def test_all_sets_of_rows_of_the_same_columns_are_apart() -> None:
    """B73 across the pairs. Equal bytes under two schemas do collide: evidence binds the layout too (D13)."""
    sides = {str(side): side for pair in PAIRS.values() for side in pair}.values()
    found: dict[Any, list[str]] = {}
    for columns, rows in sides:
        found.setdefault(columns, []).append(digest_of((columns, rows)))
    assert max(len(digests) for digests in found.values()) > 8
    assert all(len(set(digests)) == len(digests) for digests in found.values())
    zeros = ((FLOAT,), [[0.0]]), texts([""], of=LONG)
    assert digest_of(zeros[0]) == digest_of(zeros[1])


def sum_of(rows: list[lies.Row], of: WireLayout) -> DigestSum:
    """The sum that a target with these rows answers; from the sealed batch too where Arrow can hold them."""
    values = [[UUID(bytes=v) if name == "ref" else v for name, v in row.items()] for row in rows]
    summed = DigestSum.of_hash_iter(hashlib.sha256(encode_row(row, of)).digest() for row in values)
    if all(len(row["mark"]) == 5 for row in rows):
        batch = pa.RecordBatch.from_pylist(rows, schema=of.arrow_schema)
        assert DigestSum.of_hashes(encode_rows(batch, of).hashes()) == summed
    return summed


@pytest.mark.parametrize("lie", lies.LIES.values(), ids=lies.LIES.keys())
def test_every_lie_of_a_writer_changes_the_digest(lie: lies.Lie) -> None:
    """B76; B03, B24, B28, B31, B35 as what a writer did."""
    of = lies.layout()
    told = lie(lies.ROWS)
    honest, lied = sum_of(lies.ROWS, of), sum_of(told, of)
    assert repr(told) != repr(lies.ROWS)
    assert lied.digest != honest.digest
    assert sum_of(list(reversed(lies.ROWS)), of).digest == honest.digest


def test_the_count_alone_would_miss_most_of_them() -> None:
    """B76 (f): as many rows as before is no proof of anything."""
    same = [name for name, lie in lies.LIES.items() if len(lie(lies.ROWS)) == len(lies.ROWS)]
    assert "one row is dropped and another doubled" in same
    assert len(same) == len(lies.LIES) - 3
