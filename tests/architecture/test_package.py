"""The distribution: what Airflow finds, what the wheel needs, what a clean clone installs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from airflow_dpone.bulk_writer.messages import Kind
from airflow_dpone.journal.schemas import FILES
from airflow_dpone.provider_info import get_provider_info
from tests.architecture.package_source import PACKAGE, ROOT

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


def test_the_wheel_holds_what_is_read_at_run_time(tmp_path: Path) -> None:
    """The files of the package that are no Python: each of them, and nothing else."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith(f"{PACKAGE}/")}
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == ours
    frames = {f"{kind}.schema.json" for kind in Kind}
    schemas = {"common.v1.json", *FILES.values(), *frames}
    assert {Path(name).name for name in held if name.endswith(".json")} == schemas


def test_the_changelog_knows_this_version_or_has_an_unreleased_part() -> None:
    changelog = Path(ROOT, "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[(Unreleased|{re.escape(PROJECT['version'])})\]", changelog, re.MULTILINE)
    assert re.search(r"^Journal layout: \d+\.$", changelog, re.MULTILINE)
