"""Options about obstacles of a target table, and the proof of what was inserted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.plan_preview import preview
from airflow_dpone.delivery.planning import FrozenPlan
from airflow_dpone.errors import ConfigurationError, Problem, TargetRejected
from airflow_dpone.settings import Options, Quality
from tests.fakes import target_storage as storage
from tests.fakes.target import SqliteTarget
from tests.fakes.world import DAY, SCHEMA, SOURCE_COLUMNS, TABLE, World, requester

TRIGGER = Problem("dpone.target.trigger", "dbo.orders", "trigger late may change what is stored")
FIXED = Problem("dpone.target.trigger", "dbo.orders", "trigger instead decides what is stored")
OPTIONS = ("after_image_digest", "allow_triggers", "allow_referenced_target")


def evidence_of(world: World, sha256: str) -> dict[str, Any]:
    with world.open_journal() as journal:
        found: dict[str, Any] = json.loads(journal.evidence(sha256) or b"{}")
    return found


def publishing(world: World) -> dict[str, Any]:
    (found,) = [event.body["payload"] for event in world.events() if event.event == "PUBLISHING"]
    return dict(found)


@pytest.mark.parametrize("option", ["after_image_digest", "allow_triggers"])
def test_the_evidence_has_the_hash_of_the_window_when_it_was_asked_for(world: World, option: str) -> None:
    """[A16] [E3] Where triggers are allowed, it is always asked for."""
    world.options = Options(**{option: True})
    document = evidence_of(world, world.deliver().evidence_sha256)
    assert document["after_image"] == document["prepared"]
    assert document["target_options"] == [option]
    assert publishing(world)["after_image_digest"] is True


def test_without_the_options_no_document_changes(world: World) -> None:
    document = evidence_of(world, world.deliver().evidence_sha256)
    assert document["after_image"] == {"n": 6, "limbs": None}
    assert "target_options" not in document
    assert "after_image_digest" not in publishing(world)
    planned = next(e for e in world.events() if e.event == "PLANNED").body["payload"]
    assert not set(OPTIONS) & set(planned["tuning"])


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_is_stored_when_it_is_set_and_changes_no_key(world: World, option: str) -> None:
    world.options = Options(**{option: True})
    key = world.deliver().invocation_key
    planned = next(e for e in world.events() if e.event == "PLANNED").body["payload"]
    assert planned["tuning"][option] is True
    plan = FrozenPlan.from_json(planned)
    assert plan.to_json() == planned
    assert replace(plan, options=Options()).invocation_key == key


@pytest.fixture
def guarded(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A table with a trigger that an option lets through."""
    described = SqliteTarget.describe

    def describe(target: SqliteTarget, schema: str, table: str) -> tr.TargetTable:
        return replace(
            described(target, schema, table), problems=(TRIGGER,), waivers=(("allow_triggers", TRIGGER),)
        )

    monkeypatch.setattr(SqliteTarget, "describe", describe)
    return world


def test_an_obstacle_is_refused_until_its_option_lets_it_through(guarded: World) -> None:
    guarded.options = Options(after_image_digest=True, allow_referenced_target=True)
    with pytest.raises(ConfigurationError) as raised:
        guarded.deliver()
    assert list(raised.value.problems) == [TRIGGER]
    guarded.options = Options(allow_triggers=True)
    assert guarded.deliver().rows == 6


def test_an_obstacle_without_an_option_stays_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    described = SqliteTarget.describe
    monkeypatch.setattr(
        SqliteTarget,
        "describe",
        lambda target, *names: replace(
            described(target, *names), problems=(TRIGGER, FIXED), waivers=(("allow_triggers", TRIGGER),)
        ),
    )
    world.options = Options(allow_triggers=True)
    with pytest.raises(ConfigurationError) as raised:
        world.deliver()
    assert list(raised.value.problems) == [FIXED]


OPEN = ["after_journal_append", "before_target_create_stage", "before_target_build_prepared"]


@pytest.mark.parametrize("point", OPEN)
def test_an_obstacle_that_came_after_admission_ends_the_delivery_before_anything_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """[E3] A trigger that nobody let through would change rows that nobody hashes."""
    described, seen = SqliteTarget.describe, list[str]()

    def describe(target: SqliteTarget, *names: str) -> tr.TargetTable:
        now = described(target, *names)
        return replace(now, problems=(TRIGGER,), waivers=(("allow_triggers", TRIGGER),)) if seen else now

    monkeypatch.setattr(SqliteTarget, "describe", describe)
    with pytest.raises(ConfigurationError) as raised:
        world.deliver(observer=lambda passed: seen.append(passed) if passed == point else None)
    assert list(raised.value.problems) == [TRIGGER]
    assert raised.value.state_after == "FAILED"
    assert "publish" not in world.target.calls()
    assert world.untidy() == []
    world.options = Options(allow_triggers=True)
    retry = requester(try_number=2, ti_id="run-1-try-2")
    assert evidence_of(world, world.deliver(retry).evidence_sha256)["target_options"] == ["allow_triggers"]


@pytest.mark.parametrize(
    "point", ["before_target_create_stage", "before_target_build_prepared", "before_target_publish"]
)
def test_an_option_that_is_taken_back_is_not_in_force_any_more(guarded: World, point: str) -> None:
    """Options are tuning: the newest counts, also for a delivery that is open."""

    class Stopped(BaseException):
        """The process ends here."""

    def stop(passed: str) -> None:
        if passed == point:
            raise Stopped

    guarded.options = Options(allow_triggers=True)
    with pytest.raises(Stopped):
        guarded.deliver(observer=stop)
    guarded.options = Options()
    with pytest.raises(ConfigurationError) as raised:
        guarded.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert list(raised.value.problems) == [TRIGGER]
    assert (raised.value.state_after, guarded.untidy()) == ("FAILED", [])
    assert "publish" not in guarded.target.calls()


def test_a_plan_names_what_is_let_through(guarded: World) -> None:
    route = guarded.route(options=Options(allow_triggers=True))
    plan = preview(guarded.source, guarded.target, guarded.target, route, DAY)
    assert not plan.refusals
    assert any("options.allow_triggers" in warning and "late" in warning for warning in plan.warnings)


def test_a_plan_shows_the_hash_of_the_after_image(world: World) -> None:
    shown = {
        proves: set(preview(world.source, world.target, world.target, route, DAY).statements)
        for proves in (False, True)
        for route in [world.route(options=Options(after_image_digest=proves))]
    }
    assert shown[True] - shown[False] == {"hash_window"}


def test_a_plan_refuses_what_a_delivery_refuses(world: World) -> None:
    """A misspelt window column is not another route of a target that is owned."""
    world.deliver()
    route = world.route(window_column="att")
    plan = preview(world.source, world.target, world.target, route, DAY)
    with pytest.raises(ConfigurationError) as raised:
        world.deliver(requester("other"), route=route)
    assert list(plan.refusals) == list(raised.value.problems)
    assert "dpone.target.owned_by_other_route" not in {problem.code for problem in plan.refusals}


# ---- columns that nothing feeds ---------------------------------------------------------------------------


def test_a_column_that_is_left_out_takes_its_default(world: World) -> None:
    """[E5] The source has columns of these names; they are not delivered."""
    world.options = Options(unmapped_columns=("note", "ref"))
    document = evidence_of(world, world.deliver().evidence_sha256)
    assert document["target_options"] == ["unmapped_columns"]
    assert {row[5:7] for row in world.rows()} == {(None, None)}
    assert len(world.rows()) == 6
    planned = next(e for e in world.events() if e.event == "PLANNED").body["payload"]
    assert planned["tuning"]["unmapped_columns"] == ["note", "ref"]
    assert "note" not in [column["target"] for column in planned["columns"]]
    plan = FrozenPlan.from_json(planned)
    assert (plan.to_json(), plan.options.unmapped_columns) == (planned, ("note", "ref"))


def test_what_is_wrong_with_columns_that_are_left_out_is_told_at_once(world: World) -> None:
    world.options = Options(unmapped_columns=("nota", "at"))
    with pytest.raises(ConfigurationError) as raised:
        world.deliver()
    told = [(problem.where, problem.message.split(";")[0]) for problem in raised.value.problems]
    assert [where for where, _ in told] == ["nota", "options.unmapped_columns"]
    assert "at is the window column" in told[1][1]
    columns = [name for name, _ in SOURCE_COLUMNS]
    route = world.route(columns=columns, options=Options(unmapped_columns=("note",)))
    with pytest.raises(ConfigurationError, match="note is delivered by this route"):
        world.deliver(requester("other"), route=route)


def test_a_column_without_null_and_default_cannot_be_left_out(world: World) -> None:
    """[E5] Else the whole window would be loaded before the server refuses the first row."""
    world.options = Options(unmapped_columns=("id", "note"))
    with pytest.raises(ConfigurationError) as raised:
        world.deliver()
    assert [problem.where for problem in raised.value.problems] == ["options.unmapped_columns"]
    assert "id takes no NULL and has no default" in raised.value.message
    assert world.source.script.reads == 0


def test_a_check_of_a_column_that_is_left_out_is_refused_before_anything_is_read(world: World) -> None:
    world.options = Options(unmapped_columns=("note",))
    world.quality = Quality(not_null=["note", "id"], unique=[["id", "note"]])
    with pytest.raises(ConfigurationError) as raised:
        world.deliver()
    told = [(problem.where, problem.message.split(",")[0]) for problem in raised.value.problems]
    assert told == [
        ("quality: not_null(note)", "asks about note"),
        ("quality: unique(id, note)", "asks about note"),
    ]


@pytest.mark.parametrize("point", ["before_target_create_stage", "before_target_publish"])
def test_a_column_that_is_not_left_out_any_more_is_not_emptied(world: World, point: str) -> None:
    """[E5] The newest options count, also for a delivery that is open."""

    class Stopped(BaseException):
        """The process ends here."""

    def stop(passed: str) -> None:
        if passed == point:
            raise Stopped

    world.options = Options(unmapped_columns=("note",))
    with pytest.raises(Stopped):
        world.deliver(observer=stop)
    world.options = Options()
    with pytest.raises(ConfigurationError) as raised:
        world.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert [(p.code, p.where) for p in raised.value.problems] == [
        ("dpone.types.unmapped_target_column", "note")
    ]
    assert (raised.value.state_after, world.untidy()) == ("FAILED", [])


def test_a_column_that_is_left_out_is_no_difference(world: World) -> None:
    """It was there when the plan was made; another one is new."""

    class Stopped(BaseException):
        """The process ends here."""

    def stop(passed: str) -> None:
        if passed == "before_target_create_stage":
            raise Stopped

    world.options = Options(unmapped_columns=("note",))
    with pytest.raises(Stopped):
        world.deliver(observer=stop)
    name = storage.table_name(SCHEMA, TABLE)
    world.target.execute(f'ALTER TABLE {name} ADD COLUMN added "blob int"')
    with pytest.raises(TargetRejected) as raised:
        world.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert "added is new (int NULL)." in raised.value.message
    assert "note" not in raised.value.message


def test_a_column_that_the_server_writes_may_be_left_to_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[E5] Only the problems of that very column, and only those of a column that would be written."""
    described = SqliteTarget.describe
    written = Problem("dpone.target.generated_column", "ref", "is written by the server")
    other = Problem("dpone.target.generated_column", "note", "is written by the server")
    policy = Problem("dpone.target.row_policy", "ref", "a policy of a table that is named like a column")
    monkeypatch.setattr(
        SqliteTarget,
        "describe",
        lambda target, *names: replace(described(target, *names), problems=(written, other, policy)),
    )
    world.options = Options(unmapped_columns=("ref",))
    with pytest.raises(ConfigurationError) as raised:
        world.deliver()
    assert list(raised.value.problems) == [other, policy]
