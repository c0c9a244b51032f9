"""What every source does, over a scripted session: the words of a server that no test can start."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.records import SourceColumn, SourceTable
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, SourceUnavailable
from airflow_dpone.source_clickhouse import query_settings
from airflow_dpone.source_clickhouse.error_map import ACCESS_DENIED, CONSTRAINT, UNKNOWN_SETTING, answered
from airflow_dpone.source_clickhouse.session import BatchStream, Session
from airflow_dpone.source_clickhouse.source import ClickHouseSource
from airflow_dpone.wire.types import WireColumn, WireLayout
from tests.contract.chdb_world import pair_of

Answer = Callable[[str], list[list[str]] | None]
TABLE = SourceTable("shop", "orders", "u", "MergeTree", (SourceColumn("k", "Int64"),), {})
LAYOUT = WireLayout((WireColumn("k", pair_of("Int64", "bigint")),))


def settings_answer(without: str = "", **changes: str) -> list[list[str]]:
    """``system.settings`` as the statement asks for it; a change may be ``value/fixed``."""
    wanted = query_settings.settings_to_send(query_settings.SENT_IF_KNOWN)
    rows = []
    for name, said in {**wanted, "readonly": "0", **changes}.items():
        value, _, fixed = said.partition("/")
        cells = (name, value, "1" if name in changes else "0", fixed or "0", "", "")
        if name != without:
            rows.append(".".join(cell.encode().hex() for cell in cells))
    return [[" ".join(rows)]]


class Scripted:
    """A session that answers by what a statement contains."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def rows(self, statement: str) -> list[list[str]]:
        self.asked.append(statement)
        for answer in self._answers:
            found = answer(statement)
            if found is not None:
                return found
        if "system.settings" in statement:
            return settings_answer()
        return [["0"]]

    def stream(self, statement: str, *, query_id: str, deadline: Deadline) -> BatchStream:
        raise AssertionError(statement)

    def close(self) -> None:
        return


class ScriptedSource(ClickHouseSource):
    """A source over one scripted session."""

    name = "The scripted source"

    def __init__(self, session: Scripted) -> None:
        super().__init__()
        self._session = session

    def _acquire(self) -> None:
        return

    def _release(self) -> None:
        return

    def _new_session(self) -> Session:
        return self._session


def denied(part: str) -> Answer:
    def answer(statement: str) -> list[list[str]] | None:
        if part in statement:
            raise answered(ACCESS_DENIED, "ACCESS_DENIED", "reading the catalog")
        return None

    return answer


def test_a_user_without_select_is_told_what_to_grant() -> None:
    """[F7] At admission, not in the read."""
    with ScriptedSource(Scripted(denied("LIMIT 0"))) as source, pytest.raises(ConfigurationError) as caught:
        source.compile(TABLE, LAYOUT, ["k"], None, Window.full())
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("dpone.source.access", "shop.orders")
    assert "GRANT SELECT on the delivered columns" in problem.message


def test_a_server_that_lacks_a_newer_setting_gets_the_others() -> None:
    """[G4] 115: asked again without what not every version knows."""

    def answer(statement: str) -> list[list[str]] | None:
        if "apply_patch_parts = " in statement:
            raise answered(UNKNOWN_SETTING, None, "reading the catalog")
        return settings_answer(without="apply_patch_parts") if "system.settings" in statement else None

    session = Scripted(answer)
    with ScriptedSource(session) as source:
        assert source._setting_problems(session) == []
    assert "limit = 0" in session.asked[-1]


def test_a_constraint_leaves_a_setting_out_and_names_it() -> None:
    """[F2] 452: what may not be set must be right already; here it is not."""

    def answer(statement: str) -> list[list[str]] | None:
        if "final = 0" in statement:
            raise answered(CONSTRAINT, None, "reading the catalog")
        return settings_answer(final="1/1") if "system.settings" in statement else None

    session = Scripted(answer)
    with ScriptedSource(session) as source:
        assert "final" not in source._sendable.sent
        assert source._sendable.sent["limit"] == "0"
        problems = source._setting_problems(session)
    assert [problem.where for problem in problems] == ["setting final"]


def test_a_profile_that_hides_its_settings_is_refused() -> None:
    """[F2] No row at all: its own limits apply to the question too."""
    session = Scripted(lambda s: [] if "system.settings" in s and "SETTINGS" in s else None)
    with ScriptedSource(session) as source:
        problems = source._setting_problems(session)
    assert [problem.where for problem in problems] == ["system.settings"]


def test_a_source_is_closed_before_and_after() -> None:
    source = ScriptedSource(Scripted())
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="The scripted source is not open"):
            source.describe("shop", "orders")
        with source:
            source._ask("SELECT 1")


def test_bounds_reach_the_statement_as_integers() -> None:
    """[F1, B17] No wide literal, no cast of a float, no text of a date."""
    table = SourceTable("shop", "orders", "u", "MergeTree", (SourceColumn("at", "DateTime64(6)"),), {})
    layout = WireLayout((WireColumn("at", pair_of("DateTime64(6)", "datetime2(6)")),))
    window = Window(datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 2, tzinfo=UTC))
    with ScriptedSource(Scripted()) as source:
        query = source.compile(table, layout, ["at"], "at", window)
    assert "toInt64(1735689600000000)" in query.predicate
    assert "2025" not in query.text
