"""Migrations make the same tables here as ``tables.py`` says, over the wire and as a script for a DBA."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from airflow_dpone.cli.arguments import main
from airflow_dpone.delivery.states import AttemptEvent, DeliveryEvent, DeliveryState
from airflow_dpone.errors import JournalError
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.address import JournalAddress
from airflow_dpone.journal.database import Database, lock_name
from airflow_dpone.journal.migrate import MIGRATING, migrate, status
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import TO_COMPLETED, begin, take
from tests.servers import postgresql
from tests.servers.postgresql import PASSWORDS, ROLE, PostgresqlServer
from tests.unit.journal.test_migrations import schema


@contextlib.contextmanager
def engine(url: str) -> Any:
    made = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    yield made
    made.dispose()


def schema_of(url: str) -> dict[str, dict[str, list[str]]]:
    with engine(url) as made:
        return schema(made)


def run(*arguments: str) -> tuple[int, str, str]:
    """A command's exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def psql(url: str, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    folder = postgresql.programs()
    assert folder is not None
    bare = str(JournalAddress.of(url))
    environment = {**os.environ, "PGPASSWORD": PASSWORDS[ROLE]}
    command = [str(folder / "psql"), "-X", "-q", "-d", bare, *options]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=False, env=environment)


# ---- the schema --------------------------------------------------------------------------------------------


def test_migrations_a_script_and_the_tables_make_the_same_schema(
    server: PostgresqlServer, url: str, empty_url: str, own_url: str
) -> None:
    migrated = schema_of(url)
    assert sum(len(table["checks"]) for table in migrated.values()) == 13
    bare = str(JournalAddress.of(empty_url))
    code, script, _ = run("db", "migrate", "--sql", "--journal", bare)
    assert code == 0
    done = psql(empty_url, script, "-v", "ON_ERROR_STOP=1")
    assert (done.returncode, done.stderr) == (0, "")
    assert schema_of(empty_url) == migrated
    with engine(own_url) as made:
        with made.begin() as connection:
            t.metadata.drop_all(connection)
        t.metadata.create_all(made)
    assert schema_of(own_url) == migrated


def test_alembic_sees_no_difference(url: str) -> None:
    with engine(url) as made, made.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": t.VERSION_TABLE, "compare_type": True}
        )
        assert compare_metadata(context, t.metadata) == []


@pytest.mark.parametrize("state", [DeliveryState.PLANNED, DeliveryState.INCIDENT])
def test_the_checks_admit_every_state_and_every_event(url: str, state: DeliveryState) -> None:
    row = "'d', 1, 'i', 't', 'r', 'w', 'g', 'n', 'k', -1, :state, :state, 'p', 0, 0, NULL, NULL, NULL, '2025'"
    with engine(url) as made:
        with made.begin() as connection:
            connection.execute(sa.text(f"INSERT INTO dpone_invocation VALUES ({row})"), {"state": state})
            for number, event in enumerate({*DeliveryState, *DeliveryEvent, *AttemptEvent}):
                values = {"number": str(number), "event": event}
                insert = (
                    "INSERT INTO dpone_event VALUES (:number, 0, 'i', :event, NULL, :number, '{}', '2025')"
                )
                connection.execute(sa.text(insert), values)
        for column in ("state", "resume_state"):
            with pytest.raises(sa.exc.IntegrityError, match=column), made.begin() as connection:
                connection.execute(sa.text(f"UPDATE dpone_invocation SET {column} = 'WHATEVER'"))


# ---- the script --------------------------------------------------------------------------------------------


def test_a_journal_that_a_script_made_is_whole(empty_url: str) -> None:
    script = run("db", "migrate", "--sql", "--journal", "postgresql://nobody@nowhere/x")[1]
    assert psql(empty_url, script).returncode == 0
    found = status(empty_url)
    assert (found.status, found.revision, found.host_id) == ("at_head", t.HEAD, None)
    assert found.journal_id is not None
    assert uuid.UUID(found.journal_id).version == 4
    assert migrate(empty_url) == found
    with open_journal(empty_url) as journal:
        delivery = begin(journal)
        delivery.go(*TO_COMPLETED)
        assert len(journal.events(delivery.invocation_key)) == 9


def test_a_script_that_runs_twice_changes_nothing(empty_url: str) -> None:
    script = run("db", "migrate", "--sql", "--journal", "postgresql:///x")[1]
    psql(empty_url, script)
    before = status(empty_url)
    again = psql(empty_url, script)  # psql goes on after errors unless it is told not to
    assert "already exists" in again.stderr
    assert status(empty_url) == before
    assert psql(empty_url, script, "-v", "ON_ERROR_STOP=1").returncode != 0


def test_one_script_gives_each_database_an_id_of_its_own(empty_url: str, own_url: str) -> None:
    script = run("db", "migrate", "--sql", "--journal", "postgresql:///x")[1]
    with engine(own_url) as made, made.begin() as connection:
        t.metadata.drop_all(connection)
        connection.exec_driver_sql(f"DROP TABLE {t.VERSION_TABLE}")
    for url in (empty_url, own_url):
        assert psql(url, script).returncode == 0
    assert status(empty_url).journal_id != status(own_url).journal_id


# ---- migrate -----------------------------------------------------------------------------------------------


def test_a_new_journal_has_an_identity_and_no_host(empty_url: str) -> None:
    assert status(empty_url).status == "behind"
    with pytest.raises(JournalError) as caught:
        open_journal(empty_url)
    assert caught.value.code == "dpone.journal.not_migrated"
    bare = str(JournalAddress.of(empty_url))
    assert f"`python -m airflow_dpone db migrate --journal {bare}`" in caught.value.next_action
    first = migrate(empty_url, host="here")
    assert first.host_id is None
    assert migrate(empty_url, host="there") == first
    with open_journal(empty_url, host="elsewhere") as journal:
        assert (journal.journal_id, journal.host_id) == (first.journal_id, None)
        take(journal)


def test_a_migration_waits_for_another_one(empty_url: str) -> None:
    other = Database(JournalAddress.of(empty_url))
    with ThreadPoolExecutor(max_workers=1) as pool:
        with other.write() as connection:
            lock_name(connection, MIGRATING)
            found = pool.submit(migrate, empty_url)
            with pytest.raises(TimeoutError):
                found.result(0.5)
        assert found.result(30).status == "at_head"
    other.close()


def test_processes_that_migrate_at_once_make_one_journal(empty_url: str) -> None:
    program = (
        "import sys; from airflow_dpone.journal.migrate import migrate as m; print(m(sys.argv[1]).journal_id)"
    )
    command = [sys.executable, "-c", program, empty_url]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate(timeout=60)[0].strip() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert set(answers) == {status(empty_url).journal_id}


def test_a_migration_that_fails_leaves_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_dpone.journal.migrate._status", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        migrate(empty_url)
    monkeypatch.undo()
    assert schema_of(empty_url) == {}
    assert migrate(empty_url).status == "at_head"


def test_a_newer_journal_is_refused_by_every_door(server: PostgresqlServer, own_url: str) -> None:
    server.admin(f"UPDATE {t.VERSION_TABLE} SET version_num = '9999'", own_url.rpartition("/")[2])
    for door in (open_journal, migrate):
        with pytest.raises(JournalError) as caught:
            door(own_url)
        assert caught.value.code == "dpone.journal.newer"
    assert status(own_url).status == "newer"


def test_an_older_journal_is_to_be_migrated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t, "REVISIONS", (*t.REVISIONS, "0002"))
    monkeypatch.setattr(t, "HEAD", "0002")
    with pytest.raises(JournalError) as caught:
        open_journal(url)
    assert caught.value.code == "dpone.journal.not_migrated"
    assert status(url).status == "behind"


def test_the_first_schema_of_the_search_path_holds_the_tables(
    server: PostgresqlServer, empty_url: str
) -> None:
    name = empty_url.rpartition("/")[2]
    server.admin(f"CREATE SCHEMA audit AUTHORIZATION {ROLE}", name)
    in_schema = f"{empty_url}?options=-csearch_path%3Daudit"
    made = migrate(in_schema)
    with open_journal(in_schema) as journal:
        take(journal)
    assert status(empty_url).status == "behind"  # the default schema has none of it
    assert status(in_schema) == made
    query = "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_name LIKE 'dpone%'"
    assert server.admin(query, name) == [("audit",)]
    nowhere = f"{empty_url}?options=-csearch_path%3Dmissing"
    with pytest.raises(JournalError, match="no schema has been selected") as caught:
        migrate(nowhere)
    assert caught.value.code == "dpone.journal.failed"


GRANTS = """
GRANT SELECT, INSERT ON dpone_invocation, dpone_event, dpone_lease, dpone_custody, dpone_task, dpone_evidence,
    dpone_checkpoint TO worker;
GRANT UPDATE ON dpone_invocation, dpone_lease, dpone_custody, dpone_task, dpone_checkpoint TO worker;
GRANT SELECT ON dpone_journal, dpone_alembic_version TO worker;
"""


def test_deliveries_need_no_more_than_the_grants_in_the_documentation(
    server: PostgresqlServer, own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
    assert " ".join(GRANTS.split()) in " ".join(page.read_text().split())
    name = own_url.rpartition("/")[2]
    server.admin("CREATE ROLE worker LOGIN PASSWORD 'worker'")
    server.admin(GRANTS, name)
    monkeypatch.setitem(PASSWORDS, "worker", "worker")
    as_worker = server.url(name, user="worker")
    with open_journal(as_worker) as journal:
        delivery = begin(journal)
        delivery.go(*TO_COMPLETED)
        journal.release(delivery.lease)
    for statement in ("DELETE FROM dpone_event", "UPDATE dpone_event SET body = '{}'"):
        with engine(as_worker) as made, pytest.raises(sa.exc.ProgrammingError), made.begin() as connection:
            connection.exec_driver_sql(statement)
    server.admin("DROP OWNED BY worker", name)
    server.admin("DROP ROLE worker")


def test_who_may_not_create_tables_is_told_so(server: PostgresqlServer, empty_url: str) -> None:
    name = empty_url.rpartition("/")[2]
    server.admin("REVOKE CREATE ON SCHEMA public FROM PUBLIC", name)
    server.admin(f"ALTER SCHEMA public OWNER TO {postgresql.ADMIN}", name)
    with pytest.raises(JournalError, match="permission denied for schema public") as caught:
        migrate(empty_url)
    assert caught.value.code == "dpone.journal.failed"


def test_a_journal_without_its_identity_is_damaged(server: PostgresqlServer, own_url: str) -> None:
    server.admin("DELETE FROM dpone_journal", own_url.rpartition("/")[2])
    with pytest.raises(JournalError) as caught:
        open_journal(own_url)
    assert caught.value.code == "dpone.journal.damaged"


# ---- the commands ------------------------------------------------------------------------------------------


def test_the_commands_take_the_password_from_libpq(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = str(JournalAddress.of(empty_url))
    assert run("db", "status", "--journal", bare)[0] == 2
    monkeypatch.setenv("PGPASSWORD", PASSWORDS[ROLE])
    code, out, err = run("db", "status", "--journal", bare)
    assert (code, json.loads(out)["status"]) == (1, "behind")
    assert f"db migrate --journal {bare}`" in err
    code, out, err = run("db", "migrate", "--journal", bare)
    assert (code, json.loads(out)["host_id"], json.loads(out)["journal"]) == (0, None, bare)
    assert run("db", "status", "--journal", bare)[0] == 0


def test_the_commands_take_an_airflow_connection(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DPONE_JOURNAL", empty_url)
    code, out, err = run("db", "status", "--journal-conn-id", "dpone_journal")
    assert (code, json.loads(out)["status"]) == (1, "behind")
    assert "db migrate --journal-conn-id dpone_journal`" in err
    assert run("db", "migrate", "--journal-conn-id", "dpone_journal")[0] == 0
    code, out, err = run("db", "status", "--journal-conn-id", "dpone_journal")
    assert code == 0
    assert PASSWORDS[ROLE] not in out + err


def test_a_command_line_holds_no_password(url: str) -> None:
    code, out, err = run("db", "status", "--journal", url)
    assert (code, json.loads(out)["code"]) == (2, "dpone.config.secret_in_uri")
    assert PASSWORDS[ROLE] not in out + err
    assert "PGPASSFILE" in err
