"""The T-SQL as text: what it must contain, what it must never contain, and that a change is seen."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import Incident, OutcomeUnknown
from airflow_dpone.target_sqlserver import digest_statements, gate, parity, publication
from airflow_dpone.target_sqlserver import publication_statements as batches
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.plan_text import statements as plan_statements
from airflow_dpone.target_sqlserver.quoting import literal, quoted
from airflow_dpone.wire.digest import DigestSum
from tests.contract.target_cases import EXTREMES, Column, layout_of
from tests.unit.target_sqlserver.snapshots import FOLDER, LAYOUT, SCHEMAS, published, texts


@pytest.mark.parametrize("name", sorted(texts()))
def test_a_batch_is_what_was_reviewed(name: str) -> None:
    assert texts()[name].strip() + "\n" == (FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def test_every_snapshot_is_of_a_batch() -> None:
    assert {path.stem for path in FOLDER.glob("*.sql")} == set(texts())


# ---- names ------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=128).filter(lambda name: "\0" not in name))
def test_a_name_stays_one_name(name: str) -> None:
    text = quoted(name)
    assert text[0] + text[-1] == "[]"
    assert text[1:-1].replace("]]", "") == name.replace("]", "")
    assert text[1:-1].replace("]]", "]") == name


@given(st.text(max_size=60))
def test_a_text_stays_one_text(text: str) -> None:
    assert literal(text)[2:-1].replace("''", "'") == text
    assert literal(text)[2:-1].replace("''", "").count("'") == 0


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="NUL"):
        quoted(name)


# ---- the publication --------------------------------------------------------------------------------------


def placeholders(text: str) -> int:
    return re.sub(r"N?'(?:[^']|'')*'", "", text).count("?")


@pytest.mark.parametrize("window", [("ts", "datetime2(3)"), None], ids=["window", "full refresh"])
def test_parameters_stand_in_the_head_and_none_may_be_null(window: tuple[str, str] | None) -> None:
    text = batches.publication(published(window))
    head, _, rest = text.partition("BEGIN TRY")
    assert placeholders(rest) == 0
    expected = len(batches.DRAFT_TYPES) + 5 + 3 + 8 + 1 + 1 + (2 if window else 0)
    assert placeholders(head) == expected
    declared = set(re.findall(r"@(\w+) [a-z0-9()(,]+(?:\(\d+(?:,\d+)?\))? = ", head)) - {"committed", "early"}
    checked = set(re.findall(r"@(\w+) IS NULL", head))
    assert checked == declared - {"fork"} - {"found"}


def test_the_draft_s_parameters_stand_in_the_order_of_the_variables() -> None:
    draft = tr.ReceiptDraft(
        *["aa" * 32] * 3, 1, *["bb" * 32] * 2, "6f0c3a52-92a7-4d25-8f52-1d0a4b1f7c11", "cc" * 32,
        "window_replace", "full", 3, "dd" * 32, "ee" * 32, 2**62, "table",
    )  # fmt: skip
    values = dict(zip(batches.DRAFT_TYPES, gate.draft_values(draft), strict=True))
    assert values["fence"] == 2**62
    assert values["row_count"] == 3
    assert values["receipt_sha256"] == bytes.fromhex(draft.sha256)
    assert list(batches.DRAFT_TYPES) == list(sql.RECEIPT_COLUMNS[: len(batches.DRAFT_TYPES)])


def test_the_order_of_locks_is_fixed() -> None:
    """[A5]"""
    text = batches.publication(published())
    places = [
        text.index(part)
        for part in (
            "sp_getapplock",
            "UPDATE [dpone].[target_gate] WITH (ROWLOCK, UPDLOCK, HOLDLOCK)",
            "FROM [dpone].[delivery_receipt] WITH (UPDLOCK, HOLDLOCK) WHERE operation_id",
            "FROM [dpone_stage].[p_0001] WITH (TABLOCKX, HOLDLOCK)",
            "DELETE FROM [shop].[orders] WITH (TABLOCKX, HOLDLOCK)",
            "INSERT INTO [shop].[orders]",
            "INSERT INTO [dpone].[delivery_receipt]",
            "COMMIT TRANSACTION WITH (DELAYED_DURABILITY = OFF)",
        )
    ]
    assert places == sorted(places)


def test_a_rehearsal_ends_before_any_lock_and_before_the_delete() -> None:
    text = batches.publication(published())
    rehearsal, lock = text.index("IF @rehearsal = 1"), text.index("sp_getapplock")
    assert text.index("BEGIN TRANSACTION") < rehearsal < lock
    assert "ROLLBACK TRANSACTION" in text[rehearsal:lock]
    assert "UPDATE" not in text[:lock]
    assert "@rehearsal" not in batches.probe(SCHEMAS)


def test_the_places_of_parameters_are_those_of_the_text() -> None:
    head = batches.publication(published()).partition("DECLARE @committed")[0]
    names = re.findall(r"^  @(\w+) .*\?", head, re.MULTILINE)
    assert names == [*batches.PLACES, "fork", "from", "to"]


def test_the_after_image_is_hashed_under_another_name_before_the_receipt() -> None:
    """[A16] A second SELECT INTO of one name does not compile."""
    text = batches.publication(replace(published(), after_image=True))
    assert text.count("INTO #h") == text.count("INTO #t") == 1
    hashed = text.index("INTO #t FROM [shop].[orders] AS s WITH (TABLOCKX, HOLDLOCK) WHERE [ts] >= @from")
    assert text.index("INSERT INTO [shop].[orders]") < hashed < text.index("INSERT INTO [dpone]")
    full = batches.publication(replace(published(None), after_image=True))
    assert "INTO #t FROM [shop].[orders] AS s WITH (TABLOCKX, HOLDLOCK);" in full
    assert "#t" not in batches.publication(published())


def test_the_incarnation_is_compared_behind_the_lock_of_the_target() -> None:
    """[A18]"""
    text = batches.publication(published())
    assert text.index("DELETE FROM") < text.index("THROW 51014") < text.index("INSERT INTO [shop]")


def test_a_trigger_is_looked_for_behind_the_lock_unless_the_window_is_hashed() -> None:
    """[A18] [E3]"""
    text = batches.publication(published())
    assert text.index("DELETE FROM") < text.index("THROW 51026") < text.index("INSERT INTO [shop]")
    assert "THROW 51026" not in batches.publication(replace(published(), after_image=True))


def test_nothing_that_can_fail_stands_behind_commit() -> None:
    """[A10]"""
    for text in (batches.publication(published()), batches.probe(SCHEMAS)):
        behind = text.partition("COMMIT TRANSACTION")[2].partition("END TRY")[0]
        assert behind.split(";", 1)[1].strip() == "SET @committed = 1;"


def test_every_throw_of_the_batch_has_a_reason() -> None:
    numbers = {int(n) for n in re.findall(r"THROW (\d+)", batches.publication(published()))}
    assert numbers - {51001, 51002} == set(publication._REASONS)


def test_a_full_refresh_has_no_predicate_and_a_window_always_has_one() -> None:
    full, window = batches.publication(published(None)), batches.publication(published())
    assert "@from" not in full
    assert "DELETE FROM [shop].[orders] WITH (TABLOCKX, HOLDLOCK);" in full
    assert "(TABLOCKX, HOLDLOCK) WHERE [ts] >= @from AND [ts] < @to;" in window


def test_the_plan_shows_every_text() -> None:
    target = tr.TargetRef("aa" * 32, "shop", "orders", 1, "0" * 16, "bb" * 32)
    assert "publish" in plan_statements(target, LAYOUT, "ts", SCHEMAS)
    assert "@from" not in plan_statements(target, LAYOUT, None, SCHEMAS)["publish"]


# ---- sentinels --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found",
    [
        [],
        [[]],
        [[("committed",)]],
        [[("committed", None), ("committed", None)]],
        [[("COMMITTED", None)]],
        [[("committed", None)], []],
        [[("committed", None)], [(1,)]],
    ],
    ids=repr,
)
def test_without_one_sentinel_nothing_is_known(found: list[list[tuple[object, ...]]]) -> None:
    """[A10] The stream may end behind each result."""
    with pytest.raises(OutcomeUnknown):
        publication.sentinel(found)


@pytest.mark.parametrize("number", sorted(publication._REASONS))
def test_our_own_reasons_carry_no_number_of_the_server(number: int) -> None:
    outcome = publication._outcome([[("rolled_back", number)]])
    assert outcome.kind == "rolled_back"
    assert outcome.error_number is None
    assert outcome.detail


@pytest.mark.parametrize("kind", ["committed", "already", "ended_early"])
def test_a_sentinel_is_taken_as_it_is(kind: str) -> None:
    assert publication._outcome([[(kind, None)]]) == tr.PublishOutcome(kind)


def test_an_early_end_keeps_the_number_of_what_ended_it() -> None:
    """3609: the transaction ended in a trigger."""
    assert publication._outcome([[("ended_early", 3609)]]) == tr.PublishOutcome(
        "ended_early", error_number=3609
    )


def test_a_rollback_without_a_number_is_not_believed() -> None:
    assert publication._outcome([[("rolled_back", None)]]).kind == "ended_early"


# ---- sessions ---------------------------------------------------------------------------------------------

RIGHT = (22392, 0, "dwh", "READ_WRITE", 1, 1, 600_000, "us_english", 2, 51, datetime(2026, 1, 1))


def test_a_right_session_has_no_problem() -> None:
    assert sql.session_problems(RIGHT, "DWH", 600_000) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 22393),
        (1, 1),
        (2, "master"),
        (3, "READ_ONLY"),
        (3, None),
        (4, 0),
        (5, 0),
        (6, -1),
        (7, "Deutsch"),
        (8, 5),
    ],
)
def test_a_session_that_is_not_as_it_was_set_is_refused(place: int, value: object) -> None:
    """[A1, A11, A13]"""
    facts = (*RIGHT[:place], value, *RIGHT[place + 1 :])
    assert len(sql.session_problems(facts, "dwh", 600_000)) == 1


# ---- the digest -------------------------------------------------------------------------------------------


def wide(count: int, kind: str = "bigint", source: str = "Int64", nullable: bool = False) -> list[Column]:
    text = f"Nullable({source})" if nullable else source
    return [Column(f"c{i}", text, kind, nullable) for i in range(count)]


@pytest.mark.parametrize("nullable", [False, True])
def test_no_word_that_goes_through_text(nullable: bool) -> None:
    """[D3]"""
    columns = [
        Column(
            f"c{i}", f"Nullable({s})" if nullable and "Low" not in s else s, k, nullable and "Low" not in s
        )
        for i, (s, k) in enumerate(EXTREMES)
    ]
    text = digest_statements.observe("[a].[b]", layout_of(columns), 1).upper()
    for word in ("CONCAT", "REVERSE", "FORMAT(", "STR("):
        assert word not in text


def test_one_hash_per_row_behind_a_barrier() -> None:
    """[D6]"""
    text = digest_statements.observe("[a].[b]", LAYOUT, 41)
    assert text.count("HASHBYTES") == 1
    assert "SELECT TOP (42) CAST(HASHBYTES" in text
    assert "INTO #h FROM [a].[b] AS s WITH (TABLOCKX, HOLDLOCK)" in text
    assert len(re.findall(r"SUM\(", text)) == 8


def depth(text: str) -> int:
    deepest = level = 0
    for sign in text:
        level += (sign == "(") - (sign == ")")
        deepest = max(deepest, level)
    assert level == 0
    return deepest


@pytest.mark.parametrize("count", [1, 8, 9, 100, 250])
def test_a_wide_table_does_not_nest_deeply(count: int) -> None:
    """[D7]"""
    text = digest_statements.row_bytes(layout_of(wide(count)))
    assert depth(text) <= 16
    assert sum(f"[c{i}]" in text for i in range(count)) == count


@pytest.mark.parametrize(("source", "kind"), sorted(EXTREMES))
def test_the_widest_admitted_table_is_far_from_the_limits_of_an_expression(source: str, kind: str) -> None:
    """[D7] What docs/sql-server.md says of 250 columns of one kind. SQL Server admits 65,535 identifiers and
    constants in one expression."""
    count = digest_statements.CERTIFIED_COLUMNS
    text = digest_statements.row_bytes(layout_of([Column(f"c{i}", source, kind, True) for i in range(count)]))
    assert depth(text) <= 15
    assert len(re.findall(r"s\.\[c\d+\]|0x[0-9A-Fa-f]*|\b\d+\b", text)) < 10_000


def test_a_sum_that_could_be_cut_starts_with_max() -> None:
    """[D4] Three texts of 4,002 bytes: any two of them are longer than 8,000."""
    text = digest_statements.row_bytes(layout_of(wide(3, "nvarchar(2000)", "String")))
    assert text.count("CAST(0x AS varbinary(max))") >= 2


@given(st.lists(st.integers(1, 8_000), min_size=1, max_size=40))
def test_no_sum_of_short_parts_is_longer_than_8000_bytes(sizes: list[int]) -> None:
    """[D4]"""
    whole = digest_statements._sum([digest_statements._Bytes(f"x{size}", size) for size in sizes])
    assert (whole.most is None) == (sum(sizes) > 8_000)
    for pair in re.findall(r"\((x\d+) \+ (x\d+)\)", whole.text):
        assert sum(int(part[1:]) for part in pair) <= 8_000


@pytest.mark.parametrize("kind", ["nvarchar(4000)", "binary(8000)", "varbinary(7999)"])
def test_a_cell_that_is_longer_than_8000_with_its_length_is_max(kind: str) -> None:
    from airflow_dpone.wire.sql_type import SqlType

    for nullable in (False, True):
        assert digest_statements.cell_bytes("c", SqlType.parse(kind), nullable).most is None
    assert digest_statements.cell_bytes("c", SqlType.parse("nvarchar(3999)"), False).most == 8_000


def test_the_answer_is_ten_integers() -> None:
    """[D6]"""
    row = (2, 2, *[Decimal(1)] * 8)
    assert DigestSum.from_target_row(row, 2).rows == 2
    for wrong in ((2, 1, *[Decimal(1)] * 8), (*row, 1), (2, 2, *[Decimal("1.5")] * 8), (2, 2, *[None] * 8)):
        with pytest.raises(Incident):
            DigestSum.from_target_row(wrong, 2)


def test_the_parity_rows_hold_every_type() -> None:
    from airflow_dpone.wire.sql_type import FRAMING

    layout, expected = parity.golden()
    kinds = {c.pair.sql_type.name for c in layout.columns}
    assert kinds == {name.partition("(")[0] for name in FRAMING}
    assert expected.rows == 2
