"""``python -m airflow_dpone db ...``: exit codes, one line of JSON last on stdout, all else on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow.settings  # noqa: F401 - its log handlers keep the stdout of this moment, not that of one test
import pytest

from airflow_dpone.cli.arguments import main
from airflow_dpone.journal import tables as t
from tests.unit.journal.test_opening import set_revision


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 1
    assert "Traceback" not in err
    return code, json.loads(lines[0]), err


def test_migrate_then_status(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, err = run(capsys, "db", "migrate", "--journal", str(path), "--host-id", "box")
    assert (code, document["status"], document["host_id"]) == (0, "at_head", "box")
    assert str(path) in err
    again, same, _ = run(capsys, "db", "migrate", "--journal", f"sqlite:///{path}", "--host-id", "box")
    assert (again, same) == (0, document)
    code, document, err = run(capsys, "db", "status", "--journal", str(path))
    assert (code, document) == (0, same)
    assert document["schema"] == "dpone.db-status.v1"
    assert document["journal_id"] in err


def test_status_of_a_journal_without_tables_is_one(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.touch()
    code, document, err = run(capsys, "db", "status", "--journal", str(path))
    assert (code, document["status"], document["revision"]) == (1, "behind", None)
    assert "db migrate" in err


def test_a_newer_journal_is_one_for_both(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "db", "migrate", "--journal", str(path))
    set_revision(path, "9999")
    code, document, _ = run(capsys, "db", "status", "--journal", str(path))
    assert (code, document["status"], document["head"]) == (1, "newer", t.HEAD)
    code, document, err = run(capsys, "db", "migrate", "--journal", str(path))
    assert (code, document["code"]) == (1, "dpone.journal.newer")
    assert "Next: " in err


@pytest.mark.parametrize("action", ["status", "migrate"])
@pytest.mark.parametrize(
    "journal", ["{}/missing/journal.db", "postgresql://127.0.0.1:1/x", "{}/text", "mysql://x/y"]
)
def test_what_cannot_be_reached_is_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str, journal: str
) -> None:
    (tmp_path / "text").write_text("no database " * 400)
    code, document, err = run(capsys, "db", action, "--journal", journal.format(tmp_path))
    assert code == 2
    assert document["schema"] == "dpone.error.v1"
    assert document["message"] in err
    assert document["next_action"] in err


def test_a_script_is_for_servers_only(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document, err = run(capsys, "db", "migrate", "--sql", "--journal", str(path))
    assert (code, document["code"]) == (2, "dpone.config.field")
    assert "without --sql" in err
    assert not path.exists()
    assert main(["db", "migrate", "--sql", "--journal", "postgresql://nobody@nowhere/x"]) == 0
    out, err = capsys.readouterr()
    assert (out.splitlines()[0][:2], out.splitlines()[-1]) == ("--", "COMMIT;")


def test_airflows_logging_does_not_reach_stdout(path: Path) -> None:
    """It is loaded for a connection, and Alembic says every migration."""
    named = json.dumps({"conn_type": "sqlite", "host": str(path)})
    command = [sys.executable, "-m", "airflow_dpone", "db", "migrate", "--journal-conn-id", "my_journal"]
    environment = {**os.environ, "AIRFLOW_CONN_MY_JOURNAL": named}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "at_head"
    assert "Running upgrade" in done.stderr


def test_a_file_may_be_named_by_a_connection(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_JOURNAL", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    assert run(capsys, "db", "migrate", "--journal-conn-id", "my_journal")[0] == 0
    assert run(capsys, "db", "status", "--journal", str(path))[0] == 0
    code, document, err = run(capsys, "db", "status", "--journal-conn-id", "nobody")
    assert (code, document["code"]) == (2, "dpone.config.connection")
    assert "'nobody'" in err


BOTH = ["db", "status", "--journal", "/x", "--journal-conn-id", "x"]


@pytest.mark.parametrize("arguments", [[], ["db"], ["db", "drop"], ["other"], BOTH])
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m airflow_dpone" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["db", "--help"], ["db", "migrate", "--help"], ["db", "status", "-h"]]
)
def test_help_is_there_at_every_level(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "usage: python -m airflow_dpone" in out
    if arguments[-2:] == ["status", "-h"]:
        assert (
            "0 at the newest version, 1 behind it or newer than this version, 2 it cannot be reached" in out
        )


def test_the_module_runs_as_a_program_and_loads_no_airflow(path: Path) -> None:
    program = "import runpy, sys; sys.argv = ['x', *sys.argv[1:]]\n"
    program += "try: runpy.run_module('airflow_dpone', run_name='__main__')\n"
    program += "except SystemExit as end: print('airflow' in sys.modules, file=sys.stderr); raise\n"
    command = [sys.executable, "-c", program, "db", "migrate", "--journal", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "at_head"
    assert done.stderr.splitlines()[-1] == "False"
