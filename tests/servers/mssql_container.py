"""SQL Server in a container of this process, where Docker runs: DPONE_TEST_MSSQL_IMAGE names the image.

Whoever names an image accepts the terms of its licence. Nobody has run this yet: UNVERIFIED.
"""

from __future__ import annotations

import atexit
import os
import secrets
import time
from collections.abc import Mapping

import pyodbc

IMAGE = "DPONE_TEST_MSSQL_IMAGE"
PORT = 1433
START_SEC = 300.0


def missing() -> str | None:
    """What lacks for it here, or None."""
    if not os.environ.get(IMAGE):
        return f"{IMAGE} names no image"
    import docker

    try:
        client = docker.from_env()
        client.ping()
        client.close()
    except docker.errors.DockerException as error:
        return f"{IMAGE} names an image, and Docker does not answer here ({type(error).__name__})"
    return None


def environment(password: str) -> Mapping[str, str]:
    """What the image reads when it starts; older tags know the password by its older name."""
    return {
        "ACCEPT_EULA": "Y",
        "MSSQL_PID": "Developer",
        "MSSQL_SA_PASSWORD": password,
        "SA_PASSWORD": password,
        "MSSQL_AGENT_ENABLED": "false",
    }


def start() -> str:
    """Starts it and waits until a login succeeds; gone when the process ends. Returns ODBC's settings."""
    from testcontainers.core.container import DockerContainer

    from airflow_dpone.target_sqlserver import odbc

    password = f"Aa1-{secrets.token_hex(16)}"
    container = DockerContainer(os.environ[IMAGE]).with_exposed_ports(PORT)
    for name, value in environment(password).items():
        container = container.with_env(name, value)
    container.start()
    atexit.register(container.stop)
    host, port = container.get_container_host_ip(), container.get_exposed_port(PORT)
    settings = settings_of(host, port, password)
    wait(f"DRIVER={{{odbc.find_driver()}}};{settings}", START_SEC)
    return settings


def settings_of(host: str, port: int, password: str) -> str:
    """As DPONE_TEST_MSSQL says where a server is."""
    address = "127.0.0.1" if host == "localhost" else host
    return f"SERVER={address},{port};DATABASE=master;UID=sa;PWD={password};TrustServerCertificate=yes"


def wait(text: str, seconds: float) -> None:
    """Until a login succeeds. Raises the driver's last error when it never does."""
    ends = time.monotonic() + seconds
    while True:
        try:
            pyodbc.connect(text, autocommit=True, timeout=10).close()
        except pyodbc.Error:
            if time.monotonic() >= ends:
                raise
            time.sleep(2)
        else:
            return
