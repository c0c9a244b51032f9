"""The frozen plan: identity and tuning of a delivery, and what can be refused without opening anything.

A plan is frozen once, in the journal's PLANNED event, and read back by every later call; a resumed delivery
never plans anew with another configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.column_map import MappedColumn
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import Problem
from airflow_dpone.settings import Limits, Options, Quality, Route
from airflow_dpone.wire.digest import ALGORITHM
from airflow_dpone.wire.types import TypePair, WireColumn, WireLayout

SOURCE_OPTIONS = ("allow_ttl", "accept_unseen_row_policies")
"""Options that let a source table through; tuning that is stored only when it is set."""
TARGET_OPTIONS = ("after_image_digest", "allow_triggers", "allow_referenced_target")
"""Options about obstacles of a target table; likewise."""
STORED_WHEN_SET = (*SOURCE_OPTIONS, *TARGET_OPTIONS, "create_target")


LATER_WRITERS = frozenset({"bcp", "sqlclient"})


def request_problems(route: Route, window: Window | None, writer_backend: str | None) -> list[Problem]:
    """What can be told without opening anything.

    :param writer_backend: None while nobody knows which target it is.
    """
    problems = []
    if window is not None and (route.strategy == "full_refresh") is not window.is_full:
        text = "strategy='full_refresh' takes Window.full(), and 'window_replace' takes Window(start, end)"
        problems.append(Problem("dpone.config.window", "window", text))
    if route.writer in LATER_WRITERS:
        text = f"{route.writer!r} comes with a later version; leave writer out{_or_use(writer_backend)}"
        problems.append(Problem("dpone.config.later", "writer", text))
    elif writer_backend is not None and route.writer not in (None, writer_backend):
        text = f"{route.writer!r} cannot load this target; leave writer out{_or_use(writer_backend)}"
        problems.append(Problem("dpone.config.writer", "writer", text))
    if writer_backend == "embedded" and route.limits.import_writers > 1:
        where = "import_parallelism" if route.limits.import_parallelism else "parallelism"
        text = "an embedded target is written by one process, chunk by chunk; set import_parallelism=1"
        problems.append(Problem("dpone.config.field", f"limits.{where}", text))
    return problems


def _or_use(writer_backend: str | None) -> str:
    return f", or use {writer_backend!r}" if writer_backend else ""


@dataclass(frozen=True)
class FrozenPlan:
    """The PLANNED payload: everything that the content of a delivery depends on, and the tuning it started
    with."""

    delivery_key: str
    generation: int
    target: tr.TargetRef
    route_scope: str
    window: Window
    window_column: str | None
    target_window_column: str | None
    strategy: str
    source_schema_sha256: str
    source_uuid: str
    source_server_id: str
    query: r.SourceQuery
    columns: tuple[MappedColumn, ...]
    writer_backend: str
    proof_capability: str
    quality: Quality
    options: Options
    limits: Limits

    @property
    def layout(self) -> WireLayout:
        """Wire layout of the delivered columns."""
        return WireLayout(tuple(column.wire for column in self.columns))

    @property
    def identity_fields(self) -> r.Json:
        """What the invocation key is made of: identity, never tuning. ``fail_on_null`` is there only when it
        is set, so that a plan without it has the key that it always had."""
        return {
            "delivery_key": self.delivery_key,
            "generation": self.generation,
            "target_key": self.target.target_key,
            "route_scope": self.route_scope,
            "window": self.window.key,
            "source_query": self.query.identity(),
            "schema": [self.source_schema_sha256, self.target.fingerprint],
            "wire_layout_sha256": self.layout.sha256,
            "strategy": self.strategy,
            "writer": [self.writer_backend, self.proof_capability],
            "digest_algorithm": ALGORITHM,
            "contract_version": identity.CONTRACT_VERSION,
            **({"fail_on_null": True} if self.options.fail_on_null else {}),
        }

    @property
    def invocation_key(self) -> str:
        """The key of this generation."""
        return identity.invocation_key(self.identity_fields)

    @property
    def operation_id(self) -> str:
        """The publication of this generation."""
        return identity.operation_id(self.invocation_key, self.generation)

    def tuned(self, route: Route) -> FrozenPlan:
        """The same plan with the newest tuning of the configuration; what is identity stays."""
        options = route.options.model_copy(update={"fail_on_null": self.options.fail_on_null})
        return replace(self, limits=route.limits, quality=route.quality, options=options)

    @property
    def tuning(self) -> r.Json:
        """Tuning as stored in PLANNED and TUNED; a limit that is not set is left out, so that a new one
        changes no stored plan."""
        return {
            "limits": self.limits.model_dump(mode="json", exclude_none=True),
            "quality": self.quality.stored(),
            "on_empty": self.options.on_empty,
            "take_over_target": self.options.take_over_target,
            **{name: True for name in STORED_WHEN_SET if getattr(self.options, name)},
            **({"unmapped_columns": list(left_out)} if (left_out := self.options.unmapped_columns) else {}),
        }

    def to_json(self) -> r.Json:
        """Payload of PLANNED."""
        return {
            "identity": self.identity_fields,
            "target": self.target.to_json(),
            "source": {"table_uuid": self.source_uuid, "server_id": self.source_server_id},
            "window_column": self.window_column,
            "target_window_column": self.target_window_column,
            "query_text": self.query.text,
            "columns": [
                {"source": c.source, "target": c.wire.name, **c.wire.pair.to_json()} for c in self.columns
            ],
            "tuning": self.tuning,
        }

    @property
    def sha256(self) -> str:
        """Hash of the whole frozen plan."""
        return identity.key_of(self.to_json())

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> FrozenPlan:
        """The plan of a stored PLANNED event."""
        fields, tuning = body["identity"], body["tuning"]
        query = fields["source_query"]
        return cls(
            delivery_key=fields["delivery_key"],
            generation=fields["generation"],
            target=tr.TargetRef.from_json(body["target"]),
            route_scope=fields["route_scope"],
            window=Window.of_key(fields["window"]),
            window_column=body["window_column"],
            target_window_column=body["target_window_column"],
            strategy=fields["strategy"],
            source_schema_sha256=fields["schema"][0],
            source_uuid=body["source"]["table_uuid"],
            source_server_id=body["source"]["server_id"],
            query=r.SourceQuery(**query, text=body["query_text"]),
            columns=tuple(
                MappedColumn(c["source"], WireColumn(c["target"], TypePair.from_json(c)))
                for c in body["columns"]
            ),
            writer_backend=fields["writer"][0],
            proof_capability=fields["writer"][1],
            quality=Quality.of_stored(tuning["quality"]),
            options=_options(fields, tuning),
            limits=Limits.model_construct(**tuning["limits"]),
        )


def _options(fields: Mapping[str, Any], tuning: Mapping[str, Any]) -> Options:
    """Stored options; what is stored only when it is set is not set where it is absent."""
    flags: dict[str, Any] = {name: tuning.get(name) is True for name in STORED_WHEN_SET}
    return Options.model_construct(
        on_empty=tuning["on_empty"],
        take_over_target=tuning["take_over_target"],
        fail_on_null=fields.get("fail_on_null") is True,
        unmapped_columns=tuple(tuning.get("unmapped_columns", ())),
        **flags,
    )


def route_scope(route: Route) -> str:
    """Which route it is, whatever its columns are."""
    return identity.route_scope(route.effective_source_name, *route.source_table, route.window_column)
