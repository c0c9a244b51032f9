"""``python -m airflow_dpone recovery ...``: what is said and done, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.cli.arguments import main
from airflow_dpone.cli.recovery import _session
from airflow_dpone.delivery.lost_writers import LostWriter
from airflow_dpone.errors import TargetBusy
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.target_embedded.target import EmbeddedTarget
from tests.fakes.embedded_shop import Shop
from tests.fakes.sessions import FakeSessions, session_of
from tests.fakes.world import HOST, SCHEMA, TABLE, World
from tests.unit.delivery.test_abandoned_attempts import lives_to_the_end
from tests.unit.delivery.test_lost_writers import tokens


class Died(BaseException):
    """The process ends here."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop.create(tmp_path / "shop")


def run(
    shop: Shop, capsys: pytest.CaptureFixture[str], command: str, *more: str, journal: str = "journal.db"
) -> tuple[int, dict[str, Any], str]:
    places = ("--journal", str(shop.world.root / journal), "--target", f"duckdb://{shop.path}")
    spool = ("--spool", str(shop.world.root / "spool"), "--host-id", HOST)
    code = main(["recovery", command, *places, *spool, *more])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out.splitlines()[-1]), err


def unfinished(shop: Shop, method: str) -> str:
    """A delivery whose process died before this method of the target; returns its key."""

    class Dies(EmbeddedTarget):
        def __getattribute__(self, name: str) -> Any:
            if name == method:
                raise Died
            return super().__getattribute__(name)

    with pytest.raises(Died):
        shop.deliver(Dies(shop.path))
    return shop.world.invocation().invocation_key


def test_a_table_of_another_journal_is_adopted_only_with_yes(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ("--target-table", SCHEMA, TABLE)
    shop.deliver(EmbeddedTarget(shop.path))
    code, said, err = run(shop, capsys, "adopt-target", *table)
    assert (code, said["needed"], said["done"]) == (0, False, False)
    assert "governed by this journal already" in err
    migrate(shop.world.root / "new.db", host=HOST)
    code, said, err = run(shop, capsys, "adopt-target", *table, journal="new.db")
    assert (code, said["needed"], said["done"]) == (1, True, False)
    assert "It would be governed by this journal" in err
    assert "--yes" in err
    code, said, err = run(shop, capsys, "adopt-target", *table, "--yes", journal="new.db")
    assert (code, said["done"], said["schema"]) == (0, True, "dpone.recovery.v1")
    assert said["journal_before"] in err
    assert said["journal_id"] in err
    code, said, _ = run(shop, capsys, "adopt-target", *table, "--yes", journal="new.db")
    assert (code, said["needed"]) == (0, False)


def test_a_table_that_is_not_there_is_no_matter_of_a_delivery(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only a delivery makes tables, by an option of its route: a command has none."""
    code, said, err = run(shop, capsys, "adopt-target", "--target-table", SCHEMA, "nothing")
    assert (code, said["code"]) == (2, "dpone.target.table_missing")
    assert "there is no such table" in err
    assert "correct the name or create it" in err
    assert "create_target" not in err + json.dumps(said)


@pytest.mark.parametrize("method", ["create_stage", "build_prepared", "publish"])
def test_a_delivery_is_given_up_and_the_next_one_delivers(
    shop: Shop, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    before = shop.rows()
    key = unfinished(shop, method)
    code, said, err = run(shop, capsys, "retire", "--delivery", key)
    assert (code, said["done"]) == (1, False)
    assert "DAG shop, run run-1, task deliver_orders, generation 1" in err
    assert "staging tables and sealed files would be removed, unless its publication" in err
    assert f"{SCHEMA}.{TABLE} be released; the rows stay" in err
    code, said, err = run(shop, capsys, "retire", "--delivery", key, "--yes")
    assert (code, said["done"], said["delivery"]["state_after"]) == (0, True, "RETIRED")
    assert "clear its task" in err
    assert shop.rows() == before
    assert shop.untidy() == []
    code, said, _ = run(shop, capsys, "retire", "--delivery", key, "--yes")
    assert (code, said["code"]) == (2, "dpone.recovery.nothing_to_retire")
    assert shop.deliver(EmbeddedTarget(shop.path)).generation == 2


def test_another_database_is_not_taken_for_the_target(
    shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = unfinished(shop, "publish")
    other = Shop.create(tmp_path / "other")
    other.deliver(EmbeddedTarget(other.path))
    mine, shop.path = shop.path, other.path
    code, said, _ = run(shop, capsys, "retire", "--delivery", key, "--yes")
    assert (code, said["code"]) == (2, "dpone.recovery.target_unknown")
    shop.path = mine
    assert run(shop, capsys, "retire", "--delivery", key, "--yes")[0] == 0


# ---- writer ------------------------------------------------------------------------------------------------


def test_writer_shows_ends_and_says_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """[B5] Without the flag nothing is ended; with it only after --yes."""
    world = World.create(tmp_path / "world")
    lives_to_the_end(world)
    with pytest.raises(TargetBusy):
        world.deliver()
    sessions = FakeSessions(world)
    sessions.found = [session_of(token) for token in tokens(world).values()]

    @contextmanager
    def opened(*named: Any) -> Iterator[Any]:
        with world.open_journal() as journal:
            yield journal, sessions

    monkeypatch.setattr("airflow_dpone.wiring.open_writer_search", opened)
    where = ["--journal", str(world.journal_path), "--target", "mssql://loader@sql.example/dwh"]
    asked = ["recovery", "writer", *where, "--delivery", world.invocation().invocation_key]

    def call(*more: str) -> tuple[int, dict[str, Any], str]:
        code = main([*asked, *more])
        out, err = capsys.readouterr()
        return code, json.loads(out.splitlines()[-1]), err

    code, said, err = call()
    assert (code, len(said["writers"]), sessions.ended) == (1, 1, [])
    session = said["writers"][0]["session"]
    for part in ("session 57", session["login_time"], "worker-3", "KILL 57;", "ALTER ANY CONNECTION"):
        assert part in err
    assert f"context_info 0x{session['context_info'][:64]} " in err
    assert "Repeat the command with --allow-kill --yes" in err
    code, said, err = call("--allow-kill")
    assert (code, sessions.ended) == (1, [])
    assert "Repeat the command with --yes" in err
    code, said, err = call("--allow-kill", "--yes")
    assert (code, said["writers"][0]["ended"], sessions.ended) == (0, True, [57])
    assert "Clear the task" in err
    code, said, err = call("--allow-kill", "--yes")
    assert (code, said["in_doubt"], said["writers"]) == (0, 1, [])
    assert "clear the task" in err
    world.deliver()
    code, said, err = call()
    assert (code, said["in_doubt"]) == (0, 0)
    assert "no session was looked for" in err


def test_a_client_cannot_write_lines_into_what_a_person_reads() -> None:
    """A session's host is whatever its client says."""
    session = replace(session_of("ab" * 32), host_name="h\n  KILL 1;\x1b[2J", program_name="p\u2028q")
    told = _session(LostWriter("a", 0, "r_1", "UNKNOWN", session))
    assert [line for line in told.splitlines() if line.startswith("  KILL")] == ["  KILL 57;"]
    assert "of p?q as loader on h?  KILL 1;?[2J" in told


def test_yes_alone_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["recovery", "writer", "--target", "mssql://loader@h/dwh", "--delivery", "0" * 64, "--yes"])
    assert ended.value.code == 2
    assert "--allow-kill" in capsys.readouterr().err


def test_an_embedded_target_has_no_sessions_of_writers(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    """[B5] Its writers end with their task's process; the target is not opened."""
    key = unfinished(shop, "publish")
    places = ["--journal", str(shop.world.journal_path), "--host-id", HOST]
    code = main(["recovery", "writer", *places, "--target", f"duckdb://{shop.path}", "--delivery", key])
    out, err = capsys.readouterr()
    assert (code, json.loads(out.splitlines()[-1])["code"]) == (2, "dpone.config.field")
    assert "its writers have no sessions" in err
