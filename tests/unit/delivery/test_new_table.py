"""A target table that is missing: made only where the route says so, and only when nothing else is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import pytest

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.deliver import deliver
from airflow_dpone.delivery.plan_preview import preview
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.delivery.ports import Observer
from airflow_dpone.delivery.run import Request
from airflow_dpone.errors import ConfigurationError, DponeError, JournalError, TargetBusy
from airflow_dpone.settings import Options
from airflow_dpone.target_embedded.target import EmbeddedTarget
from tests.fakes import target_storage as storage
from tests.fakes.embedded_shop import Shop
from tests.fakes.source import ScriptedSource
from tests.fakes.target import SqliteTarget
from tests.fakes.world import DAY, SCHEMA, TABLE, TARGET_COLUMNS, World, as_set, orders, requester

CREATE = Options(create_target=True)


@pytest.fixture
def bare(world: World) -> World:
    """A world whose target table is missing, and whose routes may make it."""
    world.source.edit(rows=orders(6))
    world.target.execute(f"DROP TABLE {storage.table_name(SCHEMA, TABLE)}")
    world.options = CREATE
    return world


def columns(world: World) -> list[tuple[str, str, bool]]:
    with storage.session(world.target.path) as connection:
        return storage.columns_of(connection, SCHEMA, TABLE)


def is_missing(world: World) -> bool:
    with storage.session(world.target.path) as connection:
        return not storage.is_there(connection, SCHEMA, TABLE)


class Died(BaseException):
    """A process is gone: nothing of it runs any more."""


def dying_at(point: str) -> Observer:
    def die(passed: str) -> None:
        if passed == point:
            raise Died

    return die


def problems_of(call: Any) -> list[tuple[str, str]]:
    with pytest.raises(ConfigurationError) as caught:
        call()
    return [(problem.code, problem.where) for problem in caught.value.problems]


def test_a_missing_table_is_refused_unless_the_route_may_make_it(bare: World) -> None:
    bare.options = Options()
    assert problems_of(bare.deliver) == [("dpone.target.table_missing", f"{SCHEMA}.{TABLE}")]
    assert is_missing(bare)


def test_a_missing_table_is_made_and_delivered_into(bare: World) -> None:
    result = bare.deliver()
    assert columns(bare) == TARGET_COLUMNS
    assert as_set(bare.rows()) == as_set(orders(6))
    assert (result.generation, bare.untidy()) == (1, [])
    planned = bare.events()[0].body["payload"]
    assert planned["tuning"]["create_target"] is True
    assert int(planned["target"]["object_id"]) > 0


def test_a_table_that_is_there_is_used_as_it_is(world: World) -> None:
    """With a wider column than a new table would have."""
    world.source.edit(rows=orders(6))
    world.target.execute(f"DROP TABLE {storage.table_name(SCHEMA, TABLE)}")
    wider = [
        (name, "decimal(38,4)" if name == "amount" else kind, null) for name, kind, null in TARGET_COLUMNS
    ]
    world.target.add_table(SCHEMA, TABLE, wider)
    world.options = CREATE
    world.deliver()
    assert columns(world) == wider


def test_the_columns_of_the_route_are_made_under_their_target_names(bare: World) -> None:
    bare.deliver(route=bare.route(columns={"at": "happened", "note": "remark"}))
    assert columns(bare) == [("happened", "datetime2(6)", False), ("remark", "nvarchar(max)", True)]


def test_nothing_is_made_while_anything_is_wrong(bare: World) -> None:
    """All of it at once: types, names, quality, the table's place."""
    changed = [("id", "Array(Int64)"), ("ID", "Int64"), ("at", "DateTime64(6)"), ("note", "String")]
    ScriptedSource.create(bare.source.path, changed, [])
    route = bare.route(target_table=("nowhere", TABLE), quality={"not_null": ["nothing"]})
    assert problems_of(lambda: bare.deliver(route=route)) == [
        ("dpone.types.unsupported", "id"),
        ("dpone.target.schema_missing", "nowhere"),
        ("dpone.config.unknown_column", "nothing"),
    ]
    route = bare.route(columns=["ID", "at", "gone"])
    assert problems_of(lambda: bare.deliver(route=route)) == [("dpone.config.unknown_column", "gone")]
    assert "create_table" not in bare.target.calls()
    assert is_missing(bare)
    with bare.open_journal() as journal:
        assert journal.newest_invocation(requester().delivery_key) is None


def test_names_that_differ_in_case_only_are_refused(bare: World) -> None:
    ScriptedSource.create(bare.source.path, [("id", "Int64"), ("ID", "Int64"), ("at", "DateTime64(6)")], [])
    assert problems_of(bare.deliver) == [("dpone.config.field", "ID")]


def test_a_source_table_that_is_missing_makes_no_target(bare: World) -> None:
    route = bare.route(source_table=("shop", "nothing"))
    assert [code for code, _ in problems_of(lambda: bare.deliver(route=route))] == ["dpone.source.missing"]
    assert is_missing(bare)


@pytest.mark.parametrize("point", ["before_target_create_table", "after_target_create_table"])
def test_who_dies_there_is_followed_by_the_same_call(bare: World, point: str) -> None:
    with pytest.raises(Died):
        bare.deliver(observer=dying_at(point))
    assert is_missing(bare) == point.startswith("before")
    bare.deliver()
    assert as_set(bare.rows()) == as_set(orders(6))
    assert bare.target.calls().count("create_table") == 1


class Race(SqliteTarget):
    """Another process makes the table between the look and the making."""

    columns = tuple(TARGET_COLUMNS)

    def create_table(self, schema: str, table: str, columns: Any) -> bool:
        self.add_table(schema, table, self.columns)
        return super().create_table(schema, table, columns)


def test_of_two_creators_the_first_one_s_table_stays(bare: World) -> None:
    bare.target = Race(bare.target.path)
    bare.deliver()
    assert as_set(bare.rows()) == as_set(orders(6))


def test_the_first_one_s_table_is_judged_like_any_other(bare: World) -> None:
    class Narrow(Race):
        columns = (("id", "int", False), *TARGET_COLUMNS[1:])

    bare.target = Narrow(bare.target.path)
    assert problems_of(bare.deliver) == [("dpone.types.pair", "id")]
    with bare.open_journal() as journal:
        assert journal.newest_invocation(requester().delivery_key) is None


class FasterInOtherLetters(SqliteTarget):
    """Another process makes the table meanwhile, by a name that the database takes for the same."""

    is_made = False

    def create_table(self, schema: str, table: str, columns: Any) -> bool:
        self.add_table(schema, table.upper(), TARGET_COLUMNS)
        self.is_made = True
        return False

    def identify(self, schema: str, table: str, **asked: Any) -> tr.TargetIdentity:
        return super().identify(schema, table.upper() if self.is_made else table, **asked)


def test_a_table_that_was_made_by_another_name_meanwhile_is_not_worked_on_under_a_wrong_lease(
    bare: World,
) -> None:
    bare.target = FasterInOtherLetters(bare.target.path)
    with pytest.raises(TargetBusy) as caught:
        bare.deliver()
    assert (caught.value.code, caught.value.retry) == ("dpone.target.busy", "backoff")
    assert f"{TABLE} was made meanwhile as {SCHEMA}.{TABLE.upper()}" in caught.value.message
    with bare.open_journal() as journal:
        assert journal.newest_invocation(requester().delivery_key) is None
    assert bare.untidy() == []


def test_a_table_that_another_journal_made_and_took_meanwhile_is_left_to_it(bare: World) -> None:
    class OtherJournal(Race):
        def create_table(self, schema: str, table: str, columns: Any) -> bool:
            made = super().create_table(schema, table, columns)
            found = self.identify(schema, table, initialise=True)
            ref = tr.TargetRef(
                found.target_key, schema, table, found.object_id, found.created, fingerprint="0" * 64
            )
            self.claim_gate(ref, journal_id=str(uuid4()), route_scope="0" * 64, fence=1, take_over=False)
            return made

    bare.target = OtherJournal(bare.target.path)
    with pytest.raises(JournalError) as caught:
        bare.deliver()
    assert caught.value.code == "dpone.journal.not_bound_to_target"
    with bare.open_journal() as journal:
        assert journal.newest_invocation(requester().delivery_key) is None


def test_a_schema_named_in_other_letters_is_the_one_that_is_stored(tmp_path: Path) -> None:
    """DuckDB, like most databases, does not care for case; keys are made of the names as stored."""
    shop = Shop.create(tmp_path / "shop")
    with duckdb.connect(shop.path) as file:
        file.execute(f"DROP TABLE {SCHEMA}.{TABLE}")
    route = shop.world.route(target_table=(SCHEMA.upper(), TABLE), options=CREATE)
    with shop.world.open_journal() as journal:
        target = EmbeddedTarget(shop.path)
        done = deliver(
            shop.world.ports(journal, target=target, writer=target), Request(route, DAY, requester())
        )
    assert (done.target, done.generation, shop.untidy()) == ((SCHEMA, TABLE), 1, ["receipt 1"])


def test_a_table_that_was_dropped_under_an_open_delivery_is_not_made_again_silently(bare: World) -> None:
    """The delivery ends with its name; the next call makes the table."""
    with pytest.raises(Died):
        bare.deliver(observer=dying_at("before_target_build_prepared"))
    bare.target.execute(f"DROP TABLE {storage.table_name(SCHEMA, TABLE)}")
    with pytest.raises(DponeError) as caught:
        bare.deliver(replace(requester(), try_number=2, ti_id="two"))
    assert caught.value.code == "dpone.target.replaced"
    assert is_missing(bare)
    bare.deliver(replace(requester(), try_number=3, ti_id="three"))
    assert as_set(bare.rows()) == as_set(orders(6))


def test_a_finished_delivery_makes_nothing_and_its_rerun_makes_the_table_again(bare: World) -> None:
    """The gate remembers the table that was dropped; the new one is another, under the same key."""
    first = bare.deliver()
    bare.target.execute(f"DROP TABLE {storage.table_name(SCHEMA, TABLE)}")
    assert bare.deliver().already
    assert is_missing(bare)
    again = bare.deliver(rerun=True)
    assert (again.generation, again.deleted_rows) == (2, 0)
    assert again.receipt_sha256 != first.receipt_sha256
    assert as_set(bare.rows()) == as_set(orders(6))


def test_another_route_does_not_take_the_place_of_a_dropped_table(bare: World) -> None:
    """Custody and route hang on the name: the gate of the dropped table still says whose it is."""
    bare.deliver()
    bare.target.execute(f"DROP TABLE {storage.table_name(SCHEMA, TABLE)}")
    other = bare.route(source_name="another")
    assert problems_of(lambda: bare.deliver(requester("run-2"), route=other)) == [
        ("dpone.target.owned_by_other_route", "target_table")
    ]
    assert is_missing(bare)


def test_a_plan_shows_the_statement_and_makes_nothing(bare: World) -> None:
    plan = preview(bare.source, bare.target, bare.target, bare.route(), DAY)
    assert plan.refusals == ()
    assert next(iter(plan.statements)) == "create_table"
    assert f'"{SCHEMA}.{TABLE}"' in plan.statements["create_table"]
    assert [(c.target, c.target_type, c.nullable) for c in plan.columns] == TARGET_COLUMNS
    assert is_missing(bare)


def test_a_plan_of_a_table_that_is_there_creates_nothing(world: World) -> None:
    world.source.edit(rows=orders(6))
    plan = preview(world.source, world.target, world.target, world.route(options=CREATE), DAY)
    assert "create_table" not in plan.statements


def test_a_plan_that_was_stored_without_the_option_keeps_its_bytes() -> None:
    golden = Path(__file__).parents[2] / "golden" / "frozen_plan.json"
    stored = json.loads(golden.read_text(encoding="ascii"))["plans"][0]
    plan = FrozenPlan.from_json(stored["plan"])
    assert plan.options.create_target is False
    assert plan.to_json() == stored["plan"]
    asked = replace(plan, options=plan.options.model_copy(update={"create_target": True}))
    assert asked.invocation_key == plan.invocation_key
    assert FrozenPlan.from_json(asked.to_json()).options.create_target is True
