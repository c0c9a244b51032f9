"""A sensor for a target that no unfinished delivery owns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_dpone.sensors.waiting import JournalSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_dpone.triggers.custody import CustodyClearTrigger


class CustodyClearSensor(JournalSensor):
    """Waits until no unfinished delivery owns the target.

    What it has seen is not a reservation: deliveries take turns by themselves. It is for what must not run
    beside a delivery, such as maintenance of the target. Returns ``{"status": "clear", "holder": {}}``.
    """

    def trigger(self, context: Context, deadline: float) -> CustodyClearTrigger:
        """See the class."""
        from airflow_dpone.triggers.custody import CustodyClearTrigger

        return CustodyClearTrigger(**self.reads(deadline))

    def late(self, event: Mapping[str, Any]) -> str:
        """Names the owner."""
        holder = event.get("holder")
        if not holder:
            return "the journal did not answer."
        return (
            f"the target is owned by DAG {holder['dag_id']}, run {holder['run_id']}, task "
            f"{holder['task_id']} (generation {holder['generation']}, {holder['state']}, delivery "
            f"{holder['invocation_key']}) for {holder['age_sec']:.0f} s; clear that "
            "task, or see `python -m airflow_dpone recovery`."
        )
