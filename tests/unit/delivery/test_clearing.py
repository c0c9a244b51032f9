"""What a retry, a clear, a re-created run and ``rerun=True`` do with a delivery that exists already."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.standing import stored_window
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import (
    ConfigurationError,
    DponeError,
    InternalError,
    SourceUnavailable,
    TargetBusy,
)
from tests.fakes.source import ReadFault
from tests.fakes.world import DAY, NEXT_DAY, World, as_set, order, orders, requester

FINISHED = {"try_number": 1, "ti_id": "run-1-try-1", "max_tries": 2}


class CountedJournal:
    """Counts what the engine does to the journal."""

    def __init__(self, journal: Any) -> None:
        self._journal, self.effects = journal, []

    def __getattr__(self, name: str) -> Any:
        if name in ("acquire", "append", "raise_fence"):
            self.effects.append(name)
        return getattr(self._journal, name)


def deliver_counted(world: World, who: r.Requester, **asked: Any) -> tuple[r.DeliveryResult, list[str]]:
    """One call, and every effect that it had on source, target and journal."""
    before, reads = len(world.target.calls()), world.source.script.reads
    journals: list[CountedJournal] = []

    def counted(journal: Any) -> CountedJournal:
        journals.append(CountedJournal(journal))
        return journals[0]

    result = world.deliver(who, wrap_journal=counted, **asked)
    effects = world.target.calls()[before:] + journals[0].effects
    return result, effects + ["read"] * (world.source.script.reads - reads)


def test_a_finished_delivery_that_nobody_cleared_is_returned_and_touches_nothing(world: World) -> None:
    first = world.deliver()
    world.source.edit(rows=orders(9))
    again, effects = deliver_counted(world, requester())
    assert effects == []
    assert again.already
    assert {**again.to_json(), "already": False, "seconds": ""} == {**first.to_json(), "seconds": ""}
    assert world.rows() == as_set(orders(6))


def test_an_automatic_retry_of_a_worker_that_died_after_the_end_gets_the_finished_result(
    world: World,
) -> None:
    first = world.deliver()
    retry = requester(try_number=2, ti_id="run-1-try-2")
    again, effects = deliver_counted(world, retry)
    assert effects == []
    assert again.already
    assert again.operation_id == first.operation_id


@pytest.mark.parametrize(
    ("who", "asked"),
    [
        pytest.param(
            FINISHED | {"try_number": 2, "ti_id": "x", "max_tries": 3}, {}, id="cleared: other max_tries"
        ),
        pytest.param(FINISHED, {"rerun": True}, id="rerun=True"),
        pytest.param(
            FINISHED | {"ti_id": "another"}, {}, id="re-created run: the same try of another instance"
        ),
    ],
)
def test_what_was_asked_for_again_is_delivered_as_the_next_generation(
    world: World, who: dict[str, Any], asked: dict[str, Any]
) -> None:
    first = world.deliver()
    world.source.edit(rows=[order(1, note="corrected"), *orders(3, first=7)])
    second = world.deliver(requester(**who), **asked)
    assert (second.generation, second.already, second.rows, second.deleted_rows) == (2, False, 4, 6)
    assert second.invocation_key != first.invocation_key
    assert second.operation_id != first.operation_id
    assert world.rows() == as_set([order(1, note="corrected"), *orders(3, first=7)])
    assert [row[1] for row in world.target.receipts()] == [1, 2]
    assert world.untidy() == []


def test_a_recreated_run_with_a_lower_try_is_a_new_delivery(world: World) -> None:
    world.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    again = world.deliver(requester(try_number=1, ti_id="new-run-try-1"))
    assert (again.generation, again.already) == (2, False)


def ordered(number: int) -> str:
    """A task instance's id as Airflow makes them: a later one is greater."""
    return str(UUID(int=(number << 80) | (0x7 << 76) | (0b10 << 62)))


@pytest.mark.parametrize(
    ("finished", "first", "is_again"),
    [
        pytest.param((1, ordered(10)), ordered(10), False, id="the first try finished it"),
        pytest.param((1, ordered(10)), ordered(20), True, id="a run of the same name, deleted since"),
        pytest.param((2, ordered(11)), ordered(10), False, id="a later try finished it"),
        pytest.param((2, ordered(11)), ordered(20), True, id="a later try of a run, deleted since"),
        pytest.param((1, ordered(10)), "", False, id="nobody knows the first try"),
        pytest.param((1, ordered(10)), "wiped or mended by hand", False, id="the first try is no id"),
        pytest.param((1, "one"), "two", False, id="ids without an order"),
    ],
)
def test_a_second_try_knows_by_the_first_one_whether_its_run_was_made_anew(
    world: World, finished: tuple[int, str], first: str, is_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """[C8] The number of the try says nothing then: the first one failed before it reached the journal."""
    caplog.set_level("INFO", "airflow_dpone")
    world.deliver(requester(try_number=finished[0], ti_id=finished[1]))
    late = requester(try_number=3, ti_id=ordered(30))
    with world.open_journal() as journal:
        kept = stored_window(journal, late, NEXT_DAY, first)
    assert kept == (None if is_again else DAY)
    result = world.deliver(late, first_ti_id=first)
    assert (result.generation, result.already) == ((2, False) if is_again else (1, True))
    why = "generation 1 was delivered and its run was deleted and made anew since"
    assert (f"generation 2 begins: {why}" in caplog.text) == is_again
    if is_again:
        assert world.deliver(requester(try_number=4, ti_id=ordered(40)), first_ti_id=first).already


@pytest.mark.parametrize(
    ("who", "left", "is_kept"),
    [
        pytest.param(FINISHED | {"try_number": 2, "ti_id": "2"}, "COMPLETED", True, id="a retry"),
        pytest.param(
            FINISHED | {"try_number": 2, "ti_id": "2", "max_tries": 3}, "COMPLETED", True, id="a clear"
        ),
        pytest.param(FINISHED | {"ti_id": "another"}, "COMPLETED", False, id="a re-created run"),
        pytest.param(FINISHED | {"ti_id": "another"}, "STAGED", True, id="a re-created run, still open"),
    ],
)
def test_a_window_that_moves_is_resolved_once_for_a_run(
    world: World, who: dict[str, Any], left: str, is_kept: bool
) -> None:
    """[C8] A run that was deleted and made anew is another one: it means the rows of its own time."""
    if left == "STAGED":
        world.target.arm("build_prepared", "unreachable")
        with pytest.raises(TargetBusy):
            world.deliver()
    else:
        world.deliver()
    with world.open_journal() as journal:
        assert stored_window(journal, requester(**who), NEXT_DAY) == (DAY if is_kept else None)
        assert stored_window(journal, requester(**who)) == DAY, "a late phase has no window of its own"
        assert stored_window(journal, requester(**who), Window.full()) is None


def test_a_second_clear_of_the_same_kind_is_seen_again(world: World) -> None:
    world.deliver()
    cleared = requester(try_number=2, ti_id="run-1-try-2", max_tries=3)
    assert world.deliver(cleared).generation == 2
    assert world.deliver(cleared).already
    twice = requester(try_number=3, ti_id="run-1-try-3", max_tries=4)
    assert world.deliver(twice).generation == 3


def test_a_failed_delivery_is_started_anew_by_the_next_call_without_any_condition(world: World) -> None:
    world.source.edit(rows=[*orders(5), order(6, price=float("nan"))])
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.code == "dpone.source.nan"
    world.source.edit(rows=orders(6))
    result = world.deliver()
    assert (result.generation, result.resumed_from) == (2, None)
    assert world.rows() == as_set(orders(6))


def test_an_unfinished_delivery_is_resumed_by_the_next_try(world: World) -> None:
    world.target.arm("build_prepared", "unreachable")
    with pytest.raises(TargetBusy) as raised:
        world.deliver()
    assert raised.value.state_after == DeliveryState.STAGED
    result = world.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert (result.generation, result.resumed_from) == (1, "STAGED")
    assert world.source.script.reads == 1


def test_rerun_on_an_unfinished_delivery_resumes_it_and_opens_no_second_generation(world: World) -> None:
    world.target.arm("build_prepared", "unreachable")
    with pytest.raises(TargetBusy):
        world.deliver()
    result = world.deliver(rerun=True)
    assert (result.generation, result.resumed_from) == (1, "STAGED")
    assert [row[1] for row in world.target.receipts()] == [1]


def test_a_retry_after_a_broken_read_starts_a_new_extraction_of_the_same_generation(world: World) -> None:
    world.source.edit(faults=[ReadFault("ends_early", 5)] * 3)
    with pytest.raises(SourceUnavailable) as raised:
        world.deliver()
    assert raised.value.state_after == "PLANNED"
    assert world.custody().held
    result = world.deliver(requester(try_number=2, ti_id="run-1-try-2"))
    assert (result.generation, result.resumed_from) == (1, "PLANNED")
    assert world.rows() == as_set(orders(6))


def test_a_delivery_that_another_process_finishes_while_we_wait_for_the_lease_is_not_done_again(
    world: World,
) -> None:
    """Two processes of one try: the second looked before the first had finished, and gets the lease after."""
    world.target.arm("build_prepared", "unreachable")
    with pytest.raises(TargetBusy):
        world.deliver()

    class Late(CountedJournal):
        def acquire(self, *args: Any, **terms: Any) -> jr.Lease:
            world.deliver()
            return self._journal.acquire(*args, **terms)

    result = world.deliver(wrap_journal=Late)
    assert result.generation == 1
    assert [row[1] for row in world.target.receipts()] == [1]


def test_results_stay_small_however_long_the_names_are(world: World) -> None:
    who = requester("run" * 80, dag_id="dag" * 80, task_id="task" * 60)
    result = world.deliver(who)
    import json

    assert len(json.dumps(result.to_json())) < 2_048


def test_a_finished_delivery_does_not_stand_for_a_window_that_was_never_delivered(world: World) -> None:
    """Returning the old result would look like a delivery of the new window."""
    world.deliver()
    other = Window.of_key("2027-01-01T00:00:00.000000Z/2027-01-02T00:00:00.000000Z")
    with pytest.raises(ConfigurationError) as caught:
        world.deliver(window=other)
    assert caught.value.code == "dpone.config.other_request"
    assert len(world.target.receipts()) == 1
    cleared = world.deliver(requester(try_number=2, ti_id="run-1-try-2", max_tries=3), window=other)
    assert (cleared.generation, cleared.window) == (2, other.key)


def test_an_earlier_try_that_wakes_up_late_is_no_clear(world: World) -> None:
    """Airflow's task instance ids are ordered by time: the older one cannot be a re-created run's."""
    old, new = "01a2285d-03e9-7263-9d07-fa8ba3c64e97", "01a2285e-b36d-79b4-9029-4f3e2c570b0c"
    world.deliver(requester(try_number=2, ti_id=new))
    assert world.deliver(requester(try_number=1, ti_id=old)).already
    assert not world.deliver(requester(try_number=1, ti_id="01a2285f-b36d-79b4-9029-4f3e2c570b0c")).already
    assert len(world.target.receipts()) == 2


def test_a_fault_of_a_driver_ends_as_cleanly_as_any_other(world: World) -> None:
    class Broken:
        def __init__(self, journal: Any) -> None:
            self._journal = journal

        def __getattr__(self, name: str) -> Any:
            return getattr(self._journal, name)

        def checkpoint(self, *_: object) -> None:
            raise ZeroDivisionError("a value that nobody may see")

    last = requester(try_number=3, ti_id="run-1-try-3")
    with pytest.raises(InternalError) as caught:
        world.deliver(last, wrap_journal=Broken)
    assert "nobody may see" not in str(caught.value)
    assert caught.value.state_after == "EVIDENCED"
    assert world.deliver(last).resumed_from == "EVIDENCED"
