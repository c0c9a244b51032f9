"""What is wrong with a call's own parameters, all of it, before anything is opened."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.settings import Route

if TYPE_CHECKING:
    from airflow_dpone.journal.address import JournalAddress

LEASE_TTL_SEC = (2.0, 600.0)


@dataclass(frozen=True)
class Places:
    """Where journal and spool are, which machine they take this one for (None: /etc/machine-id), and the
    connection of a spool's URL."""

    journal: str | Path | JournalAddress
    spool: str | Path
    host_id: str | None = None
    spool_conn_id: str | None = None


def default_spool() -> str:
    """Where the operator spools without being told."""
    return os.path.join(airflow_home(), "dpone", "spool")


def airflow_home() -> str:
    """Where Airflow keeps its files; without Airflow's configuration, as Airflow itself decides."""
    return os.environ.get("AIRFLOW_HOME") or os.path.expanduser("~/airflow")


def call_problems(
    places: Places, deadline_sec: float, lease_ttl_sec: float, custody_wait_sec: float = 0.0
) -> list[Problem]:
    """What is wrong with a call's own parameters, all of it; opens nothing."""
    problems = [*journal_problems(places.journal), *spool_problems(places)]
    low, high = LEASE_TTL_SEC
    tiny = math.ulp(0.0)
    for name, value, least, most, bounds in (
        ("deadline_sec", deadline_sec, tiny, math.inf, "greater than 0"),
        ("lease_ttl_sec", lease_ttl_sec, low, high, f"in {low:g}..{high:g}"),
        ("custody_wait_sec", custody_wait_sec, 0.0, math.inf, "of at least 0"),
    ):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= most:
            problems.append(Problem("dpone.config.field", name, f"must be a number {bounds}"))
    return problems


def journal_problems(where: object) -> list[Problem]:
    """What is wrong with the address of the journal."""
    from airflow_dpone.journal.address import JournalAddress

    if not isinstance(where, str | Path | JournalAddress) or not str(where):
        text = (
            "must be the path of a SQLite file or a URL postgresql://HOST/DATABASE, made ready by "
            "`python -m airflow_dpone db migrate --journal URL_OR_PATH`"
        )
        return [Problem("dpone.config.field", "journal", text)]
    if isinstance(where, str | Path) and "://" not in str(where) and not os.path.isabs(where):
        return [Problem("dpone.config.field", "journal", "must be an absolute path")]
    try:
        JournalAddress.of(where)
    except ConfigurationError as error:
        return [Problem(error.code, "journal", error.message)]
    return []


def kind_problems(route: object, window: object, requester: object) -> list[Problem]:
    """What is not of the kind that it must be: a mapping for a Route, a text for a Window."""
    from airflow_dpone.delivery.records import Requester
    from airflow_dpone.delivery.window import Window

    return [
        Problem("dpone.config.field", name, f"must be a {kind.__name__}, not {type(value).__name__}")
        for name, value, kind in (
            ("route", route, Route),
            ("window", window, Window),
            ("requester", requester, Requester),
        )
        if not isinstance(value, kind)
    ]


def spool_problems(places: Places) -> list[Problem]:
    """What is wrong with the address of the spool."""
    from airflow_dpone.spool.addresses import is_url, url_problem

    where: object = places.spool
    if not isinstance(where, str | Path):
        return [Problem("dpone.config.field", "spool", "must be an absolute path or a URL")]
    if is_url(places.spool):
        problem = url_problem(str(places.spool))
        return [*([problem] if problem else []), *_connection_problems(places.spool_conn_id)]
    problems = []
    if not os.path.isabs(places.spool):
        text = "must be an absolute path, or the URL of a place in an object store"
        problems.append(Problem("dpone.config.field", "spool", text))
    if places.spool_conn_id is not None:
        text = "is for the URL of an object store; a local directory has no connection"
        problems.append(Problem("dpone.config.field", "spool_conn_id", text))
    return problems


def _connection_problems(spool_conn_id: str | None) -> tuple[Problem, ...]:
    """Whether Airflow has the connection. What it says is for the object store's own provider to judge."""
    from airflow_dpone.connections import read_connection

    if spool_conn_id is None:
        return ()
    try:
        read_connection(spool_conn_id, "spool_conn_id")
    except ConfigurationError as error:
        return error.problems
    return ()
