"""``recovery writer``: the session that the server still believes in is shown, ended, and no other one is."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.cli.arguments import main
from airflow_dpone.delivery.lost_writers import WriterSession, WriterSessions
from airflow_dpone.errors import ConfigurationError, TargetBusy
from airflow_dpone.target_sqlserver import session_statements as sql
from airflow_dpone.target_sqlserver.target import SqlServerTarget
from tests.crash.test_kill_matrix_fakes import EXPECTED, HIGHER_TRY, problems_after
from tests.fakes.world import HOST, as_set, requester
from tests.mssql import server
from tests.mssql.cable import Cable
from tests.mssql.lab import MssqlLab
from tests.mssql.test_kill_matrix import INSIDE_AND_OUT
from tests.mssql.test_ways_of_a_delivery import FirstWrite, lock_is_free
from tests.mssql.world import MssqlWorld
from tests.unit.bulk_writer.test_writer_process import until


@dataclass
class Command:
    """``recovery writer`` as a person runs it."""

    world: MssqlWorld
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *more: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, answer, and what it says to people."""
        places = ["--journal", str(self.world.journal_path), "--host-id", HOST, "--target", "warehouse"]
        key = self.world.invocation().invocation_key
        self.capsys.readouterr()
        code = main(["recovery", "writer", *places, "--delivery", key, *more])
        out, err = self.capsys.readouterr()
        assert self.world.where.password not in out + err
        return code, json.loads(out.splitlines()[-1]), err


@pytest.fixture
def world(mssql_lab: MssqlLab, tmp_path: Path) -> MssqlWorld:
    """Six orders in two chunks, and rows that are there already."""
    return MssqlWorld.on(tmp_path / "world", mssql_lab, outside=INSIDE_AND_OUT)


@pytest.fixture
def command(
    world: MssqlWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", server.airflow_connection(world.where))
    return Command(world, capsys)


def is_there(lab: MssqlLab, session_id: int) -> bool:
    asked = "SELECT COUNT(*) FROM sys.dm_exec_sessions WHERE session_id = ?"
    return bool(lab.run(asked, session_id)[0][0])


def test_the_session_is_shown_and_ended_and_the_delivery_ends_exactly(
    world: MssqlWorld, command: Command
) -> None:
    """[B5] Half-open TCP, and it stays so: nothing but the command ends the session."""
    with Cable(world.where, swallows_the_end=True) as cable:
        world.writer, world.writer_settle_sec = FirstWrite(world.where, cable.where, world.lab), 2.0
        with pytest.raises(TargetBusy) as raised:
            world.deliver()
        assert f"--delivery {world.invocation().invocation_key}" in raised.value.next_action
        (left,) = world.stages()

        code, said, err = command()
        assert (code, said["in_doubt"], said["state"]) == (1, 1, "CHECKPOINTED")
        (writer,) = said["writers"]
        session = writer["session"]
        assert (writer["stage_name"], writer["attempt"], writer["ended"]) == (left, "UNKNOWN", False)
        (token,) = {
            e.body["writer_binding"]["grant_token_sha256"]
            for e in world.events()
            if e.event == "GRANTED" and e.body["stage_binding"]["stage_name"] == left
        }
        assert session["context_info"][:64] == token
        assert session["program_name"] == sql.WRITER_PROGRAM
        (of_server,) = world.lab.run(
            "SELECT session_id, CONVERT(nvarchar(40), login_time, 126) FROM sys.dm_exec_sessions "
            "WHERE SUBSTRING(context_info, 1, 32) = ?",
            bytes.fromhex(token),
        )
        assert (session["session_id"], session["login_time"]) == of_server
        for part in (left, session["login_time"], token, session["kill"], "--allow-kill --yes"):
            assert part in err

        code, said, err = command("--allow-kill")
        assert (code, said["writers"][0]["ended"]) == (1, False)
        assert "Nothing was ended" in err
        assert is_there(world.lab, session["session_id"])
        assert not lock_is_free(world.lab, token)

        code, said, err = command("--allow-kill", "--yes")
        assert (code, said["writers"]) == (0, [{**writer, "ended": True}])
        until(lambda: lock_is_free(world.lab, token), 60)
        assert not is_there(world.lab, session["session_id"])

        code, said, err = command()
        assert (code, said["in_doubt"], said["writers"]) == (0, 1, [])
        assert "clear the task" in err
        assert world.deliver(requester(**HIGHER_TRY)).resumed_from == "CHECKPOINTED"
    assert as_set(world.rows()) == EXPECTED
    assert problems_after(world, **HIGHER_TRY) == []
    assert command()[1]["in_doubt"] == 0


# ---- the four that are compared ----------------------------------------------------------------------------


@pytest.fixture
def seen(mssql_lab: MssqlLab) -> Iterator[WriterSession]:
    """A session like a writer's, as the product sees it."""
    token = secrets.token_bytes(32)
    where = mssql_lab.where
    with closing(server.odbc.connect(where, application=sql.WRITER_PROGRAM, login_timeout_sec=60)) as alive:
        alive.execute(f"DECLARE @grant varbinary(128) = 0x{token.hex()}; SET CONTEXT_INFO @grant;")
        (found,) = [one for one in look(mssql_lab).found if one.context_info[:64] == token.hex()]
        yield found


def look(lab: MssqlLab) -> WriterSessions:
    with SqlServerTarget(lab.where) as target:
        return target.writer_sessions()


def end(lab: MssqlLab, session: WriterSession) -> None:
    with SqlServerTarget(lab.where) as target:
        target.end_writer(session)


@pytest.mark.parametrize("changed", ["session_id", "login_time", "context_info", "program_name"])
def test_a_session_that_is_another_one_in_any_of_the_four_is_not_ended(
    mssql_lab: MssqlLab, seen: WriterSession, changed: str
) -> None:
    """[B5] The number was given to somebody else, or everything but the number is another's."""
    with closing(mssql_lab.second_connection()) as other:
        ((another,),) = other.execute("SELECT @@SPID").fetchall()
        values: dict[str, Any] = {
            "session_id": another,
            "login_time": "2001-02-03T04:05:06.007",
            "context_info": ("00" if seen.context_info[:2] != "00" else "11") + seen.context_info[2:],
            "program_name": "airflow_dpone",
        }
        with pytest.raises(ConfigurationError) as raised:
            end(mssql_lab, replace(seen, **{changed: values[changed]}))
        assert raised.value.code == "dpone.recovery.session_changed"
        assert is_there(mssql_lab, seen.session_id)
        assert other.execute("SELECT 1").fetchall()
    end(mssql_lab, seen)
    until(lambda: not is_there(mssql_lab, seen.session_id), 60)


def test_a_session_that_has_ended_is_not_ended_again(mssql_lab: MssqlLab, seen: WriterSession) -> None:
    """[B5]"""
    end(mssql_lab, seen)
    until(lambda: not is_there(mssql_lab, seen.session_id), 60)
    with pytest.raises(ConfigurationError, match="was not ended"):
        end(mssql_lab, seen)


def test_what_the_login_may_is_asked_first(mssql_lab: MssqlLab, seen: WriterSession) -> None:
    """[B5] Without the right to see sessions, none would be found and nothing would be known."""
    if not mssql_lab.is_standin:
        pytest.skip("capability gap: UNVERIFIED: a login of a server without the two rights")
    assert look(mssql_lab).may_end
    denied = "INSERT INTO [dbo].[standin_denied] VALUES (?)"
    try:
        mssql_lab.run(denied, "ALTER ANY CONNECTION")
        assert not look(mssql_lab).may_end
        mssql_lab.run(denied, "VIEW SERVER STATE")
        assert seen in look(mssql_lab).found  # the narrower right is enough
        mssql_lab.run(denied, "VIEW SERVER PERFORMANCE STATE")
        with pytest.raises(ConfigurationError) as raised:
            look(mssql_lab)
        assert raised.value.code == "dpone.recovery.sessions_hidden"
        assert "GRANT VIEW SERVER STATE TO" in raised.value.next_action
    finally:
        mssql_lab.run("DELETE FROM [dbo].[standin_denied]")
