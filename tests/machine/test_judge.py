"""The judge itself: whatever is done behind the engine's back, it sees; and a failing list is made short."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.machine.judge import Broken, require
from tests.machine.machine import Machine, do
from tests.machine.reduce import reduced, without
from tests.machine.worker import Worker

END = 1_000
DAMAGE: dict[str, tuple[str, str, str]] = {
    "a row of the window": (
        "target",
        'DELETE FROM "dbo.orders" WHERE version = 0 AND id = 1',
        "no receipt tells",
    ),
    "a row twice": (
        "target",
        'INSERT INTO "dbo.orders" SELECT * FROM "dbo.orders" WHERE version = 0 LIMIT 1',
        "no receipt tells",
    ),
    "a row outside": ("target", "UPDATE \"dbo.orders\" SET note = 'x' WHERE id < 0", "no receipt tells"),
    "a receipt": ("target", 'DELETE FROM "dpone.delivery_receipt"', "a receipt was changed or removed"),
    "a receipt's count": (
        "target",
        'UPDATE "dpone.delivery_receipt" SET row_count = 7',
        "a receipt was changed or removed",
    ),
    "the gate, down": ("target", 'UPDATE "dpone.target_gate" SET fence = 1', "fence went down"),
    "the gate, up": ("target", 'UPDATE "dpone.target_gate" SET fence = 99', "journal never gave"),
    "the gate, in flight": (
        "target",
        "UPDATE \"dpone.target_gate\" SET in_flight_operation_id = 'x'",
        "in flight was committed",
    ),
    "a table": ("target", 'CREATE TABLE "dpone_stage.r_left" (a)', "something is left"),
    "an event": (
        "journal",
        "UPDATE dpone_event SET body = replace(body, '1', '2')",
        "event without its hash",
    ),
    "an event less": (
        "journal",
        "DELETE FROM dpone_event WHERE sequence = (SELECT max(sequence) FROM dpone_event)",
        "removed",
    ),
    "the state": (
        "journal",
        "UPDATE dpone_invocation SET state = 'EVIDENCED'",
        "custody is not held by exactly the unfinished",
    ),
    "the lease": ("journal", "UPDATE dpone_lease SET fence = 1", "fence of the journal went down"),
    "the evidence": ("journal", "DELETE FROM dpone_evidence", "ahead of its evidence"),
    "the evidence's bytes": (
        "journal",
        "UPDATE dpone_evidence SET body = x'7b7d'",
        "evidence without its hash",
    ),
}


@pytest.mark.parametrize(("file", "statement", "said"), DAMAGE.values(), ids=DAMAGE.keys())
def test_the_judge_sees(machine: Machine, file: str, statement: str, said: str) -> None:
    do(machine, "call", "run-a", "retry")
    do(machine, "go", 0, END)
    place = machine.world.target.path if file == "target" else machine.world.journal_path
    connection = sqlite3.connect(place, isolation_level=None)
    connection.execute(statement)
    connection.close()
    if statement.startswith("UPDATE dpone_event"):
        machine.judge._events, machine.judge._last_rowid = {}, 0
    with pytest.raises(Broken, match=said):
        machine.judge.check()


def test_the_judge_sees_custody_that_was_given_up_too_early(machine: Machine) -> None:
    do(machine, "call", "run-a", "retry")
    do(machine, "go_to", 0, "before_target_publish")
    connection = sqlite3.connect(machine.world.journal_path, isolation_level=None)
    connection.execute(
        "UPDATE dpone_custody SET state = 'clear', holder_key = NULL, holder_fence = NULL, "
        "release_reason = 'published_cleanup'"
    )
    connection.close()
    with pytest.raises(Broken, match="custody is not held by exactly the unfinished"):
        machine.judge.check()


def test_the_judge_sees_a_sealed_file_that_is_left(machine: Machine) -> None:
    do(machine, "call", "run-a", "retry")
    do(machine, "go_to", 0, "before_spool_discard")
    kept = {path: path.read_bytes() for path in machine.world.spool_files()}
    assert kept
    do(machine, "go", 0, END)
    for path, content in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with pytest.raises(Broken, match="something is left"):
        machine.judge.check()


def test_steps_are_left_out_with_what_hangs_on_them() -> None:
    steps = [
        ("call", "run-a", "retry"),
        ("go", 0, 5),
        ("call", "run-b", "retry"),
        ("go", 1, 5),
        ("kill", 0, True),
    ]
    assert without(steps, 0) == [("call", "run-b", "retry"), ("go", 0, 5)]
    assert without(steps, 1) == [*steps[:1], *steps[2:]]


def test_a_failing_list_is_made_short(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a worker must never come to stand in front of a publication."""
    look = Machine._look

    def strict(self: Machine, worker: Worker) -> None:
        look(self, worker)
        require(worker.point != "before_target_publish", "it wants to publish")

    monkeypatch.setattr(Machine, "_look", strict)
    steps = [
        ("call", "run-b", "retry"),
        ("kill", 0, True),
        ("source_changes",),
        ("call", "run-a", "retry"),
        ("lease_expires",),
        ("go", 1, END),
        ("arm", "publish", "lost_answer"),
    ]
    assert reduced(steps, place, place / "template") == [("call", "run-a", "retry"), ("go", 0, END)]
