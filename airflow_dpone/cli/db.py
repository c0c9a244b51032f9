"""``db migrate`` and ``db status``: the journal's database."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from airflow_dpone.cli.commands import Answer, Command, Group
from airflow_dpone.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_dpone.journal.address import JournalAddress

ANSWERS_NO = frozenset({"dpone.journal.newer", "dpone.journal.not_migrated", "dpone.journal.other_host"})
"""Refusals that say how the journal stands, not that it cannot be reached."""


def run_migrate(chosen: argparse.Namespace) -> Answer:
    """``db migrate``."""
    from airflow_dpone.journal.migrate import migrate, script

    address = address_of(chosen)
    if chosen.sql:
        return 0, script(address)
    found = migrate(address, host=host_id_of(chosen))
    print(f"The journal {found.journal} is at revision {found.revision}.", file=sys.stderr)
    return 0, found.to_json()


def run_status(chosen: argparse.Namespace) -> Answer:
    """``db status``."""
    from airflow_dpone.journal.migrate import status

    address = address_of(chosen)
    found = status(address)
    words = {
        "at_head": "is at the newest revision",
        "behind": f"is behind: run `{address.migrate_command()}`",
        "newer": "is newer than this version: install that version, or a newer one",
    }
    print(f"The journal {found.journal} {words[found.status]}.", file=sys.stderr)
    print(f"revision {found.revision or 'none'}, newest {found.head}", file=sys.stderr)
    if found.journal_id is not None:
        print(f"journal_id {found.journal_id}, host_id {found.host_id}", file=sys.stderr)
    return (0 if found.status == "at_head" else 1), found.to_json()


def add_journal(command: argparse.ArgumentParser) -> None:
    """The arguments that name the journal: one of the two, or Airflow's configuration does."""
    where = command.add_mutually_exclusive_group()
    where.add_argument(
        "--journal",
        metavar="URL_OR_PATH",
        help="the journal: the path of a SQLite file on a local disk, or a URL without a password "
        "(postgresql://user@host/database; the password comes from PGPASSFILE or PGPASSWORD)",
    )
    where.add_argument(
        "--journal-conn-id",
        metavar="CONN_ID",
        help="the Airflow connection of the journal; default: journal_conn_id of Airflow's section dpone",
    )


def add_host_id(command: argparse.ArgumentParser) -> None:
    """The argument that names this machine."""
    command.add_argument(
        "--host-id",
        metavar="ID",
        help="the machine that a SQLite journal belongs to; default: host_id of Airflow's section dpone, "
        "/etc/machine-id, or the host name. A container whose journal outlives it needs one that stays the "
        "same.",
    )


def _add_migrate(command: argparse.ArgumentParser) -> None:
    add_journal(command)
    command.add_argument(
        "--sql",
        action="store_true",
        help="open nothing; print only the script that creates a journal on PostgreSQL",
    )
    add_host_id(command)


def address_of(chosen: argparse.Namespace) -> JournalAddress:
    """The journal that was named. Raises ConfigurationError."""
    from airflow_dpone.journal.address import JournalAddress, holds_password

    if chosen.journal is None:
        from airflow_dpone.airflow_config import journal_conn_id
        from airflow_dpone.hooks.journal import journal_address

        if chosen.journal_conn_id:
            return journal_address(chosen.journal_conn_id)
        try:
            return journal_address(journal_conn_id())
        except ConfigurationError as error:
            text = f"no journal is named, and [dpone] journal_conn_id cannot be used: {error.message}"
            name_one = "Name one: --journal URL_OR_PATH, or --journal-conn-id; or make that connection."
            raise ConfigurationError(error.code, text.rstrip(), next_action=name_one) from None
    if holds_password(chosen.journal):
        raise ConfigurationError(
            "dpone.config.secret_in_uri",
            "The URL carries a password, and others on this machine can read a command line.",
            next_action="Leave the password to PGPASSFILE or PGPASSWORD, or use --journal-conn-id.",
        )
    return JournalAddress.of(chosen.journal)


def host_id_of(chosen: argparse.Namespace) -> str | None:
    """This machine, as it was named. Airflow's configuration is asked only where Airflow takes part: the
    program with a path or URL works without it."""
    if chosen.host_id or (chosen.journal is not None and not getattr(chosen, "in_airflow", False)):
        return str(chosen.host_id) if chosen.host_id else None
    from airflow_dpone import airflow_config

    return airflow_config.host_id()


GROUP = Group(
    "db",
    "create, migrate and look at the journal's database",
    (
        Command(
            "migrate",
            "create the journal, or bring it to this version",
            "Create the journal, or bring it to this version, in one transaction. At the newest version it "
            "changes nothing. Exit code: 0 done, 1 refused (newer, or of another machine), 2 not reached, "
            "or wrong usage.",
            _add_migrate,
            run_migrate,
        ),
        Command(
            "status",
            "say where the journal stands",
            "Say where the journal stands; changes nothing. Exit code: 0 at the newest version, 1 behind it "
            "or newer than this version, 2 it cannot be reached.",
            add_journal,
            run_status,
        ),
    ),
)
