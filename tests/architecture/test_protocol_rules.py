"""Rules of the protocol about row bytes (D) and target tables (E): each is named by a test that tries it.

A test names a rule in a docstring: ``[D4]``, ``[A16] [E3]``. A test that needs SQL Server itself skips aloud
on the stand-in ("capability gap: UNVERIFIED ..."), but it is there.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache

import pytest

from tests.architecture.package_source import ROOT

RULES = {
    "D1": "datetime2 has eight bytes, date three",
    "D2": "prefixes follow from type and nullability; native files travel with a format file",
    "D3": "only + and SUBSTRING, whatever the collation",
    "D4": "nothing is cut at 8,000 bytes",
    "D5": "sixteen bytes of a decimal, in order",
    "D6": "one HASHBYTES for a row; a malformed answer proves nothing",
    "D7": "wide tables: balanced, certified, refused beyond",
    "D9": "every bit of a float; what SQL Server does not document stops before",
    "D10": "text is its UTF-16",
    "D11": "the digest does not see the first leg",
    "D12": "exchanged columns are noticed",
    "E1": "foreign keys that point at the target",
    "E2": "row-level security",
    "E3": "triggers",
    "E4": "ANSI_PADDING OFF",
    "E5": "columns that the server writes",
    "E6": "IGNORE_DUP_KEY, and duplicates in a unique index",
    "E7": "indexed views and filtered indexes",
    "E8": "kinds of tables",
    "E9": "what readers see; room that is observed",
    "E10": "masks and encryption",
    "E11": "catalog views that hide",
    "E12": "the bounds of a window",
    "E13": "partitioned targets",
}
"""Without D8 (a budget: ``benchmarks``) and D13 (what the pages say of the digest)."""

_BRACKETS = re.compile(r"\[([A-Z]\d+(?:, [A-Z]\d+)*)\]")
_DOCUMENTED = ast.Module | ast.FunctionDef | ast.ClassDef


def rules_in(text: str) -> set[str]:
    """Every rule that a text names in brackets."""
    return {rule for names in _BRACKETS.findall(text) for rule in names.split(", ")}


@cache
def named() -> dict[str, list[str]]:
    """The files that name each rule in a docstring."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path.parent.name == "architecture":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, _DOCUMENTED):
                for rule in rules_in(ast.get_docstring(node) or ""):
                    found[rule].append(path.relative_to(ROOT).as_posix())
    return dict(found)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_named_by_a_test(rule: str) -> None:
    assert named().get(rule), f"no test names {rule}: {RULES[rule]}"


def test_no_test_names_a_rule_of_these_sections_that_does_not_exist() -> None:
    assert {rule for rule in named() if rule[0] in "DE"} <= {*RULES, "D8", "D13"}


def test_rules_are_read_from_brackets() -> None:
    assert rules_in("[A16] [E3] and [F4, F7], not E9 or [e1] or [E]") == {"A16", "E3", "F4", "F7"}
