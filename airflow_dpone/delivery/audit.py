"""Are the windows that this journal calls published still in the target?

Nobody looks at a finished delivery again, so a target that was put back to an older copy shows old rows and
says nothing. An audit compares what the journal recorded of each publication with the receipt in the target,
and names every window that must be delivered again. It reads only, takes no lease and disturbs no delivery.
Rows are not counted and not hashed again: who wrote around the gate is not found out.

The journal is read before the target: what it has recorded was in the target before.
"""

from __future__ import annotations

import difflib
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Protocol

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.coverage import Covered
from airflow_dpone.delivery.states import ENDED, DeliveryState
from airflow_dpone.delivery.window import FULL_KEY
from airflow_dpone.errors import ConfigurationError

log = logging.getLogger(__name__)
S = DeliveryState
RECEIPTS_AT_ONCE = 100
CLEAR = (
    "Clear the task (of a group: admit, with all after it): it delivers the window again. "
    "From Python: deliver(..., rerun=True)."
)
TABLE_GONE = (
    "Nothing, if the table was dropped on purpose: audit the others with --target-table. "
    "Else make it, or set options.create_target. Then:"
)
GATES: Mapping[str, tuple[str, str]] = {
    "as_published": ("the target remembers the newest publication", ""),
    "behind": (
        "the target does not remember the newest publication: it was put back to an older copy",
        "Deliver the windows again that are named; the gate needs nothing else.",
    ),
    "missing": (
        "the table has no row in target_gate any more",
        "Deliver the windows again that are named; the next delivery makes that row.",
    ),
    "other_journal": (
        "another journal governs the table, and what it delivered since is not known here",
        "Audit the table with that journal, or bind it to this one: "
        "python -m airflow_dpone recovery adopt-target.",
    ),
    "newer_than_journal": (
        "the target has seen greater fences than this journal gave: this journal is an older copy",
        "Put the newest copy of the journal back, or go on with this one: "
        "python -m airflow_dpone recovery adopt-target.",
    ),
    "unknown": ("the table cannot be looked at", "See why, then run the audit again."),
}
"""How target and journal agree about a table: what it means, and what to do."""


class AuditJournal(Protocol):
    """What an audit asks the journal."""

    journal_id: str

    def targets(self) -> list[tr.TargetRef]:
        """Every target that the journal knows, by name."""

    def publications(self, target_key: str) -> Iterator[jr.Publication]:
        """Everything that was recorded as published into a target."""

    def newest_invocation(self, delivery_key: str) -> jr.Invocation | None:
        """The newest generation of a requester."""

    def fence(self, target_key: str) -> int:
        """The highest fence ever given for the target; 0 when none."""


class AuditTarget(AbstractContextManager["AuditTarget"], Protocol):
    """What an audit asks the target."""

    def identify(
        self, schema: str, table: str, *, initialise: bool, may_be_missing: bool = False
    ) -> tr.TargetIdentity:
        """Installation, incarnation and gate of a table."""

    def read_receipts(self, operation_ids: Sequence[str]) -> Mapping[str, tr.Receipt]:
        """The receipts that are there, by operation, as committed."""


@dataclass(frozen=True)
class Finding:
    """A window whose rows the target cannot vouch for.

    :param window_from: first instant; None, as ``window_to``, for the whole table.
    :param reason: ``receipt_missing``, ``receipt_differs``, ``table_missing`` or ``table_replaced``.
    """

    target: tuple[str, str]
    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    generation: int
    invocation_key: str
    window: str
    window_from: str | None
    window_to: str | None
    published_at: str
    reason: str
    message: str
    next_action: str


@dataclass(frozen=True)
class TableAudit:
    """One table.

    :param windows: how many were compared. :param superseded: publications that were not, because later ones
        have replaced all of their window.
    :param gate: a word of :data:`GATES`. :param governed_by: the journal that the gate names.
    """

    target: tuple[str, str]
    target_key: str
    windows: int
    superseded: int
    gate: str
    governed_by: str | None
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return self.gate == "as_published" and not self.findings

    def to_json(self) -> r.Json:
        """Its part of the audit's document."""
        message, next_action = GATES[self.gate]
        body = {**asdict(self), "gate_message": message, "gate_next_action": next_action}
        return {**body, "target": list(self.target), "findings": len(self.findings)}


@dataclass(frozen=True)
class Audit:
    """What an audit found, table by table."""

    journal_id: str
    installation_id: str
    tables: tuple[TableAudit, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return all(table.is_clean for table in self.tables)

    def to_json(self) -> r.Json:
        """``dpone.audit.v1``."""
        findings = [finding for table in self.tables for finding in table.findings]
        return {
            "schema": "dpone.audit.v1",
            "journal_id": self.journal_id,
            "installation_id": self.installation_id,
            "clean": self.is_clean,
            "tables": [table.to_json() for table in self.tables],
            "findings": [{**asdict(finding), "target": list(finding.target)} for finding in findings],
        }


def audit(journal: AuditJournal, target: AuditTarget, table: tuple[str, str] | None = None) -> Audit:
    """Compares every table of this database that the journal has deliveries of, or one of them.

    One table at a time; memory grows with the windows of one table, by some 1,500 bytes each. Raises
    ConfigurationError ``dpone.audit.nothing_to_compare`` where journal and database have no table in common,
    and what journal and target raise when they cannot be read.
    """
    every = journal.targets()
    known = [ref for ref in every if table is None or _is_named(ref, table)]
    with target:
        installation_id = _installation(target, known)
        common = [ref for ref in known if _belongs(ref, installation_id)]
        if installation_id is None or not common:
            what = "no delivery into any table" if table is None else f"no delivery into {'.'.join(table)}"
            text = f"the journal knows {what} of this database, as the database names itself now"
            close = _close_names(target, every, table) if table and not known else []
            if close:
                text += f"; did you mean {' or '.join(close)}?"
            next_action = "Correct the table's name." if close else None
            raise ConfigurationError("dpone.audit.nothing_to_compare", text, next_action=next_action)
        tables = tuple(_audit_table(journal, target, ref) for ref in common)
    return Audit(journal.journal_id, installation_id, tables)


def _is_named(ref: tr.TargetRef, table: tuple[str, str]) -> bool:
    return [name.casefold() for name in (ref.schema, ref.table)] == [name.casefold() for name in table]


def _belongs(ref: tr.TargetRef, installation_id: str | None) -> bool:
    if installation_id is None:
        return False
    return identity.target_key(installation_id, ref.schema, ref.table) == ref.target_key


def _installation(target: AuditTarget, known: Sequence[tr.TargetRef]) -> str | None:
    """The database's own id: any table will do to ask for it, but a name that means a view by now."""
    refusal: ConfigurationError | None = None
    for ref in known:
        try:
            return target.identify(
                ref.schema, ref.table, initialise=False, may_be_missing=True
            ).installation_id
        except ConfigurationError as error:
            refusal = error
    if refusal is not None:
        raise refusal
    return None


def _close_names(target: AuditTarget, every: Sequence[tr.TargetRef], table: tuple[str, str]) -> list[str]:
    """Of the tables of this database that the journal knows; none where the database cannot say which."""
    try:
        installation_id = _installation(target, every)
    except ConfigurationError:
        return []
    names = {f"{ref.schema}.{ref.table}" for ref in every if _belongs(ref, installation_id)}
    folded = {name.casefold(): name for name in sorted(names)}
    return [folded[near] for near in difflib.get_close_matches(".".join(table).casefold(), list(folded))]


def _audit_table(journal: AuditJournal, target: AuditTarget, ref: tr.TargetRef) -> TableAudit:
    published = _newest_of_each_window(journal.publications(ref.target_key))
    visible = _not_replaced(published)
    try:
        found = target.identify(ref.schema, ref.table, initialise=False, may_be_missing=True)
    except ConfigurationError as error:
        log.info("%s.%s cannot be looked at: %s", ref.schema, ref.table, error.message)
        found = None
    gate = found.gate if found else None
    newest = visible[0] if visible else None
    findings = []
    for first in range(0, len(visible), RECEIPTS_AT_ONCE):
        page = visible[first : first + RECEIPTS_AT_ONCE]
        receipts = target.read_receipts([one.operation_id for one in page])
        for one in page:
            fault = _fault(one, receipts.get(one.operation_id), found)
            if fault is not None:
                next_action = _next_action(journal, one, fault[0], visible[0].route_scope)
                findings.append(_finding(ref, one, *fault, next_action))
    return TableAudit(
        target=(ref.schema, ref.table),
        target_key=ref.target_key,
        windows=len(visible),
        superseded=len(published) - len(visible),
        gate=_judge_gate(journal, target, newest, gate) if found else "unknown",
        governed_by=gate.journal_id if gate else None,
        findings=tuple(sorted(findings, key=lambda finding: finding.window)),
    )


# ---- which publications count ------------------------------------------------------------------------------


def _newest_of_each_window(publications: Iterable[jr.Publication]) -> list[jr.Publication]:
    """Fences order the publications of a table, whatever clocks say."""
    newest: dict[tuple[str | None, str], jr.Publication] = {}
    for one in publications:
        key = (one.window_column, one.window_key)
        if key not in newest or newest[key].fence < one.fence:
            newest[key] = one
    return list(newest.values())


def _not_replaced(published: Sequence[jr.Publication]) -> list[jr.Publication]:
    """The newest first, without those whose whole window was deleted by later publications: these are
    compared themselves.

    Only windows of the same column can be laid over each other; a whole table covers everything.
    """
    covered: dict[str | None, Covered] = defaultdict(Covered)
    visible = []
    for one in sorted(published, key=lambda one: one.fence, reverse=True):
        if one.window_key == FULL_KEY:
            visible.append(one)
            break
        start, end = one.window_key.split("/")
        if not covered[one.window_column].holds(start, end):
            visible.append(one)
        covered[one.window_column].add(start, end)
    return visible


# ---- judging -----------------------------------------------------------------------------------------------


def _fault(
    one: jr.Publication, receipt: tr.Receipt | None, found: tr.TargetIdentity | None
) -> tuple[str, str] | None:
    """Reason and sentence, or None when the target vouches for the window."""
    if receipt is None:
        return "receipt_missing", "the target has no receipt of it"
    expected = (one.receipt_sha256, one.receipt_sha256, one.deleted_rows, one.published_at)
    stored = (receipt.draft.sha256, receipt.receipt_sha256, receipt.deleted_rows, receipt.published_at)
    if stored != expected:
        return "receipt_differs", "its receipt is not the one that was read after the publication"
    if found is None or found.is_missing:
        return "table_missing", "the table is gone"
    if (found.object_id, found.created) != (one.object_id, one.created):
        text = "the table was dropped and created again since (or lost the comment that marks it)"
        return "table_replaced", text
    return None


def _judge_gate(
    journal: AuditJournal, target: AuditTarget, newest: jr.Publication | None, gate: tr.GateRow | None
) -> str:
    """A word of :data:`GATES`. The gate was read after the publications, and the journal's fence is read
    after the gate."""
    if gate is None:
        return "as_published" if newest is None else "missing"
    if gate.journal_id != journal.journal_id:
        return "other_journal"
    if gate.fence > journal.fence(gate.target_key):
        return "newer_than_journal"
    if newest is None or gate.last_operation_id == newest.operation_id:
        return "as_published"
    last = gate.last_operation_id
    receipt = target.read_receipts([last]).get(last) if last else None
    # A later one may be on its way into the journal; an earlier one cannot be the last.
    is_later = receipt is not None and receipt.draft.fence > newest.fence
    return "as_published" if is_later else "behind"


def _finding(ref: tr.TargetRef, one: jr.Publication, reason: str, message: str, next_action: str) -> Finding:
    bounds = (None, None) if one.window_key == FULL_KEY else tuple(one.window_key.split("/"))
    return Finding(
        target=(ref.schema, ref.table),
        dag_id=one.dag_id,
        run_id=one.run_id,
        task_id=one.delivery_task_id,
        map_index=one.map_index,
        generation=one.generation,
        invocation_key=one.invocation_key,
        window=one.window_key,
        window_from=bounds[0],
        window_to=bounds[1],
        published_at=one.published_at,
        reason=reason,
        message=message,
        next_action=next_action,
    )


def _next_action(journal: AuditJournal, one: jr.Publication, reason: str, newest_route: str) -> str:
    if one.route_scope != newest_route:
        return "Another route delivers this table by now: deliver the window by a run of that route."
    state, window, key = one.state, one.window_key, one.invocation_key
    if one.newest_generation != one.generation:
        newest = journal.newest_invocation(one.delivery_key)
        if newest is not None:
            state, window, key = newest.state, newest.window_key, newest.invocation_key
    if window != one.window_key:
        return (
            f"The task has delivered another window since, {window}: deliver this one by a run of its own, "
            "with the window in its configuration. From Python: deliver(...) by another requester."
        )
    retire = f"python -m airflow_dpone recovery retire --delivery {key}"
    if state is S.INCIDENT:
        return f"Give the delivery up: {retire}. Then: {CLEAR}"
    if state in (S.PUBLISHED, S.EVIDENCED):
        return f"Clear the task: it stops with an incident. Give the delivery up: {retire}. Then: {CLEAR}"
    if state is S.CHECKPOINTED:
        return f"Clear the task, which finishes what is begun. Then: {CLEAR}"
    if state not in ENDED:
        return f"Nothing, unless it has stopped: it is being delivered again, and is {state}. Else: {CLEAR}"
    if reason == "table_missing":
        return f"{TABLE_GONE} {CLEAR}"
    return CLEAR
