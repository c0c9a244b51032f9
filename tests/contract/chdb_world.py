"""chDB for tests: one directory per test process, one Atomic database per test.

The engine admits one directory per process and survives no fork, so every test of a process shares this one,
and whoever needs a second process starts a new interpreter.
"""

from __future__ import annotations

import atexit
import itertools
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from typing import Any

from airflow_dpone.delivery.records import SourceQuery, SourceTable
from airflow_dpone.delivery.window import Window
from airflow_dpone.source_clickhouse.embedded import EmbeddedSource
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve

_numbers = itertools.count(1)


@cache
def chdb_directory() -> str:
    """The directory of this process; it goes when the process ends."""
    scratch = tempfile.TemporaryDirectory(prefix="dpone-chdb-", ignore_cleanup_errors=True)
    atexit.register(scratch.cleanup)
    return scratch.name


@cache
def _session() -> Any:
    from chdb.session import Session

    session = Session(chdb_directory())
    atexit.register(session.close)
    return session


class ChdbWorld:
    """A database of its own, the statements that a test runs in it, and the source over it."""

    def __init__(self) -> None:
        self.database = f"w{next(_numbers)}"
        self.execute(f"CREATE DATABASE {self.database} ENGINE = Atomic")

    def execute(self, statement: str) -> None:
        """Runs a statement without the product's code."""
        _session().query(statement)

    def rows(self, statement: str) -> list[list[Any]]:
        """An independent text export; None for NULL."""
        answer = _session().query(statement, "JSONCompact").bytes()
        rows = json.loads(answer)["data"] if answer else []
        return [[None if value is None else str(value) for value in row] for row in rows]

    def table(self, columns: str, *, name: str = "t", rest: str = "ORDER BY tuple()") -> str:
        """Creates a plain MergeTree table and returns its full name."""
        self.execute(f"CREATE TABLE {self.database}.{name} ({columns}) ENGINE = MergeTree {rest}")
        return f"{self.database}.{name}"

    def source(self, **options: Any) -> EmbeddedSource:
        """A new, closed source over the directory."""
        return EmbeddedSource(chdb_directory(), **{"lock_wait_sec": 5, **options})

    def drop(self) -> None:
        """Removes the database at once."""
        self.execute(f"DROP DATABASE IF EXISTS {self.database} SYNC")


def pair_of(source_type: str, target_type: str) -> TypePair:
    """An admitted pair; a refusal is a mistake of the test."""
    pair = resolve("c", source_type, target_type, True)
    assert isinstance(pair, TypePair), pair
    return pair


def layout_of(table: SourceTable, targets: dict[str, str]) -> tuple[WireLayout, list[str]]:
    """Layout and source columns for some columns of a table: source column -> target type."""
    types = {column.name: column.type for column in table.columns}
    columns = [WireColumn(name, pair_of(types[name], target)) for name, target in targets.items()]
    return WireLayout(tuple(columns)), list(targets)


def compiled(
    source: EmbeddedSource,
    table: SourceTable,
    targets: dict[str, str],
    window_column: str | None = None,
    window: Window | None = None,
) -> tuple[SourceQuery, WireLayout]:
    """The query of some columns and a window, with its layout."""
    layout, columns = layout_of(table, targets)
    return source.compile(table, layout, columns, window_column, window or Window.full()), layout


def sql_list(values: Sequence[str]) -> str:
    """Values as rows ``(ordinal, value)`` of an INSERT."""
    return ", ".join(f"({ordinal}, {value})" for ordinal, value in enumerate(values))
