"""The ways out that a person decides: adopting a target, and giving a delivery up."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery.recovery import Recovery, adopt_target, retire
from airflow_dpone.errors import (
    ConfigurationError,
    CustodyHeld,
    DponeError,
    Incident,
    JournalError,
    LeaseHeld,
    TargetBusy,
)
from airflow_dpone.journal.migrate import migrate
from tests.fakes import target_storage
from tests.fakes.world import HOST, NEXT_DAY, SCHEMA, TABLE, World, as_set, order, orders, requester

CLEARED = {"try_number": 2, "ti_id": "run-1-try-2", "max_tries": 4}


class Died(BaseException):
    """The process ends here."""


def adopt(world: World, **how: Any) -> Recovery:
    with world.open_journal() as journal:
        return adopt_target(world.ports(journal, **how.pop("ports", {})), SCHEMA, TABLE, **how)


def give_up(world: World, key: str | None = None, **how: Any) -> Recovery:
    key = key or world.invocation().invocation_key
    with world.open_journal() as journal:
        return retire(world.ports(journal, **how.pop("ports", {})), key, **how)


def image(world: World) -> bytes:
    """The journal's database as it is now."""
    with closing(sqlite3.connect(world.journal_path)) as journal:
        return journal.serialize()


def put_back(world: World, copy: bytes) -> None:
    """The journal is an older copy of itself."""
    for suffix in ("", "-wal", "-shm"):
        world.journal_path.with_name(world.journal_path.name + suffix).unlink(missing_ok=True)
    world.journal_path.write_bytes(copy)
    free_lease(world)


def free_lease(world: World) -> None:
    """The lease is over: its process is long gone."""
    with target_storage.session(world.journal_path) as journal:
        journal.execute("UPDATE dpone_lease SET expires_at = '2000-01-01T00:00:00.000000Z'")


def receipts(world: World) -> list[tuple[int, str]]:
    """(generation, operation id) of every publication."""
    return [(row[1], row[2]) for row in world.target.receipts()]


# ---- a journal that lost its end ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lost_ends(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, list[tuple[str, bytes]]]:
    """A delivered world, and its journal after each of its transactions."""
    world = World.create(tmp_path_factory.mktemp("lost") / "world")
    copies: list[tuple[str, bytes]] = []

    def copy_after_each(point: str) -> None:
        if point.startswith("after_journal_"):
            copies.append((str(point), image(world)))

    world.deliver(observer=copy_after_each)
    return world, copies[:-1]  # the last one is the whole journal


def test_a_journal_that_lost_its_last_k_transactions_has_a_way_out_for_every_k(
    lost_ends: tuple[World, list[tuple[str, bytes]]], tmp_path: Path
) -> None:
    """[C5] Named at admission; adopted, it goes on, and the rows are exactly the source's."""
    delivered, copies = lost_ends
    assert len(copies) > 20
    outcomes: Counter[str] = Counter()
    for number, (_, copy) in enumerate(copies):
        world = delivered.copy(tmp_path / f"k{number}")
        put_back(world, copy)
        try:
            world.deliver(requester(**CLEARED))
            outcomes["went on"] += 1
        except JournalError as error:
            outcomes[error.code.rpartition(".")[2]] += 1
            rows_before, done = world.rows(), adopt(world)
            assert done.done
            assert world.rows() == rows_before
            state = done.delivery.state_after if done.delivery else "none"
            outcomes[f"adopted, {state}"] += 1
            world.deliver(requester(**CLEARED))
        assert world.rows() == as_set(orders(6))
        assert len(receipts(world)) == len(set(receipts(world)))
        assert world.target.stages == []
        assert world.untidy() == []
    assert set(outcomes) == {
        "went on",
        "older_than_target",
        "adopted, none",  # before the plan: generation 1 has its receipt, generation 2 is delivered
        "adopted, RETIRED",  # published, and the journal has lost the proof
        "adopted, PUBLISHED",  # only the send was lost: the one receipt is found and kept
    }


def test_a_publication_that_only_the_target_remembers_is_kept_with_its_one_receipt(world: World) -> None:
    copies: list[bytes] = []

    def copy_it(point: str) -> None:
        if point == "before_journal_raise_fence":
            copies.append(image(world))

    world.deliver(observer=copy_it)
    before = receipts(world)
    put_back(world, copies[0])
    with pytest.raises(JournalError) as raised:
        world.deliver(requester(**CLEARED))
    assert raised.value.code == "dpone.journal.older_than_target"
    assert "recovery adopt-target" in raised.value.next_action
    done = adopt(world)
    assert (done.delivery.state_before, done.delivery.state_after) == ("PREPARED", "PUBLISHED")
    result = world.deliver(requester(**CLEARED))
    assert (result.generation, receipts(world)) == (1, before)
    assert world.checkpoint(result).receipt_sha256 == result.receipt_sha256


def test_what_was_open_in_an_old_copy_is_never_published_later(world: World) -> None:
    """The old copy thinks that its extraction is the newest; meanwhile fresher rows were delivered."""
    copies: list[bytes] = []

    def copy_it(point: str) -> None:
        if point == "before_target_publish" and not copies:
            copies.append(image(world))
            raise Died

    with pytest.raises(Died):
        world.deliver(observer=copy_it)
    give_up(world, key=world.invocation().invocation_key)
    world.source.edit(rows=orders(9))
    world.deliver(requester("run-2"))
    put_back(world, copies[0])
    with pytest.raises(JournalError):
        world.deliver(requester(**CLEARED))
    assert adopt(world).delivery.state_after == "RETIRED"
    assert world.rows() == as_set(orders(9))
    world.deliver(requester(**CLEARED))
    assert world.rows() == as_set(orders(9))
    assert world.untidy() == []


# ---- another journal ---------------------------------------------------------------------------------------


def test_a_new_journal_stops_at_admission_and_takes_over_by_command(world: World) -> None:
    world.deliver()
    world.journal_name = "new.db"
    migrate(world.journal_path, host=HOST)
    reads = world.source.script.reads
    with pytest.raises(JournalError) as raised:
        world.deliver(requester("run-2"))
    assert raised.value.code == "dpone.journal.not_bound_to_target"
    assert "recovery adopt-target" in raised.value.next_action
    assert world.source.script.reads == reads
    told = adopt(world, dry_run=True)
    assert (told.needed, told.done, told.fence) == (True, False, None)
    done = adopt(world)
    assert (done.journal_before, done.fence_before) == (told.journal_before, told.fence_before)
    assert done.fence == done.fence_before + 1
    world.source.edit(rows=orders(8))
    assert world.deliver(requester("run-2")).rows == 8
    assert world.rows() == as_set(orders(8))
    assert not adopt(world).needed
    world.journal_name = "journal.db"
    with pytest.raises(JournalError):  # the old one may not publish any more
        world.deliver(requester("run-3"))


def test_a_late_send_of_the_journal_before_comes_to_nothing(world: World) -> None:
    world.target.insert(SCHEMA, TABLE, [order(900)])
    world.target.arm("publish", "held_back")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError):
        world.deliver()
    world.journal_name = "new.db"
    migrate(world.journal_path, host=HOST)
    assert adopt(world).done
    assert [late.kind for late in world.target.let_late_sends_arrive()] == ["rolled_back"]
    assert world.rows() == as_set([order(900)])


def test_nothing_to_adopt_and_nothing_to_do(world: World) -> None:
    with pytest.raises(ConfigurationError) as raised:
        adopt(world)
    assert raised.value.code == "dpone.recovery.nothing_to_adopt"
    world.deliver()
    told = adopt(world)
    assert (told.needed, told.done) == (False, False)


def test_nobody_is_pushed_aside(world: World) -> None:
    """A live worker is never replaced by a command."""
    refused: list[type[DponeError]] = []

    def try_both(point: str) -> None:
        if point == "before_writer_write" and not refused:
            twin = World(world.root)
            with pytest.raises(LeaseHeld) as raised:
                give_up(twin)
            refused.append(type(raised.value))

    world.deliver(observer=try_both)
    assert refused == [LeaseHeld]
    assert world.rows() == as_set(orders(6))


# ---- giving a delivery up ----------------------------------------------------------------------------------


def stop_before(world: World, point: str) -> None:
    """The process dies there."""

    def die(passed: str) -> None:
        if passed == point:
            raise Died

    with pytest.raises(Died):
        world.deliver(observer=die)


STOPS = {
    "before_source_read": "PLANNED",
    "before_target_create_stage": "EXTRACTED",
    "before_writer_write": "EXTRACTED",
    "before_target_verify_stage": "EXTRACTED",
    "before_target_build_prepared": "STAGED",
    "before_journal_raise_fence": "PREPARED",
    "before_target_publish": "PUBLISHING",
}


@pytest.mark.parametrize(("point", "state"), STOPS.items())
def test_an_unfinished_delivery_can_be_given_up_in_every_state(world: World, point: str, state: str) -> None:
    world.target.insert(SCHEMA, TABLE, [order(900)])
    stop_before(world, point)
    assert world.invocation().state == state
    dry = give_up(world, dry_run=True)
    assert (dry.done, dry.delivery.state_after) == (False, state)
    done = give_up(world)
    assert (done.done, done.delivery.state_before, done.delivery.state_after) == (True, state, "RETIRED")
    assert world.rows() == as_set([order(900)])
    assert world.untidy() == []
    with pytest.raises(ConfigurationError) as raised:
        give_up(world)
    assert raised.value.code == "dpone.recovery.nothing_to_retire"
    assert world.deliver().generation == 2
    assert world.rows() == as_set(orders(6))


def test_a_publication_that_was_effective_after_all_is_kept(world: World) -> None:
    world.target.arm("publish", "lost_answer")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == "UNKNOWN"
    done = give_up(world)
    assert done.delivery.state_after == "PUBLISHED"
    result = world.deliver()
    assert (result.generation, result.resumed_from) == (1, "PUBLISHED")
    assert receipts(world) == [(1, result.operation_id)]
    assert world.untidy() == []


def test_a_send_that_comes_after_its_delivery_was_given_up_changes_nothing(world: World) -> None:
    world.target.arm("publish", "held_back")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError):
        world.deliver()
    assert give_up(world).delivery.state_after == "RETIRED"
    assert [late.kind for late in world.target.let_late_sends_arrive()] == ["rolled_back"]
    assert world.rows() == []
    assert world.deliver().generation == 2


def replaced(world: World) -> None:
    world.target.arm("publish", "never_sent")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError):
        world.deliver()
    world.target.recreate_table(SCHEMA, TABLE)


def receipt_removed(world: World) -> None:
    world.target.arm("publish", "lost_answer")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError):
        world.deliver()
    world.target.execute('DELETE FROM "dpone.delivery_receipt"')


def half_committed(world: World) -> None:
    world.target.arm("publish", "half_committed")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError):
        world.deliver()


@pytest.mark.parametrize("cause", [replaced, receipt_removed, half_committed], ids=lambda f: f.__name__)
def test_an_incident_ends_by_giving_the_delivery_up(world: World, cause: Callable[[World], None]) -> None:
    cause(world)
    for _ in range(2):  # clearing does not help
        with pytest.raises(Incident):
            world.deliver()
    with pytest.raises(CustodyHeld, match="recovery retire"):
        world.deliver(requester("run-2"))
    assert give_up(world).delivery.state_after == "RETIRED"
    assert world.untidy() == []
    world.source.edit(rows=orders(7))
    assert world.deliver().generation == 2
    assert world.rows() == as_set(orders(7))
    assert world.untidy() == []


def test_a_table_that_is_not_ours_stays_and_is_named(world: World) -> None:
    """Somebody made a table under the name of a stage of ours."""
    stop_before(world, "after_target_create_stage")
    name = world.target.stages[0]
    world.target.execute("UPDATE \"dpone.stage_mark\" SET owner = 'somebody'")
    with pytest.raises(Incident):
        world.deliver()
    assert [event.event for event in world.events()][-1] == "INCIDENT_RETAINED"
    done = give_up(world)
    assert (done.delivery.state_after, world.target.stages) == ("RETIRED", [name])
    assert world.deliver().generation == 2
    assert world.target.stages == [name]


def test_a_target_that_lost_its_own_memory(world: World) -> None:
    """The tables of the product were dropped: another installation, so the delivery is of no target here."""
    stop_before(world, "before_target_publish")
    for name in ("installation", "target_gate", "delivery_receipt"):
        world.target.execute(f'DROP TABLE "dpone.{name}"')
    with pytest.raises(ConfigurationError) as raised:
        world.deliver()
    assert raised.value.code == "dpone.config.target_changed_while_held"
    assert "recovery retire" in raised.value.next_action
    with pytest.raises(ConfigurationError) as raised:
        give_up(world)
    assert raised.value.code == "dpone.recovery.target_unknown"
    assert give_up(world, target_lost=True).delivery.state_after == "RETIRED"
    assert world.target.stages == []
    assert world.deliver().generation == 2
    assert world.rows() == as_set(orders(6))


def test_ended_deliveries_and_unknown_ones_are_not_given_up(world: World) -> None:
    world.deliver()
    for key in (world.invocation().invocation_key, "00" * 32):
        with pytest.raises(ConfigurationError) as raised:
            give_up(world, key)
        assert raised.value.code == "dpone.recovery.nothing_to_retire"


def stop_published(world: World, state: str) -> None:
    """A delivery whose rows are visible, and whose process died in this state."""

    def die(_: str) -> None:
        if world.target.receipts() and world.invocation().state == state:
            raise Died

    with pytest.raises(Died):
        world.deliver(observer=die)
    assert world.invocation().state == state


@pytest.mark.parametrize("state", ["PUBLISHING", "PUBLISHED", "EVIDENCED"])
def test_a_published_delivery_whose_table_was_made_again_can_be_given_up(world: World, state: str) -> None:
    """Its receipt is there, its rows are not: nothing may say that they are."""
    stop_published(world, state)
    world.target.recreate_table(SCHEMA, TABLE)
    with pytest.raises(Incident):
        world.deliver(requester(**CLEARED))
    assert give_up(world).delivery.state_after == "RETIRED"
    assert world.untidy() == []
    assert world.deliver(requester(**CLEARED)).generation == 2
    assert world.rows() == as_set(orders(6))


@pytest.mark.parametrize("state", ["PUBLISHED", "EVIDENCED"])
def test_a_published_delivery_that_a_clear_can_finish_stays_published(world: World, state: str) -> None:
    stop_published(world, state)
    free_lease(world)
    assert give_up(world).delivery.state_after == "PUBLISHED"
    result = world.deliver(requester(**CLEARED))
    assert receipts(world) == [(1, result.operation_id)]
    assert world.untidy() == []


@pytest.mark.parametrize("state", ["PUBLISHED", "EVIDENCED", "CHECKPOINTED"])
def test_a_published_delivery_whose_target_is_lost_can_be_given_up(world: World, state: str) -> None:
    stop_published(world, state)
    for name in ("installation", "target_gate", "delivery_receipt"):
        world.target.execute(f'DROP TABLE "dpone.{name}"')
    free_lease(world)
    with pytest.raises(ConfigurationError):
        give_up(world)
    after = "COMPLETED" if state == "CHECKPOINTED" else "RETIRED"
    assert give_up(world, target_lost=True).delivery.state_after == after
    assert world.target.stages == []
    assert world.deliver(requester(**CLEARED)).generation == 2
    assert world.rows() == as_set(orders(6))


def test_a_strange_table_does_not_keep_a_delivered_window_from_its_end(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    stop_published(world, "CHECKPOINTED")
    name = world.target.stages[0]
    world.target.execute("UPDATE \"dpone.stage_mark\" SET owner = 'somebody' WHERE name = ?", [name])
    assert world.deliver(requester(**CLEARED)).state == "COMPLETED"
    assert world.target.stages == [name]
    assert name in caplog.text
    assert not world.custody().held
    assert world.spool_files() == []


def test_a_target_that_does_not_answer_leaves_everything_as_it_is(world: World) -> None:
    stop_before(world, "before_target_publish")
    world.target.arm("adopt_gate", "unreachable")
    with pytest.raises(TargetBusy):
        give_up(world)
    with pytest.raises(Incident) as raised:
        world.deliver(requester(**CLEARED))
    assert raised.value.fields["reason"] == "dpone.recovery.begun"
    assert give_up(world).delivery.state_after == "RETIRED"
    assert world.deliver(requester(**CLEARED)).generation == 2


# ---- the commands may die too ------------------------------------------------------------------------------


def _points_of(world: World, act: Callable[..., Recovery]) -> list[str]:
    passed: list[str] = []
    act(world, ports={"observer": lambda point: passed.append(str(point))})
    return passed


@pytest.mark.parametrize("effective", [True, False], ids=["published", "not published"])
@pytest.mark.parametrize("command", ["retire", "adopt"])
def test_a_command_that_dies_at_any_point_ends_when_it_is_repeated(
    world: World, tmp_path: Path, command: str, effective: bool
) -> None:
    stop_before(world, "before_target_build_prepared" if command == "adopt" else "before_journal_raise_fence")
    old = image(world)
    world.target.arm("publish", "lost_answer" if effective else "never_sent")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError):
        world.deliver(requester(**CLEARED))
    if command == "adopt":
        put_back(world, old)
    # The old journal never heard of the prepared table; nothing says whose it is, so it stays.
    orphans = [name for name in world.target.stages if name.startswith("p_")] if command == "adopt" else []
    act = {"adopt": adopt, "retire": give_up}[command]
    points = _points_of(world.copy(tmp_path / "recorded"), act)
    assert len(points) > 8
    for number in range(len(points)):
        copy = world.copy(tmp_path / f"died-{number}")
        passed: list[str] = []

        def die(point: str, passed: list[str] = passed, number: int = number) -> None:
            passed.append(point)
            if len(passed) > number:
                raise Died

        with pytest.raises(Died):
            act(copy, ports={"observer": die})
        free_lease(copy)
        done = points[number].startswith(("before_journal_release", "after_journal_release"))
        if copy.invocation().state not in ("RETIRED", "PUBLISHED") or (command == "adopt" and not done):
            again = act(copy)
            assert again.done or not again.needed
        copy.deliver(requester(**CLEARED))
        assert copy.rows() == as_set(orders(6))
        assert len(receipts(copy)) == len(set(receipts(copy)))
        assert copy.untidy() == [f"stage {name}" for name in orphans]


def test_another_window_is_not_touched(world: World) -> None:
    world.source.edit(rows=[*orders(6), order(50, day=1)])
    world.deliver()
    world.target.arm("publish", "never_sent")
    world.target.arm("probe", "unreachable")
    with pytest.raises(DponeError):
        world.deliver(requester("run-2"), window=NEXT_DAY)
    give_up(world, world.invocation(requester("run-2")).invocation_key)
    assert world.rows() == as_set(orders(6))
