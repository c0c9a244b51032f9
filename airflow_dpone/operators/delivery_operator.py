"""What the eight operators have in common: parameters, one call of the engine, and what is said about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_dpone.links.delivery import DeliveryLink, offer_link
from airflow_dpone.operators.retry_policy import DeliveryRetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context, RetryPolicy

    from airflow_dpone.call_checks import Places
    from airflow_dpone.delivery.cancel import Cancel
    from airflow_dpone.delivery.records import Requester
    from airflow_dpone.delivery.window import Window
    from airflow_dpone.errors import Problem
    from airflow_dpone.journal.address import JournalAddress
    from airflow_dpone.settings import Route

DEFAULT_POLICY = DeliveryRetryPolicy()
FAILURE_KEY = "dpone_failure"
"""XCom of a failed task: code, state, reason and next action, where Airflow's UI shows them."""
LEASE_PATIENCE_SEC = 5.0


class DeliveryOperator(BaseOperator):
    """Runs the engine up to the phase of its class. The parameters are those of ``DeliverWindowOperator``."""

    last_phase: ClassVar[str]
    may_open: ClassVar[bool] = False

    template_fields: Sequence[str] = (
        "source",
        "source_table",
        "target",
        "target_table",
        "window_column",
        "columns",
        "limits",
        "quality",
        "options",
        "journal",
        "journal_conn_id",
        "spool",
        "spool_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        name: "json" for name in ("columns", "limits", "quality", "options")
    }
    operator_extra_links = (DeliveryLink(),)
    ui_color = "#e8f1fb"

    def __init__(
        self,
        *,
        source: str,
        source_table: Sequence[str],
        target: str,
        target_table: Sequence[str],
        window_column: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        strategy: str = "window_replace",
        journal: str | None = None,
        journal_conn_id: str | None = None,
        spool: str | None = None,
        limits: Mapping[str, Any] | None = None,
        quality: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        writer: str | None = None,
        source_name: str | None = None,
        deadline_sec: float = 14_400.0,
        lease_ttl_sec: float | None = None,
        host_id: str | None = None,
        spool_conn_id: str | None = None,
        retry_policy: RetryPolicy | None = DEFAULT_POLICY,
        **kwargs: Any,
    ) -> None:
        super().__init__(retry_policy=retry_policy, **kwargs)
        self.source = source
        self.source_table = source_table
        self.target = target
        self.target_table = target_table
        self.window_column = window_column
        self.columns = columns
        self.strategy = strategy
        self.journal = journal
        self.journal_conn_id = journal_conn_id
        self.spool = spool
        self.limits = limits
        self.quality = quality
        self.options = options
        self.writer = writer
        self.source_name = source_name
        self.deadline_sec = deadline_sec
        self.lease_ttl_sec = lease_ttl_sec
        self.host_id = host_id
        self.spool_conn_id = spool_conn_id
        self._working: Cancel | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Validates, works, returns the result as JSON (< 2 KB). Raises the engine's errors as they are: the
        retry policy judges them."""
        return self.reported(context, lambda: self.work(context))

    def reported(self, context: Context, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Does the work; a failure is also told where Airflow's UI shows it."""
        from airflow_dpone.errors import DponeError, InternalError

        offer_link(context)
        try:
            return work()
        except InternalError as fault:
            self._tell_failure(context, fault)
            raise  # with its cause: people should report it
        except DponeError as error:
            self._tell_failure(context, error)
            raise error from None

    def on_kill(self) -> None:
        """Ends the work and its child processes, and leaves ``execute``; the delivery stays as the journal
        says. Nothing depends on it: a process that is killed outright leaves the same."""
        working, self._working = self._working, None
        if working is not None:
            from airflow_dpone.errors import Stopped

            text = "the task was told to stop: cleared, marked by a person, or out of time"
            working.set(Stopped("dpone.delivery.stopped", text))
            raise SystemExit(text)

    def work(self, context: Context) -> dict[str, Any]:
        """One call of the engine, after a look at the parameters: what is wrong with them is one error."""
        from airflow_dpone import wiring
        from airflow_dpone.delivery.cancel import Cancel
        from airflow_dpone.operators import telling

        route, places, window, keep_window = self._checked(context)
        lease_ttl_sec = self._lease_ttl()
        self._working = cancel = Cancel()
        try:
            done = wiring.run_phases(
                route,
                window,
                self.requester(context),
                places,
                keep_window=keep_window,
                last_phase=self.last_phase,
                may_open=self.may_open,
                deadline_sec=self.deadline_sec,
                lease_ttl_sec=lease_ttl_sec,
                lease_wait_sec=lease_ttl_sec + LEASE_PATIENCE_SEC,
                cancel=cancel,
                first_ti_id=self.first_ti_id(context),
            )
        finally:
            self._working = None
        result = done.result.to_json()
        telling.count(done, self.dag_id)
        telling.tell_outlets(context, self.outlets, result)
        return result

    def window(self, context: Context) -> tuple[Window | None, bool]:
        """The window, and whether one that was stored before counts more; None: only a stored one counts."""
        return None, True

    def requester(self, context: Context) -> Requester:
        """Who asks."""
        from airflow_dpone.delivery.records import Requester

        ti = context["ti"]
        return Requester(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
            ti_id=str(ti.id),
            max_tries=ti.max_tries,
            delivery_task_id=self.delivery_name(),
        )

    def first_ti_id(self, context: Context) -> str:
        """Airflow's id of the first try in this run; nothing where it decides nothing."""
        return ""

    def delivery_name(self) -> str | None:
        """What seven tasks have in common; None when this task is the whole delivery."""
        return None

    def own_problems(self) -> list[Problem]:
        """What is wrong with the parameters that only some operators have."""
        return []

    # ---- parameters ------------------------------------------------------------------------------------

    def _checked(self, context: Context) -> tuple[Route, Places, Window | None, bool]:
        from airflow_dpone import wiring
        from airflow_dpone.errors import ConfigurationError
        from airflow_dpone.settings import Route, readable_route

        found: dict[str, Any] = {}
        wrong: dict[str, tuple[Problem, ...]] = {}
        for name, build in (
            ("route", lambda: Route(**self._route_fields())),
            ("places", self._places),
            ("window", lambda: self.window(context)),
        ):
            try:
                found[name] = build()
            except ConfigurationError as error:
                wrong[name] = error.problems
        window, keep_window = found.get("window", (None, True))
        problems = [*self.own_problems(), *(problem for some in wrong.values() for problem in some)]
        unread = {problem.where.partition(".")[0] for problem in wrong.get("route", ())}
        route = found.get("route") or readable_route(self._route_fields(), wrong["route"])
        if route is not None:
            problems += wiring.route_problems(route, window, unread)
        if problems:
            raise ConfigurationError.of(problems)
        return found["route"], found["places"], window, keep_window

    def _route_fields(self) -> dict[str, Any]:
        optional = {"limits": self.limits, "quality": self.quality, "options": self.options}
        return {
            "source": self.source,
            "source_table": self.source_table,
            "target": self.target,
            "target_table": self.target_table,
            "window_column": self.window_column,
            "columns": self.columns,
            "strategy": self.strategy,
            "writer": self.writer,
            "source_name": self.source_name,
            **{name: value for name, value in optional.items() if value is not None},
        }

    def _places(self) -> Places:
        from airflow_dpone import airflow_config
        from airflow_dpone.call_checks import Places, call_problems
        from airflow_dpone.errors import ConfigurationError

        problems: list[Problem] = []
        journal: str | JournalAddress = self.journal or ""
        lease_ttl_sec = self.lease_ttl_sec
        try:
            journal = self._journal()
        except ConfigurationError as error:
            problems += error.problems
        try:
            lease_ttl_sec = self._lease_ttl()
        except ConfigurationError as error:
            problems += error.problems
        spool = self.spool or airflow_config.spool_path()
        places = Places(journal, spool, self.host_id or airflow_config.host_id(), self.spool_conn_id)
        said = {problem.where for problem in problems}
        named = bool(said & {"journal", "journal_conn_id"})
        others = call_problems(
            places,
            self.deadline_sec,
            airflow_config.LEASE_TTL_SEC if lease_ttl_sec is None else lease_ttl_sec,
        )
        problems += [problem for problem in others if not (named and problem.where == "journal")]
        if problems:
            raise ConfigurationError.of(problems)
        return places

    def _lease_ttl(self) -> float:
        from airflow_dpone import airflow_config

        return airflow_config.lease_ttl_sec() if self.lease_ttl_sec is None else self.lease_ttl_sec

    def journal_names(self) -> tuple[str | None, str | None]:
        """The journal's connection, or its path or URL: as given, or as Airflow's configuration says."""
        from airflow_dpone import airflow_config

        if self.journal or self.journal_conn_id:
            return self.journal_conn_id, self.journal
        return airflow_config.journal_conn_id(), None

    def _journal(self) -> str | JournalAddress:
        from airflow_dpone.errors import ConfigurationError, Problem
        from airflow_dpone.journal.address import holds_password

        conn_id, where = self.journal_names()
        if conn_id and where:
            text = "give journal or journal_conn_id, not both"
            raise ConfigurationError.of([Problem("dpone.config.field", "journal_conn_id", text)])
        if conn_id:
            from airflow_dpone.hooks.journal import journal_address

            return journal_address(conn_id)
        if holds_password(str(where)):
            text = "the URL carries a password, and templated fields are shown in the UI: use journal_conn_id"
            raise ConfigurationError.of([Problem("dpone.config.secret_in_uri", "journal", text)])
        return where or ""

    # ---- failures --------------------------------------------------------------------------------------

    def _tell_failure(self, context: Context, error: Any) -> None:
        """An XCom, since Airflow shows the reason of a failure only in the log."""
        from airflow_dpone.operators import telling

        telling.count_failure(error, self.dag_id)
        try:
            context["ti"].xcom_push(key=FAILURE_KEY, value=telling.failure(error))
        except Exception as second:  # noqa: BLE001 - what went wrong first is what must be said
            self.log.warning("the failure could not be stored as an XCom: %s", type(second).__name__)
