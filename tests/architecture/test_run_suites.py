"""The runner behind ``make test`` must not call something green that did not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import run_suites
from tests.run_suites import Result, Suite, read_report

PASSED = '<testcase classname="t" name="one"/>'
FAILED = '<testcase classname="t" name="two"><failure message="no"/></testcase>'
ERROR = '<testcase classname="t" name="three"><error message="no"/></testcase>'
SKIPPED = '<testcase classname="t" name="four"><skipped message="no server"/></testcase>'
XFAILED = '<testcase classname="t" name="five"><skipped type="pytest.xfail" message=""/></testcase>'
GAP = '<testcase classname="t" name="six"><skipped message="capability gap: row_policies"/></testcase>'


def _read(tmp_path: Path, cases: str, exit_code: int = 0, required: bool = True) -> Result:
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    return read_report(report, exit_code, required)


@pytest.mark.parametrize(
    ("cases", "exit_code", "line"),
    [
        (PASSED, 0, "PASSED 1"),
        (PASSED + GAP, 0, "PASSED 1 (1 capability gaps listed above)"),
        (PASSED + FAILED, 1, "FAILED 1 (1 passed)"),
        (PASSED + ERROR + FAILED, 1, "FAILED 2 (1 passed)"),
        (PASSED + SKIPPED, 0, "FAILED 1 (1 passed)"),
        (PASSED + XFAILED, 0, "FAILED 1 (1 passed)"),
        (PASSED, 3, "FAILED 1 (1 passed)"),  # an internal error of pytest after the tests
        (PASSED, -9, "FAILED 1 (1 passed)"),
        ("", 5, "FAILED 1 (0 passed)"),
        ("", 0, "FAILED 1 (0 passed)"),
    ],
)
def test_a_required_suite(tmp_path: Path, cases: str, exit_code: int, line: str) -> None:
    assert _read(tmp_path, cases, exit_code).line == line


@pytest.mark.parametrize(
    ("cases", "exit_code", "line"),
    [
        (PASSED + SKIPPED, 0, "PASSED 1"),
        (SKIPPED, 0, "UNVERIFIED (skipped: t::four: no server)"),
        ("", 5, "UNVERIFIED (it has no test)"),
        (FAILED, 1, "FAILED 1 (0 passed)"),
    ],
)
def test_a_suite_that_is_not_required(tmp_path: Path, cases: str, exit_code: int, line: str) -> None:
    assert _read(tmp_path, cases, exit_code, required=False).line == line


def test_a_process_that_died_before_its_report_is_a_failure(tmp_path: Path) -> None:
    result = read_report(tmp_path / "none.xml", -11, required=False)
    assert result.failed == 1
    assert "exit code -11" in result.problems[0]


def test_a_suite_without_a_folder_is_unverified_unless_promised() -> None:
    planned = Suite("not-yet", required=False, missing="no server")
    assert run_suites.run_tests(planned, required=False).line == "UNVERIFIED (no server)"
    assert run_suites.run_tests(planned, required=True).line == "FAILED 1 (0 passed)"


def test_a_suite_whose_server_is_missing_is_unverified_unless_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probe_of_a_test.py").write_text("import sys; sys.exit('the server of this suite')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = Suite("postgresql", required=False, probe="probe_of_a_test")
    assert run_suites.run_tests(server, required=False).line == "UNVERIFIED (the server of this suite)"
    assert run_suites.run_tests(server, required=True).line == "FAILED 1 (0 passed)"
    assert run_suites.probed(Suite("unit")) is None
    (tmp_path / "probe_of_a_test.py").write_text("")
    assert run_suites.probed(server) is None


def test_a_promise_adds_to_what_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPONE_REQUIRED_SUITES", raising=False)
    bare = run_suites.required_suites()
    assert bare == {"lint", "architecture", "unit", "contract", "crash", "machine", "mutants", "airflow_side"}
    monkeypatch.setenv("DPONE_REQUIRED_SUITES", "unit, mssql")
    assert run_suites.required_suites() == bare | {"mssql"}


def test_a_name_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPONE_REQUIRED_SUITES", "postgres")
    assert run_suites.main(["unit"]) == 2


def test_two_suites_share_the_time_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each waits for the other's file: one after another they would never end."""
    (tmp_path / "meets_the_other.py").write_text(
        "import pathlib, sys, time\n"
        "mine, others = (pathlib.Path(__file__).parent / name for name in sys.argv[1:])\n"
        "mine.touch()\n"
        "for _ in range(1200):\n"
        "    if others.exists(): break\n"
        "    time.sleep(0.05)\n"
        "else: sys.exit('alone')\n"
        "print('met', others.name)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(run_suites.LANES, "2")
    pair = [
        Suite("first", commands=(("meets_the_other", "a", "b"),)),
        Suite("second", commands=(("meets_the_other", "b", "a"),)),
    ]
    results = run_suites.run(pair, {"first", "second"})
    assert [(name, result.line) for name, result in results.items()] == [
        ("first", "PASSED 1"),
        ("second", "PASSED 1"),
    ]
    printed = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in _met(capsys)}
    assert printed == {"first": "met b", "second": "met a"}


def _met(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if " met " in line]


def test_the_closing_lines() -> None:
    text = run_suites.summary(
        {"unit": Result(passed=3), "crash": Result(passed=1, failed=1, problems=["t::x"])}
    )
    assert text.splitlines()[-1] == "4 passed, 1 failed"
    assert "crash: t::x" in text
