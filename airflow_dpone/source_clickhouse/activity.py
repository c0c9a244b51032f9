"""What happens to a source table now: inserts by their age, and mutations that are not finished.

For those who wait until a window is complete; a delivery itself looks at the parts that its query has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_dpone.delivery.records import SourceTable
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.source_clickhouse import statements as sql
from airflow_dpone.source_clickhouse.introspect import Ask

_BLIND = frozenset({"dpone.source.engine", "dpone.source.access"})
"""Problems of a table with which its parts say nothing about its rows, or cannot be seen."""


@dataclass(frozen=True)
class Insert:
    """The newest insert of a partition.

    :param block: its number: only an insert makes a greater one.
    :param age_sec: since it is known to be there; the insert itself may be older.
    """

    block: int
    age_sec: int


@dataclass(frozen=True)
class Activity:
    """A table and the partitions with rows of a window, now.

    :param newest: by partition id; empty: no row of the window is there.
    """

    unfinished_mutations: int
    newest: Mapping[str, Insert]


def look(ask: Ask, table: SourceTable, window_column: str | None, window: Window) -> Activity:
    """The activity now. Raises ConfigurationError when the table is none whose parts can tell."""
    blind = [problem for problem in table.problems if problem.code in _BLIND]
    if blind:
        raise ConfigurationError.of(blind)
    mutations = ask(sql.render(sql.MUTATIONS, database=table.database, table=table.table))
    newest = ask(sql.newest_inserts(table, window_column, window))
    return Activity(
        unfinished_mutations=sum(done != "1" for _, done in mutations),
        newest={partition: Insert(int(block), int(age_sec)) for partition, block, age_sec in newest},
    )
