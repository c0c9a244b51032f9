"""Tens of thousands of steps in an order that nobody chose, and after each of them every invariant.

DPONE_TEST_MACHINE_STEPS makes it longer, DPONE_TEST_MACHINE_SEED makes it another one: see docs/testing.md.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.machine.rules import run_machine

STEPS = int(os.environ.get("DPONE_TEST_MACHINE_STEPS", "20000"))
FIRST_SEED = int(os.environ.get("DPONE_TEST_MACHINE_SEED", "1"))

REACHED = {
    "COMPLETED", "FAILED", "RETIRED", "UNKNOWN", "EPOCH_ABANDONED", "already", "killed",
    "journal lost its tail",
    "late committed", "late rolled_back dpone.publish.fenced", "dpone.journal.fenced", "dpone.custody.held",
    "dpone.lease.held", "dpone.journal.older_than_target", "dpone.publish.outcome_unknown", "INCIDENT",
}  # fmt: skip
"""What a run must have come across: without it, it would prove less than it says."""


@pytest.mark.timeout(600 + STEPS // 20)
def test_whatever_happens_in_whatever_order(capsys: pytest.CaptureFixture[str]) -> None:
    tally = run_machine(STEPS, FIRST_SEED)
    with capsys.disabled():
        told = ", ".join(f"{what}: {count}" for what, count in sorted(tally.told.items()))
        sys.stdout.write(
            f"\nmachine: {tally.steps} steps ({tally.rules} rules, {tally.points} crash points) in "
            f"{tally.examples} examples, from seed {FIRST_SEED}\n{told}\n"
        )
    assert tally.steps >= STEPS
    assert {what for what in REACHED if not tally.told[what]} == set()
