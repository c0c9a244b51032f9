"""One valid example of every document that the journal keeps: what tests/golden holds, event by event.

``payload`` and ``bindings`` are what a test writes; the whole documents are what a schema is asked about.
"""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from airflow_dpone.delivery.identity import canonical
from airflow_dpone.delivery.records import Json
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState

BINDINGS = ("stage_binding", "artifact_binding", "writer_binding", "observation")


@cache
def _golden(name: str) -> Any:
    path = Path(__file__).resolve().parents[1] / "golden" / f"{name}.json"
    return json.loads(path.read_text(encoding="ascii"))


@cache
def golden_delivery_events() -> tuple[Json, ...]:
    """Every delivery event of the golden files."""
    written = _golden("delivery_events")
    return tuple(event["document"] for event in [*written["stream"], *written["others"]])


@cache
def golden_attempt_events() -> tuple[Json, ...]:
    """Every attempt event of the golden files."""
    written = _golden("chunk_attempt_events")
    return tuple(event["document"] for event in [*written["verified"], *written["given_up"]])


def delivery_event(event: DeliveryState | DeliveryEvent) -> Json:
    """The first golden document of that event."""
    return deepcopy(next(found for found in golden_delivery_events() if found["event"] == event))


def attempt_event(event: AttemptEvent) -> Json:
    """The first golden document of that event; INCIDENT_RETAINED as it follows UNKNOWN."""
    if event is AttemptEvent.INCIDENT_RETAINED:
        return {**attempt_event(AttemptEvent.UNKNOWN), "event": event.value}
    return deepcopy(next(found for found in golden_attempt_events() if found["event"] == event))


def payload(event: DeliveryState | DeliveryEvent, **changes: Any) -> Json:
    """The payload of a delivery event, with other values in the fields that are named."""
    found: Json = delivery_event(event)["payload"]
    return {**found, **changes}


def tuned(max_rows: int) -> Json:
    """A payload of TUNED that differs from others."""
    limits = payload(DeliveryEvent.TUNED)["limits"]
    return payload(DeliveryEvent.TUNED, limits={**limits, "max_rows": max_rows})


def bindings(event: AttemptEvent, ordinal: int = 0) -> dict[str, Any]:
    """The four bindings of an attempt event, for a chunk."""
    found = attempt_event(event)
    found["artifact_binding"]["ordinal"] = ordinal
    return {name: found[name] for name in BINDINGS}


def evidence_document(**changes: Any) -> Json:
    """The evidence of a delivery, with other values in the fields that are named."""
    return {**deepcopy(_golden("evidence")["document"]), **changes}


def evidence_body(**changes: Any) -> bytes:
    """The same as it is stored."""
    return canonical(evidence_document(**changes))


def result_document() -> Json:
    """What a finished delivery says."""
    found: Json = deepcopy(_golden("delivery_result")["returned"])
    return found
