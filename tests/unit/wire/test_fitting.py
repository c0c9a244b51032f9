"""The type of a new target column: exact by the matrix, and the narrowest that is."""

from __future__ import annotations

import pytest

from airflow_dpone.errors import Problem
from airflow_dpone.wire.fitting import fitting_type
from airflow_dpone.wire.matrix import SOURCES, exact_pairs, refused_sources
from airflow_dpone.wire.types import TypePair, resolve

EXPECTED = {
    "Int8": "smallint",
    "UInt8": "tinyint",
    "UInt16": "int",
    "UInt32": "bigint",
    "UInt64": "decimal(20,0)",
    "Float32": "real",
    "Float64": "float(53)",
    "Decimal(38,10)": "decimal(38,10)",
    "Decimal64(4)": "decimal(18,4)",
    "Bool": "bit",
    "String": "nvarchar(max)",
    "Enum8('a' = 1)": "nvarchar(max)",
    "FixedString(16)": "binary(16)",
    "FixedString(8000)": "binary(8000)",
    "FixedString(8001)": "varbinary(max)",
    "UUID": "uniqueidentifier",
    "Date": "date",
    "Date32": "date",
    "DateTime": "datetime2(0)",
    "DateTime('Europe/Berlin')": "datetime2(0)",
    "DateTime64(6, 'UTC')": "datetime2(6)",
    "LowCardinality(Nullable(String))": "nvarchar(max)",
}


@pytest.mark.parametrize(("source", "target"), EXPECTED.items())
def test_the_type_of_a_source_type(source: str, target: str) -> None:
    found = fitting_type("c", source)
    assert not isinstance(found, Problem)
    assert (str(found[0]), found[1]) == (target, "Nullable" in source)


@pytest.mark.parametrize("source", [s for name in SOURCES for s in (name, f"Nullable({name})")])
def test_the_matrix_admits_it(source: str) -> None:
    found = fitting_type("c", source)
    assert not isinstance(found, Problem)
    assert isinstance(resolve("c", source, str(found[0]), found[1]), TypePair)


def test_no_narrower_type_of_the_list_would_do() -> None:
    """But for text, whose length nobody knows, the first exact type of the matrix is the one."""
    for pair in exact_pairs():
        if pair.source.startswith(("String", "Enum")):
            continue
        found = fitting_type("c", pair.source)
        assert not isinstance(found, Problem)
        assert str(found[0]) == pair.targets[0], pair


@pytest.mark.parametrize("source", sorted(refused_sources()))
def test_what_is_never_delivered_gets_no_column(source: str) -> None:
    found = fitting_type("the column", source)
    assert isinstance(found, Problem)
    assert (found.code, found.where) == ("dpone.types.unsupported", "the column")
