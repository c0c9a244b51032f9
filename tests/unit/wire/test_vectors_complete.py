"""What the golden vectors must hold, so that a gap is a failure; and nothing just outside is let through.

Covers B01 (each type NULL and NOT NULL), B03, B06, B07, B13, B18, B21, B23, B26, B30, B31, B35 as data.
"""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from typing import Any

import pytest

from airflow_dpone.errors import CATALOGUE, Problem, SourceDataError
from airflow_dpone.wire.from_raw import to_target_batch
from airflow_dpone.wire.reference_rows import encode_cell
from airflow_dpone.wire.types import RawForm, SqlType, TypePair, WireColumn, WireLayout, resolve
from tests.unit.wire.batches import python_value, raw_batch
from tests.unit.wire.test_vectors import CELLS, ROWS, load

REFUSED: list[dict[str, Any]] = load("cells.json")["refused"]
VALUES: dict[tuple[str, bool], set[str | None]] = defaultdict(set)
OUTSIDE: dict[tuple[str, bool], set[str | None]] = defaultdict(set)
for _cell in CELLS:
    VALUES[_cell["type"], _cell["nullable"]].add(_cell["value"])
for _entry in REFUSED:
    OUTSIDE[_entry["type"], _entry["nullable"]].add(_entry.get("value", _entry.get("bytes")))

INTEGERS = {
    "bigint": (-(2**63), 2**63 - 1),
    "int": (-(2**31), 2**31 - 1),
    "smallint": (-(2**15), 2**15 - 1),
    "tinyint": (0, 255),
    "bit": (0, 1),
}
FLOATS = {
    # greatest, smallest normal, greatest subnormal
    "real": ("3.4028234663852886e+38", "1.1754943508222875e-38", "1.1754942106924411e-38"),
    "float(53)": ("1.7976931348623157e+308", "2.2250738585072014e-308", "2.225073858507201e-308"),
}
DECIMALS = [(p, s) for p in (1, 9, 10, 19, 20, 28, 29, 38) for s in (0, p)]
GUIDS = {"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"}
NULLABILITY = pytest.mark.parametrize("nullable", [True, False], ids=["NULL", "NOT NULL"])


def scaled(unscaled: int, scale: int) -> str:
    """The text of a decimal."""
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    text = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{text}" if unscaled < 0 else text


def lacking(text: str, nullable: bool, values: set[str], outside: set[str]) -> set[str]:
    """What the vectors of a type lack."""
    return (values - VALUES[text, nullable]) | (outside - OUTSIDE[text, nullable])  # type: ignore[operator]


def test_how_many_there_are() -> None:
    assert len(CELLS) >= 200
    assert len(ROWS) >= 20
    assert len({(c["type"], c["nullable"], c["value"]) for c in CELLS}) == len(CELLS)
    assert len({r["name"] for r in ROWS}) == len(ROWS)


def test_every_type_is_there_with_null_and_without() -> None:
    """NULL has bytes in a nullable column and a reason in the other."""
    texts = {text for text, _ in VALUES}
    for text in texts:
        assert None in VALUES[text, True], text
        assert None not in VALUES[text, False], text
        assert VALUES[text, False] == VALUES[text, True] - {None}, text
        codes = {e["code"] for e in REFUSED if (e["type"], e.get("value", "")) == (text, None)}
        assert codes == {"dpone.source.null"}, text
    assert texts == {text for text, _ in OUTSIDE}


@NULLABILITY
@pytest.mark.parametrize("text", INTEGERS)
def test_integers(text: str, nullable: bool) -> None:
    low, high = INTEGERS[text]
    inside = {str(n) for n in (0, 1, -1, low, high) if low <= n <= high}
    assert lacking(text, nullable, inside, {str(low - 1), str(high + 1)}) == set()


@NULLABILITY
@pytest.mark.parametrize("text", FLOATS)
def test_floats(text: str, nullable: bool) -> None:
    greatest, normal, subnormal = FLOATS[text]
    inside = {"0.0", "-0.0", "1.0", "-1.0", greatest, f"-{greatest}", normal, f"-{normal}"}
    outside = {"NaN", "Infinity", "-Infinity", subnormal, f"-{subnormal}"}
    assert lacking(text, nullable, inside, outside) == set()


@NULLABILITY
@pytest.mark.parametrize(("precision", "scale"), DECIMALS)
def test_decimals(precision: int, scale: int, nullable: bool) -> None:
    top = 10**precision
    inside = {"0", scaled(top - 1, scale), scaled(1 - top, scale)}
    inside |= {"1", "-1"} if scale < precision else set()
    inside |= {scaled(1, scale), scaled(-1, scale)} if scale else set()
    outside = {scaled(top, scale), scaled(-top, scale), scaled(1, scale + 1)}
    assert lacking(f"decimal({precision},{scale})", nullable, inside, outside) == set()


@NULLABILITY
def test_dates(nullable: bool) -> None:
    inside = {"1970-01-01", "1970-01-02", "1969-12-31", "0001-01-01", "9999-12-31", "2024-02-29"}
    assert lacking("date", nullable, inside, {"0000-12-31", "10000-01-01"}) == set()


@NULLABILITY
@pytest.mark.parametrize("scale", range(7))
def test_moments(scale: int, nullable: bool) -> None:
    """The tick after and the tick before 1970, fractions before it, both ends, and the ticks outside."""

    def at(second: str, fraction: str) -> str:
        return f"{second}.{fraction}" if scale else second

    nines = "9" * scale
    tick = at("1970-01-01T00:00:00", "0" * (scale - 1) + "1") if scale else "1970-01-01T00:00:01"
    inside = {
        "0001-01-01T00:00:00",
        "1970-01-01T00:00:00",
        tick,
        at("1969-12-31T23:59:59", nines),
        at("1900-01-01T00:00:00", nines),
        at("9999-12-31T23:59:59", nines),
    }
    outside = {
        at("0000-12-31T23:59:59", nines),
        "10000-01-01T00:00:00",
        f"1970-01-01T00:00:00.{'0' * scale}1",
        f"1969-12-31T23:59:59.{nines}9",
    }
    assert lacking(f"datetime2({scale})", nullable, inside, outside) == set()


@NULLABILITY
@pytest.mark.parametrize("length", [1, 20, 100, 4000])
def test_texts_with_a_length(length: int, nullable: bool) -> None:
    """Exactly n units, in one unit and in two; one unit more is refused, blanks included."""
    text, astral = f"nvarchar({length})", "\U0001f602"
    inside = {"", "\0", " ", "x" * length, "\u0451" * length}
    if length > 1:
        inside |= {astral, astral * (length // 2), "a  ", "a\0"}
    outside = {"x" * (length + 1), " " * (length + 1), "x" * (length - 1) + astral}
    assert lacking(text, nullable, inside, outside) == set()


@NULLABILITY
def test_texts_without_a_length(nullable: bool) -> None:
    long = {v for v in VALUES["nvarchar(max)", nullable] if v is not None and len(v) > 4000}
    assert long
    inside = {"", "\0", "NULL", "a ", "a  ", "a\0b\0", "\0\0x\0", "\U0010ffff"}
    outside = {"61ff62", "c3", "eda080", "c080", "f4908080"}
    assert lacking("nvarchar(max)", nullable, inside, outside) == set()


@NULLABILITY
def test_bytes_and_guids(nullable: bool) -> None:
    for length in (3, 5):
        inside = {"00" * length, "6162630000"[: 2 * length] if length == 5 else "610000"}
        outside = {"61" * (length - 1), "61" * length + "00"}
        assert lacking(f"binary({length})", nullable, inside, outside) == set()
    assert lacking("varbinary(9)", nullable, {"", "00", "00" * 9, "ff" * 9}, {"00" * 10}) == set()
    assert lacking("varbinary(max)", nullable, {"", "00", "00" * 8001}, set()) == set()
    asymmetric = {"00112233-4455-6677-8899-aabbccddeeff", "9c0c9eed-feac-474e-9ad7-c5b9280424d1"}
    outside = {"00112233445566778899aabbccddee", "00112233445566778899aabbccddeeff00"}
    assert lacking("uniqueidentifier", nullable, GUIDS | asymmetric, outside) == set()


def test_rows_for_every_shape_of_layout() -> None:
    """Each type, NULL and NOT NULL, in a whole row; every scale of datetime2, every precision of decimal."""
    seen = {(c["type"], c["nullable"]) for row in ROWS for c in row["columns"]}
    names = {SqlType.parse(text).name for text, _ in VALUES}
    for nullable in (True, False):
        assert {SqlType.parse(text).name for text, null in seen if null is nullable} == names
        assert {f"datetime2({scale})" for scale in range(8)} <= {t for t, null in seen if null is nullable}
        wanted = {f"decimal({p},{s})" for p, s in DECIMALS}
        assert wanted <= {t for t, null in seen if null is nullable}
    assert any(None in row["values"] and len(set(row["values"])) > 2 for row in ROWS)


# ---- what lies outside -------------------------------------------------------------------------------------


def named(entry: dict[str, Any]) -> str:
    """A short id."""
    value = str(entry.get("bytes", entry.get("value")))
    null = "NULL" if entry["nullable"] else "NOT NULL"
    return f"{entry['source']} {value[:24]}{len(value)} into {entry['type']} {null}"


def raw_number(entry: dict[str, Any], pair: TypePair) -> int:
    """What the source sends for a date or moment, also for one that Python does not have; or for a number."""
    day, _, time = str(entry["value"]).partition("T")
    if pair.raw_form not in (RawForm.DAYS32, RawForm.TICKS):
        return int(str(entry["value"]).replace(".", ""))
    days = {"0000-12-31": -719_163, "10000-01-01": 2_932_897}[day]
    if pair.raw_form is RawForm.DAYS32:
        return days
    clock, _, fraction = time.partition(".")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    scale = pair.source.numbers[0]
    whole = days * 86_400 + (hours * 60 + minutes) * 60 + seconds
    return whole * 10**scale + int(fraction.ljust(scale, "0") or "0")


def raw_columns(entry: dict[str, Any], pair: TypePair) -> dict[str, list[Any]]:
    """The raw projection of a refused value."""
    if entry.get("value", "") is None:
        empty = {RawForm.TEXT: b"", RawForm.BYTES: b"", RawForm.UUID_BYTES: b"\0" * 16}.get(pair.raw_form, 0)
        high = {"c0_hi": [0]} if pair.raw_form is RawForm.DECIMAL128 else {}
        return {"c0": [empty], **high, "c0_null": [1]}
    if "bytes" in entry:
        return {"c0": [bytes.fromhex(entry["bytes"])]}
    if pair.raw_form is RawForm.TEXT:
        return {"c0": [entry["value"].encode()]}
    if pair.source.name.startswith("Float"):
        return {"c0": [float(entry["value"])]}
    number = raw_number(entry, pair)
    if pair.raw_form is RawForm.DECIMAL128:
        return {"c0": [number & (2**64 - 1)], "c0_hi": [number >> 64]}
    return {"c0": [number]}


@pytest.mark.parametrize("entry", REFUSED, ids=named)
def test_what_lies_outside_is_refused_by_its_code(entry: dict[str, Any]) -> None:
    """By the pair of types before anything is read, or by the value, with its column and row."""
    assert entry["code"] in CATALOGUE
    pair = resolve("c", entry["source"], entry["type"], entry["nullable"], fail_on_null=True)
    if entry["code"].startswith("dpone.types."):
        assert isinstance(pair, Problem)
        assert pair.code == entry["code"]
        return
    assert isinstance(pair, TypePair)
    layout = WireLayout((WireColumn("c", pair),))
    with pytest.raises(SourceDataError) as caught:
        to_target_batch(raw_batch(raw_columns(entry, pair), layout), layout, first_row=7)
    assert (caught.value.code, caught.value.fields) == (entry["code"], {"column": "c", "row": 7})


def as_python(entry: dict[str, Any]) -> Any:
    """The value in Python; ValueError for a moment that Python does not have."""
    sql_type = SqlType.parse(entry["type"])
    if entry["value"] is not None and sql_type.name == "bit":
        return int(entry["value"])
    return python_value(entry["value"], sql_type)


@pytest.mark.parametrize("entry", [e for e in REFUSED if "value" in e], ids=named)
def test_the_row_encoder_refuses_it_too(entry: dict[str, Any]) -> None:
    """Whatever came through, the bytes of a value that the type cannot hold are never made."""
    try:
        value = as_python(entry)
    except ValueError:
        assert entry["type"].startswith("date")
        return
    with pytest.raises(SourceDataError) as caught:
        encode_cell(value, SqlType.parse(entry["type"]), entry["nullable"])
    assert caught.value.code == "dpone.wire.value"


def test_the_reader_of_decimals_does_not_round() -> None:
    """A vector of 39 digits would pass every test above if Python's context cut it."""
    assert str(Decimal("1." + "0" * 38)) == "1." + "0" * 38
