"""Run the suites, two at a time, and say for each what it proved: the program behind ``make test``.

    python tests/run_suites.py [SUITE ...]

Without names every suite runs. The last lines are one per suite (``PASSED n``, ``FAILED n`` or
``UNVERIFIED (what is missing)``) and the sum. The exit code is 1 when anything failed, 2 for a wrong name.

Each suite is a process of its own: an embedded engine belongs to one process and does not survive a fork.
Many tests wait for processes and servers, so two suites share the time of one; every line of output begins
with the suite's name. DPONE_TEST_LANES=1 runs one after another.

A required suite fails when it collects no test or skips one, so that green always means "ran". One kind of
skip is allowed, and listed: an adapter under a contract suite that does not claim a capability
(``pytest.skip("capability gap: ...")``).

DPONE_REQUIRED_SUITES (names, separated by commas) adds to what is required; .ci/run sets it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
CAPABILITY_GAP = "capability gap: "
LANES = "DPONE_TEST_LANES"
_one_line_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Suite:
    """A folder of tests, or a list of commands that each count as one test.

    :param missing: why it cannot run here; None when nothing is missing.
    :param probe: a module that says what is missing here, and then exits with another code than 0.
    """

    name: str
    commands: tuple[tuple[str, ...], ...] = ()
    required: bool = True
    missing: str | None = None
    probe: str | None = None

    @property
    def folder(self) -> Path:
        """Where its tests are."""
        return ROOT / "tests" / self.name.replace("-", "_")


# In the order in which they start: quick checks, then the long suites, so that both lanes end about together.
# Planned suites stand here before they exist: without them, green would look like a proof on servers.
SUITES = (
    Suite(
        "lint",
        commands=(
            ("ruff", "check", "--quiet", "."),
            ("ruff", "format", "--quiet", "--check", "."),
            ("mypy", "--no-error-summary"),
        ),
    ),
    Suite("architecture"),
    Suite("mssql", required=False, probe="tests.mssql.server"),
    # An Airflow of its own: minutes of waiting, so it begins early.
    Suite("standalone", required=False),
    Suite("crash"),
    Suite("contract"),
    Suite("unit"),
    Suite("postgresql", required=False, probe="tests.servers.postgresql"),
    Suite("mutants", commands=(("tests.mutants",),)),
    # Debian's clickhouse-server, if it is installed; another server with a recent engine, if one is named.
    Suite("clickhouse-server", required=False),
    Suite("clickhouse-native", required=False),
    Suite("machine"),
    Suite("airflow_side"),
    Suite("browser", required=False, probe="tests.servers.chromium"),
)


@dataclass
class Result:
    """What one suite proved. ``problems`` is not empty exactly when it failed."""

    passed: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    missing: str | None = None
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """The suite's closing words."""
        gaps = f", {len(self.gaps)} capability gaps listed above" if self.gaps else ""
        if self.failed:
            return f"FAILED {self.failed} ({self.passed} passed{gaps})"
        if self.missing:
            return f"UNVERIFIED ({self.missing})"
        return f"PASSED {self.passed}" + (f" ({gaps.removeprefix(', ')})" if gaps else "")

    def fail(self, problem: str, count: int = 1) -> None:
        """Count a failure and keep its reason for the end."""
        self.failed += count
        self.problems.append(problem)


def read_report(report: Path, exit_code: int, required: bool) -> Result:
    """The result of a pytest process from its JUnit report; no report is a failure, whatever the code."""
    try:
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        result = Result()
        result.fail(f"the test process ended with exit code {exit_code} and left no report")
        return result
    result, skips = count(cases)
    if required:
        for skip in skips:
            result.fail(skip)
        if not cases:
            result.fail("it is required and collected no test")
    elif not result.passed and not result.failed:
        result.missing = skips[0] if skips else "it has no test"
    # pytest's 5 is "no test collected", judged above; any other code must be explained by a failed test.
    if exit_code not in (0, 5) and not result.failed:
        result.fail(f"the test process ended with exit code {exit_code}")
    return result


def count(cases: list[ElementTree.Element]) -> tuple[Result, list[str]]:
    """Passed, failed and capability gaps; and the skips, which only a required suite counts as failures."""
    result, skips = Result(), []
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.fail(name)
        elif skipped is None:
            result.passed += 1
        elif (reason := skipped.get("message") or "no reason").startswith(CAPABILITY_GAP):
            result.gaps.append(f"{name}: {reason}")
        else:
            skips.append(f"skipped: {name}: {reason}")
    return result, skips


def say(suite: Suite, text: str) -> None:
    """Print one line of a suite's."""
    with _one_line_at_a_time:
        print(f"{suite.name:<18} {text}".rstrip(), flush=True)


def shown(suite: Suite, command: Sequence[str]) -> int:
    """Run a program, show its output line by line as it comes, and return its exit code."""
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            say(suite, line.rstrip())
    return process.returncode


def run_commands(suite: Suite) -> Result:
    """Run each command; one that does not exit with 0 is one failed test."""
    result = Result()
    for command in suite.commands:
        say(suite, f"$ {' '.join(command)}")
        if shown(suite, [sys.executable, "-m", *command]):
            result.fail(" ".join(command))
        else:
            result.passed += 1
    return result


def run_tests(suite: Suite, required: bool) -> Result:
    """Run a folder with pytest in a process of its own; its output is shown as it comes."""
    missing = suite.missing or probed(suite)
    if missing is None and not suite.folder.is_dir():
        missing = f"{suite.folder.relative_to(ROOT)} does not exist"
    if missing is not None:
        result = Result(missing=missing)
        if required:
            result.fail(f"it is required, but {result.missing}")
        return result
    with tempfile.TemporaryDirectory(prefix="dpone-report-") as scratch:
        report = Path(scratch, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", str(suite.folder)]
        return read_report(report, shown(suite, command), required)


def probed(suite: Suite) -> str | None:
    """What a suite's probe says is missing; None when it may run."""
    if suite.probe is None:
        return None
    command = [sys.executable, "-m", suite.probe]
    asked = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if asked.returncode == 0:
        return None
    return (asked.stderr.strip().splitlines() or [f"{suite.probe} failed and said nothing"])[-1]


def required_suites() -> set[str]:
    """The names that must run and pass: the bare machine's, and those that the caller promised."""
    promised = set(re.findall(r"[\w-]+", os.environ.get("DPONE_REQUIRED_SUITES", "")))
    return {suite.name for suite in SUITES if suite.required} | promised


def run(suites: list[Suite], required: set[str]) -> dict[str, Result]:
    """Run the suites; each lane takes the next one when it is free. The results keep the suites' order."""

    def one(suite: Suite) -> Result:
        started = monotonic()
        must = suite.name in required
        result = run_commands(suite) if suite.commands else run_tests(suite, must)
        result.seconds = monotonic() - started
        for gap in result.gaps:
            say(suite, f"not claimed: {gap}")
        say(suite, f"== {result.line}")
        return result

    with ThreadPoolExecutor(lanes()) as pool:
        return dict(zip([suite.name for suite in suites], pool.map(one, suites), strict=True))


def lanes() -> int:
    """How many suites run at once: DPONE_TEST_LANES, else two where there are two processors."""
    return int(os.environ.get(LANES) or min(2, os.cpu_count() or 1))


def summary(results: dict[str, Result]) -> str:
    """The closing table: what failed, one line per suite, the sum."""
    lines = [""]
    for name, result in results.items():
        lines += [f"{name}: {problem}" for problem in result.problems]
    lines.append("")
    for name, result in results.items():
        seconds = "" if result.missing else f"   in {result.seconds:.1f} s"
        lines.append(f"{name:<18} {result.line}{seconds}")
    passed = sum(result.passed for result in results.values())
    failed = sum(result.failed for result in results.values())
    return "\n".join([*lines, "", f"{passed} passed, {failed} failed"])


def main(names: list[str]) -> int:
    """Run the named suites, or all."""
    required = required_suites()
    known = [suite.name for suite in SUITES]
    unknown = sorted({*names, *required} - set(known))
    if unknown:
        print(f"No suite is called {', '.join(unknown)}. There are: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [suite for suite in SUITES if not names or suite.name in names]
    results = run(chosen, required)
    print(summary(results), flush=True)
    return 1 if any(result.failed for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
