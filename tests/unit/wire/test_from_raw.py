"""From raw values to target types: exact, or the first bad value by column and row."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_dpone.errors import SourceDataError
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.types import RawForm, WireLayout
from tests.unit.wire.batches import PAIRS, layout, layouts_with_rows, raw_batch, raw_of, sliced, target_batch

LOW, MASK = 2**64 - 1, "c0_null"


def converted(source: str, target: str, values: list[Any], **more: list[Any]) -> list[Any]:
    of = layout((source, target, True))
    batch = to_target_batch(raw_batch({"c0": values, **more}, of), of, first_row=0)
    batch.validate(full=True)
    assert batch.schema.equals(of.arrow_schema, check_metadata=True)
    cells: list[Any] = batch.column(0).to_pylist()
    return cells


def refused(source: str, target: str, values: list[Any], **more: list[Any]) -> SourceDataError:
    with pytest.raises(SourceDataError) as caught:
        converted(source, target, values, **more)
    return caught.value


@settings(max_examples=150)
@given(layouts_with_rows(), st.booleans(), st.integers(0, 3), st.integers(0, 3))
def test_every_value_arrives(
    case: tuple[WireLayout, list[list[Any]]], large: bool, before: int, after: int
) -> None:
    """Any layout, garbage under every NULL, slices with offsets, both widths of binary."""
    of, rows = case
    made = to_target_batch(sliced(raw_of(rows, of, large=large), before, after), of, first_row=0)
    made.validate(full=True)
    assert made.equals(target_batch(rows, of))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_nothing_under_a_mask_is_kept(source: str, target: str) -> None:
    """What stands under a NULL must not reach the sealed bytes either: it is zero or empty there."""
    of = layout((f"Nullable({source})", target, True))
    made = to_target_batch(raw_of([[None]] * 5, of), of, first_row=0).column(0)
    assert made.null_count == 5
    buffers = made.buffers()
    assert set(bytes(buffers[1])) <= {0}
    assert not any(map(len, buffers[2:]))


def test_every_form_is_tested() -> None:
    forms = {layout((source, target, True)).columns[0].pair.raw_form for source, target in PAIRS}
    assert forms == set(RawForm)


def test_unsigned_64_bit() -> None:
    """B15: no sign bit is ever read into a UInt64."""
    extremes = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    assert converted("UInt64", "decimal(20,0)", extremes) == [Decimal(n) for n in extremes]


@pytest.mark.parametrize("scale", range(7))
def test_ticks_of_every_scale(scale: int) -> None:
    """B03, B06, B07: the unit is the source's scale; years far from 1970 stay exact."""
    per_second = 10**scale
    low, high = -62_135_596_800 * per_second, 253_402_300_800 * per_second - 1
    ticks = [low, -per_second - 1, -1, 0, 1, 1_705_314_645 * per_second, high]
    found = converted(f"DateTime64({scale})", f"datetime2({scale})", ticks)
    for tick, moment in zip(ticks, found, strict=True):
        since = moment - datetime(1970, 1, 1)
        micros = (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
        assert micros == tick * 10 ** (6 - scale)
    for outside in (low - 1, high + 1, -(2**63), 2**63 - 1):
        fault = refused(f"DateTime64({scale})", f"datetime2({scale})", [0, outside])
        assert (fault.code, fault.fields["row"]) == ("dpone.source.range", 1)


def test_named_moments() -> None:
    """B07: none of these may land in another century."""
    moments = [
        datetime(1925, 1, 1),
        datetime(1969, 12, 31, 23, 59, 59, 123000),
        datetime(2299, 12, 31, 23, 59, 59, 999000),
    ]
    ticks = [-1_420_070_400_000, -877, 10_413_791_999_999]
    assert converted("DateTime64(3, 'UTC')", "datetime2(3)", ticks) == moments


def test_epoch_seconds_ignore_the_zone() -> None:
    """B09, B10: the number is UTC whatever zone the column displays."""
    expected = [datetime(1970, 1, 1), datetime(2106, 2, 7, 6, 28, 15)]
    for source in ("DateTime", "DateTime('Asia/Kolkata')", "DateTime('America/Chicago')"):
        assert converted(source, "datetime2(0)", [0, 2**32 - 1]) == expected


def test_days() -> None:
    assert converted("Date", "date", [0, 65_535]) == [date(1970, 1, 1), date(2149, 6, 6)]
    days = [-719_162, -25_567, -1, 0, 120_529, 2_932_896]
    assert converted("Date32", "date", days)[0::5] == [date(1, 1, 1), date(9999, 12, 31)]
    assert converted("Date32", "date", days)[1:5:3] == [date(1900, 1, 1), date(2299, 12, 31)]
    for outside in (-719_163, 2_932_897, -(2**31)):
        assert refused("Date32", "date", [outside]).code == "dpone.source.range"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("Decimal(4, 2)", "decimal(4,2)"),
        ("Decimal(9, 9)", "decimal(9,9)"),
        ("Decimal(18, 4)", "decimal(18,4)"),
        ("Decimal(19, 0)", "decimal(19,0)"),
        ("Decimal(30, 2)", "decimal(30,2)"),
        ("Decimal(38, 38)", "decimal(38,38)"),
    ],
)
def test_decimal_limits(source: str, target: str) -> None:
    """B18: all nines pass, one more is refused, although the carrier could hold it."""
    pair = layout((source, target, True)).columns[0].pair
    precision, scale = pair.source.numbers
    wide = pair.raw_form is RawForm.DECIMAL128

    def columns(numbers: list[int]) -> tuple[list[int], dict[str, list[int]]]:
        if not wide:
            return numbers, {}
        return [n & LOW for n in numbers], {"c0_hi": [n >> 64 for n in numbers]}

    top = 10**precision - 1
    values, more = columns([0, 1, -1, top, -top])
    found = converted(source, target, values, **more)
    assert [unscaled(value, scale) for value in found] == [0, 1, -1, top, -top]
    for outside in (top + 1, -top - 1):
        values, more = columns([0, outside])
        fault = refused(source, target, values, **more)
        assert (fault.code, fault.fields["row"]) == ("dpone.source.decimal", 1)


def unscaled(value: Decimal, scale: int) -> int:
    """The integer of a decimal, without a context that could round."""
    sign, digits, exponent = value.as_tuple()
    assert exponent == -scale
    return int("".join(map(str, digits))) * (-1 if sign else 1)


def test_a_narrow_decimal_in_a_wide_target() -> None:
    """The target's precision decides: the carrier's extremes fit there."""
    assert converted("Decimal(9, 0)", "decimal(38,0)", [-(2**31), 2**31 - 1]) == [-(2**31), 2**31 - 1]
    assert converted("Decimal(18, 0)", "decimal(19,0)", [-(2**63), 2**63 - 1]) == [-(2**63), 2**63 - 1]


@pytest.mark.parametrize("bound", [-(2**127), 2**127 - 1, 2**64 * 5 * 10**18, -(2**64)])
def test_both_halves_of_a_wide_decimal_count(bound: int) -> None:
    of = layout(("Decimal(38, 0)", "decimal(38,0)", True))
    raw = raw_batch({"c0": [bound & LOW], "c0_hi": [bound >> 64]}, of)
    if abs(bound) < 10**38:
        assert to_target_batch(raw, of, first_row=0).column(0).to_pylist() == [Decimal(bound)]
    else:
        with pytest.raises(SourceDataError, match="more than 38 digits"):
            to_target_batch(raw, of, first_row=0)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (float("nan"), "dpone.source.nan"),
        (float("inf"), "dpone.source.infinite"),
        (float("-inf"), "dpone.source.infinite"),
        (5e-324, "dpone.source.subnormal"),
        (-2.2250738585072009e-308, "dpone.source.subnormal"),
    ],
)
def test_floats_that_sql_server_does_not_hold(value: float, code: str) -> None:
    """B21: stopped by name before any target sees them."""
    fault = refused("Float64", "float(53)", [0.0, 1.0, value, value])
    assert (fault.code, fault.fields["row"], fault.fields["column"]) == (code, 2, "k0")


def test_floats_at_the_limits() -> None:
    """B21: the largest, the smallest normal, and the sign of zero arrive bit by bit."""
    of = layout(("Float64", "float(53)", True))
    values = [1.7976931348623157e308, -1.7976931348623157e308, 2.2250738585072014e-308, 0.0, -0.0, 0.087]
    made = to_target_batch(raw_batch({"c0": values}, of), of, first_row=0)
    assert bytes(made.column(0).buffers()[1]) == np.array(values).tobytes()


def test_floats_of_32_bits() -> None:
    """A subnormal of 32 bits is refused for real and is a normal number in float(53)."""
    tiny, smallest = 2.0**-149, 2.0**-126
    assert refused("Float32", "real", [smallest, tiny]).code == "dpone.source.subnormal"
    assert refused("Float32", "real", [float("inf")]).code == "dpone.source.infinite"
    assert converted("Float32", "real", [smallest, -smallest]) == [smallest, -smallest]
    assert converted("Float32", "float(53)", [tiny, 1.5]) == [tiny, 1.5]
    assert refused("Float32", "float(53)", [float("nan")]).code == "dpone.source.nan"


def test_text_is_strict_utf8() -> None:
    """B30: nothing is replaced; a NUL is a character like any other."""
    good = ["", "\x00", "\x00\x00x\x00", "значение", "\u2160 \u2161", "Test 1 2 3 😂  foo bar", "a "]
    assert converted("String", "nvarchar(max)", [t.encode() for t in good]) == good
    for bad in (b"a\xffb", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff"):
        fault = refused("String", "nvarchar(max)", [b"ok"] * 5 + [bad, b"\xff", b"ok"])
        assert (fault.code, fault.fields["row"]) == ("dpone.source.utf8", 5)


@given(st.integers(0, 40), st.integers(0, 40))
def test_the_first_text_that_is_not_utf8(position: int, second: int) -> None:
    values = [b"x"] * 41
    values[position] = values[second] = b"\xc3"
    assert refused("String", "nvarchar(max)", values).fields["row"] == min(position, second)


def test_half_a_character_is_not_completed_by_the_next_row() -> None:
    assert refused("String", "nvarchar(max)", [b"a", b"\xd0", b"\x91"]).fields["row"] == 1


def test_length_in_utf16_units() -> None:
    """B26: 50 emoji fill nvarchar(100), 51 do not fit."""
    full = ["😂" * 50, "ё" * 100, "a" * 100, "", "x😂" * 33]
    assert converted("String", "nvarchar(100)", [t.encode() for t in full]) == full
    for long in ("😂" * 51, "ё" * 101, "a" * 101, "x" + "😂" * 50):
        fault = refused("String", "nvarchar(100)", [t.encode() for t in [*full, long, long]])
        assert (fault.code, fault.fields["row"]) == ("dpone.source.too_long", len(full))
        assert long not in str(fault)


def test_a_long_text_before_an_invalid_one_comes_first() -> None:
    assert refused("String", "nvarchar(2)", [b"ab", b"abc", b"\xff"]).code == "dpone.source.too_long"
    assert refused("String", "nvarchar(2)", [b"ab", b"\xff", b"abc"]).code == "dpone.source.utf8"


def test_enum_labels() -> None:
    """B33: the label, never the number."""
    source = "Enum8('a' = 1, 'long label' = -2)"
    assert converted(source, "nvarchar(10)", [b"a", b"long label"]) == ["a", "long label"]
    fault = refused(source, "nvarchar(5)", [b"a", b"long label"])
    assert (fault.code, fault.fields["row"]) == ("dpone.source.too_long", 1)


@pytest.mark.parametrize("target", ["binary(5)", "varbinary(9)", "varbinary(max)"])
@pytest.mark.parametrize("nullable", [False, True])
def test_fixed_bytes_keep_every_nul(target: str, nullable: bool) -> None:
    """B31: numpy and pa.array would cut these."""
    values = [b"abc\0\0", b"\0\0\0\0\0", b"\0\0x\0\0", b"\xff" * 5]
    source = "Nullable(FixedString(5))" if nullable else "FixedString(5)"
    assert converted(source, target, values) == values
    for wrong in (b"abc", b"", b"abcdef"):
        fault = refused(source, target, [values[0], wrong])
        assert (fault.code, fault.fields["row"]) == ("dpone.source.raw_value", 1)


def test_uuid_bytes() -> None:
    """B34, B35: the order of the text, leading zeros kept, also where some are NULL."""
    guids = [UUID("00112233-4455-6677-8899-aabbccddeeff"), UUID("9c0c9eed-feac-474e-9ad7-c5b9280424d1")]
    raw = [g.bytes for g in guids]
    assert converted("UUID", "uniqueidentifier", raw) == raw
    found = converted("Nullable(UUID)", "uniqueidentifier", [raw[0], b"", raw[1]], c0_null=[0, 1, 0])
    assert found == [raw[0], None, raw[1]]


def test_bool() -> None:
    assert converted("Bool", "bit", [0, 1, 1, 0, 1, 0, 0, 1, 1]) == [
        n == 1 for n in (0, 1, 1, 0, 1, 0, 0, 1, 1)
    ]
    assert refused("Bool", "bit", [1, 2]).code == "dpone.source.raw_value"


def test_the_first_bad_row_wins_then_the_first_column() -> None:
    of = layout(("Float64", "float(53)", True), ("String", "nvarchar(2)", True), ("Date32", "date", True))

    def fault(floats: list[float], texts: list[bytes], days: list[int]) -> tuple[str, str, int]:
        with pytest.raises(SourceDataError) as caught:
            to_target_batch(raw_batch({"c0": floats, "c1": texts, "c2": days}, of), of, first_row=1000)
        error = caught.value
        return error.code, error.fields["column"], error.fields["row"]

    nan, far = float("nan"), 2**31 - 1
    assert fault([1, 1, nan], [b"", b"abc", b""], [0, 0, far]) == ("dpone.source.too_long", "k1", 1001)
    assert fault([1, 1, nan], [b"", b"", b"abc"], [0, 0, far]) == ("dpone.source.nan", "k0", 1002)
    assert fault([1, 1, nan], [b"", b"", b"abc"], [far, 0, 0]) == ("dpone.source.range", "k2", 1000)


def test_messages_name_column_and_row_but_no_value() -> None:
    error = refused("String", "nvarchar(3)", [b"abc", b"secret"])
    assert "Column 'k0', row 1" in str(error)
    assert "secret" not in str(error)
    assert error.retry == "never"


def test_a_mask_is_zero_or_one() -> None:
    fault = refused("Nullable(Int32)", "int", [1, 2], c0_null=[0, 2])
    assert (fault.code, fault.fields["row"]) == ("dpone.source.raw_value", 1)


@pytest.mark.parametrize("column", ["c0", MASK])
def test_no_arrow_nulls_in_the_raw_projection(column: str) -> None:
    """An Arrow null is a NULL that nobody asked for; it must not become a value or a second kind of NULL."""
    of = layout(("Nullable(Int32)", "int", True))
    raw = raw_batch({"c0": [1, 2], MASK: [0, 0], column: [0, None]}, of)
    with pytest.raises(SourceDataError, match="row 1: an Arrow null"):
        to_target_batch(raw, of, first_row=0)


def test_other_columns_than_planned() -> None:
    of = layout(("Int32", "int", True), ("Nullable(DateTime64(3))", "datetime2(3)", True))
    good = raw_batch({"c0": [1], "c1": [2]}, of)
    fields = list(good.schema)

    def refusal(arrays: list[pa.Array], fields: list[pa.Field]) -> SourceDataError:
        with pytest.raises(SourceDataError) as caught:
            to_target_batch(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), of, first_row=0)
        assert caught.value.code == "dpone.source.raw_schema"
        return caught.value

    assert "2 columns, planned are 3" in str(refusal(good.columns[:2], fields[:2]))
    wide = [*good.columns[:1], good.column(1).cast(pa.timestamp("ms")), good.column(2)]
    error = refusal(wide, [fields[0], pa.field("c1", pa.timestamp("ms")), fields[2]])
    assert error.fields["column"] == "k1"
    assert "timestamp[ms], planned is c1 int64" in str(error)
    assert refusal(good.columns, [fields[0], pa.field("x", pa.int64()), fields[2]]).fields["column"] == "k1"
    narrow = refusal(
        [good.column(0).cast(pa.int16()), *good.columns[1:]], [pa.field("c0", pa.int16()), *fields[1:]]
    )
    assert narrow.fields["column"] == "k0"


def test_a_dictionary_is_not_taken_for_text() -> None:
    """B32: LowCardinality must arrive plain."""
    of = layout(("LowCardinality(String)", "nvarchar(max)", True))
    words = pa.array([b"a", b"b"], type=pa.binary()).dictionary_encode()
    with pytest.raises(SourceDataError, match="dictionary"):
        to_target_batch(pa.RecordBatch.from_arrays([words], names=["c0"]), of, first_row=0)


def test_no_rows() -> None:
    of = layout(*[(f"Nullable({source})", target, True) for source, target in PAIRS])
    made = to_target_batch(raw_of([], of), of, first_row=0)
    assert made.num_rows == 0
    assert made.schema.equals(of.arrow_schema, check_metadata=True)


@pytest.mark.parametrize("large", [False, True])
def test_text_between_masked_garbage(large: bool) -> None:
    """Only the bytes of rows that are not NULL are carried on."""
    of = layout(("Nullable(String)", "nvarchar(4)", True))
    raw = raw_batch(
        {"c0": [b"\xff", b"ab", b"garbage", b"", "😀".encode(), b"\xc3"], "c0_null": [1, 0, 1, 0, 0, 1]},
        of,
        large=large,
    )
    made = to_target_batch(sliced(raw, 2, 1), of, first_row=0).column(0)
    made.validate(full=True)
    assert made.to_pylist() == [None, "ab", None, "", "😀", None]
    assert bytes(made.buffers()[2]) == "ab😀".encode()
