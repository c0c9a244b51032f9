"""What a session says for itself, whatever the server's defaults; and what a server of a journal must be."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_dpone.delivery.ports import JournalPort
from airflow_dpone.errors import JournalError
from airflow_dpone.journal import postgresql_sessions
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.address import JournalAddress
from airflow_dpone.journal.database import Clock, Database
from airflow_dpone.journal.migrate import migrate, status
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import TARGET, begin, requester, take
from tests.servers.postgresql import PASSWORDS, ROLE, PostgresqlServer

WEAK = {
    "synchronous_commit": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "lock_timeout": "'1ms'",
    "statement_timeout": "0",
    "TimeZone": "'Asia/Kathmandu'",
    "DateStyle": "'German'",
}


@pytest.fixture
def opened(url: str) -> Iterator[Database]:
    database = Database(JournalAddress.of(url))
    yield database
    database.close()


def refused(url: str) -> JournalError:
    with pytest.raises(JournalError) as caught:
        open_journal(url)
    return caught.value


def shown(connection: sa.Connection, *names: str) -> list[str]:
    return [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]


# ---- what a transaction is ---------------------------------------------------------------------------------


def test_no_default_of_database_or_role_weakens_a_write(server: PostgresqlServer, own_url: str) -> None:
    name = own_url.rpartition("/")[2]
    for setting, value in WEAK.items():
        server.admin(f"ALTER DATABASE {name} SET {setting} = {value}")
    server.admin(f"ALTER ROLE {ROLE} IN DATABASE {name} SET synchronous_commit = off")
    with server.connect(name, ROLE, autocommit=True) as plain:
        assert plain.execute("SHOW synchronous_commit").fetchone() == ("off",)  # the weakness is real
    database = Database(JournalAddress.of(own_url))
    names = ("synchronous_commit", "transaction_isolation", "transaction_read_only", "lock_timeout")
    with database.write() as connection:
        assert shown(connection, *names) == ["on", "read committed", "off", "30s"]
        assert shown(connection, "statement_timeout", "idle_in_transaction_session_timeout") == ["45s", "30s"]
    with database.read() as connection:
        assert shown(connection, *names[1:3]) == ["repeatable read", "on"]
        now = datetime.fromisoformat(connection.execute(sa.select(Clock(0.0))).scalar_one())
    database.close()
    assert abs((datetime.now(UTC) - now).total_seconds()) < 60  # UTC, not Kathmandu
    with open_journal(own_url) as journal:
        begin(journal)


def test_what_a_read_sees_belongs_together(opened: Database, url: str) -> None:
    with opened.read() as connection, open_journal(url) as journal:
        before = connection.execute(sa.select(sa.func.count()).select_from(t.event)).scalar_one()
        begin(journal)
        after = connection.execute(sa.select(sa.func.count()).select_from(t.event)).scalar_one()
    assert (before, after) == (0, 0)


def test_a_read_writes_nothing(opened: Database) -> None:
    with pytest.raises(JournalError) as caught, opened.read() as connection:
        connection.execute(sa.insert(t.lease).values(target_key=TARGET, fence=1))
    assert caught.value.fields["database_error"] == "25006 ReadOnlySqlTransaction"


def test_the_clock_moves_within_a_transaction_and_keeps_microseconds(opened: Database) -> None:
    with opened.read() as connection:
        texts = [
            connection.execute(sa.select(Clock(seconds))).scalar_one() for seconds in (0.0, 0.0, 3600.25)
        ]
    moments = [datetime.fromisoformat(text) for text in texts]
    assert moments[0] < moments[1] < moments[2]
    assert 3600.25 <= (moments[2] - moments[1]).total_seconds() < 3660
    assert all(len(text) == len("2025-01-01T00:00:00.000000Z") for text in texts)


# ---- waiting -----------------------------------------------------------------------------------------------


def test_a_locked_lease_is_waited_for_within_a_limit(
    opened: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_sessions, "LOCK_SEC", 1)
    with open_journal(url) as journal:
        lease = take(journal)
        with opened.write() as connection:
            connection.execute(sa.update(t.lease).values(touched_at="x"))
            with pytest.raises(JournalError) as caught:
                journal.append(lease)
            assert journal.fence(TARGET) == lease.fence  # readers do not wait
            error = caught.value
            assert (error.code, error.retry) == ("dpone.journal.unavailable", "backoff")
            assert error.fields["database_error"] == "55P03 LockNotAvailable"
        journal.append(lease)


def test_a_statement_ends_within_a_limit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_sessions, "STATEMENT_SEC", 1)
    database = Database(JournalAddress.of(url))
    with pytest.raises(JournalError) as caught, database.read() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(60)")
    database.close()
    assert caught.value.code == "dpone.journal.unavailable"


def test_a_server_that_says_nothing_at_all_is_given_up(
    server: PostgresqlServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's process is stopped: no limit of its own can end the wait."""
    monkeypatch.setattr(postgresql_sessions, "ANSWER_SEC", 1.0)
    database = Database(JournalAddress.of(url))
    stopped: list[int] = []

    def read() -> None:
        with database.read() as connection:
            stopped.append(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
            os.kill(stopped[0], signal.SIGSTOP)
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(JournalError) as caught:
        read()
    os.kill(stopped[0], signal.SIGCONT)
    assert (caught.value.code, caught.value.retry) == ("dpone.journal.unavailable", "backoff")
    with database.read() as connection:  # over another connection
        assert connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() != stopped[0]
    database.close()


def test_a_process_stopped_inside_a_transaction_loses_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would block every takeover of the target for as long as it is stopped."""
    monkeypatch.setattr(postgresql_sessions, "IDLE_SEC", 1)
    stopped = Database(JournalAddress.of(url))
    fences = []

    def write(journal: JournalPort) -> None:
        with stopped.write() as connection:
            connection.execute(sa.update(t.lease).values(touched_at="x"))
            fences.append(take(journal, requester(try_number=2)).fence)  # waits a second
            connection.execute(sa.update(t.lease).values(touched_at="y"))

    with open_journal(url) as journal:
        fences.append(take(journal).fence)
        with pytest.raises(JournalError) as caught:
            write(journal)
    stopped.close()
    assert fences == [1, 2]
    assert caught.value.code == "dpone.journal.unavailable"


def test_a_dead_address_is_unavailable(server: PostgresqlServer) -> None:
    url = server.url("x").replace(f":{server.port}/", ":1/")
    error = refused(url)
    assert (error.code, error.retry) == ("dpone.journal.unavailable", "backoff")
    assert "127.0.0.1" in error.message


# ---- what a server must be ---------------------------------------------------------------------------------


def test_a_standby_is_refused_by_every_door(server: PostgresqlServer, url: str) -> None:
    with server.standby() as follower:
        there = follower.url(url.rpartition("/")[2])
        for door in (open_journal, migrate, status):
            with pytest.raises(JournalError) as caught:
                door(there)
            assert (caught.value.code, caught.value.retry) == ("dpone.journal.standby", "backoff")
    with open_journal(url) as journal:
        take(journal)


def test_a_server_that_may_forget_is_refused(server: PostgresqlServer, url: str) -> None:
    server.restart(fsync="off")
    try:
        error = refused(url)
        with pytest.raises(JournalError):
            migrate(url)
    finally:
        server.restart()
    assert (error.code, error.retry) == ("dpone.journal.server_unfit", "never")
    assert "fsync" in error.message
    with open_journal(url) as journal:
        take(journal)


def test_half_pages_are_warned_of(
    server: PostgresqlServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.restart(full_page_writes="off")
    try:
        with caplog.at_level(logging.WARNING), open_journal(url) as journal:
            take(journal)
    finally:
        server.restart()
    assert "full_page_writes is off" in caplog.text


def test_a_database_in_another_encoding_is_refused(server: PostgresqlServer) -> None:
    server.admin(f"CREATE DATABASE latin OWNER {ROLE} ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(JournalError, match="LATIN1") as caught:
        migrate(server.url("latin"))
    assert caught.value.code == "dpone.journal.server_unfit"
    server.drop(server.url("latin"))


# ---- errors ------------------------------------------------------------------------------------------------


def test_a_constraint_is_named_and_no_value(opened: Database) -> None:
    row = {"only_row": 1, "journal_id": "hunter2", "layout_version": 1, "created_at": ""}
    with pytest.raises(JournalError) as caught, opened.write() as connection:
        connection.execute(sa.insert(t.journal).values(row))
    error = caught.value
    assert (error.code, error.retry) == ("dpone.journal.write_refused", "never")
    assert "pk_dpone_journal" in error.message
    for text in (str(error), str(error.__cause__), repr(error.fields)):
        assert "hunter2" not in text
        assert "only_row" not in text


@pytest.mark.parametrize(
    ("column", "value"), [("owner", "hunter2" * 10), ("task_id", "hunter2\0"), ("fence", "hunter2")]
)
def test_a_value_that_does_not_fit_is_not_shown(opened: Database, column: str, value: str) -> None:
    with pytest.raises(JournalError) as caught, opened.write() as connection:
        connection.execute(
            sa.text(f"INSERT INTO dpone_lease (target_key, {column}) VALUES ('t', :v)"), {"v": value}
        )
    assert caught.value.code == "dpone.journal.write_refused"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("SELECT * FROM nowhere", "dpone.journal.failed"),
        ("SELEC", "dpone.journal.failed"),
        ("SELECT 1/0", "dpone.journal.write_refused"),
        ("DO $$ BEGIN RAISE 'hunter2'; END $$", "dpone.journal.failed"),
        ("DO $$ BEGIN RAISE 'x' USING ERRCODE = '40P01'; END $$", "dpone.journal.unavailable"),
        ("DO $$ BEGIN RAISE 'x' USING ERRCODE = '53100'; END $$", "dpone.journal.unavailable"),
        ("DO $$ BEGIN RAISE 'x' USING ERRCODE = '58030'; END $$", "dpone.journal.unavailable"),
        ("DO $$ BEGIN RAISE 'x' USING ERRCODE = 'XX001'; END $$", "dpone.journal.damaged"),
        ("DO $$ BEGIN RAISE 'x' USING ERRCODE = 'XX000'; END $$", "dpone.journal.failed"),
        ("SELECT pg_terminate_backend(pg_backend_pid())", "dpone.journal.unavailable"),
    ],
)
def test_an_error_is_known_by_its_number(opened: Database, statement: str, code: str) -> None:
    with pytest.raises(JournalError) as caught, opened.write() as connection:
        connection.exec_driver_sql(statement)
    assert caught.value.code == code
    assert "hunter2" not in str(caught.value)
    with opened.write() as connection:  # the next transaction is clean
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_a_password_is_shown_nowhere(
    server: PostgresqlServer, url: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    name, told = url.rpartition("/")[2], []
    wrong = server.url(name, password="hunter2 @")
    unreachable = server.url(name, password="hunter2 @").replace(f":{server.port}/", ":1/")
    empty = server.url("template1", password=PASSWORDS[ROLE])
    with caplog.at_level(logging.DEBUG):
        for address in (wrong, unreachable, server.url("nowhere"), empty):
            error = refused(address)
            told += [str(error), repr(error), str(error.fields), str(error.__cause__), error.next_action]
            told += [str(JournalAddress.of(address)), repr(JournalAddress.of(address))]
            told.append(JournalAddress.of(address).migrate_command())
        found = migrate(url)
        told += [str(found), str(status(url).to_json())]
        with open_journal(url) as journal:
            told += [repr(journal), repr(take(journal))]
    told += [caplog.text, *capsys.readouterr()]
    for secret in ("hunter2", PASSWORDS[ROLE], "p%40ss", "p@ss"):
        assert secret not in "\n".join(told)
    assert found.journal == f"postgresql://{ROLE}@127.0.0.1:{server.port}/{name}"


def test_libpq_finds_the_password_itself(
    server: PostgresqlServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = str(JournalAddress.of(url))
    assert refused(bare).code == "dpone.journal.unavailable"
    passfile = tmp_path / "pgpass"
    escaped = PASSWORDS[ROLE].replace("\\", "\\\\").replace(":", "\\:")
    passfile.write_text(f"127.0.0.1:{server.port}:*:{ROLE}:{escaped}\n")
    passfile.chmod(0o600)
    with open_journal(f"{bare}?passfile={passfile}") as journal:
        take(journal)
    monkeypatch.setenv("PGPASSFILE", str(passfile))
    assert status(bare).status == "at_head"
    monkeypatch.delenv("PGPASSFILE")
    service = tmp_path / "services"
    service.write_text(
        f"[journal]\nhost=127.0.0.1\nport={server.port}\ndbname={bare.rpartition('/')[2]}\nuser={ROLE}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    monkeypatch.setenv("PGPASSWORD", PASSWORDS[ROLE])
    assert status("postgresql:///?service=journal").status == "at_head"


# ---- processes and threads ---------------------------------------------------------------------------------


def test_a_forked_process_has_connections_of_its_own(opened: Database) -> None:
    """Two processes on one connection would read each other's answers."""

    def session() -> int:
        with opened.read() as connection:
            number: int = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            return number

    before = session()
    child = os.fork()
    if child == 0:
        try:
            code = 0 if session() != before else 3
            opened.close()
        except BaseException:  # noqa: BLE001 - the child must not run the parent's test
            code = 4
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert session() == before  # the child's end did not end it


def test_more_threads_than_connections_wait_for_their_turn(url: str) -> None:
    with open_journal(url) as journal:
        delivery = begin(journal)
        failures: list[BaseException] = []

        def write() -> None:
            try:
                for _ in range(5):
                    journal.append(delivery.lease)
            except BaseException as error:  # noqa: BLE001 - shown by the assertion
                failures.append(error)

        threads = [threading.Thread(target=write) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []
