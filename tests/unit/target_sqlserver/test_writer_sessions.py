"""What is made of a server's answers about sessions of bulk writers."""

from __future__ import annotations

import re
from typing import Any

import pyodbc
import pytest

from airflow_dpone.errors import ConfigurationError
from airflow_dpone.target_sqlserver import session_statements as sql
from airflow_dpone.target_sqlserver import writer_sessions
from tests.fakes.sessions import session_of
from tests.unit.target_sqlserver.test_publication import odbc_error

TOKEN = "ab" * 32
SEEN = session_of(TOKEN)


class Answers:
    """A session whose answers are given."""

    def __init__(self, rights: tuple[Any, ...] = ("loader", 1, 1), error: pyodbc.Error | None = None) -> None:
        self.rights, self.error = rights, error
        self.sent: list[tuple[Any, ...]] = []

    def row(self, text: str) -> tuple[Any, ...]:
        assert text == sql.RIGHTS
        return self.rights

    def rows(self, text: str, program: str) -> list[tuple[Any, ...]]:
        assert (text, program) == (sql.WRITERS, SEEN.program_name)
        context = bytearray(bytes.fromhex(TOKEN) + bytes(96))
        return [
            (57, SEEN.login_time, context, SEEN.program_name, "worker-3", "loader", "sleeping"),
            (58, SEEN.login_time, bytes(128), SEEN.program_name, None, None, None),
        ]

    def execute(self, *sent: Any) -> None:
        self.sent.append(sent)
        if self.error is not None:
            raise self.error


def test_a_row_is_a_session() -> None:
    found = writer_sessions.find(Answers())  # type: ignore[arg-type]
    assert (found.login, found.may_end) == ("loader", True)
    assert found.found[0] == SEEN
    assert (found.found[1].host_name, found.found[1].kill) == ("", "KILL 58;")


def test_a_login_that_sees_only_itself_gets_no_answer() -> None:
    """[B5] To find nothing would look like a writer that has ended."""
    with pytest.raises(ConfigurationError) as raised:
        writer_sessions.find(Answers(("lo]ader", 0, 1)))  # type: ignore[arg-type]
    assert raised.value.code == "dpone.recovery.sessions_hidden"
    assert "GRANT VIEW SERVER STATE TO [lo]]ader];" in raised.value.next_action
    assert writer_sessions.find(Answers(("loader", 1, 0))).may_end is False  # type: ignore[arg-type]


def test_all_four_are_compared_in_the_batch_that_ends_it() -> None:
    """[B5]"""
    answers = Answers()
    writer_sessions.end(answers, SEEN)  # type: ignore[arg-type]
    ((text, *values),) = answers.sent
    assert values == [SEEN.login_time, bytes.fromhex(SEEN.context_info), SEEN.program_name]
    condition, throw, kill = re.split(r"THROW|EXEC", text)
    for part in ("s.session_id = 57", "= @login_time", "s.context_info = @context", "= @program"):
        assert part in condition
    assert condition.count(" AND ") == 3
    assert "IF NOT EXISTS" in condition
    assert "KILL" not in condition + throw
    assert kill.strip() == "(N'KILL 57;');"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (51030, "dpone.recovery.session_changed"),
        (6106, "dpone.recovery.session_changed"),
        (6102, "dpone.target.permission"),
    ],
)
def test_why_it_was_not_ended(number: int, code: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        writer_sessions.end(Answers(error=odbc_error(number)), SEEN)  # type: ignore[arg-type]
    assert raised.value.code == code
    assert "57" in raised.value.message
    assert ("ALTER ANY CONNECTION" in raised.value.next_action) == (number == 6102)


def test_any_other_error_goes_its_way() -> None:
    with pytest.raises(pyodbc.Error):
        writer_sessions.end(Answers(error=odbc_error(1205)), SEEN)  # type: ignore[arg-type]


def test_a_number_is_a_number() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        sql.end_session("57; SHUTDOWN")  # type: ignore[arg-type]
