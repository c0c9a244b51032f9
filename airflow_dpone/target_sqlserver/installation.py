"""The database's identity and our tables in it: made by ``target init``, never by a delivery."""

from __future__ import annotations

from airflow_dpone.errors import ConfigurationError
from airflow_dpone.target_sqlserver import installation_statements as made
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.quoting import qualified
from airflow_dpone.target_sqlserver.session import Session


def installation_id(session: Session, schemas: sql.Schemas) -> str | None:
    """The GUID inside the database, or None when it was never initialised.

    :raises ConfigurationError: ``dpone.target.layout``: made by another version of this product.
    """
    if session.row(sql.OBJECT, qualified(schemas.control, "installation")) is None:
        return None
    row = session.row(sql.installation(schemas))
    if row is None:
        return None
    if row[1] != made.LAYOUT_VERSION:
        raise ConfigurationError(
            "dpone.target.layout",
            f"The tables in schema {schemas.control} have layout {row[1]}, this version knows "
            f"{made.LAYOUT_VERSION}.",
            layout=row[1],
        )
    return str(row[0]).lower()


def require_installation(session: Session, schemas: sql.Schemas) -> str:
    """The GUID; a delivery does not make one.

    :raises ConfigurationError: ``dpone.target.not_initialised``.
    """
    found = installation_id(session, schemas)
    if found is None:
        raise ConfigurationError("dpone.target.not_initialised", missing_text(schemas))
    return found


def missing_text(schemas: sql.Schemas) -> str:
    """What is said of a database that was not made ready."""
    return (
        f"The database has no tables of this product in schema {schemas.control}, or this login may not see "
        "them: run `python -m airflow_dpone target init`."
    )


def initialise(session: Session, schemas: sql.Schemas) -> str:
    """Creates what is missing and returns the GUID. Each step is harmless when it was done before."""
    for batch in made.install(schemas):
        session.execute(batch)
    return require_installation(session, schemas)
