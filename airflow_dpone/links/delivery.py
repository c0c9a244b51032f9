"""From a task in Airflow's UI to the page of its delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import Context

PAGES = "/dpone"


class DeliveryLink(BaseOperatorLink):
    """The task's extra link. Ids only; who may follow it is decided where it leads."""

    name = "Delivery"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """What Airflow stores when the task has ended, by :func:`delivery_page`."""
        name = getattr(operator, "delivery_name", None)
        map_index = -1 if ti_key.map_index is None else ti_key.map_index
        task_id = (name() if name else None) or ti_key.task_id
        return delivery_page(ti_key.dag_id, ti_key.run_id, task_id, map_index)


def delivery_page(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    """Where a requester's newest delivery is shown, below the address of Airflow's server.

    :param task_id: the task, or the group that delivers.
    """
    from airflow.sdk import conf

    below = urlsplit(conf.get("api", "base_url", fallback=None) or "").path.rstrip("/")
    asked = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index}
    return f"{below}{PAGES}/delivery?{urlencode(asked)}"


def offer_link(context: Context) -> None:
    """Makes the link appear while the task runs, and stay if its process is killed: Airflow itself stores it
    only at the task's end. To be called first in ``execute``; a failure is only logged."""
    task, ti = context["task"], context["ti"]
    link = DeliveryLink()
    try:
        ti.xcom_push(key=link.xcom_key, value=link.get_link(task, ti_key=ti))
    except Exception as error:  # noqa: BLE001 - a link is no reason to deliver nothing
        task.log.warning("the link to the delivery's page was not stored: %s", type(error).__name__)
