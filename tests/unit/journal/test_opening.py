"""Opening refuses a journal that it cannot trust; the session is durable, and errors are named by number."""

from __future__ import annotations

import re
import socket
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.schema import CreateTable

from airflow_dpone import host_identity
from airflow_dpone.errors import JournalError
from airflow_dpone.journal import address, sqlite_sessions
from airflow_dpone.journal import tables as t
from airflow_dpone.journal.address import JournalAddress
from airflow_dpone.journal.database import Clock, Database
from airflow_dpone.journal.migrate import migrate, status
from airflow_dpone.journal.store import open_journal
from tests.contract.journal_cases import take

POSTGRESQL = PGDialect()  # type: ignore[no-untyped-call]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def refusal(path: Any, **more: Any) -> JournalError:
    with pytest.raises(JournalError) as caught:
        open_journal(path, **more)
    assert caught.value.retry == "never"
    return caught.value


# ---- opening -----------------------------------------------------------------------------------------------


def test_opening_never_creates_a_file(path: Path) -> None:
    error = refusal(path)
    assert error.code == "dpone.journal.missing"
    assert f"`python -m airflow_dpone db migrate --journal {path}`" in error.next_action
    assert not path.exists()


def test_opening_never_migrates(path: Path) -> None:
    path.touch()
    error = refusal(path)
    assert error.code == "dpone.journal.not_migrated"
    assert f"`python -m airflow_dpone db migrate --journal {path}`" in error.next_action
    assert "clear the task" in error.next_action
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def set_revision(path: Path, revision: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"UPDATE {t.VERSION_TABLE} SET version_num = ?", (revision,))


def test_a_newer_journal_is_refused_by_every_door(path: Path) -> None:
    migrate(path)
    set_revision(path, "9999")
    error = refusal(path)
    assert error.code == "dpone.journal.newer"
    assert "9999" in error.message
    with pytest.raises(JournalError) as caught:
        migrate(path)
    assert caught.value.code == "dpone.journal.newer"
    assert status(path).status == "newer"


def test_an_older_journal_is_to_be_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(path)
    monkeypatch.setattr(t, "REVISIONS", (*t.REVISIONS, "0002"))
    monkeypatch.setattr(t, "HEAD", "0002")
    error = refusal(path)
    assert error.code == "dpone.journal.not_migrated"
    assert "0001" in error.message
    assert "0002" in error.message
    assert status(path).status == "behind"


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to be one " * 40, b"\x00" * 4096]
)
def test_a_file_that_is_no_database(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert refusal(path).code == "dpone.journal.not_a_database"
    with pytest.raises(JournalError) as caught:
        migrate(path)
    assert caught.value.code == "dpone.journal.not_a_database"
    assert path.read_bytes() == content


def test_a_directory_is_no_journal(tmp_path: Path) -> None:
    assert refusal(tmp_path).code == "dpone.journal.missing"


def test_a_journal_without_its_identity_is_damaged(path: Path) -> None:
    migrate(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM dpone_journal")
    assert refusal(path).code == "dpone.journal.damaged"


def test_a_file_of_another_machine_is_refused_with_both_names(path: Path) -> None:
    migrate(path, host="there")
    error = refusal(path, host="here")
    assert error.code == "dpone.journal.other_host"
    assert "there" in error.message
    assert "here" in error.message
    with pytest.raises(JournalError) as caught:
        migrate(path, host="here")
    assert caught.value.code == "dpone.journal.other_host"
    with open_journal(path, host="there") as journal:
        assert journal.host_id == "there"


# ---- machine and file system -------------------------------------------------------------------------------


def test_the_machine_is_its_id_else_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "machine-id"
    monkeypatch.setattr(host_identity, "MACHINE_ID", file)
    monkeypatch.setattr(socket, "gethostname", lambda: "name")
    assert host_identity.host_id() == "name"
    file.write_text("\n")
    assert host_identity.host_id() == "name"
    file.write_text("0123\n")
    assert host_identity.host_id() == "0123"


MOUNTS = """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:40 / {dir}/nfs rw - nfs4 server:/x rw
31 30 0:41 / {dir}/nfs/local rw shared:7 master:2 - xfs /dev/b rw
32 22 0:42 / {dir}/with\\040space rw - cifs //server/x rw
33 22 0:43 / {dir}/hidden rw - nfs server:/y rw
34 33 0:44 / {dir}/hidden rw - ext4 /dev/c rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("", "ext4"),
        ("nfs", "nfs4"),
        ("nfs/deep/er", "nfs4"),
        ("nfs/local/deep", "xfs"),
        ("nfs2", "ext4"),
        ("with space", "cifs"),
        ("hidden", "ext4"),
    ],
)
def test_the_longest_mount_point_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, kind: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(dir=tmp_path))
    monkeypatch.setattr(address, "MOUNTS", mounts)
    where = tmp_path / folder
    where.mkdir(parents=True, exist_ok=True)
    assert address.filesystem_of(where / "journal.db") == kind
    if kind in ("nfs4", "cifs"):
        (where / "journal.db").touch()
        for door in (open_journal, migrate):
            with pytest.raises(JournalError) as caught:
                door(where / "journal.db")
            assert caught.value.code == "dpone.journal.network_filesystem"
            assert kind in caught.value.message
    else:
        assert migrate(where / "journal.db").status == "at_head"


def test_a_link_is_followed_to_its_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(dir=tmp_path))
    monkeypatch.setattr(address, "MOUNTS", mounts)
    (tmp_path / "nfs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nfs")
    assert address.filesystem_of(tmp_path / "link" / "journal.db") == "nfs4"


def test_an_unknown_file_system_is_a_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(address, "MOUNTS", path.with_name("absent"))
    migrate(path)
    assert "local disk" in caplog.text


# ---- the session -------------------------------------------------------------------------------------------


def test_a_session_is_durable_and_checked(path: Path) -> None:
    migrate(path)
    opened = Database(JournalAddress.of(path))
    with opened.read() as connection:
        values = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        ]
    opened.close()
    assert values == ["wal", 2, 1, 30_000]
    assert not path.with_name("journal.db-wal").exists()  # closed means closed


def test_the_clock_is_the_databases_and_keeps_milliseconds(path: Path) -> None:
    migrate(path)
    opened = Database(JournalAddress.of(path))
    with opened.read() as connection:
        early, now, late = connection.execute(sa.select(Clock(-1.5), Clock(0.0), Clock(3600.25))).one()
        driver = connection.exec_driver_sql("SELECT strftime('%Y-%m-%dT%H:%M', 'now')").scalar()
    opened.close()
    moments = [datetime.fromisoformat(text) for text in (early, now, late)]
    assert abs((moments[1] - moments[0]).total_seconds() - 1.5) < 0.0021
    assert abs((moments[2] - moments[1]).total_seconds() - 3600.25) < 0.0021
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}000Z", now)
    assert driver in (now[:16], late[:16])


def test_the_tables_can_be_said_in_the_words_of_postgresql() -> None:
    for table in t.metadata.sorted_tables:
        text = str(CreateTable(table).compile(dialect=POSTGRESQL))
        assert f"CREATE TABLE {table.name}" in text
        assert "SERIAL" not in text  # no number is made by the database
        assert "DATETIME" not in text


def test_a_postgresql_clock_is_not_the_start_of_the_transaction() -> None:
    text = str(sa.select(Clock(1.5)).compile(dialect=POSTGRESQL))
    assert "clock_timestamp()" in text
    assert "now()" not in text


def test_a_locked_journal_is_tried_again_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(path)
    monkeypatch.setattr(sqlite_sessions, "BUSY_TIMEOUT_SEC", 0.1)
    with open_journal(path) as journal, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError) as caught:
            take(journal)
        assert (caught.value.code, caught.value.retry) == ("dpone.journal.unavailable", "backoff")
        assert journal.fence("x") == 0  # readers do not wait
        other.execute("ROLLBACK")
        take(journal)


def test_an_error_of_the_database_shows_no_values(path: Path) -> None:
    migrate(path)
    opened = Database(JournalAddress.of(path))
    with pytest.raises(JournalError) as caught, opened.write() as connection:
        connection.execute(
            sa.insert(t.journal).values(only_row=2, journal_id="secret", layout_version=1, created_at="")
        )
    opened.close()
    assert caught.value.code == "dpone.journal.write_refused"
    assert "secret" not in str(caught.value)
    assert "secret" not in str(caught.value.__cause__)


def test_an_unknown_error_is_not_retried(path: Path) -> None:
    migrate(path)
    opened = Database(JournalAddress.of(path))
    with pytest.raises(JournalError) as caught, opened.read() as connection:
        connection.exec_driver_sql("SELECT * FROM nowhere")
    opened.close()
    assert (caught.value.code, caught.value.retry) == ("dpone.journal.failed", "never")
