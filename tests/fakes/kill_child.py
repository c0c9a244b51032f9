"""A child process that delivers once and sends itself a signal at one crash point.

    python -m tests.fakes.kill_child DIRECTORY SIGNAL INDEX REQUESTER
    python -m tests.fakes.kill_child serve

DIRECTORY is a :class:`~tests.fakes.world.World`, INDEX counts the crash points from 0 (-1: none) or is
``POINT:N``, that point for the Nth time; REQUESTER is JSON. The last line of standard output is the result's
JSON, or ``{"error": code, "state_after": ...}``.

:func:`run_child` is what a test calls; it works for any module with the same command line. ``serve`` is for a
matrix: it imports everything once and forks for each line of standard input, before it has opened anything.
An engine that survives no fork is never served like that.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MODULE = "tests.fakes.kill_child"
ANSWER_SEC = 300
"""How long a child may take: a server's stand-in on a busy machine is slow."""
ROOT = Path(__file__).resolve().parents[2]


class SignalAt:
    """An observer that sends this process a signal when that crash point is passed."""

    def __init__(self, index: int | str, number: int) -> None:
        self._index, self._number = str(index), number
        self.passed: list[str] = []

    def __call__(self, point: str) -> None:
        """Notes the point, and does it. Several threads may pass points."""
        self.passed.append(str(point))
        if self._index in (str(len(self.passed) - 1), f"{point}:{self.passed.count(str(point))}"):
            os.kill(os.getpid(), self._number)


def start_child(
    directory: Path, number: int, index: int | str, who: dict[str, Any] | None = None, *, module: str = MODULE
) -> subprocess.Popen[str]:
    """Starts the child; the caller waits for it."""
    command = [sys.executable, "-m", module, str(directory), str(int(number)), str(index)]
    return subprocess.Popen(
        [*command, json.dumps(who or {})], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def wait_until_stopped(child: subprocess.Popen[str]) -> None:
    """Returns when the child has stopped itself. Raises RuntimeError when it ended instead."""
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        child.returncode = os.waitstatus_to_exitcode(status)
        raise RuntimeError(f"the child ended with {child.returncode}: {child.communicate()[1]}")


def answer_of(child: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for the child's end and reads what it said. Raises RuntimeError when it said nothing."""
    out, errors = child.communicate(timeout=ANSWER_SEC)
    if not out.strip():
        raise RuntimeError(f"the child ended with {child.returncode} and said nothing: {errors}")
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    return answer


def run_child(directory: Path, index: int, *, module: str = MODULE) -> int:
    """Runs a child that kills itself at the point of that index; returns its exit code, mostly -SIGKILL."""
    child = start_child(directory, signal.SIGKILL, index, module=module)
    child.communicate(timeout=ANSWER_SEC)
    return int(child.returncode)


class KillServer:
    """A warm process that forks one child for each :meth:`run`."""

    def __init__(self, module: str = MODULE) -> None:
        command = [sys.executable, "-m", module, "serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def __enter__(self) -> KillServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def run(self, directory: Path, index: int) -> int:
        """As :func:`run_child`."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the server has no pipes")
        self._process.stdin.write(
            json.dumps([str(directory), str(int(signal.SIGKILL)), str(index), "{}"]) + "\n"
        )
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def serve(open_world: Callable[[Path], Any]) -> int:
    """One fork for each line; answers with the child's exit code."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            sys.stdout = open(os.devnull, "w")
            os._exit(deliver_once(json.loads(line), open_world))
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    return 0


def deliver_once(arguments: Sequence[str], open_world: Callable[[Path], Any]) -> int:
    """Delivers, and says what came of it."""
    from airflow_dpone.errors import DponeError
    from tests.fakes.world import requester

    directory, number, index, who = arguments
    observer = SignalAt(index, int(number))
    try:
        result = open_world(Path(directory)).deliver(requester(**json.loads(who)), observer=observer)
    except DponeError as error:
        sys.stdout.write(json.dumps({"error": error.code, "state_after": error.state_after}) + "\n")
        return 1
    sys.stdout.write(json.dumps(result.to_json()) + "\n")
    return 0


def main(open_world: Callable[[Path], Any]) -> int:
    """For the arguments above."""
    arguments = sys.argv[1:]
    return serve(open_world) if arguments == ["serve"] else deliver_once(arguments, open_world)


if __name__ == "__main__":
    from tests.fakes.world import World  # loaded before the forks

    sys.exit(main(World))
