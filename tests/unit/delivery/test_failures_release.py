"""A failure that touched nothing does not block the target; one that may be over in a minute is resumed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.errors import DponeError, Fenced
from airflow_dpone.settings import Limits, Options, Quality, RowCount
from tests.fakes.source import ReadFault
from tests.fakes.target_storage import table_name
from tests.fakes.world import SCHEMA, TABLE, World, as_set, order, orders, requester

OTHER = requester("run-2")
LAST_TRY = requester(try_number=3, ti_id="run-1-try-3", max_tries=2)


def nan(world: World) -> None:
    world.source.edit(rows=[*orders(5), order(6, price=float("nan"))])


def not_utf8(world: World) -> None:
    world.source.edit(rows=[*orders(5), order(7, note=b"\xc3\x28")])


def corrupt_source(world: World) -> None:
    world.source.edit(faults=[ReadFault("raises", 3, "dpone.source.corrupt")])


def quality(world: World) -> None:
    world.quality = Quality(row_count=RowCount(min_rows=100))


def total_bytes(world: World) -> None:
    world.limits = Limits(max_rows=4, max_total_bytes=500)


def many_tables(world: World) -> None:
    world.limits = Limits(max_rows=1, max_staging_tables=3)


def lying_writer(world: World) -> None:
    world.target.arm("write", "change_cell", times=3)


def refused_in_the_publication(world: World) -> None:
    world.target.arm("publish", "rolled_back", "dpone.publish.constraint")


TERMINAL: list[tuple[Callable[[World], None], str]] = [
    (nan, "dpone.source.nan"),
    (not_utf8, "dpone.source.utf8"),
    (corrupt_source, "dpone.source.corrupt"),
    (quality, "dpone.quality.failed"),
    (total_bytes, "dpone.limits.max_total_bytes"),
    (many_tables, "dpone.limits.max_staging_tables"),
    (lying_writer, "dpone.target.chunk_not_proved"),
    (refused_in_the_publication, "dpone.publish.constraint"),
]


@pytest.mark.parametrize(("spoil", "code"), TERMINAL, ids=[code for _, code in TERMINAL])
def test_a_terminal_error_gives_everything_back_and_the_next_run_passes(
    world: World, spoil: Callable[[World], None], code: str
) -> None:
    world.target.insert(SCHEMA, TABLE, [order(900, day=3), order(901)])
    before = world.rows()
    spoil(world)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert (raised.value.code, raised.value.state_after) == (code, "FAILED")
    found = world.invocation()
    assert (found.state, found.last_error_code) == (DeliveryState.FAILED, code)
    assert found.next_action
    assert world.rows() == before
    assert world.untidy() == []

    world.source.edit(rows=orders(6))
    fresh = World(world.root)
    assert fresh.deliver(OTHER).rows == 6
    assert fresh.rows() == as_set([*orders(6), order(900, day=3)])
    assert world.untidy() == []


def test_a_duplicate_that_the_target_forbids_is_rolled_back_and_releases(tmp_path) -> None:
    world = World.create(tmp_path / "w", [*orders(5), order(5)], unique=True)
    world.target.insert(SCHEMA, TABLE, [order(900)])
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.code == "dpone.publish.constraint"
    assert "rolled back" in raised.value.message
    assert raised.value.state_after == "FAILED"
    assert world.rows() == as_set([order(900)])
    assert world.untidy() == []
    world.source.edit(rows=orders(5))
    assert world.deliver(OTHER).rows == 5


def test_a_plan_that_is_impossible_leaves_nothing_behind(world: World) -> None:
    with pytest.raises(DponeError) as raised:
        world.deliver(route=world.route(columns=["id", "at", "nothing"]))
    assert raised.value.state_after is None
    with pytest.raises(LookupError):
        world.invocation()
    assert world.untidy() == []


def test_a_plan_that_became_impossible_before_extraction_ends_in_failed(world: World) -> None:
    world.source.edit(faults=[ReadFault("ends_early", 1)] * 3)
    with pytest.raises(DponeError):
        world.deliver()
    world.target.execute(f"ALTER TABLE {table_name(SCHEMA, TABLE)} ADD COLUMN extra blob")
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == "FAILED"
    assert world.untidy() == []


@pytest.mark.parametrize(
    ("method", "state"),
    [
        ("claim_gate", "PLANNED"),
        ("create_stage", "EXTRACTED"),
        ("grant", "EXTRACTED"),
        ("write", "EXTRACTED"),
        ("verify_stage", "EXTRACTED"),
        ("build_prepared", "STAGED"),
        ("read_receipt", "UNKNOWN"),
    ],
)
def test_a_transient_error_with_tries_left_keeps_the_target_and_is_resumed(
    world: World, method: str, state: str
) -> None:
    world.target.arm(method, "unreachable", times=9)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == state
    assert world.custody().held
    with pytest.raises(DponeError, match="run-1") as held:
        world.deliver(OTHER)
    assert held.value.code == "dpone.custody.held"
    world.target.disarm()
    result = world.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert (result.generation, result.resumed_from) == (1, state)
    assert world.rows() == as_set(orders(6))
    assert world.untidy() == []


@pytest.mark.parametrize("method", ["claim_gate", "create_stage", "grant", "write", "build_prepared"])
def test_a_transient_error_on_the_last_try_gives_everything_back(world: World, method: str) -> None:
    world.target.arm(method, "unreachable", times=3)
    with pytest.raises(DponeError) as raised:
        world.deliver(LAST_TRY)
    assert raised.value.state_after == "FAILED"
    assert world.untidy() == []
    world.target.disarm()
    assert world.deliver(OTHER).rows == 6


def test_a_lost_source_on_the_last_try_gives_everything_back(world: World) -> None:
    world.source.edit(faults=[ReadFault("ends_early", 5)] * 3)
    with pytest.raises(DponeError) as raised:
        world.deliver(LAST_TRY)
    assert raised.value.state_after == "FAILED"
    assert world.untidy() == []


def test_a_target_that_cannot_be_cleaned_up_stays_reserved_and_the_error_says_so(world: World) -> None:
    nan(world)
    world.source.edit(rows=orders(6))
    world.quality = Quality(row_count=RowCount(max_rows=1))
    world.target.arm("drop_stage", "unreachable", times=9)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.code == "dpone.quality.failed"
    assert "stays reserved" in raised.value.next_action
    assert raised.value.state_after == "STAGED"
    assert world.custody().held
    world.target.disarm()
    with pytest.raises(DponeError) as again:
        world.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert (again.value.code, again.value.state_after) == ("dpone.quality.failed", "FAILED")
    assert world.untidy() == []


def test_a_transient_refusal_of_the_publication_is_sent_again_by_the_next_try(world: World) -> None:
    world.target.arm("publish", "rolled_back", "dpone.target.conflict")
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == "PREPARED"
    assert world.deliver().resumed_from == "PREPARED"
    assert len(world.target.receipts()) == 1


@pytest.mark.parametrize(
    ("on_empty", "there", "code"),
    [
        ("publish", 2, None),
        ("publish", 0, None),
        ("fail_if_target_has_rows", 2, "dpone.quality.failed"),
        ("fail_if_target_has_rows", 0, None),
        ("fail", 2, "dpone.quality.failed"),
        ("fail", 0, "dpone.quality.failed"),
    ],
)
def test_an_empty_window_does_what_on_empty_says(
    world: World, on_empty: str, there: int, code: str | None
) -> None:
    world.source.edit(rows=orders(6, day=1))
    world.target.insert(SCHEMA, TABLE, [*orders(there), order(900, day=1)])
    world.options = Options(on_empty=on_empty)
    if code is None:
        result = world.deliver()
        assert (result.rows, result.deleted_rows, result.chunks) == (0, there, 0)
        assert world.rows() == as_set([order(900, day=1)])
        assert len(world.target.receipts()) == 1
    else:
        with pytest.raises(DponeError, match=f"0 rows, the target has {there}; option on_empty") as raised:
            world.deliver()
        assert raised.value.code == code
        assert world.rows() == as_set([*orders(there), order(900, day=1)])
    assert world.untidy() == []


def test_quality_names_every_check_that_failed(world: World) -> None:
    world.quality = Quality(row_count=RowCount(max_rows=5), not_null=("note", "id", "ref"))
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.fields["checks"] == ["row_count", "not_null(note)", "not_null(ref)"]
    assert "2 NULLs" in raised.value.message
    assert "6 rows, allowed 0..5" in raised.value.message
    assert world.rows() == []


def test_quality_that_passes_is_in_the_evidence(world: World) -> None:
    world.quality = Quality(row_count=RowCount(min_rows=6, max_rows=6), not_null=("id",))
    result = world.deliver()
    assert result.rows == 6
    prepared = next(e for e in world.events() if e.event == "PREPARED")
    assert [(q["check"], q["passed"]) for q in prepared.body["payload"]["quality"]] == [
        ("row_count", True),
        ("not_null(id)", True),
    ]


def test_a_deadline_that_is_over_stops_the_read_and_the_delivery_can_go_on_later(world: World) -> None:
    with pytest.raises(DponeError) as raised:
        world.deliver(deadline_sec=0.0)
    assert (raised.value.code, raised.value.state_after) == ("dpone.source.deadline", "PLANNED")
    assert world.deliver().resumed_from == "PLANNED"


def test_a_replaced_process_is_told_so_whatever_it_meets(world: World) -> None:
    """Its successor has finished; what is missing now is no fault and nobody has to settle it."""
    points: list[str] = []
    world.copy(world.root.parent / "recorded").deliver(observer=lambda point: points.append(str(point)))
    places = [n for n, point in enumerate(points) if point == "after_journal_append"]
    for place in places[1:-1]:
        other = world.copy(world.root.parent / f"replaced-{place}")
        passed: list[str] = []

        def replace_it(
            point: str, passed: list[str] = passed, other: World = other, place: int = place
        ) -> None:
            passed.append(point)
            if len(passed) - 1 == place:
                World(other.root).deliver(requester(try_number=2, ti_id="2"))

        with pytest.raises(Fenced):
            other.deliver(observer=replace_it)
        assert len(other.target.receipts()) == 1
        assert other.rows() == as_set(orders(6))
        assert other.untidy() == []


def test_a_fault_between_a_write_and_its_note_is_settled_from_the_journal(world: World) -> None:
    """On the last try: what the process believes is older than what is stored."""
    points: list[str] = []
    world.copy(world.root.parent / "recorded").deliver(observer=lambda point: points.append(str(point)))
    for place in [n for n, point in enumerate(points) if point == "after_journal_append"][1:]:
        other = world.copy(world.root.parent / f"fault-{place}")
        passed: list[str] = []

        def fail(point: str, passed: list[str] = passed, place: int = place) -> None:
            passed.append(point)
            if len(passed) - 1 == place:
                raise MemoryError

        with pytest.raises(DponeError) as raised:
            other.deliver(requester(max_tries=0), observer=fail)
        assert raised.value.code == "dpone.delivery.unexpected"
        other.deliver(requester(try_number=2, ti_id="2", max_tries=2))
        assert other.rows() == as_set(orders(6))
        receipts = [(row[1], row[2]) for row in other.target.receipts()]
        assert len(receipts) == len(set(receipts))
        assert other.untidy() == []
