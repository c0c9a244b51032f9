"""A writer process that does what the name of its stage says: run in place of ``bulk_writer.child_tds``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import BufferedReader, FileIO
from typing import Any

from airflow_dpone.bulk_writer import messages
from airflow_dpone.bulk_writer.messages import Kind
from airflow_dpone.bulk_writer.tds_write import Rows
from airflow_dpone.wire.child_process import end_with


def success(request: dict[str, Any], rows: int, **other: Any) -> bytes:
    """The frame of a write that went well."""
    body = {
        "schema_version": 1,
        "protocol": messages.PROTOCOL,
        "grant_token_sha256": request["grant_token_sha256"],
        "classification": "success",
        "diagnostic_code": None,
        "input_rows_consumed": rows,
        "session": {"spid": 51, "login_time": "2025-01-02T03:04:05.678"},
        "metrics": {"connect_ms": 1, "write_ms": 2, "dispose_ms": 3},
    }
    return messages.encode(Kind.WRITE_RESULT, body | other)


def say(data: bytes) -> None:
    """Writes to the standard output until all of it is taken."""
    while data:
        data = data[os.write(1, data) :]


def flood(descriptor: int, size: int) -> None:
    block = b"!" * 65_536
    for _ in range(size // len(block)):
        os.write(descriptor, block)


def panic() -> None:
    raise type("PanicException", (BaseException,), {})("called `Result::unwrap()` on an `Err` value")


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(600)


def leave_a_child() -> None:
    """It holds the answer's pipe open."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


REFUSAL = {
    "classification": "failure",
    "diagnostic_code": "dpone.writer.connect",
    "input_rows_consumed": None,
    "session": None,
}
AT_THE_START: dict[str, Callable[[], object]] = {
    "hang": hang,
    "stubborn": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), hang()),
    "garbage": lambda: (say(b"this is no frame at all"), sys.exit(0)),
    "flood": lambda: flood(1, 1 << 40),
    "leaves_early": lambda: sys.exit(0),
    "panic": panic,
}
IN_THE_COPY: dict[str, Callable[[], object]] = {"killed_in_the_copy": kill_me, "hangs_in_the_copy": hang}
AT_THE_END: dict[str, Callable[[], object]] = {
    "noisy": lambda: flood(2, 8 << 20),
    "killed_at_the_end": kill_me,
    "hangs_at_the_end": hang,
}
ANSWERS: dict[str, Callable[[dict[str, Any], int], bytes]] = {
    "counts_wrong": lambda request, rows: success(request, rows + 1),
    "another_writer": lambda request, rows: success(request, rows, grant_token_sha256="f" * 64),
    "says_more": lambda request, rows: success(request, rows) + b"\n",
    "says_it_twice": lambda request, rows: success(request, rows) * 2,
    "says_half": lambda request, rows: success(request, rows)[:-1],
}
AFTER_THE_ANSWER: dict[str, Callable[[], object]] = {
    "answers_and_hangs": hang,
    "leaves_a_child": leave_a_child,
    "answers_and_fails": lambda: sys.exit(3),
}


def nothing(*_: object) -> None:
    """What a child does that is told nothing else."""


def main(parent: int, secret: int, rows: int) -> int:
    if not end_with(parent):
        return 1
    request = messages.read(Kind.WRITE_REQUEST, BufferedReader(FileIO(0)))
    with BufferedReader(FileIO(secret)) as stream:
        messages.read(Kind.CREDENTIALS, stream)
    what = request["stage_name"]
    AT_THE_START.get(what, nothing)()
    if what == "refused":
        say(success(request, 0, **REFUSAL))
        return 0
    taken = Rows(BufferedReader(FileIO(rows)), request)
    for _ in taken.batches():
        IN_THE_COPY.get(what, nothing)()
    AT_THE_END.get(what, nothing)()
    say(ANSWERS.get(what, success)(request, taken.taken))
    AFTER_THE_ANSWER.get(what, nothing)()
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
