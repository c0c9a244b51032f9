"""One delivery as a group of seven tasks, one for each phase.

The journal is what they have in common: nothing depends on XCom. Each of them runs the engine up to its own
phase, from wherever the journal says that the delivery is; only admit begins a delivery. So each may be
cleared alone, in any state: it resumes what is open before or in its phase, and does nothing behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import TaskGroup, chain

from airflow_dpone.operators.admitting import AdmittingOperator
from airflow_dpone.operators.delivery_operator import DeliveryOperator

if TYPE_CHECKING:
    from airflow_dpone.errors import Problem


class _OneOfSeven(DeliveryOperator):
    """:param delivery_task_id: what names the delivery in the journal; default: the task group's id."""

    def __init__(self, *, delivery_task_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.delivery_task_id = delivery_task_id or getattr(self.task_group, "group_id", None)

    def delivery_name(self) -> str | None:
        """The group's."""
        return self.delivery_task_id

    def own_problems(self) -> list[Problem]:
        """Seven tasks need a name that they share."""
        from airflow_dpone.errors import Problem

        problems = super().own_problems()
        if not self.delivery_task_id:
            text = "is missing: put the seven tasks into a task group, or give all of them the same one"
            problems.append(Problem("dpone.config.field", "delivery_task_id", text))
        elif twins := self._twins():
            text = f"is also that of task {', '.join(twins)}: a delivery has one task for each phase"
            problems.append(Problem("dpone.config.field", "delivery_task_id", text))
        return problems

    def _twins(self) -> list[str]:
        """Tasks that would do the same phase of the same delivery, though they may say another table: of two
        deliveries under one name only one would happen."""
        dag = self.get_dag()
        return [
            task.task_id
            for task in ([] if dag is None else dag.tasks)
            if isinstance(task, _OneOfSeven)
            and (task.delivery_task_id, task.last_phase) == (self.delivery_task_id, self.last_phase)
            and task.task_id != self.task_id
        ]


class AdmitWindowOperator(_OneOfSeven, AdmittingOperator):
    """Phase 1: may this delivery run, and with which plan? It alone takes a window, and it alone defers."""

    last_phase: ClassVar[str] = "admit"


class ExtractWindowOperator(_OneOfSeven):
    """Phase 2: reads the window with one query and seals it into chunk files."""

    last_phase: ClassVar[str] = "extract"


class StageWindowOperator(_OneOfSeven):
    """Phase 3: writes each chunk into a raw table of its own and proves it inside the target."""

    last_phase: ClassVar[str] = "stage"


class VerifyWindowOperator(_OneOfSeven):
    """Phase 4: builds one prepared table, proves it, and runs the quality checks."""

    last_phase: ClassVar[str] = "verify"


class PublishWindowOperator(_OneOfSeven):
    """Phase 5: replaces the window in one transaction that carries a receipt."""

    last_phase: ClassVar[str] = "publish"


class EvidenceWindowOperator(_OneOfSeven):
    """Phase 6: stores the document that binds source, chunks, proofs and receipt."""

    last_phase: ClassVar[str] = "evidence"


class CheckpointWindowOperator(_OneOfSeven):
    """Phase 7: notes the receipt for this window, cleans up, and gives the target back."""

    last_phase: ClassVar[str] = "checkpoint"


OPERATORS: Mapping[str, type[_OneOfSeven]] = {
    operator.last_phase: operator
    for operator in (
        AdmitWindowOperator,
        ExtractWindowOperator,
        StageWindowOperator,
        VerifyWindowOperator,
        PublishWindowOperator,
        EvidenceWindowOperator,
        CheckpointWindowOperator,
    )
}
ONLY_FIRST = (
    "window_start",
    "window_end",
    "rolling",
    "on_custody_held",
    "custody_wait_sec",
    "trigger_rule",
)
ONLY_LAST = ("outlets",)


def deliver_window(group_id: str = "deliver", **parameters: Any) -> TaskGroup:
    """Seven tasks that deliver one window: ``admit``, ``extract``, ``stage``, ``verify``, ``publish``,
    ``evidence`` and ``checkpoint``.

    The parameters are those of ``DeliverWindowOperator``, Airflow's own included (``retries``, ``pool``
    ...). Those of the window, of waiting, and ``trigger_rule`` go to ``admit``; ``outlets`` go to
    ``checkpoint``. A DAG may change from one task to the group and back: a run that is open goes on if the
    group has the id of the task.

    :param group_id: id of the task group; it names the delivery, as the task id of one task does.
    """
    group = TaskGroup(group_id)
    with group:
        tasks = [
            operator(
                task_id=phase,
                delivery_task_id=group.group_id,
                **{name: value for name, value in parameters.items() if _goes_to(phase, name)},
            )
            for phase, operator in OPERATORS.items()
        ]
        chain(*tasks)
    return group


def _goes_to(phase: str, name: str) -> bool:
    if name in ONLY_FIRST:
        return phase == "admit"
    return phase == "checkpoint" if name in ONLY_LAST else True
