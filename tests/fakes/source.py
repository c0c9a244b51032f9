"""A source whose table and misbehaviour are a script in a file, so that several processes read the same."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from airflow_dpone.delivery.ports import Deadline, effect
from airflow_dpone.delivery.records import SourceColumn, SourceQuery, SourceSnapshot, SourceTable
from airflow_dpone.delivery.window import Window, instant_text
from airflow_dpone.errors import ConfigurationError, Problem, SourceUnavailable, error_of
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout
from tests.fakes.raw_values import raw_batch

_DAY_US = 86_400 * 10**6


@dataclass(frozen=True)
class ReadFault:
    """What goes wrong in one read.

    :param kind: ``moved`` (a mutation runs after row ``at_row``), ``ends_early`` or ``raises`` (after
        ``at_row`` rows, with an error of ``code``).
    """

    kind: str
    at_row: int = 0
    code: str = "dpone.source.unavailable"


@dataclass
class Script:
    """The whole state of a scripted source.

    :param columns: (name, ClickHouse type). :param rows: Python values, in the columns' order.
    :param parts: (partition, first block, last block) of each active part.
    :param faults: used up front to back, one by each read; None is a read without a fault.
    :param reads: how many reads were begun.
    """

    columns: list[tuple[str, str]]
    rows: list[Sequence[Any]]
    database: str = "shop"
    table: str = "orders"
    uuid: str = "5f0f3c1a-0000-4000-8000-000000000001"
    problems: list[Problem] = field(default_factory=list)
    mutations: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    patch_parts: list[str] = field(default_factory=list)
    parts: list[tuple[str, int, int]] = field(default_factory=lambda: [("all", 1, 1), ("all", 2, 4)])
    faults: list[ReadFault | None] = field(default_factory=list)
    reads: int = 0
    batch_rows: int = 1_000


class ScriptedSource:
    """A SourcePort over a script file. Nothing is cached: every call reads the file."""

    capabilities: Mapping[str, str] = {"row_policies": "absent", "server_identity": "absent"}

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._open = 0

    # ---- the script ----------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, path: Path, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]
    ) -> ScriptedSource:
        """Writes a new script and returns a source on it."""
        source = cls(path)
        source.write(Script(list(columns), list(rows)))
        return source

    @property
    def script(self) -> Script:
        """The script as it is now."""
        script: Script = pickle.loads(self.path.read_bytes())
        return script

    def write(self, script: Script) -> None:
        """Replaces the script in one step."""
        fresh = self.path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(pickle.dumps(script))
        fresh.replace(self.path)

    def edit(self, **changes: Any) -> None:
        """Changes fields of the script."""
        script = self.script
        for name, value in changes.items():
            setattr(script, name, value)
        self.write(script)

    # ---- the port ------------------------------------------------------------------------------------

    def __enter__(self) -> ScriptedSource:
        self._open += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open -= 1

    def _script_while_open(self) -> Script:
        if not self._open:
            raise SourceUnavailable("dpone.source.closed", "The scripted source is not open.")
        return self.script

    def describe(self, database: str, table: str) -> SourceTable:
        """Columns and refusals of the script."""
        script = self._script_while_open()
        if (database, table) != (script.database, script.table):
            problem = Problem("dpone.source.missing", "source_table", f"there is no table {database}.{table}")
            raise ConfigurationError.of([problem])
        columns = tuple(SourceColumn(name, kind) for name, kind in script.columns)
        return SourceTable(
            database, table, script.uuid, "MergeTree", columns, self.capabilities, tuple(script.problems),
            estimated_rows=len(script.rows),
        )  # fmt: skip

    def compile(
        self,
        table: SourceTable,
        layout: WireLayout,
        source_columns: Sequence[str],
        window_column: str | None,
        window: Window,
    ) -> SourceQuery:
        """Projection and predicate are JSON: the fake's own language, with integer bounds."""
        types = {column.name: column.type for column in table.columns}
        wanted = [*source_columns, *([window_column] if window_column else [])]
        missing = [name for name in dict.fromkeys(wanted) if name not in types]
        if missing:
            raise ConfigurationError.of(
                Problem("dpone.source.column", name, f"{table.table} has no such column") for name in missing
            )
        columns = [
            {"source": name, "target": column.name, **column.pair.to_json()}
            for name, column in zip(source_columns, layout.columns, strict=True)
        ]
        projection = json.dumps(columns)
        predicate = "" if window.is_full else _predicate(window_column, types[str(window_column)], window)
        text = f"READ {projection} FROM {table.database}.{table.table} WHERE {predicate or 'true'}"
        return SourceQuery(table.database, table.table, projection, predicate, text)

    def find_rows_hint(self, query: SourceQuery, column: str, code: str) -> str:
        """A sentence with the column and the kind of fault."""
        return f"COUNT ROWS OF {query.database}.{query.table} WHERE {column} IS {code.rpartition('.')[2]}."

    def snapshot(self, query: SourceQuery) -> SourceSnapshot:
        """The script's identity, mutations and partitions now."""
        script = self._script_while_open()
        columns = tuple(SourceColumn(name, kind) for name, kind in script.columns)
        table = SourceTable(query.database, query.table, script.uuid, "MergeTree", columns, self.capabilities)
        return SourceSnapshot(
            server_id="00000000-0000-0000-0000-000000000000",
            table_uuid=script.uuid,
            engine="MergeTree",
            schema_sha256=table.schema_sha256,
            mutations=tuple(script.mutations),
            unfinished=tuple(script.unfinished),
            patch_parts=tuple(script.patch_parts),
            parts=tuple(
                {
                    "name": f"{partition}_{first}_{last}_0",
                    "partition": partition,
                    "rows": len(script.rows),
                    "min_block": first,
                    "max_block": last,
                }
                for partition, first, last in script.parts
            ),
            read_at=instant_text(datetime.now(UTC)),
            settings={"session_timezone": "UTC"},
        )

    @effect
    def read(self, query: SourceQuery, *, nonce: str, deadline: Deadline) -> Iterator[pa.RecordBatch]:
        """Yields the window in batches, up to the fault that this read has drawn."""
        script = self._script_while_open()
        fault = script.faults.pop(0) if script.faults else None
        script.reads += 1
        self.write(script)
        return self._batches(script, query, fault, deadline)

    def _batches(
        self, script: Script, query: SourceQuery, fault: ReadFault | None, deadline: Deadline
    ) -> Iterator[pa.RecordBatch]:
        layout, rows = _project(script, query)
        sent = 0
        stops = fault is not None and fault.kind in ("ends_early", "raises")
        left = iter(rows[: fault.at_row] if stops and fault else rows)
        while chunk := list(islice(left, script.batch_rows)):
            if deadline.remaining_sec() <= 0:
                raise SourceUnavailable("dpone.source.deadline", "The time for the read is over.")
            if fault is not None and fault.kind == "moved" and sent <= fault.at_row < sent + len(chunk):
                self.edit(mutations=[*self.script.mutations, f"mutation_{script.reads}"])
            yield raw_batch(chunk, layout)
            sent += len(chunk)
        if stops and fault:
            code = fault.code if fault.kind == "raises" else "dpone.source.broken_block"
            raise error_of(code, f"The stream ended after {sent} rows.", rows=sent)


def _predicate(column: str | None, source_type: str, window: Window) -> str:
    """Bounds in microseconds. Raises ConfigurationError when the column's type cannot say them."""
    low, high = window.bounds_us
    kind = source_type.removeprefix("Nullable(").removeprefix("LowCardinality(")
    name = kind.partition("(")[0].rstrip(")")
    units = {"Date": _DAY_US, "Date32": _DAY_US, "DateTime": 10**6, "DateTime64": 1}
    if name not in units:
        raise ConfigurationError.of(
            [Problem("dpone.source.window_type", str(column), f"{source_type} cuts nothing")]
        )
    unit = units[name]
    if name == "DateTime64":
        unit = 10 ** (6 - min(6, int(kind.partition("(")[2].partition(",")[0].rstrip(")"))))
    if low % unit or high % unit:
        text = f"{source_type} has no value at a bound of {window}"
        raise ConfigurationError.of([Problem("dpone.source.window_bound", "window", text)])
    return json.dumps([column, low, high])


def _project(script: Script, query: SourceQuery) -> tuple[WireLayout, list[list[Any]]]:
    columns = json.loads(query.projection)
    layout = WireLayout(tuple(WireColumn(c["target"], TypePair.from_json(c)) for c in columns))
    place = {name: ordinal for ordinal, (name, _) in enumerate(script.columns)}
    rows = script.rows
    if query.predicate:
        name, low, high = json.loads(query.predicate)
        rows = [row for row in rows if (at := row[place[name]]) is not None and low <= _micros(at) < high]
    return layout, [[row[place[c["source"]]] for c in columns] for row in rows]


def _micros(value: date | datetime) -> int:
    if isinstance(value, datetime):
        since = value.replace(tzinfo=None) - datetime(1970, 1, 1)
        return (since.days * 86_400 + since.seconds) * 10**6 + since.microseconds
    return (value - date(1970, 1, 1)).days * _DAY_US
