"""What the client does around a publication: it rehearses first, and knows what each answer proves."""

from __future__ import annotations

from typing import Any

import pyodbc
import pytest

from airflow_dpone.errors import OutcomeUnknown
from airflow_dpone.target_sqlserver import publication
from airflow_dpone.target_sqlserver import publication_statements as batches
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.session import Session

PARAMETERS = tuple(range(100, 100 + len(batches.PLACES) + 3))


class Answering(Session):
    """A session that answers with what it is told, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.sent = answer, []

    def results(self, text: str, *parameters: object) -> Any:
        self.sent.append(parameters)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def odbc_error(number: int, state: str = "42000") -> pyodbc.Error:
    return pyodbc.Error(state, f"[{state}] [Microsoft][SQL Server]Some text. ({number}) (SQLExecDirectW)")


def test_a_rehearsal_has_a_fence_that_no_gate_lets_in_and_changes_nothing_else() -> None:
    session = Answering([[("compiled", None)]])
    assert publication._rehearse(session, "text", PARAMETERS) is None
    (sent,) = session.sent
    changed = {place: value for place, value in enumerate(sent) if value != PARAMETERS[place]}
    assert changed == {batches.PLACES["rehearsal"]: 1, batches.PLACES["fence"]: 0}


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (1934, "dpone.publish.not_compiled"),
        (8623, "dpone.publish.not_compiled"),
        (207, "dpone.publish.target_changed"),
        (208, "dpone.publish.target_changed"),
        (1222, "dpone.publish.failed"),
        (701, "dpone.target.no_space"),
        (9002, "dpone.target.no_space"),
        (229, "dpone.target.permission"),
    ],
)
def test_what_does_not_compile_is_told_by_its_number(number: int, code: str) -> None:
    """[B54] Without memory or a right the table is not at fault, and memory may be there again."""
    found = publication._rehearse(Answering(odbc_error(number)), "text", PARAMETERS)
    assert found is not None
    assert (found[0], found[2]) == (code, number)
    assert "Some text" not in found[1]
    caught = publication._rehearse(Answering([[("rolled_back", number)]]), "text", PARAMETERS)
    assert caught == found


@pytest.mark.parametrize(
    "answer", [odbc_error(0, "08S01"), odbc_error(10054), [], [[("what", None)]], [[]]], ids=repr
)
def test_a_rehearsal_without_an_answer_is_no_verdict(answer: Any) -> None:
    with pytest.raises(OutcomeUnknown):
        publication._rehearse(Answering(answer), "text", PARAMETERS)


def test_a_publication_that_was_rehearsed_instead_is_no_publication() -> None:
    with pytest.raises(OutcomeUnknown):
        publication._outcome([[("compiled", None)]])


@pytest.mark.parametrize(
    ("published_sec", "settle_sec"), [(0.0, 120.0), (60.0, 120.0), (61.0, 121.0), (3_600.0, 3_660.0)]
)
def test_a_probe_waits_as_long_as_undoing_may_take(published_sec: float, settle_sec: float) -> None:
    """[A12]"""
    assert publication.settle_sec(published_sec) == settle_sec


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            [[(57, "airflow_dpone 3f2a", "ROLLBACK", 40)]],
            "session 57 (airflow_dpone 3f2a, ROLLBACK, 40 % done)",
        ),
        ([[(57, "ssms", None, None)]], "session 57 (ssms)"),
        ([[]], "VIEW SERVER STATE"),
        (odbc_error(300), "VIEW SERVER STATE"),
    ],
    ids=["rolling back", "idle", "nobody", "no right"],
)
def test_a_person_is_told_who_holds_the_lock(answer: Any, said: str) -> None:
    """[A12]"""
    session = Answering(answer)
    assert said in publication.lock_holder(session, "ab" * 32)
    assert session.sent == [(sql.lock_description("ab" * 32),)]
    assert sql.lock_description("ab" * 32) == f"%:[[]dpone:target:{'ab' * 9}a]:%"
