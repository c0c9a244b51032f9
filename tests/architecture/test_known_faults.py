"""Faults that other tools really had, by id: each that needs no SQL Server is named by a test that shows it.

The ids are those of the project's list of public reports, sections 1-3 (time, numbers, text and bytes), 7
(digests) and 8 (Airflow). A test names an id in its docstring: ``B03: ...``; ``B33-B35`` names all three.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache

import pytest

from tests.architecture.package_source import ROOT

SHOWN = {
    "B01": "NOT NULL datetime2 shifts the rest of the row",
    "B02": "legacy datetime rounds to its tick",
    "B03": "milliseconds taken for microseconds",
    "B04": "fewer digits of the second: an error after some rows were in",
    "B06": "nanoseconds overflow",
    "B07": "moments before 1970 read as unsigned",
    "B09": "DateTime near zero in another zone",
    "B10": "zones of column, server and client mixed up",
    "B11": "bounds of the window formatted in one zone and parsed in another",
    "B13": "0001-01-01 and 9999-12-31 clipped",
    "B15": "UInt64 turns negative",
    "B16": "wide integers found out after tables were made",
    "B17": "wide literals pass through Float64",
    "B18": "sign and point counted as digits",
    "B19": "one writer rounds, another fails",
    "B20": "a float as text is another number",
    "B21": "NaN and infinity",
    "B23": "the empty string",
    "B24": "NULL replaced by the column's default",
    "B25": "delimiters inside texts",
    "B26": "emoji shorten the text",
    "B28": "UTF-8 sent as UTF-16",
    "B30": "bytes that are no UTF-8",
    "B31": "NULs at the end trimmed",
    "B32": "LowCardinality breaks at 128 values",
    "B33": "an Enum comes out as its number",
    "B34": "UUID has no Arrow type",
    "B35": "the byte order of a GUID",
    "B73": "text forms that collide",
    "B74": "one golden file for every side",
    "B75": "sums overflow, or are NULL",
    "B76": "the digest shares the writer's fault",
    "B77": "a worker that was given up works on",
    "B78": "a task is cleared, marked or terminated while it runs",
    "B79": "the same task is started twice",
    "B80": "zero-length and reversed intervals, gaps between intervals",
    "B81": "runs without an interval",
    "B82": "a retry repeats committed work",
    "B83": "XComs too large, or of types that do not come back",
    "B85": "what parsing and mapping cost",
    "B86": "a deferred task loses its position",
}
NEEDS_A_SERVER = {
    "B05": "temporary tables through ODBC parameters",
    "B14": "time(7) on a T-SQL double that keeps six digits",
    "B37": "the collation of staging tables",
}
SECTIONS = re.compile(r"B(?:0[1-9]|[12]\d|3[0-7]|7[3-9]|8[0-6])\b")
NAMED = re.compile(r"\bB(\d\d)(?:-B?(\d\d))?\b")


def ids_in(text: str) -> set[str]:
    """Every id that a text names."""
    found = set()
    for first, last in NAMED.findall(text):
        found |= {f"B{n:02}" for n in range(int(first), int(last or first) + 1)}
    return found


@cache
def named() -> dict[str, list[str]]:
    """The tests that name each id, as ``path::test``."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.parent.name == "architecture":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                where = f"{path.relative_to(ROOT).as_posix()}::{node.name}"
                for fault in ids_in(ast.get_docstring(node) or ""):
                    found[fault].append(where)
    return dict(found)


@pytest.mark.parametrize("fault", SHOWN)
def test_a_known_fault_is_named_by_a_test(fault: str) -> None:
    assert named().get(fault), f"no test names {fault}: {SHOWN[fault]}"


def test_no_test_names_a_fault_of_these_sections_that_does_not_exist() -> None:
    """A misspelt id would look like a fault that nobody shows."""
    unknown = {fault: tests for fault, tests in named().items() if SECTIONS.fullmatch(fault)}
    for fault in (*SHOWN, *NEEDS_A_SERVER):
        unknown.pop(fault, None)
    assert unknown == {}


def test_ids_are_read_from_words_and_ranges() -> None:
    assert ids_in("[F3, B07, B33-B35] and B76 (e, f)") == {"B07", "B33", "B34", "B35", "B76"}
    assert ids_in("BB07 B7 B071 nothing") == set()
