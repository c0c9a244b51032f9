"""A delivery that stops at a chosen point and waits there, so that a test may do something to its process.

The product has no switch for it. A DAG file of the tests puts :class:`HeldPorts` where the product opens its
ports; everything else is the product's own. A delivery's home (the directory of its spool) holds:

* ``hold.json``, written by the test: a list of holds. ``points`` are crash points to be passed one after
  another; the delivery waits at the last one while the hold is there. ``task_id``, ``map_index`` and
  ``try_number`` choose a task.
* ``held.json``: written when it waits: ``pid``, ``supervisor``, ``try_number``.
* ``outcomes.jsonl``: how each opening of the ports ended; the code of the error, or null.
* ``source.script``: then source and target are the tests' fakes, which several processes may open at once;
  the real embedded engines would keep a second try waiting for a stopped one.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_dpone import wiring


class Hold:
    """An observer of crash points."""

    def __init__(self, home: Path, who: dict[str, Any]) -> None:
        self._home, self._who = home, who
        self._passed = 0

    def __call__(self, point: str) -> None:
        """Waits here if the test has asked for it."""
        wanted = self._wanted()
        if wanted is None or wanted["points"][self._passed] != point:
            return
        self._passed += 1
        if self._passed < len(wanted["points"]):
            return
        held = self._home / "held.json"
        draft = held.with_suffix(".draft")
        draft.write_text(json.dumps({"pid": os.getpid(), "supervisor": os.getppid(), **self._who}))
        draft.rename(held)
        while self._wanted() == wanted:
            time.sleep(0.05)
        self._passed = 0

    def _wanted(self) -> dict[str, Any] | None:
        with suppress(FileNotFoundError):
            for wanted in json.loads((self._home / "hold.json").read_text()):
                if all(wanted.get(name, mine) == mine for name, mine in self._who.items()):
                    return dict(wanted)
        return None


class HeldPorts(wiring.open_ports):
    """The product's ports with a :class:`Hold`, and with fakes where the home has them."""

    def __init__(self, route: Any, places: Any, **more: Any) -> None:
        from airflow.sdk import get_current_context

        ti = get_current_context()["ti"]
        self._home = Path(places.spool).parent
        self._told = {"try_number": ti.try_number}
        map_index = -1 if ti.map_index is None else ti.map_index
        self._hold = Hold(self._home, {"task_id": ti.task_id, "map_index": map_index, **self._told})
        super().__init__(route, places, **{**more, "observer": self._hold})

    def __enter__(self) -> Any:
        if not (self._home / "source.script").exists():
            return super().__enter__()
        from tests.fakes.world import World

        world = World(self._home)
        with world.open_journal() as journal:
            self._stack.enter_context(journal)
        return replace(world.ports(journal), observer=self._hold)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        outcome = {**self._told, "pid": os.getpid(), "error": getattr(error, "code", kind and kind.__name__)}
        with (self._home / "outcomes.jsonl").open("a") as file:
            file.write(json.dumps(outcome) + "\n")
        super().__exit__(kind, error, trace)


def install() -> None:
    """From now on this process opens its ports like that."""
    wiring.open_ports = HeldPorts  # type: ignore[misc]
