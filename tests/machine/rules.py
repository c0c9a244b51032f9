"""The machine under Hypothesis, and the loop that runs it until enough steps were made."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.machine import shop
from tests.machine.machine import MOST_WORKERS, Machine, Step, do, finish, shown
from tests.machine.reduce import reduced

EXAMPLES_PER_SEED = 20
RULES_PER_EXAMPLE = 50

FIRST_POINTS = [0, 2, 6, 20, 45, 60, 1_000]
PAUSES = [
    "before_journal_acquire", "after_journal_acquire", "before_target_claim_gate", "after_target_claim_gate",
    "before_source_read", "after_source_read", "before_spool_begin", "before_chunk_seal", "after_chunk_seal",
    "before_target_create_stage", "after_target_create_stage", "before_target_grant", "after_target_grant",
    "before_writer_write", "after_writer_write", "before_target_verify_stage", "after_target_verify_stage",
    "before_target_build_prepared", "after_target_build_prepared", "before_journal_raise_fence",
    "before_target_publish", "after_target_publish", "before_target_probe", "after_target_probe",
    "before_target_drop_stage", "after_target_drop_stage", "before_spool_discard", "after_spool_discard",
    "before_spool_discard_epoch", "before_journal_release", "before_target_adopt_gate",
    "after_target_adopt_gate",
]  # fmt: skip
UNREACHABLE = [
    "identify", "claim_gate", "create_stage", "find_stage", "grant", "verify_stage", "build_prepared",
    "publish", "probe", "read_receipt", "drop_stage", "write",
]  # fmt: skip
FAULTS = [
    *(("publish", kind) for kind in ("lost_answer", "never_sent", "held_back", "held_back")),
    *(("write", kind) for kind in ("drop_row", "double_row", "nothing", "says_lost", "breaks")),
    *((method, "unreachable") for method in UNREACHABLE),
    ("probe", "unreachable"),
    ("probe", "unreachable"),
    ("read_receipt", "unreachable"),
]
MEANWHILE: list[Step] = [
    ("lease_expires",),
    ("lease_expires",),
    ("source_changes",),
    ("source_fails", "moved"),
    ("source_fails", "ends_early"),
    ("source_fails", "raises"),
    ("source_is_replaced",),
]
SETTINGS = settings(
    max_examples=EXAMPLES_PER_SEED,
    stateful_step_count=RULES_PER_EXAMPLE,
    phases=[Phase.generate],  # lists of steps are made shorter by tests/machine/reduce.py
    report_multiple_bugs=False,
    deadline=None,
    database=None,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


@dataclass
class Tally:
    """What was done by all examples so far."""

    examples: int = 0
    rules: int = 0
    points: int = 0
    told: Counter[str] = field(default_factory=Counter)
    failed: list[Step] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """Rules executed and crash points passed; what the end of each example did is not among them."""
        return self.rules + self.points


class EngineRules(RuleBasedStateMachine):
    """Chooses steps. Everything that it does is a line of the machine's trace."""

    scratch: Path
    tally: Tally

    def __init__(self) -> None:
        super().__init__()
        number = self.tally.examples
        self.tally.examples += 1
        self.machine = Machine(self.scratch / f"world-{number}", self.scratch / "template")

    @initialize(fragile=st.booleans())
    def begin(self, fragile: bool) -> None:
        """Half of the journals keep all that they were told."""
        self.fragile = fragile

    def _do(self, name: str, *arguments: Any) -> None:
        self.tally.rules += 1
        before = self.machine.points
        try:
            do(self.machine, name, *arguments)
        except Exception:
            self.tally.failed = list(self.machine.trace)
            raise
        finally:
            self.tally.points += self.machine.points - before

    def _start(self, run_id: str, how: str, points: int) -> None:
        self._do("call", run_id, how)
        self._go_newest(points)

    def _go_newest(self, points: int) -> None:
        if points and self.machine.workers[-1].is_alive:
            self._do("go", len(self.machine.workers) - 1, points)

    def _worker(self, choice: int) -> int:
        alive = self.machine.alive
        return alive[choice % len(alive)].number

    @precondition(lambda self: len(self.machine.alive) < MOST_WORKERS)
    @rule(
        run_id=st.sampled_from(["run-a", "run-a", "run-a", "run-b", "run-c"]),
        how=st.sampled_from(["retry", "retry", "retry", "clear", "clear", "again", "recreate"]),
        points=st.sampled_from(FIRST_POINTS),
    )
    def call(self, run_id: str, how: str, points: int) -> None:
        """A task starts."""
        self._start(run_id, how, points)

    @precondition(lambda self: self.machine.at_work and len(self.machine.alive) < MOST_WORKERS)
    @rule(
        worker=st.integers(0, MOST_WORKERS - 1),
        how=st.sampled_from(["retry", "retry", "clear", "again"]),
        points=st.sampled_from(FIRST_POINTS),
    )
    def call_beside(self, worker: int, how: str, points: int) -> None:
        """The task of a worker that is still there starts again, since nobody can see that worker."""
        runs = self.machine.at_work
        self._start(runs[worker % len(runs)], how, points)

    @precondition(lambda self: self.machine.alive)
    @rule(
        worker=st.integers(0, MOST_WORKERS - 1), points=st.sampled_from([1, 2, 3, 5, 8, 13, 21, 40, 80, 200])
    )
    def go(self, worker: int, points: int) -> None:
        """A worker goes on a little."""
        self._do("go", self._worker(worker), points)

    @precondition(lambda self: self.machine.alive)
    @rule(worker=st.integers(0, MOST_WORKERS - 1), point=st.sampled_from(PAUSES))
    def go_to(self, worker: int, point: str) -> None:
        """A worker goes on to a place of interest."""
        self._do("go_to", self._worker(worker), point)

    @precondition(lambda self: self.machine.alive)
    @rule(worker=st.integers(0, MOST_WORKERS - 1), noticed=st.booleans())
    def kill(self, worker: int, noticed: bool) -> None:
        """A worker dies."""
        self._do("kill", self._worker(worker), noticed)

    @rule(fault=st.sampled_from(FAULTS), times=st.sampled_from([1, 1, 3]))
    def arm(self, fault: tuple[str, str], times: int) -> None:
        """The target will do something wrong; three times is as often as a chunk may be tried."""
        self._do("arm", *fault, times)

    @rule(asked=st.booleans())
    def lose_a_send(self, asked: bool) -> None:
        """The next publication stays on its way, and perhaps the question about it is lost too."""
        self._do("arm", "publish", "held_back")
        if not asked:
            self._do("arm", "probe", "unreachable")

    @rule(what=st.sampled_from(MEANWHILE))
    def meanwhile(self, what: Step) -> None:
        """Something happens that no worker does."""
        self._do(*what)

    @precondition(lambda self: self.machine.held_back)
    @rule()
    def late_sends_arrive(self) -> None:
        """What was held back arrives."""
        self._do("late_sends_arrive")

    @precondition(lambda self: self.machine.alive)
    @rule(worker=st.integers(0, MOST_WORKERS - 1))
    def finish(self, worker: int) -> None:
        """A worker goes on to its end."""
        self._do("go", self._worker(worker), 1_000)

    @precondition(lambda self: self.machine.world.spool_files())
    @rule(number=st.integers(0, 3), how=st.sampled_from(["removed", "damaged"]))
    def spool_loses(self, number: int, how: str) -> None:
        """A sealed file is not what it was."""
        self._do("spool_loses", number, how)

    @precondition(lambda self: self.fragile and self.machine.points > 60)
    @rule(transactions=st.integers(1, 40), all_of_it=st.sampled_from([False, False, False, True]))
    def journal_loses(self, transactions: int, all_of_it: bool) -> None:
        """The power fails, and the disk had promised more than it kept; once."""
        self.fragile = False
        for worker in self.machine.alive:
            self._do("kill", worker.number, True)
        if all_of_it:
            self._do("journal_is_made_anew")
        else:
            self._do("journal_loses", transactions)

    @precondition(lambda self: self.machine.unfinished and len(self.machine.alive) < MOST_WORKERS)
    @rule(run=st.integers(0, 2), points=st.sampled_from(FIRST_POINTS))
    def retire(self, run: int, points: int) -> None:
        """Somebody gives a delivery up, perhaps with reason."""
        unfinished = self.machine.unfinished
        self._do("retire", unfinished[run % len(unfinished)])
        self._go_newest(points)

    @precondition(lambda self: self.machine.judge.lost_tail and len(self.machine.alive) < MOST_WORKERS)
    @rule(points=st.sampled_from(FIRST_POINTS))
    def adopt(self, points: int) -> None:
        """Somebody adopts the target, perhaps with reason."""
        self._do("adopt")
        self._go_newest(points)

    def teardown(self) -> None:
        """The end of an example, which must come to a good end."""
        try:
            finish(self.machine)
            self.tally.told.update(self.machine.told)
        except Exception:
            self.tally.failed = list(self.machine.trace)
            raise
        finally:
            self.machine.close()


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one: the machine writes to disk twice in each step."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="dpone-machine-", dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True
    ) as place:
        yield Path(place)


def run_machine(wanted_steps: int, first_seed: int = 1) -> Tally:
    """Runs examples until that many steps were made; the same seed makes the same examples.

    Raises what the first failing example raised, with its steps, and with fewer that fail like it.
    """
    tally = Tally()
    with scratch() as place:
        shop.create_shop(place / "template")
        for number in itertools.count(first_seed):
            if tally.steps >= wanted_steps:
                break
            rules: Any = type("EngineRules", (EngineRules,), {"scratch": place, "tally": tally})
            try:
                run_state_machine_as_test(seed(number)(rules), settings=SETTINGS)
            except Exception as error:
                error.add_note(f"It was seed {number}.")
                short = reduced(tally.failed, place, place / "template")
                error.add_note(f"A shorter list that fails in the same way:\n{shown(short)}")
                raise
    return tally
