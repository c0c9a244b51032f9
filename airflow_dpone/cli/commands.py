"""What a command is, for both entrances: ``python -m airflow_dpone ...`` and ``airflow dpone ...``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Answer = tuple[int, dict[str, Any] | str]
"""Exit code, and what stands on stdout: a document as one line of JSON, or a text."""


@dataclass(frozen=True)
class Command:
    """One command.

    :param add_arguments: adds its arguments to a parser, whoever made it.
    :param run: does it. May raise DponeError.
    """

    name: str
    help: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Answer]


@dataclass(frozen=True)
class Group:
    """Commands that belong together, under one word."""

    name: str
    help: str
    commands: tuple[Command, ...]
