"""A delivery of somebody else, which owns the target of a test's DAGs."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from airflow_dpone import Requester, deliver
from tests.crash import embedded_world

_numbers = count(1)


class Died(BaseException):
    """Stands for a killed worker."""


class Holder:
    """Another delivery, which takes the target and dies; :meth:`finish` brings it to its end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.who = Requester("elsewhere", f"run-{next(_numbers)}", "load", ti_id="1")
        with suppress(Died):
            self._call(die=True)

    def finish(self) -> None:
        """The target is free afterwards."""
        self._call(die=False)

    def _call(self, *, die: bool) -> None:
        def observe(point: str) -> None:
            if point == "before_source_read" and die:
                raise Died

        places: dict[str, Any] = {"journal": self.home / "journal.db", "spool": self.home / "spool"}
        route = embedded_world.route(self.home)
        deliver(route, embedded_world.WINDOW, requester=self.who, observer=observe, **places)
