"""One task that delivers one window: all seven phases, resumed from the journal by whoever runs the task
next."""

from __future__ import annotations

from typing import ClassVar

from airflow_dpone.operators.admitting import AdmittingOperator


class DeliverWindowOperator(AdmittingOperator):
    """Delivers one window (or the whole table) from ClickHouse to the target, proved before it is visible.

    Clearing or retrying the task goes on from the last durable boundary; clearing it after success delivers
    the window again as the next generation. Everything is checked in ``execute``; all problems of a stage
    (parameters, connections, tables, columns) are in one error.

    :param source: Airflow connection id of a ClickHouse server (native port) or of a chDB directory (type
        ``dponeembedded``), ``clickhouse://user@host:9000`` for a user without a password, or
        ``chdb:///absolute/dir`` (templated, as all fields that are listed above).
    :param source_table: ``(database, table)``.
    :param target: Airflow connection id of a SQL Server database (type ``mssql`` or ``odbc``) or of a DuckDB
        file (type ``dponeembedded``), or a URI as in ``Route``. :param target_table: ``(schema, table)``.
    :param window_column: source column that the window cuts. :param columns: all, a list, or source ->
        target.
    :param strategy: ``window_replace`` or ``full_refresh``.
    :param window_start: start of the window, ISO text with a zone or a datetime.
    :param window_end: end of the window, exclusive. Without both: ``dag_run.conf["window"]``, then
        ``rolling``, then the run's data interval if it is not empty.
    :param rolling: a window that moves with the run: ``Rolling(anchor, duration, lookback, precision)``.
    :param journal: path or SQLAlchemy URL of the migrated journal, without a password.
    :param journal_conn_id: instead of ``journal``: an Airflow connection of type ``dponejournal``,
        ``postgres`` or ``sqlite``. Without both: ``[dpone] journal_conn_id``.
    :param spool: directory for sealed chunks, or a URL such as ``s3://bucket/prefix``: then a retry may run
        on any worker that reaches it. Default: ``[dpone] spool_path``, else ``<AIRFLOW_HOME>/dpone/spool``.
    :param limits: mapping of limits. :param quality: mapping of checks. :param options: mapping of options.
    :param writer: bulk writer, default the target's own. :param source_name: the source's name in the route's
        identity.
    :param on_custody_held: while another unfinished delivery owns the target: ``wait`` in the triggerer, or
        ``fail`` (and be retried). :param custody_wait_sec: how long one try waits in all.
    :param deadline_sec: budget of one try, without the wait. :param lease_ttl_sec: how long a silent worker
        is believed, 2..600; default: ``[dpone] lease_ttl_sec``, else 60.
    :param host_id: this machine's name for a SQLite journal and the spool; default: ``[dpone] host_id``, else
        /etc/machine-id.
    :param spool_conn_id: Airflow connection of a spool's URL, which itself holds no user and no secret.
    :param retry_policy: which failures are tried again; default: ``DeliveryRetryPolicy()``.

    Returns the delivery's result as JSON (< 2 KB). All other parameters are Airflow's own; each asset in
    ``outlets`` gets the delivery's ids in its event.
    """

    last_phase: ClassVar[str] = "checkpoint"
