"""Files that nobody can run here, judged as far as they can be: the workflow, and servers to try with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import run_suites
from tests.architecture.package_source import ROOT
from tests.mssql import server
from tests.servers import mssql_container

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
SUITES = {suite.name for suite in run_suites.SUITES}
VERSIONS = ["2019", "2022", "2025"]


def loaded(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def job() -> dict[str, Any]:
    (workflow,) = WORKFLOWS
    (found,) = loaded(workflow)["jobs"].values()
    assert isinstance(found, dict)
    return found


def test_it_runs_the_suite_on_every_version_that_the_product_names() -> None:
    assert job()["strategy"]["matrix"]["version"] == VERSIONS
    assert job()["strategy"]["fail-fast"] is False
    page = (ROOT / "docs" / "sql-server.md").read_text(encoding="utf-8")
    assert all(version in page for version in VERSIONS)


def test_the_suite_that_it_promises_exists_and_is_the_one_that_it_runs() -> None:
    """A promised suite that skips anything but a capability gap, or collects nothing, fails the job."""
    promised = re.findall(r"[\w-]+", job()["env"]["DPONE_REQUIRED_SUITES"])
    commands = " ; ".join(step.get("run", "") for step in job()["steps"])
    run = re.findall(r"tests/run_suites.py ([\w -]+)", commands)
    assert promised == run == ["mssql"]
    assert set(promised) <= SUITES


def test_it_uses_names_that_exist() -> None:
    assert mssql_container.IMAGE in job()["env"]
    assert "${{ matrix.version }}" in job()["env"][mssql_container.IMAGE]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [word for step in job()["steps"] for word in re.findall(r"make (\S+)", step.get("run", ""))]
    assert targets == [".venv/installed"]
    assert "$(VENV)/installed:" in makefile
    assert loaded(WORKFLOWS[0])["permissions"] == {"contents": "read"}
    assert "secrets." not in WORKFLOWS[0].read_text(encoding="utf-8")


def test_without_a_server_and_without_docker_the_suite_says_what_is_missing() -> None:
    """As the runner asks: the probe is a process."""

    def probe(**environment: str) -> str:
        kept = {k: v for k, v in os.environ.items() if k not in (server.SETTINGS, mssql_container.IMAGE)}
        command = [sys.executable, "-m", "tests.mssql.server"]
        asked = subprocess.run(
            command, cwd=ROOT, env=kept | environment, capture_output=True, text=True, check=False
        )
        assert asked.returncode == 1
        return asked.stderr.strip()

    assert probe() == "DPONE_TEST_MSSQL names no server, DPONE_TEST_MSSQL_IMAGE names no image"
    nowhere = {mssql_container.IMAGE: "some/image:tag", "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    assert "Docker does not answer here" in probe(**nowhere)


def test_what_a_container_is_told_is_what_the_suite_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings lead to the login; the licence is accepted by who names the image."""
    told = mssql_container.environment("Aa1-x")
    assert (told["ACCEPT_EULA"], told["MSSQL_SA_PASSWORD"]) == ("Y", "Aa1-x")
    monkeypatch.setenv(server.SETTINGS, mssql_container.settings_of("localhost", 32_768, "Aa1-x"))
    found = server.login()
    assert (found.server, found.port, found.user, found.password) == ("127.0.0.1", 32_768, "sa", "Aa1-x")
    assert (found.database, found.encrypt, found.trust_server_certificate) == ("master", "yes", True)


def test_servers_to_try_with_are_this_machines_and_hold_no_password() -> None:
    services = loaded(ROOT / "docker-compose.yaml")["services"]
    assert set(services) == {"sqlserver", "clickhouse", "journal"}
    for name, service in services.items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert "healthcheck" in service
        for key, value in service["environment"].items():
            if "PASSWORD" in key or "EULA" in key:
                assert re.fullmatch(r"\$\{[A-Z_]+:\?[a-zA-Z ]+\}", value), (name, key)
    tag = services["sqlserver"]["image"]
    assert re.sub(r"\$\{\w+:-(\d+)\}", r"\1", tag).rpartition(":")[2] == "2022-latest"
