"""Section ``[dpone]`` of Airflow's configuration: what is used where a DAG says nothing.

Read when a task or a command runs, never at import or DAG parse. An empty value is an absent one.
"""

from __future__ import annotations

from airflow_dpone.errors import ConfigurationError, Problem

SECTION = "dpone"
JOURNAL_CONN_ID = "dpone_journal"
LEASE_TTL_SEC = 60.0


def journal_conn_id() -> str:
    """The Airflow connection of the journal."""
    return _option("journal_conn_id") or JOURNAL_CONN_ID


def spool_path() -> str:
    """Directory or URL of sealed chunks; default ``<AIRFLOW_HOME>/dpone/spool``."""
    from airflow_dpone.call_checks import default_spool

    return _option("spool_path") or default_spool()


def lease_ttl_sec() -> float:
    """How long a silent worker is believed. Whoever uses it checks the bounds.

    Raises ConfigurationError: it is no number.
    """
    text = _option("lease_ttl_sec")
    if text is None:
        return LEASE_TTL_SEC
    try:
        return float(text)
    except ValueError:
        raise _refused("lease_ttl_sec", "must be a number of seconds") from None


def host_id() -> str | None:
    """This machine's name for a SQLite journal and a local spool, where ``/etc/machine-id`` does not give
    it."""
    return _option("host_id")


def _option(name: str) -> str | None:
    from airflow.sdk import conf

    value = conf.get(SECTION, name, fallback=None)
    text = "" if value is None else str(value).strip()
    return text or None


def _refused(name: str, text: str) -> ConfigurationError:
    return ConfigurationError.of([Problem("dpone.config.field", f"[{SECTION}] {name}", text)])
