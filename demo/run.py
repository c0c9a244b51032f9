"""The demo: an ordinary week of one table, with everything that goes wrong in such a week.

Generated orders in chDB (the ClickHouse engine in process) go to DuckDB through Airflow DAG runs. Each run is
a process of its own; one of them is killed with SIGKILL between the commit of its publication and the
journal's note of it. Nothing outside a temporary directory is touched. Exits non-zero when source and target
differ in any row.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

HERE = Path(__file__).resolve().parent
DAGS = HERE.parent / "dags_examples"
out = Console(stderr=True)


class DemoError(Exception):
    """A step of the demo did not do what it must."""


@dataclass
class Step:
    """One line of the closing table."""

    title: str
    outcome: str
    rows: int
    deleted: int
    state: str
    seconds: float


class Week:
    """The demo's world: a home directory, a fresh Airflow, and what has happened so far."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.steps: list[Step] = []
        self.resumed = False
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW")},
            "AIRFLOW_HOME": str(home / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow/airflow.db",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            "DPONE_EXAMPLE_HOME": str(home),
        }

    def child(self, *command: str, may_die: bool = False) -> dict[str, Any] | None:
        """Runs one step in a process of its own; None when it was killed and that was the plan."""
        log = self.home / "demo.log"
        with log.open("ab") as told:
            done = subprocess.run(
                [sys.executable, *command],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=told,
                check=False,
            )
            told.write(done.stdout)
        if done.returncode == -signal.SIGKILL and may_die:
            return None
        if done.returncode != 0:
            out.print(
                "\n".join(log.read_text(errors="replace").splitlines()[-30:]), style="dim", markup=False
            )
            raise DemoError(f"{' '.join(command)} ended with {done.returncode}")
        answer = done.stdout.decode().strip().splitlines()
        return json.loads(answer[-1]) if answer and answer[-1].startswith("{") else {}

    def shop(self, change: str, *day: int) -> None:
        """Something happens in the shop."""
        self.child(str(HERE / "child.py"), "shop", str(self.home), change, *map(str, day))

    def dag(self, title: str, dag_id: str, instant: str, *, expect: str = "success", **options: Any) -> None:
        """One DAG run; the same instant is the same run."""
        started = time.monotonic()
        command = [str(HERE / "child.py"), "dag", dag_id, instant]
        if options.get("window"):
            command += ["--window", *options["window"]]
        if options.get("kill_at"):
            command += ["--kill-at", options["kill_at"]]
        answer = self.child(*command, may_die=bool(options.get("kill_at")))
        seconds = time.monotonic() - started
        if answer is None:
            self.steps.append(Step(title, "killed (SIGKILL)", 0, 0, self.journal_state(), seconds))
            return
        if answer["state"] != expect:
            raise DemoError(
                f"{title}: the DAG run ended {answer['state']}, expected {expect}: {self.last_error()}"
            )
        result = answer["result"]
        if result is None:
            self.steps.append(
                Step(title, f"refused: {self.last_error()}", 0, 0, self.journal_state(), seconds)
            )
            return
        how = f"resumed at {result['resumed_from']}" if result["resumed_from"] else "delivered"
        self.resumed = self.resumed or result["resumed_from"] is not None
        self.steps.append(Step(title, how, result["rows"], result["deleted_rows"], result["state"], seconds))

    def _journal(self, query: str) -> Any:
        with sqlite3.connect(f"file:{self.home}/journal.db?mode=ro", uri=True) as journal:
            return journal.execute(query).fetchone()

    def journal_state(self) -> str:
        """State of the newest generation."""
        return str(self._journal("SELECT state FROM dpone_invocation ORDER BY updated_at DESC LIMIT 1")[0])

    def last_error(self) -> str:
        """What the journal says of the newest failure."""
        return str(self._journal("SELECT reason FROM dpone_invocation ORDER BY updated_at DESC LIMIT 1")[0])

    def custody(self) -> str:
        """Whether the target is free."""
        return str(self._journal("SELECT state FROM dpone_custody")[0])

    def receipts(self) -> int:
        """Publications, as the target itself counts them."""
        script = (
            "import duckdb,sys; print('{\"receipts\": %d}' % duckdb.connect(sys.argv[1], read_only=True)"
            ".execute('SELECT count(*) FROM dpone.delivery_receipt').fetchone()[0])"
        )
        answer = self.child("-c", script, str(self.home / "warehouse.duckdb"))
        return int((answer or {})["receipts"])


def day_run(day: int) -> str:
    """The instant whose daily run covers the given day after 2026-03-01."""
    return f"2026-03-{day + 2:02d}T00:00:00+00:00"


def chapters(week: Week) -> list[tuple[str, Any]]:
    """The week, one chapter after the other."""
    journal = str(week.home / "journal.db")
    day2 = ("2026-03-03T00:00:00Z", "2026-03-04T00:00:00Z")
    prepare = [
        ("create 6 days of orders", lambda: week.shop("create")),
        (
            "create the journal",
            lambda: week.child("-m", "airflow_dpone", "db", "migrate", "--journal", journal),
        ),
        ("create Airflow's database", lambda: week.child("-m", "airflow", "db", "migrate")),
    ]
    deliver = [
        ("full load", lambda: week.dag("full load", "refresh_orders", "2026-03-07T00:00:00+00:00")),
        ("a new day arrives", lambda: week.shop("new_day")),
        ("one window", lambda: week.dag("a new day", "deliver_orders", day_run(6))),
        ("late corrections", lambda: week.shop("correct", 2)),
        (
            "rerun of an old window",
            lambda: week.dag("corrected day", "deliver_orders", "2026-03-08T01:00:00+00:00", window=day2),
        ),
        ("a day is cancelled", lambda: week.shop("empty", 3)),
        ("an emptied window", lambda: week.dag("emptied day", "deliver_orders", day_run(3))),
        ("more corrections", lambda: week.shop("correct", 4)),
        (
            "worker killed after the commit",
            lambda: week.dag(
                "corrected day, killed", "deliver_orders", day_run(4), kill_at="after_target_publish"
            ),
        ),
        ("the same task again", lambda: week.dag("the same task again", "deliver_orders", day_run(4))),
        ("a NaN gets in", lambda: week.shop("poison", 5)),
        ("refused", lambda: week.dag("day with a NaN", "deliver_orders", day_run(5), expect="failed")),
        ("mended", lambda: week.shop("mend", 5)),
        ("delivered", lambda: week.dag("mended day", "deliver_orders", day_run(5))),
    ]
    return [*prepare, *deliver]


def show(week: Week, compared: dict[str, Any]) -> None:
    """The closing table."""
    table = Table(title="What the week looked like", show_lines=False)
    for heading, justify in (
        ("DAG run", "left"),
        ("outcome", "left"),
        ("rows", "right"),
        ("replaced", "right"),
        ("state", "left"),
        ("sec", "right"),
    ):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for step in week.steps:
        table.add_row(
            step.title, step.outcome, f"{step.rows:,}", f"{step.deleted:,}", step.state, f"{step.seconds:.1f}"
        )
    out.print(table)
    out.print(
        f"source {compared['source_rows']:,} rows, target {compared['target_rows']:,} rows, "
        f"missing {compared['missing']}, unexpected {compared['unexpected']}"
    )


def run(home: Path) -> dict[str, Any]:
    """Plays the week and returns the summary; raises DemoError when anything is not as it must be."""
    started = time.monotonic()
    week = Week(home)
    todo = chapters(week)
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description:36}"), BarColumn(), TimeElapsedColumn(), console=out
    )
    with bar:
        task = bar.add_task("", total=len(todo) + 1)
        for title, chapter in todo:
            bar.update(task, description=title)
            chapter()
            bar.advance(task)
        bar.update(task, description="comparing every row")
        compared = week.child(str(HERE / "child.py"), "compare", str(home)) or {}
        bar.advance(task)
    show(week, compared)
    deliveries = [step for step in week.steps if step.state == "COMPLETED"]
    publications = week.receipts()
    checks = {
        "every row is equal": compared["missing"] == 0 and compared["unexpected"] == 0,
        "one publication per delivery": publications == len(deliveries),
        "the killed run was resumed": week.resumed,
        "the target is free": week.custody() == "clear",
        "no sealed file is left": not any((home / "spool").rglob("*.arrow")),
    }
    failed = [name for name, held in checks.items() if not held]
    if failed:
        raise DemoError(f"not true: {', '.join(failed)}")
    return {
        "demo": "ok",
        "deliveries": len(deliveries),
        "rows": sum(step.rows for step in deliveries),
        "publications": publications,
        "resumed": week.resumed,
        "exact_match": True,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> int:
    """Entry point: the last line on stdout is one JSON object."""
    home = Path(tempfile.mkdtemp(prefix="dpone-demo-"))
    try:
        summary = run(home)
    except DemoError as error:
        out.print(f"the demo failed: {error}", style="bold red", markup=False)
        out.print(f"its files are kept in {home}", markup=False)
        print(json.dumps({"demo": "failed", "reason": str(error)}))
        return 1
    shutil.rmtree(home)
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
