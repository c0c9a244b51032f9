"""What only a wire can show: connections that break, servers that stop, users, TLS, compression, two servers.

Over the native protocol with ``tests/servers/native_server.py``, which makes the faults.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import logging
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.delivery.records import SourceQuery
from airflow_dpone.errors import ConfigurationError, DponeError, SourceMoved, SourceUnavailable
from airflow_dpone.source_clickhouse import reader
from airflow_dpone.source_clickhouse.address import ServerAddress
from airflow_dpone.source_clickhouse.introspect import Admission
from airflow_dpone.source_clickhouse.query_settings import EMBEDDED_OWN
from airflow_dpone.source_clickhouse.reader import ServerSource
from airflow_dpone.source_clickhouse.session import Session
from benchmarks import source_memory
from tests.contract import native_world
from tests.contract.chdb_world import compiled
from tests.contract.native_world import NativeSource, NativeWorld, RunningServer

ROWS = 300_000


_nonces = itertools.count(1)


def fresh() -> str:
    """A nonce for one read: the id of its query, by which it may be killed."""
    return f"{next(_nonces):064x}"


def soon(seconds: float = 60) -> Deadline:
    return Deadline.after(seconds)


@pytest.fixture(scope="module")
def world() -> Iterator[NativeWorld]:
    """A table of several blocks, for all tests of this module."""
    made = NativeWorld()
    name = made.table("k UInt32, s String", rest="ORDER BY k")
    made.execute(f"INSERT INTO {name} SELECT number, toString(number) FROM numbers({ROWS})")
    yield made
    made.drop()


@pytest.fixture
def source(world: NativeWorld) -> Iterator[NativeSource]:
    """An opened source."""
    with world.source() as opened:
        yield opened


def query_of(source: ServerSource, world: NativeWorld) -> SourceQuery:
    table = source.describe(world.database, "t")
    return compiled(source, table, {"k": "bigint", "s": "nvarchar(10)"})[0]


def faulty(query: SourceQuery, fault: str) -> SourceQuery:
    return dataclasses.replace(query, text=f"{query.text}\n/* fault: {fault} */")


def read(source: ServerSource, query: SourceQuery, deadline: Deadline | None = None) -> list[pa.RecordBatch]:
    return list(source.read(query, nonce=fresh(), deadline=deadline or soon()))


def slow(query: SourceQuery) -> SourceQuery:
    """The same rows, but not at once."""
    return dataclasses.replace(query, text=f"{query.text}\nWHERE NOT sleepEachRow(0.00001)")


def running(world: NativeWorld) -> list[str]:
    """Queries of the product that run now."""
    found = world.rows("SELECT query FROM system.processes WHERE query LIKE '%dpone_rows%'")
    return [text for (text,) in found if "system.processes" not in text]


def until(condition: Any, seconds: float = 10) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


# ---- a stream that ends early is never the end [F9, B64, B66] ---------------------------------------------


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("cut 0", "dpone.source.unavailable"),
        ("cut 2", "dpone.source.unavailable"),
        ("reset 2", "dpone.source.unavailable"),
        ("garbage 2", "dpone.source.broken_block"),
        ("lose 1", "dpone.source.incomplete"),
        ("no_profile 0", "dpone.source.incomplete"),
        ("no_end 0", "dpone.source.unavailable"),
    ],
)
def test_a_broken_stream_is_an_error_that_is_retried(
    source: NativeSource, world: NativeWorld, fault: str, code: str
) -> None:
    """[F9, B66] Half a block, a reset, a lost block, no count of rows, no end: an error with the query's
    id."""
    query = query_of(source, world)
    nonce = fresh()
    stream = source.read(faulty(query, fault), nonce=nonce, deadline=soon())
    arrived: list[pa.RecordBatch] = []
    with pytest.raises(SourceUnavailable) as caught:
        arrived.extend(stream)
    assert (caught.value.code, caught.value.retry) == (code, "backoff")
    assert caught.value.fields["query_id"] == f"dpone-{nonce}"
    assert f"dpone-{nonce}" in str(caught.value)
    with pytest.raises(SourceUnavailable, match="before the end"):
        next(stream)
    assert source.snapshot(query).read_parts is None, "an unfinished read is no evidence"
    assert sum(batch.num_rows for batch in read(source, query)) == ROWS, "the next read is whole"


def test_totals_and_extremes_are_no_rows(source: NativeSource, world: NativeWorld) -> None:
    """[F3 a] The server sends both after the data; none of it arrives."""
    batches = read(source, faulty(query_of(source, world), "totals 0"))
    assert sum(batch.num_rows for batch in batches) == ROWS


def test_an_answer_that_begins_with_no_column_is_not_an_empty_window(
    source: NativeSource, world: NativeWorld
) -> None:
    """[F9] So may a query begin that was killed before its header."""
    with pytest.raises(SourceUnavailable) as raised:
        read(source, faulty(query_of(source, world), "nothing 0"))
    assert raised.value.code == "dpone.source.incomplete"
    assert "no columns" in raised.value.message


@pytest.mark.parametrize("fault", ["silent 1", "progress 1"])
def test_a_server_that_never_ends_is_left_at_the_deadline(
    source: NativeSource, world: NativeWorld, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[F9] Silence, or reports of progress for ever: both end soon after the deadline, and so does the
    query."""
    monkeypatch.setattr(reader, "GRACE_SEC", 0.2)
    started = time.monotonic()
    with pytest.raises(SourceUnavailable) as caught:
        read(source, faulty(query_of(source, world), fault), soon(1))
    assert caught.value.code == "dpone.source.deadline"
    assert time.monotonic() - started < 10
    assert until(lambda: not running(world))


def test_silence_for_the_receive_timeout_is_a_broken_connection(world: NativeWorld) -> None:
    """Half open: no byte comes, and no end either. The query on the server is killed over the other
    connection."""
    with world.source(send_receive_timeout=0.5) as source:
        with pytest.raises(SourceUnavailable) as caught:
            read(source, faulty(query_of(source, world), "silent 1"))
    assert caught.value.code == "dpone.source.unavailable"
    assert "TimeoutError" in str(caught.value)
    assert until(lambda: not running(world))


def test_a_read_that_is_abandoned_ends_at_the_server(source: NativeSource, world: NativeWorld) -> None:
    """Stopped in the middle: the query does not run on, and the catalog's connection still works."""
    stream = source.read(slow(query_of(source, world)), nonce=fresh(), deadline=soon())
    next(stream)
    assert running(world)
    stream.close()  # type: ignore[attr-defined]
    assert until(lambda: not running(world))
    with pytest.raises(SourceUnavailable, match="before the end"):
        next(stream)
    assert source.describe(world.database, "t").problems == ()


def test_leaving_the_source_ends_its_reads(world: NativeWorld) -> None:
    with world.source() as source:
        next(source.read(slow(query_of(source, world)), nonce=fresh(), deadline=soon()))
        assert running(world)
    assert until(lambda: not running(world))


def test_a_query_has_its_id_its_name_and_its_nonce(source: NativeSource, world: NativeWorld) -> None:
    """[B66] So that it is found in system.query_log."""
    nonce = fresh()
    stream = source.read(slow(query_of(source, world)), nonce=nonce, deadline=soon())
    next(stream)
    (text,) = running(world)
    assert text.startswith(f"/* dpone-{nonce} */"), (
        "the test server writes the id that it got before the text"
    )
    assert f"log_comment = '{nonce}'" in text
    stream.close()  # type: ignore[attr-defined]


def test_the_parts_of_the_rows_come_from_the_same_query(source: NativeSource, world: NativeWorld) -> None:
    """[F4, F6] Rows by part; known only after the end, and only for the query that was read."""
    query = query_of(source, world)
    before = source.snapshot(query)
    assert before.read_parts is None
    read(source, query)
    after = source.snapshot(query)
    assert sum(part["rows"] for part in after.read_parts or ()) == ROWS
    assert after.moved_since(before) is None
    other = dataclasses.replace(query, predicate="k = 1", text=f"{query.text}\nWHERE k = 1")
    assert source.snapshot(other).read_parts is None


def test_rows_of_a_part_that_the_table_lacks_have_moved(source: NativeSource, world: NativeWorld) -> None:
    """[F11] For example of a table that took the name for the time of the query."""
    query = query_of(source, world)
    before = source.snapshot(query)
    read(source, query)
    after = source.snapshot(query)
    strange = {"name": "all_900_900_0", "partition": "all", "rows": 1, "min_block": 900, "max_block": 900}
    moved = dataclasses.replace(after, read_parts=(*(after.read_parts or ()), strange))
    assert moved.moved_since(before) == "rows came from a part that the table does not have"


# ---- connecting -------------------------------------------------------------------------------------------


def refusal(source: ServerSource) -> DponeError:
    with pytest.raises(DponeError) as caught, source:
        pass
    return caught.value


def test_a_wrong_password_is_refused_once_and_never_shown(world: NativeWorld) -> None:
    error = refusal(world.source(user="default", password="hunter2"))
    assert (error.code, error.retry) == ("dpone.source.access", "never")
    assert "516" in str(error)
    assert "hunter2" not in str(error) + repr(error.fields) + repr(native_world.address())


def test_nobody_listens(world: NativeWorld) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = refusal(world.source(port=free.getsockname()[1]))
    assert (error.code, error.retry) == ("dpone.source.unavailable", "backoff")


def test_a_host_that_does_not_exist(world: NativeWorld) -> None:
    error = refusal(world.source(host="no-such-host.invalid"))
    assert (error.code, error.retry) == ("dpone.source.unavailable", "backoff")


def test_a_database_that_does_not_exist(world: NativeWorld) -> None:
    """It is the connection's, and no table that moved."""
    error = refusal(world.source(database="no_such_database"))
    assert (error.code, error.retry) == ("dpone.source.missing", "never")


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x50"])
def test_another_protocol_is_recognised(world: NativeWorld, says: bytes) -> None:
    """An HTTP port under another number, or a TLS port without TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connected, _ = listener.accept()
            with connected:
                connected.recv(4096)
                connected.sendall(says)
                time.sleep(0.2)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        error = refusal(world.source(port=listener.getsockname()[1]))
        thread.join()
    assert (error.code, error.retry) == ("dpone.source.protocol", "never")
    assert "9440" in str(error)


def test_a_server_that_accepts_and_says_nothing(world: NativeWorld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        error = refusal(world.source(port=port, connect_timeout=0.3, send_receive_timeout=0.3))
    assert (error.code, error.retry) == ("dpone.source.unavailable", "backoff")


def test_a_lost_catalog_connection_is_made_anew_a_lost_read_is_not(
    source: NativeSource, world: NativeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """[F8] Asking again is harmless; reading on over another connection would not be."""
    query = query_of(source, world)
    with caplog.at_level(logging.ERROR):
        source._catalog._client.connection.socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        assert source.snapshot(query).table_uuid

    class Breaking(NativeSource):
        def _check_read_session(self, session: Session, query: SourceQuery) -> None:
            super()._check_read_session(session, query)
            session._client.connection.socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]

    with Breaking(native_world.address()) as breaking, pytest.raises(SourceUnavailable) as caught:
        read(breaking, query)
    assert caught.value.retry == "backoff"


def test_the_values_come_compressed_too(world: NativeWorld) -> None:
    """LZ4; a block is checked by its checksum."""
    with world.source(compression="lz4") as source:
        batches = read(source, query_of(source, world))
        with pytest.raises(SourceUnavailable):
            read(source, faulty(query_of(source, world), "cut 1"))
    rows = sum(batch.num_rows for batch in batches)
    keys = sum(batch.column(0).to_numpy().sum(dtype="int64") for batch in batches)
    assert (rows, keys) == (ROWS, ROWS * (ROWS - 1) // 2)


# ---- two servers behind one name [F8] ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Another server with another id."""
    directory = tmp_path_factory.mktemp("second")
    server = RunningServer.start(directory / "engine", "--uuid", "00000000-0000-4000-8000-000000000002")
    yield server
    server.stop()


def test_a_read_that_reaches_another_server_has_moved(world: NativeWorld, second: RunningServer) -> None:
    """[F8] Same names there, other data."""
    there = native_world.plain_client(second.address)
    there.execute(f"CREATE DATABASE {world.database} ENGINE = Atomic")
    there.execute(f"CREATE TABLE {world.database}.t (k UInt32, s String) ENGINE = MergeTree ORDER BY k")
    there.disconnect()

    class Balanced(NativeSource):
        """One name for two servers: the second connection lands on the other one."""

        def _new_session(self) -> Session:
            session = super()._new_session()
            self._address = second.address
            return session

    with Balanced(native_world.address()) as source:
        query = query_of(source, world)
        with pytest.raises(SourceMoved, match="two servers"):
            read(source, query)


def test_a_catalog_that_reaches_another_server_has_moved(world: NativeWorld, second: RunningServer) -> None:
    """[F8] Before and after the read."""
    with world.source() as source, NativeSource(second.address) as other:
        before = source.snapshot(query_of(source, world))
        there = dataclasses.replace(before, server_id=other._ask("SELECT toString(serverUUID())")[0][0])
    assert there.server_id != before.server_id
    assert there.moved_since(before) == "another server answered"


# ---- TLS --------------------------------------------------------------------------------------------------


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, valid for an hour."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    files = directory / f"{name}.crt", directory / f"{name}.key"
    files[0].write_bytes(made.public_bytes(pem))
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(pem, *private))
    return files


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerAddress, Path, Path]]:
    """A server behind TLS with a table; its own certificate, and one of somebody else."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key = certificate(directory, "server")
    stranger, _ = certificate(directory, "stranger")
    server = RunningServer.start(directory / "engine", "--tls", str(cert), str(key))
    yield dataclasses.replace(server.address, secure=True), cert, stranger
    server.stop()


def test_tls_with_the_servers_certificate(tls: tuple[ServerAddress, Path, Path]) -> None:
    address, cert, _ = tls
    trusted = dataclasses.replace(address, ca_certs=str(cert), send_receive_timeout=5.0)
    client = native_world.plain_client(trusted)
    client.execute("CREATE DATABASE d ENGINE = Atomic")
    client.execute("CREATE TABLE d.t (k Int64) ENGINE = MergeTree ORDER BY k")
    client.execute("INSERT INTO d.t SELECT number FROM numbers(200000)")
    client.disconnect()
    with NativeSource(trusted) as source:
        query, _ = compiled(source, source.describe("d", "t"), {"k": "bigint"})
        assert sum(batch.num_rows for batch in read(source, query)) == 200_000
        with pytest.raises(SourceUnavailable):
            read(source, faulty(query, "cut 1"))


def test_tls_is_not_taken_from_a_stranger(tls: tuple[ServerAddress, Path, Path]) -> None:
    address, cert, stranger = tls
    for wrong in ({"ca_certs": str(stranger)}, {}, {"ca_certs": str(cert), "server_hostname": "db.example"}):
        error = refusal(NativeSource(dataclasses.replace(address, **wrong)))
        assert error.code == "dpone.source.unavailable", wrong
        assert "certificate" in str(error), wrong
    with NativeSource(dataclasses.replace(address, verify=False)):
        pass  # as asked


def test_no_tls_where_tls_is_spoken(tls: tuple[ServerAddress, Path, Path]) -> None:
    address, _, _ = tls
    error = refusal(NativeSource(dataclasses.replace(address, secure=False, send_receive_timeout=5.0)))
    assert error.code in ("dpone.source.protocol", "dpone.source.unavailable")


# ---- users and their profiles [F2, F7, B71] ---------------------------------------------------------------


def test_row_policies_that_may_not_be_seen_are_refused(world: NativeWorld) -> None:
    """[F7] The engine behind the test server answers 497 for system.row_policies, as a server does without
    the grant."""

    class Plain(ServerSource):
        own_settings = EMBEDDED_OWN

    with Plain(native_world.address()) as source:
        (problem,) = source.describe(world.database, "t").problems
    assert (problem.code, problem.where) == ("dpone.source.access", "system.row_policies")
    accepted = Plain(native_world.address(), admission=Admission(accept_unseen_row_policies=True))
    with accepted as source:
        table = source.describe(world.database, "t")
    assert table.problems == ()
    assert "row policy" in table.warnings[0]


RIGHT = (
    "session_timezone = 'UTC', low_cardinality_allow_in_native_format = 0, optimize_use_projections = 0,"
    " preferred_block_size_bytes = 16777216, max_parallel_replicas = 1"
)


def test_a_readonly_user_is_told_what_the_profile_lacks(world: NativeWorld) -> None:
    """[F2, B71] readonly = 1: nothing may be set, so every setting that matters must be right already."""
    with world.source_after("SET readonly = 1") as source:
        table = source.describe(world.database, "t")
        query, _ = compiled(source, table, {"k": "bigint"})
        with pytest.raises(ConfigurationError):
            read(source, query)
    named = {problem.where: problem.message for problem in table.problems}
    assert {"setting session_timezone", "setting low_cardinality_allow_in_native_format"} <= set(named)
    assert {problem.code for problem in table.problems} == {"dpone.source.setting"}
    assert "profile 'default'" in named["setting session_timezone"]
    assert "must be 'UTC'" in named["setting session_timezone"]


def test_a_readonly_user_with_the_right_profile_is_served(world: NativeWorld) -> None:
    """[F2] And nothing is sent that could be refused."""
    with world.source_after(f"SET {RIGHT}, readonly = 1") as source:
        table = source.describe(world.database, "t")
        assert table.problems == ()
        query, _ = compiled(source, table, {"k": "bigint", "s": "nvarchar(10)"})
        assert sum(batch.num_rows for batch in read(source, query)) == ROWS


def test_a_readonly_user_whose_reads_could_break_off_is_refused(world: NativeWorld) -> None:
    """[F2] A break at a bound cannot be set back; the engine lets limit and offset be set back even then."""
    breaks = "max_rows_to_read = 1000, read_overflow_mode = 'break'"
    with world.source_after(f"SET {RIGHT}, {breaks}, readonly = 1") as source:
        (problem,) = source.describe(world.database, "t").problems
        assert problem.where == "setting read_overflow_mode"
        with pytest.raises(ConfigurationError, match="read_overflow_mode"):
            read(source, query_of(source, world))
    with world.source_after(f"SET {RIGHT}, limit = 3, offset = 1, readonly = 1") as source:
        assert sum(batch.num_rows for batch in read(source, query_of(source, world))) == ROWS


def test_readonly_2_may_set_everything(world: NativeWorld) -> None:
    with world.source_after("SET limit = 3, readonly = 2") as source:
        assert sum(batch.num_rows for batch in read(source, query_of(source, world))) == ROWS


# ---- TTL [F11] --------------------------------------------------------------------------------------------


def test_a_window_whose_rows_stay_is_delivered_from_a_table_with_a_ttl(world: NativeWorld) -> None:
    """[F11] With allow_ttl; rows that go soon, or are due and not merged away yet, are refused."""
    name = world.table(
        "k Int64, d Date", name="aging", rest="PARTITION BY k ORDER BY k TTL d + INTERVAL 30 DAY"
    )
    world.execute(f"SYSTEM STOP TTL MERGES {name}")
    world.execute(f"INSERT INTO {name} VALUES (1, today()), (2, today() - 30), (3, today() - 90)")
    with world.source() as source:
        assert [p.code for p in source.describe(world.database, "aging").problems] == ["dpone.source.ttl"]
    with world.source(admission=Admission(allow_ttl=True)) as source:
        table = source.describe(world.database, "aging")
        assert table.problems == ()
        assert sum(batch.num_rows for batch in read(source, one_partition(table, "k = 1"))) == 1
        for due in ("k = 2", "k = 3", "k > 0"):
            with pytest.raises(ConfigurationError) as caught:
                read(source, one_partition(table, due))
            assert {problem.code for problem in caught.value.problems} == {"dpone.source.ttl"}, due
        with pytest.raises(ConfigurationError, match="go at"):
            compiled(source, table, {"k": "bigint"})


def one_partition(table: Any, predicate: str) -> SourceQuery:
    """A query that is cut by the partition's key."""
    projection = "dpone_rows.`k` AS c0"
    text = f"SELECT {projection}\nFROM `{table.database}`.`{table.table}` AS dpone_rows\nWHERE {predicate}"
    return SourceQuery(table.database, table.table, projection, predicate, text)


# ---- memory -----------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_window(world: NativeWorld) -> None:
    """Columns are streamed: ten times the rows need the same memory, in processes of their own."""
    source_memory.fill(native_world.address(), 2_000_000)
    small, large = (source_memory.measured(native_world.address(), rows) for rows in (200_000, 2_000_000))
    world.execute(f"DROP DATABASE {source_memory.DATABASE} SYNC")
    assert large["encoded_bytes"] > 9 * small["encoded_bytes"]
    assert large["peak_growth_bytes"] < small["peak_growth_bytes"] + 64 * 1024 * 1024
    assert large["peak_growth_bytes"] < large["encoded_bytes"] / 2
