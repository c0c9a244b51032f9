"""One journal and one route govern a target; a plan is frozen; a replaced table is not the same table."""

from __future__ import annotations

import logging
import os
from datetime import timedelta

import pytest

from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import (
    ConfigurationError,
    CustodyHeld,
    DponeError,
    Fenced,
    Incident,
    JournalError,
    LeaseHeld,
    TargetRejected,
)
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.settings import Limits, Options
from tests.fakes.source import ReadFault
from tests.fakes.world import (
    DAY,
    HOST,
    NEXT_DAY,
    SCHEMA,
    SOURCE_COLUMNS,
    START,
    TABLE,
    TARGET_COLUMNS,
    World,
    as_set,
    orders,
    requester,
)

RETRY = requester(try_number=2, ti_id="run-1-try-2")
OTHER = requester("run-2")


def stop_at(world: World, state: str) -> None:
    """A delivery that a transient error left in a state."""
    method = {
        "EXTRACTED": "create_stage",
        "STAGED": "build_prepared",
        "UNKNOWN": "read_receipt",
        "EVIDENCED": "read_receipt",
        "CHECKPOINTED": "drop_stage",
    }.get(state)
    if state == "PLANNED":
        world.source.edit(faults=[ReadFault("ends_early", 1)] * 3)
    elif state == "PREPARED":
        world.target.arm("publish", "rolled_back", "dpone.target.conflict")
    elif method:
        if state == "EVIDENCED":
            world.target.arm("read_receipt", "fine")
        world.target.arm(method, "unreachable", times=3)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == state
    world.target.disarm()


def test_a_target_that_another_journal_governs_is_refused_before_anything_is_read(world: World) -> None:
    world.deliver()
    world.journal_name = "other.db"
    migrate(world.journal_path, host=HOST)
    with pytest.raises(JournalError) as raised:
        world.deliver(OTHER)
    assert raised.value.code == "dpone.journal.not_bound_to_target"
    assert world.source.script.reads == 1
    with pytest.raises(LookupError):
        world.invocation(OTHER)


def test_a_journal_that_forgot_its_end_is_refused(world: World) -> None:
    world.deliver()
    copy = world.journal_path.read_bytes()
    world.deliver(rerun=True)
    for part in ("", "-wal", "-shm"):
        world.journal_path.with_name(world.journal_path.name + part).unlink(missing_ok=True)
    world.journal_path.write_bytes(copy)
    world.source.edit(rows=orders(2))
    with pytest.raises(JournalError) as raised:
        world.deliver(OTHER)
    assert raised.value.code == "dpone.journal.older_than_target"
    assert world.rows() == as_set(orders(6))


def test_another_route_is_refused_and_leaves_nothing_behind(world: World) -> None:
    world.deliver()
    before = len(world.target.receipts())
    with pytest.raises(ConfigurationError) as raised:
        world.deliver(OTHER, route=world.route(source_name="another_shop"))
    assert raised.value.code == "dpone.target.owned_by_other_route"
    assert "here it is 'another_shop'" in raised.value.message
    assert "set source_name to that" in raised.value.message
    assert "same source under another name, keep that name" in raised.value.next_action
    assert (len(world.target.receipts()), world.untidy()) == (before, [])
    assert world.deliver(requester("run-3")).rows == 6


def test_another_route_may_take_the_target_over_when_it_says_so(world: World) -> None:
    world.deliver()
    taking = world.route(source_name="another_shop", options=Options(take_over_target=True))
    assert world.deliver(OTHER, route=taking).rows == 6
    with pytest.raises(ConfigurationError) as raised:
        world.deliver(requester("run-3"))
    assert raised.value.code == "dpone.target.owned_by_other_route"


def test_a_route_may_gain_a_column_and_still_owns_its_target(tmp_path) -> None:
    world = World.create(tmp_path / "w")
    few = ["id", "customer", "at"]
    world.target.add_table(SCHEMA, "few", [c for c in TARGET_COLUMNS if c[0] in few])
    route = world.route(target_table=(SCHEMA, "few"), columns=few)
    world.deliver(route=route)
    world.target.execute('ALTER TABLE "dbo.few" ADD COLUMN price "blob float(53)"')
    wider = world.route(target_table=(SCHEMA, "few"), columns=[*few, "price"])
    assert world.deliver(OTHER, route=wider).rows == 6


@pytest.mark.parametrize("state", ["PLANNED", "EXTRACTED", "STAGED", "PREPARED"])
def test_a_target_that_was_replaced_before_publication_costs_a_generation_and_no_more(
    world: World, state: str
) -> None:
    """Nothing of the delivery was in the old table, so nothing is in doubt."""
    stop_at(world, state)
    world.target.recreate_table(SCHEMA, TABLE)
    with pytest.raises(TargetRejected) as raised:
        world.deliver(RETRY)
    assert (raised.value.code, raised.value.state_after) == ("dpone.target.replaced", "FAILED")
    assert world.untidy() == []
    assert world.deliver(RETRY).generation == 2
    assert world.rows() == as_set(orders(6))


@pytest.mark.parametrize("state", ["UNKNOWN", "EVIDENCED"])
def test_a_target_that_was_replaced_while_a_delivery_was_open_is_an_incident(
    world: World, state: str
) -> None:
    stop_at(world, state)
    world.target.recreate_table(SCHEMA, TABLE)
    with pytest.raises(Incident) as raised:
        world.deliver(RETRY)
    assert (raised.value.code, raised.value.state_after) == ("dpone.target.incarnation_gone", "INCIDENT")
    assert world.rows() == []
    assert world.custody().held
    with pytest.raises(Incident):
        world.deliver(requester(try_number=3, ti_id="run-1-try-3"))


def test_the_first_reason_of_an_incident_stays_readable(world: World) -> None:
    stop_at(world, "EVIDENCED")
    world.target.recreate_table(SCHEMA, TABLE)
    for number in (2, 3):
        with pytest.raises(Incident):
            world.deliver(requester(try_number=number, ti_id=f"run-1-try-{number}"))
    row = world.invocation()
    assert row.last_error_code == "dpone.target.incarnation_gone"
    assert "dropped and created again" in (row.reason or "")


def test_another_journal_in_the_same_database_does_not_collide_with_the_same_run(world: World) -> None:
    """Two Airflows, the same DAG and run, two tables: the second goes on after the first generation."""
    world.deliver()
    world.target.add_table(SCHEMA, "elsewhere", TARGET_COLUMNS)
    other = World.create(world.root / "other")
    other.target.path = world.target.path
    made = other.deliver(route=other.route(target_table=(SCHEMA, "elsewhere")))
    assert made.generation == 2
    assert len(world.target.receipts()) == 2


def test_a_target_that_was_replaced_after_the_checkpoint_does_not_block_the_cleanup(world: World) -> None:
    """Nothing is left to do but to clean up and to give the new table free."""
    stop_at(world, "CHECKPOINTED")
    world.target.recreate_table(SCHEMA, TABLE)
    assert world.deliver(RETRY).resumed_from == "CHECKPOINTED"
    assert world.untidy() == []


def test_a_target_that_is_replaced_between_verification_and_publication_keeps_its_rows(world: World) -> None:
    def replace_it(point: str) -> None:
        if point == "before_target_publish":
            world.target.recreate_table(SCHEMA, TABLE)
            world.target.insert(SCHEMA, TABLE, orders(1, first=77))

    with pytest.raises(DponeError):
        world.deliver(observer=replace_it)
    assert world.rows() == as_set(orders(1, first=77))
    assert world.target.receipts() == []


def test_a_replaced_target_is_a_new_table_for_the_next_delivery(world: World) -> None:
    world.deliver()
    world.target.recreate_table(SCHEMA, TABLE)
    result = world.deliver(OTHER)
    assert (result.rows, result.deleted_rows) == (6, 0)
    assert world.rows() == as_set(orders(6))


def test_a_column_that_is_added_after_the_plan_stops_the_publication(world: World) -> None:
    stop_at(world, "PREPARED")
    world.target.execute('ALTER TABLE "dbo.orders" ADD COLUMN extra "blob int"')
    with pytest.raises(DponeError):
        world.deliver(RETRY)
    assert world.rows() == []
    assert world.target.receipts() == []


def test_a_changed_configuration_is_planned_anew_while_nothing_was_extracted(world: World) -> None:
    world.source.edit(rows=[*orders(6), *orders(2, first=7, day=1)])
    stop_at(world, "PLANNED")
    first = world.invocation()
    both = Window(START, START + timedelta(days=2))
    result = world.deliver(RETRY, window=both)
    assert (result.generation, result.rows, result.window) == (2, 8, both.key)
    with world.open_journal() as journal:
        assert journal.invocation(first.invocation_key).state == "RETIRED"
    assert world.untidy() == []


def test_the_same_configuration_is_not_planned_anew(world: World) -> None:
    stop_at(world, "PLANNED")
    assert world.deliver(RETRY).generation == 1


@pytest.mark.parametrize("state", ["EXTRACTED", "STAGED", "PREPARED", "UNKNOWN"])
def test_a_configuration_that_changes_later_does_not_change_the_open_delivery(
    world: World, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    stop_at(world, state)
    with caplog.at_level(logging.WARNING, "airflow_dpone"):
        result = world.deliver(RETRY, window=NEXT_DAY)
    assert (result.generation, result.window) == (1, DAY.key)
    assert world.rows() == as_set(orders(6))
    if state != "UNKNOWN":
        assert "plan_changed" in caplog.text
        assert "window" in caplog.text


def test_newer_limits_are_used_by_an_open_delivery_and_journaled(world: World) -> None:
    stop_at(world, "PLANNED")
    world.limits = Limits(max_rows=2)
    result = world.deliver(RETRY)
    assert (result.generation, result.chunks) == (1, 3)
    tuned = [e.body["payload"]["limits"]["max_rows"] for e in world.events() if e.event == "TUNED"]
    assert tuned == [2]


def test_a_schema_that_changes_in_the_source_before_extraction_is_planned_anew(world: World) -> None:
    stop_at(world, "PLANNED")
    rows = [[*row, 1] for row in orders(6)]
    world.source.edit(columns=[*SOURCE_COLUMNS, ("more", "Int32")], rows=rows)
    names = [name for name, _ in SOURCE_COLUMNS]
    assert world.deliver(RETRY, route=world.route(columns=names)).generation == 2


def test_a_source_table_that_was_replaced_before_extraction_is_planned_anew(world: World) -> None:
    """The same columns, another table: the old plan would refuse to read it for ever."""
    stop_at(world, "PLANNED")
    world.source.edit(uuid="5f0f3c1a-0000-4000-8000-00000000000f")
    assert world.deliver(RETRY).generation == 2


def test_a_task_may_not_change_its_target_while_it_holds_the_old_one(world: World) -> None:
    stop_at(world, "STAGED")
    world.target.add_table(SCHEMA, "elsewhere", TARGET_COLUMNS)
    with pytest.raises(ConfigurationError) as raised:
        world.deliver(RETRY, route=world.route(target_table=(SCHEMA, "elsewhere")))
    assert raised.value.code == "dpone.config.target_changed_while_held"
    assert world.custody().held
    assert world.deliver(RETRY).resumed_from == "STAGED"


def test_a_second_delivery_meets_the_holder_by_name_and_touches_nothing(world: World) -> None:
    stop_at(world, "STAGED")
    calls, reads = world.target.calls(), world.source.script.reads
    with pytest.raises(CustodyHeld) as raised:
        world.deliver(OTHER)
    assert raised.value.fields["holder"]["run_id"] == "run-1"
    assert raised.value.state_after is None
    assert world.target.calls()[len(calls) :] == ["identify"]
    assert world.source.script.reads == reads
    with pytest.raises(LookupError):
        world.invocation(OTHER)


@pytest.mark.parametrize(
    "point", ["before_source_read", "before_writer_write", "before_target_publish", "before_spool_discard"]
)
def test_a_second_process_of_the_same_try_is_told_who_works_and_touches_nothing(
    world: World, point: str
) -> None:
    """A double start. This process is alive, so the lease counts."""
    refused: list[LeaseHeld] = []

    def start_again(passed: str) -> None:
        if passed == point and not refused:
            calls = world.target.calls()
            with pytest.raises(LeaseHeld) as raised:
                World(world.root).deliver()
            refused.append(raised.value)
            assert world.target.calls()[len(calls) :] == ["identify"]

    assert world.deliver(observer=start_again).rows == 6
    owner = refused[0].fields["owner"]
    assert (owner["pid"], owner["task_id"], owner["try_number"]) == (os.getpid(), "deliver_orders", 1)
    assert 0 < refused[0].fields["expires_in_sec"] <= 60
    assert refused[0].state_after is None


@pytest.mark.parametrize(
    "point",
    [
        "before_source_read",
        "after_chunk_seal",
        "before_writer_write",
        "before_target_publish",
        "after_target_publish",
    ],
)
def test_a_higher_try_takes_over_at_once_and_the_first_one_is_fenced(world: World, point: str) -> None:
    taken: list[str | None] = []

    def take_over(passed: str) -> None:
        if passed == point and not taken:
            taken.append(World(world.root).deliver(RETRY).resumed_from)

    with pytest.raises(Fenced):
        world.deliver(observer=take_over)
    assert len(taken) == 1
    assert world.rows() == as_set(orders(6))
    assert [row[1] for row in world.target.receipts()] == [1]
    assert world.untidy() == []
    assert world.invocation().state == "COMPLETED"


def test_two_windows_of_one_target_are_delivered_one_after_the_other(world: World) -> None:
    world.source.edit(rows=[*orders(6), *orders(3, first=7, day=1)])

    def another_run(passed: str) -> None:
        if passed == "before_target_publish":
            with pytest.raises(CustodyHeld):
                World(world.root).deliver(OTHER, window=NEXT_DAY)

    world.deliver(observer=another_run)
    world.deliver(OTHER, window=NEXT_DAY)
    assert world.rows() == as_set([*orders(6), *orders(3, first=7, day=1)])


def test_windows_of_one_route_have_checkpoints_of_their_own_and_a_backfill_raises_its_revision(
    world: World,
) -> None:
    first = world.deliver()
    second = world.deliver(OTHER)
    third = world.deliver(requester("run-3"), window=NEXT_DAY)
    found = [world.checkpoint(result) for result in (first, third)]
    assert [row.revision if row else None for row in found] == [2, 1]
    assert found[0] is not None
    assert found[0].receipt_sha256 == second.receipt_sha256
