"""``types``: which source type goes into which target type exactly, and what is refused."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from airflow_dpone.cli.commands import Answer, Command


def run_types(chosen: argparse.Namespace) -> Answer:
    """``types``."""
    given = (chosen.source is not None, chosen.target is not None)
    if any(given) is not all(given):
        chosen.wrong_usage("--source and --target are given together")
    if (chosen.not_null or chosen.fail_on_null) and not all(given):
        chosen.wrong_usage("--not-null and --fail-on-null are about one pair: give --source and --target")
    return _one_pair(chosen) if all(given) else _whole_matrix()


def _one_pair(chosen: argparse.Namespace) -> Answer:
    from airflow_dpone.errors import Problem
    from airflow_dpone.wire.types import resolve

    found = resolve(
        chosen.source, chosen.source, chosen.target, not chosen.not_null, fail_on_null=chosen.fail_on_null
    )
    document = {
        "schema": "dpone.type-pair.v1",
        "source": chosen.source,
        "target": chosen.target,
        "admitted": not isinstance(found, Problem),
    }
    if isinstance(found, Problem):
        print(f"refused: {found.message} [{found.code}]", file=sys.stderr)
        return 1, {**document, "arrow": None, "code": found.code, "message": found.message}
    null = "NULL" if found.target_nullable else "NOT NULL"
    stops = "; the first NULL stops the delivery" if found.fails_on_null else ""
    message = f"{found.source_type} goes into {found.target_type} {null} exactly{stops}."
    print(f"admitted: {message} Sealed as Arrow {found.arrow_type}.", file=sys.stderr)
    return 0, {**document, "arrow": str(found.arrow_type), "code": None, "message": message}


def _whole_matrix() -> Answer:
    from airflow_dpone.wire.matrix import exact_pairs, refused_sources
    from airflow_dpone.wire.sql_type import REFUSED_TARGETS

    pairs, sources = exact_pairs(), refused_sources()
    _table("Exact pairs (numbers are examples)", ((p.source, ", ".join(p.targets)) for p in pairs))
    _table("Source types that are refused", sources.items())
    _table("Target types that are refused", REFUSED_TARGETS.items())
    print(
        "A pair that is not listed is refused. One pair: types --source TYPE --target TYPE", file=sys.stderr
    )
    document = {
        "schema": "dpone.types.v1",
        "pairs": [{"source": p.source, "targets": p.targets, "arrow": p.arrow} for p in pairs],
        "refused_sources": sources,
        "refused_targets": REFUSED_TARGETS,
    }
    return 0, document


def _table(title: str, rows: Iterable[tuple[str, str]]) -> None:
    listed = list(rows)
    width = max(len(name) for name, _ in listed)
    lines = [title, "", *(f"  {name:{width}}  {text}" for name, text in listed), ""]
    print("\n".join(lines), file=sys.stderr)


def _add_types(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--source", metavar="TYPE", help="a ClickHouse type, e.g. 'Nullable(Decimal(38, 10))'"
    )
    command.add_argument("--target", metavar="TYPE", help="a SQL Server type, e.g. 'decimal(38,10)'")
    command.add_argument("--not-null", action="store_true", help="the target column is NOT NULL")
    command.add_argument(
        "--fail-on-null", action="store_true", help="as the route's options.fail_on_null=True"
    )
    command.set_defaults(wrong_usage=command.error)


COMMAND = Command(
    "types",
    "print the matrix of types, or say whether one pair is exact",
    "Print the matrix of types; with --source and --target, say whether that pair is exact. Opens nothing. "
    "Exit code: 0 printed, or the pair is admitted; 1 the pair is refused; 2 wrong usage.",
    _add_types,
    run_types,
)
