"""Audits of SQL Server: what its receipts and its catalog say of windows that were delivered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_dpone.delivery.audit import Audit, audit
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.target_sqlserver.session import Session
from airflow_dpone.target_sqlserver.target import SqlServerTarget
from tests.fakes.world import DAY, NEXT_DAY, requester
from tests.mssql import server
from tests.mssql.lab import MssqlLab
from tests.mssql.world import COLUMNS, MssqlWorld


@pytest.fixture
def world(tmp_path: Path, mssql_lab: MssqlLab) -> MssqlWorld:
    """Two days are delivered."""
    world = MssqlWorld.on(tmp_path / "world", mssql_lab)
    world.deliver()
    world.deliver(requester("run-2"), window=NEXT_DAY)
    return world


def look(world: MssqlWorld) -> Audit:
    with world.open_journal() as journal:
        return audit(journal, SqlServerTarget(world.where), ("shop", world.table))


def found(world: MssqlWorld) -> tuple[str, dict[str, str]]:
    """What the gate says, and reason by window."""
    (table,) = look(world).tables
    return table.gate, {one.window: one.reason for one in table.findings}


def test_an_audit_finds_nothing_and_sends_nothing_but_questions(
    world: MssqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[A7] Every batch is a SELECT, or the settings of the session."""
    sent: list[str] = []
    results = Session.results

    def noted(session: Session, text: str, *parameters: object) -> object:
        sent.append(text)
        return results(session, text, *parameters)

    monkeypatch.setattr(Session, "results", noted)
    assert look(world).is_clean
    words = {text.split()[0] for text in sent}
    assert words <= {"SELECT", "IF"}
    assert [text for text in sent if text.split()[0] == "IF"] == [
        text for text in sent if text.strip().startswith("IF @@TRANCOUNT")
    ]


def test_a_receipt_that_is_gone_and_a_table_that_was_made_again(world: MssqlWorld) -> None:
    """[A7] Until the windows are delivered again."""
    world.lab.run("DELETE FROM [dpone].[delivery_receipt] WHERE window_key = ?", DAY.key)
    assert found(world) == ("as_published", {DAY.key: "receipt_missing"})
    world.lab.run(
        "UPDATE [dpone].[delivery_receipt] SET deleted_rows = 99 WHERE window_key = ?", NEXT_DAY.key
    )
    assert found(world)[1] == {DAY.key: "receipt_missing", NEXT_DAY.key: "receipt_differs"}
    world.deliver(rerun=True)
    world.deliver(requester("run-2"), window=NEXT_DAY, rerun=True)
    assert look(world).is_clean
    world.lab.run(f"DROP TABLE [shop].[{world.table}]")
    assert found(world)[1] == dict.fromkeys((DAY.key, NEXT_DAY.key), "table_missing")
    world.lab.create_table(world.table, COLUMNS)
    assert found(world)[1] == dict.fromkeys((DAY.key, NEXT_DAY.key), "table_replaced")
    world.deliver(rerun=True)
    assert found(world) == ("as_published", {NEXT_DAY.key: "table_replaced"})


def test_a_gate_of_before_and_a_gate_that_is_gone(world: MssqlWorld) -> None:
    """[A7] As a restore leaves it: the receipt and the gate of the last publication go back together."""
    world.lab.run("DELETE FROM [dpone].[delivery_receipt] WHERE window_key = ?", NEXT_DAY.key)
    world.lab.run(
        "UPDATE [dpone].[target_gate] SET last_operation_id = (SELECT operation_id FROM "
        "[dpone].[delivery_receipt]), fence = (SELECT fence FROM [dpone].[delivery_receipt])"
    )
    assert found(world) == ("behind", {NEXT_DAY.key: "receipt_missing"})
    world.lab.run("DELETE FROM [dpone].[target_gate]")
    assert found(world)[0] == "missing"


def test_a_database_that_was_put_back_names_exactly_what_it_lost(world: MssqlWorld) -> None:
    """[A7] A real backup and a real restore."""
    if world.lab.is_standin:
        pytest.skip("capability gap: UNVERIFIED without SQL Server: the stand-in cannot put a database back")
    name = world.where.database
    world.lab.run(f"BACKUP DATABASE [{name}] TO DISK = N'{name}.bak' WITH INIT, COPY_ONLY")
    world.deliver(requester("run-2"), window=NEXT_DAY, rerun=True)
    admin = server.connect(replace(world.where, database="master"))
    try:
        admin.execute(f"ALTER DATABASE [{name}] SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
        cursor = admin.execute(f"RESTORE DATABASE [{name}] FROM DISK = N'{name}.bak' WITH REPLACE")
        while cursor.nextset():
            pass
        admin.execute(f"ALTER DATABASE [{name}] SET MULTI_USER")
    finally:
        admin.close()
    assert found(world) == ("behind", {NEXT_DAY.key: "receipt_missing"})
    world.deliver(requester("run-2"), window=NEXT_DAY, rerun=True)
    assert look(world).is_clean


def test_a_journal_of_other_tables_is_refused(world: MssqlWorld, tmp_path: Path) -> None:
    other = MssqlWorld.on(tmp_path / "other", world.lab, table="others")
    with pytest.raises(ConfigurationError) as raised:
        look(other)
    assert raised.value.code == "dpone.audit.nothing_to_compare"
