"""``python -m airflow_dpone audit`` on a DuckDB file that is put back: what is named, and that nothing is
written."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_dpone.cli.arguments import main
from airflow_dpone.delivery.deliver import deliver, run_phases
from airflow_dpone.delivery.records import DeliveryResult
from airflow_dpone.delivery.recovery import adopt_target
from airflow_dpone.delivery.run import Request
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import Incident
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.target_embedded.target import EmbeddedTarget
from tests.fakes import lies
from tests.fakes.embedded_shop import Shop
from tests.fakes.world import HOST, SCHEMA, START, TABLE, requester


def day(number: int) -> Window:
    return Window(START + timedelta(days=number), START + timedelta(days=number + 1))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A row on each of four days."""
    shop = Shop.create(tmp_path / "shop")
    hour = lies.ROWS[0]["at"]
    shop.holds([{**lies.ROWS[0], "id": n, "at": hour + timedelta(days=n)} for n in range(4)])
    return shop


def send(shop: Shop, number: int, *, journal: str = "journal.db", **asked: Any) -> DeliveryResult:
    """Delivers a day, by a run of its own."""
    shop.world.journal_name = journal
    who = requester(f"day-{number}", **asked.pop("who", {}))
    target = EmbeddedTarget(shop.path)
    with shop.world.open_journal() as opened:
        ports = shop.world.ports(opened, target=target, writer=target)
        return deliver(ports, Request(shop.world.route(), day(number), who, **asked))


def look(
    shop: Shop, capsys: pytest.CaptureFixture[str], *more: str, journal: str = "journal.db"
) -> tuple[int, dict[str, Any], str]:
    """One audit; neither the target nor the journal is another one afterwards."""
    path = shop.world.root / journal
    before = (Path(shop.path).read_bytes(), image(path))
    places = ("--journal", str(path), "--target", f"duckdb://{shop.path}", "--host-id", HOST)
    code = main(["audit", *places, *more])
    assert (Path(shop.path).read_bytes(), image(path)) == before
    assert not Path(f"{shop.path}.wal").exists()
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out.splitlines()[-1]), err


def image(path: Path) -> bytes:
    with closing(sqlite3.connect(path)) as journal:
        return journal.serialize()


def named(said: dict[str, Any]) -> dict[str, str]:
    """Reason by run."""
    return {one["run_id"]: one["reason"] for one in said["findings"]}


def test_exactly_the_windows_after_the_backup_are_lost(
    shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """[A7] Also one that was delivered again since; after they were delivered again nothing is found."""
    for number in range(3):
        send(shop, number)
    assert look(shop, capsys)[0] == 0
    shutil.copy(shop.path, tmp_path / "backup.duckdb")
    send(shop, 3)
    send(shop, 1, rerun=True)
    code, said, err = look(shop, capsys)
    assert (code, said["clean"], said["findings"]) == (0, True, [])
    assert "dbo.orders: 4 windows; the target remembers the newest publication." in err
    assert "none must be delivered again" in err
    shutil.copy(tmp_path / "backup.duckdb", shop.path)
    code, said, err = look(shop, capsys)
    assert (code, said["schema"], said["clean"]) == (1, "dpone.audit.v1", False)
    assert named(said) == {"day-1": "receipt_missing", "day-3": "receipt_missing"}
    first = said["findings"][0]
    assert (first["dag_id"], first["task_id"], first["map_index"], first["generation"]) == (
        "shop", "deliver_orders", -1, 2,
    )  # fmt: skip
    assert (first["window_from"], first["window_to"]) == (
        "2025-01-02T00:00:00.000000Z", "2025-01-03T00:00:00.000000Z",
    )  # fmt: skip
    assert first["window"] == day(1).key
    (table,) = said["tables"]
    assert (table["gate"], table["windows"], table["findings"]) == ("behind", 4, 2)
    assert "put back to an older copy" in err
    assert "run day-3, task deliver_orders, generation 1: the target has no receipt of it." in err
    assert "rerun=True" in err
    assert "4 windows compared, 2 must be delivered again." in err
    send(shop, 1, rerun=True)
    assert named(look(shop, capsys)[1]) == {"day-3": "receipt_missing"}
    cleared = {"try_number": 2, "ti_id": "day-3-try-2", "max_tries": 4}
    assert send(shop, 3, who=cleared).generation == 2
    assert look(shop, capsys)[0] == 0
    assert [row[0] for row in shop.rows()][:4] == [0, 1, 2, 3]


def test_a_file_that_was_put_back_between_receipt_and_evidence(
    shop: Shop, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """[A7] The copy of before the publication loses the window; the copy of after it loses nothing."""
    send(shop, 0)
    shutil.copy(shop.path, tmp_path / "before.duckdb")
    target = EmbeddedTarget(shop.path)
    with shop.world.open_journal() as opened:
        ports = shop.world.ports(opened, target=target, writer=target)
        run_phases(ports, Request(shop.world.route(), day(1), requester("day-1"), last_phase="publish"))
    shutil.copy(shop.path, tmp_path / "after.duckdb")
    shutil.copy(tmp_path / "before.duckdb", shop.path)
    with pytest.raises(Incident) as raised:
        send(shop, 1)
    assert raised.value.code == "dpone.publish.receipt_lost"
    code, said, err = look(shop, capsys)
    assert (code, named(said)) == (1, {"day-1": "receipt_missing"})
    assert f"recovery retire --delivery {said['findings'][0]['invocation_key']}" in err
    shutil.copy(tmp_path / "after.duckdb", shop.path)
    assert look(shop, capsys)[0] == 0


def test_a_table_that_was_dropped_and_made_again(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    send(shop, 0)
    send(shop, 1)
    with duckdb.connect(shop.path) as file:
        file.execute(f"CREATE TABLE kept AS SELECT * FROM {SCHEMA}.{TABLE}; DROP TABLE {SCHEMA}.{TABLE}")
    code, said, _ = look(shop, capsys)
    assert (code, named(said)) == (1, dict.fromkeys(("day-0", "day-1"), "table_missing"))
    with duckdb.connect(shop.path) as file:
        file.execute(f"CREATE VIEW {SCHEMA}.{TABLE} AS SELECT * FROM kept")
    code, said, _ = look(shop, capsys)
    assert (code, said.get("code")) == (2, "dpone.target.not_a_table")
    other = Shop.create(Path(shop.path).parent / "other")
    with duckdb.connect(shop.path) as file:
        file.execute(f"DROP VIEW {SCHEMA}.{TABLE}; ATTACH '{other.path}' AS other (READ_ONLY)")
        (ddl,) = file.execute("SELECT sql FROM duckdb_tables() WHERE database_name = 'other'").fetchall()[0]
        file.execute(ddl)
        for name, kind in (("name", "nvarchar(20)"), ("mark", "varbinary(9)")):
            file.execute(f"COMMENT ON COLUMN {SCHEMA}.{TABLE}.{name} IS '{kind}'")
        file.execute(f"INSERT INTO {SCHEMA}.{TABLE} SELECT * FROM kept")
    code, said, err = look(shop, capsys)
    assert (code, named(said)) == (1, dict.fromkeys(("day-0", "day-1"), "table_replaced"))
    assert "dropped and created again" in err
    send(shop, 1, rerun=True)
    assert named(look(shop, capsys)[1]) == {"day-0": "table_replaced"}


def test_a_receipt_that_somebody_removed(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    send(shop, 0)
    send(shop, 1)
    with duckdb.connect(shop.path) as file:
        file.execute("DELETE FROM dpone.delivery_receipt WHERE window_key = ?", [day(0).key])
    code, said, _ = look(shop, capsys)
    assert (code, named(said), said["tables"][0]["gate"]) == (1, {"day-0": "receipt_missing"}, "as_published")


def test_another_journal_governs_the_table_by_now(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Each journal answers for its own deliveries; the old one says whom to ask."""
    send(shop, 0)
    migrate(shop.world.root / "new.db", host=HOST)
    shop.world.journal_name = "new.db"
    with shop.world.open_journal() as opened:
        adopt_target(shop.world.ports(opened, target=EmbeddedTarget(shop.path)), SCHEMA, TABLE)
        new_id = opened.journal_id
    send(shop, 1, journal="new.db")
    code, said, err = look(shop, capsys)
    (table,) = said["tables"]
    assert (code, said["findings"], table["gate"], table["governed_by"]) == (1, [], "other_journal", new_id)
    assert new_id in err
    code, said, _ = look(shop, capsys, journal="new.db")
    assert (code, [table["windows"] for table in said["tables"]]) == (0, [1])


def test_a_journal_that_is_an_older_copy(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    send(shop, 0)
    (shop.world.root / "old.db").write_bytes(image(shop.world.journal_path))
    send(shop, 1)
    code, said, err = look(shop, capsys, journal="old.db")
    assert (code, said["findings"], said["tables"][0]["gate"]) == (1, [], "newer_than_journal")
    assert "this journal is an older copy" in err


def test_only_the_named_table_is_compared(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    send(shop, 0)
    assert look(shop, capsys, "--target-table", SCHEMA, TABLE)[0] == 0
    code, said, err = look(shop, capsys, "--target-table", SCHEMA, "nothing")
    assert (code, said["code"]) == (2, "dpone.audit.nothing_to_compare")
    assert f"into {SCHEMA}.nothing" in err
    assert "did you mean" not in err
    _, said, err = look(shop, capsys, "--target-table", SCHEMA, f"{TABLE}s")
    assert said["code"] == "dpone.audit.nothing_to_compare"
    assert f"did you mean {SCHEMA}.{TABLE}?" in said["message"]
    assert "Next: Correct the table's name." in err


def test_a_file_that_is_not_there(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    send(shop, 0)
    code = main(["audit", "--journal", str(shop.world.journal_path), "--host-id", HOST,
                 "--target", f"duckdb://{shop.path}.gone"])  # fmt: skip
    assert (code, json.loads(capsys.readouterr().out)["code"]) == (2, "dpone.target.file_missing")
