"""The first try of a task in a run, as Airflow's task state store remembers it.

A later try must know whether a delivery that is finished was finished in this run, or in one of the same name
that was deleted. Airflow says neither: number and id belong to the try alone. The store belongs to the run: a
retry and a clear keep it, and deleting the run deletes it.

Nothing depends on it. Where it says nothing, a try with a number that the journal has not seen is a retry.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)
KEY = "dpone_first_try"


def note(context: Context) -> None:
    """Remembers the first try, before anything of it can fail. Others are not remembered: the run of a store
    that was emptied by hand would look younger than it is."""
    ti, store = context["ti"], context.get("task_state_store")
    if store is None or ti.try_number != 1:
        return
    try:
        store.set(KEY, str(ti.id))
    except Exception as error:  # noqa: BLE001 - the delivery needs nothing of it
        log.warning("the first try could not be noted in Airflow's task state: %s", type(error).__name__)


def recall(context: Context) -> str:
    """The id of the first try, seen from a later one; empty when nobody knows."""
    ti, store = context["ti"], context.get("task_state_store")
    if store is None or ti.try_number <= 1:
        return ""
    try:
        found = store.get(KEY)
    except Exception as error:  # noqa: BLE001 - the delivery needs nothing of it
        log.warning("the first try could not be read from Airflow's task state: %s", type(error).__name__)
        return ""
    return found if isinstance(found, str) else ""
