"""``target init`` and ``target permissions``: what an administrator does for a SQL Server database, once."""

from __future__ import annotations

import argparse
import sys

from airflow_dpone.cli.commands import Answer, Command, Group


def run_init(chosen: argparse.Namespace) -> Answer:
    """``target init``."""
    from airflow_dpone.wiring import initialise_target, sql_server

    where = sql_server(chosen.target)
    names = {
        "schema": "dpone.target-init.v1",
        "database": where.database,
        "control_schema": where.control_schema,
        "stage_schema": where.stage_schema,
    }
    if chosen.print:
        from airflow_dpone.target_sqlserver.installation_statements import install_script

        script = install_script(where.schemas)
        print(script, file=sys.stderr)
        return 0, {**names, "installation_id": None, "script": script}
    found = initialise_target(where)
    print(f"{where} is ready: installation {found}.", file=sys.stderr)
    return 0, {**names, "installation_id": found, "script": None}


def run_permissions(chosen: argparse.Namespace) -> Answer:
    """``target permissions``."""
    from airflow_dpone.target_sqlserver.installation_statements import permissions_script
    from airflow_dpone.wiring import sql_server

    where = sql_server(chosen.target)
    tables = [(schema, table) for schema, table in chosen.target_table]
    script = permissions_script(where.schemas, tables, chosen.user, create_target=chosen.create_target)
    print(script, file=sys.stderr)
    return 0, {"schema": "dpone.target-permissions.v1", "database": where.database, "script": script}


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--target",
        required=True,
        metavar="URI_OR_ID",
        help="mssql://user@host:1433/database, or the id of an Airflow connection",
    )


def _add_init(command: argparse.ArgumentParser) -> None:
    _add_target(command)
    command.add_argument("--print", action="store_true", help="print the script, change nothing")


def _add_permissions(command: argparse.ArgumentParser) -> None:
    _add_target(command)
    command.add_argument("--user", required=True, metavar="NAME", help="the database user of the login")
    command.add_argument(
        "--target-table",
        required=True,
        nargs=2,
        action="append",
        metavar=("SCHEMA", "TABLE"),
        help="a target table; give it once for each",
    )
    command.add_argument(
        "--create-target",
        action="store_true",
        help="the deliveries may make their tables (options.create_target): GRANTs on their schemas",
    )


GROUP = Group(
    "target",
    "make a SQL Server database ready for deliveries",
    (
        Command(
            "init",
            "create our schemas and tables, and the database's identity",
            "Create two schemas, three tables and the identity of the database. What is there stays: run it "
            "again at will. With --print it only prints the script, for an administrator's own tool. "
            "Exit code: 0 done or printed, 2 refused, wrong usage, or not reached.",
            _add_init,
            run_init,
        ),
        Command(
            "permissions",
            "print the GRANTs that a delivery needs",
            "Print the GRANTs that the login of a delivery needs, nothing else. Nothing is opened. "
            "Exit code: 0 printed, 2 wrong usage.",
            _add_permissions,
            run_permissions,
        ),
    ),
)
