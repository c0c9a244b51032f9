"""The server of this suite, from DPONE_TEST_MSSQL or an image, and databases of the tests' own on it.

python -m tests.mssql.server      # exit code 0, or it says what is missing here
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyodbc
import pytest

from airflow_dpone.errors import Problem
from airflow_dpone.target_sqlserver import odbc, parity
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.target_sqlserver.parity import parity_problems
from airflow_dpone.target_sqlserver.session import Session
from tests.mssql import standin
from tests.servers import mssql_container

SETTINGS = "DPONE_TEST_MSSQL"
START = "DPONE_TEST_MSSQL_START"
KILL = "DPONE_TEST_MSSQL_KILL"


def missing() -> str | None:
    """What this suite lacks here, or None."""
    if os.environ.get(SETTINGS):
        return None
    lack = mssql_container.missing()
    return None if lack is None else f"{SETTINGS} names no server, {lack}"


def start() -> None:
    """Lets the command of DPONE_TEST_MSSQL_START start the server, if there is one; without a server, starts
    the image of DPONE_TEST_MSSQL_IMAGE."""
    if not os.environ.get(SETTINGS):
        os.environ[SETTINGS] = mssql_container.start()
        return
    command = os.environ.get(START)
    if command:
        subprocess.run([command], check=True, stdout=subprocess.DEVNULL, timeout=300)


def why_not_killed() -> str | None:
    """What is missing to kill the server and start it again, or None."""
    lack = next((name for name in (KILL, START) if not os.environ.get(name)), None)
    return (
        None if lack is None else f"capability gap: {lack} names no command: a server's death is UNVERIFIED"
    )


def kill_and_start() -> None:
    """The server dies as by a loss of power of its processes (SIGKILL), and is started again at once."""
    subprocess.run([os.environ[KILL]], check=True, stdout=subprocess.DEVNULL, timeout=60)
    start()


def login() -> SqlServerConnection:
    """The login of DPONE_TEST_MSSQL: it may create databases."""
    parts = {
        name.strip().lower(): value
        for name, _, value in (part.partition("=") for part in os.environ[SETTINGS].split(";") if part)
    }
    host, _, port = parts["server"].removeprefix("tcp:").partition(",")
    return SqlServerConnection(
        server=host,
        port=int(port or 1433),
        database=parts.get("database", "master"),
        user=parts["uid"],
        password=parts["pwd"],
        driver=parts.get("driver", "").strip("{}"),
        trust_server_certificate=parts.get("trustservercertificate", "no").lower() == "yes",
    )


def connect(where: SqlServerConnection) -> Any:
    """A connection of a test's own, past the product."""
    return odbc.connect(where, application="dpone tests", login_timeout_sec=30)


def airflow_connection(where: SqlServerConnection) -> str:
    """As Airflow takes it from its environment."""
    extra = {"trust_server_certificate": where.trust_server_certificate, "driver": where.driver}
    stored = {
        "conn_type": "mssql",
        "host": where.server,
        "port": where.port,
        "schema": where.database,
        "login": where.user,
        "password": where.password,
        "extra": {name: value for name, value in extra.items() if value},
    }
    return json.dumps(stored)


def is_standin(where: SqlServerConnection) -> bool:
    """Whether the server is the TDS stand-in."""
    connection = connect(where)
    try:
        return "babelfish" in connection.execute("SELECT @@VERSION").fetchone()[0].lower()
    finally:
        connection.close()


class OwnDatabase:
    """A new database, dropped at the end."""

    def __init__(self) -> None:
        self._connection: Any = None
        self.admin = login()
        self.is_standin = is_standin(self.admin)
        self.where = replace(self.admin, database=f"dpone_test_{secrets.token_hex(4)}")
        self._run(f"CREATE DATABASE [{self.where.database}]")
        if self.is_standin:
            connection = connect(self.where)
            for text in standin.PREPARED:
                connection.execute(text)
            connection.close()

    def connection(self) -> Any:
        """A connection past the product, always the same one, as long as it lives."""
        if self._connection is None or not _answers(self._connection):
            self._connection = connect(self.where)
        return self._connection

    def drop(self) -> None:
        """Gone; whoever is still in it is thrown out by a real server, and awaited on the stand-in."""
        name = self.where.database
        standin.close_all()
        if self._connection is not None:
            self._connection.close()
        if not self.is_standin:
            self._run(f"ALTER DATABASE [{name}] SET SINGLE_USER WITH ROLLBACK IMMEDIATE")
        for left in reversed(range(20)):
            try:
                return self._run(f"DROP DATABASE [{name}]")
            except pyodbc.Error:
                if not left:
                    raise
                time.sleep(0.5)

    def _run(self, text: str) -> None:
        connection = connect(replace(self.admin, database="master"))
        try:
            connection.execute(text)
        finally:
            connection.close()


def _answers(connection: Any) -> bool:
    try:
        return bool(connection.execute("SELECT 1").fetchone()[0] == 1)
    except pyodbc.Error:
        return False


def get_ready() -> None:
    """Before anything is asked of the product: the server runs, and what it does not understand is handled.

    Raises pytest's skip when there is no server.
    """
    lack = missing()
    if lack is not None:
        pytest.skip(lack)
    start()
    if is_standin(login()):
        use_standin()


def use_standin() -> None:
    """Lets the product's connections send what the stand-in understands."""
    odbc.__dict__["pyodbc"] = _Module()
    # It takes the stand-in many seconds to parse the batch, in each session anew; once per process is enough.
    parity.__dict__["parity_problems"] = _ask_once


@lru_cache
def _once() -> list[list[Problem]]:
    return []


def _ask_once(session: Session, database: str) -> list[Problem]:
    known = _once()
    if not known:
        known.append(parity_problems(session, database))
    return known[0]


class _Module:
    """``pyodbc`` with the stand-in's way to connect."""

    connect = staticmethod(standin.connect)

    def __getattr__(self, name: str) -> Any:
        return getattr(pyodbc, name)


if __name__ == "__main__":
    lack = missing()
    if lack:
        sys.exit(lack)
    if os.environ.get(SETTINGS):
        start()
        print(f"{login()}: {'the stand-in' if is_standin(login()) else 'a server'}")
    else:
        print(f"a container of {os.environ[mssql_container.IMAGE]}")
