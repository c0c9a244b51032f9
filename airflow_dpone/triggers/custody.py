"""Waits until no unfinished delivery owns a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from airflow_dpone.triggers.journal import JournalTrigger


class CustodyClearTrigger(JournalTrigger):
    """Waits until custody of a target is clear.

    Event: ``{"status": "clear"|"timeout"|"failed", "holder": {...}}``. ``holder`` is empty when nobody owns
    the target; otherwise it names the owner at the last look: ``dag_id``, ``run_id``, ``task_id``,
    ``map_index``, ``invocation_key``, ``generation``, ``state``, ``since`` and ``age_sec``. ``failed`` also
    has ``error``; :func:`~airflow_dpone.triggers.polling.raise_failure` raises it in the task.

    That it was clear is an observation: another delivery may claim the target before the task goes on.

    :param target_key: the target's key (64 hex digits). Other parameters: see the classes above it.
    """

    failed_answer: ClassVar[Mapping[str, Any]] = {"holder": {}}

    def __init__(
        self,
        *,
        journal_conn_id: str | None,
        journal: str | None,
        target_key: str,
        deadline: float,
        poll_interval: float,
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

    def arguments(self) -> dict[str, Any]:
        """All of them."""
        return {**super().arguments(), "target_key": self.target_key}

    async def look(self) -> tuple[str | None, Mapping[str, Any]]:
        """Who owns the target now."""
        holder = await self.ask(lambda journal: journal.holder(self.target_key))
        return (None if holder else "clear"), {"holder": holder}
