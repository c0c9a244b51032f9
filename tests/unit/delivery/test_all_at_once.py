"""Everything that is wrong with a delivery comes in one error, whichever side knows it.

A plan says the same.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.plan_preview import preview
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, DponeError, Problem, SourceUnavailable, TargetBusy
from airflow_dpone.settings import Options, Route
from tests.fakes import target_storage as storage
from tests.fakes.source import ScriptedSource
from tests.fakes.target import SqliteTarget
from tests.fakes.world import DAY, SCHEMA, SOURCE_COLUMNS, START, TABLE, World, requester

UNKNOWN = "dpone.config.unknown_column"
MUTATION = Problem("dpone.source.mutation", "shop.orders", "1 unfinished mutation(s)")


class Silent(ScriptedSource):
    """A server that does not answer."""

    def describe(self, database: str, table: str) -> r.SourceTable:
        raise SourceUnavailable("dpone.source.unavailable", "The source did not answer.")


class SilentAtTheEnd(ScriptedSource):
    """A server that is lost when the query is tried."""

    def compile(self, *asked: Any) -> r.SourceQuery:
        raise SourceUnavailable("dpone.source.unavailable", "The source did not answer.")


class Materialized(ScriptedSource):
    """The window column is computed by the source."""

    def describe(self, database: str, table: str) -> r.SourceTable:
        found = super().describe(database, table)
        columns = tuple(
            r.SourceColumn(c.name, c.type, "MATERIALIZED") if c.name == "at" else c for c in found.columns
        )
        return r.SourceTable(database, table, found.uuid, found.engine, columns, found.capabilities)


class Busy(SqliteTarget):
    """A server that does not answer."""

    def identify(self, *asked: Any, **more: Any) -> Any:
        raise TargetBusy("dpone.target.unavailable", "The target did not answer.")


def refused(world: World, route: Route, window: Window = DAY) -> set[tuple[str, str]]:
    """Where and code of each problem; a plan and a delivery agree, and nothing was written."""
    with pytest.raises(ConfigurationError) as caught:
        world.deliver(route=route, window=window)
    problems = caught.value.problems or (Problem(caught.value.code, "target", caught.value.message),)
    plan = preview(world.source, world.target, world.target, route, window)
    assert plan.refusals == problems
    assert len(set(problems)) == len(problems)
    with world.open_journal() as journal:
        assert journal.newest_invocation(requester().delivery_key) is None
    assert list(world.spool_files()) == []
    return {(problem.where, problem.code.removeprefix("dpone.")) for problem in problems}


def drop_target(world: World) -> None:
    world.target.execute(f"DROP TABLE {storage.table_name(SCHEMA, TABLE)}")


WRONG: dict[str, Any] = {
    "window_column": "when",
    "columns": {"id": "id", "colour": "note", "note": "hue", "tags": "ref"},
    "quality": {"not_null": ["nothing"], "min_max": [{"column": "id", "min": "2025-01-01"}]},
    "options": Options(unmapped_columns=("gone", "id")),
}
OF_THE_ROUTE = {("columns", "config.field"), ("options.unmapped_columns", "config.field")}
OF_THE_SOURCE = {
    ("shop.orders", "source.mutation"),
    ("colour", "config.unknown_column"),
    ("tags", "types.unsupported"),
    ("when", "config.unknown_column"),
}
OF_THE_TARGET = {
    ("hue", "config.unknown_column"),
    ("gone", "config.unknown_column"),
    ("nothing", "config.unknown_column"),
    ("customer", "types.unmapped_target_column"),
    ("quality: min(id)", "config.field"),
}


@pytest.fixture
def wrong(world: World) -> World:
    """A source with an unfinished mutation and a column that goes nowhere."""
    columns = [*SOURCE_COLUMNS, ("tags", "Array(String)")]
    ScriptedSource.create(world.source.path, columns, [])
    world.source.edit(problems=[MUTATION])
    return world


def test_tables_columns_window_quality_and_options_are_refused_together(wrong: World) -> None:
    found = refused(wrong, wrong.route(**WRONG))
    assert found >= OF_THE_ROUTE | OF_THE_SOURCE | OF_THE_TARGET


def test_a_missing_target_hides_nothing_of_the_source(wrong: World) -> None:
    drop_target(wrong)
    found = refused(wrong, wrong.route(**WRONG))
    assert found >= {(f"{SCHEMA}.{TABLE}", "target.table_missing")} | OF_THE_ROUTE | OF_THE_SOURCE
    assert ("nothing", "config.unknown_column") in found, "it is not delivered, whatever the table will be"
    assert not found & {("hue", "config.unknown_column"), ("gone", "config.unknown_column")}, "nobody knows"


def test_a_missing_source_hides_nothing_of_the_target(wrong: World) -> None:
    found = refused(wrong, wrong.route(**WRONG, source_table=("shop", "nothing")))
    assert found >= {("source_table", "source.missing")} | OF_THE_ROUTE | OF_THE_TARGET
    assert not found & OF_THE_SOURCE


def test_two_missing_tables_are_two_problems(world: World) -> None:
    drop_target(world)
    assert refused(world, world.route(source_table=("shop", "nothing"))) == {
        ("source_table", "source.missing"),
        (f"{SCHEMA}.{TABLE}", "target.table_missing"),
    }


@pytest.mark.parametrize("is_there", [True, False])
def test_a_window_that_its_column_cannot_cut_is_told_with_the_rest(world: World, is_there: bool) -> None:
    """Whether there is a target or not: bounds depend on the source's column alone."""
    if not is_there:
        drop_target(world)
    odd = Window(START + timedelta(hours=1), START + timedelta(hours=2))
    route = world.route(window_column="day", columns=["id", "day"], quality={"not_null": ["nothing"]})
    found = refused(world, route, odd)
    assert found >= {("window", "source.window_bound"), ("nothing", "config.unknown_column")}


def test_without_a_source_the_target_of_the_window_column_is_looked_at(world: World) -> None:
    silent = {("source_table", "source.missing")}
    asked = {"source_table": ("shop", "nothing"), "columns": None}
    assert refused(world, world.route(**asked, window_column="note")) == silent | {
        ("note", "config.window_column")
    }
    assert refused(world, world.route(**asked, window_column="when")) == silent | {
        ("when", "config.unknown_column")
    }


def test_a_table_that_would_be_made_hides_nothing(wrong: World) -> None:
    drop_target(wrong)
    asked = WRONG | {"options": Options(create_target=True)}
    found = refused(wrong, wrong.route(**asked, target_table=("nowhere", TABLE)))
    assert found >= {("nowhere", "target.schema_missing"), ("columns", "config.field")} | OF_THE_SOURCE
    assert ("nothing", "config.unknown_column") in found
    assert "create_table" not in wrong.target.calls()


def test_a_table_that_would_be_made_needs_its_schema_whatever_the_source_says(world: World) -> None:
    drop_target(world)
    asked = {"options": Options(create_target=True), "source_table": ("shop", "nothing")}
    assert refused(world, world.route(**asked, target_table=("nowhere", TABLE))) == {
        ("source_table", "source.missing"),
        ("nowhere", "target.schema_missing"),
    }


def test_a_table_of_which_no_column_can_be_made_is_refused_by_its_columns(world: World) -> None:
    """That nothing is left to make is no problem of its own."""
    ScriptedSource.create(world.source.path, [("id", "Array(Int64)"), ("at", "Array(DateTime)")], [])
    drop_target(world)
    assert refused(world, world.route(options=Options(create_target=True))) == {
        ("id", "types.unsupported"),
        ("at", "types.unsupported"),
    }


def test_a_window_column_that_is_not_stored_is_refused(world: World) -> None:
    """All columns are those that are stored: it would not be delivered."""
    world.source = Materialized(world.source.path)
    assert ("at", "types.source_column_kind") in refused(world, world.route())


def test_a_column_that_fits_in_neither_type_nor_nullability_is_told_both(world: World) -> None:
    world.target.execute(f"DROP TABLE {storage.table_name(SCHEMA, TABLE)}")
    world.target.add_table(
        SCHEMA, TABLE, [("id", "int", False), ("note", "int", False), ("at", "date", True)]
    )
    assert refused(world, world.route(columns=["id", "note", "at"])) == {
        ("id", "types.pair"),
        ("note", "types.pair"),
        ("note", "types.nullability"),
        ("at", "types.pair"),
    }


def test_a_server_that_was_not_made_ready_hides_nothing_and_a_plan_refuses_it_too(world: World) -> None:
    class NotReady(SqliteTarget):
        environment = "sqlserver"

        def identify(self, schema: str, table: str, *, initialise: bool, **asked: Any) -> Any:
            found = super().identify(schema, table, initialise=False, **asked)
            if initialise:
                raise ConfigurationError("dpone.target.not_initialised", "no tables of this product")
            return found

    world.target = NotReady(world.target.path)
    route = world.route(columns={"id": "hue", "colour": "note", "at": "at"})
    with pytest.raises(ConfigurationError) as caught:
        world.deliver(route=route)
    told = [(problem.where, problem.code) for problem in caught.value.problems]
    assert {("target", "dpone.target.not_initialised"), ("hue", UNKNOWN), ("colour", UNKNOWN)} <= set(told)
    plan = preview(world.source, world.target, world.target, route, DAY)
    assert [(problem.where, problem.code) for problem in plan.refusals] == told


# ---- a side that does not answer --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Silent, SilentAtTheEnd])
def test_a_silent_source_alone_can_be_tried_again(world: World, kind: type[ScriptedSource]) -> None:
    world.source = kind(world.source.path)
    for call in (
        lambda: world.deliver(),
        lambda: preview(world.source, world.target, world.target, world.route(), DAY),
    ):
        with pytest.raises(SourceUnavailable) as caught:
            call()
        assert caught.value.retry == "backoff"
    world.source = ScriptedSource(world.source.path)
    assert world.deliver().rows == 6


def test_a_silent_target_alone_can_be_tried_again(world: World) -> None:
    world.target = Busy(world.target.path)
    for source in (world.source, Silent(world.source.path)):
        world.source = source
        with pytest.raises(TargetBusy) as caught:
            world.deliver()
        assert caught.value.retry == "backoff"
        with pytest.raises(DponeError) as planned:
            preview(world.source, world.target, world.target, world.route(), DAY)
        assert planned.value.code == caught.value.code


def test_a_silent_source_is_named_with_what_is_wrong_at_the_target(world: World) -> None:
    world.source = Silent(world.source.path)
    assert refused(world, world.route(columns={"at": "at", "id": "hue"})) >= {
        ("hue", "config.unknown_column"),
        ("source", "source.unavailable"),
    }
    drop_target(world)
    assert refused(world, world.route()) == {
        (f"{SCHEMA}.{TABLE}", "target.table_missing"),
        ("source", "source.unavailable"),
    }


def test_a_silent_target_is_named_with_what_is_wrong_at_the_source(wrong: World) -> None:
    wrong.target = Busy(wrong.target.path)
    assert refused(wrong, wrong.route()) == {
        ("shop.orders", "source.mutation"),
        ("tags", "types.unsupported"),
        ("target", "target.unavailable"),
    }


def test_an_open_delivery_whose_target_is_gone_asks_no_source(world: World) -> None:
    """Its plan is frozen: what the source would refuse today stands against nothing."""

    def die(point: str) -> None:
        if point == "before_target_build_prepared":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.deliver(observer=die)
    drop_target(world)
    world.source = Silent(world.source.path)
    world.source.edit(problems=[MUTATION])
    with pytest.raises(ConfigurationError) as caught:
        world.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert [problem.code for problem in caught.value.problems] == ["dpone.target.table_missing"]
