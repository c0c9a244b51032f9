"""Every durable format byte for byte: what the product writes today is what tests/golden holds.

docs/reference/formats.md describes each of them. A golden file is written anew on purpose only, together with
a decision record and an upgrade test:

    python tests/unit/test_formats.py --write NAME ...

No test writes one. Entries of ``error_codes`` and ``settings`` may be added, never removed or changed;
everything else must be equal.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import io
import json
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import MISSING, dataclass, fields, replace
from datetime import date, datetime
from decimal import Decimal
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import duckdb
import pyarrow as pa
import pytest
import rfc8785
from pydantic import BaseModel

from airflow_dpone.cli.arguments import main
from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.history import History
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import CATALOGUE
from airflow_dpone.journal import chain
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.settings import Limits, MinMax, Options, Quality, Route, RowCount
from airflow_dpone.spool.local import LocalSpool
from airflow_dpone.target_embedded import installation, stages
from airflow_dpone.target_embedded import statements as target_sql
from airflow_dpone.target_embedded.target import EmbeddedTarget
from airflow_dpone.wire.digest import DigestSum
from airflow_dpone.wire.mssql_native import read_native
from airflow_dpone.wire.native_rows import encode_rows
from airflow_dpone.wire.reference_decoder import decode_rows
from airflow_dpone.wire.sealed import read_sealed
from airflow_dpone.wire.sql_type import FRAMING
from airflow_dpone.wire.types import LAYOUT_NAME, TypePair, WireColumn, WireLayout, framing_as_data
from airflow_dpone.wiring import deliver, plan
from tests.fakes.embedded_shop import Shop
from tests.fakes.world import HOST, World
from tests.golden import stories

FOLDER = Path(__file__).resolve().parents[1] / "golden"
CHANGED = "a durable format changed: this needs a decision record in docs/decisions and an upgrade test"
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
HEX = re.compile(r"[0-9a-f]{64}")
Json = dict[str, Any]


# ---- the deliveries that are told --------------------------------------------------------------------------


def documents(story: str) -> list[Json]:
    """Every event of a story with its hash, in the order of writing."""
    return [
        {"sha256": row["sha256"], "document": json.loads(row["body"])}
        for row in stories.told(story)["dpone_event"]
    ]


def delivery_events(story: str) -> list[Json]:
    """The events of its deliveries."""
    return [e for e in documents(story) if e["document"]["kind"] == chain.DELIVERY_KIND]


def payload(story: str, event: str, nth: int = 0) -> Json:
    """The payload of the n-th event of that name."""
    found = [e["document"]["payload"] for e in delivery_events(story) if e["document"]["event"] == event]
    payload: Json = found[nth]
    return payload


# ---- what is written today ---------------------------------------------------------------------------------


def journal_tables() -> str:
    """The DDL that the migrations leave in SQLite, blanks at the ends of lines apart."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "journal.db")
        migrate(path, host="host")
        with closing(sqlite3.connect(path)) as connection:
            query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY tbl_name, type DESC, name"
            statements = [sql for (sql,) in connection.execute(query)]
    head = [
        "-- The journal's tables in SQLite, as the migrations leave them.",
        f"-- layout_version {t.LAYOUT_VERSION}, revisions {', '.join(t.REVISIONS)}",
    ]
    tidy = ["\n".join(line.rstrip().replace("\t", "  ") for line in sql.splitlines()) for sql in statements]
    return "\n".join([*head, *(f"\n{sql};" for sql in tidy), ""])


def events() -> Json:
    """Every kind of event: a whole stream, and what only happens when something goes wrong."""
    abandoned = chain.delivery_document(
        jr.AppendDelivery("f" * 64, 7, DeliveryEvent.ATTEMPT_ABANDONED, {"attempt_id": "a" * 64}),
        fence=2**62,
        requester=stories.requester(map_index=3, delivery_task_id="group"),
        previous_sha256="e" * 64,
        created_at="2025-03-01T12:30:15.123456Z",
    )
    sealed = chain.seal(abandoned, stream=abandoned["stream"], invocation_key="f" * 64)
    rare = [
        ("doubtful", "EPOCH_ABANDONED", 0),
        ("doubtful", "UNKNOWN", 0),
        ("doubtful", "PREPARED", 1),
        ("doubtful", "TUNED", 0),
        ("doubtful", "PREPARED", 2),
        ("doubtful", "INCIDENT", 0),
        ("again", "EXTRACTED", 1),
        ("again", "STAGED", 1),
        ("again", "PREPARED", 1),
        ("refused", "FAILED", 0),
        ("replanned", "RETIRED", 0),
        ("replanned", "CUSTODY_RELEASED", 0),
    ]
    return {
        "format": chain.DELIVERY_KIND,
        "version": chain.SCHEMA_VERSION,
        "stream": delivery_events("delivered"),
        "others": [
            *(
                [e for e in delivery_events(story) if e["document"]["event"] == name][n]
                for story, name, n in rare
            ),
            {"sha256": sealed.sha256, "document": abandoned},
        ],
    }


def attempt_events() -> Json:
    """An attempt that succeeds and one that does not."""
    streams: dict[str, list[Json]] = {}
    for story in ("delivered", "doubtful"):
        for event in documents(story):
            if event["document"]["kind"] == chain.ATTEMPT_KIND:
                streams.setdefault(f"{story} {event['document']['attempt_id']}", []).append(event)
    return {
        "format": chain.ATTEMPT_KIND,
        "version": chain.SCHEMA_VERSION,
        "verified": next(s for s in streams.values() if s[-2]["document"]["event"] == "VERIFIED"),
        "given_up": next(s for s in streams.values() if s[-2]["document"]["event"] == "FAILED_RETIRABLE"),
    }


INVOCATION, NONCE = "f" * 64, "ab" * 32


def keys() -> Json:
    """Every key with what goes into it; the preimage is written by hand, the key by the product."""
    guid, owner = "6F9619FF-8B86-D011-B42D-00CF4FC964FF", "0c" * 32
    incarnation = UUID(stories.INCARNATION).bytes
    name = identity.stage_name(INVOCATION, 1, 3, NONCE)
    fields = payload("delivered", "PLANNED")["identity"]
    chunks = [
        {"ordinal": 0, "rows": 5, "file_sha256": "1" * 64, "digest": "2" * 64},
        {"ordinal": 1, "rows": 6, "file_sha256": "3" * 64, "digest": "4" * 64},
    ]
    source = r.SourceTable(
        "shop", "o", "", "", (r.SourceColumn("id", "Int64"), r.SourceColumn("d", "Date", "ALIAS")), {}
    )
    target = tr.TargetTable(
        (tr.TargetColumn("id", "bigint", False), tr.TargetColumn("n", "nvarchar(9)", True))
    )
    made: list[tuple[str, Any, str]] = [
        (
            "target_key",
            ["dpone.target.v1", guid.lower(), "dbo", "Orders"],
            identity.target_key(guid, "dbo", "Orders"),
        ),
        (
            "delivery_key",
            ["dpone.delivery.v1", "shop", "scheduled__2025", "deliver_orders", -1],
            identity.delivery_key("shop", "scheduled__2025", "deliver_orders", -1),
        ),
        (
            "route_scope",
            ["dpone.route.v1", "chdb", "shop", "orders", "at"],
            identity.route_scope("chdb", "shop", "orders", "at"),
        ),
        (
            "route_scope of a full refresh",
            ["dpone.route.v1", "chdb", "shop", "orders", None],
            identity.route_scope("chdb", "shop", "orders", None),
        ),
        ("invocation_key", {"contract": "dpone.invocation.v1", **fields}, identity.invocation_key(fields)),
        (
            "operation_id",
            ["dpone.operation.v1", INVOCATION, 2, "publish"],
            identity.operation_id(INVOCATION, 2),
        ),
        ("attempt_id", [INVOCATION, 3, NONCE], identity.attempt_id(INVOCATION, 3, NONCE)),
        ("stage_name", ["dpone.stage.v1", INVOCATION, 1, 3, NONCE], name),
        (
            "stage_name of the prepared table",
            ["dpone.stage.v1", INVOCATION, 1, "prepared", NONCE],
            identity.stage_name(INVOCATION, 1, "prepared", NONCE),
        ),
        (
            "owner_binding_sha256",
            ["dpone.owner.v1", INVOCATION, name, NONCE],
            identity.owner_binding(INVOCATION, name, NONCE),
        ),
        (
            "chunk_list_sha256",
            [[0, "1" * 64, "2" * 64], [1, "3" * 64, "4" * 64]],
            identity.chunk_list_sha256(chunks),
        ),
        ("source schema_sha256", [["id", "Int64", ""], ["d", "Date", "ALIAS"]], source.schema_sha256),
        ("target fingerprint", [["id", "bigint", False], ["n", "nvarchar(9)", True]], target.fingerprint),
    ]
    made += _keys_of_a_delivery()
    return {
        "format": "dpone.keys",
        "version": identity.CONTRACT_VERSION,
        "keys": [{"key": key, "preimage": preimage, "value": value} for key, preimage, value in made],
        "object_ids": [
            {"of": "target", "from": stories.INCARNATION, "value": str(stages.positive(incarnation))},
            {"of": "stage", "from": owner, "value": str(stages.object_id_of(owner))},
        ],
        "windows": [
            {
                "start": "2025-01-01T02:00:00+02:00",
                "end": "2025-01-01T00:00:00.000001+00:00",
                "value": "2025-01-01T00:00:00.000000Z/2025-01-01T00:00:00.000001Z",
            },
            {"start": None, "end": None, "value": Window.full().key},
        ],
    }


def _keys_of_a_delivery() -> list[tuple[str, Any, str]]:
    """Hashes that the engine makes on the way, from a delivery that was told."""
    planned, prepared = payload("delivered", "PLANNED"), payload("delivered", "PREPARED")
    publishing = payload("delivered", "PUBLISHING")
    granted = next(e["document"] for e in documents("delivered") if e["document"]["event"] == "GRANTED")
    stage, writer = granted["stage_binding"], granted["writer_binding"]
    listed = json.loads(stories.told("delivered")["dpone_evidence"][0]["body"])["epoch"]
    intent = {
        "operation_id": publishing["operation_id"],
        "target": planned["target"],
        "window": planned["identity"]["window"],
        "prepared": [prepared["stage_name"], prepared["object_id"]],
        "rows": prepared["rows"],
        "limbs": prepared["limbs"],
        "wire_layout_sha256": planned["identity"]["wire_layout_sha256"],
    }
    return [
        ("stage_id_sha256", ["dpone.stage-id.v1", stage["stage_name"]], stage["stage_id_sha256"]),
        ("protocol_sha256", ["dpone.writer-protocol.v1", "embedded"], writer["protocol_sha256"]),
        (
            "capability_sha256",
            ["dpone.writer-capability.v1", "embedded-single-process-v1"],
            writer["capability_sha256"],
        ),
        ("package_sha256", {"duckdb": "1.0.0", "pyarrow": "1.0.0"}, writer["package_sha256"]),
        ("timeout_policy_sha256", ["dpone.timeouts.v1", 14_400], writer["timeout_policy_sha256"]),
        ("intent_sha256", intent, publishing["receipt"]["intent_sha256"]),
        (
            "chunk_list_sha256 of the evidence",
            [[chunk["ordinal"], chunk["sha256"], chunk["digest"]] for chunk in listed["chunks"]],
            listed["chunk_list_sha256"],
        ),
    ]


def frozen_plan() -> Json:
    """The payload of PLANNED, that of a full refresh with every kind of tuning, and one with every check."""
    planned = payload("delivered", "PLANNED")
    source_plan = FrozenPlan.from_json(planned)
    full = {
        **planned,
        "identity": {**planned["identity"], "window": "full", "strategy": "full_refresh"},
        "window_column": None,
        "target_window_column": None,
    }
    tuned = FrozenPlan.from_json(full).tuned(
        Route(
            source="chdb:///d",
            source_table=("shop", "orders"),
            target="duckdb:///f",
            target_table=("dbo", "orders"),
            strategy="full_refresh",
            quality=Quality(row_count=RowCount(min_rows=1, max_rows=9), not_null=("id",)),
            options=Options(on_empty="fail", take_over_target=True),
        )
    )
    checked = source_plan.tuned(
        Route(
            source="chdb:///d",
            source_table=("shop", "orders"),
            target="duckdb:///f",
            target_table=("dbo", "orders"),
            window_column="at",
            quality=Quality(
                unique=["id", ["id", "at"]],
                min_max={"amount": {"min": 0, "max": "1000000.5"}, "day": {"min": "2000-01-01"}},
                max_shrink_ratio="0.25",
                severity={"unique(id, at)": "warn", "max_shrink_ratio": "warn"},
            ),
        )
    )
    made = (source_plan, tuned, checked)
    return {
        "format": "dpone.frozen-plan",
        "version": identity.CONTRACT_VERSION,
        "plans": [
            {
                "plan_sha256": p.sha256,
                "invocation_key": p.invocation_key,
                "operation_id": p.operation_id,
                "plan": p.to_json(),
            }
            for p in made
        ],
    }


COLUMNS = [
    ("id", "Int64", "bigint", False),
    ("count", "Nullable(Int32)", "int", True),
    ("price", "Float64", "float(53)", False),
    ("amount", "Nullable(Decimal(38, 4))", "decimal(38,4)", True),
    ("paid", "Bool", "bit", False),
    ("day", "Nullable(Date32)", "date", True),
    ("at_s", "DateTime", "datetime2(0)", False),
    ("at_ms", "DateTime64(2)", "datetime2(2)", False),
    ("at_us", "Nullable(DateTime64(6))", "datetime2(6)", True),
    ("name", "String", "nvarchar(20)", False),
    ("note", "Nullable(String)", "nvarchar(max)", True),
    ("ref", "Nullable(UUID)", "uniqueidentifier", True),
    ("small", "Int8", "smallint", False),
    ("tiny", "UInt8", "tinyint", False),
    ("ratio", "Float32", "real", False),
    ("big", "UInt64", "decimal(20,0)", False),
    ("code", "FixedString(4)", "binary(4)", False),
    ("mark", "Nullable(FixedString(4))", "varbinary(9)", True),
    ("kind", "Enum8('a' = 1)", "nvarchar(3)", False),
]
ROWS: list[tuple[Any, ...]] = [
    (
        -(2**63), -1, -0.0, Decimal("-1.0000"), True, date(1900, 1, 1), datetime(1970, 1, 1),
        datetime(2025, 1, 1, 0, 0, 0, 120_000), datetime(2299, 12, 31, 23, 59, 59, 999_999), "é\U0001f600",
        "", UUID("00112233-4455-6677-8899-aabbccddeeff").bytes,
        -128, 0, -0.5, Decimal(0), b"\x00\x01\xfe\xff", b"\xff\x00\x00\x00", "a",
    ),
    (
        2**63 - 1, None, 1.5, None, False, None, datetime(2025, 1, 1, 12, 30, 15),
        datetime(2025, 1, 1), None, "", None, None,
        127, 255, 0.25, Decimal(2**64 - 1), b"abcd", None, "a",
    ),
    (
        0, 7, 1e308, Decimal("9" * 34 + ".9999"), True, date(2024, 2, 29), datetime(2106, 2, 7, 6, 28, 15),
        datetime(1999, 12, 31, 23, 59, 59, 990_000), datetime(1970, 1, 1, 0, 0, 0, 1), "plain", "x" * 5,
        UUID(int=1).bytes,
        0, 1, 2.0, Decimal(1), b"\x00" * 4, b"\x00" * 4, "a",
    ),
]  # fmt: skip


def wire_layout() -> WireLayout:
    """The layout of the golden chunk."""
    columns = [
        WireColumn(
            name, TypePair.from_json({"source_type": s, "target_type": kind, "target_nullable": nullable})
        )
        for name, s, kind, nullable in COLUMNS
    ]
    return WireLayout(tuple(columns))


def rows_batch(layout: WireLayout) -> pa.RecordBatch:
    """The rows of the golden chunk as target-typed Arrow."""
    arrays = [
        pa.array([row[i] for row in ROWS], type=field.type) for i, field in enumerate(layout.arrow_schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.arrow_schema)


def native_rows() -> Json:
    """The framing table, a layout's identity, and the digest of some rows."""
    layout = wire_layout()
    encoded = encode_rows(rows_batch(layout), layout)
    total = DigestSum.of_hashes(encoded.hashes())
    return {
        "format": "native_rows",
        "version": 1,
        "layout_name": LAYOUT_NAME,
        "framing": framing_as_data(),
        "columns": [column.pair.to_json() | {"name": column.name} for column in layout.columns],
        "layout_preimage": {
            "layout": LAYOUT_NAME,
            "framing": framing_as_data(),
            "columns": [[name, kind, nullable] for name, _, kind, nullable in COLUMNS],
        },
        "wire_layout_sha256": layout.sha256,
        "rows": [encoded.row(i).hex() for i in range(len(encoded))],
        "digest_sum": total.to_json(),
        "digest": total.digest,
    }


def sealed() -> tuple[str, bytes]:
    """Path below the spool and bytes of a sealed chunk, both from the real spool."""
    layout = wire_layout()
    with TemporaryDirectory() as folder:
        spool = LocalSpool(folder, host_id="host")
        sink = spool.begin(INVOCATION, 2, 5, layout)
        sink.write(rows_batch(layout))
        sink.seal()
        path = next(path for path in Path(folder).rglob("*") if path.is_file())
        modes = {oct(p.stat().st_mode & 0o777) for p in (path, path.parent, path.parent.parent)}
        if modes != {"0o600", "0o700"}:
            raise RuntimeError(f"modes of the spool are {modes}")
        return path.relative_to(folder).as_posix(), path.read_bytes()


def sealed_chunk() -> Json:
    """What the sealed chunk is called, and how it describes its columns."""
    path, data = sealed()
    schema = wire_layout().arrow_schema
    return {
        "format": "dpone.sealed-chunk",
        "version": 1,
        "made_with": f"pyarrow {pa.__version__}",
        "invocation_key": INVOCATION,
        "extraction_epoch": 2,
        "ordinal": 5,
        "path": path,
        "rows": len(ROWS),
        "file_bytes": len(data),
        "file_sha256": hashlib.sha256(data).hexdigest(),
        "metadata": {key.decode(): value.decode() for key, value in schema.metadata.items()},
        "columns": [[field.name, str(field.type), field.nullable] for field in schema],
    }


MOMENT = datetime(2025, 1, 1, 23, 59, 59)
NATIVE: list[tuple[str, str, str, Any]] = [
    ("bigint", "Int64", "bigint", -(2**63)),
    ("int", "Int32", "int", 258),
    ("smallint", "Int16", "smallint", -2),
    ("tinyint", "UInt8", "tinyint", 200),
    ("bit", "Bool", "bit", True),
    ("real", "Float32", "real", -0.0),
    ("float", "Float64", "float(53)", 1.5),
    ("decimal", "Decimal(18, 4)", "decimal(38,4)", Decimal("-126.0001")),
    ("date", "Date32", "date", date(2024, 2, 29)),
    ("seconds", "DateTime", "datetime2(0)", MOMENT),
    ("micros", "DateTime64(6)", "datetime2(6)", MOMENT.replace(microsecond=999_999)),
    ("text", "String", "nvarchar(20)", "a \x00\U0001f600"),
    ("long", "String", "nvarchar(max)", ""),
    ("bytes", "FixedString(3)", "binary(3)", b"\x00\xff\n"),
    ("mark", "FixedString(3)", "varbinary(9)", b"abc"),
    ("blob", "FixedString(3)", "varbinary(max)", b"\x00" * 3),
    ("guid", "UUID", "uniqueidentifier", UUID("00112233-4455-6677-8899-aabbccddeeff").bytes),
]
"""Every row of the framing table, with a value."""


def native_layout() -> WireLayout:
    """Each of them NOT NULL and nullable."""
    columns = []
    for name, source, kind, _ in NATIVE:
        for suffix, source_type, nullable in (("", source, False), ("_null", f"Nullable({source})", True)):
            body = {"source_type": source_type, "target_type": kind, "target_nullable": nullable}
            columns.append(WireColumn(f"{name}{suffix}", TypePair.from_json(body)))
    return WireLayout(tuple(columns))


def native_batch(layout: WireLayout) -> pa.RecordBatch:
    """Two rows: the values, and the values with NULL wherever it may be."""
    values = [value for *_, value in NATIVE for _ in range(2)]
    arrays = [
        pa.array([value, None if field.nullable else value], type=field.type)
        for value, field in zip(values, layout.arrow_schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.arrow_schema)


def sealed_native_files() -> tuple[r.SealedChunk, dict[str, bytes]]:
    """A chunk of native rows from the real spool, and its files by their path below the spool."""
    layout = native_layout()
    batch = native_batch(layout)
    with TemporaryDirectory() as folder:
        sink = LocalSpool(folder, host_id="host").begin(INVOCATION, 2, 5, layout, "mssql_native")
        sink.write(batch)
        size, sha256 = sink.seal()
        total = DigestSum.of_hashes(encode_rows(batch, layout).hashes())
        chunk = r.SealedChunk(2, 5, 2, size, size, sha256, total, "mssql_native", sink.format_file_sha256)
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return chunk, {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def sealed_native() -> Json:
    """What a chunk of native rows is called, and how it is journaled."""
    chunk, files = sealed_native_files()
    format_path, path = sorted(files)
    return {
        "format": "dpone.sealed-native",
        "version": 1,
        "path": path,
        "format_path": format_path,
        "wire_layout_sha256": native_layout().sha256,
        "columns": [[c.name, c.pair.target_type, c.pair.target_nullable] for c in native_layout().columns],
        "chunk_sealed": chunk.to_json(),
    }


def native_file(suffix: str) -> Callable[[], bytes]:
    """One of the two files."""
    return lambda: next(data for path, data in sealed_native_files()[1].items() if path.endswith(suffix))


TARGET_TABLES = ("installation", "target_gate", "delivery_receipt")


def target_tables() -> Json:
    """Our tables in an embedded target: how they are made, what they are, and a row of each."""
    with stories.delivered_to_duckdb() as file:
        columns = file.execute(
            "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
            "WHERE schema_name = 'dpone' ORDER BY table_name, column_index"
        ).fetchall()
        keys = file.execute(
            "SELECT table_name, constraint_type, constraint_column_names FROM duckdb_constraints() "
            "WHERE schema_name = 'dpone' AND constraint_type <> 'NOT NULL' ORDER BY ALL"
        ).fetchall()
        rows = {}
        for table in TARGET_TABLES:
            found = file.execute(f"SELECT * FROM dpone.{table}")
            names = [column[0] for column in found.description or ()]
            rows[table] = dict(zip(names, map(_as_text, found.fetchone() or ()), strict=True))
        comment = file.execute("SELECT comment FROM duckdb_tables() WHERE table_name = 'orders'").fetchone()
    marks = [
        stages.Mark("0c" * 32, stages.CREATED, None, 2**62),
        stages.Mark("0c" * 32, stages.GRANTED, "0d" * 32, 7),
    ]
    marks.append(stages.Mark("0c" * 32, stages.SEALED, None, 7))
    return {
        "format": "dpone.target-tables",
        "version": installation.LAYOUT_VERSION,
        "statements": [" ".join(statement.split()) for statement in target_sql.INSTALL],
        "columns": [list(column) for column in columns],
        "keys": [list(key) for key in keys],
        "rows": rows,
        "comments": {"target": (comment or ("",))[0], "stages": [str(mark) for mark in marks]},
    }  # fmt: skip


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, UUID | datetime) else value


def receipt() -> Json:
    """The hash of a receipt and what it is made of, with a fence that needs more than 53 bits."""
    draft = tr.ReceiptDraft(
        operation_id="1" * 64,
        target_key="2" * 64,
        delivery_key="3" * 64,
        generation=2,
        invocation_key="4" * 64,
        route_scope="5" * 64,
        journal_id=stories.JOURNAL_ID,
        intent_sha256="6" * 64,
        strategy="window_replace",
        window_key="full",
        row_count=7,
        digest="8" * 64,
        wire_layout_sha256="9" * 64,
        fence=2**62,
        lock_mode="embedded-file",
    )
    read = tr.Receipt(draft, draft.sha256, 3, "2025-03-01T12:30:15.123456Z", None, "full")
    return {
        "format": "dpone.receipt",
        "version": draft.intent_version,
        "draft": draft.to_json(),
        "preimage": rfc8785.dumps(draft.to_json()).decode("ascii"),
        "receipt_sha256": draft.sha256,
        "read_back": read.to_json(),
    }


def evidence() -> Json:
    """A whole document as it was stored, and the part that differs when the list of chunks is too long."""
    row, long = (stories.told(story)["dpone_evidence"][0] for story in ("delivered", "long_list"))
    return {
        "format": "dpone.delivery-evidence",
        "version": 1,
        "evidence_sha256": row["evidence_sha256"],
        "document": json.loads(row["body"]),
        "epoch_of_a_long_list": json.loads(long["body"])["epoch"],
    }


def checkpoint() -> Json:
    """The row after one delivery of a window, and after the second."""
    rows = [stories.told(story)["dpone_checkpoint"] for story in ("delivered", "again")]
    return {
        "format": "dpone.checkpoint",
        "version": t.LAYOUT_VERSION,
        "rows": [row for (row,) in rows],
    }


def delivery_result() -> Json:
    """The result as it was stored, and as it is returned for a delivery that was finished before."""
    stored = payload("delivered", "COMPLETED")["result"]
    result = r.DeliveryResult.from_json(stored)
    returned = replace(result, already=True, seconds="12.345", resumed_from="PUBLISHING")
    return {
        "format": "dpone.delivery-result",
        "version": 1,
        "stored": stored,
        "returned": returned.to_json(),
    }


def commands() -> Json:
    """Exit code and last line of every command, by what it finds."""
    with TemporaryDirectory() as folder:
        return {"format": "dpone.commands", "version": 1, "calls": list(_calls(Path(folder)))}


def _calls(folder: Path) -> Iterator[Json]:
    new, behind, newer, text = (str(folder / name) for name in ("new.db", "behind.db", "newer.db", "text.db"))
    migrate(newer, host="host")
    with closing(sqlite3.connect(newer)) as connection, connection:
        connection.execute(f"UPDATE {t.VERSION_TABLE} SET version_num = '9999'")
    with closing(sqlite3.connect(behind)) as connection, connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    Path(text).write_text("no database at all, but long enough to be looked at as one", encoding="ascii")
    migrate_db, status_db = ["db", "migrate", "--journal"], ["db", "status", "--journal"]
    host = ["--host-id", "host"]
    calls = [
        ("a journal that is not there", [*status_db, new]),
        ("creates a journal", [*migrate_db, new, *host]),
        ("at the newest version", [*migrate_db, new, *host]),
        ("at the newest version", [*status_db, new]),
        ("a journal of another machine", [*migrate_db, new, "--host-id", "other"]),
        ("no tables yet", [*status_db, behind]),
        ("newer than this version", [*status_db, newer]),
        ("newer than this version", [*migrate_db, newer, *host]),
        ("not a database", [*status_db, text]),
        ("an address of another kind", [*status_db, "mysql://host/db"]),
        ("without a journal", ["db", "status"]),
        ("an unknown command", ["unknown"]),
        ("the whole matrix", ["types"]),
        ("a pair that is exact", ["types", "--source", "Int32", "--target", "int"]),
        ("a pair that is refused", ["types", "--source", "Int64", "--target", "int"]),
        ("half a pair", ["types", "--source", "Int64"]),
        *_recovery_calls(folder, new),
        *_target_calls(),
        *_writer_calls(folder),
        *_audit_calls(folder, new),
    ]
    for found, arguments in calls:
        code, said = _run(arguments)
        kept = {key: value for key, value in said.items() if key in ("schema", "status", "code")}
        options = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
        words = arguments[:options]
        yield {
            "command": " ".join(words),
            "finds": found,
            "exit_code": code,
            "says": kept,
            "fields": sorted(said),
        }


def _recovery_calls(folder: Path, journal: str) -> Iterator[tuple[str, list[str]]]:
    """A table that another journal governs, and then this one does."""
    path = str(folder / "warehouse.duckdb")
    with duckdb.connect(path) as file:
        file.execute("CREATE SCHEMA dbo; CREATE TABLE dbo.orders (id BIGINT)")
    places = [
        "--journal",
        journal,
        "--target",
        f"duckdb://{path}",
        "--spool",
        str(folder),
        "--host-id",
        "host",
    ]
    adopt = ["recovery", "adopt-target", *places, "--target-table", "dbo", "orders"]
    with EmbeddedTarget(path) as target:
        found = target.identify("dbo", "orders", initialise=True)
        ref = tr.TargetRef(found.target_key, "dbo", "orders", found.object_id, found.created, "0" * 64)
        target.claim_gate(ref, journal_id=stories.JOURNAL_ID, route_scope="5" * 64, fence=7, take_over=False)
    yield "a table of another journal, without --yes", adopt
    yield "a table of another journal", [*adopt, "--yes"]
    yield "a table of this journal", [*adopt, "--yes"]
    yield "a delivery that is not there", ["recovery", "retire", *places, "--delivery", "0" * 64, "--yes"]


def _target_calls() -> Iterator[tuple[str, list[str]]]:
    """What can be asked without a server."""
    place = ["--target", "mssql://loader@sql.example/dwh"]
    yield "the script of a database", ["target", "init", *place, "--print"]
    yield "a login that is not supported", ["target", "init", "--target", "mssql://sql.example/dwh"]
    grants = ["target", "permissions", *place, "--user", "loader", "--target-table", "shop", "orders"]
    yield "the GRANTs of a login", grants


def _writer_calls(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """What needs no server: the journal is asked first, and whether any writer is in doubt."""
    world = World.create(folder / "delivered")
    world.deliver()
    asked = ["recovery", "writer", "--journal", str(world.journal_path), "--host-id", HOST, "--delivery"]
    key, server = world.invocation().invocation_key, ["--target", "mssql://loader@sql.example/dwh"]
    yield "an embedded target", [*asked, key, "--target", "duckdb:///data/warehouse.duckdb"]
    yield "a delivery that is not there", [*asked, "0" * 64, *server]
    yield "a delivery whose writers have all ended", [*asked, key, *server]


def _audit_calls(folder: Path, empty: str) -> Iterator[tuple[str, list[str]]]:
    """A window that was delivered, and a copy of target and journal without its receipt."""
    shop = Shop.create(folder / "shop")
    shop.deliver(EmbeddedTarget(shop.path))
    robbed = shop.copy(folder / "robbed")
    with duckdb.connect(robbed.path) as file:
        file.execute("DELETE FROM dpone.delivery_receipt")
    for found, one in (("every window is there", shop), ("a window that the target lost", robbed)):
        places = ["--journal", str(one.world.journal_path), "--target", f"duckdb://{one.path}"]
        yield found, ["audit", *places, "--host-id", HOST]
    places = ["--journal", empty, "--target", f"duckdb://{shop.path}"]
    yield "a journal of other deliveries", ["audit", *places, "--host-id", "host"]


def _run(arguments: list[str]) -> tuple[int | str | None, Json]:
    out = io.StringIO()
    code: int | str | None
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
    lines = out.getvalue().splitlines()
    return code, json.loads(lines[-1]) if lines else {}


def settings() -> Json:
    """Names, defaults and bounds of what a person or an operator gives."""
    models = {model.__name__: _model(model) for model in (Route, Limits, Quality, RowCount, MinMax, Options)}
    records = {record.__name__: _record(record) for record in (Window, r.Requester, r.DeliveryResult)}
    calls = {f"{call.__name__}()": _call(call) for call in (deliver, plan)}
    return {"format": "dpone.settings", "version": 1, "entries": {**models, **records, **calls}}


def _model(model: type[BaseModel]) -> Json:
    schema = model.model_json_schema()["properties"]
    found = {}
    for name, field in model.model_fields.items():
        default = field.default.model_dump() if isinstance(field.default, BaseModel) else field.default
        bounds = {k: v for k, v in _flat(schema[name]).items() if k in ("minimum", "maximum")}
        found[name] = {
            "required": field.is_required(),
            "default": "required" if field.is_required() else _plain(default),
            "bounds": [_plain(bounds.get("minimum")), _plain(bounds.get("maximum"))],
            "one_of": _choices(field.annotation),
        }
    return found


def _flat(schema: Mapping[str, Any]) -> Json:
    parts = [schema, *schema.get("anyOf", [])]
    return {key: value for part in parts for key, value in part.items()}


def _choices(annotation: Any) -> list[str] | None:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return next((found for part in get_args(annotation) if (found := _choices(part))), None)


def _record(record: Any) -> Json:
    return {
        field.name: {
            "required": field.default is MISSING,
            "default": "required" if field.default is MISSING else _plain(field.default),
        }
        for field in fields(record)
    }


def _call(call: Callable[..., Any]) -> Json:
    empty = inspect.Parameter.empty
    return {
        name: {
            "required": p.default is empty,
            "default": "required" if p.default is empty else _plain(p.default),
            "by_name_only": p.kind is inspect.Parameter.KEYWORD_ONLY,
        }
        for name, p in inspect.signature(call).parameters.items()
    }


def _plain(value: Any) -> Any:
    """Floats as text: the golden files hold none, as every format of ours."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, float) else value


def error_codes() -> Json:
    """Every code with its class and its retry rule."""
    entries = {code: {"error": row.error, "retry": row.retry} for code, row in sorted(CATALOGUE.items())}
    return {"format": "dpone.error-codes", "version": 1, "entries": entries}


# ---- golden files ------------------------------------------------------------------------------------------


def pretty(value: Any, indent: str = "") -> str:
    """JSON with one line for everything that fits into one."""
    line = json.dumps(value)
    if len(indent) + len(line) <= 110 or not isinstance(value, dict | list):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        items = [f"{deeper}{json.dumps(key)}: {pretty(item, deeper)}" for key, item in value.items()]
    else:
        items = [f"{deeper}{pretty(item, deeper)}" for item in value]
    first, last = ("{", "}") if isinstance(value, dict) else ("[", "]")
    return first + "\n" + ",\n".join(items) + f"\n{indent}{last}"


def as_json(make: Callable[[], Json]) -> Callable[[], bytes]:
    """The file of a JSON document."""
    return lambda: (pretty(make()) + "\n").encode("ascii")


@dataclass(frozen=True)
class Golden:
    """One golden file. ``may_grow``: its ``entries`` may gain some, never lose or change one."""

    file: str
    make: Callable[[], bytes]
    may_grow: bool = False

    @property
    def path(self) -> Path:
        """Where it is."""
        return FOLDER / self.file


GOLDEN = {
    "journal_tables": Golden("journal_tables.sql", lambda: journal_tables().encode("ascii")),
    "delivery_events": Golden("delivery_events.json", as_json(events)),
    "chunk_attempt_events": Golden("chunk_attempt_events.json", as_json(attempt_events)),
    "keys": Golden("keys.json", as_json(keys)),
    "frozen_plan": Golden("frozen_plan.json", as_json(frozen_plan)),
    "native_rows": Golden("native_rows.json", as_json(native_rows)),
    "sealed_chunk": Golden("sealed_chunk.json", as_json(sealed_chunk)),
    "sealed_chunk.arrow": Golden("sealed_chunk.arrow", lambda: sealed()[1]),
    "sealed_native": Golden("sealed_native.json", as_json(sealed_native)),
    "sealed_native.native": Golden("sealed_native.native", native_file(".native")),
    "sealed_native.fmt": Golden("sealed_native.fmt", native_file(".fmt")),
    "target_tables": Golden("target_tables.json", as_json(target_tables)),
    "receipt": Golden("receipt.json", as_json(receipt)),
    "evidence": Golden("evidence.json", as_json(evidence)),
    "checkpoint": Golden("checkpoint.json", as_json(checkpoint)),
    "delivery_result": Golden("delivery_result.json", as_json(delivery_result)),
    "commands": Golden("commands.json", as_json(commands)),
    "settings": Golden("settings.json", as_json(settings), may_grow=True),
    "error_codes": Golden("error_codes.json", as_json(error_codes), may_grow=True),
}
ARROW_FILES = {"sealed_chunk", "sealed_chunk.arrow"}


def differences(golden: Golden, stored: bytes, made: bytes) -> list[str]:
    """What changed against a golden file, as lines; nothing when the format is the frozen one."""
    if golden.may_grow:
        before, now = json.loads(stored), json.loads(made)
        return [
            *(f"{name} was {before[name]!r}" for name in ("format", "version") if before[name] != now[name]),
            *_lost("", before["entries"], now["entries"]),
        ]
    if stored == made:
        return []
    if golden.file.endswith((".arrow", ".native")):
        return [f"{len(stored)} bytes were {stored[:24]!r}..., {len(made)} are {made[:24]!r}..."]
    lines = [text.decode("ascii").splitlines() for text in (stored, made)]
    return list(unified_diff(*lines, f"golden/{golden.file}", "written today", lineterm="", n=1))


def _lost(where: str, before: Any, now: Any) -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        gone = [f"{where}{name} is gone" for name in before if name not in now]
        return gone + [
            line
            for name in before
            if name in now
            for line in _lost(f"{where}{name}.", before[name], now[name])
        ]
    if where.endswith("one_of.") and before and now:
        return [f"{where}{choice} is gone" for choice in before if choice not in now]
    return [] if before == now else [f"{where.rstrip('.')} was {before!r}, is {now!r}"]


def read(name: str) -> Any:
    """A golden file's document."""
    return json.loads(GOLDEN[name].path.read_text(encoding="ascii"))


def made_with_this_arrow() -> bool:
    """Bytes of an Arrow file belong to one version of Arrow; what they mean does not."""
    return bool(read("sealed_chunk")["made_with"] == f"pyarrow {pa.__version__}")


# ---- tests: what is written is what was frozen -------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in GOLDEN if name not in ARROW_FILES])
def test_a_format_is_the_frozen_one(name: str) -> None:
    golden = GOLDEN[name]
    found = differences(golden, golden.path.read_bytes(), golden.make())
    assert not found, "\n".join([f"{CHANGED} (format {name})", *found[:60]])


def test_a_sealed_chunk_is_the_frozen_one() -> None:
    """With the Arrow that wrote the golden file byte for byte, with another one all but the bytes."""
    free = set() if made_with_this_arrow() else {"made_with", "file_bytes", "file_sha256", "path"}
    stored, made = (
        {k: v for k, v in d.items() if k not in free} for d in (read("sealed_chunk"), sealed_chunk())
    )
    assert stored == made, f"{CHANGED} (format sealed_chunk)"
    if not free:
        golden = GOLDEN["sealed_chunk.arrow"]
        assert golden.path.read_bytes() == golden.make(), f"{CHANGED} (format sealed_chunk)"


def test_a_changed_format_is_noticed() -> None:
    stored = GOLDEN["receipt"].path.read_bytes()
    changed = stored.replace(b'"row_count": 7', b'"row_count": 8')
    found = differences(GOLDEN["receipt"], stored, changed)
    assert any(line.startswith("-") and '"row_count": 7' in line for line in found)
    codes = GOLDEN["error_codes"]
    stored = codes.path.read_bytes()
    document = json.loads(stored)
    document["entries"]["dpone.new.code"] = {"error": "Incident", "retry": "never"}
    assert differences(codes, stored, json.dumps(document).encode()) == []
    del document["entries"]["dpone.config.field"]
    document["entries"]["dpone.journal.newer"]["retry"] = "backoff"
    assert differences(codes, stored, json.dumps(document).encode()) == [
        "dpone.config.field is gone",
        "dpone.journal.newer.retry was 'never', is 'backoff'",
    ]


def test_a_setting_may_gain_a_choice_and_never_lose_one() -> None:
    golden = GOLDEN["settings"]
    stored = golden.path.read_bytes()
    document = json.loads(stored)
    choices = document["entries"]["Options"]["on_empty"]["one_of"]
    choices.append("ask")
    assert differences(golden, stored, json.dumps(document).encode()) == []
    choices.remove("fail")
    document["entries"]["Limits"]["max_rows"]["default"] = 1
    assert differences(golden, stored, json.dumps(document).encode()) == [
        "Limits.max_rows.default was 250000, is 1",
        "Options.on_empty.one_of.fail is gone",
    ]


def test_every_file_of_the_folder_belongs_to_a_format() -> None:
    ours = {golden.file for golden in GOLDEN.values()} | {"stories.py"}
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == ours


def test_every_state_and_every_event_is_in_a_golden_file() -> None:
    written = read("delivery_events")
    assert {e["document"]["event"] for e in [*written["stream"], *written["others"]]} == {
        *DeliveryState,
        *DeliveryEvent,
    }
    attempts = read("chunk_attempt_events")
    found = {e["document"]["event"] for e in [*attempts["verified"], *attempts["given_up"]]}
    assert found == set(AttemptEvent) - {AttemptEvent.INCIDENT_RETAINED}, "reserved: no code writes it yet"


# ---- tests: what was written can be read -------------------------------------------------------------------


def stored_events(found: list[Json]) -> list[chain.StoredEvent]:
    """Rows of ``dpone_event`` made from the golden text alone."""
    rows = []
    for event in found:
        document = event["document"]
        attempt = document["kind"] == chain.ATTEMPT_KIND
        stream = f"attempt/{document['attempt_id']}" if attempt else document["stream"]
        key = document["invocation_key"] if attempt else stream.partition("/")[2]
        body = rfc8785.dumps(document).decode("utf-8")
        rows.append(
            chain.StoredEvent(
                stream, document["sequence"], key, document["event"], document["previous_sha256"],
                event["sha256"], body, document["created_at"],
            )
        )  # fmt: skip
    return rows


def invocation(planned: Json, state: str) -> jr.Invocation:
    """The projection that belongs to a plan."""
    fields = planned["identity"]
    plan = FrozenPlan.from_json(planned)
    return jr.Invocation(
        fields["delivery_key"], fields["generation"], plan.invocation_key, fields["target_key"],
        fields["route_scope"], fields["window"], DeliveryState(state), None, plan.sha256, None, None, None,
        "dag", "run", "task", -1,
    )  # fmt: skip


def test_a_golden_stream_is_proved_and_folded_as_one_of_today() -> None:
    stream, attempts = read("delivery_events")["stream"], read("chunk_attempt_events")
    row = invocation(stream[0]["document"]["payload"], "COMPLETED")
    events = chain.verify_delivery(row, stored_events(stream), counted=len(stream))
    verified = chain.verify_attempt(
        f"attempt/{attempts['verified'][0]['document']['attempt_id']}", stored_events(attempts["verified"])
    )
    history = History.of(row.invocation_key, [*events, *verified])
    assert history.state is DeliveryState.COMPLETED
    assert [chunk.rows for chunk in history.chunks] == [4, 2]
    assert [attempt.is_over for attempt in history.attempts.values()] == [True]
    listed = identity.chunk_list_sha256([chunk.to_json() for chunk in history.chunks])
    assert history.required(DeliveryState.EXTRACTED)["chunk_list_sha256"] == listed


def test_every_golden_event_has_its_hash_and_its_envelope() -> None:
    written, attempts = read("delivery_events"), read("chunk_attempt_events")
    for event in [*written["stream"], *written["others"], *attempts["verified"], *attempts["given_up"]]:
        document = event["document"]
        assert hashlib.sha256(rfc8785.dumps(document)).hexdigest() == event["sha256"]
        attempt = document["kind"] == chain.ATTEMPT_KIND
        assert document.keys() == (chain.ATTEMPT_FIELDS if attempt else chain.DELIVERY_FIELDS)


def test_golden_keys_are_the_hashes_of_their_preimages() -> None:
    for key in read("keys")["keys"]:
        digest = hashlib.sha256(rfc8785.dumps(key["preimage"])).hexdigest()
        prefix = key["value"][:2] if key["key"].startswith("stage_name") else ""
        assert key["value"] == (prefix + digest[:40] if prefix else digest), key["key"]
    for window in read("keys")["windows"]:
        bounds = [window[name] and datetime.fromisoformat(window[name]) for name in ("start", "end")]
        made = Window(*bounds)
        assert (made.key, Window.of_key(window["value"])) == (window["value"], made)


def test_a_golden_plan_is_read_and_is_the_same_plan() -> None:
    for stored in read("frozen_plan")["plans"]:
        plan = FrozenPlan.from_json(stored["plan"])
        assert plan.to_json() == stored["plan"]
        assert (
            plan.sha256 == hashlib.sha256(rfc8785.dumps(stored["plan"])).hexdigest() == stored["plan_sha256"]
        )


def test_a_golden_receipt_and_a_golden_result_are_read() -> None:
    stored = read("receipt")
    draft = tr.ReceiptDraft(**{**stored["draft"], "fence": int(stored["draft"]["fence"])})
    assert (
        draft.sha256
        == hashlib.sha256(stored["preimage"].encode("ascii")).hexdigest()
        == stored["receipt_sha256"]
    )
    assert json.loads(stored["preimage"]) == stored["draft"]
    for result in (read("delivery_result")[name] for name in ("stored", "returned")):
        assert r.DeliveryResult.from_json(result).to_json() == result
        assert len(json.dumps(result)) < 2_048


def test_a_row_of_the_target_is_the_receipt_of_the_same_hash() -> None:
    row = read("target_tables")["rows"]["delivery_receipt"]
    names = tr.ReceiptDraft.__dataclass_fields__
    assert tr.ReceiptDraft(**{name: row[name] for name in names}).sha256 == row["receipt_sha256"]


def test_a_golden_layout_has_its_hash_and_its_rows_have_their_digest() -> None:
    stored = read("native_rows")
    assert (
        hashlib.sha256(rfc8785.dumps(stored["layout_preimage"])).hexdigest() == stored["wire_layout_sha256"]
    )
    hashes = [hashlib.sha256(bytes.fromhex(row)).digest() for row in stored["rows"]]
    total = sum(int.from_bytes(row, "big") for row in hashes) % 2**256
    text = json.dumps(["mssql-native-sha256-sum-v1", len(hashes), total])
    assert hashlib.sha256(text.encode("ascii")).hexdigest() == stored["digest"]


def test_a_golden_chunk_is_read_with_every_version_of_arrow() -> None:
    data, said, layout = GOLDEN["sealed_chunk.arrow"].path.read_bytes(), read("sealed_chunk"), wire_layout()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (said["file_bytes"], said["file_sha256"])
    assert said["path"] == f"{said['invocation_key']}/2/000005.{said['file_sha256']}.arrow"
    (batch,) = read_sealed(data, layout, sha256=said["file_sha256"])
    assert batch.equals(rows_batch(layout))
    encoded = encode_rows(batch, layout)
    assert [encoded.row(i).hex() for i in range(3)] == read("native_rows")["rows"]


def test_a_golden_chunk_of_native_rows_is_read_back() -> None:
    """By the decoder that shares no code with the encoder: names, hashes, digest and values."""
    said, layout = read("sealed_native"), native_layout()
    data, beside = (GOLDEN[f"sealed_native.{end}"].path.read_bytes() for end in ("native", "fmt"))
    chunk = r.SealedChunk.from_json(said["chunk_sealed"])
    assert (len(data), hashlib.sha256(data).hexdigest()) == (chunk.file_bytes, chunk.file_sha256)
    assert hashlib.sha256(beside).hexdigest() == chunk.format_file_sha256
    assert said["path"] == f"{INVOCATION}/2/000005.{chunk.file_sha256}.native"
    assert said["format_path"] == f"{INVOCATION}/2/000005.{chunk.file_sha256}.fmt"
    rows = list(decode_rows(data, layout, rows=2))
    assert DigestSum.of_hash_iter(hashlib.sha256(row.data).digest() for row in rows) == chunk.digest_sum
    (batch,) = read_native(data, layout, rows=2)
    assert batch.equals(native_batch(layout))
    assert [value for value in rows[1].values if value is None] == [None] * len(NATIVE)
    assert {c.pair.sql_type.framing for c in layout.columns} == set(FRAMING.values())


def test_a_chunk_of_the_first_form_is_journaled_as_before_there_was_another() -> None:
    """[0014] The fields of a form are there only when it is not ``arrow_ipc``."""
    told = payload("delivered", "CHUNK_SEALED")
    assert not {"chunk_format", "format_file_sha256"} & told.keys()
    assert r.SealedChunk.from_json(told).to_json() == told
    assert {*read("sealed_native")["chunk_sealed"]} - {*told} == {"chunk_format", "format_file_sha256"}


def test_golden_evidence_has_its_hash() -> None:
    stored = read("evidence")
    assert hashlib.sha256(rfc8785.dumps(stored["document"])).hexdigest() == stored["evidence_sha256"]
    assert read("checkpoint")["rows"][0]["evidence_sha256"] == stored["evidence_sha256"]
    assert stored["document"]["receipt"] == payload("delivered", "PUBLISHED")["receipt"]


# ---- tests: the common rules -------------------------------------------------------------------------------


def _values(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _values(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _values(item, where)
    else:
        yield where, value


DOCUMENTS = [
    "delivery_events",
    "chunk_attempt_events",
    "frozen_plan",
    "receipt",
    "evidence",
    "delivery_result",
]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_numbers_instants_and_hashes_follow_the_common_rules(name: str) -> None:
    """Integers below 2^53, no floats, one text for instants, lower-case hex for bytes."""
    for where, value in _values(read(name)):
        assert not isinstance(value, float), where
        if type(value) is int:
            assert abs(value) < 2**53, where
            assert where not in ("fence", "object_id", "limbs"), "they are decimal strings"
        if value is not None and (where.endswith("_at") or where in ("read_from", "read_to")):
            assert INSTANT.fullmatch(value), (where, value)
        if value is not None and (where.endswith("sha256") or where in ("nonce", "query_nonce", "digest")):
            assert HEX.fullmatch(value), (where, value)


def write(names: list[str]) -> None:
    """Writes golden files anew."""
    for name in names:
        golden = GOLDEN[name]
        golden.path.write_bytes(golden.make())
        print(f"{golden.path} written; say why in docs/decisions")  # noqa: T201


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Write golden files of durable formats anew.")
    arguments.add_argument("--write", nargs="+", metavar="NAME", required=True, choices=[*GOLDEN, "all"])
    chosen = arguments.parse_args().write
    write(list(GOLDEN) if "all" in chosen else chosen)
