"""A user's program, as the type checker sees it: ``make lint`` checks it, nothing runs it.

Each ``type: ignore`` is a mistake that must stay one: mypy complains about an ignore that is not needed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import assert_type

import airflow_dpone
from airflow_dpone import (
    DeliveryResult,
    DponeError,
    Limits,
    Options,
    Plan,
    Requester,
    Route,
    Window,
    deliver,
    plan,
)


def nightly() -> DeliveryResult:
    """What the README shows."""
    route = Route(
        source="chdb:///data/shop",
        source_table=("shop", "orders"),
        target="duckdb:///data/target.duckdb",
        target_table=("dbo", "orders"),
        window_column="created_at",
        limits=Limits(max_rows=100_000),
        options=Options(on_empty="fail"),
    )
    window = Window(datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 2, tzinfo=UTC))
    assert_type(plan(route, window), Plan)
    requester = Requester(dag_id="shop", run_id="nightly", task_id="deliver")
    try:
        return deliver(route, window, journal="/data/journal.db", spool="/data/spool", requester=requester)
    except DponeError as error:
        assert_type(error.code, str)
        assert_type(error.next_action, str)
        raise


def mistakes() -> None:
    """What the checker must refuse."""
    Limits(max_rows="many")  # type: ignore[arg-type]
    Options(on_empty="ignore")  # type: ignore[arg-type]
    Requester(dag_id="shop")  # type: ignore[call-arg]
    airflow_dpone.nothing  # type: ignore[attr-defined]  # noqa: B018
