"""The very values that went wrong in other tools, as bytes or as a refusal.

The ids are listed in tests/architecture/test_known_faults.py.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from airflow_dpone.errors import Problem, SourceDataError
from airflow_dpone.source_clickhouse.statements import projection_of
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.types import WireLayout, resolve
from tests.unit.wire.batches import layout, pair, raw_batch, raw_of


def sent(of: WireLayout, *rows: list[Any]) -> list[str]:
    """Rows on the whole way: raw projection, target types, bytes."""
    encoded = encode_rows(to_target_batch(raw_of(rows, of), of, first_row=0), of)
    return [encoded.row(i).hex() for i in range(len(rows))]


def refusal(source: str, target: str) -> str:
    found = resolve("c", source, target, True)
    assert isinstance(found, Problem), found
    return found.code


# ---- date and time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["DateTime64(6)", "Nullable(DateTime64(6))"])
@pytest.mark.parametrize(("nullable", "prefix"), [(True, "08"), (False, "")], ids=["NULL", "NOT NULL"])
def test_the_four_pairs_store_the_same_moment(source: str, nullable: bool, prefix: str) -> None:
    """B01: a text follows, so that a shifted stream would show. Nullable into NOT NULL needs the option."""
    if source.startswith("Nullable") and not nullable:
        found = resolve("c", source, "datetime2(6)", False)
        assert isinstance(found, Problem)
        assert found.code == "dpone.types.nullability"
    of = layout(
        (source, "datetime2(6)", nullable), ("String", "nvarchar(20)", nullable), fail_on_null=not nullable
    )
    moment = datetime(1900, 1, 1, 0, 0, 0, 999_999)
    assert sent(of, [moment, "shift"]) == [f"{prefix}76969800005b950a0a00{'shift'.encode('utf-16-le').hex()}"]


def test_the_unit_of_a_moment_is_the_source_types_scale() -> None:
    """B03: one moment in three scales and every target that may take it: equal bytes where they are equal."""
    whole, fraction = datetime(2024, 1, 15, 10, 30, 45), datetime(2024, 1, 15, 10, 30, 45, 123_000)
    for scale, moment in ((0, whole), (3, fraction), (6, fraction)):
        ticks = ((10 * 60 + 30) * 60 + 45) * 10**7 + (moment.microsecond * 10)
        bytes_ = ticks.to_bytes(5, "little") + (moment.toordinal() - 1).to_bytes(3, "little")
        for target in range(8):
            name = f"datetime2({target})"
            if target < scale:
                assert refusal(f"DateTime64({scale})", name) == "dpone.types.scale"
            else:
                of = layout((f"DateTime64({scale})", name, False))
                assert sent(of, [moment]) == [bytes_.hex()]
    assert refusal("DateTime64(9)", "datetime2(7)") == "dpone.types.unsupported"


def test_a_coarser_target_is_refused_whatever_the_values_are() -> None:
    """B04: no rule about values that happen to divide, so no row is ever half way in."""
    for scale in range(6):
        assert refusal("DateTime64(6)", f"datetime2({scale})") == "dpone.types.scale"


def test_legacy_datetime_is_refused() -> None:
    """B02: it would round to its own tick."""
    for target in ("datetime", "smalldatetime"):
        assert refusal("DateTime64(3)", target) == "dpone.types.unsupported"


def test_nanoseconds_are_refused_and_wide_years_never_pass_through_them() -> None:
    """B06: int64 nanoseconds end in 2262; microseconds go on."""
    for scale in (7, 8, 9):
        assert refusal(f"DateTime64({scale}, 'UTC')", "datetime2(7)") == "dpone.types.unsupported"
    of = layout(("DateTime64(6)", "datetime2(6)", False))
    moments = [datetime(2262, 4, 11, 23, 47, 16, 854_775), datetime(2262, 4, 11, 23, 47, 16, 854_776)]
    moments += [datetime(2299, 12, 31), datetime(2299, 12, 31, 23, 59, 59, 999_999)]
    made = to_target_batch(raw_of([[m] for m in moments], of), of, first_row=0)
    assert made.column(0).to_pylist() == moments
    assert len(set(sent(of, *[[m] for m in moments]))) == len(moments)


def test_the_first_and_the_last_day() -> None:
    """B13: 0001-01-01 is day 0, 9999-12-31 day 3652058, in dates and in moments of every scale."""
    assert sent(layout(("Date32", "date", False)), [datetime(1, 1, 1).date()]) == ["000000"]
    assert sent(layout(("Date32", "date", False)), [datetime(9999, 12, 31).date()]) == ["dab937"]
    for scale in range(7):
        last = datetime(9999, 12, 31, 23, 59, 59, 999_999 // 10 ** (6 - scale) * 10 ** (6 - scale))
        of = layout((f"DateTime64({scale})", f"datetime2({scale})", False))
        first_bytes, last_bytes = sent(of, [datetime(1, 1, 1)], [last])
        assert first_bytes == "00" * 8
        assert last_bytes.endswith("dab937")


# ---- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["Int128", "UInt128", "Int256", "Decimal(50, 10)", "Decimal256(10)"])
def test_wide_numbers_are_refused_by_every_target(source: str) -> None:
    """B16: in the plan, with a way out; the engine's part is in tests/unit/delivery."""
    for target in ("bigint", "decimal(38,0)", "decimal(38,10)", "nvarchar(max)", "float(53)"):
        assert refusal(source, target) == "dpone.types.unsupported"


@pytest.mark.parametrize(
    ("source", "target", "text", "expected"),
    [
        (
            "Decimal(38, 10)",
            "decimal(38,10)",
            "-9999999999999999999999999999.9999999999",
            "13260a00ffffffff3f228a097ac4865aa84c3b4b",
        ),
        ("Decimal(4, 2)", "decimal(4,2)", "-99.99", "130402000f270000000000000000000000000000"),
        ("Decimal(38, 38)", "decimal(38,38)", "-0." + "9" * 38, "13262600ffffffff3f228a097ac4865aa84c3b4b"),
    ],
)
def test_sign_and_point_take_no_digit(source: str, target: str, text: str, expected: str) -> None:
    """B18."""
    assert sent(layout((source, target, False)), [Decimal(text)]) == [expected]


def test_what_rounds_is_refused_whatever_writes() -> None:
    """B19: fewer digits behind the point. B20: a float as text."""
    assert refusal("Decimal(18, 4)", "decimal(18,2)") == "dpone.types.scale"
    assert refusal("Float64", "nvarchar(10)") == "dpone.types.pair"
    assert refusal("Float64", "decimal(38,10)") == "dpone.types.pair"
    assert refusal("Float32", "nvarchar(max)") == "dpone.types.pair"


# ---- text and bytes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "digits"), [("nvarchar(20)", 4), ("nvarchar(max)", 16)])
def test_five_ways_to_be_empty(target: str, digits: int) -> None:
    """B23: NULL, nothing, a blank, the word, a NUL: five cells; also as the first, only and last row."""
    values: list[str | None] = [None, "", " ", "NULL", "\0"]
    of = layout(("Nullable(String)", target, True))
    found = sent(of, *[[value] for value in values])
    payloads = ["", "", "2000", "4e0055004c004c00", "0000"]
    lengths = ["f" * digits, *(f"{n:02x}".ljust(digits, "0") for n in (0, 2, 8, 2))]
    assert found == [length + payload for length, payload in zip(lengths, payloads, strict=True)]
    for value, cell in zip(values, found, strict=True):
        assert sent(of, [value]) == [cell]
        assert sent(of, [value], ["x"], [value])[::2] == [cell, cell]


@pytest.mark.parametrize("text", ["$~d$~", ",", '"', "\r\n", "\t", "\\N", "'", "\x1a", "\0$~q$~\0"])
def test_nothing_in_a_text_is_a_delimiter(text: str) -> None:
    """B25: the length stands in front, so no character means anything."""
    of = layout(("String", "nvarchar(20)", False), ("String", "nvarchar(max)", False))
    octets = text.encode("utf-16-le")
    expected = len(octets).to_bytes(2, "little") + octets + len(octets).to_bytes(8, "little") + octets
    assert sent(of, [text, text]) == [expected.hex()]


def test_length_is_counted_in_units_of_utf16() -> None:
    """B26: 50 emoji fill nvarchar(100), 51 are refused; none is dropped from the end."""
    of = layout(("String", "nvarchar(100)", False))
    for text in ("😂" * 50, "Test 1 2 3 😂  foo bar"):
        octets = text.encode("utf-16-le")
        assert sent(of, [text]) == [(len(octets).to_bytes(2, "little") + octets).hex()]
    with pytest.raises(SourceDataError) as caught:
        sent(of, ["😂" * 50], ["😂" * 51])
    assert (caught.value.code, caught.value.fields["row"]) == ("dpone.source.too_long", 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Joachim", "0e004a006f0061006300680069006d00"),
        ("\u2160 \u2161 \u2162", "0a0060212000612120006221"),
        ("значение", "100037043d043004470435043d0438043504"),
    ],
)
def test_text_is_utf16_little_endian(text: str, expected: str) -> None:
    """B28: the bytes themselves, not what an encoder of ours would say."""
    assert sent(layout(("String", "nvarchar(20)", False)), [text]) == [expected]


@pytest.mark.parametrize("octets", [b"a\xffb", b"\xc3", b"\xed\xa0\x80"])
def test_bytes_that_are_no_text_stop(octets: bytes) -> None:
    """B30: and NULs alone are text."""
    of = layout(("String", "nvarchar(20)", False))
    with pytest.raises(SourceDataError) as caught:
        to_target_batch(raw_batch({"c0": [b"\0\0", octets]}, of), of, first_row=0)
    assert (caught.value.code, caught.value.fields["row"]) == ("dpone.source.utf8", 1)
    assert sent(of, ["\0\0\0"]) == ["0600000000000000"]


@pytest.mark.parametrize("value", [b"abc\0\0", b"\0\0\0\0\0"])
def test_nuls_at_the_end_of_bytes_and_texts_are_kept(value: bytes) -> None:
    """B31: exactly N bytes; and the source is never asked to turn them into a String."""
    for target in ("binary(5)", "varbinary(5)", "varbinary(9)"):
        assert sent(layout(("FixedString(5)", target, False)), [value]) == [f"0500{value.hex()}"]
    assert sent(layout(("String", "nvarchar(20)", False)), ["\0\0x\0"]) == ["08000000000078000000"]
    assert refusal("FixedString(5)", "nvarchar(5)") == "dpone.types.pair"
    for source in ("FixedString(5)", "Nullable(FixedString(5))"):
        (value_sql, *_) = projection_of(0, "c", pair(source, "binary(5)"))
        assert "substring(" in value_sql
        assert "CAST" not in value_sql.upper()
        assert "toString" not in value_sql


def test_low_cardinality_is_the_type_that_it_wraps() -> None:
    """B32: the same bytes as plain text, for more values than a dictionary of one byte can number."""
    texts = ["", *(f"value {n}" for n in range(300))]
    wrapped = layout(("LowCardinality(Nullable(String))", "nvarchar(max)", True))
    plain = layout(("Nullable(String)", "nvarchar(max)", True))
    rows = [[text] for text in [*texts, None, *texts]]
    assert wrapped.sha256 == plain.sha256
    assert wrapped.raw_schema.equals(plain.raw_schema)
    assert sent(wrapped, *rows) == sent(plain, *rows)


@pytest.mark.parametrize("source", ["Enum8('a' = 1, 'b' = -2)", "Enum16('a' = 1, 'b' = -2)"])
def test_an_enum_is_its_label(source: str) -> None:
    """B33: no target takes its number."""
    assert sent(layout((source, "nvarchar(10)", False)), ["b"]) == ["02006200"]
    for target in ("smallint", "int", "tinyint"):
        assert refusal(source, target) == "dpone.types.pair"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9c0c9eed-feac-474e-9ad7-c5b9280424d1", "ed9e0c9cacfe4e479ad7c5b9280424d1"),
        ("00112233-4455-6677-8899-aabbccddeeff", "33221100554477668899aabbccddeeff"),
    ],
)
def test_a_guid_has_the_mixed_order_of_the_target(text: str, expected: str) -> None:
    """B34, B35: sixteen bytes in the order of the text from the source, mixed in the row."""
    of = layout(("UUID", "uniqueidentifier", False))
    assert of.raw_schema.field("c0").type == "binary"
    assert sent(of, [UUID(text)]) == [f"10{expected}"]
