"""One write over a core that lies, breaks, changes its session or panics. The core is scripted here; the real
one runs in ``tests/mssql``."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest

from airflow_dpone.bulk_writer import messages
from airflow_dpone.bulk_writer.messages import Kind
from airflow_dpone.bulk_writer.tds_write import Rows, Write
from airflow_dpone.bulk_writer.writer import request_body
from airflow_dpone.delivery import target_records as tr
from airflow_dpone.target_sqlserver.marks import CREATED, GRANTED, SEALED, Mark
from airflow_dpone.wire.types import WireLayout
from tests.contract.target_cases import ID, NEW, ORDERS, batch_of, layout_of

TOKEN, OTHER, OWNER = "a" * 64, "c" * 64, "b" * 64
LAYOUT = layout_of(ORDERS)
BATCH = batch_of(NEW, LAYOUT)
STAGE = tr.StageRef("r_1", OWNER, 7)
REQUEST = request_body(STAGE, LAYOUT, TOKEN, stage_schema="dpone_stage", budget_sec=30)
SESSION_FACTS = (22392, 0, "Shop", "READ_WRITE", 1, 1, 30_000, "us_english", 2, 51, "now")


class PanicException(BaseException):
    """As the core's: no Exception."""


@dataclass
class Core:
    """A core with one session and the stage behind it; a test changes what it answers.

    :param before: called in the middle of the load, with the core.
    """

    custody: tuple[Any, ...] = (
        *(51, "2025-01-02T03:04:05.678", bytes.fromhex(TOKEN), "Exclusive", 7),
        str(Mark(OWNER, GRANTED, TOKEN, 7)),
    )
    granted: object = 0
    facts: tuple[Any, ...] = SESSION_FACTS
    in_the_load: Callable[[Core], object] = lambda _: None
    copied: Callable[[int], Any] = lambda rows: {"rows_copied": rows}
    on_close: Callable[[], object] = lambda: None
    is_dead: bool = False
    shift: int = 0
    log: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    rows: int = 0

    def cursor(self) -> Core:
        return self

    def close(self) -> None:
        self.log.append("close")
        self.on_close()

    def execute(self, statement: str) -> None:
        if self.is_dead:
            raise RuntimeError("Connection is dead and session recovery is unavailable")
        self._answer = self._answer_to(statement)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._answer

    def _answer_to(self, statement: str) -> list[tuple[Any, ...]]:
        found = re.search(r"SELECT (\d+) AS question", statement)
        number = int(found[1]) - self.shift if found else 0
        if "sp_getapplock" in statement:
            assert f"N'dpone:stage:{TOKEN}'" in statement
            self.log.append("lock")
            return [(number, self.granted)]
        if "APPLOCK_MODE" in statement:
            assert "N'[dpone_stage].[r_1]'" in statement
            self.log.append("custody")
            return [(number, *self.custody)]
        if "SESSIONPROPERTY" in statement:
            self.log.append("facts")
            return [self.facts]
        self.log.append("name" if "CONTEXT_INFO" in statement else "settings")
        return []

    def bulkcopy_arrow(self, table: str, source: Iterator[pa.RecordBatch], **options: Any) -> Any:
        self.log.append(f"copy {table}")
        self.options = options
        try:
            for batch in source:
                self.rows += batch.num_rows
                self.in_the_load(self)
        except (ValueError, OSError, messages.ProtocolFault) as error:
            raise RuntimeError(f"Failed to read next Arrow batch: {error}") from None
        return self.copied(self.rows)

    def become(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self, name, value)

    def with_custody(self, place: int, value: object) -> tuple[Any, ...]:
        return (*self.custody[:place], value, *self.custody[place + 1 :])


def stream_of(*batches: pa.RecordBatch, layout: WireLayout = LAYOUT, end: int | None = -1) -> io.BytesIO:
    """The rows' pipe. :param end: rows that the last frame names; -1: as many as there are; None: no such."""
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, layout.arrow_schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    if end is not None:
        rows = sum(batch.num_rows for batch in batches) if end < 0 else end
        sink.write(messages.encode(Kind.END_OF_ROWS, {"schema_version": 1, "rows": rows}))
    return io.BytesIO(sink.getvalue())


def renamed_stream() -> io.BytesIO:
    """It names the layout of the request, and has other columns."""
    batch, sink = BATCH.rename_columns(["x", *BATCH.schema.names[1:]]), io.BytesIO()
    with pyarrow.ipc.new_stream(sink, batch.schema.with_metadata(LAYOUT.arrow_schema.metadata)) as writer:
        writer.write_batch(batch)
    return io.BytesIO(sink.getvalue())


def write(core: Core, stream: io.BytesIO | None = None, *, seconds: float = 30) -> dict[str, Any]:
    """Runs one write; what it says is always a frame of the protocol."""

    def connect() -> Core:
        return core

    rows = Rows(stream or stream_of(BATCH, BATCH), REQUEST)
    ends = time.monotonic() + seconds
    said = Write(REQUEST, rows, connect, database="shop", ends=ends).run()
    return messages.decode(Kind.WRITE_RESULT, messages.encode(Kind.WRITE_RESULT, said))


def ended(said: dict[str, Any]) -> tuple[str, str | None]:
    return said["classification"], (said["diagnostic_code"] or "").removeprefix("dpone.writer.") or None


def test_lock_custody_load_custody_and_only_then_the_end() -> None:
    """[B1] the same questions before and after, on the same cursor; the lock is held until the disconnect."""
    core = Core()
    said = write(core)
    assert ended(said) == ("success", None)
    assert said["input_rows_consumed"] == 2 * len(NEW)
    assert said["session"] == {"spid": 51, "login_time": "2025-01-02T03:04:05.678"}
    assert all(type(value) is int for value in said["metrics"].values())
    copy = "copy [dpone_stage].[r_1]"
    assert core.log == ["settings", "facts", "name", "lock", "custody", copy, "custody", "close"]


def test_every_option_of_the_load_is_said() -> None:
    """[B9] the core's own defaults are wrong here."""
    core = Core()
    write(core, seconds=25)
    names = [(ordinal, column.name) for ordinal, column in enumerate(LAYOUT.columns)]
    assert core.options == {
        "batch_size": 0,
        "timeout": 25,
        "column_mappings": names,
        "keep_identity": False,
        "check_constraints": False,
        "table_lock": True,
        "keep_nulls": True,
        "fire_triggers": False,
        "use_internal_transaction": True,
    }


def test_every_buffer_begins_where_the_core_can_read_it() -> None:
    """Seen: it panics on a decimal at an odd multiple of 8 bytes, which is where a stream may put one."""
    places: list[int] = []

    class Looking(Core):
        def bulkcopy_arrow(self, table: str, source: Iterator[pa.RecordBatch], **options: Any) -> Any:
            batches = list(source)
            buffers = [one for batch in batches for column in batch.columns for one in column.buffers()]
            places.extend(one.address % 64 for one in buffers if one is not None)
            return super().bulkcopy_arrow(table, iter(batches), **options)

    odd = [pa.concat_batches([BATCH.slice(0, n), BATCH]) for n in range(1, len(NEW))]
    assert ended(write(Looking(), stream_of(BATCH, *odd)))[0] == "success"
    assert set(places) == {0}


def test_without_rows_nothing_is_copied() -> None:
    core = Core()
    said = write(core, stream_of())
    assert (ended(said), said["input_rows_consumed"]) == (("success", None), 0)
    assert core.log.count("custody") == 2
    assert not [step for step in core.log if step.startswith("copy")]


@pytest.mark.parametrize("granted", [0, 1])
def test_a_lock_is_granted_with_0_and_1(granted: int) -> None:
    assert ended(write(Core(granted=granted)))[0] == "success"


@pytest.mark.parametrize("granted", [-1, -2, -3, -999, None, "0"])
def test_without_the_lock_nothing_is_loaded(granted: object) -> None:
    core = Core(granted=granted)
    assert ended(write(core)) == ("custody_lost", "lock_refused")
    assert core.log[-2:] == ["lock", "close"]


@pytest.mark.parametrize(
    "mark",
    [
        None,
        "",
        "dpone",
        Mark(OWNER, CREATED, None, 7),
        Mark(OWNER, SEALED, None, 7),
        Mark(OWNER, GRANTED, OTHER, 7),
        Mark(OTHER, GRANTED, TOKEN, 7),
        Mark(OWNER, GRANTED, TOKEN, 8),
        f"{Mark(OWNER, GRANTED, TOKEN, 7)};more",
    ],
    ids=str,
)
def test_a_stage_that_is_not_granted_to_this_writer_gets_no_row(mark: object) -> None:
    """[B2] it was sealed or given to another one while this process slept."""
    core = Core()
    core.custody = core.with_custody(5, None if mark is None else str(mark))
    said = write(core)
    assert ended(said) == ("custody_lost", "grant_revoked")
    assert core.rows == 0


@pytest.mark.parametrize("object_id", [8, None])
def test_another_table_under_the_name_gets_no_row(object_id: int | None) -> None:
    """[B3] INSERT BULK goes by name."""
    core = Core()
    core.custody = core.with_custody(4, object_id)
    assert ended(write(core)) == ("custody_lost", "grant_revoked")
    assert core.rows == 0


CHANGES = {
    "another session": (0, 52),
    "another login": (1, "2025-01-02T03:04:05.679"),
    "a session without its name": (2, None),
    "a session with another name": (2, bytes.fromhex(OTHER)),
    "no lock": (3, "NoLock"),
    "a weaker lock": (3, "Shared"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_session_that_changes_in_the_load_proves_nothing(change: str) -> None:
    """[B1] the core may have connected again, or a pool has reset the session; the load itself went well."""
    core = Core()
    core.in_the_load = lambda core: core.become(custody=core.with_custody(*CHANGES[change]))
    said = write(core)
    assert ended(said) == ("custody_lost", "session_changed")
    assert said["session"] == {"spid": 51, "login_time": "2025-01-02T03:04:05.678"}


@pytest.mark.parametrize("place", ["a session without its name", "no lock", "a weaker lock"])
def test_a_session_that_is_not_this_one_gets_no_row(place: str) -> None:
    core = Core()
    core.custody = core.with_custody(*CHANGES[place])
    assert ended(write(core)) == ("custody_lost", "session_changed")
    assert core.rows == 0


def test_a_grant_that_ends_in_the_load_proves_nothing() -> None:
    core = Core()
    sealed = core.with_custody(5, str(Mark(OWNER, SEALED, None, 7)))
    core.in_the_load = lambda core: core.become(custody=sealed)
    assert ended(write(core)) == ("custody_lost", "session_changed")


def test_a_lock_that_is_not_answered_is_none() -> None:
    class Silent(Core):
        def _answer_to(self, statement: str) -> list[tuple[Any, ...]]:
            if "sp_getapplock" in statement:
                raise RuntimeError("Connection closed by server")
            return super()._answer_to(statement)

    assert ended(write(Silent())) == ("custody_lost", "session_lost")


def test_a_session_that_dies_before_the_load_has_lost_its_lock() -> None:
    core = Core()
    stream = stream_of(BATCH)

    class Pipe(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            core.is_dead = True
            return super().read(size)

    said = write(core, Pipe(stream.getvalue()))
    assert (ended(said), said["session"]) == (("custody_lost", "session_lost"), None)


def test_a_session_that_dies_in_the_load_leaves_open_what_has_arrived() -> None:
    """[B9] also an attention that nobody answers."""

    def dies(core: Core) -> None:
        core.is_dead = True
        raise RuntimeError("Connection closed by server while reading TDS packet header")

    assert ended(write(Core(in_the_load=dies))) == ("lost_ack", "session_lost")


def test_a_session_that_dies_after_the_load_proves_nothing() -> None:
    core = Core()
    core.copied = lambda rows: core.become(is_dead=True) or {"rows_copied": rows}
    assert ended(write(core)) == ("custody_lost", "session_lost")


def test_an_answer_to_another_question_is_none() -> None:
    """Seen: after a load in several transactions each question gets the answer of the one before."""
    core = Core()
    core.in_the_load = lambda core: core.become(shift=1)
    assert ended(write(core)) == ("custody_lost", "session_lost")


def fails(_: Core) -> None:
    raise RuntimeError("Sql Error: 8152: Class 16")


def panics(_: Core) -> None:
    raise PanicException("called `Result::unwrap()` on an `Err` value")


def test_a_load_that_the_server_refuses_is_a_failure() -> None:
    core = Core(in_the_load=fails)
    assert ended(write(core)) == ("failure", "load")
    assert core.log[-2:] == ["custody", "close"]


def test_a_panic_is_a_failure_and_the_core_is_not_touched_again() -> None:
    core = Core(in_the_load=panics)
    assert ended(write(core)) == ("failure", "panic")
    assert core.log[-1] == "copy [dpone_stage].[r_1]"


@pytest.mark.parametrize("rows", [0, 7, 9, -1])
def test_a_row_count_that_is_not_what_was_sent_is_a_failure(rows: int) -> None:
    assert ended(write(Core(copied=lambda _: {"rows_copied": rows}))) == ("failure", "row_count")


@pytest.mark.parametrize("said", [None, {}, {"rows_copied": "many"}, {"rows_copied": None}])
def test_an_answer_without_a_count_is_a_failure(said: object) -> None:
    assert ended(write(Core(copied=lambda _: said))) == ("failure", "load")


def test_a_core_that_does_not_take_all_rows_is_found() -> None:
    class Lazy(Core):
        def bulkcopy_arrow(self, table: str, source: Iterator[pa.RecordBatch], **_: Any) -> Any:
            return {"rows_copied": next(source).num_rows}

    assert ended(write(Lazy())) == ("failure", "rows_cut_off")


@pytest.mark.parametrize(
    "stream",
    [
        lambda: io.BytesIO(),
        lambda: stream_of(BATCH, end=None),
        lambda: stream_of(BATCH, BATCH, end=None),
        lambda: stream_of(BATCH, end=3),
        lambda: stream_of(BATCH, end=5),
        lambda: io.BytesIO(stream_of(BATCH, BATCH).getvalue()[:-100]),
        lambda: io.BytesIO(stream_of(BATCH, BATCH).getvalue()[:1400]),
        lambda: io.BytesIO(stream_of(BATCH).getvalue() + b"\0"),
        lambda: stream_of(batch_of([(1,)], layout_of([ID])), layout=layout_of([ID])),
        lambda: renamed_stream(),
    ],
    ids=[
        *("no stream", "no last frame", "no last frame of two", "a row too many", "a row too few"),
        *("cut in the last frame", "cut in a batch", "more after the end", "another layout", "another name"),
    ],
)
def test_rows_that_are_cut_off_or_not_those_of_the_request_are_a_failure(
    stream: Callable[[], io.BytesIO],
) -> None:
    """Arrow takes the end of a pipe for the end of a stream; the supervisor may have been killed there."""
    assert ended(write(Core(), stream())) == ("failure", "rows_cut_off")


def test_no_connection_is_a_failure() -> None:
    def refuse() -> Any:
        raise RuntimeError("Login failed for user 'dpone'")

    rows = Rows(stream_of(BATCH), REQUEST)
    said = Write(REQUEST, rows, refuse, database="shop", ends=time.monotonic() + 9).run()
    assert (ended(said), said["session"]) == (("failure", "connect"), None)
    assert said["metrics"]["write_ms"] is None


def test_a_panic_while_connecting_is_a_failure() -> None:
    def panic() -> Any:
        raise PanicException

    rows = Rows(stream_of(BATCH), REQUEST)
    said = Write(REQUEST, rows, panic, database="shop", ends=time.monotonic() + 9).run()
    assert ended(said) == ("failure", "panic")


@pytest.mark.parametrize(
    ("place", "value"), [(0, 0), (1, 1), (2, "other"), (3, "READ_ONLY"), (4, 0), (6, -1), (8, 4)]
)
def test_a_session_that_did_not_take_its_settings_loads_nothing(place: int, value: object) -> None:
    core = Core(facts=(*SESSION_FACTS[:place], value, *SESSION_FACTS[place + 1 :]))
    assert ended(write(core)) == ("failure", "session")
    assert "lock" not in core.log


def test_after_the_deadline_a_failure_is_a_timeout() -> None:
    def late(_: Core) -> None:
        time.sleep(0.6)
        raise RuntimeError("Bulk copy operation timed out")

    assert ended(write(Core(in_the_load=late), seconds=0.5)) == ("timeout", "deadline")


def test_a_disconnect_that_fails_takes_a_success_back() -> None:
    def broken() -> None:
        raise RuntimeError("no")

    assert ended(write(Core(on_close=broken))) == ("lost_ack", "disconnect")
    assert ended(write(Core(on_close=broken, in_the_load=fails))) == ("failure", "load")


def test_what_the_core_says_in_words_goes_nowhere() -> None:
    """Its messages hold values, names and sometimes a connection string."""
    said = write(Core(in_the_load=fails))
    assert "8152" not in repr(said)
