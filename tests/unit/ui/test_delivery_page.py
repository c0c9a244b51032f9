"""What the page says of a delivery, in every state that one can be left in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery.recovery import retire
from airflow_dpone.delivery.states import RULES, DeliveryState
from airflow_dpone.errors import CATALOGUE, Incident, QualityFailed, TargetBusy
from airflow_dpone.settings import Quality
from airflow_dpone.ui.delivery_page import MAX_CHUNKS, DeliveryPage, page_of
from tests.fakes.world import NEXT_DAY, SCHEMA, TABLE, World, orders, requester
from tests.unit.delivery.test_abandoned_attempts import lives_to_the_end
from tests.unit.delivery.test_ownership import RETRY, stop_at


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World.create(tmp_path / "world")


def page(world: World, who: Any = None) -> DeliveryPage:
    key = world.invocation(who).invocation_key
    with world.open_journal() as journal:
        view = journal.view(key)
    assert view is not None
    return page_of(view, "audit")


def marks(page: DeliveryPage) -> list[str]:
    return [phase.mark for phase in page.phases]


class Died(BaseException):
    """The process ends here."""


def die_at(number: int) -> Any:
    passed: list[str] = []

    def observe(point: str) -> None:
        passed.append(point)
        if len(passed) > number:
            raise Died

    return observe


def test_a_finished_delivery(world: World) -> None:
    result = world.deliver()
    found = page(world)
    assert (found.headline.state, found.headline.tone, found.error) == ("COMPLETED", "good", None)
    assert found.headline.worker == ""
    assert found.headline.became_of_target.startswith("got the new rows")  # not what is there now: a restore
    assert found.headline.action.startswith("Nothing to do")
    assert marks(found) == ["done"] * 7
    assert [phase.said for phase in found.phases[1:5]] == [
        "6 rows in 2 chunks, 556 B",
        "6 rows proved",
        "6 rows",
        "6 in, 0 out",
    ]
    assert {fact.value for fact in found.counts} == {"6", "0"}
    assert (found.digests_said, found.digests[0].value) == ("agree", result.digest)
    assert found.evidence_sha256 == result.evidence_sha256
    assert {fact.label: fact.value for fact in found.receipt}["Receipt"] == result.receipt_sha256
    assert [(chunk.rows, chunk.attempts, chunk.state) for chunk in found.chunks] == [
        ("4", 1, "VERIFIED, published"),
        ("2", 1, "VERIFIED, published"),
    ]
    (one,) = found.tries
    assert (one.task_id, one.try_number, one.reached, one.fences) == (
        "deliver_orders",
        1,
        "COMPLETED",
        "1, 2",
    )
    assert max(phase.share for phase in found.phases) == 100


@pytest.mark.parametrize(
    ("state", "done", "shows"),
    [
        ("PLANNED", 1, "before"),
        ("EXTRACTED", 2, "before"),
        ("STAGED", 3, "before"),
        ("PREPARED", 4, "before"),
        ("UNKNOWN", 4, "never a mixture"),
        ("EVIDENCED", 6, "new rows"),
        ("CHECKPOINTED", 6, "new rows"),
    ],
)
def test_a_delivery_that_stopped_says_where_and_why(world: World, state: str, done: int, shows: str) -> None:
    stop_at(world, state)
    found = page(world)
    assert found.headline.state == state
    assert marks(found) == ["done"] * done + ["stopped"] + ["open"] * (6 - done)
    assert shows in found.headline.became_of_target
    assert found.headline.worker == "No process works on it."
    assert found.error is not None
    assert found.error.summary == CATALOGUE[found.error.code].summary
    assert found.error.reason
    assert found.headline.action.endswith(".")
    world.deliver(RETRY)
    after = page(world)
    assert (after.headline.state, after.error, len(after.tries)) == ("COMPLETED", None, 2)


def test_an_incident_names_the_command_that_ends_it(world: World) -> None:
    stop_at(world, "UNKNOWN")
    world.target.recreate_table(SCHEMA, TABLE)
    with pytest.raises(Incident):
        world.deliver(RETRY)
    found = page(world)
    assert (found.headline.state, found.headline.tone) == ("INCIDENT", "bad")
    key = world.invocation().invocation_key
    assert found.headline.command.startswith("airflow dpone recovery retire --journal-conn-id audit ")
    assert f"--delivery {key}" in found.headline.command
    assert found.error is not None
    assert (found.error.code, found.error.retry) == ("dpone.target.incarnation_gone", "")
    reserved = {fact.label: fact.value for fact in found.identifiers}["Target reserved"]
    assert reserved.startswith("for this delivery since ")


def test_a_writer_that_lives_has_a_command_that_shows_its_session(world: World) -> None:
    """[B5]"""
    lives_to_the_end(world)
    with pytest.raises(TargetBusy):
        world.deliver()
    found = page(world)
    key = world.invocation().invocation_key
    assert found.headline.state == "CHECKPOINTED"
    assert found.headline.command.startswith("airflow dpone recovery writer --journal-conn-id audit ")
    assert f"--delivery {key}" in found.headline.command
    world.deliver()
    assert page(world).headline.command == ""


def test_a_failed_check_is_the_reason(world: World) -> None:
    world.quality = Quality(row_count={"min_rows": 100})
    with pytest.raises(QualityFailed):
        world.deliver()
    found = page(world)
    assert (found.headline.state, found.headline.tone) == ("FAILED", "bad")
    assert found.error is not None
    assert found.error.code == "dpone.quality.failed"
    assert "row_count" in found.error.reason
    assert marks(found)[3] == "stopped"


def test_a_check_that_only_warns_is_no_failure(world: World) -> None:
    from airflow_dpone.ui import html

    world.quality = Quality(row_count={"min_rows": 100}, severity={"row_count": "warn"})
    world.deliver()
    found = page(world)
    assert (found.headline.state, found.phases[3].said) == ("COMPLETED", "6 rows, 0 of 1 checks passed")
    assert '<td class="warned">warned</td>' in html.delivery(found, base="").body.decode()


@pytest.mark.parametrize("reason", ["replanned", "given_up", "published_without_proof"])
def test_what_was_given_up_says_whether_it_may_be_visible(world: World, reason: str) -> None:
    """One that a command ended after its publication has not left the target as it was."""
    first = ""
    if reason == "replanned":
        with pytest.raises(Died):
            world.deliver(observer=die_at(12))
        first = world.invocation().invocation_key
        world.deliver(RETRY, window=NEXT_DAY)
    elif reason == "given_up":
        stop_at(world, "STAGED")
    else:
        stop_at(world, "UNKNOWN")
        world.target.recreate_table(SCHEMA, TABLE)
    key = first or world.invocation().invocation_key
    with world.open_journal() as journal:
        if not first:
            retire(world.ports(journal), key)
        view = journal.view(key)
    assert view is not None
    found = page_of(view, "audit").headline
    assert found.state == "RETIRED"
    assert ("published" in found.became_of_target) == (reason == "published_without_proof")
    assert ("was not changed" in found.meaning) == (reason == "replanned")


def test_a_worker_at_work_is_told_from_one_that_fell_silent(world: World) -> None:
    with pytest.raises(Died):
        world.deliver(observer=die_at(12))
    found = page(world)
    assert (found.headline.state, found.headline.tone) == ("PLANNED", "busy")
    assert "its lease lasts" in found.headline.worker
    assert marks(found)[1] == "now"
    assert "Wait for the task" in found.headline.action
    assert "shows the task as failed, clear it" in found.headline.action
    import sqlite3

    with sqlite3.connect(world.journal_path) as journal:
        journal.execute("UPDATE dpone_lease SET expires_at = '2026-01-01T00:00:00.000000Z'")
    found = page(world)
    assert found.headline.tone == "wait"
    assert "without a word" in found.headline.worker
    assert marks(found)[1] == "stopped"


def test_the_generations_of_a_task_lead_to_each_other(world: World) -> None:
    world.deliver()
    first = world.invocation().invocation_key
    world.deliver(requester(max_tries=5, try_number=4, ti_id="cleared"))
    found = page(world)
    assert [(one["generation"], one["is_this"]) for one in found.generations] == [(2, True), (1, False)]
    assert found.generations[1]["invocation_key"] == first
    with world.open_journal() as journal:
        old = journal.view(first)
        assert old is not None
        assert journal.view("0" * 64) is None
    checkpoint = {fact.label: fact.value for fact in page_of(old, "audit").identifiers}["Checkpoint"]
    assert checkpoint == "revision 2, of a later delivery"


def test_a_delivery_of_many_chunks_stays_a_page(tmp_path: Path) -> None:
    world = World.create(tmp_path / "many", orders(MAX_CHUNKS + 3))
    world.limits = world.limits.model_copy(update={"max_rows": 1})
    world.deliver()
    found = page(world)
    assert (len(found.chunks), found.chunks_left_out) == (MAX_CHUNKS, 3)
    assert len(found.events) + found.events_left_out == found.events_total


@pytest.mark.parametrize("state", DeliveryState)
def test_every_state_has_words(state: DeliveryState) -> None:
    from airflow_dpone.ui import delivery_page

    assert delivery_page._BECAME_OF_TARGET[state].endswith(".")
    assert RULES[state].way_out
