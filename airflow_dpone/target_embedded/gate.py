"""The target's own memory: who may publish (the gate), and what was published (receipts).

Every move of the gate is one guarded UPDATE that changes exactly one row or nothing; why it changed nothing
is read afterwards, in the same transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.window import instant_text
from airflow_dpone.errors import ConfigurationError, DponeError, Fenced, Incident, JournalError
from airflow_dpone.target_embedded import catalog
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.installation import naive
from airflow_dpone.target_embedded.session import Session

_HASHES = (
    "operation_id",
    "target_key",
    "delivery_key",
    "invocation_key",
    "route_scope",
    "intent_sha256",
    "digest",
    "wire_layout_sha256",
    "receipt_sha256",
)


@dataclass(frozen=True)
class GateClaim:
    """Who wants the gate, and with which fence."""

    target: tr.TargetRef
    journal_id: str
    route_scope: str
    fence: int

    def parameters(self) -> dict[str, object]:
        """For the guarded UPDATEs."""
        return {
            "target_key": bytes.fromhex(self.target.target_key),
            "object_id": self.target.object_id,
            "created": bytes.fromhex(self.target.created),
            "journal_id": uuid.UUID(self.journal_id),
            "route_scope": bytes.fromhex(self.route_scope),
            "fence": self.fence,
        }


def read_gate(session: Session, target_key: str) -> tr.GateRow | None:
    """The gate of a target."""
    row = session.row(sql.GATE, {"target_key": bytes.fromhex(target_key)})
    if row is None:
        return None
    key, object_id, created, journal_id, route_scope, fence, in_flight, last, receipt = row
    return tr.GateRow(
        target_key=key.hex(),
        target_object_id=object_id,
        target_created=created.hex(),
        journal_id=str(journal_id),
        route_scope=route_scope.hex(),
        fence=fence,
        in_flight_operation_id=_hex(in_flight),
        last_operation_id=_hex(last),
        last_receipt_sha256=_hex(receipt),
    )


def claim(session: Session, wanted: GateClaim, *, take_over: bool) -> tr.GateRow:
    """Creates or raises the gate inside the caller's transaction."""
    before = read_gate(session, wanted.target.target_key)
    parameters = wanted.parameters()
    if before is None:
        names = {"schema": wanted.target.schema, "table": wanted.target.table}
        changed = session.number(sql.INSERT_GATE, {**parameters, **names})
    else:
        if before.route_scope != wanted.route_scope and not take_over:
            raise _why_not(before, wanted)
        changed = session.number(sql.CLAIM_GATE, parameters)
    after = read_gate(session, wanted.target.target_key)
    if changed != 1 or after is None:
        raise _why_not(before, wanted)
    return after


def adopt(
    session: Session, target_key: str, *, journal_id: str, fence: int, take_over: bool
) -> tr.GateRow | None:
    """Gives the gate to this journal, inside the caller's transaction; returns it as it was."""
    before = read_gate(session, target_key)
    if before is None:
        return None
    if before.journal_id != str(uuid.UUID(journal_id)) and not take_over:
        text = f"The target is governed by journal {before.journal_id}, this one is {journal_id}."
        raise JournalError("dpone.journal.not_bound_to_target", text, journal_id=before.journal_id)
    parameters = {
        "target_key": bytes.fromhex(target_key),
        "journal_id": uuid.UUID(journal_id),
        "fence": fence,
    }
    if session.number(sql.ADOPT_GATE, parameters) != 1:
        text = f"The gate is at fence {before.fence}, this process has {fence}."
        raise Fenced("dpone.target.fenced", text, fence=before.fence)
    return before


def refuse_replaced(session: Session, claim: tr.Claim) -> None:
    """Raises Fenced when the gate has seen a greater fence. The file lock keeps it so until the commit."""
    found = read_gate(session, claim.target_key)
    if found is not None and found.fence > claim.fence:
        text = f"The gate is at fence {found.fence}, this process has {claim.fence}."
        raise Fenced("dpone.target.fenced", text, fence=found.fence)


def raise_for_probe(session: Session, wanted: GateClaim) -> tr.GateRow:
    """Raises the gate's fence inside the caller's transaction, so that no older send can become effective."""
    before = read_gate(session, wanted.target.target_key)
    if session.number(sql.PROBE_GATE, wanted.parameters()) != 1 or before is None:
        raise _why_not(before, wanted)
    return before


def enter(session: Session, wanted: GateClaim, operation_id: str) -> str | None:
    """The publication's first step. Returns the code of why it may not, or None when the gate is ours."""
    operation = {"operation_id": bytes.fromhex(operation_id)}
    if session.number(sql.PUBLISH_GATE, {**wanted.parameters(), **operation}) == 1:
        return None
    found = read_gate(session, wanted.target.target_key)
    if found is None:
        return "dpone.publish.gate_missing"
    if not _is_governed_by(found, wanted):
        return "dpone.publish.gate_governed_by_other"
    if found.fence >= wanted.fence:
        return "dpone.publish.fenced"
    return "dpone.publish.in_flight_committed"


def finish(session: Session, wanted: GateClaim, draft: tr.ReceiptDraft) -> bool:
    """The publication's last step; False when the gate is not as :func:`enter` left it."""
    parameters = {
        "target_key": bytes.fromhex(wanted.target.target_key),
        "fence": wanted.fence,
        "operation_id": bytes.fromhex(draft.operation_id),
        "receipt_sha256": bytes.fromhex(draft.sha256),
    }
    return session.number(sql.FINISH_GATE, parameters) == 1


def _is_governed_by(found: tr.GateRow, wanted: GateClaim) -> bool:
    target = wanted.target
    return (found.target_object_id, found.target_created, found.journal_id, found.route_scope) == (
        target.object_id,
        target.created,
        str(uuid.UUID(wanted.journal_id)),
        wanted.route_scope,
    )


def _why_not(found: tr.GateRow | None, wanted: GateClaim) -> DponeError:
    where = f"{wanted.target.schema}.{wanted.target.table}"
    if found is None:
        return Incident("dpone.target.gate_missing", f"The gate row of {where} is gone.")
    if found.journal_id != str(uuid.UUID(wanted.journal_id)):
        return JournalError(
            "dpone.journal.not_bound_to_target",
            f"{where} is governed by journal {found.journal_id}, this one is {wanted.journal_id}.",
            journal_id=found.journal_id,
        )
    if found.route_scope != wanted.route_scope:
        return ConfigurationError(
            "dpone.target.owned_by_other_route",
            f"{where} is delivered by another route: two routes would replace each other's rows.",
        )
    if found.fence >= wanted.fence:
        return Fenced(
            "dpone.target.fenced",
            f"The gate of {where} is at fence {found.fence}, this process has {wanted.fence}.",
            fence=found.fence,
        )
    if found.in_flight_operation_id is not None:
        return Incident(
            "dpone.target.in_flight_committed",
            f"The gate of {where} says that a part of a publication was committed.",
            operation_id=found.in_flight_operation_id,
        )
    text = f"The gate of {where} belongs to another incarnation of the table."
    return Incident("dpone.target.incarnation_gone", text)


# ---- receipts -------------------------------------------------------------------------------------


def read_receipt(session: Session, operation_id: str) -> tr.Receipt | None:
    """The receipt of an operation."""
    row = session.row(sql.RECEIPT, {"operation_id": bytes.fromhex(operation_id)})
    return None if row is None else _receipt_of(row)


def read_receipts(session: Session, operation_ids: Sequence[str]) -> dict[str, tr.Receipt]:
    """The receipts that are there, by operation."""
    asked = {"operation_ids": [bytes.fromhex(operation_id) for operation_id in operation_ids]}
    found = map(_receipt_of, session.rows(sql.RECEIPTS, asked))
    return {receipt.draft.operation_id: receipt for receipt in found}


def _receipt_of(row: Sequence[Any]) -> tr.Receipt:
    found: dict[str, Any] = dict(zip(sql.RECEIPT_COLUMNS, row, strict=True))
    found.update({name: found[name].hex() for name in _HASHES})
    found["journal_id"] = str(found["journal_id"])
    fork = found.pop("recovery_fork_id")
    server = {
        "receipt_sha256": found.pop("receipt_sha256"),
        "deleted_rows": found.pop("deleted_rows"),
        "published_at": _instant(found.pop("published_at")),
        "recovery_fork_id": None if fork is None else str(fork),
        "durability": found.pop("durability"),
    }
    return tr.Receipt(draft=tr.ReceiptDraft(**found), **server)


def insert_receipt(session: Session, draft: tr.ReceiptDraft, *, deleted_rows: int, now: str) -> None:
    """Writes the receipt inside the publication."""
    values: dict[str, object] = {**draft.to_json(), "fence": draft.fence, "receipt_sha256": draft.sha256}
    values.update({name: bytes.fromhex(str(values[name])) for name in _HASHES})
    values["journal_id"] = uuid.UUID(draft.journal_id)
    server = {
        "deleted_rows": deleted_rows,
        "published_at": naive(now),
        "recovery_fork_id": None,
        "durability": "full",
    }
    session.execute(sql.INSERT_RECEIPT, {**values, **server})


def is_of_this_intent(session: Session, receipt: tr.Receipt, request: tr.PublishRequest) -> bool:
    """Whether a receipt that is there is this very publication, and its table is still the same one."""
    same = (receipt.draft.intent_version, receipt.draft.intent_sha256) == (
        request.draft.intent_version,
        request.draft.intent_sha256,
    )
    return same and catalog.is_same_incarnation(session, request.target)


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _instant(value: datetime) -> str:
    return instant_text(value.replace(tzinfo=UTC))
