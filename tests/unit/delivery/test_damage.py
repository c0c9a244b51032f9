"""What was proved once is looked at again before it is used: damage is refused, named, never published."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_dpone.delivery.states import AttemptEvent
from airflow_dpone.errors import DponeError, JournalError, SpoolError, TargetRejected
from airflow_dpone.settings import Limits
from tests.fakes import target_storage
from tests.fakes.world import SCHEMA, TABLE, World, as_set, order, orders, requester

OLD = [order(900), order(901, day=1)]


@pytest.fixture(autouse=True)
def _old_rows(world: World) -> None:
    """The target shows something that must stay."""
    world.target.insert(SCHEMA, TABLE, OLD)


def stop_after_extraction(world: World) -> None:
    world.target.arm("create_stage", "unreachable", times=3)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == "EXTRACTED"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize("place", [0.0, 0.3, 0.5, 0.7, 0.999])
@pytest.mark.parametrize("ordinal", [0, 1])
def test_one_flipped_byte_in_a_sealed_file_is_found_before_a_writer_sees_it(
    world: World, ordinal: int, place: float
) -> None:
    stop_after_extraction(world)
    path = world.spool_files()[ordinal]
    flip(path, int(path.stat().st_size * place))
    world.limits = Limits(max_rows=4, extraction_attempts=1)
    with pytest.raises(SpoolError) as raised:
        world.deliver()
    assert raised.value.code == "dpone.spool.damaged"
    assert raised.value.fields["ordinal"] == ordinal
    assert world.target.calls().count("write") == ordinal
    assert world.rows() == as_set(OLD)


def test_a_sealed_file_that_is_gone_is_named(world: World) -> None:
    stop_after_extraction(world)
    world.spool_files()[1].unlink()
    world.limits = Limits(max_rows=4, extraction_attempts=1)
    with pytest.raises(SpoolError) as raised:
        world.deliver()
    assert (raised.value.code, raised.value.fields["ordinal"]) == ("dpone.spool.missing", 1)
    assert raised.value.state_after == "FAILED"
    assert world.rows() == as_set(OLD)


def test_chunks_on_another_host_are_not_taken_for_lost(world: World) -> None:
    stop_after_extraction(world)
    world.spool.host_id = "another-host"
    with pytest.raises(SpoolError, match="another-host") as raised:
        world.deliver()
    assert raised.value.code == "dpone.spool.on_other_host"
    assert "test-host" in raised.value.message


def test_one_flipped_byte_in_any_stored_event_is_refused_and_named(world: World, tmp_path: Path) -> None:
    world.target.arm("read_receipt", "unreachable")
    world.target.arm("probe", "unreachable", times=999)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == "UNKNOWN"
    published = world.rows()
    with target_storage.session(world.journal_path) as journal:
        places = journal.execute("SELECT stream, sequence, length(body) FROM dpone_event").fetchall()
        journal.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert len({stream for stream, *_ in places}) == 3
    assert len(places) >= 20
    calls = len(world.target.calls())
    for number, (stream, sequence, length) in enumerate(places):
        world.journal_name = f"damaged-{number}.db"
        shutil.copyfile(world.root / "journal.db", world.journal_path)
        at = (number * 37) % length + 1
        with target_storage.session(world.journal_path) as journal:
            body = journal.execute(
                "SELECT body FROM dpone_event WHERE stream = ? AND sequence = ?", (stream, sequence)
            ).fetchone()[0]
            other = chr(ord(body[at - 1]) ^ 1)
            journal.execute(
                "UPDATE dpone_event SET body = ? WHERE stream = ? AND sequence = ?",
                (body[: at - 1] + other + body[at:], stream, sequence),
            )
        with pytest.raises(JournalError) as found:
            world.deliver()
        assert found.value.code == "dpone.journal.chain_broken"
        assert (found.value.fields["stream"], found.value.fields["sequence"]) == (stream, sequence)
    assert set(world.target.calls()[calls:]) == {"identify"}
    assert world.rows() == published


PREPARED_DAMAGE = {
    "a changed cell": "UPDATE {p} SET customer = customer + 1 WHERE id = 3",
    "a row too many": "INSERT INTO {p} SELECT * FROM {p} WHERE id = 3",
    "a row less": "DELETE FROM {p} WHERE id = 3",
    "a row beyond the window": "UPDATE {p} SET at = '2025-01-02T00:00:00.000000' WHERE id = 3",
    "two columns exchanged": "UPDATE {p} SET id = customer, customer = id",
    "a NULL": "UPDATE {p} SET note = NULL WHERE id = 2",
    "a value that the type cannot hold": "UPDATE {p} SET price = 'x' WHERE id = 2",
}


@pytest.mark.parametrize("statement", PREPARED_DAMAGE.values(), ids=PREPARED_DAMAGE.keys())
def test_a_prepared_table_that_changed_after_its_proof_is_not_published(world: World, statement: str) -> None:
    def change_it(point: str) -> None:
        if point == "before_target_publish":
            name = next(name for name in world.target.stages if name.startswith("p_"))
            world.target.execute(statement.format(p=target_storage.table_name("dpone_stage", name)))

    with pytest.raises(TargetRejected) as raised:
        world.deliver(observer=change_it)
    assert raised.value.code == "dpone.publish.digest"
    assert raised.value.state_after == "FAILED"
    assert world.rows() == as_set(OLD)
    assert world.target.receipts() == []
    assert world.untidy() == []


def test_a_raw_table_that_changed_after_its_proof_is_found_in_the_prepared_one(world: World) -> None:
    def change_it(point: str) -> None:
        if point == "before_target_build_prepared":
            path = target_storage.table_name("dpone_stage", world.target.stages[0])
            world.target.execute(f"UPDATE {path} SET customer = customer + 1")

    with pytest.raises(TargetRejected) as raised:
        world.deliver(observer=change_it)
    assert raised.value.code == "dpone.target.prepared_not_proved"
    assert world.rows() == as_set(OLD)
    assert world.untidy() == []


LIES = ["drop_row", "double_row", "change_cell", "swap_columns", "nothing"]


def attempts(world: World) -> list[list[str]]:
    """The events of each attempt's stream."""
    streams: dict[str, list[str]] = {}
    for event in world.events():
        if event.stream.startswith("attempt/"):
            streams.setdefault(event.stream, []).append(event.event)
    return list(streams.values())


@pytest.mark.parametrize("lie", LIES)
def test_a_writer_that_lies_once_is_found_out_and_the_chunk_is_written_again(world: World, lie: str) -> None:
    world.target.arm("write", lie)
    world.deliver()
    assert world.rows() == as_set([*orders(6), order(901, day=1)])
    assert world.target.calls().count("write") == 3
    assert [AttemptEvent.PARTIAL_PROVED.value in events for events in attempts(world)].count(True) == 1
    assert all(events[-1] == "RETIRED" for events in attempts(world))
    assert world.untidy() == []


@pytest.mark.parametrize("lie", LIES)
def test_a_writer_that_keeps_lying_never_reaches_the_target(world: World, lie: str) -> None:
    world.limits = Limits(max_rows=4, chunk_attempts=2)
    world.target.arm("write", lie, times=99)
    with pytest.raises(TargetRejected) as raised:
        world.deliver()
    assert (raised.value.code, raised.value.fields["ordinal"]) == ("dpone.target.chunk_not_proved", 0)
    assert world.target.calls().count("write") == 2
    assert world.rows() == as_set(OLD)
    assert world.untidy() == []


def test_a_writer_that_does_not_know_whether_it_wrote_is_judged_by_the_target(world: World) -> None:
    world.target.arm("write", "says_lost")
    world.deliver()
    assert world.target.calls().count("write") == 2
    assert world.rows() == as_set([*orders(6), order(901, day=1)])


def test_a_writer_that_breaks_off_is_replaced_by_a_new_attempt_in_a_new_table(world: World) -> None:
    world.target.arm("write", "breaks")
    world.deliver()
    assert world.target.calls().count("create_stage") == 3
    assert world.clock.slept == [1.0]
    assert world.rows() == as_set([*orders(6), order(901, day=1)])
    assert world.untidy() == []


def test_a_raw_table_that_vanishes_before_its_proof_is_written_again(world: World) -> None:
    def drop_it(point: str) -> None:
        if point == "after_writer_write" and world.target.calls().count("write") == 1:
            world.target.execute(
                f"DROP TABLE {target_storage.table_name('dpone_stage', world.target.stages[0])}"
            )

    world.deliver(observer=drop_it)
    assert world.rows() == as_set([*orders(6), order(901, day=1)])
    assert world.target.calls().count("write") == 3


def test_a_raw_table_that_was_wrong_once_is_never_proved_again(world: World) -> None:
    """Its worker dies between the mark and the journal's event, and somebody puts right what it holds: a new
    table is written."""

    class Died(BaseException):
        pass

    told: list[str] = []

    def disturb(point: str) -> None:
        if point == "before_target_verify_stage":
            told.extend(world.target.stages)
            world.target.execute(f'UPDATE "dpone_stage.{told[0]}" SET customer = customer + 1')
        if point == "after_target_verify_stage":
            raise Died

    with pytest.raises(Died):
        world.deliver(observer=disturb)
    world.target.execute(f'UPDATE "dpone_stage.{told[0]}" SET customer = customer - 1')
    assert world.deliver(requester(try_number=2)).state == "COMPLETED"
    assert world.rows() == as_set([*orders(6), *OLD[1:]])
    assert world.untidy() == []


def test_a_proved_chunk_is_kept_when_a_later_one_fails(world: World) -> None:
    world.target.arm("write", "fine")
    world.target.arm("write", "breaks", times=3)
    with pytest.raises(DponeError) as raised:
        world.deliver()
    assert raised.value.state_after == "EXTRACTED"
    writes = world.target.calls().count("write")
    world.deliver()
    assert world.target.calls().count("write") == writes + 1
