"""SIGKILL at every crash point of a delivery on the real embedded engines, then the same call again.

Whatever died: the target holds exactly the window, once; one receipt; evidence and checkpoint name it; no
staging table and no sealed file is left; the target is free.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.crash.embedded_world import World, child, in_warehouse

IDS_IN_WINDOW = [2, 3, 4, 5, 5, 7, 8, 9, 10, 11, 12, 13]
IDS_OUTSIDE = [901, 903, 904]


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> list[World]:
    """Two, one for each core."""
    return [World(tmp_path_factory.mktemp(f"lane{number}")) for number in (0, 1)]


@pytest.fixture(scope="module")
def undisturbed(lanes: list[World]) -> dict[str, Any]:
    """A delivery that nobody kills."""
    return child("finish", lanes[0].reset())[1]


def test_a_delivery_that_nobody_kills(undisturbed: dict[str, Any]) -> None:
    assert [row[0] for row in undisturbed["rows"]] == [*IDS_IN_WINDOW, *IDS_OUTSIDE]
    assert undisturbed["result"]["chunks"] == 2
    assert undisturbed["result"]["deleted_rows"] == 1
    assert problems(undisturbed, undisturbed["rows"]) == []
    assert {point.split("_")[1] for point in undisturbed["points"]} == {
        "source",
        "spool",
        "chunk",
        "target",
        "writer",
        "journal",
    }


def problems(found: dict[str, Any], rows: list[Any]) -> list[str]:
    """Everything that is not as after an undisturbed delivery."""
    if "error" in found:
        return [found["error"]]
    receipt = found["result"]["receipt_sha256"]
    checks = {
        "rows": found["rows"] == rows,
        "one receipt": found["receipts"] == [[1, found["result"]["operation_id"], receipt]],
        "evidence": found["evidence_receipt"] == receipt,
        "checkpoint": found["checkpoint_receipt"] == receipt,
        "no staging table": found["stages"] == [],
        "no sealed file": found["files"] == [],
        "custody is clear": found["custody_held"] is False,
        "completed": (found["state"], found["generation"]) == ("COMPLETED", 1),
    }
    return [name for name, held in checks.items() if not held]


@pytest.mark.timeout(1500)
def test_killed_at_every_crash_point_and_called_again(
    lanes: list[World], undisturbed: dict[str, Any]
) -> None:
    points = undisturbed["points"]

    def kill_and_finish(lane: World, index: int) -> list[str]:
        home = lane.reset()
        code, _ = child("deliver", home, str(index))
        died = [] if code == -signal.SIGKILL else ["the child was not killed"]
        _, found = child("finish", home)
        return [*died, *problems(found, undisturbed["rows"])]

    def run_lane(number: int) -> dict[int, list[str]]:
        return {i: kill_and_finish(lanes[number], i) for i in range(number, len(points), len(lanes))}

    with ThreadPoolExecutor(max_workers=len(lanes)) as pool:
        outcomes = {i: found for lane in pool.map(run_lane, range(len(lanes))) for i, found in lane.items()}
    assert {f"{i} {points[i]}": found for i, found in sorted(outcomes.items()) if found} == {}
    assert len(outcomes) == len(points) > 90


IN_THE_SPOOL = [
    "before_spool_begin",
    "before_chunk_seal",
    "after_chunk_seal",
    "before_target_create_stage",
    "after_writer_write",
    "before_spool_discard",
    "after_spool_discard",
]
"""Where an object store makes a difference; the rest of the road is that of the matrix above."""


@pytest.mark.timeout(900)
def test_with_object_storage_as_spool_too(lanes: list[World], undisturbed: dict[str, Any]) -> None:
    """On ``file://``: killed with a chunk half sealed, sealed, staged and half removed, then called again."""
    home = lanes[0].reset()
    _, whole = child("finish", home, "object_storage")
    assert problems(whole, undisturbed["rows"]) == []
    assert whole["points"] == undisturbed["points"]
    assert (home / "airflow" / "dpone" / "spool_cache").is_dir()
    outcomes = {}
    for point in IN_THE_SPOOL:
        home = lanes[0].reset()
        code, _ = child("deliver", home, str(whole["points"].index(point)), "object_storage")
        assert code == -signal.SIGKILL
        sealed = list((home / "spool").rglob("*.arrow"))
        assert bool(sealed) == (
            point not in ("before_spool_begin", "before_chunk_seal", "after_spool_discard")
        )
        _, found = child("finish", home, "object_storage")
        outcomes[point] = problems(found, undisturbed["rows"])
    assert {point: found for point, found in outcomes.items() if found} == {}


WHILE_IT_IS_MADE = [
    "after_journal_acquire",
    "before_target_create_table",
    "after_target_create_table",
    "before_target_claim_gate",
]
"""Between the lease and the gate: no table, an empty one that no plan knows, a plan of it."""


@pytest.mark.timeout(900)
def test_a_table_that_the_delivery_makes_too(lanes: list[World]) -> None:
    """Killed before and after it, then called again: the same table, the same rows, one receipt."""

    def bare() -> Path:
        home = lanes[0].reset()
        in_warehouse(home, "DROP TABLE sales.orders")
        return home

    _, whole = child("finish", bare(), "create_target")
    assert [row[0] for row in whole["rows"]] == IDS_IN_WINDOW
    assert problems(whole, whole["rows"]) == []
    outcomes = {}
    for point in WHILE_IT_IS_MADE:
        home = bare()
        code, _ = child("deliver", home, str(whole["points"].index(point)), "create_target")
        assert code == -signal.SIGKILL
        made = in_warehouse(home, "SELECT count(*) FROM duckdb_tables() WHERE schema_name = 'sales'")
        assert made == [(int(WHILE_IT_IS_MADE.index(point) > 1),)]
        _, found = child("finish", home, "create_target")
        outcomes[point] = problems(found, whole["rows"])
    assert {point: found for point, found in outcomes.items() if found} == {}
