"""A sensor for a source window into which nothing more is inserted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from airflow_dpone.sensors.waiting import WaitingSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_dpone.delivery.window import Window
    from airflow_dpone.operators.windows import Rolling
    from airflow_dpone.settings import SourcePlace
    from airflow_dpone.triggers.source import SourceSettledTrigger


class SourceSettledSensor(WaitingSensor):
    """Waits until the partitions with rows of a window have got no new part for ``quiet``, and no mutation of
    the table is unfinished. Merges do not count.

    It looks at whole partitions: a table that is partitioned by month, and written to all the time, is never
    quiet. A delivery is right with or without it; it only saves delivering a window twice.
    Returns ``{"status": "settled", "unfinished_mutations": 0, "partitions": n, "busy": {}}``.

    :param source: connection id or URI, as in ``DeliverWindowOperator``.
    :param source_table: ``(database, table)``. :param window_column: the column that cuts the window.
    :param quiet: how long without an insert; a timedelta or seconds.
    :param allow_empty: whether a window without any row may be settled; otherwise its first row is waited
        for.
    :param window_start: start of the window, ISO text with a zone or a datetime (templated).
    :param window_end: its end, exclusive. Without both: the run's configuration, then ``rolling``, then the
        run's data interval. :param rolling: as in ``DeliverWindowOperator``.
    :param full_refresh: look at the whole table instead of a window.
    """

    template_fields: Sequence[str] = ("source", "source_table", "window_start", "window_end")

    def __init__(
        self,
        *,
        source: str,
        source_table: Sequence[str],
        window_column: str | None = None,
        quiet: timedelta | float = timedelta(minutes=10),
        allow_empty: bool = True,
        window_start: Any = None,
        window_end: Any = None,
        rolling: Rolling | None = None,
        full_refresh: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.source_table = source_table
        self.window_column = window_column
        self.quiet = quiet
        self.allow_empty = allow_empty
        self.window_start = window_start
        self.window_end = window_end
        self.rolling = rolling
        self.full_refresh = full_refresh

    def trigger(self, context: Context, deadline: float) -> SourceSettledTrigger:
        """See the class."""
        from airflow_dpone.errors import ConfigurationError, Problem
        from airflow_dpone.triggers.source import SourceSettledTrigger

        problems: list[Problem] = []
        found: dict[str, Any] = {}
        for name, build in (("place", self._place), ("window", lambda: self._window(context))):
            try:
                found[name] = build()
            except ConfigurationError as error:
                problems += error.problems
        quiet_sec = self.quiet.total_seconds() if isinstance(self.quiet, timedelta) else self.quiet
        if self.window_column is None and not self.full_refresh:
            text = "is needed: the source column that the window cuts"
            problems.append(Problem("dpone.config.field", "window_column", text))
        if isinstance(quiet_sec, bool) or not isinstance(quiet_sec, int | float) or not 0 <= quiet_sec < inf:
            text = "must be a timedelta or a number of seconds, of at least 0"
            problems.append(Problem("dpone.config.field", "quiet", text))
        if problems:
            raise ConfigurationError.of(problems)
        return SourceSettledTrigger(
            source=found["place"].source,
            source_table=list(found["place"].source_table),
            window_column=self.window_column,
            window=found["window"].key,
            quiet_sec=float(quiet_sec),
            allow_empty=self.allow_empty,
            deadline=deadline,
            poll_interval=self.poke_interval,
        )

    def late(self, event: Mapping[str, Any]) -> str:
        """Names what still happened."""
        mutations, busy = event.get("unfinished_mutations"), event.get("busy") or {}
        if not event.get("partitions") and not mutations:
            return "the source has no row of the window, or did not answer."
        quiet = ", ".join(f"{partition} for {sec:g} s" for partition, sec in busy.items())
        return (
            f"{mutations} unfinished mutation(s); partitions that were quiet too shortly: {quiet or 'none'}."
        )

    def _place(self) -> SourcePlace:
        from airflow_dpone.settings import SourcePlace

        return SourcePlace(
            source=self.source,
            source_table=self.source_table,  # type: ignore[arg-type]
            window_column=self.window_column,
        )

    def _window(self, context: Context) -> Window:
        from airflow_dpone.delivery.window import Window
        from airflow_dpone.operators.window_choice import choose_window

        if self.full_refresh:
            return Window.full()
        choice = choose_window("window_replace", self.window_start, self.window_end, context, self.rolling)
        return choice[0]
