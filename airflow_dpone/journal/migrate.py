"""Creating and migrating a journal, and telling where it stands: the only code that loads Alembic."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, select

from airflow_dpone.errors import ConfigurationError, JournalError
from airflow_dpone.host_identity import host_id
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.address import (
    JournalAddress,
    PostgresqlDatabase,
    SqliteFile,
    refuse_network_filesystem,
)
from airflow_dpone.journal.database import Database, lock_name
from airflow_dpone.journal.store import open_database, read_revision, refuse_newer, refuse_other_host

MIGRATIONS = Path(__file__).parent / "migrations"
MIGRATING = "a migration of the journal"
"""The name that one migration at a time locks."""


@dataclass(frozen=True)
class JournalStatus:
    """Where a journal stands.

    :param status: ``at_head``, ``behind`` (also: no tables yet) or ``newer``.
    :param revision: its newest migration, None without tables. :param head: the newest one of this version.
    """

    journal: str
    status: str
    revision: str | None
    head: str
    journal_id: str | None
    layout_version: int | None
    host_id: str | None

    def to_json(self) -> dict[str, Any]:
        """``dpone.db-status.v1``."""
        return {"schema": "dpone.db-status.v1", **asdict(self)}


def migrate(where: str | Path | JournalAddress, *, host: str | None = None) -> JournalStatus:
    """Creates the journal or brings it to this version, in one transaction; changes nothing at the newest.

    On a server the database must exist; the tables go into the first schema of the search path. Several
    migrations at once wait for each other.

    :param host: this machine, where ``/etc/machine-id`` does not name it: ``[dpone] host_id``.

    Raises ConfigurationError or JournalError as ``open_journal`` does. A crash leaves what was there before.
    """
    address = JournalAddress.of(where)
    if isinstance(address, SqliteFile):
        _refuse_place(address)
    this_host = host or host_id()
    database = Database(address, create=True)
    try:
        with database.write() as connection:
            lock_name(connection, MIGRATING)
            revision = read_revision(connection)
            refuse_newer(revision, address)
            if revision is not None:
                refuse_other_host(_row(connection).host_id, address, this_host)
            command.upgrade(configuration(connection, this_host), "head")
            return _status(connection, address)
    finally:
        database.close()


def _refuse_place(file: SqliteFile) -> None:
    if not file.path.parent.is_dir():
        text = f"The directory {file.path.parent} does not exist."
        raise JournalError(
            "dpone.journal.missing", text, next_action="Create it and run the same command again."
        )
    refuse_network_filesystem(file)


def script(where: str | Path | JournalAddress) -> str:
    """The SQL that creates a journal on PostgreSQL, for whoever may create tables there; nothing is opened.

    One transaction: run twice, the second one changes nothing. The server gives the journal its id.

    Raises ConfigurationError for a SQLite file, which is created by the command itself.
    """
    if not isinstance(JournalAddress.of(where), PostgresqlDatabase):
        text = "A script is for PostgreSQL; a SQLite journal is made by the command without --sql."
        raise ConfigurationError("dpone.config.field", text, next_action="Run it without --sql.")
    config = _configuration(host=None)
    config.output_buffer = io.StringIO()
    command.upgrade(config, "head", sql=True)
    head = f"-- The journal of airflow-dpone at revision {t.HEAD}: psql -v ON_ERROR_STOP=1 -f FILE\n\n"
    return head + config.output_buffer.getvalue().rstrip()


def status(where: str | Path | JournalAddress) -> JournalStatus:
    """Where the journal stands; changes nothing.

    Raises ConfigurationError, or JournalError when it cannot be read.
    """
    address = JournalAddress.of(where)
    database = open_database(address)
    try:
        with database.read() as connection:
            return _status(connection, address)
    finally:
        database.close()


def configuration(connection: Connection, host: str) -> Config:
    """Alembic's configuration for migrating over this connection, without a file."""
    config = _configuration(host if connection.dialect.name == "sqlite" else None)
    config.attributes["connection"] = connection
    return config


def _configuration(host: str | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["host_id"] = host
    return config


def _status(connection: Connection, address: JournalAddress) -> JournalStatus:
    revision = read_revision(connection)
    words = {None: "behind", t.HEAD: "at_head"}
    word = words.get(revision, "behind" if revision in t.REVISIONS else "newer")
    row = None if revision is None else _row(connection)
    return JournalStatus(
        journal=str(address),
        status=word,
        revision=revision,
        head=t.HEAD,
        journal_id=None if row is None else row.journal_id,
        layout_version=None if row is None else row.layout_version,
        host_id=None if row is None else row.host_id,
    )


def _row(connection: Connection) -> Any:
    return connection.execute(select(t.journal)).one()
