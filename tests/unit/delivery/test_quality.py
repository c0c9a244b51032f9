"""Quality checks within a delivery: what fails leaves everything as it is, what warns goes on and is told."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from airflow_dpone.errors import ConfigurationError, DponeError
from airflow_dpone.settings import Quality
from tests.fakes.world import SCHEMA, TABLE, World, as_set, order, orders, requester


def judged(world: World) -> list[dict[str, Any]]:
    prepared = [e for e in world.events() if e.event == "PREPARED"][-1]
    found: list[dict[str, Any]] = prepared.body["payload"]["quality"]
    return found


def evidence(world: World, sha256: str) -> dict[str, Any]:
    with world.open_journal() as journal:
        return json.loads(journal.evidence(sha256) or b"{}")  # type: ignore[no-any-return]


FAILING: dict[str, tuple[dict[str, Any], str]] = {
    "unique(note)": ({"unique": ["note"]}, "2 rows repeat a key"),
    "min(id)": ({"min_max": {"id": {"min": 4}}}, "3 values below 4"),
    "max(id)": ({"min_max": {"id": {"max": 1}}}, "5 values above 1"),
    "max_shrink_ratio": (
        {"max_shrink_ratio": "0.3"},
        "6 rows, 9 in the target now: it would shrink by 0.3334, allowed 0.3",
    ),
}


@pytest.fixture
def shop(world: World) -> World:
    """Six rows in the source, three of them with the same note; nine rows in the target's window."""
    world.source.edit(rows=[order(n, note="same" if n < 4 else f"n{n}") for n in range(1, 7)])
    world.target.insert(SCHEMA, TABLE, orders(9, first=100))
    return world


@pytest.mark.parametrize("name", FAILING)
def test_a_failed_check_leaves_the_target_as_it_is(shop: World, name: str) -> None:
    quality, said = FAILING[name]
    shop.quality = Quality(**quality)
    with pytest.raises(DponeError) as raised:
        shop.deliver()
    assert (raised.value.code, raised.value.state_after) == ("dpone.quality.failed", "FAILED")
    assert raised.value.fields["checks"] == [name]
    assert f"{name}: {said}" in raised.value.message
    assert shop.rows() == as_set(orders(9, first=100))
    assert shop.untidy() == []


@pytest.mark.parametrize("name", FAILING)
def test_a_check_that_only_warns_is_logged_and_in_the_evidence(
    shop: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    quality, said = FAILING[name]
    shop.quality = Quality(**quality, severity={name: "warn"})
    with caplog.at_level(logging.WARNING):
        result = shop.deliver()
    assert result.state == "COMPLETED"
    (found,) = [check for check in judged(shop) if check["check"] == name]
    assert (found["passed"], found["severity"], found["said"]) == (False, "warn", said)
    assert evidence(shop, result.evidence_sha256)["quality"] == judged(shop)
    assert any(f"{name}: {said}" in record.getMessage() for record in caplog.records)


def test_every_check_says_what_it_observed_and_what_is_allowed(shop: World) -> None:
    shop.quality = Quality(
        row_count={"min_rows": 1, "max_rows": 6},
        not_null=("id",),
        unique=["id"],
        min_max={"id": {"min": 1, "max": 6}},
        max_shrink_ratio="0.5",
    )
    result = shop.deliver()
    assert [
        (q["check"], q["passed"], q["observed"], q["threshold"], q["severity"])
        for q in evidence(shop, result.evidence_sha256)["quality"]
    ] == [
        ("row_count", True, "6", "1..6", "error"),
        ("not_null(id)", True, "0", "0", "error"),
        ("unique(id)", True, "0", "0", "error"),
        ("min(id)", True, "0", "1", "error"),
        ("max(id)", True, "0", "6", "error"),
        ("max_shrink_ratio", True, "0.3334", "0.5", "error"),
    ]


def test_a_warning_beside_an_error_is_no_failure(shop: World) -> None:
    shop.quality = Quality(unique=["note"], min_max={"id": {"max": 1}}, severity={"unique(note)": "warn"})
    with pytest.raises(DponeError) as raised:
        shop.deliver()
    assert raised.value.fields["checks"] == ["max(id)"]


@pytest.mark.parametrize(
    ("there", "comes", "allowed", "passes"),
    [
        (0, 0, "0", True),
        (0, 6, "0", True),
        (6, 6, "0", True),
        (6, 5, "0", False),
        (10, 8, "0.2", True),
        (10, 7, "0.2", False),
        (3, 2, "0.3333", False),
        (3, 2, "0.33334", True),
        (6, 0, "1", True),
        (6, 0, "0.99", False),
    ],
)
def test_by_how_much_a_window_may_shrink(
    world: World, there: int, comes: int, allowed: str, passes: bool
) -> None:
    """A ratio is of the rows that are there; the very ratio that is allowed is allowed."""
    world.source.edit(rows=[*orders(comes), order(900, day=1)])
    if there:
        world.target.insert(SCHEMA, TABLE, orders(there, first=100))
    world.quality = Quality(max_shrink_ratio=allowed)
    if passes:
        assert world.deliver().rows == comes
    else:
        with pytest.raises(DponeError, match="max_shrink_ratio"):
            world.deliver()


def test_an_empty_window_breaks_no_check_of_values(world: World) -> None:
    world.source.edit(rows=[order(900, day=1)])
    world.quality = Quality(not_null=("note",), unique=["id"], min_max={"id": {"min": 5, "max": 5}})
    assert world.deliver().rows == 0
    assert [(q["check"], q["observed"]) for q in judged(world)][-1] == ("on_empty", "0")


def test_checks_that_do_not_fit_the_table_are_refused_at_admission_all_at_once(world: World) -> None:
    world.quality = Quality(
        not_null=("nota",),
        unique=[["id", "x"], "price"],
        min_max={"note": {"min": 1}, "id": {"min": "0.5"}, "day": {"max": 5}},
    )
    with pytest.raises(ConfigurationError) as raised:
        world.deliver()
    assert [problem.where for problem in raised.value.problems] == [
        "nota", "x", "quality: unique(price)", "quality: min(note)", "quality: min(id)", "quality: max(day)",
    ]  # fmt: skip
    with world.open_journal() as journal:
        assert journal.newest_invocation(requester().delivery_key) is None


def test_a_resumed_delivery_asks_the_newest_checks(world: World) -> None:
    world.target.arm("build_prepared", "unreachable", times=9)
    with pytest.raises(DponeError):
        world.deliver()
    world.target.disarm()
    world.quality = Quality(unique=["nobody"])
    with pytest.raises(ConfigurationError, match=r"quality\.unique"):
        world.deliver(requester(try_number=2, ti_id="2"))
