"""A small shop and warehouse on the real embedded engines, and a child process that delivers between them.

    python -m tests.crash.embedded_world deliver DIRECTORY INDEX     (SIGKILL at that crash point; -1: none)
    python -m tests.crash.embedded_world finish DIRECTORY            (deliver to the end, then look)

With ``object_storage`` as a last word the spool is the same directory as ``file://``, with an AIRFLOW_HOME
(where the cache is) beside it. With ``create_target`` the route may make its table.

chDB and DuckDB admit one process at a time and survive no fork, so each command is a new process. The last
line of standard output is JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_dpone import Requester, Route, Window, deliver
from airflow_dpone.errors import DponeError
from airflow_dpone.journal.migrate import migrate
from airflow_dpone.journal.store import open_journal
from tests.fakes.kill_child import SignalAt

ROOT = Path(__file__).resolve().parents[2]
REQUESTER = Requester("shop", "run-1", "deliver", ti_id="try-1")
WINDOW = Window(datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 3, tzinfo=UTC))

SOURCE = """
CREATE TABLE shop.orders (id Int64, ordered Nullable(DateTime64(6, 'UTC')), key UUID, amount Decimal(18, 4),
                          discount Nullable(Float64), items Int32, paid Bool, day Date, note Nullable(String))
ENGINE = MergeTree ORDER BY id
"""
# 12 rows in the window (one of them twice), 4 before, 4 after, 1 without a time.
ROWS = """
INSERT INTO shop.orders SELECT
    n, if(n = 20, NULL, toDateTime64('2026-03-01 20:00:00', 6, 'UTC') + INTERVAL n * 2 HOUR),
    reinterpretAsUUID(sipHash128(n)), n / 4, if(n % 3 = 0, NULL, n / 8), n, n % 2, toDate('2026-03-01') + n,
    if(n % 4 = 0, NULL, repeat('é🎁', n % 5))
FROM (SELECT if(number = 21, 5, number) AS n FROM numbers(22) WHERE number != 6)
"""
TARGET = """
CREATE SCHEMA sales;
CREATE TABLE sales.orders (id BIGINT NOT NULL, ordered TIMESTAMP, key UUID, amount DECIMAL(18, 4) NOT NULL,
    discount DOUBLE, items INTEGER NOT NULL, paid BOOLEAN NOT NULL, day DATE NOT NULL, note VARCHAR);
INSERT INTO sales.orders VALUES
    (901, TIMESTAMP '2026-03-01 23:59:59.999999', NULL, 1, NULL, 1, true, DATE '2026-03-01', 'before'),
    (902, TIMESTAMP '2026-03-02 00:00:00', NULL, 1, NULL, 1, true, DATE '2026-03-02', 'old, inside'),
    (903, TIMESTAMP '2026-03-03 00:00:00', NULL, 1, NULL, 1, true, DATE '2026-03-03', 'after'),
    (904, NULL, NULL, 1, NULL, 1, true, DATE '2026-03-03', 'no time');
"""


def route(home: Path, **changed: Any) -> Route:
    """The route of these tests; two chunks."""
    fields: dict[str, Any] = {
        "source": f"chdb://{home}/shop",
        "source_table": ("shop", "orders"),
        "target": f"duckdb://{home}/warehouse.duckdb",
        "target_table": ("sales", "orders"),
        "window_column": "ordered",
        "limits": {"max_rows": 8},
    }
    return Route(**{**fields, **changed})


def create(home: Path) -> None:
    """Source, target and journal."""
    in_shop(home, "CREATE DATABASE shop ENGINE = Atomic", SOURCE, ROWS)
    in_warehouse(home, TARGET)
    migrate(home / "journal.db")


def in_shop(home: Path, *statements: str) -> str:
    """Runs statements in the source; the last one's answer as text."""
    from chdb.session import Session

    session = Session(str(home / "shop"))
    try:
        return str([session.query(statement, "TSV") for statement in statements][-1])
    finally:
        session.close()


def in_warehouse(home: Path, statements: str) -> list[tuple[Any, ...]]:
    """Runs statements in the target; the last one's rows."""
    import duckdb

    with duckdb.connect(str(home / "warehouse.duckdb")) as warehouse:
        return warehouse.execute(statements).fetchall()


class World:
    """A shop that is made once (chDB knows its own path), with a warehouse, journal and spool anew after a
    reset."""

    def __init__(self, root: Path) -> None:
        self.home, self._fresh = root / "world", root / "fresh"
        self.home.mkdir()
        self._fresh.mkdir()
        create(self.home)
        for name in ("warehouse.duckdb", "journal.db"):
            shutil.copy(self.home / name, self._fresh / name)

    def reset(self) -> Path:
        """The state before the first delivery, but for the shop."""
        for path in self.home.iterdir():
            if path.name != "shop":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in self._fresh.iterdir():
            shutil.copy(path, self.home / path.name)
        return self.home


def child(command: str, home: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of one child process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.embedded_world", command, str(home), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=110,
        check=False,
    )
    if done.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    # What was killed may have said something, but not its answer: Airflow's log goes to the same stream.
    answer = done.stdout.splitlines()[-1] if done.returncode == 0 else "{}"
    return done.returncode, json.loads(answer)


def deliver_once(home: Path, index: int, word: str = "") -> dict[str, Any]:
    """The delivery; the answer also lists the crash points that it passed."""
    spool: str | Path = home / "spool"
    options = {"create_target": True} if word == "create_target" else {}
    if word == "object_storage":
        os.environ["AIRFLOW_HOME"] = str(home / "airflow")
        spool = f"file://{spool}"
    observer = SignalAt(index, signal.SIGKILL)
    try:
        result = deliver(
            route(home, options=options),
            WINDOW,
            journal=home / "journal.db",
            spool=spool,
            requester=REQUESTER,
            observer=observer,
        )
    except DponeError as error:
        return {"error": str(error), "state_after": error.state_after}
    return {"result": result.to_json(), "points": observer.passed}


def look(home: Path) -> dict[str, Any]:
    """What is there now, read by the engines themselves."""
    rows = in_warehouse(
        home,
        "SELECT id, ordered::VARCHAR, key::VARCHAR, amount::VARCHAR, discount, items, paid, day::VARCHAR, "
        "note FROM sales.orders ORDER BY ALL",
    )
    control = in_warehouse(home, "SELECT 1 FROM information_schema.schemata WHERE schema_name = 'dpone'")
    receipts = stages = []
    if control:
        receipts = in_warehouse(
            home,
            "SELECT generation, lower(hex(operation_id)), lower(hex(receipt_sha256)) "
            "FROM dpone.delivery_receipt",
        )
        stages = in_warehouse(
            home,
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dpone_stage'",
        )
    return {
        "rows": rows,
        "receipts": receipts,
        "stages": stages,
        "files": sorted(
            str(path)
            for folder in ("spool", "airflow/dpone")
            for path in (home / folder).rglob("*")
            if path.is_file()
        ),
        **_journal(home),
    }


def _journal(home: Path) -> dict[str, Any]:
    with open_journal(home / "journal.db") as journal:
        newest = journal.newest_invocation(REQUESTER.delivery_key)
        if newest is None:
            return {"state": None}
        journal.events(newest.invocation_key)
        custody = journal.custody(newest.target_key)
        checkpoint = journal.checkpoint(newest.target_key, newest.route_scope, newest.window_key)
        evidence = journal.evidence(checkpoint.evidence_sha256) if checkpoint else None
    return {
        "state": newest.state,
        "generation": newest.generation,
        "custody_held": custody.held,
        "checkpoint_receipt": checkpoint.receipt_sha256 if checkpoint else None,
        "evidence_receipt": json.loads(evidence)["receipt"]["receipt_sha256"] if evidence else None,
    }


def main(arguments: list[str]) -> dict[str, Any]:
    """Runs one command."""
    command, home = arguments[0], Path(arguments[1])
    if command == "deliver":
        return deliver_once(home, int(arguments[2]), arguments[-1])
    return {**deliver_once(home, -1, arguments[-1]), **look(home)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:]), default=str) + "\n")
