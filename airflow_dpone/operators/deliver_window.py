"""One task that delivers one window: all seven phases, resumed from the journal by whoever runs the task
next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_dpone.delivery.records import Requester
    from airflow_dpone.delivery.window import Window
    from airflow_dpone.errors import DponeError, Problem
    from airflow_dpone.journal.address import JournalAddress
    from airflow_dpone.settings import Route


class DeliverWindowOperator(BaseOperator):
    """Delivers one window (or the whole table) from ClickHouse to the target, proved before it is visible.

    Clearing or retrying the task goes on from the last durable boundary; clearing it after success delivers
    the window again as the next generation. Everything is checked in ``execute``, all problems in one error.

    :param source: Airflow connection id of a ClickHouse server (native port), ``clickhouse://user@host:9000``
        for a user without a password, or ``chdb:///absolute/dir``.
    :param source_table: ``(database, table)``.
    :param target: Airflow connection id of a SQL Server database (type ``mssql`` or ``odbc``), or a URI as in
        ``Route``. :param target_table: ``(schema, table)``.
    :param window_column: source column that the window cuts. :param columns: all, a list, or source ->
        target.
    :param strategy: ``window_replace`` or ``full_refresh``.
    :param window_start: start of the window, ISO text with a zone or a datetime (templated).
    :param window_end: end of the window, exclusive. Without both: ``dag_run.conf["window"]``, then the run's
        data interval if it is not empty.
    :param journal: path or SQLAlchemy URL of the migrated journal, without a password (templated).
    :param journal_conn_id: instead of ``journal``: an Airflow connection of type ``postgres``, or ``sqlite``.
    :param spool: directory for sealed chunks, default ``<AIRFLOW_HOME>/dpone/spool``, or a URL such as
        ``s3://bucket/prefix``: then a retry may run on any worker that reaches it (templated).
    :param limits: mapping of limits. :param quality: mapping of checks. :param options: mapping of options.
    :param writer: bulk writer, default the target's own. :param source_name: the source's name in the route's
        identity.
    :param deadline_sec: budget of one try. :param lease_ttl_sec: how long a silent worker is believed.
    :param host_id: this machine's name for a SQLite journal and the spool; default: /etc/machine-id.
    :param spool_conn_id: Airflow connection of a spool's URL, which itself holds no user and no secret.

    Returns the delivery's result as JSON (< 2 KB).
    """

    template_fields: Sequence[str] = (
        "source",
        "source_table",
        "target",
        "target_table",
        "window_start",
        "window_end",
        "journal",
        "spool",
    )
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
        window_start: Any = None,
        window_end: Any = None,
        journal: str | None = None,
        journal_conn_id: str | None = None,
        spool: str | None = None,
        limits: Mapping[str, Any] | None = None,
        quality: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        writer: str | None = None,
        source_name: str | None = None,
        deadline_sec: float = 14_400.0,
        lease_ttl_sec: float = 60.0,
        host_id: str | None = None,
        spool_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = source
        self.source_table = source_table
        self.target = target
        self.target_table = target_table
        self.window_column = window_column
        self.columns = columns
        self.strategy = strategy
        self.window_start = window_start
        self.window_end = window_end
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

    def execute(self, context: Context) -> dict[str, Any]:
        """Validates, delivers, returns the result as JSON. A failure that no retry can mend fails the task at
        once."""
        from airflow_dpone.errors import DponeError, InternalError

        try:
            return self._deliver(context)
        except InternalError:
            raise
        except DponeError as error:
            raise _for_airflow(error) from None

    def _deliver(self, context: Context) -> dict[str, Any]:
        from airflow_dpone import wiring
        from airflow_dpone.errors import ConfigurationError

        found: list[Any] = []
        problems: list[Problem] = []
        for build in (self._route, lambda: self._window(context), self._places):
            try:
                found.append(build())
            except ConfigurationError as error:
                problems += error.problems
        if not problems:
            problems = wiring.route_problems(found[0], found[1])
        if problems:
            raise ConfigurationError.of(problems)
        route, window, (journal, spool) = found
        self.log.info("delivering %s into %s.%s", window, *route.target_table)
        result = wiring.deliver(
            route,
            window,
            journal=journal,
            spool=spool,
            requester=_requester(context),
            deadline_sec=self.deadline_sec,
            lease_ttl_sec=self.lease_ttl_sec,
            host_id=self.host_id,
            spool_conn_id=self.spool_conn_id,
        )
        return result.to_json()

    def _route(self) -> Route:
        from airflow_dpone.settings import Route

        optional = {"limits": self.limits, "quality": self.quality, "options": self.options}
        return Route(
            source=self.source,
            source_table=self.source_table,
            target=self.target,
            target_table=self.target_table,
            window_column=self.window_column,
            columns=self.columns,
            strategy=self.strategy,  # type: ignore[arg-type]
            writer=self.writer,  # type: ignore[arg-type]
            source_name=self.source_name,
            **{name: value for name, value in optional.items() if value is not None},
        )

    def _window(self, context: Context) -> Window:
        from airflow_dpone.operators.window_choice import choose_window

        return choose_window(self.strategy, self.window_start, self.window_end, context)

    def _places(self) -> tuple[str | JournalAddress, str]:
        from airflow_dpone.call_checks import Places, call_problems
        from airflow_dpone.errors import ConfigurationError
        from airflow_dpone.wiring import default_spool

        spool = self.spool or default_spool()
        problems: list[Problem] = []
        journal: str | JournalAddress = self.journal or ""
        try:
            journal = self._journal()
        except ConfigurationError as error:
            problems += error.problems
        places = Places(journal, spool, self.host_id, self.spool_conn_id)
        others = call_problems(places, self.deadline_sec, self.lease_ttl_sec)
        problems += [problem for problem in others if not problems or problem.where != "journal"]
        if problems:
            raise ConfigurationError.of(problems)
        return journal, spool

    def _journal(self) -> str | JournalAddress:
        from airflow_dpone.errors import ConfigurationError, Problem
        from airflow_dpone.journal.address import holds_password

        if self.journal and self.journal_conn_id:
            text = "give journal or journal_conn_id, not both"
            raise ConfigurationError.of([Problem("dpone.config.field", "journal_conn_id", text)])
        if self.journal_conn_id:
            from airflow_dpone.hooks.journal import journal_address

            return journal_address(self.journal_conn_id)
        if holds_password(str(self.journal)):
            text = "the URL carries a password, and templated fields are shown in the UI: use journal_conn_id"
            raise ConfigurationError.of([Problem("dpone.config.secret_in_uri", "journal", text)])
        return self.journal or ""


def _requester(context: Context) -> Requester:
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
    )


def _for_airflow(error: DponeError) -> Exception:
    """A retry may help only when the error says so; Airflow must not try the others again."""
    from airflow.sdk.exceptions import AirflowFailException

    return error if error.retry == "backoff" else AirflowFailException(str(error))
