"""``fail_on_null``: the one option that is identity. Plans without it keep the key that they always had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery import identity
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.errors import ConfigurationError, DponeError, SourceDataError
from airflow_dpone.settings import Limits, Options
from tests.fakes.source import ReadFault
from tests.fakes.world import SOURCE_COLUMNS, World, order, orders, requester

GOLDEN = Path(__file__).parents[2] / "golden" / "frozen_plan.json"
NULLABLE = [(name, f"Nullable({kind})" if name == "customer" else kind) for name, kind in SOURCE_COLUMNS]
STRICT = Options(fail_on_null=True)


def stored_plans() -> list[dict[str, Any]]:
    """Plans as a version without the option froze them."""
    plans: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="ascii"))["plans"]
    return plans


@pytest.fixture
def shop(world: World) -> World:
    """The customer is Nullable in the source and NOT NULL in the target."""
    world.source.edit(columns=NULLABLE)
    world.options = STRICT
    return world


@pytest.mark.parametrize("stored", stored_plans(), ids=["window", "full refresh", "every check"])
def test_a_plan_that_was_stored_without_it_reads_as_false_and_keeps_its_key(stored: dict[str, Any]) -> None:
    plan = FrozenPlan.from_json(stored["plan"])
    assert plan.options.fail_on_null is False
    assert (plan.invocation_key, plan.sha256) == (stored["invocation_key"], stored["plan_sha256"])
    assert plan.to_json() == stored["plan"]


def test_set_it_is_one_more_field_of_the_identity() -> None:
    stored = stored_plans()[0]["plan"]
    fields = {**stored["identity"], "fail_on_null": True}
    plan = FrozenPlan.from_json({**stored, "identity": fields})
    assert plan.options.fail_on_null is True
    assert plan.identity_fields == fields
    assert plan.invocation_key == identity.key_of({"contract": "dpone.invocation.v1", **fields})
    assert plan.invocation_key != stored_plans()[0]["invocation_key"]
    assert FrozenPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.tuning == stored["tuning"]


def test_without_the_option_the_column_is_refused_before_anything_is_read(shop: World) -> None:
    shop.options = Options()
    with pytest.raises(ConfigurationError) as raised:
        shop.deliver()
    assert [(p.code, p.where) for p in raised.value.problems] == [("dpone.types.nullability", "customer")]
    assert shop.source.script.reads == 0
    assert shop.untidy() == []


def test_with_the_option_rows_without_null_arrive(shop: World) -> None:
    assert shop.deliver().rows == 6
    assert len(shop.rows()) == 6
    planned = shop.events()[0].body["payload"]
    assert planned["identity"]["fail_on_null"] is True
    assert [c["target"] for c in planned["columns"] if c.get("fail_on_null")] == ["customer"]


def test_the_first_null_of_the_window_stops_with_column_row_and_a_query(shop: World) -> None:
    """Rows count through the whole extraction, across batches and chunks; nothing is published."""
    script = shop.source.script
    script.rows = [*orders(5), order(6, customer=None), order(7, customer=None)]
    script.batch_rows = 2
    shop.source.write(script)
    shop.limits = Limits(max_rows=2)
    with pytest.raises(SourceDataError) as raised:
        shop.deliver()
    error = raised.value
    assert (error.code, error.state_after) == ("dpone.source.null", "FAILED")
    assert error.fields == {"column": "customer", "row": 5}
    assert "COUNT ROWS OF shop.orders WHERE customer IS null." in error.next_action
    assert (shop.rows(), shop.untidy()) == ([], [])
    shop.source.edit(rows=orders(5))
    assert shop.deliver().generation == 2


def test_a_window_that_was_planned_but_not_read_is_planned_anew_when_it_changes(shop: World) -> None:
    shop.options = Options(fail_on_null=False)
    shop.source.edit(columns=SOURCE_COLUMNS, faults=[ReadFault("ends_early")] * 3)
    with pytest.raises(DponeError):
        shop.deliver()
    before = shop.invocation()
    shop.options = STRICT
    result = shop.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert (before.generation, result.generation) == (1, 2)
    assert result.invocation_key != before.invocation_key


def test_a_delivery_that_was_read_goes_on_with_what_it_was_planned_with(
    shop: World, caplog: pytest.LogCaptureFixture
) -> None:
    shop.target.arm("write", "breaks", times=9)
    with pytest.raises(DponeError):
        shop.deliver()
    shop.target.disarm()
    shop.options = Options()
    result = shop.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert (result.rows, result.generation, shop.source.script.reads) == (6, 1, 1)
    assert "plan_changed: fail_on_null" in caplog.text
    assert shop.events()[0].body["payload"]["identity"]["fail_on_null"] is True
