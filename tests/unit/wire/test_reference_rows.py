"""The reference encoder refuses what a type cannot hold, and does not depend on anyone's Decimal context."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal, localcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.errors import SourceDataError
from airflow_dpone.wire.reference_rows import encode_cell, encode_row
from airflow_dpone.wire.types import SqlType
from tests.unit.wire.batches import layout


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [
        ("bigint", 2**63, "out of range"),
        ("tinyint", -1, "out of range"),
        ("tinyint", 256, "out of range"),
        ("int", True, "Python bool"),
        ("int", 1.0, "Python float"),
        ("bit", 2, "neither 0 nor 1"),
        ("real", 0.1, "more digits"),
        ("real", 1e39, "out of range"),
        ("real", 1e-39, "subnormal"),
        ("float(53)", 5e-324, "subnormal"),
        ("float(53)", math.nan, "NaN"),
        ("float(53)", -math.inf, "infinite"),
        ("decimal(4,2)", Decimal("100.00"), "precision"),
        ("decimal(4,2)", Decimal("1E+50"), "precision"),
        ("decimal(4,2)", Decimal("0.001"), "scale"),
        ("decimal(4,2)", Decimal("1E-400"), "scale"),
        ("decimal(4,2)", Decimal("NaN"), "NaN"),
        ("decimal(4,2)", 1.5, "Python float"),
        ("date", datetime(2024, 1, 1), "Python datetime"),
        ("datetime2(6)", date(2024, 1, 1), "Python date"),
        ("datetime2(6)", datetime(2024, 1, 1, tzinfo=UTC), "time zone"),
        ("datetime2(3)", datetime(2024, 1, 1, microsecond=1), "scale"),
        ("datetime2(0)", datetime(2024, 1, 1, microsecond=100_000), "scale"),
        ("nvarchar(2)", "abc", "UTF-16 units"),
        ("nvarchar(1)", "😀", "UTF-16 units"),
        ("nvarchar(max)", "\ud800", "surrogate"),
        ("nvarchar(max)", b"a", "Python bytes"),
        ("binary(3)", b"ab", "another number of bytes"),
        ("varbinary(3)", b"abcd", "more bytes"),
        ("uniqueidentifier", "00112233-4455-6677-8899-aabbccddeeff", "Python str"),
    ],
)
def test_refuses(text: str, value: Any, words: str) -> None:
    with pytest.raises(SourceDataError, match=words) as caught:
        encode_cell(value, SqlType.parse(text), True)
    assert caught.value.code == "dpone.wire.value"
    assert repr(value) not in str(caught.value)


def test_null_needs_a_nullable_column() -> None:
    with pytest.raises(SourceDataError, match="NULL in a NOT NULL"):
        encode_cell(None, SqlType.parse("bit"), False)


def test_an_error_in_a_row_names_the_column() -> None:
    of = layout(("Int32", "int", False), ("String", "nvarchar(1)", False))
    with pytest.raises(SourceDataError, match="'k1'") as caught:
        encode_row([1, "ab"], of)
    assert caught.value.fields["column"] == "k1"
    with pytest.raises(SourceDataError, match="1 values"):
        encode_row([1], of)


@pytest.mark.parametrize("context_precision", [1, 5, 28])
def test_thirty_eight_digits_in_any_context(context_precision: int) -> None:
    """B18: sign and point are no digits, and the caller's context rounds nothing."""
    top = Decimal("-9999999999999999999999999999.9999999999")
    with localcontext() as context:
        context.prec = context_precision
        cell = encode_cell(top, SqlType.parse("decimal(38,10)"), False)
    assert cell.hex() == "13260a00ffffffff3f228a097ac4865aa84c3b4b"


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38), st.integers(0, 5))
def test_a_decimal_is_its_unscaled_integer(unscaled: int, scale: int, zeros: int) -> None:
    """The same number spelled with more zeros behind the point gives the same bytes."""
    digits = tuple(int(d) for d in str(abs(unscaled))) + (0,) * zeros
    value = Decimal((int(unscaled < 0), digits, -scale - zeros))
    cell = encode_cell(value, SqlType("decimal", precision=38, scale=scale), True)
    assert cell[:3] == bytes((19, 38, scale))
    assert int.from_bytes(cell[4:], "little") * (1 if cell[3] else -1) == unscaled


def test_negative_zero() -> None:
    """A decimal has none, a float keeps it (B21)."""
    assert encode_cell(Decimal("-0.00"), SqlType.parse("decimal(4,2)"), False).hex()[:8] == "13040201"
    assert encode_cell(-0.0, SqlType.parse("float"), False).hex() == "0000000000000080"


def test_integers_where_a_reader_gives_them() -> None:
    assert encode_cell(126, SqlType.parse("decimal(10,4)"), True).hex() == "130a0401e03913" + "00" * 13
    assert encode_cell(1, SqlType.parse("bit"), False) == encode_cell(True, SqlType.parse("bit"), True)
