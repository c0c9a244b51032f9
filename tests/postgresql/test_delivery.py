"""Whole deliveries whose journal is on PostgreSQL, also while it restarts or loses its answers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_dpone.errors import CustodyHeld, DponeError
from airflow_dpone.ui.delivery_page import DeliveryPage, page_of
from tests.crash.test_kill_matrix_fakes import EXPECTED, HIGHER_TRY, OUTSIDE, problems_after
from tests.fakes.kill_child import KillServer
from tests.fakes.world import NEXT_DAY, SCHEMA, TABLE, World, order, requester
from tests.servers.cutting_proxy import CuttingProxy
from tests.servers.postgresql import PostgresqlServer


def new_world(root: Path, url: str) -> World:
    """Six orders in two chunks; the target holds old rows inside and outside of the window."""
    world = World.create(root, journal_url=url)
    world.target.insert(SCHEMA, TABLE, [order(902), *OUTSIDE])
    return world


def shown(world: World) -> DeliveryPage:
    """The page of the newest generation, as the API server reads it."""
    with world.open_journal() as journal:
        view = journal.view(world.invocation().invocation_key)
    assert view is not None
    return page_of(view, "dpone_journal")


def journal_effects(folder: Path) -> list[int]:
    """The places of the journal's own effects among the crash points of one delivery."""
    passed: list[str] = []
    new_world(folder, str(folder / "journal.db")).deliver(observer=lambda point: passed.append(str(point)))
    return [index for index, point in enumerate(passed) if point.startswith("before_journal_")]


def test_a_delivery_and_what_it_leaves(tmp_path: Path, url: str) -> None:
    world = new_world(tmp_path / "world", url)
    result = world.deliver()
    assert world.rows() == EXPECTED
    assert world.untidy() == []
    names = [event.event for event in world.events()]
    assert names[0] == "PLANNED"
    assert {"EXTRACTED", "STAGED", "PREPARED", "PUBLISHING", "EVIDENCED", "COMPLETED"} < set(names)
    checkpoint = world.checkpoint(result)
    assert checkpoint is not None
    assert checkpoint.receipt_sha256 == result.receipt_sha256
    page = shown(world)
    assert (page.headline.state, page.evidence_sha256) == ("COMPLETED", result.evidence_sha256)
    assert [phase.mark for phase in page.phases] == ["done"] * 7
    assert world.deliver().already
    assert world.deliver(rerun=True).generation == 2
    assert world.deliver(requester("run-2"), window=NEXT_DAY).state == "COMPLETED"
    assert not (world.root / "journal.db").exists()


def test_custody_keeps_another_requester_out(tmp_path: Path, url: str) -> None:
    world = new_world(tmp_path / "world", url)

    def stop(point: str) -> None:
        if point == "before_target_publish":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.deliver(observer=stop)
    with pytest.raises(CustodyHeld):
        world.deliver(requester("run-2"))
    assert shown(world).headline.state == "PUBLISHING"
    assert problems_after(world, **HIGHER_TRY) == []


def test_a_restart_before_every_write_is_not_noticed(
    tmp_path: Path, server: PostgresqlServer, url: str
) -> None:
    world, restarts = new_world(tmp_path / "world", url), []

    def restart(point: str) -> None:
        if point.startswith("before_journal_"):
            restarts.append(point)
            server.restart()

    assert world.deliver(observer=restart).state == "COMPLETED"
    assert len(restarts) > 15
    assert problems_after(world) == []


def test_a_process_killed_around_a_write_to_the_journal_is_replaced(
    tmp_path: Path, server: PostgresqlServer, url: str
) -> None:
    wrong: dict[int, list[str]] = {}
    places = journal_effects(tmp_path / "recorded")[::3]  # the whole matrix runs on SQLite
    with KillServer() as killer:
        for place in places:
            server.empty(url)
            world = new_world(tmp_path / str(place), url)
            code = killer.run(world.root, place + place % 2)  # before the write, or right after it
            found = [] if code == -signal.SIGKILL else [f"the child ended with {code}"]
            if found := found + problems_after(world):
                wrong[place] = found
    assert len(places) > 5
    assert wrong == {}


@pytest.mark.timeout(300)
def test_any_answer_of_the_journal_may_get_lost(
    tmp_path: Path, server: PostgresqlServer, url: str, proxy: CuttingProxy
) -> None:
    """The write is there, its process does not know: that call ends, and the next one goes on."""
    wrong: dict[int, list[str]] = {}
    through = url.replace(f":{server.port}/", f":{proxy.port}/")
    for place in journal_effects(tmp_path / "recorded"):
        server.empty(url)
        proxy.cut.clear()
        world, passed = new_world(tmp_path / str(place), through), []

        def arm(point: str, at: int = place, passed: list[str] = passed) -> None:
            passed.append(point)
            if len(passed) - 1 == at:
                proxy.armed.set()

        code = "nothing was raised"
        try:
            world.deliver(observer=arm)
        except DponeError as error:
            code = error.code
        is_last = passed[place] == "before_journal_release"  # nothing depends on it
        found = [] if proxy.cut.is_set() else ["no answer was lost"]
        found += ["it tried again by itself"] if world.clock.slept else []
        found += [] if is_last or code == "dpone.journal.unavailable" else [code]
        if found := found + problems_after(world, **HIGHER_TRY):
            wrong[place] = found
    assert wrong == {}
