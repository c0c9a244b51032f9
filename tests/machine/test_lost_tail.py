"""A journal that lost its last transactions: every number of them, at every place of one delivery.

One delivery runs to its end. Whenever it has changed target or spool, both are copied. Each copy is then put
together with every earlier journal that a lost disk cache could have left beside it, and the task is called
again. Together these are the worlds of a delivery that was killed at any crash point and lost any k.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest

from tests.machine import shop
from tests.machine.journal_tail import HEADER_BYTES, JournalTail, commit_ends
from tests.machine.judge import Watched
from tests.machine.machine import Machine
from tests.machine.rules import scratch

OLDER = "dpone.journal.older_than_target"


@dataclass
class Moment:
    """Target and spool between two changes of either.

    :param point: the crash point at which they were first seen so. :param transactions: how many the journal
        had at the last crash point before they changed again.
    """

    point: str
    files: dict[Path, bytes]
    transactions: int


@dataclass
class Recorded:
    """One delivery: its moments, and the journal at its end, from which every earlier one can be cut."""

    machine: Machine
    moments: list[Moment] = field(default_factory=list)
    journal: bytes = b""
    log: bytes = b""

    def journal_at(self, transactions: int) -> tuple[bytes, bytes]:
        """File and log of the journal after that many transactions."""
        return self.journal, self.log[: [HEADER_BYTES, *commit_ends(self.log)][transactions]]


def outside(root: Path) -> dict[Path, bytes]:
    """Target and spool as bytes, by their place in the world."""
    connection = sqlite3.connect(root / "target.db")
    try:
        files = {Path("target.db"): connection.serialize()}
    finally:
        connection.close()
    spool = [path for path in (root / "spool").rglob("*") if path.is_file()]
    return files | {path.relative_to(root): path.read_bytes() for path in spool}


def record(place: Path) -> Recorded:
    """One delivery of two chunks from its first point to its last."""
    machine = Machine(place / "recorded", place / "template")
    try:
        recorded = Recorded(machine)
        watched = Watched(machine.world.target.path)
        machine.source_changes()
        machine.call("run-a", "retry")
        point, sealed = "the beginning", machine.world.spool_files()
        while True:
            now = machine.world.spool_files()
            if watched.changed() or now != sealed:
                recorded.moments.append(Moment(point, outside(machine.root), 0))
                sealed = now
            recorded.moments[-1].transactions = machine.tail.transactions
            if not machine.alive:
                break
            machine.go(0, 1)
            point = machine.workers[0].point or "the end"
        watched.close()
        recorded.journal = machine.world.journal_path.read_bytes()
        recorded.log = Path(f"{machine.world.journal_path}-wal").read_bytes()
        shutil.copy(machine.world.source.path, place / "source.script")
        return recorded
    finally:
        machine.close()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory with the template."""
    with scratch() as directory:
        shop.create_shop(directory / "template")
        yield directory


@pytest.fixture(scope="module")
def recorded(place: Path) -> Recorded:
    """Made once."""
    return record(place)


def put_together(root: Path, place: Path, recorded: Recorded, moment: Moment, transactions: int) -> None:
    """A world with the target and the spool of that moment and an earlier journal."""
    root.mkdir()
    for name, content in moment.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    if (root / "spool").is_dir():
        (root / "spool").chmod(0o700)
    journal, log = recorded.journal_at(transactions)
    (root / "journal.db").write_bytes(journal)
    (root / "journal.db-wal").write_bytes(log)
    shutil.copy(place / "source.script", root / "source.script")


def is_behind(root: Path) -> bool:
    """Whether the target shows that the journal has forgotten something, read from the files themselves."""
    target, journal = sqlite3.connect(root / "target.db"), sqlite3.connect(root / "journal.db")
    try:
        gate = target.execute('SELECT fence, last_operation_id FROM "dpone.target_gate"').fetchone()
        fence = journal.execute("SELECT max(fence) FROM dpone_lease").fetchone()[0] or 0
        sent = journal.execute("SELECT count(*) FROM dpone_event WHERE event = 'PUBLISHING'").fetchone()[0]
        return gate is not None and (gate[0] > fence or (gate[1] is not None and not sent))
    finally:
        target.close()
        journal.close()


@pytest.mark.timeout(600)
def test_every_lost_end_is_made_good_or_named(
    place: Path, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    """Resumed to exactly the right rows under one receipt, or stopped by the name of what is wrong.

    Which of both follows from the files alone: the target's gate knows a fence, or a publication, that the
    journal does not. The machine's judge looks at everything else.
    """
    table, worlds, forgotten = [], 0, 0
    for moment in recorded.moments:
        outcomes = []
        for lost in range(moment.transactions + 1):
            made, root = place / "made", place / "world"
            put_together(made, place, recorded, moment, moment.transactions - lost)
            behind = is_behind(made)
            machine = Machine(root, made, recorded.machine)
            try:
                machine.tasks["run-a"] = shop.AirflowTask("run-a", 1, ti_id=shop.ordered_id(0))
                machine.end()
                outcomes.append(OLDER if machine.told[OLDER] else "delivered")
                assert (outcomes[-1] == OLDER) is behind, f"{moment.point}, {lost} lost"
                assert machine.told["recovery adopt"] == (1 if behind else 0)
                forgotten += bool(machine.judge.objects())
            finally:
                machine.close()
                shutil.rmtree(made)
            worlds += 1
        table.append((moment, outcomes))
    with capsys.disabled():
        sys.stdout.write(
            f"\nlost ends of the journal: {worlds} worlds; {forgotten} that completed keep a staging table "
            "whose intent was lost\n"
        )
        for moment, outcomes in table:
            sys.stdout.write(f"  {moment.point:<28} {spoken(outcomes)}\n")
    assert len(recorded.moments) >= 15
    assert {outcome for _, outcomes in table for outcome in outcomes} == {"delivered", OLDER}


def spoken(outcomes: list[str]) -> str:
    """``lost 0-3: delivered; lost 4-20: ...``"""
    parts, first = [], 0
    for outcome, group in groupby(outcomes):
        last = first + len(list(group)) - 1
        parts.append(f"lost {first}-{last}: {outcome}" if first != last else f"lost {first}: {outcome}")
        first = last + 1
    return "; ".join(parts)


def test_a_log_can_be_cut_behind_each_transaction(tmp_path: Path) -> None:
    """What is left is exactly what was there then; and it can go on from there."""
    path = tmp_path / "journal.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (n INTEGER)")
    connection.close()
    for kept in range(5):
        shutil.copy(path, tmp_path / "copy.db")
        tail = JournalTail(tmp_path / "copy.db")
        writer = sqlite3.connect(tmp_path / "copy.db", isolation_level=None)
        for number in range(4):
            writer.execute("INSERT INTO t VALUES (?)", (number,))
        writer.close()
        assert tail.transactions == 4
        tail.keep(kept)
        writer = sqlite3.connect(tmp_path / "copy.db", isolation_level=None)
        assert [n for (n,) in writer.execute("SELECT n FROM t")] == list(range(kept))[:4]
        writer.execute("INSERT INTO t VALUES (9)")
        writer.close()
        assert tail.transactions == min(kept, 4) + 1
        tail.close()
        for rest in tmp_path.glob("copy.db*"):
            rest.unlink()
