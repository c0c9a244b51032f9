"""The bytes that are frozen: keys, receipt hash, event envelope, evidence, result, plan.

The expected hashes were computed from the documented form with ``json`` and ``hashlib`` alone.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import CATALOGUE, DponeError, error_of
from airflow_dpone.settings import Limits, Options, Quality, RowCount
from tests.fakes.world import DAY, World, requester

GUID = "6F9619FF-8B86-D011-B42D-00CF4FC964FF"
INVOCATION, NONCE = "f" * 64, "ab" * 32
FIELDS = {
    "delivery_key": "d" * 64,
    "generation": 2,
    "target_key": "e" * 64,
    "window": "full",
    "nested": {"b": [1, None, "é"], "a": True},
}
CHUNKS = [
    {"ordinal": 0, "file_sha256": "1" * 64, "digest": "2" * 64, "rows": 5},
    {"ordinal": 1, "file_sha256": "3" * 64, "digest": "4" * 64, "rows": 6},
]

GOLDEN: dict[str, tuple[str, str]] = {
    "target_key": (
        identity.target_key(GUID, "dbo", "Orders"),
        "28aecfb043ed36b85bf9aab361beea32e5a144f6277859dfe3e8a94f1f72e718",
    ),
    "delivery_key": (
        identity.delivery_key("shop", "run-1", "deliver_orders", -1),
        "25e466b916b574064db26704bc4f4deb3fd444c531a5d3b04aa08b6ad3700e3d",
    ),
    "route_scope": (
        identity.route_scope("chdb", "shop", "orders", "at"),
        "b6cf8717186e77dd7e693ff553a0722ebf18a0243448a9cad835c73053aa0f64",
    ),
    "route_scope of a full refresh": (
        identity.route_scope("chdb", "shop", "orders", None),
        "343863605ee074f8c8f0f957526f2dd4804f6ec62cb0523578b2c908f506bd06",
    ),
    "invocation_key": (
        identity.invocation_key(FIELDS),
        "dda16d21c3927d1a58e493af6f9e2bed453728e5b35e2f98861362b22a1a7429",
    ),
    "operation_id": (
        identity.operation_id(INVOCATION, 2),
        "35b63570450eada8f0681e17aba16decf92418fd7751a748b3061b6b130ec620",
    ),
    "attempt_id": (
        identity.attempt_id(INVOCATION, 3, NONCE),
        "404877cc5840c2fa2e035fdbcf880c8e147950d90aef036354835cd9d8b42537",
    ),
    "stage_name": (
        identity.stage_name(INVOCATION, 1, 3, NONCE),
        "r_0af0537b8cb7f08805f3d58542572dcc9e8121fc",
    ),
    "stage_name of the prepared table": (
        identity.stage_name(INVOCATION, 1, "prepared", NONCE),
        "p_fab76d14a85d5a0259601f40692b5a7032cadb1f",
    ),
    "owner_binding": (
        identity.owner_binding(INVOCATION, "r_x", NONCE),
        "beb54e37c38c854970077acf709a4a5be98f89b6aad13dd272a17fb3fd83098f",
    ),
    "chunk_list_sha256": (
        identity.chunk_list_sha256(CHUNKS),
        "51f36b7f8557bc51377b4ed6be8f6d26243b896d80953c559fb219e564f8d4c8",
    ),
}


@pytest.mark.parametrize(("made", "expected"), GOLDEN.values(), ids=GOLDEN.keys())
def test_keys_are_the_documented_hashes(made: str, expected: str) -> None:
    assert made == expected


def test_a_requester_is_known_by_its_group_when_it_has_one() -> None:
    who = requester(delivery_task_id="group")
    assert who.delivery_key == identity.delivery_key("shop", "run-1", "group", -1)
    assert (
        replace(who, task_id="other", try_number=7, ti_id="x", max_tries=9).delivery_key == who.delivery_key
    )
    for change in ({"dag_id": "d"}, {"run_id": "r"}, {"delivery_task_id": "g"}, {"map_index": 0}):
        assert replace(who, **change).delivery_key != who.delivery_key


DRAFT = tr.ReceiptDraft(
    operation_id="1" * 64,
    target_key="2" * 64,
    delivery_key="3" * 64,
    generation=2,
    invocation_key="4" * 64,
    route_scope="5" * 64,
    journal_id="6f0c3a52-92a7-4d25-8f52-1d0a4b1f7c11",
    intent_sha256="6" * 64,
    strategy="window_replace",
    window_key="full",
    row_count=7,
    digest="8" * 64,
    wire_layout_sha256="9" * 64,
    fence=2**62,
    lock_mode="exclusive",
)


def test_the_receipt_hash_is_over_every_field_that_the_client_knows() -> None:
    assert DRAFT.sha256 == "aacb537815e9810b219c6d7bd2e8d8822fccdcb51529c22f4872c1d13d8d1b21"
    for field in fields(DRAFT):
        value = getattr(DRAFT, field.name)
        changed = value + 1 if isinstance(value, int) else f"{value}x"
        assert replace(DRAFT, **{field.name: changed}).sha256 != DRAFT.sha256, field.name


def test_what_the_server_adds_to_a_receipt_is_outside_of_its_hash_and_inside_of_the_evidence() -> None:
    receipt = tr.Receipt(DRAFT, DRAFT.sha256, 3, "2025-01-01T00:00:00.000000Z", None, "full")
    assert set(receipt.to_json()) - set(DRAFT.to_json()) == {
        "receipt_sha256",
        "deleted_rows",
        "published_at",
        "recovery_fork_id",
        "durability",
    }
    assert receipt.to_json()["fence"] == str(2**62)


ENVELOPE = [
    "created_at", "event", "fence", "kind", "payload", "previous_sha256",
    "requester", "schema_version", "sequence", "stream",
]  # fmt: skip
ATTEMPT = [
    "artifact_binding", "attempt_id", "created_at", "event", "invocation_key", "kind", "observation",
    "ordinal",
    "previous_sha256", "schema_version", "sequence", "stage_binding", "writer_binding",
]  # fmt: skip


def test_events_have_the_documented_envelope_and_come_in_the_documented_order(world: World) -> None:
    result = world.deliver()
    events = world.events()
    delivery = [e for e in events if e.stream == f"delivery/{result.invocation_key}"]
    assert [e.event for e in delivery] == [
        "PLANNED", "EPOCH_OPENED", "CHUNK_SEALED", "CHUNK_SEALED", "EXTRACTED", "STAGED", "PREPARE_INTENT",
        "PREPARED", "PUBLISHING", "PUBLISHED", "EVIDENCED", "CHECKPOINTED", "COMPLETED", "CUSTODY_RELEASED",
    ]  # fmt: skip
    for event in delivery:
        assert sorted(event.body) == ENVELOPE
        assert (event.body["schema_version"], event.body["kind"]) == (1, "dpone.delivery-event")
        assert event.body["requester"] == requester().to_json()
        assert event.body["fence"].isdigit()
        assert event.sha256 == identity.key_of(dict(event.body))
    links = [event.body["previous_sha256"] for event in delivery]
    assert links == [None, *(event.sha256 for event in delivery[:-1])]


def test_attempts_have_the_documented_envelope_and_come_in_the_documented_order(world: World) -> None:
    world.deliver()
    streams: dict[str, list[jr.Event]] = {}
    for event in world.events():
        if event.stream.startswith("attempt/"):
            streams.setdefault(event.stream, []).append(event)
    assert len(streams) == 2
    for events in streams.values():
        assert [e.event for e in events] == [
            "INTENT", "STAGE_OWNED", "GRANTED", "WRITING", "WRITER_TERMINAL", "QUIESCENT",
            "VERIFIED", "RETIRED",
        ]  # fmt: skip
        assert all(sorted(e.body) == ATTEMPT for e in events)
        assert all(e.body["kind"] == "dpone.chunk-attempt-event" for e in events)


def test_an_attempts_bindings_say_what_the_protocol_names(world: World) -> None:
    world.deliver()
    last = next(e for e in world.events() if e.event == "RETIRED").body
    assert sorted(last["stage_binding"]) == [
        "nonce", "object_id", "owner_binding_sha256", "schema_sha256", "stage_id_sha256", "stage_name",
    ]  # fmt: skip
    assert sorted(last["artifact_binding"]) == [
        "encoded_bytes", "extraction_epoch", "file_sha256", "ordinal", "rows", "typed_digest",
    ]  # fmt: skip
    assert sorted(last["writer_binding"]) == [
        "capability_sha256", "grant_token_sha256", "import_backend", "package_sha256", "proof_capability",
        "protocol_sha256", "timeout_policy_sha256",
    ]  # fmt: skip
    assert sorted(last["observation"]) == [
        "count", "diagnostic_code", "input_rows_consumed", "limbs", "overflow", "quiescence",
        "writer_outcome",
    ]  # fmt: skip
    assert last["observation"]["diagnostic_code"] == "dpone.attempt.published_cleanup"


EVIDENCE = [
    "after_image", "attempts", "business_rows_read_back", "environment", "epoch", "invocation", "package",
    "plan_sha256", "prepared", "quality", "raw", "receipt", "requester", "schema", "source", "timings",
    "unknown_outcomes", "window",
]  # fmt: skip


def evidence_of(world: World, result: r.DeliveryResult) -> dict[str, Any]:
    with world.open_journal() as journal:
        body = journal.evidence(result.evidence_sha256)
    assert body is not None
    assert identity.sha256_hex(body) == result.evidence_sha256
    document: dict[str, Any] = json.loads(body)
    assert identity.canonical(document) == body
    return document


def test_evidence_binds_plan_chunks_and_receipt_and_holds_no_row_and_no_path(world: World) -> None:
    result = world.deliver()
    document = evidence_of(world, result)
    assert sorted(document) == EVIDENCE
    assert document["schema"] == "dpone.delivery-evidence.v1"
    assert document["receipt"]["receipt_sha256"] == result.receipt_sha256
    assert document["invocation"]["invocation_key"] == result.invocation_key
    assert document["plan_sha256"] == world.invocation().plan_sha256
    assert [chunk["rows"] for chunk in document["epoch"]["chunks"]] == [4, 2]
    assert document["raw"] == document["prepared"]
    assert document["raw"]["n"] == 6
    assert (document["attempts"], document["unknown_outcomes"]) == (2, 0)
    assert document["source"]["query_nonce"]
    assert all(float(seconds) >= 0 for seconds in document["timings"].values())
    assert {"admit", "extract", "stage", "verify", "publish"} <= set(document["timings"])
    text = json.dumps(document)
    assert str(world.root) not in text
    assert "order 1" not in text


def test_evidence_counts_what_went_wrong_on_the_way(world: World) -> None:
    world.target.arm("write", "says_lost")
    world.target.arm("read_receipt", "unreachable")
    with pytest.raises(DponeError):
        world.deliver()
    document = evidence_of(world, world.deliver())
    assert document["unknown_outcomes"] == 2


def test_a_result_has_the_documented_fields_and_survives_json(world: World) -> None:
    result = world.deliver()
    body = result.to_json()
    assert list(body) == [
        "schema", "delivery_key", "invocation_key", "generation", "window", "target", "rows", "deleted_rows",
        "chunks", "bytes", "digest", "operation_id", "receipt_sha256", "evidence_sha256", "resumed_from",
        "already", "seconds", "state",
    ]  # fmt: skip
    assert (body["schema"], body["state"]) == ("dpone.delivery-result.v1", "COMPLETED")
    assert r.DeliveryResult.from_json(json.loads(json.dumps(body))) == result


def plan_of(world: World) -> FrozenPlan:
    with pytest.raises(DponeError):
        world.deliver(deadline_sec=0.0)
    planned = next(e for e in world.events() if e.event == "PLANNED")
    return FrozenPlan.from_json(planned.body["payload"])


@pytest.mark.parametrize("window", [DAY, Window.full()], ids=["window", "full"])
def test_a_frozen_plan_reads_back_as_it_was_written(world: World, window: Window) -> None:
    world.limits = Limits(max_rows=4, max_bytes=2**21, max_row_bytes=2**20, chunk_attempts=2)
    world.quality = Quality(row_count=RowCount(min_rows=1), not_null=("id",))
    world.options = Options(on_empty="fail")
    strategy = "full_refresh" if window.is_full else "window_replace"
    with pytest.raises(DponeError):
        world.deliver(deadline_sec=0.0, window=window, route=world.route(strategy=strategy))
    planned = next(e for e in world.events() if e.event == "PLANNED").body["payload"]
    plan = FrozenPlan.from_json(planned)
    assert plan.to_json() == planned
    assert FrozenPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert (plan.limits, plan.quality, plan.options) == (world.limits, world.quality, world.options)
    assert (plan.window, plan.strategy) == (window, strategy)
    assert plan.invocation_key == world.invocation().invocation_key
    assert plan.sha256 == world.invocation().plan_sha256


@pytest.mark.parametrize(
    "given", [{}, {"max_bytes": 2**20}, {"max_bytes": 2**30}, {"max_row_bytes": 1}], ids=str
)
def test_limits_that_were_accepted_once_are_accepted_from_the_journal(given: dict[str, int]) -> None:
    """A plan that cannot be read back would hold its target for ever."""
    try:
        limits = Limits(**given)
    except DponeError:
        return
    assert Limits(**limits.model_dump(mode="json")) == limits
    assert limits.max_row_bytes <= limits.max_bytes


def test_identity_is_what_the_content_depends_on_and_tuning_is_not(world: World) -> None:
    plan = plan_of(world)
    assert sorted(plan.identity_fields) == [
        "contract_version", "delivery_key", "digest_algorithm", "generation", "route_scope", "schema",
        "source_query", "strategy", "target_key", "window", "wire_layout_sha256", "writer",
    ]  # fmt: skip
    tuned = plan.tuned(world.route(limits=Limits(max_rows=1), quality=Quality(not_null=("id",))))
    assert tuned.invocation_key == plan.invocation_key
    assert tuned.tuning != plan.tuning
    assert replace(plan, generation=2).invocation_key != plan.invocation_key
    assert replace(plan, window=Window.full()).invocation_key != plan.invocation_key
    assert replace(plan, columns=plan.columns[:-1]).invocation_key != plan.invocation_key
    assert replace(plan, writer_backend="tds").invocation_key != plan.invocation_key


def test_every_code_of_the_catalogue_makes_its_own_error() -> None:
    for code, row in CATALOGUE.items():
        error = error_of(code, "text", ordinal=1)
        assert (type(error).__name__, error.retry) == (row.error, row.retry)
