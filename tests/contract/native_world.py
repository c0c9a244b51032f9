"""ClickHouse's engine behind the native protocol, for tests: the product's driver meets a server.

The server is ``tests/servers/native_server.py``, one process for all tests of this process.
"""

from __future__ import annotations

import atexit
import itertools
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from clickhouse_driver import Client

from airflow_dpone.source_clickhouse.address import ServerAddress
from airflow_dpone.source_clickhouse.introspect import Admission
from airflow_dpone.source_clickhouse.query_settings import EMBEDDED_OWN
from airflow_dpone.source_clickhouse.reader import REVISION, ServerSource
from tests.contract.chdb_world import EngineWorld, rows_of_json

_users = itertools.count(1)
PROGRAM = Path(__file__).parents[1] / "servers" / "native_server.py"


@dataclass
class RunningServer:
    """A process of ours and its port."""

    process: subprocess.Popen[str]
    port: int
    directory: Path

    @classmethod
    def start(cls, directory: Path, *options: str) -> RunningServer:
        """Waits until it listens."""
        command = [sys.executable, str(PROGRAM), "--directory", str(directory), *options]
        process = subprocess.Popen(
            command, cwd=directory.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert said[:1] == ["ready"], f"the test server did not start: {process.wait(5)}"
        return cls(process, int(said[1]), directory)

    @property
    def address(self) -> ServerAddress:
        """As the default user."""
        return ServerAddress("127.0.0.1", self.port)

    def stop(self) -> None:
        """It ends with its standard input."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.process.stdout.close()


@cache
def scratch() -> Path:
    """A directory of this process, for engines and their exports."""
    made = tempfile.TemporaryDirectory(prefix="dpone-native-", ignore_cleanup_errors=True)
    atexit.register(made.cleanup)
    return Path(made.name)


@cache
def address() -> ServerAddress:
    """The server of this process, started when the first test asks for it."""
    server = RunningServer.start(scratch() / "engine")
    atexit.register(server.stop)
    return server.address


def plain_client(where: ServerAddress) -> Any:
    """The driver without Arrow, numpy and the product: another way to the same server."""
    tls = {"secure": where.secure, "verify": where.verify, "ca_certs": where.ca_certs}
    return Client(where.host, where.port, user=where.user, client_revision=REVISION, **tls)


@cache
def _client(where: ServerAddress) -> Any:
    client = plain_client(where)
    atexit.register(client.disconnect)
    return client


class NativeSource(ServerSource):
    """The real one. The engine behind it is chDB, which changes some settings and has no users."""

    own_settings = EMBEDDED_OWN
    capabilities = {"row_policies": "absent"}  # noqa: RUF012


class NativeWorld(EngineWorld):
    """A database of a server, reached through the driver."""

    @staticmethod
    def where() -> ServerAddress:
        """The server, as the default user."""
        return address()

    def execute(self, statement: str) -> None:
        """On the tests' own connection."""
        _client(self.where()).execute(statement)

    def rows(self, statement: str) -> list[list[Any]]:
        """As JSON that the server writes into a file: no value passes through any driver."""
        file = scratch() / "export.json"
        file.unlink(missing_ok=True)
        target = f"file('{file}', 'JSONCompactEachRow')"
        self.execute(f"INSERT INTO FUNCTION {target}\n{statement}")
        return rows_of_json(file.read_bytes()) if file.exists() else []

    def source(self, *, admission: Admission | None = None, **changes: Any) -> NativeSource:
        """Over the server; ``changes`` are fields of its address."""
        return NativeSource(replace(self.where(), **changes), admission=admission)

    def source_after(self, statement: str) -> NativeSource:
        """As a user with a profile."""
        user = f"profile{next(_users)}"
        self.execute(f"PROFILE {user}: {statement}")
        return self.source(user=user)
