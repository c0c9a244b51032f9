"""What holds for every test: a clean environment, an Airflow of its own, and no network.

All of it happens at import, before any test module can import Airflow, which reads its home once.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A developer's Airflow, credentials and switches must not decide a test. Only DPONE_TEST_* is let
# through: it names the servers of the integration suites.
for _name in list(os.environ):
    if _name.startswith(("AIRFLOW", "_AIRFLOW", "DPONE_")) and not _name.startswith("DPONE_TEST_"):
        del os.environ[_name]

# Child processes of tests inherit it: no test, nor its children, ever sees ~/airflow.
_scratch = tempfile.TemporaryDirectory(prefix="dpone-tests-", ignore_cleanup_errors=True)
AIRFLOW_HOME = Path(_scratch.name, "airflow")
(AIRFLOW_HOME / "dags").mkdir(parents=True)
os.environ.update(
    AIRFLOW_HOME=str(AIRFLOW_HOME),
    AIRFLOW__CORE__DAGS_FOLDER=str(AIRFLOW_HOME / "dags"),  # empty, so that nothing else is parsed
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{AIRFLOW_HOME}/airflow.db",
)

# A slow machine is no failure, and a failing example must be reproducible from the output alone.
settings.register_profile("dpone", deadline=None, print_blob=True, database=None)
settings.load_profile("dpone")

_connect = socket.socket.connect


def _is_this_machine(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket's path
    try:
        return ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        return str(address[0]) == "localhost"


def _connect_here(self: socket.socket, address: Any) -> None:
    if not _is_this_machine(address):
        raise RuntimeError(f"a test tried to reach {address[0]}: tests talk to this machine only")
    _connect(self, address)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that needs the world would pass or fail by the weather."""
    monkeypatch.setattr(socket.socket, "connect", _connect_here)
