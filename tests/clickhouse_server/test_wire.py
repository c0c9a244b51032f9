"""The driver against a real ClickHouse server: Debian's, which is old, but its packets are its own.

It is too old to be a source, and says so. What is shown here is the wire: where a stream ends, and what
breaks it. Statements are sent as the reader sends them, below the check of the version.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from clickhouse_driver import Client

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.errors import ConfigurationError, DponeError, SourceUnavailable
from airflow_dpone.source_clickhouse import reader
from airflow_dpone.source_clickhouse.address import ServerAddress
from airflow_dpone.source_clickhouse.reader import DriverSession, DriverStream, ServerSource
from tests.clickhouse_server.server import BINARY, PASSWORD, DebianServer
from tests.servers.proxy import Break, Proxy

pytestmark = pytest.mark.skipif(BINARY is None, reason="clickhouse-server is not installed")

ROWS = 1_000_000
NUMBERS = f"SELECT toInt64(number) AS c0, toString(number) AS c1 FROM system.numbers LIMIT {ROWS}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianServer]:
    """One for this module."""
    started = DebianServer.start(tmp_path_factory.mktemp("clickhouse"))
    yield started
    started.stop()


@pytest.fixture
def old_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the reader talk to a server that it would refuse."""
    monkeypatch.setattr(reader, "OLDEST_VERSION", (18, 0))


@pytest.fixture
def admin(server: DebianServer) -> Iterator[Any]:
    """The plain driver."""
    client = Client("127.0.0.1", server.port)
    yield client
    client.disconnect()


def session(address: ServerAddress, kill: Any = None) -> DriverSession:
    opened = DriverSession(address, kill)
    opened.open()
    return opened


def stream(
    address: ServerAddress,
    statement: str = NUMBERS,
    query_id: str = "dpone-test",
    seconds: float = 60,
    kill: Any = None,
) -> DriverStream:
    return session(address, kill).stream(statement, query_id=query_id, deadline=Deadline.after(seconds))


def ends_early(found: DriverStream) -> tuple[SourceUnavailable, int]:
    """Its error, and the rows that came before; it never says that it is at its end."""
    arrived: list[pa.RecordBatch] = []
    with pytest.raises(SourceUnavailable) as caught:
        arrived.extend(found)
    with pytest.raises(SourceUnavailable, match="before the end"):
        next(found)
    return caught.value, sum(batch.num_rows for batch in arrived)


def running(admin: Any) -> list[str]:
    found = admin.execute("SELECT query_id FROM system.processes WHERE query NOT LIKE '%system.processes%'")
    return [query_id for (query_id,) in found]


def until(condition: Any, seconds: float = 15) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


# ---- admission --------------------------------------------------------------------------------------------


def test_a_server_that_is_too_old_is_refused_with_what_it_lacks(server: DebianServer) -> None:
    """No Atomic database, and none of the settings that make a result complete."""
    with pytest.raises(ConfigurationError) as caught, ServerSource(server.address):
        pass
    problems = {problem.code: problem.message for problem in caught.value.problems}
    assert set(problems) == {"dpone.source.version", "dpone.source.database"}
    assert "18.16.1" in problems["dpone.source.version"]
    assert "Atomic" in problems["dpone.source.database"]


@pytest.mark.parametrize(("user", "password"), [("reporter", "wrong-one"), ("reporter", ""), ("nobody", "")])
def test_a_wrong_user_or_password_is_refused_once(server: DebianServer, user: str, password: str) -> None:
    address = dataclasses.replace(server.address, user=user, password=password)
    with pytest.raises(ConfigurationError) as caught, ServerSource(address):
        pass
    assert (caught.value.code, caught.value.retry) == ("dpone.source.access", "never")
    assert "wrong-one" not in str(caught.value) + repr(caught.value.fields)


def test_the_right_password_opens(server: DebianServer, old_is_fine: None) -> None:
    opened = session(dataclasses.replace(server.address, user="reporter", password=PASSWORD))
    assert opened.rows("SELECT toString(1)") == [["1"]]
    opened.close()


def test_the_http_port_is_recognised_by_what_it_says(server: DebianServer) -> None:
    """Its number here is not the usual one."""
    address = dataclasses.replace(server.address, port=server.http_port, send_receive_timeout=3.0)
    with pytest.raises(DponeError) as caught, ServerSource(address):
        pass
    assert caught.value.code in ("dpone.source.protocol", "dpone.source.unavailable")


def test_a_readonly_profile_answers_164(server: DebianServer, old_is_fine: None) -> None:
    """[F2, B71] By its number a refusal that no retry mends."""
    opened = session(dataclasses.replace(server.address, user="reporter", password=PASSWORD))
    with pytest.raises(ConfigurationError) as caught:
        opened.rows("SELECT toString(1) SETTINGS max_block_size = 100")
    opened.close()
    assert caught.value.fields["clickhouse_code"] == 164
    assert (caught.value.code, caught.value.retry) == ("dpone.source.setting", "never")


# ---- the stream -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["", "lz4", "lz4hc"])
def test_a_whole_stream_ends_with_the_servers_count(
    server: DebianServer, old_is_fine: None, compression: str
) -> None:
    """[F9] EndOfStream, ProfileInfo, and as many rows as it says; also when the blocks are compressed."""
    found = list(stream(dataclasses.replace(server.address, compression=compression)))
    assert sum(batch.num_rows for batch in found) == ROWS
    assert len(found) > 5
    assert {str(field.type) for field in found[0].schema} == {"int64", "binary"}
    assert sum(int(b.column(0).to_numpy().sum()) for b in found) == ROWS * (ROWS - 1) // 2


def test_an_empty_result_ends_normally(server: DebianServer, old_is_fine: None) -> None:
    assert list(stream(server.address, NUMBERS.replace("LIMIT", "WHERE number < 0 AND 0 LIMIT"))) == []


@pytest.mark.parametrize("row", [0, 5, 70_000, 500_000, 999_999])
def test_an_exception_at_row_n_is_never_the_end(server: DebianServer, old_is_fine: None, row: int) -> None:
    """[F9, B64, B66]"""
    text = NUMBERS.replace("SELECT ", f"SELECT throwIf(number = {row}) AS x, ")
    error, arrived = ends_early(stream(server.address, text))
    assert error.fields["clickhouse_code"] == 395
    assert (error.code, error.retry) == ("dpone.source.failed", "never")
    assert arrived < ROWS
    assert error.fields["query_id"] == "dpone-test"


def test_a_naive_reader_takes_the_exception_for_the_end(server: DebianServer) -> None:
    """[B64] What the wrapper is for: the driver's own reader says StopIteration when it is asked again."""
    client = Client("127.0.0.1", server.port, settings={"use_numpy": True})
    naive = client.query_arrow_stream(
        NUMBERS.replace("SELECT ", "SELECT throwIf(number = 200000) AS x, "), query_id="naive"
    )
    rows, failed = 0, False
    while True:
        try:
            rows += naive.read_next_batch().num_rows
        except StopIteration:
            break  # "the end", after some of the rows
        except Exception:  # noqa: BLE001 - a loop that logs and goes on
            failed = True
    assert failed
    assert rows < ROWS


def test_a_killed_query_is_never_the_end(server: DebianServer, old_is_fine: None, admin: Any) -> None:
    """[B66] KILL QUERY in the middle."""
    text = NUMBERS.replace("SELECT ", "SELECT sleepEachRow(0.00001) AS x, ")
    found = stream(server.address, text, "dpone-killed")
    next(found)
    admin.execute("KILL QUERY WHERE query_id = 'dpone-killed' ASYNC")
    error, arrived = ends_early(found)
    assert error.fields["clickhouse_code"] == 394
    assert (error.code, error.retry) == ("dpone.source.stopped", "backoff")
    assert arrived < ROWS


@pytest.mark.parametrize("kind", ["fin", "reset"])
@pytest.mark.parametrize("after_bytes", [100, 700_001, 5_000_003])
@pytest.mark.parametrize("compression", ["", "lz4"])
def test_a_connection_that_breaks_in_the_middle_of_a_block(
    server: DebianServer, old_is_fine: None, kind: Break, after_bytes: int, compression: str
) -> None:
    """[B66] Between worker and server, at any byte."""
    with Proxy(server.port, kind=kind) as proxy:
        address = dataclasses.replace(server.address, port=proxy.port, compression=compression)
        opened = session(address)
        proxy.break_after_bytes = proxy.forwarded_bytes + after_bytes
        arrived: list[pa.RecordBatch] = []
        with pytest.raises(SourceUnavailable) as caught:  # in the header already, or later
            arrived.extend(opened.stream(NUMBERS, query_id="dpone-test", deadline=Deadline.after(60)))
    assert caught.value.code in ("dpone.source.unavailable", "dpone.source.broken_block")
    assert caught.value.retry == "backoff"
    assert sum(batch.num_rows for batch in arrived) < ROWS


def test_a_half_open_connection_is_left_and_its_query_killed(
    server: DebianServer, old_is_fine: None, admin: Any
) -> None:
    """Nothing comes any more and nothing ends; the server waits for a client that does not read."""
    killed: list[str] = []

    def kill(query_id: str) -> None:
        killed.append(query_id)
        admin.execute(f"KILL QUERY WHERE query_id = '{query_id}' ASYNC")

    with Proxy(server.port, kind="stall") as proxy:
        address = dataclasses.replace(server.address, port=proxy.port, send_receive_timeout=1.0)
        opened = session(address, kill)
        proxy.break_after_bytes = proxy.forwarded_bytes + 1_000_000
        text = NUMBERS.replace(f"LIMIT {ROWS}", f"LIMIT {ROWS * 100}")
        found = opened.stream(text, query_id="dpone-half-open", deadline=Deadline.after(60))
        error, _ = ends_early(found)
        assert error.code == "dpone.source.unavailable"
        assert killed == ["dpone-half-open"]
    assert until(lambda: "dpone-half-open" not in running(admin))


def test_a_slow_server_is_waited_for(server: DebianServer, old_is_fine: None) -> None:
    """Bytes that trickle are no silence, as long as the deadline lasts."""
    with Proxy(server.port, bytes_per_sec=4_000_000) as proxy:
        address = dataclasses.replace(server.address, port=proxy.port, send_receive_timeout=1.0)
        started = time.monotonic()
        found = stream(address)
        assert sum(batch.num_rows for batch in found) == ROWS
        assert time.monotonic() - started > 2


def test_a_slow_server_is_left_at_the_deadline(
    server: DebianServer, old_is_fine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "GRACE_SEC", 0.2)
    with Proxy(server.port, bytes_per_sec=500_000) as proxy:
        address = dataclasses.replace(server.address, port=proxy.port)
        started = time.monotonic()
        error, _ = ends_early(stream(address, seconds=2))
    assert error.code == "dpone.source.deadline"
    assert time.monotonic() - started < 15


def test_a_read_that_is_abandoned_ends_at_the_server(
    server: DebianServer, old_is_fine: None, admin: Any
) -> None:
    """Cancel, then the connection goes."""
    text = NUMBERS.replace("SELECT ", "SELECT sleepEachRow(0.00001) AS x, ")
    found = stream(server.address, text, "dpone-abandoned")
    next(found)
    assert "dpone-abandoned" in running(admin)
    found.close()
    assert until(lambda: "dpone-abandoned" not in running(admin))


def test_a_server_that_is_stopped_in_the_middle(
    tmp_path_factory: pytest.TempPathFactory, old_is_fine: None
) -> None:
    """[B66] SIGKILL of the server itself."""
    other = DebianServer.start(tmp_path_factory.mktemp("stopped"))
    try:
        text = NUMBERS.replace("SELECT ", "SELECT sleepEachRow(0.00001) AS x, ")
        found = stream(other.address, text)
        next(found)
        threading.Timer(0.2, other.process.kill).start()
        error, arrived = ends_early(found)
    finally:
        other.process.kill()
        other.process.wait(20)
    assert (error.code, error.retry) == ("dpone.source.unavailable", "backoff")
    assert arrived < ROWS


def test_extremes_are_no_rows(server: DebianServer, old_is_fine: None, admin: Any) -> None:
    """[F3 a] Seen on a real server: plain reading adds two false rows, the Arrow stream does not."""
    statement = "SELECT toInt64(number) AS c0 FROM system.numbers LIMIT 10"
    assert len(admin.execute(statement, settings={"extremes": 1})) == 12
    found = stream(server.address, f"{statement} SETTINGS extremes = 1")
    assert [v for batch in found for v in batch.column(0).to_pylist()] == list(range(10))


def test_low_cardinality_arrives_as_plain_bytes(server: DebianServer, old_is_fine: None, admin: Any) -> None:
    """[B32, G4] This server sends a dictionary though it is told not to; what arrives is the same."""
    admin.execute("SET allow_experimental_low_cardinality_type = 1")
    admin.execute("CREATE TABLE lc (s LowCardinality(String)) ENGINE = MergeTree ORDER BY tuple()")
    admin.execute("INSERT INTO lc SELECT toString(number % 300) FROM system.numbers LIMIT 1000")
    found = list(
        stream(server.address, "SELECT s FROM lc SETTINGS low_cardinality_allow_in_native_format = 0")
    )
    values = [value for batch in found for value in batch.column(0).to_pylist()]
    assert sorted(values) == sorted(b"%d" % (n % 300) for n in range(1000))
    assert str(found[0].schema.field(0).type) == "binary"


def test_a_query_is_found_in_the_log(server: DebianServer, old_is_fine: None, admin: Any) -> None:
    """[B66] By its id, with our client's name."""
    list(stream(dataclasses.replace(server.address, client_name="orders"), query_id="dpone-logged"))
    question = (
        "SELECT DISTINCT client_name FROM system.query_log WHERE query_id = 'dpone-logged' AND type = 2"
    )

    def logged() -> list[Any]:
        try:
            return list(admin.execute(question))
        except Exception:  # noqa: BLE001 - the table is made with the first flush
            return []

    assert until(logged)
    assert logged() == [("ClickHouse airflow-dpone orders",)]
