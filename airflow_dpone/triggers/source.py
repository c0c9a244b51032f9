"""Waits until nothing more is inserted into a window of the source."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_dpone.triggers.polling import SOURCE_THREADS, PollingTrigger, in_thread

if TYPE_CHECKING:
    from airflow_dpone.source_clickhouse.activity import Activity

MAX_PARTITIONS = 20
"""How many partitions an event names: it is kept in Airflow's database."""


class SourceSettledTrigger(PollingTrigger):
    """Waits until a window's partitions have got no new part for ``quiet_sec`` and no mutation is unfinished.

    Merges are no inserts. How long a partition is quiet is known from the part that its newest block came
    in, by the server's clock, as long as that part exists; and from what this trigger has seen itself, which
    a triggerer that is restarted begins anew. So it can be late, never early.

    Event: ``{"status": "settled"|"timeout"|"failed", "unfinished_mutations": n, "partitions": n, "busy":
    {ID: quiet_sec, ...}}``; ``busy``: at most 20 partitions that were not quiet long enough.

    :param source: connection id or URI. :param source_table: ``[database, table]``.
    :param window_column: the column that cuts the window. :param window: canonical text, ``START/END`` or
        ``full``.
    :param quiet_sec: how long without an insert. :param allow_empty: whether a window without any row may be
        settled.
    """

    failed_answer: ClassVar[Mapping[str, Any]] = {"unfinished_mutations": 0, "partitions": 0, "busy": {}}

    def __init__(
        self,
        *,
        source: str,
        source_table: list[str],
        window_column: str | None,
        window: str,
        quiet_sec: float,
        allow_empty: bool,
        deadline: float,
        poll_interval: float,
    ) -> None:
        super().__init__(deadline=deadline, poll_interval=poll_interval)
        self.source = source
        self.source_table = source_table
        self.window_column = window_column
        self.window = window
        self.quiet_sec = quiet_sec
        self.allow_empty = allow_empty
        self._first_seen: dict[tuple[str, int], float] = {}

    def arguments(self) -> dict[str, Any]:
        """All of them; the connection's secrets are read in the triggerer, at every look."""
        return {
            "source": self.source,
            "source_table": list(self.source_table),
            "window_column": self.window_column,
            "window": self.window,
            "quiet_sec": self.quiet_sec,
            "allow_empty": self.allow_empty,
        }

    async def look(self) -> tuple[str | None, Mapping[str, Any]]:
        """What happens in the source now."""
        found = await self._activity()
        quiet = self._quiet_sec(found, time.monotonic())
        busy = {partition: round(sec, 1) for partition, sec in quiet.items() if sec < self.quiet_sec}
        is_settled = not found.unfinished_mutations and not busy and bool(quiet or self.allow_empty)
        answer = {
            "unfinished_mutations": found.unfinished_mutations,
            "partitions": len(quiet),
            "busy": dict(sorted(busy.items(), key=lambda item: item[1])[:MAX_PARTITIONS]),
        }
        return ("settled" if is_settled else None), answer

    def _quiet_sec(self, found: Activity, now: float) -> dict[str, float]:
        keys = {partition: (partition, insert.block) for partition, insert in found.newest.items()}
        self._first_seen = {key: self._first_seen.get(key, now) for key in keys.values()}
        return {
            partition: max(float(insert.age_sec), now - self._first_seen[keys[partition]])
            for partition, insert in found.newest.items()
        }

    async def _activity(self) -> Activity:
        from airflow_dpone.connections import async_read_connection
        from airflow_dpone.delivery.window import Window
        from airflow_dpone.settings import SourcePlace
        from airflow_dpone.wiring import source_activity

        place = SourcePlace(
            source=self.source,
            source_table=self.source_table,  # type: ignore[arg-type]
            window_column=self.window_column,
        )
        connection = None if "://" in self.source else await async_read_connection(self.source, "source")
        window = Window.of_key(self.window)
        return await in_thread(SOURCE_THREADS, lambda: source_activity(place, window, connection))
