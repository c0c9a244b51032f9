"""Every kind of damage of stored events is refused on read, and named: stream, sequence and broken rule."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_dpone.delivery import journal_records as jr
from airflow_dpone.delivery import records as r
from airflow_dpone.delivery.identity import canonical, sha256_hex
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState
from airflow_dpone.errors import JournalError
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import RELEASED, SqliteStore, begin, evidence
from tests.contract.journal_examples import evidence_body, payload

S, D, A = DeliveryState, DeliveryEvent, AttemptEvent
DELIVERY, ATTEMPT = "delivery/%", "attempt/%"


@dataclass
class Written:
    """A closed journal: a delivery of 5 events (the last one is no state), two attempts of 3 and 1."""

    path: Path
    invocation_key: str
    evidence_sha256: str

    def read(self) -> tuple[jr.Event, ...]:
        with open_journal(self.path) as journal:
            return journal.events(self.invocation_key)

    def change(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        """What a bad disk, a restored table or a person with a client may do: no constraint stops it."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for sql, values in statements:
                assert connection.execute(sql, values).rowcount > 0, "the damage did not happen"


@pytest.fixture
def written(tmp_path: Path) -> Written:
    store = SqliteStore(tmp_path)
    with store.open() as journal:
        delivery = begin(journal)
        document = evidence(delivery)
        journal.append(
            delivery.lease,
            delivery.event(D.EPOCH_OPENED),
            delivery.event(D.CHUNK_SEALED),
            delivery.event(S.EXTRACTED),
            *(delivery.attempt(event, "a") for event in (A.INTENT, A.STAGE_OWNED, A.GRANTED)),
            delivery.attempt(A.INTENT, "b"),
            delivery.event(D.TUNED),
            document,
        )
        return Written(store.path, delivery.invocation_key, document.evidence_sha256)


def refused(written: Written) -> JournalError:
    with pytest.raises(JournalError) as caught:
        written.read()
    assert caught.value.retry == "never"
    return caught.value


def assert_broken(written: Written, stream: str, sequence: int, rule: str) -> None:
    error = refused(written)
    assert error.code == "dpone.journal.chain_broken", error
    assert (error.fields["sequence"], error.fields["rule"]) == (sequence, rule), error
    assert error.fields["stream"].startswith(stream.rstrip("%")), error
    for part in (error.fields["stream"], f"event {sequence}", rule):
        assert part in error.message


def test_an_undamaged_chain_is_read(written: Written) -> None:
    assert len(written.read()) == 9


def _flip(written: Written, stream: str, sequence: int, column: str, place: int) -> None:
    with closing(sqlite3.connect(written.path)) as connection:
        where = "stream LIKE ? AND sequence = ? AND (stream LIKE 'delivery/%' OR sequence > 0)"
        query = f"SELECT CAST({column} AS BLOB) FROM dpone_event WHERE {where}"
        text = bytearray(connection.execute(query, (stream, sequence)).fetchone()[0])
    text[place] ^= 1
    sql = f"UPDATE dpone_event SET {column} = CAST(? AS TEXT) WHERE {where}"
    written.change((sql, (bytes(text), stream, sequence)))


@pytest.mark.parametrize(("stream", "length"), [(DELIVERY, 5), (ATTEMPT, 3)])
@pytest.mark.parametrize(
    ("column", "rule", "first"),
    [("body", "hash", 0), ("sha256", "hash", 0), ("previous_sha256", "linked", 1)],
)
def test_one_flipped_bit_anywhere_in_an_event(
    written: Written, stream: str, length: int, column: str, rule: str, first: int
) -> None:
    first = max(
        first, 1 if stream == ATTEMPT else 0
    )  # two attempts have an event 0; the flip is to hit one row
    for sequence in range(first, length):
        for place in (0, 20, 63):
            _flip(written, stream, sequence, column, place)
            assert_broken(written, stream, sequence, rule)
            _flip(written, stream, sequence, column, place)
    assert len(written.read()) == 9


def test_every_single_byte_of_a_body_matters(written: Written) -> None:
    with closing(sqlite3.connect(written.path)) as connection:
        query = "SELECT length(body) FROM dpone_event WHERE stream LIKE 'delivery/%' AND sequence = 1"
        length = connection.execute(query).fetchone()[0]
    for place in range(0, length, 19):
        _flip(written, DELIVERY, 1, "body", place)
        assert_broken(written, DELIVERY, 1, "hash")
        _flip(written, DELIVERY, 1, "body", place)


def test_a_body_that_is_no_text_any_more(written: Written) -> None:
    sql = "UPDATE dpone_event SET body = CAST(X'7BFF7D' AS TEXT) WHERE stream LIKE ? AND sequence = 2"
    written.change((sql, (DELIVERY,)))
    assert_broken(written, DELIVERY, 2, "hash")


def test_two_events_that_changed_places(written: Written) -> None:
    move = "UPDATE dpone_event SET sequence = ? WHERE stream LIKE ? AND sequence = ?"
    written.change((move, (99, DELIVERY, 1)), (move, (1, DELIVERY, 2)), (move, (2, DELIVERY, 99)))
    assert_broken(written, DELIVERY, 1, "linked")


def test_an_event_deleted_from_the_middle(written: Written) -> None:
    written.change(("DELETE FROM dpone_event WHERE stream LIKE ? AND sequence = 2", (DELIVERY,)))
    assert_broken(written, DELIVERY, 2, "contiguous")


def test_the_first_event_deleted(written: Written) -> None:
    written.change(("DELETE FROM dpone_event WHERE stream LIKE ? AND sequence = 0", (DELIVERY,)))
    assert_broken(written, DELIVERY, 0, "contiguous")


@pytest.mark.parametrize("kept", [0, 3, 4])
def test_the_end_of_the_delivery_cut_off(written: Written, kept: int) -> None:
    """kept=4 removes an event that is no state: neither links nor the projection's state would show it."""
    written.change(("DELETE FROM dpone_event WHERE stream LIKE ? AND sequence >= ?", (DELIVERY, kept)))
    assert_broken(written, DELIVERY, kept, "length")


@pytest.mark.parametrize(("condition", "left"), [("sequence = 2", 3), ("sequence >= 0", 0)])
def test_the_end_of_an_attempt_cut_off_or_all_attempts_gone(
    written: Written, condition: str, left: int
) -> None:
    written.change((f"DELETE FROM dpone_event WHERE stream LIKE ? AND {condition}", (ATTEMPT,)))
    assert_broken(written, "attempt/*", left, "length")


@pytest.mark.parametrize("state", ["STAGED", "COMPLETED", "PLANNED"])
def test_a_projection_with_another_state(written: Written, state: str) -> None:
    written.change(("UPDATE dpone_invocation SET state = ?", (state,)))
    assert_broken(written, DELIVERY, 4, "projection")


@pytest.mark.parametrize(
    ("column", "value"), [("event", "STAGED"), ("created_at", "2020-01-01T00:00:00.000000Z")]
)
def test_a_column_that_differs_from_the_body(written: Written, column: str, value: str) -> None:
    sql = f"UPDATE dpone_event SET {column} = ? WHERE stream LIKE ? AND sequence = 3"
    written.change((sql, (value, DELIVERY)))
    assert_broken(written, DELIVERY, 3, "columns")


def _rewrite(
    written: Written,
    change: Callable[[r.Json], object],
    *,
    text: Callable[[bytes], bytes] = bytes,
    event: int = 4,
) -> None:
    """An event with another document and a right hash over it; by default the last one of the delivery, so
    that no link tells."""
    row = written.read()[event]
    document = deepcopy(dict(row.body))
    change(document)
    body = text(canonical(document))
    sql = "UPDATE dpone_event SET body = ?, sha256 = ?, event = ? WHERE sha256 = ?"
    values = (body.decode(), sha256_hex(body), document.get("event", row.event), row.sha256)
    written.change((sql, values))


def _becomes(event: S | D) -> Callable[[r.Json], None]:
    return lambda body: body.update(event=event.value, payload=payload(event))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_becomes(S.STAGED), "projection"),
        (_becomes(S.COMPLETED), "transition"),
        (_becomes(D.CHUNK_SEALED), "transition"),
        (lambda body: body.update(event="INTENT"), "schema"),
        (lambda body: body.update(kind="dpone.chunk-attempt-event"), "envelope"),
        (lambda body: body.update(kind="something"), "envelope"),
        (lambda body: body.update(schema_version="1"), "envelope"),
        (lambda body: body.update(schema_version=0), "envelope"),
        (lambda body: body.update(more=1), "envelope"),
        (lambda body: body.pop("fence"), "envelope"),
        (lambda body: body.update(sequence=3), "columns"),
        (lambda body: body.update(stream="delivery/other"), "columns"),
        (lambda body: body.update(previous_sha256=None), "columns"),
    ],
)
def test_a_forged_event_with_a_right_hash(
    written: Written, change: Callable[[r.Json], object], rule: str
) -> None:
    _rewrite(written, change)
    assert_broken(written, DELIVERY, 4, rule)


MISFITS: list[tuple[int, Callable[[r.Json], object], str]] = [
    (4, lambda body: body["payload"].pop("limits"), "payload.limits"),
    (4, lambda body: body["payload"].update(more=1), "payload.more"),
    (4, lambda body: body["payload"]["limits"].update(max_rows="7"), "payload.limits.max_rows"),
    (4, lambda body: body["payload"]["limits"].update(max_rows=0.5), "payload.limits.max_rows"),
    (4, lambda body: body["payload"]["limits"].update(max_rows=None), "payload.limits.max_rows"),
    (4, lambda body: body.update(payload=[]), "payload"),
    (4, lambda body: body.update(fence=2), "fence"),
    (4, lambda body: body["requester"].update(try_number="1"), "requester.try_number"),
    (7, lambda body: body.update(writer_binding=None), "writer_binding"),
    (7, lambda body: body["stage_binding"].update(object_id=None), "stage_binding.object_id"),
    (7, lambda body: body["artifact_binding"].update(file_sha256="A" * 64), "artifact_binding.file_sha256"),
    (7, lambda body: body.update(observation={}), "observation"),
    (8, lambda body: body["stage_binding"].update(object_id="1"), "stage_binding.object_id"),
]
"""Event 4 is TUNED, 7 the GRANTED of one attempt, 8 the INTENT of another: each the last of its stream."""


@pytest.mark.parametrize(("event", "change", "path"), MISFITS, ids=[f"{e} {p}" for e, _, p in MISFITS])
def test_an_event_of_another_shape_with_a_right_hash(
    written: Written, event: int, change: Callable[[r.Json], object], path: str
) -> None:
    stored = written.read()[event]
    _rewrite(written, change, event=event)
    assert_broken(written, stored.stream, stored.sequence, "schema")
    error = refused(written)
    assert error.fields["path"] == path
    assert path in error.message


@pytest.mark.parametrize(
    "text",
    [
        lambda body: body + b" ",
        lambda body: body.replace(b'"event":', b'"event": '),
        lambda body: body[:-1],
        lambda body: b"[]",
        lambda body: b"[" * 100_000,
        lambda body: body.replace(b'"sequence":4', b'"sequence":4.0'),
    ],
    ids=["space at the end", "space inside", "cut off", "a list", "nested deeply", "4.0"],
)
def test_a_body_that_is_not_canonical(written: Written, text: Callable[[bytes], bytes]) -> None:
    _rewrite(written, lambda body: None, text=text)
    assert_broken(written, DELIVERY, 4, "canonical")


def test_an_event_of_a_newer_version_is_not_called_damage(written: Written) -> None:
    _rewrite(written, lambda body: body.update(schema_version=2, new_field=1))
    error = refused(written)
    assert error.code == "dpone.journal.newer_event"
    assert error.fields["sequence"] == 4


def test_nothing_is_appended_to_a_damaged_end(written: Written) -> None:
    _flip(written, DELIVERY, 4, "body", 30)
    with open_journal(written.path) as journal:
        found = journal.newest_invocation(_delivery_key(written))
        assert found is not None
        requester = _requester(written)
        lease = journal.acquire(found.target_key, requester, ttl_sec=60, gate_fence=0)
        write = jr.AppendDelivery(written.invocation_key, 5, S.STAGED, {})
        with pytest.raises(JournalError) as caught:
            journal.append(lease, write)
        assert caught.value.fields["rule"] == "hash"


def test_nothing_is_appended_after_a_cut_off_end(written: Written) -> None:
    written.change(("DELETE FROM dpone_event WHERE stream LIKE ? AND sequence = 4", (DELIVERY,)))
    with open_journal(written.path) as journal:
        found = journal.newest_invocation(_delivery_key(written))
        assert found is not None
        lease = journal.acquire(found.target_key, _requester(written), ttl_sec=60, gate_fence=0)
        with pytest.raises(JournalError) as caught:
            journal.append(lease, jr.AppendDelivery(written.invocation_key, 4, S.STAGED, {}))
        assert caught.value.fields["rule"] == "length"
        release = jr.ReleaseCustody(written.invocation_key, RELEASED)
        with pytest.raises(JournalError):
            journal.append(lease, jr.AppendDelivery(written.invocation_key, 4, S.FAILED, {}), release)


def _evidence_error(written: Written, sha256: str) -> JournalError:
    with open_journal(written.path) as journal, pytest.raises(JournalError) as caught:
        journal.evidence(sha256)
    assert caught.value.retry == "never"
    return caught.value


def test_a_damaged_evidence_document(written: Written) -> None:
    written.change(("UPDATE dpone_evidence SET body = X'7B7D'", ()))
    error = _evidence_error(written, written.evidence_sha256)
    assert error.code == "dpone.journal.evidence_damaged"


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        (evidence_body(attempts="2"), "dpone.journal.evidence_damaged", "attempts"),
        (evidence_body(more=1), "dpone.journal.evidence_damaged", "more"),
        (evidence_body(schema="dpone.delivery-evidence.v0"), "dpone.journal.evidence_damaged", "schema"),
        (b"{}", "dpone.journal.evidence_damaged", "after_image"),
        (b"[]", "dpone.journal.evidence_damaged", ""),
        (b"{", "dpone.journal.evidence_damaged", ""),
        (b"\xff", "dpone.journal.evidence_damaged", ""),
        (b"[" * 100_000, "dpone.journal.evidence_damaged", ""),
        (evidence_body(schema="dpone.delivery-evidence.v2", more=1), "dpone.journal.newer_event", None),
    ],
    ids=["a type", "a field more", "no version", "empty", "a list", "cut off", "no text", "deep", "newer"],
)
def test_evidence_of_another_shape_under_a_right_hash(
    written: Written, body: bytes, code: str, path: str | None
) -> None:
    sha256 = sha256_hex(body)
    written.change(("UPDATE dpone_evidence SET body = ?, evidence_sha256 = ?", (body, sha256)))
    error = _evidence_error(written, sha256)
    assert (error.code, error.fields.get("path")) == (code, path)
    assert error.fields["evidence_sha256"] == sha256


def test_a_damaged_database_page(written: Written) -> None:
    # Everything behind the first page, which alone tells SQLite that the file is a database.
    size = written.path.stat().st_size
    with written.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xaa" * (size - 4096))
    with pytest.raises(JournalError) as caught:
        written.read()
    assert caught.value.code == "dpone.journal.damaged"


def _requester(written: Written) -> r.Requester:
    return r.Requester(**dict(written_body(written)["requester"], try_number=2))


def _delivery_key(written: Written) -> str:
    return _requester(written).delivery_key


def written_body(written: Written) -> r.Json:
    """The first event's document, read without proof."""
    import json

    with closing(sqlite3.connect(written.path)) as connection:
        query = "SELECT body FROM dpone_event WHERE stream LIKE 'delivery/%' AND sequence = 0"
        body: r.Json = json.loads(connection.execute(query).fetchone()[0])
    return body
