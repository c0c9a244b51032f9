"""The tree of commands of ``python -m airflow_dpone``. A command module adds itself with ``add_to``.

A command writes for people on stderr and ends with one line of JSON on stdout; only what is asked for as a
text (``db migrate --sql``) is that text alone. Codes: 0 as asked, 1 the answer is no, 2 wrong usage or
nothing could be reached.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.metadata import version

from airflow_dpone.cli import db, recovery, target, type_matrix
from airflow_dpone.errors import DponeError


def parser() -> argparse.ArgumentParser:
    """The whole tree."""
    root = argparse.ArgumentParser(
        prog="python -m airflow_dpone",
        description="Deliver windows from ClickHouse to SQL Server, with proof.",
        epilog="Each command ends with one line of JSON on stdout; everything for people is on stderr.",
    )
    root.add_argument("--version", action="version", version=f"airflow-dpone {version('airflow-dpone')}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    db.add_to(commands)
    recovery.add_to(commands)
    target.add_to(commands)
    type_matrix.add_to(commands)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. A refusal is printed without a traceback."""
    chosen = parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], db.Answer] = chosen.run
    try:
        # Airflow, once it is loaded, logs to stdout.
        with redirect_stdout(sys.stderr):
            code, answer = run(chosen)
    except DponeError as error:
        code, answer = _refusal(error)
    print(answer if isinstance(answer, str) else json.dumps(answer, sort_keys=True), flush=True)
    return code


def _refusal(error: DponeError) -> db.Answer:
    print(f"{error.message}\nNext: {error.next_action} [{error.code}]", file=sys.stderr)
    document = {
        "schema": "dpone.error.v1",
        "code": error.code,
        "error": type(error).__name__,
        "message": error.message,
        "next_action": error.next_action,
        "retry": error.retry,
    }
    return (1 if error.code in db.ANSWERS_NO else 2), document
