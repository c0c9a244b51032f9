"""What must hold after every step of the machine, read from the two files with statements of our own.

Nothing here asks the product: a fault in how it reads its journal, or in what the fake target says of itself,
must not hide itself.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow_dpone.delivery.recovery import BEGUN
from airflow_dpone.delivery.states import (
    ATTEMPT_MOVES,
    ENDED,
    MOVES,
    PUBLISHED_OR_LATER,
    RULES,
    AttemptEvent,
    DeliveryState,
)
from tests.fakes.target_storage import STAGE_SCHEMA
from tests.fakes.world import SCHEMA, TABLE
from tests.machine import shop
from tests.machine.shop import Row


class Broken(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, what: str, *facts: Any) -> None:
    """Raises Broken."""
    if not holds:
        raise Broken(": ".join([what, *(str(fact) for fact in facts)]))


class Watched:
    """A SQLite file that is read only when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._version: int | None = None

    def changed(self) -> bool:
        """Whether somebody has committed since the last question."""
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        before, self._version = self._version, version
        return before != version

    def all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows."""
        return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        """Lets go of the file."""
        self._connection.close()


class Judge:
    """Looks at target, journal and spool of one world.

    :ivar reads: which version of the source each read has seen, by the read's nonce; the machine keeps it.
    :ivar strays: files that a replaced worker sealed and did not live to remove.
    :ivar lost_tail: whether the journal has ever lost its end.
    :ivar commands: whether a recovery command has ever begun.
    """

    def __init__(self, root: Path, journal_path: Path, target_path: Path) -> None:
        self.root, self.journal_path = root, journal_path
        self.target, self.journal = Watched(target_path), Watched(journal_path)
        self.reads: dict[str, int] = {}
        self.strays: set[str] = set()
        self.lost_tail, self.commands = False, False
        self._receipts: dict[str, tuple[Any, ...]] = {}
        self._shown: dict[str, list[Row]] = {
            window.key: [shop.stored(row) for row in shop.INSIDE if shop.in_window(shop.stored(row), window)]
            for window in shop.WINDOWS.values()
        }
        self._gate_fence, self._greatest_fence = 0, 0
        self._events: dict[tuple[str, int], tuple[str, str]] = {}
        self._last_rowid = 0
        self._owners: dict[str, str] = {}

    def close(self) -> None:
        """Lets go of both files."""
        self.target.close()
        self.journal.close()

    def remember(self, before: Judge) -> None:
        """Takes over what a copy of the files does not show; the copy's journal may have lost its end."""
        self.reads, self.lost_tail = dict(before.reads), True
        self._greatest_fence = before._greatest_fence

    def forget_the_journal(self) -> None:
        """The journal was put back: what it said since then is not said any more."""
        self.lost_tail = True
        self.journal.close()
        self.journal = Watched(self.journal_path)
        self._events, self._last_rowid, self._owners = {}, 0, {}

    def check(self, alive: Iterable[str] = ()) -> None:
        """Raises Broken at the first thing that is wrong.

        :param alive: objects that a replaced worker has made and is still there to remove.
        """
        target, journal = self.target.changed(), self.journal.changed()
        if journal:
            self._chains()
            self._custody()
            self._lease()
        if target:
            self._gate()
            self._rows()
        if target or journal:
            self._papers()
        self._left_over(set(alive))

    # ---- the target ---------------------------------------------------------------------------------------

    def _gate(self) -> None:
        rows = self.target.all('SELECT fence, in_flight_operation_id FROM "dpone.target_gate"')
        require(len(rows) <= 1, "there is one target and more than one gate", rows)
        for fence, in_flight in rows:
            require(fence >= self._gate_fence, "the gate's fence went down", self._gate_fence, fence)
            require(in_flight is None, "a publication in flight was committed", in_flight)
            self._gate_fence = fence

    def _rows(self) -> None:
        found = self.target.all(
            "SELECT operation_id, window_key, row_count, deleted_rows, fence, delivery_key, generation, "
            'invocation_key, receipt_sha256 FROM "dpone.delivery_receipt" ORDER BY fence'
        )
        receipts = {row[0]: row for row in found}
        for operation, row in self._receipts.items():
            require(receipts.get(operation) == row, "a receipt was changed or removed", operation)
        new = [row for row in found if row[0] not in self._receipts]
        once = Counter((row[5], row[6]) for row in found)
        require(max(once.values(), default=1) == 1, "two receipts for one generation", once)
        self._counted(found)
        rows = [tuple(row) for row in self.target.all(f'SELECT * FROM "{SCHEMA}.{TABLE}"')]
        for row in new:
            self._shown[row[1]] = self._published(row)
        outside = sorted(map(shop.stored, shop.OUTSIDE), key=repr)
        left = [row for row in rows if not any(shop.in_window(row, w) for w in shop.WINDOWS.values())]
        require(sorted(left, key=repr) == outside, "rows outside of the windows changed", left)
        for window in set(shop.WINDOWS.values()):
            there = sorted((row for row in rows if shop.in_window(row, window)), key=repr)
            wanted = sorted(self._shown[window.key], key=repr)
            require(there == wanted, f"the rows of {window} are not those of its last receipt", there, wanted)
        self._receipts = receipts

    def _counted(self, receipts: list[tuple[Any, ...]]) -> None:
        """Every row that was ever deleted or inserted belongs to one publication, which has its receipt."""
        audit = self.target.all('SELECT operation_id, verb, count(*) FROM "test.audit" GROUP BY 1, 2')
        counted = {(operation, verb): count for operation, verb, count in audit}
        wanted: dict[tuple[str, str], int] = {}
        for operation, _, row_count, deleted, *_ in receipts:
            wanted |= {(operation, "insert"): row_count, (operation, "delete"): deleted}
        wanted = {key: count for key, count in wanted.items() if count}
        require(counted == wanted, "rows were changed that no receipt tells of, or twice", counted, wanted)

    def _published(self, receipt: tuple[Any, ...]) -> list[Row]:
        """The rows that this receipt is for: of the one version that the epoch in its chain has read."""
        _, window_key, row_count, *_, invocation_key, _ = receipt
        window = next(w for w in shop.WINDOWS.values() if w.key == window_key)
        version = self._version_read(invocation_key)
        if version is None:
            require(self.lost_tail, "a receipt of a generation that has extracted nothing", receipt)
            rows = {tuple(row) for row in self.target.all(f'SELECT * FROM "{SCHEMA}.{TABLE}"')}
            version = max((row[1] for row in rows if shop.in_window(row, window)), default=0)
        rows_read = shop.window_rows(version, window)
        require(len(rows_read) == row_count, "the receipt counts other rows than were read", receipt)
        return rows_read

    def _version_read(self, invocation_key: str) -> int | None:
        bodies = self._payloads(invocation_key)
        extracted = [payload for event, payload in bodies if event == "EXTRACTED"]
        if not extracted:
            return None
        epoch = extracted[-1]["extraction_epoch"]
        nonces = [
            p["nonce"] for event, p in bodies if event == "EPOCH_OPENED" and p["extraction_epoch"] == epoch
        ]
        require(len(nonces) == 1, "an extraction epoch was opened more than once", epoch)
        return self.reads[nonces[0]]

    # ---- the journal --------------------------------------------------------------------------------------

    def _payloads(self, invocation_key: str) -> list[tuple[str, Any]]:
        rows = self.journal.all(
            "SELECT event, body FROM dpone_event WHERE stream = ? ORDER BY sequence",
            f"delivery/{invocation_key}",
        )
        return [(event, json.loads(body)["payload"]) for event, body in rows]

    def _chains(self) -> None:
        rows = self.journal.all(
            "SELECT rowid, stream, sequence, previous_sha256, sha256, body, event FROM dpone_event "
            "WHERE rowid > ? ORDER BY rowid",
            self._last_rowid,
        )
        for rowid, stream, sequence, previous, sha256, body, event in rows:
            require(
                hashlib.sha256(body.encode()).hexdigest() == sha256,
                "an event without its hash",
                stream,
                sequence,
            )
            before = self._events.get((stream, sequence - 1))
            require((before is None) == (sequence == 0), "a gap in a stream", stream, sequence)
            require(
                previous == (before[0] if before else None), "an event that is not linked", stream, sequence
            )
            self._events[stream, sequence] = (sha256, event)
            self._last_rowid = rowid
            if event in ("INTENT", "PREPARE_INTENT"):
                self._note_owner(stream, json.loads(body))
        if rows:
            self._moves({row[1] for row in rows})
        count = self.journal.all("SELECT count(*) FROM dpone_event")[0][0]
        require(count == len(self._events), "an event was removed", count, len(self._events))

    def _note_owner(self, stream: str, document: Any) -> None:
        bound = document.get("stage_binding") or document["payload"]
        owner = document.get("invocation_key") or stream.removeprefix("delivery/")
        self._owners[bound["stage_name"]] = owner

    def _moves(self, streams: set[str]) -> None:
        for stream in streams:
            events = [self._events[stream, n][1] for n in range(len(self._stream(stream)))]
            if stream.startswith("attempt/"):
                steps: list[Any] = [None, *map(AttemptEvent, events)]
                wrong = [pair for pair in itertools.pairwise(steps) if pair[1] not in ATTEMPT_MOVES[pair[0]]]
            else:
                states = [DeliveryState(e) for e in events if e in DeliveryState.__members__]
                steps = [None, *states]
                wrong = [pair for pair in itertools.pairwise(steps) if pair[1] not in MOVES[pair[0]]]
                stored = self.journal.all(
                    "SELECT state, delivery_events FROM dpone_invocation WHERE invocation_key = ?",
                    stream.removeprefix("delivery/"),
                )
                require(
                    stored == [(steps[-1], len(events))],
                    "the projection differs from the stream",
                    stored,
                    events,
                )
            require(not wrong, "a move that is not permitted", stream, wrong)

    def _stream(self, stream: str) -> list[int]:
        numbers: list[int] = []
        while (stream, len(numbers)) in self._events:
            numbers.append(len(numbers))
        return numbers

    def _custody(self) -> None:
        rows = self.journal.all("SELECT state, holder_key FROM dpone_custody")
        require(len(rows) <= 1, "there is one target and more than one custody", rows)
        held = [holder for state, holder in rows if state == "held"]
        unfinished = [
            key
            for key, state in self.journal.all("SELECT invocation_key, state FROM dpone_invocation")
            if RULES[DeliveryState(state)].custody == "held"
        ]
        require(
            held == unfinished, "custody is not held by exactly the unfinished generation", held, unfinished
        )
        for (key,) in self.journal.all(
            "SELECT invocation_key FROM dpone_invocation WHERE state = 'INCIDENT'"
        ):
            reason = next(p for event, p in reversed(self._payloads(key)) if event == "INCIDENT")["reason"]
            asked_for = self.commands and reason == BEGUN
            require(self.lost_tail or asked_for, "an incident although nobody interfered", reason, key)

    def _lease(self) -> None:
        for (fence,) in self.journal.all("SELECT fence FROM dpone_lease"):
            require(
                fence >= self._greatest_fence or self.lost_tail, "a fence of the journal went down", fence
            )
            self._greatest_fence = max(fence, self._greatest_fence)

    # ---- both ---------------------------------------------------------------------------------------------

    def _papers(self) -> None:
        """A checkpoint names stored evidence, which names a receipt that the target has; in that order."""
        require(self._gate_fence <= self._greatest_fence, "the gate has a fence that the journal never gave")
        evidence = {}
        for sha256, operation, body in self.journal.all(
            "SELECT evidence_sha256, operation_id, body FROM dpone_evidence"
        ):
            require(hashlib.sha256(body).hexdigest() == sha256, "evidence without its hash", sha256)
            evidence[sha256] = (operation, json.loads(body)["receipt"]["receipt_sha256"])
        for sha256, (operation, receipt_sha256) in evidence.items():
            receipt = self._receipts.get(operation)
            there = receipt is not None and receipt[-1] == receipt_sha256
            require(there, "evidence of a receipt that the target does not have", sha256)
        for operation, sha256, receipt_sha256 in self.journal.all(
            "SELECT operation_id, evidence_sha256, receipt_sha256 FROM dpone_checkpoint"
        ):
            named = evidence.get(sha256)
            require(named == (operation, receipt_sha256), "a checkpoint ahead of its evidence", operation)
        published = {row[7] for row in self._receipts.values()}
        for key, state in self.journal.all("SELECT invocation_key, state FROM dpone_invocation"):
            if DeliveryState(state) in PUBLISHED_OR_LATER:
                require(key in published, f"{state} without a receipt in the target", key)
            if DeliveryState(state) in (DeliveryState.FAILED, DeliveryState.RETIRED) and key in published:
                told = [payload for event, payload in self._payloads(key) if event == state][-1]
                known = self.lost_tail and told.get("reason") == "published_without_proof"
                require(known, f"{state} with a receipt in the target", key, told)

    def objects(self) -> dict[str, str]:
        """Every staging table and file of the spool, with the invocation whose it is, if that is known."""
        prefix = f"{STAGE_SCHEMA}."
        tables = self.target.all(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE ?", f"{prefix}%"
        )
        found = {name: self._owners.get(name.removeprefix(prefix), "nobody") for (name,) in tables}
        spool = self.root / "spool"
        for folder, _, files in os.walk(spool):
            place = Path(folder).relative_to(spool)
            found |= {str(place / name): place.parts[0] for name in files}
        return found

    def _left_over(self, alive: set[str]) -> None:
        """What a generation owned is gone at its end; what nobody owns was never there."""
        states = dict(self.journal.all("SELECT invocation_key, state FROM dpone_invocation"))
        for name, owner in self.objects().items():
            if name in alive | self.strays or (self.lost_tail and owner not in states):
                continue
            ended = owner not in states or DeliveryState(states[owner]) in ENDED
            require(not ended, "something is left of a generation that has ended", name, owner)
