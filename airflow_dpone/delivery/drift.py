"""What changed in the target's columns since the plan was frozen: exactly, and all of it at once.

A delivery never follows a change: it ends before anything is published, with the difference, and the next
call plans with the table as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.column_map import target_problems, unmapped_problems
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.delivery.ports import TargetPort
from airflow_dpone.delivery.run import DeliveryRun
from airflow_dpone.errors import ConfigurationError, DponeError, TargetRejected


def differences(planned: Sequence[tr.TargetColumn], found: Sequence[tr.TargetColumn]) -> list[str]:
    """One sentence for each column that is not as it was planned; empty when all are, in the same order."""
    then, now = {c.name: c for c in planned}, {c.name: c for c in found}
    texts = [f"{c.name} is gone (it was {_kind(c)})" for c in planned if c.name not in now]
    texts += [f"{c.name} is new ({_kind(c)})" for c in found if c.name not in then]
    for name, before in then.items():
        after = now.get(name)
        if after is not None and after != before:
            texts.append(f"{name} is {_kind(after)}, planned as {_kind(before)}")
    if not texts and [*then] != [*now]:
        texts.append(f"the columns stand in another order: {', '.join(now)}; planned as {', '.join(then)}")
    return texts


def _kind(column: tr.TargetColumn) -> str:
    return f"{column.type} {'NULL' if column.nullable else 'NOT NULL'}"


def planned_columns(plan: FrozenPlan) -> list[tr.TargetColumn]:
    """The target's columns as the plan has them."""
    return [
        tr.TargetColumn(c.wire.name, c.wire.pair.target_type, c.wire.pair.target_nullable)
        for c in plan.columns
    ]


def refuse(run: DeliveryRun) -> None:
    """For a delivery that goes on with its frozen plan. Raises TargetRejected with every difference, or
    ConfigurationError with what stands against the table now: see :func:`refuse_obstacles`."""
    plan = run.frozen
    found = run.ports.target.describe(plan.target.schema, plan.target.table)
    if found.fingerprint == plan.target.fingerprint:
        _refuse_obstacles(plan, found)
        return
    told = _differences(plan, found) or ["a column that is not delivered changed"]
    name = f"{plan.target.schema}.{plan.target.table}"
    raise TargetRejected(
        "dpone.target.drift", f"The columns of {name} changed after the plan was made: {'; '.join(told)}."
    )


def refuse_obstacles(run: DeliveryRun) -> None:
    """Before a publication, hours after admission perhaps: raises ConfigurationError when something stands
    against the table by now, or an option that let it through is not set any more. A table that is gone is
    the publication's to tell."""
    plan = run.frozen
    try:
        found = run.ports.target.describe(plan.target.schema, plan.target.table)
    except ConfigurationError:
        return
    _refuse_obstacles(plan, found)


def _refuse_obstacles(plan: FrozenPlan, found: tr.TargetTable) -> None:
    problems = target_problems(found, plan.options)
    fed = {column.wire.name for column in plan.columns} | {problem.where for problem in found.problems}
    problems += unmapped_problems(found.columns, fed | set(plan.options.unmapped_columns))
    if problems:
        raise ConfigurationError.of(problems)


def explained(plan: FrozenPlan, target: TargetPort) -> str:
    """For a publication that the table made impossible: how it differs now; empty when nobody can tell."""
    try:
        found = target.describe(plan.target.schema, plan.target.table)
    except ConfigurationError:
        return "the table is gone"
    except DponeError:
        return ""
    return "; ".join(_differences(plan, found))


def _differences(plan: FrozenPlan, found: tr.TargetTable) -> list[str]:
    """Of the delivered columns; of those that are left out the plan does not know what they were."""
    left_out = plan.options.unmapped_columns
    return differences(planned_columns(plan), [c for c in found.columns if c.name not in left_out])
