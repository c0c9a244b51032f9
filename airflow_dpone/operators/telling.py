"""What Airflow is told about a call: metrics, the events of outlets, and a failure in short."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.observability import stats

from airflow_dpone.delivery.records import DeliveryResult
from airflow_dpone.errors import DponeError, OutcomeUnknown

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_dpone.delivery.deliver import Done

MAX_TEXT_BYTES = 700
"""Of each text of a failure, as JSON writes it: two of them, codes and names stay below 2 KB."""
TOLD = (
    "delivery_key",
    "invocation_key",
    "generation",
    "window",
    "target",
    "rows",
    "deleted_rows",
    "operation_id",
    "receipt_sha256",
    "evidence_sha256",
    "already",
)
"""What of a delivery's result is in the event of an asset."""


def tell_outlets(context: Context, outlets: Iterable[Any], result: Mapping[str, Any]) -> None:
    """Puts the delivery's ids into the event of every asset that the task declares."""
    extra = {name: result[name] for name in TOLD if result.get(name) is not None}
    for outlet in outlets:
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra.update(extra)


def count(done: Done, dag_id: str) -> None:
    """``dpone.phase.<phase>`` for each phase that ran; of a delivery that was finished now also
    ``dpone.deliveries``, ``dpone.rows`` and ``dpone.bytes``."""
    tags = {"dag_id": dag_id}
    for phase, seconds in done.seconds.items():
        stats.timing(f"dpone.phase.{phase}", timedelta(seconds=seconds), tags=tags)
    if isinstance(done.result, DeliveryResult) and not done.result.already:
        stats.incr("dpone.deliveries", tags=tags)
        stats.incr("dpone.rows", done.result.rows, tags=tags)
        stats.incr("dpone.bytes", done.result.bytes, tags=tags)


def count_wait(seconds: float, dag_id: str) -> None:
    """``dpone.custody_wait``: how long a delivery waited for the target, when it stopped waiting."""
    stats.timing("dpone.custody_wait", timedelta(seconds=seconds), tags={"dag_id": dag_id})


def count_failure(error: DponeError, dag_id: str) -> None:
    """``dpone.failures``, and ``dpone.unknown_outcomes`` where nobody knows what became of a publication."""
    stats.incr("dpone.failures", tags={"dag_id": dag_id, "code": error.code})
    if isinstance(error, OutcomeUnknown):
        stats.incr("dpone.unknown_outcomes", tags={"dag_id": dag_id})


def failure(error: DponeError) -> dict[str, Any]:
    """The error as a small JSON (< 2 KB)."""
    return {
        "schema": "dpone.failure.v1",
        "error": type(error).__name__,
        "code": error.code,
        "retry": error.retry,
        "state": error.state_after,
        "reason": _cut(error.message),
        "next_action": _cut(error.next_action),
    }


def _cut(text: str) -> str:
    """Its beginning. JSON may write six bytes for a letter, or twelve."""
    left = MAX_TEXT_BYTES
    for place, letter in enumerate(text):
        left -= len(json.dumps(letter)) - 2
        if left < 0:
            return text[:place]
    return text
