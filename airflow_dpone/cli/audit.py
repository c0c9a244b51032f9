"""``audit``: which windows the target lost, after it was put back to an older copy."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from airflow_dpone.cli.commands import Answer, Command
from airflow_dpone.cli.db import address_of
from airflow_dpone.cli.recovery import add_journal_and_target

if TYPE_CHECKING:
    from airflow_dpone.delivery.audit import Finding, TableAudit


def run_audit(chosen: argparse.Namespace) -> Answer:
    """``audit``."""
    from airflow_dpone import airflow_config
    from airflow_dpone.delivery.audit import audit
    from airflow_dpone.journal.store import open_journal
    from airflow_dpone.wiring import closed_target

    host_id = chosen.host_id or airflow_config.host_id()
    table = tuple(chosen.target_table) if chosen.target_table else None
    target = closed_target(chosen.target)
    with open_journal(address_of(chosen), host=host_id) as journal:
        found = audit(journal, target, table)
    for one in found.tables:
        _tell(one)
    count = sum(len(one.findings) for one in found.tables)
    again = f"{count} must be delivered again" if count else "none must be delivered again"
    print(f"{_windows(sum(one.windows for one in found.tables))} compared, {again}.", file=sys.stderr)
    return (0 if found.is_clean else 1), found.to_json()


def _tell(one: TableAudit) -> None:
    from airflow_dpone.delivery.audit import GATES

    message, next_action = GATES[one.gate]
    governed = f" ({one.governed_by})" if one.gate == "other_journal" else ""
    again = f", {one.superseded} older replaced since" if one.superseded else ""
    print(f"{'.'.join(one.target)}: {_windows(one.windows)}{again}; {message}{governed}.", file=sys.stderr)
    if next_action:
        print(f"  Next: {next_action}", file=sys.stderr)
    for finding in one.findings:
        _tell_finding(finding)


def _windows(count: int) -> str:
    return f"{count} window{'' if count == 1 else 's'}"


def _tell_finding(one: Finding) -> None:
    index = "" if one.map_index < 0 else f"[{one.map_index}]"
    window = "the whole table" if one.window_from is None else f"from {one.window_from} to {one.window_to}"
    who = f"DAG {one.dag_id}, run {one.run_id}, task {one.task_id}{index}, generation {one.generation}"
    print(f"- {window}, published at {one.published_at} by {who}: {one.message}.", file=sys.stderr)
    print(f"  Next: {one.next_action} [{one.reason}]", file=sys.stderr)


def _add_audit(command: argparse.ArgumentParser) -> None:
    add_journal_and_target(command)
    command.add_argument(
        "--target-table", nargs=2, metavar=("SCHEMA", "TABLE"), help="only this table; default: every one"
    )


COMMAND = Command(
    "audit",
    "name the windows that a target lost",
    "Compare what the journal calls published with the receipts in the target, and name every window that "
    "must be delivered again: after a target was put back to an older copy. Reads only. Exit code: 0 nothing "
    "found, 1 something found, 2 refused, wrong usage, or not reached.",
    _add_audit,
    run_audit,
)
