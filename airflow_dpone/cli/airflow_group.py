"""``airflow dpone ...``: the same commands, as Airflow's command line wants them."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from airflow_dpone.cli.arguments import ABOUT, TREE, run
from airflow_dpone.cli.commands import Command, Group


def get_cli_commands() -> list[Any]:
    """The group, named by the provider's ``cli``. Airflow calls this for each of its commands, so it is
    cheap."""
    from airflow.cli.cli_config import GroupCommand

    about = "Deliveries of windows from ClickHouse to SQL Server: journal, recovery, targets, types"
    return [GroupCommand("dpone", about, [_for_airflow(node) for node in TREE], epilog=ABOUT)]


def _for_airflow(node: Group | Command) -> Any:
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    if isinstance(node, Group):
        return GroupCommand(node.name, node.help, [_for_airflow(command) for command in node.commands])
    command = node

    class Arguments(Arg):
        """All of the command's arguments: it adds them itself, groups and defaults too."""

        def add_to_parser(self, parser: argparse.ArgumentParser) -> None:
            command.add_arguments(parser)
            parser.set_defaults(run=command.run, in_airflow=True)

    # Airflow sorts by the flag and uses nothing else of it.
    own: Any = Arguments
    return ActionCommand(command.name, command.help, run_and_exit, (own(("--own",)),), command.description)


def run_and_exit(chosen: argparse.Namespace) -> None:
    """Runs the command; its exit code becomes that of ``airflow``. Airflow logs to stdout, which is for the
    answer."""
    from airflow.cli.utils import redirect_stdout_log_handlers_to_stderr

    redirect_stdout_log_handlers_to_stderr()
    sys.exit(run(chosen))
