"""What a person meets on the real embedded engines: refusals, bad data, damage. Every one named, nothing
changed."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_dpone import DeliveryResult, Requester, Route, Window, deliver, plan
from airflow_dpone.errors import (
    ConfigurationError,
    JournalError,
    QualityFailed,
    SourceDataError,
    TargetRejected,
)
from airflow_dpone.journal.store import open_journal
from tests.crash.embedded_world import (
    REQUESTER,
    ROOT,
    WINDOW,
    World,
    child,
    in_shop,
    in_warehouse,
    look,
    route,
)

BEFORE = [901, 902, 903, 904]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """One shop for the module: chDB knows its own path."""
    return World(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def home(world: World) -> Iterator[Path]:
    """The world as before the first delivery, the shop included."""
    yield world.reset()
    in_shop(
        world.home,
        "ALTER TABLE shop.orders DELETE WHERE id >= 500 SETTINGS mutations_sync = 2",
        "DROP TABLE IF EXISTS shop.odd",
    )


def deliver_it(
    home: Path, made: Route | None = None, window: Window = WINDOW, who: Requester = REQUESTER
) -> DeliveryResult:
    """One call of the public API."""
    return deliver(
        made or route(home), window, journal=home / "journal.db", spool=home / "spool", requester=who
    )


def state_of(home: Path) -> dict[str, Any]:
    """What is there, in short."""
    found = look(home)
    return {**found, "ids": [row[0] for row in found["rows"]]}


def assert_untouched(home: Path, ids: list[int] | None = None) -> None:
    """The target's rows are as before, nothing owned is left, the target is free."""
    found = state_of(home)
    assert found["ids"] == (ids or BEFORE)
    assert (found["receipts"], found["stages"], found["files"]) == ([], [], [])
    assert not found.get("custody_held")


def add_row(home: Path, row_id: int, **columns: str) -> None:
    """One more row in the window, with SQL expressions for some columns."""
    values = {
        "id": str(row_id),
        "ordered": "toDateTime64('2026-03-02 10:00:00', 6, 'UTC')",
        "key": "generateUUIDv4()",
        "amount": "1",
        "discount": "0.5",
        "items": "1",
        "paid": "true",
        "day": "toDate('2026-03-02')",
        "note": "'x'",
        **columns,
    }
    in_shop(home, f"INSERT INTO shop.orders ({', '.join(values)}) SELECT {', '.join(values.values())}")


def test_all_problems_of_a_plan_come_at_once_and_plan_shows_the_same(home: Path) -> None:
    in_warehouse(home, "ALTER TABLE sales.orders ALTER items TYPE VARCHAR")
    wrong = route(
        home, columns={"ordered": "ordered", "id": "id", "items": "items", "colour": "note", "note": "hue"}
    )
    with pytest.raises(ConfigurationError) as caught:
        deliver_it(home, wrong)
    found = {problem.where: problem for problem in caught.value.problems}
    assert found["colour"].code == "dpone.config.unknown_column"
    assert found["hue"].code == "dpone.config.unknown_column"
    assert found["items"].code == "dpone.types.pair"
    assert found["paid"].code == "dpone.types.unmapped_target_column"
    assert "Traceback" not in str(caught.value)
    assert_untouched(home)
    shown = plan(wrong, WINDOW)
    assert set(shown.refusals) == set(caught.value.problems)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"target": "duckdb://{home}/no.duckdb"}, {"target", "colour", "columns", "nothing"}),
        ({"target_table": ("sales", "order")}, {"sales.order", "colour", "columns", "nothing"}),
        ({"source": "chdb://{home}/no_shop"}, {"source", "hue", "columns", "nothing"}),
        ({"source_table": ("shop", "order")}, {"source_table", "hue", "columns", "nothing"}),
        (
            {"target_table": ("nowhere", "orders"), "options": {"create_target": True}},
            {"nowhere", "colour", "columns", "nothing"},
        ),
    ],
)
def test_one_side_that_is_wrong_hides_nothing_of_the_other(
    home: Path, changed: dict[str, Any], named: set[str]
) -> None:
    paths = {name: value.format(home=home) for name, value in changed.items() if isinstance(value, str)}
    columns = {"id": "id", "colour": "note", "note": "hue"}
    wrong = route(home, columns=columns, quality={"not_null": ["nothing"]}, **{**changed, **paths})
    with pytest.raises(ConfigurationError) as caught:
        deliver_it(home, wrong)
    assert named <= {problem.where for problem in caught.value.problems}
    assert set(plan(wrong, WINDOW).refusals) == set(caught.value.problems)
    assert_untouched(home)


def test_plan_reads_only_and_shows_what_would_be_sent(home: Path) -> None:
    shown = plan(route(home), WINDOW)
    assert shown.refusals == ()
    assert any("not initialised" in warning for warning in shown.warnings)
    assert "reinterpretAsInt64" in shown.statements["read"]
    assert in_warehouse(home, "SELECT 1 FROM information_schema.schemata WHERE schema_name = 'dpone'") == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"source_table": ("shop", "ordres")}, "ordres"),
        ({"source_table": ("shob", "orders")}, "shob"),
        ({"target_table": ("sales", "ordres")}, "ordres"),
        ({"source": "chdb:///nowhere/at/all"}, "/nowhere/at/all"),
        ({"target": "duckdb:///nowhere/at/all.duckdb"}, "/nowhere/at/all.duckdb"),
    ],
)
def test_what_is_missing_is_named_and_never_created(home: Path, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        deliver_it(home, route(home, **changed))
    assert named in str(caught.value)
    assert not Path("/nowhere").exists()
    assert_untouched(home)


def test_strategy_and_window_must_fit(home: Path) -> None:
    with pytest.raises(ConfigurationError, match="full_refresh"):
        deliver_it(home, route(home, strategy="full_refresh"))
    with pytest.raises(ConfigurationError, match="full_refresh"):
        deliver_it(home, window=Window.full())
    assert_untouched(home)


@pytest.mark.parametrize(
    ("column", "expression", "code"),
    [
        ("discount", "nan", "dpone.source.nan"),
        ("discount", "inf", "dpone.source.infinite"),
        ("note", "unhex('61FF62')", "dpone.source.utf8"),
    ],
)
def test_a_bad_value_is_named_by_column_and_row_and_can_be_found(
    home: Path, column: str, expression: str, code: str
) -> None:
    """B21, B30: and the next window of another run is not blocked."""
    add_row(home, 500, **{column: expression})
    with pytest.raises(SourceDataError) as caught:
        deliver_it(home)
    error = caught.value
    assert (error.code, error.fields["column"], error.state_after) == (code, column, "FAILED")
    assert isinstance(error.fields["row"], int)
    assert_untouched(home)
    hint = error.next_action.partition("SELECT")
    query = ("SELECT" + hint[2]).split(" Mend")[0].rstrip(".; ")
    assert in_shop(home, query).strip() == "1"
    in_shop(home, "ALTER TABLE shop.orders DELETE WHERE id = 500 SETTINGS mutations_sync = 2")
    result = deliver_it(home, who=Requester("shop", "another-run", "deliver"))
    assert result.rows == 12


def test_a_null_for_a_not_null_column_is_refused_or_stops_at_the_first_row(home: Path) -> None:
    """B01: refused in the plan; with fail_on_null the first NULL stops, without one everything arrives."""
    in_shop(
        home,
        "CREATE TABLE shop.odd AS shop.orders",
        "INSERT INTO shop.odd SELECT * FROM shop.orders ORDER BY id",
    )
    in_warehouse(home, "ALTER TABLE sales.orders ALTER note SET NOT NULL")
    plain = route(home, source_table=("shop", "odd"))
    with pytest.raises(ConfigurationError) as refused:
        deliver_it(home, plain)
    assert [(p.code, p.where) for p in refused.value.problems] == [("dpone.types.nullability", "note")]
    assert "options.fail_on_null=True" in str(refused.value)
    assert_untouched(home)
    strict = route(home, source_table=("shop", "odd"), options={"fail_on_null": True})
    assert plan(strict, WINDOW).refusals == ()
    with pytest.raises(SourceDataError) as stopped:
        deliver_it(home, strict)
    error = stopped.value
    assert (error.code, error.state_after) == ("dpone.source.null", "FAILED")
    window = "toDate(ordered) = toDate('2026-03-02')"
    notes = f"(SELECT id, note FROM shop.odd WHERE {window} ORDER BY id)"
    first = in_shop(
        home, f"SELECT countIf(id < (SELECT min(id) FROM {notes} WHERE note IS NULL)) FROM {notes}"
    )
    assert error.fields == {"column": "note", "row": int(first)}
    assert_untouched(home)
    hint = error.next_action.partition("SELECT")[2].split(" Mend")[0].rstrip(".; ")
    assert "isNull(" in hint
    nulls = in_shop(home, f"SELECT count() FROM shop.odd WHERE {window} AND note IS NULL")
    assert in_shop(home, f"SELECT{hint}") == nulls != "0\n"
    in_shop(home, "ALTER TABLE shop.odd UPDATE note = '' WHERE note IS NULL SETTINGS mutations_sync = 2")
    result = deliver_it(home, strict)
    assert (result.rows, result.generation) == (12, 2)
    assert {row[-1] for row in state_of(home)["rows"]} >= {"", "é🎁"}


def test_a_constraint_of_the_target_rolls_the_publication_back_and_frees_the_target(home: Path) -> None:
    """B47: the fault comes inside the publication, is proved rolled back, and blocks nobody."""
    in_warehouse(
        home,
        "CREATE TABLE sales.strict AS SELECT * FROM sales.orders LIMIT 0; "
        "DROP TABLE sales.orders; "
        "CREATE TABLE sales.orders (id BIGINT NOT NULL, ordered TIMESTAMP, key UUID, amount DECIMAL(18, 4) "
        "NOT NULL, discount DOUBLE, items INTEGER NOT NULL CHECK (items < 500), paid BOOLEAN NOT NULL, "
        "day DATE NOT NULL, note VARCHAR); DROP TABLE sales.strict; "
        "INSERT INTO sales.orders (id, ordered, amount, items, paid, day) "
        "VALUES (902, TIMESTAMP '2026-03-02 00:00:00', 1, 1, true, DATE '2026-03-02')",
    )
    add_row(home, 500, items="500")
    with pytest.raises(TargetRejected) as caught:
        deliver_it(home)
    assert caught.value.code == "dpone.publish.constraint"
    assert caught.value.state_after == "FAILED"
    assert_untouched(home, [902])
    in_shop(home, "ALTER TABLE shop.orders DELETE WHERE id = 500 SETTINGS mutations_sync = 2")
    assert deliver_it(home).generation == 2


def test_quality_and_empty_windows(home: Path) -> None:
    with pytest.raises(QualityFailed, match="row_count"):
        deliver_it(home, route(home, quality={"row_count": {"max_rows": 11}, "not_null": ["note"]}))
    assert_untouched(home)
    later = Window.of_key("2027-01-01T00:00:00.000000Z/2027-01-02T00:00:00.000000Z")
    with pytest.raises(QualityFailed, match="on_empty"):
        deliver_it(home, route(home, options={"on_empty": "fail"}), later)
    emptied = Window.of_key("2026-03-01T23:00:00.000000Z/2026-03-02T00:00:00.000000Z")
    with pytest.raises(QualityFailed, match="the target has 1"):
        deliver_it(home, route(home, options={"on_empty": "fail_if_target_has_rows"}), emptied)
    assert_untouched(home)
    result = deliver_it(home, window=emptied)
    assert (result.rows, result.deleted_rows, result.chunks) == (0, 1, 0)
    assert state_of(home)["ids"] == [902, 903, 904]


def test_a_full_refresh_takes_rows_without_a_window_key_too(home: Path) -> None:
    result = deliver_it(home, route(home, strategy="full_refresh"), Window.full())
    found = state_of(home)
    assert result.rows == len(found["ids"]) == 21
    assert 20 in found["ids"]
    assert not set(BEFORE) & set(found["ids"])


def test_the_journal_must_be_migrated_and_not_newer(home: Path, tmp_path: Path) -> None:
    with pytest.raises(JournalError) as caught:
        deliver(route(home), WINDOW, journal=tmp_path / "none.db", spool=home / "spool", requester=REQUESTER)
    assert "db migrate" in str(caught.value)
    with sqlite3.connect(home / "journal.db") as journal:
        journal.execute("UPDATE dpone_alembic_version SET version_num = '9999'")
    with pytest.raises(JournalError) as caught:
        deliver_it(home)
    assert caught.value.code == "dpone.journal.newer"
    assert_untouched_files(home)


def assert_untouched_files(home: Path) -> None:
    """When the journal cannot be opened: the target at least is as before."""
    assert [row[0] for row in in_warehouse(home, "SELECT id FROM sales.orders ORDER BY id")] == BEFORE
    assert not (home / "spool").exists() or not any((home / "spool").rglob("*.arrow"))


@pytest.fixture
def points(world: World) -> list[str]:
    """The crash points of one delivery."""
    found: list[str] = child("deliver", world.reset(), "-1")[1]["points"]
    return found


def kill_at(world: World, points: list[str], point: str) -> Path:
    """A fresh world whose delivery was killed there."""
    home = world.reset()
    child("deliver", home, str(points.index(point)))
    return home


def test_a_changed_byte_in_a_sealed_file_is_found_and_the_window_is_read_again(
    world: World, points: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Before the grant; the same call goes on, and the file is named in the log."""
    home = kill_at(world, points, "before_target_create_stage")
    sealed = sorted((home / "spool").rglob("*.arrow"))
    assert len(sealed) == 2
    damaged = bytearray(sealed[1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    sealed[1].chmod(0o600)
    sealed[1].write_bytes(damaged)
    assert deliver_it(home).generation == 1
    assert sealed[1].name in caplog.text
    assert not sealed[1].exists()


def test_a_changed_byte_in_an_object_is_found_and_the_window_is_read_again(
    world: World, points: list[str]
) -> None:
    """Before the grant, in the copy that would be read."""
    home = world.reset()
    child("deliver", home, str(points.index("before_target_create_stage")), "object_storage")
    sealed = sorted((home / "spool").rglob("*.arrow"))
    assert len(sealed) == 2
    damaged = bytearray(sealed[1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    sealed[1].write_bytes(damaged)
    _, found = child("finish", home, "object_storage")
    assert (found["result"]["generation"], found["files"]) == (1, [])
    assert found["result"]["resumed_from"] == "EXTRACTED"


def test_a_changed_cell_of_the_prepared_table_is_refused(world: World, points: list[str]) -> None:
    """A15: between the verification and the publication."""
    home = kill_at(world, points, "before_target_publish")
    name = in_warehouse(
        home,
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'dpone_stage' "
        "AND starts_with(table_name, 'p_')",
    )[0][0]
    in_warehouse(home, f'UPDATE dpone_stage."{name}" SET items = items + 1 WHERE id = 7')
    with pytest.raises(TargetRejected) as caught:
        deliver_it(home)
    assert caught.value.code == "dpone.publish.digest"
    assert_untouched(home)
    assert deliver_it(home).rows == 12


def test_a_changed_byte_of_a_stored_event_blocks_everything(world: World, points: list[str]) -> None:
    home = kill_at(world, points, "before_target_publish")
    with sqlite3.connect(home / "journal.db") as journal:
        journal.execute(
            "UPDATE dpone_event SET body = replace(body, '\"rows\":8', '\"rows\":9') "
            "WHERE event = 'CHUNK_SEALED'"
        )
    with pytest.raises(JournalError) as caught:
        deliver_it(home)
    assert caught.value.code == "dpone.journal.chain_broken"
    assert "event 2" in str(caught.value)
    assert [row[0] for row in in_warehouse(home, "SELECT id FROM sales.orders ORDER BY id")] == BEFORE
    assert look_state(home) == "PUBLISHING"


def look_state(home: Path) -> str:
    """The stored state, without reading the chain."""
    with open_journal(home / "journal.db") as journal:
        newest = journal.newest_invocation(REQUESTER.delivery_key)
    return "none" if newest is None else newest.state.value


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from airflow_dpone import deliver
from airflow_dpone.errors import CapacityError
from tests.crash.embedded_world import REQUESTER, WINDOW, route
home = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def limit(point):
    if point == "before_spool_begin":
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
    if point in ("after_chunk_seal", "before_spool_discard_epoch"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

try:
    deliver(
        route(home), WINDOW, journal=home / "journal.db", spool=home / "spool", requester=REQUESTER,
        observer=limit,
    )
except CapacityError as error:
    print(error.code, error.state_after)
"""


def test_a_full_disk_is_named_and_leaves_the_target_free(home: Path) -> None:
    """A file-size limit stands for a full disk: the system answers EFBIG as it would answer ENOSPC."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(home)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.split() == ["dpone.spool.full", "FAILED"], done.stderr[-2000:]
    assert_untouched(home)


def test_cleared_and_rerun_on_the_real_engines(home: Path) -> None:
    """S7: finished stays finished until somebody cleared the task."""
    first = deliver_it(home)
    again = deliver_it(home)
    assert (again.already, again.receipt_sha256) == (True, first.receipt_sha256)
    cleared = deliver_it(
        home, who=Requester("shop", "run-1", "deliver", try_number=2, ti_id="t2", max_tries=1)
    )
    assert (cleared.generation, cleared.already) == (2, False)
    rerun = deliver(
        route(home),
        WINDOW,
        journal=home / "journal.db",
        spool=home / "spool",
        requester=Requester("shop", "run-1", "deliver", try_number=2, ti_id="t2", max_tries=1),
        rerun=True,
    )
    assert rerun.generation == 3
    assert [row[0] for row in sorted(look(home)["receipts"])] == [1, 2, 3]


FORKED = """
import os, signal, sys
from pathlib import Path
from airflow_dpone import deliver, plan
from airflow_dpone.errors import SourceUnavailable
from tests.crash.embedded_world import REQUESTER, WINDOW, route
home = Path(sys.argv[1])
plan(route(home), WINDOW)
pid = os.fork()
if pid == 0:
    signal.alarm(50)  # a child that hangs must not outlive the test
    try:
        deliver(
            route(home), WINDOW, journal=home / "journal.db", spool=home / "spool", requester=REQUESTER
        )
    except SourceUnavailable as error:
        print(error.code, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


def test_a_forked_process_is_refused_instead_of_hanging(home: Path) -> None:
    """chDB leaves state behind even when it is closed; a query in a child of such a process never returns."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, str(home)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == ["dpone.source.forked"], done.stderr[-2000:]
