"""Which journal governs a table, and whether this one still knows all that it promised."""

from __future__ import annotations

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.errors import JournalError


def refuse_foreign_gate(
    journal: JournalPort, target: tr.TargetIdentity | tr.TargetRef, gate: tr.GateRow
) -> None:
    """Raises JournalError when another journal governs the table, or when this one has lost its end."""
    name = f"{target.schema}.{target.table}"
    if gate.journal_id != journal.journal_id:
        text = f"{name} is governed by journal {gate.journal_id}, not by this one ({journal.journal_id})"
        raise JournalError("dpone.journal.not_bound_to_target", text, journal_id=journal.journal_id)
    known = journal.fence(gate.target_key)
    if gate.fence > known:
        text = f"{name} has seen fence {gate.fence}, this journal only gave {known}: its end was lost"
        raise JournalError("dpone.journal.older_than_target", text, journal_id=journal.journal_id)
