"""What a route lets through of the source, and the parts of a read: stored only when they are there.

Documents of a version that did not know them read as before, and keep their bytes and hashes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.planning import SOURCE_OPTIONS, FrozenPlan
from airflow_dpone.delivery.ports import Deadline, effect
from airflow_dpone.settings import Options
from tests.fakes.source import ScriptedSource
from tests.fakes.world import World, orders

GOLDEN = Path(__file__).parents[2] / "golden" / "frozen_plan.json"
PART = {"name": "all_1_1_0", "partition": "all", "rows": 4, "min_block": 1, "max_block": 1}
BOTH = Options(allow_ttl=True, accept_unseen_row_policies=True)


def stored_plan() -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="ascii"))["plans"][0]
    return plan


def test_a_plan_that_was_stored_without_them_lets_nothing_through_and_keeps_its_bytes() -> None:
    stored = stored_plan()
    plan = FrozenPlan.from_json(stored["plan"])
    assert [getattr(plan.options, name) for name in SOURCE_OPTIONS] == [False, False]
    assert plan.to_json() == stored["plan"]
    assert plan.sha256 == stored["plan_sha256"]


def test_they_are_tuning_and_no_identity() -> None:
    plain = FrozenPlan.from_json(stored_plan()["plan"])
    plan = replace(plain, options=BOTH)
    assert plan.invocation_key == plain.invocation_key
    assert plan.tuning == {**plain.tuning, "allow_ttl": True, "accept_unseen_row_policies": True}
    again = FrozenPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert [getattr(again.options, name) for name in SOURCE_OPTIONS] == [True, True]


def snapshot(**changes: Any) -> r.SourceSnapshot:
    fields: dict[str, Any] = {
        "server_id": "s",
        "table_uuid": "u",
        "engine": "MergeTree",
        "schema_sha256": "h",
        "mutations": (),
        "unfinished": (),
        "patch_parts": (),
        "parts": (PART,),
        "read_at": "now",
    }
    return r.SourceSnapshot(**{**fields, **changes})


def test_a_snapshot_without_read_parts_has_the_fields_that_it_always_had() -> None:
    assert set(snapshot().to_json()) == {*PARTS_OF_V1}
    assert snapshot(read_parts=(PART,)).to_json()["read_parts"] == [PART]


PARTS_OF_V1 = (
    "server_id", "table_uuid", "engine", "schema_sha256", "mutations", "unfinished", "patch_parts", "parts",
    "read_at", "settings",
)  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "moved"),
    [
        ((1, 1), None),
        ((2, 2), None),  # merged into 1..3 meanwhile
        ((7, 7), "rows came from a part that the table does not have"),
    ],
)
def test_a_part_that_nobody_knows_means_another_table(seen: tuple[int, int], moved: str | None) -> None:
    """[F11]"""
    part = {**PART, "min_block": seen[0], "max_block": seen[1]}
    after = snapshot(parts=({**PART, "max_block": 3},), read_parts=(part,))
    assert after.moved_since(snapshot()) == moved


class TellingSource(ScriptedSource):
    """Knows the parts of its reads."""

    def snapshot(self, query: r.SourceQuery) -> r.SourceSnapshot:
        """With them."""
        return replace(super().snapshot(query), parts=(PART,), read_parts=(PART,))

    @effect
    def read(self, query: r.SourceQuery, *, nonce: str, deadline: Deadline) -> Any:
        """As it is."""
        return super().read(query, nonce=nonce, deadline=deadline)


def test_the_evidence_says_what_was_seen_and_what_was_let_through(world: World) -> None:
    """[F4, F7] The journal's schemas take it, and a delivery without it as before."""
    world.source.edit(rows=orders(4))
    world.source = TellingSource(world.source.path)
    world.options = BOTH
    source = _evidence(world)["source"]
    assert source["read_parts"] == [PART]
    assert (source["allow_ttl"], source["accept_unseen_row_policies"]) == (True, True)


def test_the_evidence_of_a_source_that_cannot_tell_says_nothing_of_it(world: World) -> None:
    world.source.edit(rows=orders(4))
    assert {"read_parts", *SOURCE_OPTIONS}.isdisjoint(_evidence(world)["source"])


def _evidence(world: World) -> dict[str, Any]:
    sha256 = world.deliver().evidence_sha256
    with world.open_journal() as journal:
        document: dict[str, Any] = json.loads(journal.evidence(sha256) or b"{}")
        return document
