"""The file's identity and our tables in it: created by the first admission."""

from __future__ import annotations

import uuid
from datetime import datetime

from airflow_dpone.errors import ConfigurationError
from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.session import Session

LAYOUT_VERSION = 1


def installation_id(session: Session) -> str | None:
    """The GUID inside the file, or None when it was never initialised.

    :raises ConfigurationError: ``dpone.target.layout``: made by another version of this product.
    """
    if not session.number(sql.HAS_INSTALLATION):
        return None
    row = session.row(sql.INSTALLATION)
    if row is None:
        return None
    if row[1] != LAYOUT_VERSION:
        raise ConfigurationError(
            "dpone.target.layout",
            f"The tables in schema dpone have layout {row[1]}, this version knows {LAYOUT_VERSION}.",
            layout=row[1],
        )
    return str(row[0])


def initialise(session: Session, now: str) -> str:
    """Creates what is missing, inside the caller's transaction, and returns the GUID."""
    for statement in sql.INSTALL:
        session.execute(statement)
    found = installation_id(session)
    if found is not None:
        return found
    made = uuid.uuid4()
    session.execute(
        sql.INSERT_INSTALLATION,
        {"installation_id": made, "layout_version": LAYOUT_VERSION, "created_at": naive(now)},
    )
    return str(made)


def naive(instant: str) -> datetime:
    """A canonical instant as a naive datetime in UTC, which is how DuckDB holds it."""
    return datetime.fromisoformat(instant).replace(tzinfo=None)
