"""The target's own memory: who may publish (the gate), and what was published (receipts).

The gate moves under the target's application lock, by one guarded UPDATE that changes exactly one row or
nothing; why it changed nothing is read afterwards, in the same transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.window import instant_text
from airflow_dpone.errors import ConfigurationError, DponeError, Fenced, Incident, JournalError, TargetBusy
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.session import Row, Session

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

    @property
    def key(self) -> bytes:
        """The gate's primary key."""
        return bytes.fromhex(self.target.target_key)


def enter(session: Session, target_key: str, timeout_ms: int) -> None:
    """Takes the target's lock for the open transaction: whoever moves the gate or publishes waits for it.

    :raises TargetBusy: ``dpone.target.busy``: it was not granted in time.
    """
    if not session.lock(sql.target_lock(target_key), timeout_ms):
        text = f"Another session holds the lock of the target, for longer than {timeout_ms / 1000:g} s."
        raise TargetBusy("dpone.target.busy", text)


def read_gate(session: Session, target_key: str, schemas: sql.Schemas, *, lock: bool) -> tr.GateRow | None:
    """The gate of a target. :param lock: inside a transaction: nobody changes it until that ends."""
    text = sql.gate(schemas) if lock else sql.gate_as_it_is(schemas)
    row = session.row(text, bytes.fromhex(target_key))
    if row is None:
        return None
    key, object_id, created, journal_id, route_scope, fence, in_flight, last, receipt = row
    return tr.GateRow(
        target_key=key.hex(),
        target_object_id=object_id,
        target_created=created.hex(),
        journal_id=str(journal_id).lower(),
        route_scope=route_scope.hex(),
        fence=fence,
        in_flight_operation_id=_hex(in_flight),
        last_operation_id=_hex(last),
        last_receipt_sha256=_hex(receipt),
    )


def claim(session: Session, wanted: GateClaim, schemas: sql.Schemas, *, take_over: bool) -> tr.GateRow:
    """Creates or raises the gate, inside the caller's transaction and under the target's lock."""
    target = wanted.target
    before = read_gate(session, target.target_key, schemas, lock=True)
    incarnation = (target.object_id, bytes.fromhex(target.created))
    journal, route = str(uuid.UUID(wanted.journal_id)), bytes.fromhex(wanted.route_scope)
    if before is None:
        parameters = (wanted.key, target.schema, target.table, *incarnation, journal, route, wanted.fence)
        changed = session.number(sql.insert_gate(schemas), *parameters)
    else:
        if before.route_scope != wanted.route_scope and not take_over:
            raise why_not(before, wanted)
        moved = (wanted.fence, route, *incarnation, wanted.key, journal, wanted.fence)
        changed = session.number(sql.claim_gate(schemas), *moved)
    after = read_gate(session, target.target_key, schemas, lock=True)
    if changed != 1 or after is None:
        raise why_not(before, wanted)
    return after


def adopt(
    session: Session, target_key: str, schemas: sql.Schemas, *, journal_id: str, fence: int, take_over: bool
) -> tr.GateRow | None:
    """Gives the gate to this journal, inside the caller's transaction; returns it as it was."""
    before = read_gate(session, target_key, schemas, lock=True)
    if before is None:
        return None
    journal = str(uuid.UUID(journal_id))
    if before.journal_id != journal and not take_over:
        text = f"The target is governed by journal {before.journal_id}, this one is {journal_id}."
        raise JournalError("dpone.journal.not_bound_to_target", text, journal_id=before.journal_id)
    parameters = (journal, fence, bytes.fromhex(target_key), fence)
    if session.number(sql.adopt_gate(schemas), *parameters) != 1:
        text = f"The gate is at fence {before.fence}, this process has {fence}."
        raise Fenced("dpone.target.fenced", text, fence=before.fence)
    return before


def refuse_replaced(session: Session, claim: tr.Claim, schemas: sql.Schemas) -> None:
    """Raises Fenced when the gate has seen a greater fence. Its row stays locked until the commit."""
    found = read_gate(session, claim.target_key, schemas, lock=True)
    if found is not None and found.fence > claim.fence:
        text = f"The gate is at fence {found.fence}, this process has {claim.fence}."
        raise Fenced("dpone.target.fenced", text, fence=found.fence)


def why_not(found: tr.GateRow | None, wanted: GateClaim) -> DponeError:
    """Why a gate did not move."""
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


def read_receipt(session: Session, operation_id: str, schemas: sql.Schemas) -> tr.Receipt | None:
    """The receipt of an operation, as committed."""
    row = session.row(sql.receipt(schemas), bytes.fromhex(operation_id))
    return None if row is None else receipt_of(row)


def read_receipts(
    session: Session, operation_ids: Sequence[str], schemas: sql.Schemas
) -> dict[str, tr.Receipt]:
    """The receipts that are there, by operation, as committed."""
    keys = [bytes.fromhex(operation_id) for operation_id in operation_ids]
    found: dict[str, tr.Receipt] = {}
    for first in range(0, len(keys), sql.RECEIPTS_AT_ONCE):
        asked = keys[first : first + sql.RECEIPTS_AT_ONCE]
        filled = asked + asked[-1:] * (sql.RECEIPTS_AT_ONCE - len(asked))
        for receipt in map(receipt_of, session.rows(sql.receipts(schemas), *filled)):
            found[receipt.draft.operation_id] = receipt
    return found


def receipt_of(row: Row) -> tr.Receipt:
    """A row of :data:`~.statements.RECEIPT_COLUMNS`."""
    found: dict[str, Any] = dict(zip(sql.RECEIPT_COLUMNS, row, strict=True))
    found.update({name: found[name].hex() for name in _HASHES})
    found["journal_id"] = str(found["journal_id"]).lower()
    fork = found.pop("recovery_fork_id")
    server = {
        "receipt_sha256": found.pop("receipt_sha256"),
        "deleted_rows": found.pop("deleted_rows"),
        "published_at": _instant(found.pop("published_at")),
        "recovery_fork_id": None if fork is None else str(fork).lower(),
        "durability": found.pop("durability"),
    }
    return tr.Receipt(draft=tr.ReceiptDraft(**found), **server)


def draft_values(draft: tr.ReceiptDraft) -> tuple[object, ...]:
    """The client-known columns of a receipt as parameters, in the order of the table."""
    values: dict[str, object] = {**draft.to_json(), "fence": draft.fence, "receipt_sha256": draft.sha256}
    values.update({name: bytes.fromhex(str(values[name])) for name in _HASHES})
    values["journal_id"] = str(uuid.UUID(draft.journal_id))
    return tuple(values[name] for name in sql.RECEIPT_COLUMNS if name in values)


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def _instant(text: str) -> str:
    return instant_text(datetime.fromisoformat(text).replace(tzinfo=UTC))
