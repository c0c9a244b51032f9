"""The contract of ``TargetPort`` and ``WriterPort``, on every implementation of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone.delivery import records as r
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.delivery.column_map import map_columns
from airflow_dpone.delivery.drift import differences
from airflow_dpone.delivery.identity import key_of
from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import (
    CATALOGUE,
    ConfigurationError,
    DponeError,
    Fenced,
    Incident,
    JournalError,
    SpoolError,
    TargetBusy,
)
from airflow_dpone.quality_settings import TableCheck
from airflow_dpone.settings import Route
from airflow_dpone.wire.digest import DigestSum
from tests.contract.target_cases import (
    AMOUNT,
    BEFORE,
    DAY,
    EXTREMES,
    ID,
    JOURNAL,
    LABS,
    NAME,
    NEW,
    ORDERS,
    OTHER_JOURNAL,
    OTHER_ROUTE,
    OUTSIDE,
    ROUTE,
    SCHEMA,
    TS,
    Column,
    Delivery,
    Lab,
    Row,
    at,
    batch_of,
    layout_of,
    sorted_rows,
    sum_of,
)


@pytest.fixture(params=sorted(LABS))
def empty_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    """A database without a table."""
    return LABS[request.param](tmp_path)


@pytest.fixture
def lab(empty_lab: Lab) -> Lab:
    """A database with one table and rows in it."""
    empty_lab.create_table("orders", ORDERS)
    empty_lab.insert("orders", BEFORE)
    return empty_lab


@pytest.fixture
def target(lab: Lab) -> Iterator[Any]:
    with lab.open() as opened:
        yield opened


@pytest.fixture
def delivery(target: Any) -> Delivery:
    return Delivery(target)


def refused(error: type[DponeError], code: str, call: Callable[[], object]) -> DponeError:
    with pytest.raises(error) as caught:
        call()
    assert caught.value.code == code
    return caught.value


def rolled_back(outcome: tr.PublishOutcome, code: str, number: int | None = None) -> None:
    assert (outcome.kind, outcome.code, outcome.error_number) == ("rolled_back", code, number)
    assert code in CATALOGUE


# ---- admission ------------------------------------------------------------------------------------


def test_asking_who_the_target_is_changes_nothing(target: Any) -> None:
    for _ in range(2):
        found = target.identify(SCHEMA, "orders", initialise=False)
        assert (found.installation_id, found.gate) == (None, None)


def test_the_first_admission_gives_identities_that_stay(lab: Lab) -> None:
    with lab.open() as target:
        first = target.identify(SCHEMA, "orders", initialise=True)
    with lab.open() as target:
        assert target.identify(SCHEMA, "orders", initialise=False) == first
        assert target.identify(SCHEMA, "orders", initialise=True) == first
    assert first.installation_id
    assert first.object_id > 0
    assert len(bytes.fromhex(first.created)) == 8
    assert (first.schema, first.table) == (SCHEMA, "orders")


def test_a_table_that_was_made_again_is_another_one(lab: Lab) -> None:
    with lab.open() as target:
        first = target.identify(SCHEMA, "orders", initialise=True)
    lab.drop_table("orders")
    lab.create_table("orders", ORDERS)
    with lab.open() as target:
        second = target.identify(SCHEMA, "orders", initialise=True)
    assert (second.object_id, second.created) != (first.object_id, first.created)
    assert second.target_key == first.target_key


def test_a_missing_table_is_named_with_its_neighbours(target: Any) -> None:
    error = refused(
        ConfigurationError,
        "dpone.target.table_missing",
        lambda: target.identify(SCHEMA, "order", initialise=True),
    )
    assert f"{SCHEMA}.orders" in str(error)
    refused(ConfigurationError, "dpone.target.table_missing", lambda: target.describe("shop2", "orders"))


def test_a_view_is_no_target(lab: Lab) -> None:
    """[A19]"""
    lab.create_view("seen", "orders")
    with lab.open() as target:
        refused(
            ConfigurationError,
            "dpone.target.not_a_table",
            lambda: target.identify(SCHEMA, "seen", initialise=True),
        )


# ---- a table that changed -------------------------------------------------------------------------

CHANGED = (
    Column("id", "Int64", "int"),
    Column("name", "Nullable(String)", "nvarchar(10)", True),
    Column("ts", "Nullable(DateTime64(3))", "datetime2(3)", False),
    Column("added", "Int64", "bigint", False),
)


def test_every_change_of_the_columns_is_told_exactly_and_at_once(lab: Lab) -> None:
    with lab.open() as target:
        before = target.describe(SCHEMA, "orders")
        assert differences(before.columns, target.describe(SCHEMA, "orders").columns) == []
    lab.drop_table("orders")
    lab.create_table("orders", CHANGED)
    with lab.open() as target:
        after = target.describe(SCHEMA, "orders")
    assert after.fingerprint != before.fingerprint
    assert differences(before.columns, after.columns) == [
        "amount is gone (it was decimal(18,2) NULL)",
        "added is new (bigint NOT NULL)",
        "id is int NOT NULL, planned as bigint NOT NULL",
        "name is nvarchar(10) NULL, planned as nvarchar(20) NULL",
        "ts is datetime2(3) NOT NULL, planned as datetime2(3) NULL",
    ]


def test_columns_in_another_order_are_another_table(lab: Lab) -> None:
    with lab.open() as target:
        before = target.describe(SCHEMA, "orders")
    lab.drop_table("orders")
    lab.create_table("orders", (TS, *ORDERS[:-1]))
    with lab.open() as target:
        after = target.describe(SCHEMA, "orders")
    (text,) = differences(before.columns, after.columns)
    assert text.endswith("another order: ts, id, name, amount; planned as id, name, amount, ts")


def test_a_new_plan_refuses_every_column_that_does_not_fit_at_once(lab: Lab) -> None:
    """Missing, too much, of another type, without room for NULL: one error, before anything."""
    lab.drop_table("orders")
    lab.create_table("orders", CHANGED)
    columns = tuple(r.SourceColumn(c.name, c.source) for c in ORDERS)
    source = r.SourceTable("shop", "orders", "", "MergeTree", columns, {})
    route = Route(
        source="chdb:///s",
        source_table=("shop", "orders"),
        target="duckdb:///t",
        target_table=(SCHEMA, "orders"),
        window_column="ts",
    )
    with lab.open() as target:
        mapping = map_columns(route, source, target.describe(SCHEMA, "orders"))
    assert sorted((problem.code, problem.where) for problem in mapping.problems) == [
        ("dpone.config.unknown_column", "amount"),
        ("dpone.types.nullability", "ts"),
        ("dpone.types.pair", "id"),
        ("dpone.types.unmapped_target_column", "added"),
    ]


# ---- a table that is missing ----------------------------------------------------------------------

WANTED = tuple(
    tr.TargetColumn(f"c{i} {kind}", kind, nullable)
    for nullable in (False, True)
    for i, kind in enumerate(
        "bigint int smallint tinyint bit real float(53) decimal(38,10) decimal(20,0) date datetime2(0) "
        "datetime2(1) datetime2(3) datetime2(4) datetime2(6) nvarchar(max) binary(3) varbinary(max) "
        "uniqueidentifier".split(),
        start=100 * nullable,
    )
)


def test_a_missing_table_is_an_answer_where_it_may_be_made(lab: Lab) -> None:
    with lab.open() as target:
        there = target.identify(SCHEMA, "orders", initialise=True, may_be_missing=True)
        assert not there.is_missing
        assert there == target.identify(SCHEMA, "orders", initialise=True)
        found = target.identify(SCHEMA, "made", initialise=True, may_be_missing=True)
    assert found.is_missing
    assert (found.schema, found.table, found.object_id, found.created) == (SCHEMA, "made", 0, "0" * 16)
    assert found.gate is None
    assert found.target_key != there.target_key


def test_a_new_table_has_exactly_the_columns_that_were_asked_for(lab: Lab) -> None:
    with lab.open() as target:
        before = target.identify(SCHEMA, "made", initialise=True, may_be_missing=True)
        new = target.new_table(SCHEMA, "made", WANTED)
        assert (new.table.columns, new.table.problems, new.table.warnings) == (WANTED, (), ())
        assert "CREATE TABLE" in new.statement
        assert target.create_table(SCHEMA, "made", WANTED) is True
        after = target.identify(SCHEMA, "made", initialise=True)
        assert (after.target_key, after.is_missing) == (before.target_key, False)
        found = target.describe(SCHEMA, "made")
        assert (found.columns, found.problems, found.warnings) == (WANTED, (), ())
    assert lab.rows("made") == []


def test_a_missing_table_has_the_names_that_it_will_be_stored_under(lab: Lab) -> None:
    """Asked for in other letters, where the database does not care for case."""
    asked = (SCHEMA.upper(), "made")
    with lab.open() as target:
        before = target.identify(*asked, initialise=True, may_be_missing=True)
        if target.new_table(*asked, WANTED).table.problems:
            pytest.skip("capability gap: names that differ in case are other names here")
        assert target.create_table(before.schema, before.table, WANTED) is True
        after = target.identify(*asked, initialise=True)
        assert (after.target_key, after.schema) == (before.target_key, before.schema)


def test_looking_at_a_new_table_makes_nothing(lab: Lab) -> None:
    with lab.open() as target:
        target.new_table(SCHEMA, "made", WANTED)
        assert target.identify(SCHEMA, "made", initialise=False, may_be_missing=True).is_missing


def test_a_table_that_is_there_is_not_made_and_not_changed(lab: Lab) -> None:
    """The second of two that make it at the same time finds the first one's."""
    with lab.open() as target:
        found = target.identify(SCHEMA, "orders", initialise=True)
        described = target.describe(SCHEMA, "orders")
        assert target.create_table(SCHEMA, "orders", WANTED) is False
        assert target.identify(SCHEMA, "orders", initialise=True) == found
        assert target.describe(SCHEMA, "orders") == described
    assert sorted_rows(lab.rows("orders")) == sorted_rows(BEFORE)


def test_a_view_of_that_name_is_not_replaced(lab: Lab) -> None:
    lab.create_view("seen", "orders")
    with lab.open() as target:
        target.identify(SCHEMA, "orders", initialise=True)
        assert target.create_table(SCHEMA, "seen", WANTED) is False
        refused(
            ConfigurationError,
            "dpone.target.not_a_table",
            lambda: target.identify(SCHEMA, "seen", initialise=True, may_be_missing=True),
        )


def test_a_schema_that_is_missing_or_ours_takes_no_new_table(lab: Lab) -> None:
    with lab.open() as target:
        target.identify(SCHEMA, "orders", initialise=True)
        for schema, code in (
            ("nowhere", "dpone.target.schema_missing"),
            ("dpone", "dpone.target.not_a_table"),
            ("dpone_stage", "dpone.target.not_a_table"),
        ):
            problems = target.new_table(schema, "made", WANTED).table.problems
            assert [problem.code for problem in problems] == [code]


def test_what_a_new_table_holds_is_delivered_like_any_other(lab: Lab) -> None:
    with lab.open() as target:
        target.identify(SCHEMA, "made", initialise=True, may_be_missing=True)
        columns = [tr.TargetColumn(c.name, c.type, c.nullable) for c in ORDERS]
        target.create_table(SCHEMA, "made", columns)
        _, outcome = Delivery(target, table="made").deliver(NEW)
        assert outcome.kind == "committed"
    assert sorted_rows(lab.rows("made")) == sorted_rows(NEW)


def test_columns_have_their_declared_types_and_nullability(target: Any) -> None:
    found = target.describe(SCHEMA, "orders")
    assert found.columns == tuple(tr.TargetColumn(c.name, c.type, c.nullable) for c in ORDERS)
    assert found.problems == ()


def test_a_new_column_changes_the_fingerprint(lab: Lab) -> None:
    with lab.open() as target:
        before = target.describe(SCHEMA, "orders").fingerprint
    lab.add_column("orders", "more")
    with lab.open() as target:
        assert target.describe(SCHEMA, "orders").fingerprint != before


def test_the_window_is_counted_as_it_would_be_deleted(delivery: Delivery) -> None:
    count = delivery.target.count_window
    assert count(delivery.ref, "ts", delivery.window) == 3
    assert count(delivery.ref, None, Window.full()) == len(BEFORE)


def test_statements_name_staging_and_publication(delivery: Delivery) -> None:
    texts = delivery.target.statements(delivery.ref, delivery.layout, "ts")
    assert any("DELETE FROM" in text and "orders" in text and "ts" in text for text in texts.values())
    assert any("INSERT INTO" in text and "orders" in text for text in texts.values())
    full = delivery.target.statements(delivery.ref, delivery.layout, None)
    assert not any(re.search("DELETE FROM [^;]*WHERE", text) for text in full.values())
    hashed = delivery.target.statements(delivery.ref, delivery.layout, "ts", after_image_digest=True)
    assert sum(map(len, hashed.values())) > sum(map(len, texts.values()))


# ---- the gate -------------------------------------------------------------------------------------


def test_the_gate_is_made_once_and_only_rises(delivery: Delivery) -> None:
    assert delivery.gate() is None
    made = delivery.claim(fence=5)
    assert (made.fence, made.journal_id, made.route_scope) == (5, JOURNAL, ROUTE)
    assert made == delivery.gate()
    assert delivery.claim(fence=9).fence == 9
    for fence in (9, 8):
        refused(Fenced, "dpone.target.fenced", lambda fence=fence: delivery.claim(fence=fence))
    row = delivery.gate()
    assert row is not None
    assert row.fence == 9


def test_another_journal_does_not_get_the_gate(delivery: Delivery) -> None:
    """[A14]"""
    delivery.claim(fence=5)
    for take_over in (False, True):
        refused(
            JournalError,
            "dpone.journal.not_bound_to_target",
            lambda take_over=take_over: delivery.claim(
                fence=6, journal_id=OTHER_JOURNAL, route_scope=OTHER_ROUTE, take_over=take_over
            ),
        )


def test_another_route_gets_the_gate_only_when_told_to(delivery: Delivery) -> None:
    delivery.claim(fence=5)
    refused(
        ConfigurationError,
        "dpone.target.owned_by_other_route",
        lambda: delivery.claim(fence=6, route_scope=OTHER_ROUTE),
    )
    assert delivery.claim(fence=6, route_scope=OTHER_ROUTE, take_over=True).route_scope == OTHER_ROUTE
    refused(ConfigurationError, "dpone.target.owned_by_other_route", lambda: delivery.claim(fence=7))


def test_a_committed_in_flight_mark_stops_every_claim(lab: Lab) -> None:
    with lab.open() as target:
        Delivery(target).claim(fence=5)
    lab.set_in_flight(key_of(["somebody's operation"]))
    with lab.open() as target:
        delivery = Delivery(target)
        refused(Incident, "dpone.target.in_flight_committed", lambda: delivery.claim(fence=6))
        row = delivery.gate()
        assert row is not None
        assert row.in_flight_operation_id == key_of(["somebody's operation"])


def test_a_claim_binds_the_gate_to_the_table_as_it_is_now(lab: Lab) -> None:
    """A table that was made again while nobody delivered is a target like any other."""
    with lab.open() as target:
        first = Delivery(target)
        first.deliver(NEW)
    make_again(lab)
    with lab.open() as target:
        again = Delivery(target, invocation="two", generation=2, fence=first.fence)
        assert again.deliver(NEW)[1].kind == "committed"
        row = again.gate()
        assert row is not None
        assert (row.target_object_id, row.target_created) == (again.ref.object_id, again.ref.created)
    assert lab.rows("orders") == sorted_rows([*OUTSIDE, *NEW])


def test_an_adopted_gate_is_of_the_new_journal_and_keeps_what_it_remembers(lab: Lab) -> None:
    """[A14] The way out of a gate that another journal governs."""
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.deliver(NEW)
        before = delivery.gate()
        adopt = partial(target.adopt_gate, delivery.ref.target_key, journal_id=OTHER_JOURNAL)
        refused(JournalError, "dpone.journal.not_bound_to_target", lambda: adopt(fence=99, take_over=False))
        refused(Fenced, "dpone.target.fenced", lambda: adopt(fence=before.fence, take_over=True))
        assert delivery.gate() == before
        assert adopt(fence=99, take_over=True) == before
        assert delivery.gate() == replace(before, journal_id=OTHER_JOURNAL, fence=99)
        assert target.adopt_gate("00" * 32, journal_id=OTHER_JOURNAL, fence=1, take_over=True) is None


def test_an_adopted_gate_lets_no_older_send_through_and_has_nothing_in_flight(lab: Lab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.claim(fence=5)
    lab.set_in_flight(key_of(["somebody's operation"]))
    with lab.open() as target:
        delivery = Delivery(target)
        key = delivery.ref.target_key
        adopted = target.adopt_gate(key, journal_id=JOURNAL, fence=50, take_over=False)
        assert adopted.in_flight_operation_id == key_of(["somebody's operation"])
        assert delivery.gate().in_flight_operation_id is None
        refused(Fenced, "dpone.target.fenced", lambda: delivery.claim(fence=50))
        delivery.fence = 40
        late = target.publish(delivery.request(delivery.prepare(NEW), NEW))
        assert (late.kind, late.code) == ("rolled_back", "dpone.publish.fenced")
    assert lab.rows("orders") == sorted_rows(BEFORE)


def test_a_database_that_was_never_initialised_has_no_gate_to_adopt(lab: Lab) -> None:
    with lab.open() as target:
        assert target.adopt_gate("00" * 32, journal_id=JOURNAL, fence=1, take_over=True) is None


# ---- staging --------------------------------------------------------------------------------------


def test_the_life_of_a_stage(lab: Lab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        stage = delivery.create()
        assert stage.object_id > 0
    with lab.open() as target:
        delivery = Delivery(target)
        assert delivery.target.find_stage(*delivery.names(0)) == stage
        delivery.grant(stage)
        said = delivery.write(stage, NEW[:1], [], NEW[1:])
        assert (said.outcome, said.rows) == ("success", 4)
    with lab.open() as target:
        delivery = Delivery(target)
        for _ in range(2):  # a verdict can be asked for again
            seen = delivery.verify(stage, 4, NEW)
            assert seen == tr.StageObservation(4, False, sum_of(NEW, delivery.layout))
        assert delivery.target.drop_stage(stage) is True
        assert delivery.target.drop_stage(stage) is False
        assert delivery.target.find_stage(*delivery.names(0)) is None
    assert lab.stage_names() == []


def test_a_stage_is_granted_once(delivery: Delivery) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    refused(Incident, "dpone.target.stage_state", lambda: delivery.grant(stage))
    delivery.verify(stage, 0)
    refused(Incident, "dpone.target.stage_state", lambda: delivery.grant(stage))


def test_a_verdict_without_a_grant_closes_the_stage_too(delivery: Delivery) -> None:
    stage = delivery.create()
    assert delivery.verify(stage, 4).rows == 0
    refused(Incident, "dpone.target.stage_state", lambda: delivery.grant(stage))


@pytest.mark.parametrize("state", ["created", "sealed", "retired"])
def test_only_a_granted_stage_is_written(delivery: Delivery, state: str) -> None:
    stage = delivery.create()
    if state != "created":
        delivery.grant(stage)
        delivery.write(stage, NEW[:1])
        delivery.verify(stage, 1, NEW[:1] if state == "sealed" else NEW[1:2])
    said = delivery.write(stage, NEW)
    assert (said.outcome, said.rows) == ("custody_lost", None)
    assert delivery.verify(stage, 9).rows == (0 if state == "created" else 1)


@pytest.mark.parametrize("after", ["a verdict", "a second verdict"])
def test_only_a_stage_that_holds_its_chunk_is_published(lab: Lab, delivery: Delivery, after: str) -> None:
    """[B2] The verdict is the mark's, and nothing leaves ``retired``: what is right later proves nothing."""
    stage = delivery.create()
    delivery.grant(stage)
    delivery.write(stage, NEW[:-1] if after == "a verdict" else NEW)
    assert delivery.verify(stage, len(NEW), NEW).rows == (3 if after == "a verdict" else 4)
    if after == "a second verdict":
        lab.delete_from_stage(stage.name, where_id=NEW[0][0])
        assert delivery.verify(stage, len(NEW), NEW).rows == 3
        lab.add_to_stage(stage.name, NEW[0])
    else:
        lab.add_to_stage(stage.name, NEW[-1])
    seen = delivery.verify(stage, len(NEW), NEW)
    assert (seen.rows, seen.proves(sum_of(NEW, delivery.layout))) == (len(NEW), False)
    assert not seen.holds(len(NEW), sum_of(NEW, delivery.layout).digest)
    refused(Incident, "dpone.target.stage_state", lambda: delivery.build("p_1", key_of(["p"]), [stage], 4))
    assert delivery.target.drop_stage(stage) is True


def test_a_name_is_never_used_twice(delivery: Delivery) -> None:
    delivery.create()
    refused(Incident, "dpone.target.stage_state", delivery.create)


def test_a_table_of_that_name_without_the_mark_is_never_touched(lab: Lab, delivery: Delivery) -> None:
    name, owner = delivery.names(0)
    lab.create_foreign_stage(name)
    stage = tr.StageRef(name, owner, 1)
    calls: list[Callable[[], object]] = [
        lambda: delivery.target.find_stage(name, owner),
        delivery.create,
        lambda: delivery.grant(stage),
        lambda: delivery.write(stage, NEW),
        lambda: delivery.verify(stage, 4),
        lambda: delivery.target.drop_stage(stage),
        lambda: delivery.build(name, owner, [], 0),
        lambda: delivery.target.count_violations(stage, delivery.layout, [TableCheck("not_null", ("id",))]),
    ]
    for call in calls:
        refused(Incident, "dpone.target.stage_not_ours", call)
    assert lab.stage_names() == [name]


def test_a_stage_belongs_to_its_owner_and_object_id(lab: Lab, delivery: Delivery) -> None:
    stage = delivery.create()
    strangers = [replace(stage, owner=key_of(["stranger"])), replace(stage, object_id=stage.object_id + 1)]
    for stranger in strangers:
        for call in (
            lambda s=stranger: delivery.grant(s),
            lambda s=stranger: delivery.write(s, NEW),
            lambda s=stranger: delivery.verify(s, 0),
            lambda s=stranger: delivery.target.drop_stage(s),
        ):
            refused(Incident, "dpone.target.stage_not_ours", call)
    assert lab.stage_names() == [stage.name]


def test_a_stage_that_is_gone_is_said_to_be(lab: Lab, delivery: Delivery) -> None:
    stage = delivery.create()
    lab.drop_stage(stage.name)
    refused(Incident, "dpone.target.stage_missing", lambda: delivery.verify(stage, 0))


LIES: dict[str, list[Row]] = {
    "dropped row": NEW[:-1],
    "duplicated row": [*NEW, NEW[0]],
    "duplicate instead of another": [NEW[0], NEW[0], *NEW[2:]],
    "changed cell": [(*NEW[0][:2], Decimal("3.34"), NEW[0][3]), *NEW[1:]],
    "NULL instead of a value": [(*NEW[0][:2], None, NEW[0][3]), *NEW[1:]],
    "empty text instead of NULL": [NEW[0], (7, "", None, at(2)), *NEW[2:]],
    "one millisecond": [(*NEW[0][:3], at(2, 12, 1)), *NEW[1:]],
    "nothing": [],
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_lying_writer_is_found_out(delivery: Delivery, lie: str) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    assert delivery.write(stage, LIES[lie]).outcome == "success"
    assert not delivery.verify(stage, len(NEW)).proves(sum_of(NEW, delivery.layout))


def test_swapped_columns_are_found_out(empty_lab: Lab) -> None:
    columns = (ID, Column("a", "Int64", "bigint"), Column("b", "Int64", "bigint"), TS)
    empty_lab.create_table("orders", columns)
    rows, swapped = [(1, 10, 20, at(2))], [(1, 20, 10, at(2))]
    with empty_lab.open() as target:
        delivery = Delivery(target, columns)
        stage = delivery.create()
        delivery.grant(stage)
        delivery.write(stage, swapped)
        seen = delivery.verify(stage, 1)
        assert seen.proves(sum_of(swapped, delivery.layout))
        assert not seen.proves(sum_of(rows, delivery.layout))


@pytest.mark.parametrize("extra", [1, 2, 50])
def test_more_rows_than_expected_are_an_overflow_and_not_counted_on(delivery: Delivery, extra: int) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    delivery.write(stage, NEW[:1] * (2 + extra))
    assert delivery.verify(stage, 2) == tr.StageObservation(3, True, None)


def test_row_order_and_batches_do_not_matter(delivery: Delivery) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    delivery.write(stage, *[[row] for row in reversed(NEW)])
    assert delivery.verify(stage, 4).proves(sum_of(NEW, delivery.layout))


def test_a_chunk_is_written_whole_or_not_at_all(delivery: Delivery) -> None:
    stage = delivery.create()
    delivery.grant(stage)

    def torn() -> Iterator[Any]:
        yield batch_of(NEW, delivery.layout)
        raise SpoolError("dpone.spool.damaged", "torn")

    refused(
        SpoolError,
        "dpone.spool.damaged",
        lambda: delivery.put(stage, torn()),
    )
    assert delivery.verify(stage, 4).rows == 0


def test_a_batch_of_another_layout_is_not_written(delivery: Delivery) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    other = batch_of([(1, at(2))], layout_of((ID, TS)))
    with pytest.raises(DponeError) as caught:
        delivery.put(stage, iter([other]))
    assert caught.value.code == "dpone.wire.layout"
    assert delivery.verify(stage, 4).rows == 0


def test_a_writer_with_another_token_writes_nothing(delivery: Delivery) -> None:
    """[B2] The grant is to one writer, not to whoever knows the stage."""
    stage = delivery.create()
    delivery.grant(stage)
    said = delivery.put(stage, iter([batch_of(NEW, delivery.layout)]), token_sha256="00" * 32)
    assert (said.outcome, said.rows) == ("custody_lost", None)
    assert delivery.verify(stage, 4).rows == 0


def test_a_writer_that_is_late_writes_nothing(delivery: Delivery) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    late = Deadline.after(-1)
    batches = iter([batch_of(NEW, delivery.layout)])
    said = delivery.put(stage, batches, deadline=late)
    assert (said.outcome, said.rows) == ("timeout", None)
    assert delivery.verify(stage, 4).rows == 0


def test_a_late_verification_is_no_verdict(delivery: Delivery) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    delivery.write(stage, NEW[:2])
    late = Deadline.after(-1)
    refused(
        TargetBusy,
        "dpone.target.deadline",
        lambda: delivery.target.verify_stage(stage, delivery.layout, 2, "", deadline=late),
    )
    assert delivery.write(stage, NEW[2:]).outcome == "success"
    assert delivery.verify(stage, 4).proves(sum_of(NEW, delivery.layout))


@pytest.mark.parametrize("nullable", [False, True], ids=["not null", "null"])
def test_every_type_arrives_exactly(empty_lab: Lab, nullable: bool) -> None:
    """All admitted kinds of pairs in one table, each with the values at its edges."""
    pairs = sorted(EXTREMES)
    columns = [ID, TS, *[_column(f"v{i}", *pair, nullable) for i, pair in enumerate(pairs)]]
    values = [[*EXTREMES[pair], *([None] if nullable else [])] for pair in pairs]
    count = max(map(len, values))
    rows = [(i, at(2), *[found[i % len(found)] for found in values]) for i in range(count)]
    empty_lab.create_table("orders", columns)
    with empty_lab.open() as target:
        described = target.describe(SCHEMA, "orders").columns
        assert [(c.type, c.nullable) for c in described[2:]] == [(kind, nullable) for _, kind in pairs]
        assert Delivery(target, columns).deliver(rows)[1].kind == "committed"
    found = [[getattr(v, "bytes", v) for v in row] for row in empty_lab.rows("orders")]
    for column, *arrived in zip(columns, *found, strict=True):
        sent = [row[columns.index(column)] for row in rows]
        assert list(map(repr, arrived)) == list(map(repr, sent)), column


def _column(name: str, source: str, kind: str, nullable: bool) -> Column:
    if not nullable:
        return Column(name, source, kind)
    wrapped = source.replace("String", "Nullable(String)") if "LowCard" in source else f"Nullable({source})"
    return Column(name, wrapped, kind, True)


# ---- the prepared table ---------------------------------------------------------------------------


def test_whoever_was_replaced_makes_no_table(delivery: Delivery) -> None:
    """Its successor has looked for its tables already, and would never find this one."""
    delivery.stage(NEW)
    late = tr.Claim(delivery.ref.target_key, delivery.claim(fence=50).fence - 1)
    name, owner = delivery.names("prepared")
    for call in (
        lambda: delivery.target.create_stage(*delivery.names(7), delivery.layout, claim=late),
        lambda: delivery.target.build_prepared(name, owner, delivery.layout, delivery.chunks, 4, claim=late),
    ):
        refused(Fenced, "dpone.target.fenced", call)
    assert delivery.target.find_stage(*delivery.names(7)) is None
    assert delivery.target.find_stage(name, owner) is None
    delivery.fence = 50
    assert delivery.build(name, owner, delivery.chunks, 4)[1].proves(sum_of(NEW, delivery.layout))


def test_the_prepared_table_is_the_sum_of_its_chunks(delivery: Delivery) -> None:
    for part in (NEW[:1], NEW[1:2], NEW[2:]):
        delivery.stage(part)
    prepared = delivery.build(*delivery.names("prepared"), delivery.chunks, 4)
    assert prepared[1] == tr.StageObservation(4, False, sum_of(NEW, delivery.layout))
    checks = [TableCheck("not_null", (name,)) for name in ("id", "name", "amount")]
    assert list(delivery.target.count_violations(prepared[0], delivery.layout, checks)) == [0, 1, 1]
    assert delivery.target.find_stage(*delivery.names("prepared")) == prepared[0]


def test_without_chunks_the_prepared_table_is_empty(delivery: Delivery) -> None:
    _, seen = delivery.build(*delivery.names("prepared"), [], 0)
    assert seen == tr.StageObservation(0, False, DigestSum.zero())


def test_a_prepared_table_is_built_again_from_nothing(lab: Lab, delivery: Delivery) -> None:
    delivery.stage(NEW)
    arguments = (*delivery.names("prepared"), delivery.chunks, 4)
    first, _ = delivery.build(*arguments)
    lab.add_to_stage(first.name, NEW[0])
    second, seen = delivery.build(*arguments)
    assert seen.proves(sum_of(NEW, delivery.layout))
    assert len(lab.stage_names()) == 2
    assert delivery.target.drop_stage(second)


@pytest.mark.parametrize("fault", ["not sealed", "another object", "gone"])
def test_only_proved_chunks_of_ours_are_prepared(lab: Lab, delivery: Delivery, fault: str) -> None:
    good = delivery.stage(NEW[:1])
    bad = delivery.create(1)
    if fault == "another object":
        bad = replace(bad, object_id=bad.object_id + 1)
    if fault == "gone":
        lab.drop_stage(bad.name)
    code = {"not sealed": "stage_state", "another object": "stage_not_ours", "gone": "stage_missing"}[fault]
    name, owner = delivery.names("prepared")
    refused(
        Incident,
        f"dpone.target.{code}",
        lambda: delivery.build(name, owner, [good, bad], 1),
    )
    assert delivery.target.find_stage(name, owner) is None


def test_a_prepared_table_is_not_written_any_more(delivery: Delivery) -> None:
    prepared = delivery.prepare(NEW)
    assert delivery.write(prepared, NEW).outcome == "custody_lost"
    refused(Incident, "dpone.target.stage_state", lambda: delivery.grant(prepared))


# ---- publication ----------------------------------------------------------------------------------


def unchanged(lab: Lab, delivery: Delivery, gate: tr.GateRow | None, receipts: int = 0) -> None:
    """A rolled back publication leaves target, gate and receipts as they were."""
    assert lab.rows("orders") == sorted_rows(BEFORE)
    assert delivery.gate() == gate
    assert lab.count_receipts() == receipts


def test_a_window_is_replaced_and_nothing_else(lab: Lab, delivery: Delivery) -> None:
    """Scenario 1."""
    request, outcome = delivery.deliver(NEW)
    assert outcome == tr.PublishOutcome("committed")
    assert lab.rows("orders") == sorted_rows([*OUTSIDE, *NEW])
    gate = delivery.gate()
    assert gate is not None
    assert (gate.fence, gate.in_flight_operation_id) == (request.draft.fence, None)
    assert (gate.last_operation_id, gate.last_receipt_sha256) == (delivery.operation_id, request.draft.sha256)


def test_the_receipt_says_what_was_published(delivery: Delivery) -> None:
    assert delivery.target.read_receipt(delivery.operation_id) is None
    started = datetime.now(UTC)
    request, _ = delivery.deliver(NEW)
    receipt = delivery.target.read_receipt(delivery.operation_id)
    assert receipt is not None
    assert receipt.draft == request.draft
    assert receipt.receipt_sha256 == request.draft.sha256
    assert (receipt.deleted_rows, receipt.durability) == (3, "full")
    assert abs((datetime.fromisoformat(receipt.published_at) - started).total_seconds()) < 600
    assert tr.Receipt(**{**vars(receipt)}).to_json()["fence"] == str(request.draft.fence)


def test_receipts_are_read_together_and_missing_ones_are_left_out(delivery: Delivery) -> None:
    """More than are asked for at once; one of them is there."""
    assert delivery.target.read_receipts([delivery.operation_id]) == {}
    assert delivery.target.read_receipts([]) == {}
    delivery.deliver(NEW)
    others = [key_of(["another operation", number]) for number in range(230)]
    found = delivery.target.read_receipts([*others[:120], delivery.operation_id, *others[120:]])
    assert found == {delivery.operation_id: delivery.target.read_receipt(delivery.operation_id)}


def test_a_publication_survives_its_process(lab: Lab) -> None:
    with lab.open() as target:
        request, _ = Delivery(target).deliver(NEW)
    with lab.open() as target:
        receipt = target.read_receipt(request.draft.operation_id)
        assert receipt is not None
        assert receipt.draft == request.draft
    assert lab.rows("orders") == sorted_rows([*OUTSIDE, *NEW])


def test_the_same_operation_again_changes_nothing(lab: Lab, delivery: Delivery) -> None:
    """[A3] Scenario 2."""
    request, _ = delivery.deliver(NEW)
    before = delivery.gate()
    for _ in range(2):
        assert delivery.send(request) == tr.PublishOutcome("already")
    assert delivery.gate() == before
    assert lab.count_receipts() == 1
    assert lab.rows("orders") == sorted_rows([*OUTSIDE, *NEW])


def test_the_same_packet_twice_is_fenced_by_itself(lab: Lab, delivery: Delivery) -> None:
    request, _ = delivery.deliver(NEW)
    rolled_back(delivery.target.publish(request), "dpone.publish.fenced")
    assert lab.count_receipts() == 1


def test_the_next_generation_replaces_the_window_again(lab: Lab, delivery: Delivery) -> None:
    delivery.deliver(NEW)
    again = Delivery(delivery.target, invocation="two", generation=2, fence=delivery.fence)
    _, outcome = again.deliver(NEW[:1])
    assert outcome.kind == "committed"
    assert lab.rows("orders") == sorted_rows([*OUTSIDE, NEW[0]])
    receipt = again.target.read_receipt(again.operation_id)
    assert receipt is not None
    assert receipt.deleted_rows == len(NEW)
    assert lab.count_receipts() == 2


@pytest.mark.parametrize("lower_by", [0, 1])
def test_a_send_that_is_not_above_the_gate_does_nothing(lab: Lab, delivery: Delivery, lower_by: int) -> None:
    """[A2] Scenario 3."""
    request = delivery.request(delivery.prepare(NEW), NEW)
    delivery.claim(fence=request.draft.fence + lower_by)
    gate = delivery.gate()
    rolled_back(delivery.target.publish(request), "dpone.publish.fenced")
    unchanged(lab, delivery, gate)


@pytest.mark.parametrize("other", ["journal", "route", "object id", "created"])
def test_a_gate_of_somebody_else_lets_nothing_in(lab: Lab, delivery: Delivery, other: str) -> None:
    delivery.claim()
    request, gate = delivery.request(delivery.prepare(NEW), NEW), delivery.gate()
    if other == "journal":
        request = replace(request, draft=replace(request.draft, journal_id=OTHER_JOURNAL))
    elif other == "route":
        request = replace(request, draft=replace(request.draft, route_scope=OTHER_ROUTE))
    elif other == "object id":
        request = replace(request, target=replace(request.target, object_id=request.target.object_id + 1))
    else:
        request = replace(request, target=replace(request.target, created="00000000000000ff"))
    rolled_back(delivery.target.publish(request), "dpone.publish.gate_governed_by_other")
    unchanged(lab, delivery, gate)


def test_without_a_gate_nothing_is_published(lab: Lab, delivery: Delivery) -> None:
    """[A17] Scenario 9."""
    delivery.claim()
    request = delivery.request(delivery.prepare(NEW), NEW)
    lab.forget_gate()
    rolled_back(delivery.target.publish(request), "dpone.publish.gate_missing")
    unchanged(lab, delivery, None)


def test_a_committed_in_flight_mark_is_not_overwritten(lab: Lab, delivery: Delivery) -> None:
    """[A9] Scenario 9."""
    delivery.claim()
    request = delivery.request(delivery.prepare(NEW), NEW)
    lab.set_in_flight(key_of(["half"]))
    gate = delivery.gate()
    rolled_back(delivery.target.publish(request), "dpone.publish.in_flight_committed")
    unchanged(lab, delivery, gate)


TAMPERING: dict[str, Callable[[Lab, str], None]] = {
    "changed cell": lambda lab, name: lab.change_stage(name, "name", "other", 3),
    "cell set to NULL": lambda lab, name: lab.change_stage(name, "name", None, 3),
    "moved in the window": lambda lab, name: lab.change_stage(name, "ts", at(2, 13), 3),
    "moved out of the window": lambda lab, name: lab.change_stage(name, "ts", at(3), 3),
    "row added": lambda lab, name: lab.add_to_stage(name, NEW[0]),
    "row removed": lambda lab, name: lab.delete_from_stage(name, 3),
    "too long for its type": lambda lab, name: lab.change_stage(name, "name", "x" * 21, 3),
}


@pytest.mark.parametrize("how", sorted(TAMPERING))
def test_a_prepared_table_that_changed_is_not_published(lab: Lab, delivery: Delivery, how: str) -> None:
    """[A15] Scenario 3."""
    delivery.claim()
    request, gate = delivery.request(delivery.prepare(NEW), NEW), delivery.gate()
    TAMPERING[how](lab, request.prepared.name)
    rolled_back(delivery.target.publish(request), "dpone.publish.digest")
    unchanged(lab, delivery, gate)


@pytest.mark.parametrize("ts", [at(3), datetime(2025, 1, 1, 23, 59, 59, 999000), None], ids=str)
def test_a_row_outside_the_window_is_not_published(lab: Lab, delivery: Delivery, ts: datetime | None) -> None:
    """[A15] Scenario 3."""
    delivery.claim()
    rows = [*NEW, (9, "astray", None, ts)]
    request, gate = delivery.request(delivery.prepare(rows), rows), delivery.gate()
    rolled_back(delivery.target.publish(request), "dpone.publish.row_outside_window")
    unchanged(lab, delivery, gate)


@pytest.mark.parametrize("fault", ["another object", "another owner", "gone", "not proved"])
def test_only_the_proved_prepared_table_is_published(lab: Lab, delivery: Delivery, fault: str) -> None:
    delivery.claim()
    prepared = delivery.prepare(NEW)
    if fault == "another object":
        prepared = replace(prepared, object_id=prepared.object_id + 1)
    elif fault == "another owner":
        prepared = replace(prepared, owner=key_of(["stranger"]))
    elif fault == "gone":
        lab.drop_stage(prepared.name)
    else:
        prepared = delivery.create(7)
        delivery.grant(prepared)
        delivery.write(prepared, NEW)
    request, gate = delivery.request(prepared, NEW), delivery.gate()
    rolled_back(delivery.target.publish(request), "dpone.publish.prepared_identity")
    unchanged(lab, delivery, gate)


CONSTRAINTS = {
    "CHECK": ("CHECK (amount <> 3.33)", 547),
    "NOT NULL without a value": ("note BIGINT NOT NULL", 515),
    "UNIQUE": ("UNIQUE (id)", 2627),
    "PRIMARY KEY": ("PRIMARY KEY (id)", 2627),
}


@pytest.mark.parametrize("kind", sorted(CONSTRAINTS))
def test_a_constraint_fault_is_a_proved_rollback(empty_lab: Lab, kind: str) -> None:
    """Scenario 7."""
    extra, number = CONSTRAINTS[kind]
    empty_lab.create_table("orders", ORDERS, extra)
    old = [(*row, 0) for row in BEFORE] if "note" in extra else BEFORE
    empty_lab.insert("orders", old)
    with empty_lab.open() as target:
        delivery = Delivery(target)
        delivery.claim()
        gate = delivery.gate()
        request = delivery.request(delivery.prepare(NEW), NEW)
        rolled_back(target.publish(request), "dpone.publish.constraint", number)
        assert delivery.gate() == gate
        assert empty_lab.count_receipts() == 0
        assert target.drop_stage(request.prepared)
    assert empty_lab.rows("orders") == sorted_rows(old)


def test_a_key_that_a_row_outside_the_window_has_is_a_fault(empty_lab: Lab) -> None:
    empty_lab.create_table("orders", ORDERS, "PRIMARY KEY (id)")
    empty_lab.insert("orders", BEFORE)
    with empty_lab.open() as target:
        delivery = Delivery(target)
        _, outcome = delivery.deliver([(5, "other day's key", None, at(2))])
        rolled_back(outcome, "dpone.publish.constraint", 2627)
    assert empty_lab.rows("orders") == sorted_rows(BEFORE)


def test_a_table_with_a_key_is_delivered_again_and_again(empty_lab: Lab) -> None:
    """The same keys are deleted and inserted in one transaction."""
    empty_lab.create_table("orders", ORDERS, "PRIMARY KEY (id)")
    empty_lab.insert("orders", BEFORE)
    rows = [(i, "new", None, at(2, i % 24)) for i in range(10, 3000)] + [(3, "x", None, at(2))]
    fence = 1
    for generation in (1, 2, 3):
        with empty_lab.open() as target:
            delivery = Delivery(target, invocation=str(generation), generation=generation, fence=fence)
            assert delivery.deliver(rows)[1].kind == "committed"
            fence = delivery.fence
    assert empty_lab.rows("orders") == sorted_rows([*OUTSIDE, *rows])


def test_a_column_that_came_later_stops_the_publication(lab: Lab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.claim()
        request, gate = delivery.request(delivery.prepare(NEW), NEW), delivery.gate()
    lab.add_column("orders", "more")
    with lab.open() as target:
        rolled_back(target.publish(request), "dpone.publish.target_changed")
        delivery.target = target
        assert delivery.gate() == gate
    assert lab.rows("orders") == sorted_rows([(*row, None) for row in BEFORE])


def make_again(lab: Lab) -> None:
    lab.drop_table("orders")
    lab.create_table("orders", ORDERS)
    lab.insert("orders", BEFORE)


def test_a_table_that_was_made_again_is_not_published_into(lab: Lab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.claim()
        request = delivery.request(delivery.prepare(NEW), NEW)
    make_again(lab)
    with lab.open() as target:
        rolled_back(target.publish(request), "dpone.publish.target_changed")
    lab.drop_table("orders")
    with lab.open() as target:
        rolled_back(target.publish(request), "dpone.publish.target_changed")


def test_a_receipt_of_a_table_that_is_gone_is_not_already(lab: Lab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        request, _ = delivery.deliver(NEW)
    make_again(lab)
    with lab.open() as target:
        delivery.target = target
        rolled_back(delivery.send(request), "dpone.publish.receipt_differs")
    assert lab.rows("orders") == sorted_rows(BEFORE)


def test_a_receipt_of_another_intent_is_not_already(lab: Lab, delivery: Delivery) -> None:
    request, _ = delivery.deliver(NEW)
    gate = delivery.gate()
    outcome = delivery.send(request, intent_sha256=key_of(["another intent"]))
    rolled_back(outcome, "dpone.publish.receipt_differs")
    assert delivery.gate() == gate


def test_a_generation_has_one_receipt(lab: Lab, delivery: Delivery) -> None:
    """Scenario 7."""
    request, _ = delivery.deliver(NEW)
    gate = delivery.gate()
    outcome = delivery.send(request, operation_id=key_of(["another operation"]))
    rolled_back(outcome, "dpone.publish.receipt_differs")
    assert delivery.gate() == gate
    assert lab.count_receipts() == 1


def test_a_removed_receipt_does_not_publish_twice(lab: Lab, delivery: Delivery) -> None:
    """[A17] Scenario 9."""
    request, _ = delivery.deliver(NEW)
    lab.forget_receipts()
    gate = delivery.gate()
    rolled_back(delivery.send(request), "dpone.publish.receipt_removed")
    assert delivery.gate() == gate
    assert lab.count_receipts() == 0


@pytest.mark.parametrize("rows", [NEW, []], ids=["rows", "empty"])
@pytest.mark.parametrize("full", [False, True], ids=["window", "full refresh"])
def test_a_window_that_is_hashed_before_it_is_committed(lab: Lab, full: bool, rows: list[Row]) -> None:
    """[A16] The same rows as ever, and the proof that they are the target's."""
    changes: dict[str, Any] = {"window": Window.full(), "window_column": None} if full else {}
    with lab.open() as target:
        delivery = Delivery(target, **changes)
        delivery.claim()
        request = delivery.request(delivery.prepare(rows), rows)
        outcome = target.publish(replace(request, after_image_digest=True))
        assert outcome == tr.PublishOutcome("committed")
    assert lab.rows("orders") == sorted_rows([*([] if full else OUTSIDE), *rows])


def test_an_empty_window_deletes_and_has_a_receipt(lab: Lab, delivery: Delivery) -> None:
    _, outcome = delivery.deliver([])
    assert outcome.kind == "committed"
    assert lab.rows("orders") == sorted_rows(OUTSIDE)
    receipt = delivery.target.read_receipt(delivery.operation_id)
    assert receipt is not None
    assert (receipt.draft.row_count, receipt.deleted_rows) == (0, 3)


@pytest.mark.parametrize("rows", [[*NEW, (9, "any day", None, None)], []], ids=["rows", "empty"])
def test_a_full_refresh_replaces_every_row(lab: Lab, target: Any, rows: list[Row]) -> None:
    delivery = Delivery(target, window=Window.full(), window_column=None)
    _, outcome = delivery.deliver(rows)
    assert outcome.kind == "committed"
    assert lab.rows("orders") == sorted_rows(rows)
    receipt = target.read_receipt(delivery.operation_id)
    assert (receipt.draft.window_key, receipt.deleted_rows) == ("full", len(BEFORE))


@pytest.mark.parametrize("missing", ["column", "window"])
def test_a_window_without_its_column_never_becomes_a_full_refresh(
    lab: Lab, delivery: Delivery, missing: str
) -> None:
    delivery.claim()
    request, gate = delivery.request(delivery.prepare(NEW), NEW), delivery.gate()
    if missing == "column":
        request = replace(request, window_column=None)
    else:
        request = replace(request, window=Window.full())
    rolled_back(delivery.target.publish(request), "dpone.config.window")
    unchanged(lab, delivery, gate)


@pytest.mark.parametrize("kind", ["date", "datetime2(0)", "datetime2(1)", "datetime2(3)", "datetime2(6)"])
def test_window_bounds_are_exact_for_each_type_of_column(empty_lab: Lab, kind: str) -> None:
    """[E12]"""
    source = "Date32" if kind == "date" else f"DateTime64({kind[10]})"
    column = Column("ts", f"Nullable({source})", kind, True)
    tick = {"date": 86_400_000_000}.get(kind) or 10 ** (6 - int(kind[10]))

    def moment(microseconds: int) -> Any:
        found = datetime(1970, 1, 1) + timedelta(microseconds=microseconds)
        return found.date() if kind == "date" else found

    start, end = DAY.bounds_us
    edges = [start - tick, start, end - tick, end]
    empty_lab.create_table("orders", (ID, column))
    empty_lab.insert("orders", [(i, moment(edge)) for i, edge in enumerate(edges)])
    with empty_lab.open() as target:
        delivery = Delivery(target, (ID, column))
        assert target.count_window(delivery.ref, "ts", delivery.window) == 2
        assert delivery.deliver([(9, moment(start))])[1].kind == "committed"
    assert [row[0] for row in empty_lab.rows("orders")] == [0, 3, 9]


def test_bounds_that_the_column_cannot_hold_are_refused(empty_lab: Lab) -> None:
    empty_lab.create_table("orders", (ID, Column("ts", "DateTime", "datetime2(0)")))
    window = Window(datetime(2025, 1, 2, 0, 0, 0, 500_000, tzinfo=UTC), datetime(2025, 1, 3, tzinfo=UTC))
    with empty_lab.open() as target:
        delivery = Delivery(target, (ID, Column("ts", "DateTime", "datetime2(0)")), window=window)
        refused(
            ConfigurationError,
            "dpone.config.window_column",
            lambda: target.count_window(delivery.ref, "ts", window),
        )
        delivery.claim()
        outcome = target.publish(delivery.request(delivery.prepare([]), []))
        rolled_back(outcome, "dpone.config.window_column")


# ---- the probe ------------------------------------------------------------------------------------


def test_a_probe_before_the_send_makes_the_send_impossible(lab: Lab, delivery: Delivery) -> None:
    delivery.claim()
    request = delivery.request(delivery.prepare(NEW), NEW)
    assert delivery.probe() == tr.ProbeAnswer(None, None, None)
    rolled_back(delivery.target.publish(request), "dpone.publish.fenced")
    assert lab.rows("orders") == sorted_rows(BEFORE)
    assert delivery.send(request).kind == "committed"


def test_a_probe_after_the_send_finds_the_receipt(delivery: Delivery) -> None:
    request, _ = delivery.deliver(NEW)
    answer = delivery.probe()
    assert answer.receipt is not None
    assert answer.receipt == delivery.target.read_receipt(delivery.operation_id)
    assert answer.receipt.draft == request.draft
    assert (answer.last_operation_id, answer.in_flight_operation_id) == (delivery.operation_id, None)
    assert delivery.send(request).kind == "already"


def test_a_probe_raises_the_gate(delivery: Delivery) -> None:
    delivery.claim(fence=5)
    delivery.probe(fence=8)
    row = delivery.gate()
    assert row is not None
    assert row.fence == 8
    for fence in (8, 7):
        refused(Fenced, "dpone.target.fenced", lambda fence=fence: delivery.probe(fence=fence))


def test_a_probe_tells_a_removed_receipt_from_none(lab: Lab, delivery: Delivery) -> None:
    """[A17] Scenario 9."""
    delivery.deliver(NEW)
    lab.forget_receipts()
    assert delivery.probe() == tr.ProbeAnswer(None, delivery.operation_id, None)


def test_a_probe_tells_a_half_committed_publication(lab: Lab, delivery: Delivery) -> None:
    """[A9] Scenario 9."""
    delivery.claim()
    lab.set_in_flight(delivery.operation_id)
    assert delivery.probe() == tr.ProbeAnswer(None, None, delivery.operation_id)
    row = delivery.gate()
    assert row is not None
    assert row.in_flight_operation_id == delivery.operation_id


def test_a_probe_of_somebody_else_answers_nothing(lab: Lab, delivery: Delivery) -> None:
    delivery.deliver(NEW)
    gate = delivery.gate()
    refused(
        JournalError,
        "dpone.journal.not_bound_to_target",
        lambda: delivery.probe(journal_id=OTHER_JOURNAL),
    )
    refused(
        ConfigurationError,
        "dpone.target.owned_by_other_route",
        lambda: delivery.probe(route_scope=OTHER_ROUTE),
    )
    assert delivery.gate() == gate
    lab.forget_gate()
    refused(Incident, "dpone.target.gate_missing", delivery.probe)
    assert delivery.gate() is None


def test_a_probe_does_not_say_published_of_a_table_that_is_gone(lab: Lab) -> None:
    with lab.open() as target:
        delivery = Delivery(target)
        delivery.deliver(NEW)
    make_again(lab)
    with lab.open() as target:
        delivery.target = target
        refused(Incident, "dpone.target.incarnation_gone", delivery.probe)


# ---- names ----------------------------------------------------------------------------------------

EXOTIC = [
    "select", "a]b", "a[b", 'a"b', "`a`", "a'b", "a b", "a.b", "  ", "ключ", "😀", "__x", "1st", "$a", "?",
    "a\\b", "%s", "{x}", ":n", "--", "x" * 128,
]  # fmt: skip


def test_exotic_column_names_are_delivered(empty_lab: Lab) -> None:
    columns = [*ORDERS, *[Column(name, "Nullable(Int32)", "int", True) for name in EXOTIC]]
    empty_lab.create_table("orders", columns)
    rows = [(1, "a", None, at(2), *range(len(EXOTIC)))]
    with empty_lab.open() as target:
        delivery = Delivery(target, columns)
        request, outcome = delivery.deliver(rows)
        assert outcome.kind == "committed"
        checks = [TableCheck("not_null", (name,)) for name in EXOTIC]
        checks += [TableCheck("unique", tuple(EXOTIC)), TableCheck("min", (EXOTIC[0],), "0")]
        counts = target.count_violations(request.prepared, delivery.layout, checks)
        assert list(counts) == [0] * len(checks)
    assert empty_lab.rows("orders") == rows


@pytest.mark.parametrize("name", ["select", 'a"b', "a'b", "a.b", "$a ?", "ключ 😀"])
def test_exotic_table_names_are_delivered_into(empty_lab: Lab, name: str) -> None:
    empty_lab.create_table(name, ORDERS)
    empty_lab.insert(name, BEFORE)
    with empty_lab.open() as target:
        assert Delivery(target, table=name).deliver(NEW)[1].kind == "committed"
    assert empty_lab.rows(name) == sorted_rows([*OUTSIDE, *NEW])


def test_a_window_column_with_an_exotic_name(empty_lab: Lab) -> None:
    columns = (ID, Column('t"s ]', "DateTime64(3)", "datetime2(3)"))
    empty_lab.create_table("orders", columns)
    empty_lab.insert("orders", [(1, at(2)), (2, at(3))])
    with empty_lab.open() as target:
        delivery = Delivery(target, columns, window_column='t"s ]')
        assert delivery.deliver([(3, at(2, 1))])[1].kind == "committed"
    assert empty_lab.rows("orders") == [(2, at(3)), (3, at(2, 1))]


def test_a_part_of_the_columns_is_delivered_and_the_rest_takes_its_default(empty_lab: Lab) -> None:
    empty_lab.create_table("orders", (ID, TS, NAME, AMOUNT), "note BIGINT DEFAULT 5")
    with empty_lab.open() as target:
        assert Delivery(target, (TS, ID)).deliver([(at(2), 1)])[1].kind == "committed"
    assert empty_lab.rows("orders") == [(1, at(2), None, None, 5)]


def test_a_column_that_an_insert_must_name_is_known(empty_lab: Lab) -> None:
    """[E5] Neither one that takes NULL nor one that has a default."""
    empty_lab.create_table("orders", (ID, NAME), "must BIGINT NOT NULL, may BIGINT NOT NULL DEFAULT 5")
    with empty_lab.open() as target:
        assert target.describe(SCHEMA, "orders").must_be_fed == ("id", "must")


# ---- the writer -----------------------------------------------------------------------------------


def test_the_writer_says_what_it_is(target: Any) -> None:
    assert target.backend
    assert target.proof_capability
    assert all(isinstance(v, str) and v for v in target.versions().values())
