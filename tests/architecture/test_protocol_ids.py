"""Each rule of the bulk writer's protocol is named by a test: ``[B1]`` in its docstring."""

from __future__ import annotations

import re

import pytest

from tests.architecture.package_source import ROOT

RULES = {
    "B1": "the writer proves before and after the load that it still is the session with the lock",
    "B2": "a stage is granted once; the judgement seals it",
    "B3": "names of stages are never used again",
    "B4": "an intent comes before the table, and finds it again",
    "B5": "a session that outlives its writer stops no delivery",
    "B6": "count and digest under the barrier decide, not the lock",
    "B7": "a killed writer's stage is never appended to",
    "B8": "what the core cannot carry exactly is carried another way, or refused",
    "B9": "no option of the load is left to its default",
}
NAMED = re.compile(r'"""[^"]*?\[(B[1-9])\]')


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_of_the_bulk_writer_is_shown_by_a_test(rule: str) -> None:
    places = [path for folder in ("unit", "mssql") for path in (ROOT / "tests" / folder).rglob("test_*.py")]
    assert [p.name for p in places if rule in NAMED.findall(p.read_text())], RULES[rule]
