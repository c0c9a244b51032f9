"""Which sessions of the server belong to writers that a delivery cannot tell to have ended, and their end."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from airflow_dpone.delivery.history import History
from airflow_dpone.delivery.lost_writers import WriterSearch, end_writers, find_writers
from airflow_dpone.errors import ConfigurationError, JournalError, LeaseHeld, TargetBusy
from tests.fakes.sessions import FakeSessions, session_of
from tests.fakes.world import World, as_set, orders
from tests.unit.delivery.test_abandoned_attempts import LIVES, abandoned, lives_to_the_end

STRANGER = session_of("ab" * 32, session_id=99)


def tokens(world: World) -> dict[str, str]:
    """The grant's digest of each attempt that was granted, by attempt."""
    attempts = History.of("key", world.events()).attempts.values()
    return {a.attempt_id: a.writer_binding["grant_token_sha256"] for a in attempts if a.writer_binding}


@pytest.fixture
def sessions(world: World) -> FakeSessions:
    return FakeSessions(world)


@pytest.fixture
def left(world: World, sessions: FakeSessions) -> str:
    """A delivered window whose target stays reserved: one writer's session lives. Returns its attempt."""
    lives_to_the_end(world)
    with pytest.raises(TargetBusy):
        world.deliver()
    (own,) = abandoned(world)
    found = tokens(world)
    sessions.found = [STRANGER, *(session_of(found[a], 50 + n) for n, a in enumerate(sorted(found)))]
    return own


def ask(world: World, sessions: FakeSessions, call: Any = find_writers, key: str = "") -> WriterSearch:
    with world.open_journal() as journal:
        found: WriterSearch = call(journal, sessions, key or world.invocation().invocation_key)
        return found


def test_only_the_session_of_the_writer_in_doubt_is_shown(
    world: World, sessions: FakeSessions, left: str
) -> None:
    """[B5] Found by the digest of its grant; a proved attempt's, another delivery's are none of ours."""
    before = world.events()
    search = ask(world, sessions)
    assert (search.in_doubt, search.state, search.login, search.may_end) == (
        1,
        "CHECKPOINTED",
        "loader",
        True,
    )
    (writer,) = search.writers
    assert (writer.attempt_id, writer.attempt, writer.ended) == (left, "UNKNOWN", False)
    assert writer.session.context_info.startswith(tokens(world)[left])
    assert writer.stage_name in world.target.stages
    assert world.events() == before
    assert sessions.ended == []
    told = search.to_json()
    assert told["schema"] == "dpone.recovery-writer.v1"
    assert told["writers"][0]["session"]["kill"] == writer.session.kill


def test_that_session_is_ended_and_no_other_one_and_a_clear_goes_on(
    world: World, sessions: FakeSessions, left: str
) -> None:
    """[B5]"""
    (seen,) = ask(world, sessions).writers
    search = ask(world, sessions, end_writers)
    assert [writer.ended for writer in search.writers] == [True]
    assert sessions.ended == [seen.session.session_id]
    assert STRANGER in sessions.found
    assert ask(world, sessions).writers == ()
    result = world.deliver()
    assert (result.state, result.resumed_from) == ("COMPLETED", "CHECKPOINTED")
    assert world.rows() == as_set(orders(6))
    assert world.untidy() == []


def test_a_session_that_changed_is_not_ended_and_the_lease_is_free_again(
    world: World, sessions: FakeSessions, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = sessions.writer_sessions

    def then_another() -> Any:
        answer = seen()
        if sessions.asked == 2:
            sessions.found = [session_of("cd" * 32, one.session_id) for one in sessions.found]
        return answer

    monkeypatch.setattr(sessions, "writer_sessions", then_another)
    with pytest.raises(ConfigurationError) as raised:
        ask(world, sessions, end_writers)
    assert raised.value.code == "dpone.recovery.session_changed"
    assert sessions.ended == []
    assert world.deliver().state == "COMPLETED"


def test_a_live_worker_s_writer_is_shown_and_not_ended(world: World, sessions: FakeSessions) -> None:
    """Its process may be writing: who ends sessions needs the lease."""
    looks: list[WriterSearch] = []

    def look(point: str) -> None:
        if point == "before_writer_write" and not looks:
            twin = World(world.root)
            sessions.found = [session_of(token) for token in tokens(twin).values()]
            looks.append(ask(twin, sessions))
            with pytest.raises(LeaseHeld):
                ask(twin, sessions, end_writers)

    world.deliver(observer=look)
    assert [writer.attempt for writer in looks[0].writers] == ["WRITING"]
    assert sessions.ended == []


def test_a_writer_that_was_never_started_is_not_looked_for(world: World, sessions: FakeSessions) -> None:
    def stop(point: str) -> None:
        if point == "before_target_grant":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.deliver(observer=stop)
    sessions.found = [session_of(token) for token in tokens(world).values()]
    assert (len(sessions.found), ask(world, sessions).in_doubt) == (1, 0)
    assert sessions.asked == 0


def test_without_a_writer_in_doubt_the_server_is_not_asked(world: World, sessions: FakeSessions) -> None:
    world.deliver()
    for call in (find_writers, end_writers):
        search = ask(world, sessions, call)
        assert (search.in_doubt, search.login, search.may_end, search.writers) == (0, None, None, ())
    assert sessions.asked == 0


def test_another_database_says_nothing(world: World, sessions: FakeSessions, left: str) -> None:
    sessions.installation_id = "6f0c3a52-92a7-4d25-8f52-1d0a4b1f7c11"
    for call in (find_writers, end_writers):
        with pytest.raises(ConfigurationError) as raised:
            ask(world, sessions, call)
        assert raised.value.code == "dpone.recovery.target_unknown"
        assert "--target-lost" not in raised.value.next_action
    assert (sessions.asked, sessions.ended) == (0, [])


def test_a_delivery_that_the_journal_does_not_know(world: World, sessions: FakeSessions) -> None:
    with pytest.raises(ConfigurationError) as raised:
        ask(world, sessions, key="0" * 64)
    assert raised.value.code == "dpone.recovery.no_delivery"


def test_every_message_about_it_names_the_command_with_its_key(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    lives_to_the_end(world)
    with pytest.raises(TargetBusy) as raised:
        world.deliver()
    command = f"recovery writer --target URI_OR_ID --delivery {world.invocation().invocation_key}"
    assert raised.value.code == LIVES
    assert command in raised.value.next_action
    assert command in (world.invocation().next_action or "")
    (warning,) = [one for one in caplog.messages if "left behind" in one]
    assert command in warning


@pytest.mark.parametrize("is_older", [True, False], ids=["an older copy of the journal", "another journal"])
def test_a_journal_that_lost_its_end_gives_no_fence_for_it(
    world: World, sessions: FakeSessions, left: str, tmp_path: Path, is_older: bool
) -> None:
    """[C5] The lease takes a fence: asked often enough, the command would hide what refuses a delivery."""
    alive, key, older = list(sessions.found), world.invocation().invocation_key, tmp_path / "older.db"
    with closing(sqlite3.connect(world.journal_path)) as database:
        database.execute("VACUUM INTO ?", (str(older),))
    world.deliver()
    world.deliver(rerun=True)
    world.journal_name = older.name
    older.rename(world.journal_path)
    if is_older:
        why = "dpone.journal.older_than_target"
    else:
        world.target.execute(f"UPDATE \"dpone.target_gate\" SET journal_id = '{UUID(int=1)}'")
        why = "dpone.journal.not_bound_to_target"
    sessions.found = alive
    assert len(ask(world, sessions, key=key).writers) == 1, "looking tells what it sees"
    before = fence_of(world, key)
    for _ in range(9):
        with pytest.raises(JournalError) as raised:
            ask(world, sessions, end_writers, key)
        assert raised.value.code == why
    assert (fence_of(world, key), sessions.ended) == (before, [])
    with pytest.raises(JournalError) as raised:
        world.deliver()
    assert raised.value.code == why


def fence_of(world: World, key: str) -> int:
    with world.open_journal() as journal:
        found = journal.invocation(key)
        assert found is not None
        return journal.fence(found.target_key)
