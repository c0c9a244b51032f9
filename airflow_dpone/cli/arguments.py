"""The tree of commands, and ``python -m airflow_dpone``.

A command writes for people on stderr and ends with one line of JSON on stdout; only what is asked for as a
text (``db migrate --sql``) is that text alone. Codes: 0 as asked, 1 the answer is no, 2 wrong usage or
nothing could be reached.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from typing import Any

from airflow_dpone.cli import audit, db, recovery, target, type_matrix
from airflow_dpone.cli.commands import Answer, Command, Group
from airflow_dpone.errors import ConfigurationError, DponeError

TREE: tuple[Group | Command, ...] = (
    db.GROUP,
    recovery.GROUP,
    audit.COMMAND,
    target.GROUP,
    type_matrix.COMMAND,
)
ABOUT = "Each command ends with one line of JSON on stdout; everything for people is on stderr."


def parser() -> argparse.ArgumentParser:
    """The whole tree."""
    root = argparse.ArgumentParser(
        prog="python -m airflow_dpone",
        description="Deliver windows from ClickHouse to SQL Server, with proof.",
        epilog=ABOUT,
    )
    root.add_argument("--version", action="version", version=f"airflow-dpone {version('airflow-dpone')}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for node in TREE:
        if isinstance(node, Command):
            _add(commands, node)
            continue
        actions = commands.add_parser(node.name, help=node.help).add_subparsers(
            title="actions", metavar="ACTION", required=True
        )
        for command in node.commands:
            _add(actions, command)
    return root


def _add(commands: Any, command: Command) -> None:
    one = commands.add_parser(command.name, help=command.help, description=command.description)
    command.add_arguments(one)
    one.set_defaults(run=command.run)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. A refusal is printed without a traceback."""
    return run(parser().parse_args(arguments))


def run(chosen: argparse.Namespace) -> int:
    """Runs the command that was chosen, prints its answer and returns its exit code."""
    command: Callable[[argparse.Namespace], Answer] = chosen.run
    try:
        # Airflow, once it is loaded, logs to stdout.
        with redirect_stdout(sys.stderr), _airflows_own_connections():
            code, answer = command(chosen)
    except DponeError as error:
        code, answer = _refusal(error)
    print(answer if isinstance(answer, str) else json.dumps(answer, sort_keys=True), flush=True)
    return code


@contextmanager
def _airflows_own_connections() -> Iterator[None]:
    """Airflow looks into its own database only in a process that says that it may; a person's command may,
    as ``airflow connections get`` does."""
    name = "_AIRFLOW_PROCESS_CONTEXT"
    before = os.environ.get(name)
    os.environ[name] = before or "server"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]


def _refusal(error: DponeError) -> Answer:
    message, next_action = _for_a_command(error)
    print(f"{message}\nNext: {next_action} [{error.code}]", file=sys.stderr)
    document = {
        "schema": "dpone.error.v1",
        "code": error.code,
        "error": type(error).__name__,
        "message": message,
        "next_action": next_action,
        "retry": error.retry,
    }
    return (1 if error.code in db.ANSWERS_NO else 2), document


def _for_a_command(error: DponeError) -> tuple[str, str]:
    """Message and next action: errors speak of a delivery, its DAG and its task, but here it is about
    arguments, and nothing is tried again by itself."""
    again = "run the command again"
    next_action = error.next_action.replace("; the task tries again by itself", f", then {again}")
    if not isinstance(error, ConfigurationError):
        return error.message, next_action
    message = error.message.replace("The delivery was refused", "The command was refused", 1)
    if error.code == "dpone.target.table_missing":
        message = message.replace(", create it, or set options.create_target", " or create it")
        return message, f"Correct the argument, or create the table, and {again}."
    next_action = next_action.replace("the named field in the DAG", "the named argument")
    return message, re.sub(r"\bclear the task(?=[.;])", again, next_action)
