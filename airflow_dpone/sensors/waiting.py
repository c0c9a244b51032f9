"""What every sensor of this provider does alike: build a trigger, defer to it, judge its event."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseSensorOperator

from airflow_dpone.operators.delivery_operator import DEFAULT_POLICY

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryPolicy

    from airflow_dpone.errors import Problem
    from airflow_dpone.triggers.polling import PollingTrigger


class WaitingSensor(BaseSensorOperator):
    """Waits in the triggerer, never in a worker.

    ``poke_interval`` (60 s) is the time between two looks; ``timeout`` (7 days) ends one try, then it fails,
    or is skipped with ``soft_fail``. ``mode`` has no meaning: it is always deferred.

    :param retry_policy: which failures are tried again; default: ``DeliveryRetryPolicy()``, by which a wrong
        parameter fails the task at once.
    """

    def __init__(self, *, retry_policy: RetryPolicy | None = DEFAULT_POLICY, **kwargs: Any) -> None:
        super().__init__(retry_policy=retry_policy, **kwargs)

    @abstractmethod
    def trigger(self, context: Context, deadline: float) -> PollingTrigger:
        """The trigger to defer to. Raises DponeError."""

    @abstractmethod
    def late(self, event: Mapping[str, Any]) -> str:
        """What was missing at the end, in words."""

    def execute(self, context: Context) -> NoReturn:
        """Defers. The deadline is an instant: a triggerer that is restarted does not move it."""
        trigger = self.trigger(context, time.time() + self.timeout)
        self.defer(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the event of a wait that ended well."""
        from airflow.sdk.exceptions import AirflowSensorTimeout

        from airflow_dpone.triggers.polling import raise_failure

        raise_failure(event)
        found = event or {}
        if found.get("status") == "timeout":
            raise AirflowSensorTimeout(f"Not within {self.timeout:g} s: {self.late(found)}")
        return found


class JournalSensor(WaitingSensor):
    """What the three sensors take that read the journal of a target. Airflow's own parameters of a sensor
    (``timeout``, ``poke_interval``, ``soft_fail`` ...) come on top.

    :param target: as in ``DeliverWindowOperator``. :param target_table: ``(schema, table)``.
    :param journal: path or URL of the journal, without a password (templated).
    :param journal_conn_id: instead of ``journal``: its Airflow connection; default: ``[dpone]
        journal_conn_id``.
    :param host_id: this machine's name for a SQLite journal; default: ``[dpone] host_id``.
    """

    template_fields: Sequence[str] = ("target", "target_table", "journal")

    def __init__(
        self,
        *,
        target: str,
        target_table: Any,
        journal: str | None = None,
        journal_conn_id: str | None = None,
        host_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.target_table = target_table
        self.journal = journal
        self.journal_conn_id = journal_conn_id
        self.host_id = host_id

    def reads(self, deadline: float) -> dict[str, Any]:
        """What each trigger on the journal of this target takes. The target is asked for its key, once."""
        from airflow_dpone import airflow_config
        from airflow_dpone.errors import ConfigurationError
        from airflow_dpone.settings import TargetPlace
        from airflow_dpone.wiring import find_target_key

        problems = self._journal_problems()
        try:
            place = TargetPlace(target=self.target, target_table=self.target_table)
        except ConfigurationError as error:
            problems += error.problems
        if problems:
            raise ConfigurationError.of(problems)
        conn_id = self.journal_conn_id or (None if self.journal else airflow_config.journal_conn_id())
        return {
            "journal_conn_id": conn_id,
            "journal": self.journal,
            "host_id": self.host_id,
            "target_key": find_target_key(place),
            "deadline": deadline,
            "poll_interval": self.poke_interval,
        }

    def _journal_problems(self) -> list[Problem]:
        from airflow_dpone.errors import Problem
        from airflow_dpone.journal.address import holds_password

        if self.journal and self.journal_conn_id:
            text = "give journal or journal_conn_id, not both"
            return [Problem("dpone.config.field", "journal_conn_id", text)]
        if self.journal and holds_password(self.journal):
            text = "the URL carries a password, and templated fields are shown in the UI: use journal_conn_id"
            return [Problem("dpone.config.secret_in_uri", "journal", text)]
        if self.journal:
            from airflow_dpone.call_checks import journal_problems

            return journal_problems(self.journal)
        return []
