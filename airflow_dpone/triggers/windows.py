"""Waits for delivered windows: for one, or until an interval has no gap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_dpone.triggers.journal import JournalTrigger

MAX_GAPS = 20
"""How many gaps an event names: it is kept in Airflow's database."""


class WindowsDeliveredTrigger(JournalTrigger):
    """Waits until checkpoints of a target cover an interval, or are there for exactly this window.

    Event: ``{"status": "delivered"|"timeout"|"failed", "gaps": [KEY, ...], "gap_count": n}`` with at most 20
    gaps in canonical text, ``START/END``.

    :param target_key: the target's key (64 hex digits).
    :param route_scope: the key of one route, or None for whichever has delivered.
    :param window: canonical text, ``START/END`` or ``full``.
    :param exact: only this very window counts, not several that cover it.
    """

    failed_answer: ClassVar[Mapping[str, Any]] = {"gaps": [], "gap_count": 0}

    def __init__(
        self,
        *,
        journal_conn_id: str | None,
        journal: str | None,
        target_key: str,
        window: str,
        exact: bool,
        deadline: float,
        poll_interval: float,
        route_scope: str | None = None,
        host_id: str | None = None,
    ) -> None:
        super().__init__(
            journal_conn_id=journal_conn_id,
            journal=journal,
            deadline=deadline,
            poll_interval=poll_interval,
            host_id=host_id,
        )
        self.target_key = target_key
        self.route_scope = route_scope
        self.window = window
        self.exact = exact

    def arguments(self) -> dict[str, Any]:
        """All of them."""
        return {
            **super().arguments(),
            "target_key": self.target_key,
            "route_scope": self.route_scope,
            "window": self.window,
            "exact": self.exact,
        }

    async def look(self) -> tuple[str | None, Mapping[str, Any]]:
        """What is missing now."""
        from airflow_dpone.delivery.coverage import gaps
        from airflow_dpone.delivery.window import Window

        asked = Window.of_key(self.window)
        delivered = await self.ask(
            lambda journal: journal.delivered(self.target_key, asked, self.route_scope)
        )
        missing = gaps(asked, [one for one in delivered if not self.exact or one == asked])
        answer = {"gaps": [gap.key for gap in missing[:MAX_GAPS]], "gap_count": len(missing)}
        return (None if missing else "delivered"), answer
