"""Addresses of journals: what is one, what is refused and why, and that no form of one shows a password."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import pytest

from airflow_dpone.call_checks import journal_problems
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.hooks.journal import journal_address
from airflow_dpone.journal.address import JournalAddress, PostgresqlDatabase, SqliteFile, holds_password
from airflow_dpone.journal.database import Database
from airflow_dpone.journal.postgresql_sessions import connect_arguments
from airflow_dpone.journal.store import open_journal


def refusal(url: str) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        JournalAddress.of(url)
    return caught.value


@pytest.mark.parametrize(
    "url",
    [
        "mysql://db/journal",
        "postgres://db/journal",
        "postgresql+psycopg2://db/journal",
        "postgresql+asyncpg://db/journal",
        "postgresql://db",
        "postgresql://",
        "postgresql://db:port/journal",
        "postgresql://db/journal?sslmode=require&sslmode=disable",
        "postgresql://db/journal?host=/run/postgresql",
        "postgresql:///journal?host=elsewhere",
        "postgresql://db/journal?options=-csynchronous_commit%3Doff",
        "postgresql://db/journal?options=-csearch_path%3Da,b",
        "postgresql://db/journal?password=x",
        "postgresql://db/journal?autocommit=true",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:////tmp/x.db?mode=ro",
        "sqlite:///file:/tmp/x.db",
        ":memory:",
        "",
        "no url://x",
    ],
)
def test_addresses_that_are_no_journal(url: str) -> None:
    assert refusal(url).code == "dpone.config.uri"
    with pytest.raises(ConfigurationError):
        open_journal(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@db:port/journal",
        "postgresql://me:x@hunter2@db/journal",
        "postgresql://me:x/hunter2/@y@db/journal",
        "postgresql://m/e:hunter2@db/journal",
        "postgresql://me:hunter2@db/",
        "postgresql://db/journal?password=hunter2",
        "postgresql://me@db/journal?sslpassword=hunter2",
        "postgresql://me@db/journal?options=hunter2",
        "mysql://me:hunter2@db/journal",
        "sqlite://me:hunter2@/?hunter2",
    ],
)
def test_a_refusal_never_repeats_a_password(url: str) -> None:
    error = refusal(url)
    for text in (str(error), repr(error), str(error.__cause__), str(journal_problems(url))):
        assert "hunter2" not in text


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_an_address_is_shown_without_its_password(scheme: str) -> None:
    address = JournalAddress.of(f"{scheme}://me:hunter2%40%3A@db:5433/jour nal?sslmode=verify-full")
    assert isinstance(address, PostgresqlDatabase)
    assert str(address) == "postgresql://me@db:5433/jour nal?sslmode=verify-full"
    assert address.migrate_command().endswith(f"--journal '{address}'")
    assert "hunter2" not in repr(address) + address.migrate_command() + repr(address.url)
    assert pickle.loads(pickle.dumps(address)) == address
    asked = connect_arguments(address)
    assert (asked["user"], asked["password"], asked["host"], asked["port"], asked["dbname"]) == (
        "me",
        "hunter2@:",
        "db",
        5433,
        "jour nal",
    )
    assert (asked["sslmode"], asked["autocommit"], asked["connect_timeout"]) == ("verify-full", True, 10)


def test_libpq_is_asked_for_nothing_that_was_not_said() -> None:
    address = JournalAddress.of("postgresql:///?service=journal&connect_timeout=3&application_name=nightly")
    assert isinstance(address, PostgresqlDatabase)
    asked = connect_arguments(address)
    assert not {"host", "port", "user", "password", "dbname"} & set(asked)
    assert (asked["service"], asked["connect_timeout"], asked["application_name"]) == (
        "journal",
        "3",
        "nightly",
    )
    socket = JournalAddress.of("postgresql://me@/journal?host=/run/postgresql&options=-csearch_path%3Daudit")
    assert isinstance(socket, PostgresqlDatabase)
    asked = connect_arguments(socket)
    assert (asked["host"], asked["options"]) == ("/run/postgresql", "-csearch_path=audit")


def test_a_password_in_a_url_is_seen() -> None:
    for url in (
        "postgresql://me:x@h/d",
        "postgresql://me:@h/d",
        "postgresql://h/d?password=x",
        "mysql://a:b@c/d",
    ):
        assert holds_password(url), url
    for url in ("postgresql://me@h/d", "postgresql:///d?passfile=/x", "/data/journal.db", "None"):
        assert not holds_password(url), url


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("j.db", "sqlite:///j.db"):
        address = JournalAddress.of(text)
        assert isinstance(address, SqliteFile)
        assert address.path == tmp_path / "j.db"
    assert JournalAddress.of(address) is address


def test_without_the_driver_a_server_is_refused_and_a_file_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "airflow_dpone.journal.postgresql_sessions", raising=False)
    with pytest.raises(ConfigurationError) as caught:
        Database(JournalAddress.of("postgresql://me:hunter2@db/journal"))
    assert caught.value.code == "dpone.journal.driver_missing"
    assert "airflow-dpone[postgresql]" in caught.value.next_action
    assert "hunter2" not in str(caught.value)
    Database(JournalAddress.of(tmp_path / "journal.db"))


# ---- Airflow connections -----------------------------------------------------------------------------------


def connection(monkeypatch: pytest.MonkeyPatch, **fields: object) -> JournalAddress:
    monkeypatch.setenv("AIRFLOW_CONN_MY_JOURNAL", json.dumps(fields))
    return journal_address("my_journal")


def test_a_connection_names_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"sslmode": "require", "connect_timeout": 4, "cursor": "dictcursor", "keepalives_idle": 1}
    address = connection(
        monkeypatch,
        conn_type="postgres",
        host="db",
        port=5433,
        login="me",
        password="hunter2@/:",
        schema="journal",
        extra=extra,
    )
    assert isinstance(address, PostgresqlDatabase)
    assert str(address) == "postgresql://me@db:5433/journal?connect_timeout=4&sslmode=require"
    assert address.url.password == "hunter2@/:"
    assert address.migrate_command() == "python -m airflow_dpone db migrate --journal-conn-id my_journal"
    assert "hunter2" not in f"{address!r} {address.migrate_command()}"


def test_a_connection_may_be_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_JOURNAL", "postgres://me:hunter%402@db/journal?sslmode=require")
    address = journal_address("my_journal")
    assert isinstance(address, PostgresqlDatabase)
    assert (str(address), address.url.password) == ("postgresql://me@db/journal?sslmode=require", "hunter@2")


def test_a_connection_names_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for fields in ({"host": "/data/journal.db"}, {"schema": "/data/journal.db"}):
        address = connection(monkeypatch, conn_type="sqlite", **fields)
        assert isinstance(address, SqliteFile)
        assert address.path == Path("/data/journal.db")
        assert "--journal-conn-id my_journal" in address.migrate_command()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"conn_type": "mysql", "host": "db", "password": "hunter2"}, "type 'mysql'"),
        ({"conn_type": "sqlite"}, "memory forgets"),
        ({"conn_type": "sqlite", "host": "journal.db"}, "absolute path"),
        ({"conn_type": "postgres", "host": "db", "password": "hunter2"}, "no database"),
        ({"conn_type": "dponejournal", "host": "journal.db"}, "no database"),
        ({"conn_type": "dponejournal"}, "no database"),
        ({"conn_type": "dponejournal", "host": "/j.db", "password": "hunter2"}, "path of a SQLite file"),
        ({"conn_type": "dponejournal", "host": "/j.db", "schema": "journal"}, "path of a SQLite file"),
        (
            {"conn_type": "postgres", "schema": "x", "extra": {"options": "-c fsync=off hunter2"}},
            "search_path",
        ),
    ],
)
def test_a_connection_that_is_no_journal(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        connection(monkeypatch, **fields)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("dpone.config.connection", "journal_conn_id")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"host": "/data/journal.db"}, "/data/journal.db"),
        ({"host": "db", "schema": "journal", "login": "me"}, "postgresql://me@db/journal"),
        ({"host": "db", "schema": "j", "extra": {"sslmode": "require"}}, "postgresql://db/j?sslmode=require"),
        # What the form leaves empty is not said.
        ({"host": "db", "schema": "j", "extra": {"sslmode": None, "options": ""}}, "postgresql://db/j"),
        ({"schema": "j", "extra": {"host": "/run/postgresql"}}, "postgresql:///j?host=%2Frun%2Fpostgresql"),
    ],
)
def test_a_connection_of_our_own_type_names_a_file_or_a_server(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], shown: str
) -> None:
    address = connection(monkeypatch, conn_type="dponejournal", **fields)
    assert str(address) == shown
    assert address.conn_id == "my_journal"


def test_a_connection_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match="no connection 'nobody'") as caught:
        journal_address("nobody")
    assert caught.value.problems[0].where == "journal_conn_id"
