"""What the tests of a target share: a table, deliveries told step by step, and hands to break things.

A lab is one database with one adapter on it. Everything that a test does behind the adapter's back goes
through the lab, so the same tests run on every target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.identity import key_of, sha256_hex, stage_name
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.window import Window
from airflow_dpone.target_embedded.target import EmbeddedTarget
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout, resolve
from tests.fakes.sqlite_lab import SqliteLab

Row = tuple[Any, ...]

JOURNAL = "6f0c3a52-92a7-4d25-8f52-1d0a4b1f7c11"
OTHER_JOURNAL = "0b8b7c1e-5a39-4a53-9f0e-3d7f6f5f0a22"
ROUTE = key_of(["route"])
OTHER_ROUTE = key_of(["another route"])
SCHEMA = "shop"


@dataclass(frozen=True)
class Column:
    """A target column and the source type that feeds it."""

    name: str
    source: str
    type: str
    nullable: bool = False


ID = Column("id", "Int64", "bigint")
NAME = Column("name", "Nullable(String)", "nvarchar(20)", True)
AMOUNT = Column("amount", "Nullable(Decimal(18, 2))", "decimal(18,2)", True)
TS = Column("ts", "Nullable(DateTime64(3))", "datetime2(3)", True)
ORDERS = (ID, NAME, AMOUNT, TS)

DAY = Window(datetime(2025, 1, 2, tzinfo=UTC), datetime(2025, 1, 3, tzinfo=UTC))


def at(day: int, hour: int = 0, ms: int = 0) -> datetime:
    return datetime(2025, 1, day, hour, 0, 0, ms * 1000)


BEFORE: list[Row] = [
    (1, "day before", Decimal("1.00"), datetime(2025, 1, 1, 23, 59, 59, 999000)),
    (2, "first instant", Decimal("2.00"), at(2)),
    (3, "inside", Decimal("3.00"), at(2, 12)),
    (4, "last instant", Decimal("4.00"), datetime(2025, 1, 2, 23, 59, 59, 999000)),
    (5, "day after", Decimal("5.00"), at(3)),
    (6, "no time", Decimal("6.00"), None),
]
OUTSIDE = [row for row in BEFORE if row[0] in (1, 5, 6)]
NEW: list[Row] = [
    (3, "corrected", Decimal("3.33"), at(2, 12)),
    (7, None, None, at(2)),
    (8, "twice", Decimal("-0.01"), datetime(2025, 1, 2, 23, 59, 59, 999000)),
    (8, "twice", Decimal("-0.01"), datetime(2025, 1, 2, 23, 59, 59, 999000)),
]


def layout_of(columns: Sequence[Column]) -> WireLayout:
    return WireLayout(tuple(WireColumn(c.name, _pair(c)) for c in columns))


def _pair(column: Column) -> TypePair:
    found = resolve(column.name, column.source, column.type, column.nullable)
    assert isinstance(found, TypePair), found
    return found


def batch_of(rows: Iterable[Row], layout: WireLayout) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(layout.columns)
    arrays = [
        pa.array([getattr(v, "bytes", v) for v in values], type=column.pair.arrow_type)
        for values, column in zip(columns, layout.columns, strict=True)
    ]
    return pa.record_batch(arrays, schema=layout.arrow_schema)


def sum_of(rows: Iterable[Row], layout: WireLayout) -> DigestSum:
    """By the columnar encoder, which is not the one that the embedded target judges with."""
    return DigestSum.of_hashes(encode_rows(batch_of(rows, layout), layout).hashes())


def in_time() -> Deadline:
    return Deadline.after(60)


class Lab(Protocol):
    """A database, its adapter, and everything that others could do to it."""

    def open(self) -> Any:
        """The adapter: TargetPort and WriterPort in one, a context manager."""

    def create_table(self, table: str, columns: Sequence[Column], extra: str = "") -> None:
        """:param extra: more column definitions or table constraints, as SQL that all databases know."""

    def drop_table(self, table: str) -> None: ...

    def add_column(self, table: str, name: str) -> None: ...

    def create_view(self, view: str, table: str) -> None: ...

    def insert(self, table: str, rows: Iterable[Row]) -> None: ...

    def rows(self, table: str) -> list[Row]: ...

    def stage_names(self) -> list[str]: ...

    def create_foreign_stage(self, name: str) -> None:
        """A table in the stage schema that is not ours."""

    def change_stage(self, name: str, column: str, value: object, where_id: int) -> None: ...

    def add_to_stage(self, name: str, row: Row) -> None: ...

    def delete_from_stage(self, name: str, where_id: int) -> None: ...

    def drop_stage(self, name: str) -> None: ...

    def forget_receipts(self) -> None: ...

    def count_receipts(self) -> int: ...

    def forget_gate(self) -> None: ...

    def set_in_flight(self, operation_id: str) -> None: ...


class EmbeddedLab:
    """A DuckDB file; DuckDB shares one instance in a process, so tests get in while it is open."""

    _TYPES: Mapping[str, str] = {
        "bigint": "BIGINT",
        "int": "INTEGER",
        "smallint": "SMALLINT",
        "tinyint": "UTINYINT",
        "real": "FLOAT",
        "float(53)": "DOUBLE",
        "bit": "BOOLEAN",
        "date": "DATE",
        "uniqueidentifier": "UUID",
    }

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "target.duckdb")
        self.run(f'CREATE SCHEMA "{SCHEMA}"')

    def open(self) -> EmbeddedTarget:
        return EmbeddedTarget(self.path, lock_wait_sec=0)

    def run(self, text: str, parameters: Sequence[object] = ()) -> list[Row]:
        with duckdb.connect(self.path) as connection:
            return connection.execute(text, list(parameters)).fetchall()

    def create_table(self, table: str, columns: Sequence[Column], extra: str = "") -> None:
        parts = [f"{quote(c.name)} {self._stored(c)}{'' if c.nullable else ' NOT NULL'}" for c in columns]
        path = f"{quote(SCHEMA)}.{quote(table)}"
        with duckdb.connect(self.path) as connection:
            connection.execute("BEGIN")
            connection.execute(f"CREATE TABLE {path} ({', '.join([*parts, *([extra] if extra else [])])})")
            for c in columns:
                connection.execute(f"COMMENT ON COLUMN {path}.{quote(c.name)} IS '{c.type}'")
            connection.execute("COMMIT")

    def _stored(self, column: Column) -> str:
        if column.type.startswith("decimal"):
            return column.type
        if column.type.startswith("datetime2"):
            scale = int(column.type[10])
            return "TIMESTAMP_S" if scale == 0 else "TIMESTAMP_MS" if scale <= 3 else "TIMESTAMP"
        if column.type.startswith("nvarchar"):
            return "VARCHAR"
        return "BLOB" if "binary" in column.type else self._TYPES[column.type]

    def drop_table(self, table: str) -> None:
        self.run(f"DROP TABLE {quote(SCHEMA)}.{quote(table)}")

    def add_column(self, table: str, name: str) -> None:
        self.run(f"ALTER TABLE {quote(SCHEMA)}.{quote(table)} ADD COLUMN {quote(name)} INTEGER")

    def create_view(self, view: str, table: str) -> None:
        self.run(f"CREATE VIEW {quote(SCHEMA)}.{quote(view)} AS FROM {quote(SCHEMA)}.{quote(table)}")

    def insert(self, table: str, rows: Iterable[Row]) -> None:
        self._insert(f"{quote(SCHEMA)}.{quote(table)}", rows)

    def _insert(self, path: str, rows: Iterable[Row]) -> None:
        found = [list(row) for row in rows]
        with duckdb.connect(self.path) as connection:
            connection.execute("BEGIN")
            connection.executemany(f"INSERT INTO {path} VALUES ({', '.join('?' * len(found[0]))})", found)
            connection.execute("COMMIT")

    def rows(self, table: str) -> list[Row]:
        return self.run(f"SELECT * FROM {quote(SCHEMA)}.{quote(table)} ORDER BY ALL")

    def stage_names(self) -> list[str]:
        text = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'dpone_stage' ORDER BY 1"
        return [name for (name,) in self.run(text)]

    def create_foreign_stage(self, name: str) -> None:
        self.run(f"CREATE TABLE dpone_stage.{quote(name)} (id BIGINT)")

    def change_stage(self, name: str, column: str, value: object, where_id: int) -> None:
        text = f"UPDATE dpone_stage.{quote(name)} SET {quote(column)} = ? WHERE id = ?"
        self.run(text, [value, where_id])

    def add_to_stage(self, name: str, row: Row) -> None:
        self._insert(f"dpone_stage.{quote(name)}", [row])

    def delete_from_stage(self, name: str, where_id: int) -> None:
        self.run(f"DELETE FROM dpone_stage.{quote(name)} WHERE id = ?", [where_id])

    def drop_stage(self, name: str) -> None:
        self.run(f"DROP TABLE dpone_stage.{quote(name)}")

    def forget_receipts(self) -> None:
        self.run("DELETE FROM dpone.delivery_receipt")

    def count_receipts(self) -> int:
        return int(self.run("SELECT count(*) FROM dpone.delivery_receipt")[0][0])

    def forget_gate(self) -> None:
        self.run("DELETE FROM dpone.target_gate")

    def set_in_flight(self, operation_id: str) -> None:
        self.run("UPDATE dpone.target_gate SET in_flight_operation_id = ?", [bytes.fromhex(operation_id)])


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


LABS: dict[str, Callable[[Path], Lab]] = {"embedded": EmbeddedLab, "sqlite fake": SqliteLab}
"""One row per target adapter. Fakes and servers join here."""


@dataclass
class Delivery:
    """One delivery into one table, by the steps of the engine. Fences grow by themselves."""

    target: Any
    columns: Sequence[Column] = ORDERS
    table: str = "orders"
    window: Window = DAY
    window_column: str | None = "ts"
    invocation: str = "one"
    generation: int = 1
    fence: int = 1
    chunks: list[tr.StageRef] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layout = layout_of(self.columns)
        self.key = key_of(["invocation", self.invocation])
        self.operation_id = key_of(["operation", self.invocation])
        found = self.target.identify(SCHEMA, self.table, initialise=True)
        described = self.target.describe(SCHEMA, self.table)
        assert described.problems == ()
        self.ref = tr.TargetRef(
            found.target_key, found.schema, found.table, found.object_id, found.created, described.fingerprint
        )

    def next_fence(self) -> int:
        self.fence += 1
        return self.fence

    def claim(self, **changes: Any) -> tr.GateRow:
        wanted: dict[str, Any] = {"journal_id": JOURNAL, "route_scope": ROUTE, "take_over": False, **changes}
        fence = wanted.pop("fence", None) or self.next_fence()
        row: tr.GateRow = self.target.claim_gate(self.ref, fence=fence, **wanted)
        return row

    @property
    def right(self) -> tr.Claim:
        """The right of whoever holds the newest fence."""
        gate = self.gate()
        return tr.Claim(self.ref.target_key, max(self.fence, gate.fence if gate else 0))

    def names(self, ordinal: int | str, nonce: str = "n") -> tuple[str, str]:
        name = stage_name(self.key, 1, ordinal, nonce)
        return name, key_of(["owner", name])

    def create(self, ordinal: int = 0, nonce: str = "n") -> tr.StageRef:
        stage: tr.StageRef = self.target.create_stage(
            *self.names(ordinal, nonce), self.layout, claim=self.right
        )
        return stage

    def grant(self, stage: tr.StageRef) -> None:
        self.target.grant(stage, sha256_hex(stage.name.encode()))

    def write(self, stage: tr.StageRef, *parts: Sequence[Row]) -> tr.WriterObservation:
        batches = iter([batch_of(part, self.layout) for part in parts])
        return self.put(stage, batches)

    def put(
        self,
        stage: tr.StageRef,
        batches: Iterator[pa.RecordBatch],
        *,
        deadline: Deadline | None = None,
        token_sha256: str | None = None,
    ) -> tr.WriterObservation:
        """Any batches, by the writer that holds the grant."""
        said: tr.WriterObservation = self.target.write(
            stage,
            self.layout,
            batches,
            token_sha256=token_sha256 or sha256_hex(stage.name.encode()),
            deadline=deadline or in_time(),
        )
        return said

    def verify(
        self, stage: tr.StageRef, expected_rows: int, content: Sequence[Row] = ()
    ) -> tr.StageObservation:
        """The barrier's verdict. :param content: what the stage must hold to be sealed."""
        digest = sum_of(content, self.layout).digest
        seen: tr.StageObservation = self.target.verify_stage(
            stage, self.layout, expected_rows, digest, deadline=in_time()
        )
        return seen

    def stage(self, rows: Sequence[Row], *, written: Sequence[Row] | None = None) -> tr.StageRef:
        """A proved chunk; ``written`` is what a lying writer puts there instead."""
        stage = self.create(len(self.chunks))
        self.grant(stage)
        self.write(stage, rows if written is None else written)
        self.verify(stage, len(rows), rows)
        self.chunks.append(stage)
        return stage

    def prepare(self, rows: Sequence[Row], nonce: str = "n") -> tr.StageRef:
        if rows:
            self.stage(rows)
        prepared, seen = self.build(*self.names("prepared", nonce), self.chunks, len(rows))
        assert seen.proves(sum_of(rows, self.layout))
        found: tr.StageRef = prepared
        return found

    def build(
        self, name: str, owner: str, chunks: Sequence[tr.StageRef], expected_rows: int
    ) -> tuple[tr.StageRef, tr.StageObservation]:
        """The prepared table, by whoever holds the newest fence."""
        built: tuple[tr.StageRef, tr.StageObservation] = self.target.build_prepared(
            name, owner, self.layout, chunks, expected_rows, claim=self.right
        )
        return built

    def request(self, prepared: tr.StageRef, rows: Sequence[Row], **draft: Any) -> tr.PublishRequest:
        """What the engine would send now, with its own fence; ``draft`` changes fields of the receipt."""
        content = sum_of(rows, self.layout)
        made = tr.ReceiptDraft(
            operation_id=self.operation_id,
            target_key=self.ref.target_key,
            delivery_key=key_of(["delivery"]),
            generation=self.generation,
            invocation_key=self.key,
            route_scope=ROUTE,
            journal_id=JOURNAL,
            intent_sha256=key_of(["intent", self.invocation]),
            strategy="window_replace" if self.window_column else "full_refresh",
            window_key=self.window.key,
            row_count=content.rows,
            digest=content.digest,
            wire_layout_sha256=self.layout.sha256,
            fence=self.next_fence(),
            lock_mode=self.target.lock_mode,
        )
        return tr.PublishRequest(
            target=self.ref,
            prepared=prepared,
            expected=content,
            layout=self.layout,
            window=self.window,
            window_column=self.window_column,
            draft=replace(made, **draft),
        )

    def deliver(self, rows: Sequence[Row]) -> tuple[tr.PublishRequest, tr.PublishOutcome]:
        """Claim, stage, prepare, publish."""
        self.claim()
        request = self.request(self.prepare(rows), rows)
        return request, self.target.publish(request)

    def send(self, request: tr.PublishRequest, **draft: Any) -> tr.PublishOutcome:
        """The same request again, under a new fence."""
        changed = replace(request.draft, **{"fence": self.next_fence(), **draft})
        outcome: tr.PublishOutcome = self.target.publish(replace(request, draft=changed))
        return outcome

    def probe(self, **changes: Any) -> tr.ProbeAnswer:
        asked: dict[str, Any] = {
            "operation_id": self.operation_id,
            "journal_id": JOURNAL,
            "route_scope": ROUTE,
        }
        asked.update(changes)
        fence = asked.pop("fence", None) or self.next_fence()
        answer: tr.ProbeAnswer = self.target.probe(self.ref, fence=fence, **asked)
        return answer

    def gate(self) -> tr.GateRow | None:
        row: tr.GateRow | None = self.target.identify(SCHEMA, self.table, initialise=False).gate
        return row


def sorted_rows(rows: Iterable[Row]) -> list[Row]:
    """As the lab's ORDER BY sorts them: NULLs last."""
    return sorted(rows, key=lambda row: [(v is None, v if v is not None else 0) for v in row])


EXTREMES: dict[tuple[str, str], list[Any]] = {
    ("Int8", "smallint"): [-128, 127],
    ("Int16", "smallint"): [-32768, 32767],
    ("Int32", "int"): [-(2**31), 2**31 - 1],
    ("Int64", "bigint"): [-(2**63), 2**63 - 1],
    ("UInt8", "tinyint"): [0, 255],
    ("UInt16", "int"): [0, 65535],
    ("UInt32", "bigint"): [0, 2**32 - 1],
    ("UInt64", "decimal(20,0)"): [Decimal(0), Decimal(2**64 - 1)],
    ("Float32", "real"): [-0.0, 3.4028234663852886e38, 1.1754943508222875e-38],
    ("Float32", "float(53)"): [0.10000000149011612],
    ("Float64", "float(53)"): [-0.0, 1.7976931348623157e308, 2.2250738585072014e-308, 0.1],
    ("Decimal(9, 4)", "decimal(9,4)"): [Decimal("-99999.9999"), Decimal("0.0001")],
    ("Decimal(18, 2)", "decimal(38,2)"): [Decimal("9999999999999999.99")],
    ("Decimal(38, 10)", "decimal(38,10)"): [
        Decimal("-9999999999999999999999999999.9999999999"),
        Decimal("0.0000000001"),
    ],
    ("Bool", "bit"): [True, False],
    ("String", "nvarchar(max)"): [
        "",
        "a\0b",
        "\0",
        "ключ 😀",
        "a ",
        " a",
        "e\u0301",
        "\ufeffx",
        "\r\n",
        "x" * 70_000,
    ],
    ("String", "nvarchar(4)"): ["😀😀", "ß", "    "],
    ("FixedString(3)", "binary(3)"): [b"\0\0\0", b"a\0\0", b"\xff\xfe\xfd"],
    ("FixedString(3)", "varbinary(max)"): [b"\0\0\0"],
    ("UUID", "uniqueidentifier"): [
        bytes.fromhex("00112233445566778899aabbccddeeff"),
        b"\xff" * 16,
        b"\0" * 16,
        b"\x80" + b"\0" * 15,
    ],
    ("Date32", "date"): [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    ("DateTime", "datetime2(0)"): [datetime(1970, 1, 1), datetime(2106, 2, 7, 6, 28, 15)],
    ("DateTime", "datetime2(6)"): [datetime(2106, 2, 7, 6, 28, 15)],
    ("DateTime64(0)", "datetime2(0)"): [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)],
    ("DateTime64(3)", "datetime2(3)"): [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999000)],
    ("DateTime64(2)", "datetime2(5)"): [datetime(1969, 12, 31, 23, 59, 59, 990000)],
    ("DateTime64(6)", "datetime2(6)"): [
        datetime(1, 1, 1, 0, 0, 0, 1),
        datetime(1900, 1, 1, 0, 0, 0, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999999),
    ],
    ("LowCardinality(String)", "nvarchar(20)"): ["low"],
    ("Enum8('a' = 1, 'b' = 2)", "nvarchar(1)"): ["a", "b"],
}
"""Each kind of pair with the values at its edges."""
