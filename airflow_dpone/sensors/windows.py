"""Sensors for windows that were delivered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_dpone.sensors.waiting import JournalSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_dpone.operators.windows import Rolling
    from airflow_dpone.triggers.windows import WindowsDeliveredTrigger


class WindowsCoveredSensor(JournalSensor):
    """Waits until delivered windows cover an interval of a target, whatever cut them: a month by its days.

    Returns ``{"status": "delivered", "gaps": [], "gap_count": 0}``; on timeout the error names the gaps.

    :param window_start: start of the interval, ISO text with a zone or a datetime (templated).
    :param window_end: its end, exclusive. Without both: the run's configuration, then ``rolling``, then the
        run's data interval. :param rolling: as in ``DeliverWindowOperator``.
    :param route_source: count one route only: its ``source_name``, which by default is the source's
        connection id or the URI's scheme; together with ``route_table`` and ``route_column``.
    :param route_table: the route's ``source_table``. :param route_column: its ``window_column``.

    Other parameters: see :class:`~airflow_dpone.sensors.waiting.JournalSensor`. A full refresh has no
    interval and covers none.
    """

    template_fields: Sequence[str] = (*JournalSensor.template_fields, "window_start", "window_end")
    exact: ClassVar[bool] = False

    def __init__(
        self,
        *,
        window_start: Any = None,
        window_end: Any = None,
        rolling: Rolling | None = None,
        route_source: str | None = None,
        route_table: Sequence[str] | None = None,
        route_column: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.window_start = window_start
        self.window_end = window_end
        self.rolling = rolling
        self.route_source = route_source
        self.route_table = route_table
        self.route_column = route_column

    def trigger(self, context: Context, deadline: float) -> WindowsDeliveredTrigger:
        """See the class."""
        from airflow_dpone.triggers.windows import WindowsDeliveredTrigger

        return WindowsDeliveredTrigger(
            window=self._window(context),
            exact=self.exact,
            route_scope=self._route_scope(),
            **self.reads(deadline),
        )

    def late(self, event: Mapping[str, Any]) -> str:
        """Names the gaps."""
        if not event.get("gap_count"):
            return "the journal did not answer."
        return f"{event['gap_count']} gap(s): {', '.join(event['gaps'])}"

    def _window(self, context: Context) -> str:
        from airflow_dpone.operators.window_choice import choose_window

        choice = choose_window("window_replace", self.window_start, self.window_end, context, self.rolling)
        return choice[0].key

    def _route_scope(self) -> str | None:
        from airflow_dpone.delivery.identity import route_scope
        from airflow_dpone.errors import ConfigurationError, Problem

        if self.route_source is None and self.route_table is None:
            return None
        table = tuple(self.route_table or ())
        if not self.route_source or len(table) != 2:
            text = "a route is named by route_source and route_table=(database, table)"
            raise ConfigurationError.of([Problem("dpone.config.field", "route_table", text)])
        return route_scope(self.route_source, *table, self.route_column)


class WindowDeliveredSensor(WindowsCoveredSensor):
    """Waits until exactly this window of a target was delivered, at least once. It takes what
    WindowsCoveredSensor takes.

    :param full_refresh: wait for the first delivery of the whole table instead of a window.
    """

    exact = True

    def __init__(self, *, full_refresh: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.full_refresh = full_refresh

    def _window(self, context: Context) -> str:
        from airflow_dpone.delivery.window import Window

        return Window.full().key if self.full_refresh else super()._window(context)
