"""Which windows an audit names: against a model of what a target shows, and the cases that it tells apart."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_dpone.delivery import identity
from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.audit import Audit, audit
from airflow_dpone.delivery.deliver import run_phases
from airflow_dpone.delivery.recovery import retire
from airflow_dpone.delivery.run import Request
from airflow_dpone.delivery.states import DeliveryState
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, Incident, JournalError
from airflow_dpone.journal import publications
from tests.fakes import target_storage
from tests.fakes.target import SqliteTarget
from tests.fakes.world import DAY, NEXT_DAY, SCHEMA, START, TABLE, TARGET_COLUMNS, World, order, requester

DAYS = 4


def look(world: World, **how: Any) -> Audit:
    with world.open_journal() as journal:
        return audit(journal, world.target, **how)


def days(start: int, end: int) -> Window:
    return Window(START + timedelta(days=start), START + timedelta(days=end))


def image(world: World) -> bytes:
    """The target's database as it is now."""
    with closing(sqlite3.connect(world.target.path)) as target:
        return target.serialize()


def put_back(world: World, copy: bytes) -> None:
    """The target is an older copy of itself."""
    for suffix in ("-wal", "-shm", "-journal"):
        world.target.path.with_name(world.target.path.name + suffix).unlink(missing_ok=True)
    world.target.path.write_bytes(copy)


def found(audited: Audit) -> dict[str, str]:
    """Reason by window."""
    return {one.window: one.reason for table in audited.tables for one in table.findings}


def gate(audited: Audit) -> str:
    (table,) = audited.tables
    return table.gate


# ---- the model ---------------------------------------------------------------------------------------------


@dataclass
class Model:
    """What each day of the target shows, by the numbers that the source's rows had when they were read."""

    world: World
    published: list[tuple[str, range]] = field(default_factory=list)
    """Every publication that the journal knows, oldest first."""
    shown: dict[int, int] = field(default_factory=dict)
    copies: list[tuple[bytes, int]] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    version: int = 0

    def deliver(self, span: range) -> None:
        self.version += 1
        rows = [order(10 + day, day=day, customer=self.version) for day in range(DAYS)]
        self.world.source.edit(rows=rows)
        window = days(span.start, span.stop)
        who = requester(f"{span.start}-{span.stop}")
        result = self.world.deliver(who, window=window, rerun=True)
        self.published.append((result.operation_id, span))
        self.shown.update(dict.fromkeys(span, self.version))

    def back_up(self) -> None:
        self.copies.append((image(self.world), len(self.published)))

    def restore(self, number: int) -> None:
        """What was published after the copy is lost, until somebody delivers it again."""
        copy, known = self.copies[number % len(self.copies)]
        put_back(self.world, copy)
        there = {operation_id for _, _, operation_id, _ in self.world.target.receipts()}
        self.lost = {operation_id for operation_id, _ in self.published if operation_id not in there}
        assert self.lost >= {operation_id for operation_id, _ in self.published[known:]}

    def expected(self) -> set[str]:
        """The windows that own a day whose newest publication is lost."""
        owners: dict[int, tuple[str, range]] = {}
        for one in self.published:
            owners.update(dict.fromkeys(one[1], one))
        return {days(s.start, s.stop).key for operation_id, s in owners.values() if operation_id in self.lost}


spans = st.tuples(st.integers(0, DAYS - 1), st.integers(1, DAYS)).map(
    lambda pair: range(pair[0], min(pair[0] + pair[1], DAYS))
)
steps = st.one_of(spans, st.just("back up"), st.integers(0, 3))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told=st.lists(steps, min_size=3, max_size=9))
def test_exactly_the_lost_windows_are_named_and_delivering_them_again_heals(
    fresh_world: World, tmp_path_factory: pytest.TempPathFactory, told: list[Any]
) -> None:
    """[A7] Whatever was delivered, backed up and put back in which order, windows overlapping as they like:
    a window is named if and only if a day that it owns is not shown as it was published."""
    world = fresh_world.copy(tmp_path_factory.mktemp("model") / "world")
    model = Model(world)
    model.deliver(range(0, 1))
    model.back_up()
    for step in [*told, 0]:
        if isinstance(step, range):
            model.deliver(step)
        elif step == "back up":
            model.back_up()
        else:
            model.restore(step)
        audited = look(world)
        assert set(found(audited)) == model.expected()
        assert audited.is_clean is not model.expected()
    for one in [one for table in audited.tables for one in table.findings]:
        start, end = (int(part) for part in one.run_id.split("-"))
        model.deliver(range(start, end))
    assert look(world).is_clean
    assert {row[7].day - 1: row[1] for row in world.rows()} == model.shown
    shutil.rmtree(world.root)


# ---- what is told apart ------------------------------------------------------------------------------------


def test_nothing_is_found_where_everything_is_there(world: World) -> None:
    world.deliver()
    world.deliver(requester("run-2"), window=NEXT_DAY)
    world.deliver(requester("run-3"))
    audited = look(world)
    assert audited.is_clean
    (table,) = audited.tables
    assert (table.target, table.windows, table.superseded, table.gate) == (
        (SCHEMA, TABLE), 2, 0, "as_published",
    )  # fmt: skip


def test_a_target_that_was_put_back_between_receipt_and_evidence(world: World) -> None:
    """[A7] The checkpoint stops with ``receipt_lost``; the audit names the window in every state that follows
    until it is delivered again, and says each time what to do."""
    world.deliver(requester("run-0"), window=NEXT_DAY)
    copy = image(world)
    with world.open_journal() as journal:
        run_phases(world.ports(journal), Request(world.route(), DAY, requester(), last_phase="publish"))
    assert look(world).is_clean
    put_back(world, copy)
    said = [look(world).tables[0].findings[0]]
    with pytest.raises(Incident) as raised:
        world.deliver(requester(try_number=2))
    assert raised.value.code == "dpone.publish.receipt_lost"
    said.append(look(world).tables[0].findings[0])
    with world.open_journal() as journal:
        retire(world.ports(journal), said[0].invocation_key)
    said.append(look(world).tables[0].findings[0])
    cleared = requester(try_number=2, ti_id="run-1-try-2", max_tries=4)
    assert world.deliver(cleared).generation == 2
    assert {(one.window, one.run_id, one.reason) for one in said} == {(DAY.key, "run-1", "receipt_missing")}
    actions = [one.next_action for one in said]
    assert actions[0].startswith("Clear the task: it stops with an incident.")
    assert actions[1].startswith("Give the delivery up: python -m airflow_dpone recovery retire --delivery ")
    assert actions[2].startswith("Clear the task (of a group: admit")
    assert look(world).is_clean


def test_a_window_that_is_being_delivered_again_is_told_as_such(world: World) -> None:
    world.deliver(requester("run-0"), window=NEXT_DAY)
    copy = image(world)
    world.deliver()
    put_back(world, copy)
    with world.open_journal() as journal:
        asked = Request(world.route(), DAY, requester(), rerun=True, last_phase="extract")
        run_phases(world.ports(journal), asked)
    (finding,) = look(world).tables[0].findings
    assert finding.generation == 1
    assert "it is being delivered again, and is EXTRACTED" in finding.next_action


def test_a_task_that_has_delivered_another_window_since_is_not_the_one_to_clear(world: World) -> None:
    world.deliver(requester("run-0"), window=NEXT_DAY)
    copy = image(world)
    world.deliver()
    world.deliver(window=days(2, 3), rerun=True)
    put_back(world, copy)
    first, second = look(world).tables[0].findings
    assert (first.window, second.window) == (DAY.key, days(2, 3).key)
    assert days(2, 3).key in first.next_action
    assert "a run of its own" in first.next_action
    assert second.next_action.startswith("Clear the task")


def test_a_whole_table_replaces_every_window_before_it(world: World) -> None:
    world.deliver()
    world.deliver(requester("run-2"), window=NEXT_DAY)
    full = world.route(strategy="full_refresh")
    copy = image(world)
    world.deliver(requester("full"), window=Window.full(), route=full)
    world.deliver(requester("run-3"), window=NEXT_DAY)
    assert [(t.windows, t.superseded) for t in look(world).tables] == [(2, 1)]
    put_back(world, copy)
    audited = look(world)
    assert set(found(audited)) == {"full", NEXT_DAY.key}
    assert {
        (one.window_from, one.window_to) for one in audited.tables[0].findings if one.window == "full"
    } == {(None, None)}


def test_another_route_s_window_is_for_that_route_to_deliver(world: World) -> None:
    world.deliver(requester("run-0"), window=NEXT_DAY)
    copy = image(world)
    world.deliver()
    put_back(world, copy)
    takes_over = world.options.model_copy(update={"take_over_target": True})
    other = world.route(source_name="another", options=takes_over)
    world.deliver(requester("other"), window=days(2, 3), route=other)
    (finding,) = look(world).tables[0].findings
    assert finding.next_action.startswith("Another route delivers this table by now")
    world.deliver(requester("other-day"), route=other)
    assert look(world).is_clean, "the same rows were replaced, whichever route did it"
    put_back(world, copy)
    mine, others = look(world).tables[0].findings
    assert (mine.run_id, others.run_id) == ("other-day", "other")
    assert others.next_action.startswith("Clear the task"), "the gate is of the old route again"


def test_a_receipt_that_somebody_removed_or_changed(world: World) -> None:
    world.deliver()
    world.deliver(requester("run-2"), window=NEXT_DAY)
    world.deliver(requester("run-3"), window=days(2, 3))
    with target_storage.session(world.target.path) as target:
        target.execute('DELETE FROM "dpone.delivery_receipt" WHERE window_key = ?', (DAY.key,))
        target.execute(
            'UPDATE "dpone.delivery_receipt" SET row_count = row_count + 1 WHERE window_key = ?',
            (NEXT_DAY.key,),
        )
    audited = look(world)
    assert found(audited) == {DAY.key: "receipt_missing", NEXT_DAY.key: "receipt_differs"}
    assert gate(audited) == "as_published"


@pytest.mark.parametrize("column", ["receipt_sha256", "deleted_rows", "published_at", "digest", "fence"])
def test_no_column_of_a_receipt_may_differ(world: World, column: str) -> None:
    world.deliver()
    with target_storage.session(world.target.path) as target:
        changed = {"deleted_rows": 99, "fence": 99, "published_at": "2031-01-01T00:00:00.000000Z"}
        value = changed.get(column, "f" * 64)
        target.execute(f'UPDATE "dpone.delivery_receipt" SET {column} = ?', (value,))
    assert found(look(world)) == {DAY.key: "receipt_differs"}


def test_a_table_that_is_gone_or_another_one(world: World) -> None:
    world.deliver()
    world.deliver(requester("run-2"), window=NEXT_DAY)
    columns = target_storage.columns_of
    with target_storage.session(world.target.path) as target:
        kept = list(columns(target, SCHEMA, TABLE))
        target.execute(f"DROP TABLE {target_storage.table_name(SCHEMA, TABLE)}")
    audited = look(world)
    assert found(audited) == dict.fromkeys((DAY.key, NEXT_DAY.key), "table_missing")
    assert all("Else make it" in one.next_action for one in audited.tables[0].findings)
    world.target.add_table(SCHEMA, TABLE, kept)
    assert found(look(world)) == dict.fromkeys((DAY.key, NEXT_DAY.key), "table_replaced")
    world.deliver(requester("run-2"), window=NEXT_DAY, rerun=True)
    assert found(look(world)) == {DAY.key: "table_replaced"}


# ---- the gate ----------------------------------------------------------------------------------------------


def test_the_gate_says_that_the_target_is_an_older_copy(world: World) -> None:
    """Also after a delivery has raised its fence above every fence that was lost."""
    world.deliver()
    copy = image(world)
    world.deliver(requester("run-2"), window=NEXT_DAY)
    put_back(world, copy)
    assert gate(look(world)) == "behind"
    with world.open_journal() as journal:
        asked = Request(world.route(), days(2, 3), requester("run-3"), last_phase="stage")
        run_phases(world.ports(journal), asked)
    audited = look(world)
    assert (gate(audited), set(found(audited))) == ("behind", {NEXT_DAY.key})


def test_a_publication_that_is_on_its_way_into_the_journal_is_no_finding(world: World) -> None:
    class Died(BaseException):
        pass

    def die(point: str) -> None:
        if point == "after_target_publish":
            raise Died

    world.deliver()
    with pytest.raises(Died):
        world.deliver(requester("run-2"), window=NEXT_DAY, observer=die)
    assert look(world).is_clean


def test_a_journal_of_before_its_first_publication_is_an_older_copy(world: World, tmp_path: Path) -> None:
    """It has nothing to compare, and would refuse every delivery: the gate is the only witness."""
    with world.open_journal() as journal:
        run_phases(world.ports(journal), Request(world.route(), DAY, requester(), last_phase="stage"))
    with closing(sqlite3.connect(world.journal_path)) as journal:
        journal.execute("VACUUM INTO ?", (str(tmp_path / "older.db"),))
    world.deliver()
    (tmp_path / "older.db").rename(world.root / "older.db")
    world.journal_name = "older.db"
    audited = look(world)
    assert (gate(audited), found(audited), audited.is_clean) == ("newer_than_journal", {}, False)


def test_the_gate_s_row_is_gone(world: World) -> None:
    world.deliver()
    with target_storage.session(world.target.path) as target:
        target.execute('DELETE FROM "dpone.target_gate"')
    audited = look(world)
    assert (gate(audited), found(audited)) == ("missing", {})
    assert not audited.is_clean


# ---- what cannot be compared -------------------------------------------------------------------------------


def test_a_database_without_any_of_the_tables_is_refused(world: World, tmp_path: Path) -> None:
    """Clean would be the wrong word for a wrong connection, and for a copy of before the first delivery."""
    copy = image(world)
    with pytest.raises(ConfigurationError, match="knows no delivery into any table"):
        look(world)
    world.deliver()
    with pytest.raises(ConfigurationError, match=r"into dbo\.other of this database"):
        look(world, table=(SCHEMA, "other"))
    assert look(world, table=(SCHEMA.upper(), TABLE.upper())).is_clean
    put_back(world, copy)
    with pytest.raises(ConfigurationError) as raised:
        look(world)
    assert raised.value.code == "dpone.audit.nothing_to_compare"
    other = World.create(tmp_path / "other")
    other.deliver()
    with pytest.raises(ConfigurationError), world.open_journal() as journal:
        audit(journal, other.target)


def test_a_name_that_means_something_else_by_now_stops_only_its_own_table(world: World) -> None:
    class Target(SqliteTarget):
        def identify(self, schema: str, table: str, **how: bool) -> tr.TargetIdentity:  # type: ignore[override]
            if table == TABLE:
                raise ConfigurationError("dpone.target.not_a_table", "It is a view.")
            return super().identify(schema, table, initialise=False, may_be_missing=True)

    world.target.add_table(SCHEMA, "sold", TARGET_COLUMNS)
    world.deliver()
    world.deliver(requester("run-2"), route=world.route(target_table=(SCHEMA, "sold")))
    with world.open_journal() as journal:
        view, sold = audit(journal, Target(world.target.path)).tables
    assert (view.target, view.gate, [one.reason for one in view.findings]) == (
        (SCHEMA, TABLE), "unknown", ["table_missing"],
    )  # fmt: skip
    assert sold.is_clean


def test_an_unfinished_delivery_alone_is_nothing_to_find(world: World) -> None:
    with world.open_journal() as journal:
        run_phases(world.ports(journal), Request(world.route(), DAY, requester(), last_phase="verify"))
    audited = look(world)
    assert audited.is_clean
    assert [table.windows for table in audited.tables] == [0]


def test_a_damaged_event_is_not_believed(world: World) -> None:
    world.deliver()
    with target_storage.session(world.journal_path) as journal:
        journal.execute(
            "UPDATE dpone_event SET body = replace(body, '\"deleted_rows\":0', '\"deleted_rows\":1') "
            "WHERE event = 'PUBLISHED'"
        )
    with pytest.raises(JournalError) as raised:
        look(world)
    assert raised.value.code == "dpone.journal.chain_broken"


# ---- how much is asked -------------------------------------------------------------------------------------


def test_pages_of_the_journal_join_without_a_gap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    results = [world.deliver(requester(f"run-{n}"), window=days(n, n + 1)) for n in range(7)]
    with world.open_journal() as journal:
        (target,) = journal.targets()
        whole = {one.operation_id for one in journal.publications(target.target_key)}
        for size in (1, 2, 7, 8):
            monkeypatch.setattr(publications, "PAGE", size)
            paged = [one.operation_id for one in journal.publications(target.target_key)]
            assert len(paged) == len(set(paged)) == 7
            assert set(paged) == whole == {one.operation_id for one in results}


class ManyWindows:
    """A journal and a target in one: a thousand days were published, no receipt is there."""

    journal_id = "j"
    key = identity.target_key("i", SCHEMA, TABLE)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def targets(self) -> list[tr.TargetRef]:
        return [tr.TargetRef(self.key, SCHEMA, TABLE, 1, "0", "f")]

    def publications(self, target_key: str) -> Iterator[jr.Publication]:
        for number in range(1000):
            yield jr.Publication(
                "d", 1, 1, "i", "dag", "run", "task", -1, DeliveryState.COMPLETED, "r",
                days(number, number + 1).key, "at", 1, "0", number + 1, f"op-{number}", "sha", 0, "2025",
            )  # fmt: skip

    def fence(self, target_key: str) -> int:
        return 1000

    def __enter__(self) -> ManyWindows:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def identify(self, schema: str, table: str, **how: bool) -> tr.TargetIdentity:
        row = tr.GateRow(self.key, 1, "0", "j", "r", 1000, None, "op-999", None)
        return tr.TargetIdentity("i", schema, table, 1, "0", row)

    def read_receipts(self, operation_ids: Sequence[str]) -> dict[str, tr.Receipt]:
        self.asked.append(len(operation_ids))
        return {}


def test_receipts_are_asked_for_by_the_hundred() -> None:
    """And the newest generation of a task is not asked for where its publication is that."""
    many: Any = ManyWindows()
    audited = audit(many, many)
    assert many.asked == [100] * 10
    assert len(audited.tables[0].findings) == 1000
