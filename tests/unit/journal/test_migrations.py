"""Migrations make exactly the tables of ``tables.py``, and give a journal one identity for ever."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from airflow_dpone import host_identity
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState
from airflow_dpone.errors import JournalError
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.migrate import MIGRATIONS, migrate, status
from airflow_dpone.journal.store import open_journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def schema(engine: sa.Engine) -> dict[str, dict[str, list[str]]]:
    """Every table with its columns in order, and its keys, constraints and indexes by name."""
    inspector = sa.inspect(engine)
    found = {}
    for table in inspector.get_table_names():
        found[table] = {
            "columns": [str(column) for column in inspector.get_columns(table)],
            "primary key": [str(inspector.get_pk_constraint(table))],
            "foreign keys": sorted(str(key) for key in inspector.get_foreign_keys(table)),
            "unique": sorted(str(unique) for unique in inspector.get_unique_constraints(table)),
            "checks": sorted(str(check) for check in inspector.get_check_constraints(table)),
            "indexes": sorted(str(index) for index in inspector.get_indexes(table)),
        }
    return found


# ---- the schema --------------------------------------------------------------------------------------------


def test_the_tables_are_what_the_migrations_make(tmp_path: Path) -> None:
    """Names, columns, types, keys, indexes and the text of every CHECK."""
    migrate(tmp_path / "migrated.db")
    engines = [
        sa.create_engine(f"sqlite:///{tmp_path}/{name}.db", poolclass=sa.NullPool)
        for name in ("migrated", "new")
    ]
    t.metadata.create_all(engines[1])
    migrated, created = (schema(engine) for engine in engines)
    del migrated[t.VERSION_TABLE]
    assert len(created) == 8
    assert sum(len(table["checks"]) for table in created.values()) == 13
    assert migrated == created


def test_alembic_sees_no_difference(path: Path) -> None:
    migrate(path)
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": t.VERSION_TABLE})
        assert compare_metadata(context, t.metadata) == []


def test_the_known_revisions_are_the_files() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == t.REVISIONS
    assert scripts.get_current_head() == t.HEAD


@pytest.mark.parametrize("state", DeliveryState)
def test_the_check_admits_every_state_and_every_event(path: Path, state: DeliveryState) -> None:
    migrate(path)
    events = {*DeliveryState, *DeliveryEvent, *AttemptEvent}
    with closing(sqlite3.connect(path)) as connection:
        row = "'d', 1, 'i', 't', 'r', 'w', 'g', 'n', 'k', -1, ?, ?, 'p', 0, 0, NULL, NULL, NULL, '2025'"
        connection.execute(f"INSERT INTO dpone_invocation VALUES ({row})", (state, state))
        with pytest.raises(sqlite3.IntegrityError, match="state"):
            connection.execute("UPDATE dpone_invocation SET state = 'WHATEVER'")
        with pytest.raises(sqlite3.IntegrityError, match="resume_state"):
            connection.execute("UPDATE dpone_invocation SET resume_state = 'WHATEVER'")
        for number, event in enumerate(sorted(events)):
            values = (str(number), event, str(number))
            connection.execute("INSERT INTO dpone_event VALUES (?, 0, 'i', ?, NULL, ?, '{}', '2025')", values)
        with pytest.raises(sqlite3.IntegrityError, match="event"):
            connection.execute("UPDATE dpone_event SET event = 'WHATEVER'")


@pytest.mark.parametrize(
    "row",
    [
        "1, 'held', 'i', 1, 'published_cleanup'",
        "1, 'held', 'i', NULL, NULL",
        "1, 'held', NULL, 1, NULL",
        "1, 'held', 'i', 0, NULL",
        "1, 'clear', 'i', NULL, 'published_cleanup'",
        "1, 'clear', NULL, 1, 'published_cleanup'",
        "1, 'clear', NULL, NULL, 'because'",
        "1, 'clear', NULL, NULL, NULL",
        "1, 'open', NULL, NULL, 'published_cleanup'",
        "0, 'clear', NULL, NULL, 'published_cleanup'",
    ],
)
def test_a_custody_row_that_contradicts_itself_cannot_be_stored(path: Path, row: str) -> None:
    migrate(path)
    with closing(sqlite3.connect(path)) as connection:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(f"INSERT INTO dpone_custody VALUES ('t', {row}, '2025')")
        connection.execute(
            "INSERT INTO dpone_custody VALUES ('t', 1, 'clear', NULL, NULL, 'published_cleanup', '2025')"
        )


def test_readers_find_by_index(path: Path) -> None:
    migrate(path)
    queries = [
        "SELECT * FROM dpone_invocation WHERE target_key = 'x' AND state = 'PLANNED'",
        "SELECT * FROM dpone_invocation WHERE dag_id = 'x' AND run_id = 'y'",
        "SELECT * FROM dpone_invocation WHERE delivery_key = 'x' ORDER BY generation DESC LIMIT 1",
        "SELECT * FROM dpone_invocation WHERE invocation_key = 'x'",
        "SELECT * FROM dpone_event WHERE invocation_key = 'x'",
        "SELECT * FROM dpone_event WHERE stream = 'x' ORDER BY sequence DESC LIMIT 1",
        "SELECT * FROM dpone_evidence WHERE invocation_key = 'x'",
        "SELECT * FROM dpone_custody WHERE state = 'held' ORDER BY since",
    ]
    with closing(sqlite3.connect(path)) as connection:
        for query in queries:
            plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}"))
            assert "USING INDEX" in plan, (query, plan)
            assert "TEMP B-TREE" not in plan, (query, plan)


# ---- migrate -----------------------------------------------------------------------------------------------


def test_a_new_journal_has_an_identity_that_a_second_run_keeps(path: Path) -> None:
    first = migrate(path)
    assert (first.status, first.revision, first.head) == ("at_head", t.HEAD, t.HEAD)
    assert first.journal_id is not None
    assert uuid.UUID(first.journal_id).version == 4
    assert first.host_id == host_identity.host_id()
    before = path.read_bytes()
    assert migrate(path) == first
    assert path.read_bytes() == before
    assert migrate(path.with_name("other.db")).journal_id != first.journal_id
    with open_journal(path) as journal:
        assert (journal.journal_id, journal.host_id) == (first.journal_id, first.host_id)


def test_two_processes_that_migrate_at_once_make_one_journal(path: Path) -> None:
    program = (
        "import sys; from airflow_dpone.journal.migrate import migrate as m; print(m(sys.argv[1]).journal_id)"
    )
    command = [sys.executable, "-c", program, str(path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate(timeout=30)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(set(answers)) == 1
    assert answers[0] == status(path).journal_id


def test_a_migration_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uuid, "uuid4", lambda: None)
    monkeypatch.setattr("airflow_dpone.journal.migrate._status", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        migrate(path)
    monkeypatch.undo()
    assert status(path).status == "behind"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    assert migrate(path).status == "at_head"


def test_migrating_into_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="does not exist"):
        migrate(tmp_path / "no" / "journal.db")


def test_a_url_and_a_path_with_odd_characters_are_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a b%20?#é.db"
    made = migrate(path)
    assert path.is_file()
    assert status(path).journal_id == made.journal_id
    plain = tmp_path / "plain.db"
    assert migrate(f"sqlite:///{plain}").journal_id == status(plain).journal_id
