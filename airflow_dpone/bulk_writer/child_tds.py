"""The writer process: ``python -m airflow_dpone.bulk_writer.child_tds PID SECRET ROWS``.

It reads a request from its standard input, credentials from the pipe SECRET and an Arrow stream from the pipe
ROWS, and says how it went in one frame on its standard output, after it has disconnected. It ends with the
process PID that started it, by a signal from the kernel. No text of a driver leaves it.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from io import BufferedReader, FileIO
from typing import Any

import mssql_py_core

from airflow_dpone.bulk_writer import messages
from airflow_dpone.bulk_writer.messages import Kind
from airflow_dpone.bulk_writer.tds_write import Rows, Write
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from airflow_dpone.target_sqlserver.session_statements import WRITER_PROGRAM
from airflow_dpone.wire.child_process import end_with

_READ_BYTES = 1 << 20
_KEEP_ALIVE_MS = {"keep_alive": 30_000, "keep_alive_interval": 1_000}


def core_options(where: SqlServerConnection) -> dict[str, Any]:
    """What the core is told. It takes a misspelt name without a word, so a test compares them."""
    signed_in: dict[str, Any] = {"user_name": where.user, "password": where.password}
    if where.access_token:
        signed_in = {"access_token": where.access_token}
    named = where.host_name_in_certificate
    return {
        "server": where.address,
        "database": where.database,
        **signed_in,
        "encryption": where.encrypt,
        "trust_server_certificate": where.trust_server_certificate,
        **({"host_name_in_certificate": named} if named else {}),
        "connect_timeout": where.login_timeout_sec,
        # A restored session would have no lock, and nobody would notice.
        "connect_retry_count": 0,
        **_KEEP_ALIVE_MS,
        "application_intent": "ReadWrite",
        "application_name": WRITER_PROGRAM,
    }


def write(request: dict[str, Any], where: SqlServerConnection, rows: int, began: float) -> dict[str, Any]:
    """Does what is asked; the body of the result frame."""
    with BufferedReader(FileIO(rows, "rb"), _READ_BYTES) as stream:
        ends = began + request["deadline_budget_ms"] / 1000
        return Write(
            request,
            Rows(stream, request),
            lambda: mssql_py_core.PyCoreConnection(core_options(where)),
            database=where.database,
            ends=ends,
        ).run()


def main(arguments: list[str]) -> int:
    """Serve one write; see the module's text for the arguments. Exit code 2: what was sent is no request."""
    began = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, secret, rows = map(int, arguments)
    if not end_with(parent):
        return 1
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold the password
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        with BufferedReader(FileIO(0, "rb")) as stream:
            request = messages.read(Kind.WRITE_REQUEST, stream)
        with BufferedReader(FileIO(secret, "rb")) as stream:
            found = messages.read(Kind.CREDENTIALS, stream)
    except messages.ProtocolFault:
        return 2
    where = SqlServerConnection(**{name: value for name, value in found.items() if name != "schema_version"})
    result = write(request, where, rows, began)
    with FileIO(answers, "wb") as stream_out:
        stream_out.write(messages.encode(Kind.WRITE_RESULT, result))
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # the core's threads have nothing to say any more, and may hang
