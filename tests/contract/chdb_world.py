"""chDB for tests: one directory per test process, one Atomic database per test.

The engine admits one directory per process and survives no fork, so every test of a process shares this one,
and whoever needs a second process starts a new interpreter.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any

from airflow_dpone.delivery.ports import SourcePort
from airflow_dpone.delivery.records import SourceQuery, SourceTable
from airflow_dpone.delivery.window import Window
from airflow_dpone.source_clickhouse.embedded import EmbeddedSource
from airflow_dpone.source_clickhouse.session import Session
from airflow_dpone.source_clickhouse.source import ClickHouseSource
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


class EngineWorld(ABC):
    """A database of its own, the statements that a test runs in it, and the source over it."""

    def __init__(self) -> None:
        self.database = f"w{os.getpid()}_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {self.database} ENGINE = Atomic")

    @abstractmethod
    def execute(self, statement: str) -> None:
        """Runs a statement without the product's code, always in the same session."""

    @abstractmethod
    def rows(self, statement: str) -> list[list[Any]]:
        """An independent text export; None for NULL."""

    @abstractmethod
    def source_after(self, statement: str) -> ClickHouseSource:
        """A source whose every session has run a statement first, like a user with a profile."""

    @abstractmethod
    def source(self) -> ClickHouseSource:
        """A new, closed source."""

    def table(self, columns: str, *, name: str = "t", rest: str = "ORDER BY tuple()") -> str:
        """Creates a plain MergeTree table and returns its full name."""
        self.execute(f"CREATE TABLE {self.database}.{name} ({columns}) ENGINE = MergeTree {rest}")
        return f"{self.database}.{name}"

    def drop(self) -> None:
        """Removes the database at once."""
        self.execute(f"DROP DATABASE IF EXISTS {self.database} SYNC")


class ChdbWorld(EngineWorld):
    """The engine in this process."""

    def execute(self, statement: str) -> None:
        """In a session of the tests'."""
        _session().query(statement)

    def rows(self, statement: str) -> list[list[Any]]:
        """As JSON."""
        return rows_of_json(_session().query(statement, "JSONCompactEachRow").bytes())

    def source(self, **options: Any) -> EmbeddedSource:
        """Over the directory of this process."""
        return EmbeddedSource(chdb_directory(), **{"lock_wait_sec": 5, **options})

    def source_after(self, statement: str) -> EmbeddedSource:
        """Its sessions run the statement."""

        class WithProfile(EmbeddedSource):
            def _new_session(self) -> Session:
                session = super()._new_session()
                session.rows(statement)
                return session

        return WithProfile(chdb_directory(), lock_wait_sec=5)


def rows_of_json(lines: bytes) -> list[list[Any]]:
    """Rows of the format JSONCompactEachRow as text; None for NULL."""
    rows = [json.loads(line) for line in lines.splitlines()]
    return [[None if value is None else str(value) for value in row] for row in rows]


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
    source: SourcePort,
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
