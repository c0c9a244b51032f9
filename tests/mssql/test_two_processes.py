"""Two real processes on one target of SQL Server: the tests of the fakes, where a journal does not matter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.test_two_processes import (  # noqa: F401 - the tests themselves
    PAST_IT,
    PHASES,
    test_the_first_try_wakes_up_after_the_second_has_completed,
    test_the_first_try_wakes_up_while_the_second_stands_in_the_same_phase,
    test_two_processes_that_are_admitted_at_the_same_moment,
)
from tests.mssql.lab import MssqlLab
from tests.mssql.test_kill_matrix import INSIDE_AND_OUT
from tests.mssql.world import MssqlWorld


class MssqlJournals:
    """A table of its own for each world."""

    def __init__(self, lab: MssqlLab) -> None:
        self._lab, self._made = lab, 0

    def new_world(self, root: Path) -> MssqlWorld:
        """Six orders in two chunks; the target holds old rows inside and outside of the window."""
        self._made += 1
        return MssqlWorld.on(root, self._lab, table=f"orders{self._made}", outside=INSIDE_AND_OUT)


@pytest.fixture
def store(mssql_lab: MssqlLab) -> MssqlJournals:
    """Where worlds are made."""
    return MssqlJournals(mssql_lab)


@pytest.fixture
def places(store: MssqlJournals, tmp_path: Path) -> dict[str, int]:
    """The index of each phase's place among the crash points of a first try on this target."""
    passed: list[str] = []
    store.new_world(tmp_path / "recorded").deliver(observer=lambda point: passed.append(str(point)))
    return {phase: passed.index(point) + PAST_IT.get(phase, 0) for phase, point in PHASES.items()}
