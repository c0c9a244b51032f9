"""Records that the engine, its ports and its callers exchange. All frozen; none holds a secret or a business
value.

Instants are canonical text (``2025-01-01T00:00:00.000000Z``), hashes are lower-case hex, fences are ints here
and decimal strings in JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_dpone.delivery import identity
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.settings import Route
from airflow_dpone.wire.chunk_format import ChunkFormat
from airflow_dpone.wire.digest import DigestSum

Json = dict[str, Any]


# ---- who asks, and what they get --------------------------------------------


def _is_text(value: object) -> bool:
    """Whether it is a text that can be stored: no half of a surrogate pair."""
    return isinstance(value, str) and value == value.encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True)
class Requester:
    """Who asks for a delivery. dag_id, run_id, delivery task and map_index are identity; the rest describes
    the try.

    :param task_id: the running task. :param map_index: -1 for an unmapped task.
    :param try_number: 1, 2, ... :param ti_id: Airflow's id of this try; new for each try.
    :param max_tries: Airflow's ``ti.max_tries``: automatic tries end when ``try_number > max_tries``.
    :param delivery_task_id: the task group's id, or None for the task itself.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    try_number: int = 1
    ti_id: str = ""
    max_tries: int = 0
    delivery_task_id: str | None = None

    def __post_init__(self) -> None:
        texts = ["dag_id", "run_id", "task_id"] + ["delivery_task_id"] * (self.delivery_task_id is not None)
        problems = [
            Problem("dpone.config.field", f"requester.{name}", "must be a text that is not empty")
            for name in texts
            if not _is_text(getattr(self, name)) or not getattr(self, name)
        ]
        if not _is_text(self.ti_id):
            problems.append(Problem("dpone.config.field", "requester.ti_id", "must be a text"))
        for name, least in (("map_index", -1), ("try_number", 0), ("max_tries", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
                text = f"must be a whole number in {least}..{2**31 - 1}"
                problems.append(Problem("dpone.config.field", f"requester.{name}", text))
        if problems:
            raise ConfigurationError.of(problems)

    @property
    def delivery_key(self) -> str:
        """The key of all deliveries of this requester."""
        return identity.delivery_key(
            self.dag_id, self.run_id, self.delivery_task_id or self.task_id, self.map_index
        )

    @property
    def is_last_try(self) -> bool:
        """Whether Airflow will not try again by itself."""
        return self.try_number > self.max_tries

    def to_json(self) -> Json:
        """For the journal and the evidence."""
        return asdict(self)


@dataclass(frozen=True)
class DeliveryResult:
    """What a finished delivery says; :meth:`to_json` is its stable form (< 2 KB), also the operator's XCom.

    :param already: the delivery had been finished before and nothing was touched now.
    :param resumed_from: the state at which this call found the delivery, or None when it started it.
    :param seconds: of this call, as decimal text.
    """

    delivery_key: str
    invocation_key: str
    generation: int
    window: str
    target: tuple[str, str]
    rows: int
    deleted_rows: int
    chunks: int
    bytes: int
    digest: str
    operation_id: str
    receipt_sha256: str
    evidence_sha256: str
    resumed_from: str | None = None
    already: bool = False
    seconds: str = "0.000"
    state: str = DeliveryState.COMPLETED.value

    def to_json(self) -> Json:
        """``dpone.delivery-result.v1``."""
        body = asdict(self)
        body["target"] = list(self.target)
        return {"schema": "dpone.delivery-result.v1", **body}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> DeliveryResult:
        """The reverse of :meth:`to_json`."""
        fields = {key: value for key, value in body.items() if key != "schema"}
        return cls(**{**fields, "target": tuple(body["target"])})


@dataclass(frozen=True)
class PhaseResult:
    """What a call says that ended after one of the first six phases; :meth:`to_json` is < 2 KB.

    :param phase: the last phase that the call was for. :param state: where the delivery is now.
    :param rows: of the window, with ``chunks`` and encoded ``bytes``; None before they were read.
    :param already: the delivery had been there before and nothing was touched now.
    """

    phase: str
    state: str
    delivery_key: str
    invocation_key: str
    generation: int
    window: str
    target: tuple[str, str]
    rows: int | None = None
    chunks: int | None = None
    bytes: int | None = None
    resumed_from: str | None = None
    already: bool = False
    seconds: str = "0.000"

    def to_json(self) -> Json:
        """``dpone.phase-result.v1``."""
        return {"schema": "dpone.phase-result.v1", **asdict(self), "target": list(self.target)}


@dataclass(frozen=True)
class PlannedColumn:
    """One column of a plan: what is read, what it becomes, and how it travels."""

    source: str
    source_type: str
    target: str
    target_type: str
    nullable: bool
    wire: str


@dataclass(frozen=True)
class Plan:
    """What a delivery would do, from metadata only.

    :param refusals: everything that ``deliver`` would refuse; empty when it would start.
    :param statements: SQL by name, as it would be sent.
    :param estimated_rows: rows of the window as the source estimates it, or None.
    :param observations: of the target, true only for now: room in data and log, how readers fare. Nothing is
        reserved.
    """

    route: Route
    window: Window
    columns: tuple[PlannedColumn, ...]
    refusals: tuple[Problem, ...]
    statements: Mapping[str, str]
    estimated_rows: int | None
    warnings: tuple[str, ...]
    observations: tuple[str, ...] = ()


# ---- the source -------------------------------------------------------------


@dataclass(frozen=True)
class SourceColumn:
    """One column as the source's catalog prints it; ``kind`` is '' for ordinary columns (else MATERIALIZED
    ...)."""

    name: str
    type: str
    kind: str = ""


@dataclass(frozen=True)
class SourceTable:
    """What introspection found. ``problems`` are refusals: engine, database, policies, rights, mutations,
    TTL."""

    database: str
    table: str
    uuid: str
    engine: str
    columns: tuple[SourceColumn, ...]
    capabilities: Mapping[str, str]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    estimated_rows: int | None = None
    server_id: str = ""

    @property
    def schema_sha256(self) -> str:
        """Hash of names, types and kinds in order: the fingerprint that must not change while we read."""
        return identity.key_of([[c.name, c.type, c.kind] for c in self.columns])


@dataclass(frozen=True)
class SourceQuery:
    """The one statement that reads a window.

    :param projection: raw projection, one raw column after the other. :param predicate: WHERE text, '' for
        none.
    :param text: the whole SELECT without SETTINGS. Identity is projection + predicate + table.
    """

    database: str
    table: str
    projection: str
    predicate: str
    text: str

    def identity(self) -> Json:
        """What the content depends on."""
        return {
            "database": self.database,
            "table": self.table,
            "projection": self.projection,
            "predicate": self.predicate,
        }


@dataclass(frozen=True)
class SourceSnapshot:
    """The source table at one moment, for comparison before and after a read.

    :param mutations: ids of mutations that exist, finished or not. :param unfinished: those not finished.
    :param patch_parts: names of active patch parts (lightweight updates).
    :param parts: active parts of the window's partitions, ``{"name", "partition", "rows",
        "min_block", "max_block"}``, sorted by name.
    :param settings: the settings that the query was sent with.
    :param read_parts: the parts that a finished read got rows from, with the number of them, like ``parts``;
        None before it, and from a source that cannot tell.
    """

    server_id: str
    table_uuid: str
    engine: str
    schema_sha256: str
    mutations: tuple[str, ...]
    unfinished: tuple[str, ...]
    patch_parts: tuple[str, ...]
    parts: tuple[Mapping[str, Any], ...]
    read_at: str
    settings: Mapping[str, str] = field(default_factory=dict)
    read_parts: tuple[Mapping[str, Any], ...] | None = None

    def moved_since(self, before: SourceSnapshot) -> str | None:
        """Why a read between the two moments must be discarded, or None. Merges and inserts are normal."""
        reasons = [
            (self.server_id != before.server_id, "another server answered"),
            (self.table_uuid != before.table_uuid, "the table was replaced"),
            (self.engine != before.engine, "the table's engine changed"),
            (self.schema_sha256 != before.schema_sha256, "the table's columns changed"),
            (bool(before.unfinished or self.unfinished), "a mutation was running"),
            (self.mutations != before.mutations, "a mutation ran"),
            (not set(self.patch_parts) <= set(before.patch_parts), "a lightweight update ran"),
            (bool(self._vanished(before)), "a partition of the window was dropped or replaced"),
            (bool(self._strange(before)), "rows came from a part that the table does not have"),
        ]
        return next((text for found, text in reasons if found), None)

    def _vanished(self, before: SourceSnapshot) -> list[str]:
        """Parts of before that no part covers now: a merge keeps the block range, a replaced partition does
        not."""
        return [old["name"] for old in before.parts if not is_covered(old, self.parts)]

    def _strange(self, before: SourceSnapshot) -> list[str]:
        """Parts that the read saw and that were no part of the table, nor what one was merged from."""
        known = (*before.parts, *self.parts)
        return [seen["name"] for seen in self.read_parts or () if not is_covered(seen, known)]

    def to_json(self) -> Json:
        """For the journal and the evidence; ``read_parts`` is there only if they are known."""
        body = asdict(self)
        if self.read_parts is None:
            del body["read_parts"]
        else:
            body["read_parts"] = [dict(p) for p in self.read_parts]
        return {**body, "parts": [dict(p) for p in self.parts], "settings": dict(self.settings)}


def is_covered(part: Mapping[str, Any], by: Iterable[Mapping[str, Any]]) -> bool:
    """Whether one of these parts is that part, or was merged from it."""
    return any(
        other["partition"] == part["partition"]
        and other["min_block"] <= part["min_block"]
        and other["max_block"] >= part["max_block"]
        for other in by
    )


# ---- sealed chunks ----------------------------------------------------------


@dataclass(frozen=True)
class SealedChunk:
    """One sealed chunk of an extraction: what was journaled as CHUNK_SEALED.

    :param encoded_bytes: native row bytes. :param file_bytes: bytes of the sealed file.
    :param chunk_format: the form of the file. :param format_file_sha256: of the format file that lies beside
        a file of native rows.
    """

    extraction_epoch: int
    ordinal: int
    rows: int
    encoded_bytes: int
    file_bytes: int
    file_sha256: str
    digest_sum: DigestSum
    chunk_format: ChunkFormat = "arrow_ipc"
    format_file_sha256: str | None = None

    def to_json(self) -> Json:
        """Payload of CHUNK_SEALED; the form is named unless it is ``arrow_ipc``, the only one at first."""
        form = {"chunk_format": self.chunk_format, "format_file_sha256": self.format_file_sha256}
        return {
            "extraction_epoch": self.extraction_epoch,
            "ordinal": self.ordinal,
            "rows": self.rows,
            "encoded_bytes": self.encoded_bytes,
            "file_bytes": self.file_bytes,
            "file_sha256": self.file_sha256,
            "digest": self.digest_sum.digest,
            "limbs": [str(limb) for limb in self.digest_sum.limbs],
            **(form if self.chunk_format != "arrow_ipc" else {}),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> SealedChunk:
        """The reverse of :meth:`to_json`."""
        limbs = tuple(int(limb) for limb in body["limbs"])
        names = ("extraction_epoch", "ordinal", "rows", "encoded_bytes", "file_bytes", "file_sha256")
        form = {name: body[name] for name in ("chunk_format", "format_file_sha256") if name in body}
        return cls(**{n: body[n] for n in names}, digest_sum=DigestSum(body["rows"], limbs), **form)
