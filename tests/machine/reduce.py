"""Makes a failing list of steps short: what is left out one by one, as long as it fails in the same way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from tests.machine.machine import Machine, Step, replay

STARTS = ("call", "retire", "adopt")
WORKER_STEPS = ("go", "go_to", "kill")
LONGEST_SEC = 180.0


def failure_of(steps: Sequence[Step], root: Path, template: Path) -> str | None:
    """How these steps fail, without the facts that differ from run to run; None when they do not."""
    machine = Machine(root, template)
    try:
        replay(machine, steps)
    except Exception as error:  # noqa: BLE001 - whatever it is, the question is whether it is the same
        return f"{type(error).__name__}: {str(error).partition(':')[0]}"
    finally:
        machine.close()
    return None


def without(steps: Sequence[Step], place: int) -> list[Step]:
    """The steps without one of them. Without a worker's start, its steps go too and later workers move up."""
    if steps[place][0] not in STARTS:
        return [*steps[:place], *steps[place + 1 :]]
    gone = sum(step[0] in STARTS for step in steps[:place])
    left: list[Step] = []
    for at, step in enumerate(steps):
        if at == place or (step[0] in WORKER_STEPS and step[1] == gone):
            continue
        moves = step[0] in WORKER_STEPS and step[1] > gone
        left.append((step[0], step[1] - 1, *step[2:]) if moves else step)
    return left


def reduced(steps: Sequence[Step], scratch: Path, template: Path) -> list[Step]:
    """A shorter list that fails like this one, or the same list when it does not fail again."""
    numbers = itertools.count()
    wanted = failure_of(steps, scratch / f"reduced-{next(numbers)}", template)
    best, until = list(steps), monotonic() + LONGEST_SEC
    found = wanted is not None
    while found and monotonic() < until:
        found = False
        for place in reversed(range(len(best))):
            shorter = without(best, place) if place < len(best) else best
            if len(shorter) == len(best) or monotonic() > until:
                continue
            if failure_of(shorter, scratch / f"reduced-{next(numbers)}", template) == wanted:
                best, found = shorter, True
    return best
