"""The distribution: what Airflow finds, what the wheel needs, what a clean clone installs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from airflow_dpone.provider_info import get_provider_info
from tests.architecture.package_source import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_airflow_discovers_the_provider() -> None:
    code = (
        "import json; from airflow.providers_manager import ProvidersManager;"
        "found = ProvidersManager().providers['airflow-dpone'];"
        "print(json.dumps([found.version, found.data]))"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    version, data = json.loads(run.stdout.splitlines()[-1])
    assert version == PROJECT["version"]
    assert data["package-name"] == PROJECT["name"]
    assert data["description"] == get_provider_info()["description"]


def test_every_dependency_is_held_by_the_constraints() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    odd = [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!+]+(; python_version .+)?", line)]
    assert odd == [], "only name==version lines: no address, no path, no editable"
    held = {_canonical(line) for line in lines}
    wanted = [
        *PROJECT["dependencies"],
        *(one for extra in PROJECT["optional-dependencies"].values() for one in extra),
    ]
    missing = {_canonical(one) for one in wanted} - held - {_canonical(PROJECT["name"])}
    assert missing == set(), "run `make constraints`"


def _canonical(requirement: str) -> str:
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_changelog_knows_this_version_or_has_an_unreleased_part() -> None:
    changelog = Path(ROOT, "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[(Unreleased|{re.escape(PROJECT['version'])})\]", changelog, re.MULTILINE)
    assert re.search(r"^Journal layout: \d+\.$", changelog, re.MULTILINE)
