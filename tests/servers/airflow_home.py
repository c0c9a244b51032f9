"""An Airflow of its own for tests that run its commands or its server: a home, a database, no examples."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SEC = 400
START_SEC = 300.0


@dataclass
class AirflowHome:
    """``AIRFLOW_HOME`` and what its processes find in their environment."""

    path: Path
    extra: dict[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, path: Path, **extra: str) -> AirflowHome:
        """A migrated Airflow on SQLite."""
        home = cls(path, extra)
        (path / "dags").mkdir(parents=True)
        done = home.run("db", "migrate")
        assert done.returncode == 0, done.stdout + done.stderr
        return home

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: text for name, text in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))
        }
        return {
            **kept,
            "AIRFLOW_HOME": str(self.path),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.path / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "PYTHONPATH": os.pathsep.join(entry for entry in (str(ROOT), *sys.path) if entry),
            "COLUMNS": "400",
            **self.extra,
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``airflow ARGUMENTS``."""
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "airflow", *arguments],
            env=self.environment,
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SEC,
            check=False,
        )

    def said(self, *arguments: str) -> str:
        """What a command that succeeds writes on stdout."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """What a command with ``--output json`` lists."""
        said = self.said(*arguments, "--output", "json")
        found: list[dict[str, Any]] = json.loads(said[said.index("[") :])
        return found

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """``airflow api-server`` on a free port of this machine; its address."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        log = self.path / "api-server.log"
        command = [sys.executable, "-W", "ignore", "-m", "airflow", "api-server"]
        with log.open("wb") as output:
            server = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
                env={**self.environment, "AIRFLOW__API__BASE_URL": address},
                cwd=self.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait_until_healthy(server, address, log)
            yield address
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait_until_healthy(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    give_up = time.monotonic() + START_SEC
    while server.poll() is None and time.monotonic() < give_up:
        with contextlib.suppress(urllib.error.URLError, OSError):
            with urllib.request.urlopen(f"{address}/api/v2/version", timeout=5):
                return
        time.sleep(0.3)
    raise RuntimeError(f"the API server did not start: {log.read_text()[-3000:]}")
