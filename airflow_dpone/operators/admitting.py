"""The operators that may begin a delivery: they choose its window, and wait while the target is taken."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow_dpone.operators.delivery_operator import DeliveryOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_dpone.delivery.window import Window
    from airflow_dpone.errors import CustodyHeld, Problem
    from airflow_dpone.operators.windows import Rolling

POLL_SEC = 10.0
ON_CUSTODY_HELD = ("wait", "fail")


class AdmittingOperator(DeliveryOperator):
    """Adds window and custody to :class:`DeliveryOperator`.

    While another unfinished delivery owns the target, the task gives its worker back and waits in the
    triggerer; then the same try goes on.
    """

    may_open: ClassVar[bool] = True
    template_fields: Sequence[str] = (*DeliveryOperator.template_fields, "window_start", "window_end")

    def __init__(
        self,
        *,
        window_start: Any = None,
        window_end: Any = None,
        rolling: Rolling | None = None,
        on_custody_held: str = "wait",
        custody_wait_sec: float = 3_600.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.window_start = window_start
        self.window_end = window_end
        self.rolling = rolling
        self.on_custody_held = on_custody_held
        self.custody_wait_sec = custody_wait_sec

    def execute(self, context: Context) -> dict[str, Any]:
        """As for every operator; while the target is taken, it defers."""
        from airflow_dpone.operators import first_try

        first_try.note(context)
        return self.reported(context, lambda: self._work_or_wait(context, None, is_over=False))

    def go_on_after_custody(
        self, context: Context, event: Mapping[str, Any] | None = None, waiting_since: float | None = None
    ) -> dict[str, Any]:
        """After the wait, whatever it came to: the target is asked again, since another delivery may have
        been faster."""
        from airflow.sdk.exceptions import TaskDeferred

        from airflow_dpone.operators import telling
        from airflow_dpone.triggers.polling import raise_failure

        now = time.time()  # the wait ends here; what follows is work

        def go_on() -> dict[str, Any]:
            waits = False
            try:
                raise_failure(event)
                is_over = event is not None and event.get("status") == "timeout"
                return self._work_or_wait(context, waiting_since, is_over=is_over)
            except TaskDeferred:
                waits = True
                raise
            finally:
                if waiting_since is not None and not waits:
                    telling.count_wait(now - waiting_since, self.dag_id)

        return self.reported(context, go_on)

    def window(self, context: Context) -> tuple[Window | None, bool]:
        """As the parameters and the run say; a rolling window gives way to the one that was stored."""
        from airflow_dpone.operators.window_choice import choose_window

        return choose_window(self.strategy, self.window_start, self.window_end, context, self.rolling)

    def first_ti_id(self, context: Context) -> str:
        """As the run remembers it."""
        from airflow_dpone.operators import first_try

        return first_try.recall(context)

    def own_problems(self) -> list[Problem]:
        """Those of waiting."""
        from airflow_dpone.errors import Problem

        problems = []
        if self.on_custody_held not in ON_CUSTODY_HELD:
            text = f"must be one of {', '.join(ON_CUSTODY_HELD)}"
            problems.append(Problem("dpone.config.field", "on_custody_held", text))
        wait: Any = self.custody_wait_sec
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < math.inf:
            problems.append(
                Problem("dpone.config.field", "custody_wait_sec", "must be a number of at least 0")
            )
        return problems

    def _work_or_wait(
        self, context: Context, waiting_since: float | None, *, is_over: bool
    ) -> dict[str, Any]:
        """:param waiting_since: unix time of this try's first wait, None before it. :param is_over: it has
        waited for as long as it may."""
        from airflow_dpone.errors import CustodyHeld

        try:
            return self.work(context)
        except CustodyHeld as held:
            since = time.time() if waiting_since is None else waiting_since
            if is_over or not self._may_wait(held, since):
                raise
            self._wait(held, since)

    def _may_wait(self, held: CustodyHeld, since: float) -> bool:
        """An incident ends by a person's decision only: nobody waits for it."""
        in_vain = held.fields.get("state") == "INCIDENT"
        left = since + self.custody_wait_sec - time.time()
        return self.on_custody_held == "wait" and not in_vain and left > 0

    def _wait(self, held: CustodyHeld, since: float) -> NoReturn:
        from airflow_dpone import airflow_config
        from airflow_dpone.triggers.custody import CustodyClearTrigger

        deadline = since + self.custody_wait_sec
        self.log.info("%s Waiting for up to %.0f s.", held.message, deadline - time.time())
        conn_id, journal = self.journal_names()
        trigger = CustodyClearTrigger(
            journal_conn_id=conn_id,
            journal=journal,
            target_key=held.fields["target_key"],
            deadline=deadline,
            poll_interval=POLL_SEC,
            host_id=self.host_id or airflow_config.host_id(),
        )
        self.defer(trigger=trigger, method_name="go_on_after_custody", kwargs={"waiting_since": since})
