"""Which process owns a lease, and whether it is gone. Liveness only: safety is the fence.

A process is known by its host, its number and its start time: numbers are used again. Whatever cannot be
known counts as alive, and costs no more than waiting for the lease to expire.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class OwnerProcess:
    """A process.

    :param host: the machine, this start of it, and the namespace of its process numbers; only within one host
        text do the numbers mean anything. :param started: start time in the kernel's ticks, None where not
        known.
    """

    host: str
    pid: int
    started: str | None

    @classmethod
    def current(cls, host_id: str) -> OwnerProcess:
        """The calling process."""
        pid = os.getpid()
        host = " ".join([host_id, _boot_id(), _pid_namespace()]).strip()
        return cls(host, pid, _state_and_start(pid)[1])

    def is_gone(self, here: OwnerProcess) -> bool:
        """Whether this process certainly has ended, as seen from ``here``; False when it cannot be known."""
        if self.host != here.host:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # it exists and is somebody else's
        state, started = _state_and_start(self.pid)
        # A killed process stays as a zombie until its parent looks; it writes nothing any more.
        return state in ("Z", "X") or (None not in (started, self.started) and started != self.started)


def _state_and_start(pid: int) -> tuple[str | None, str | None]:
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None, None
    # Field 2 is the program's name in parentheses and may contain anything; field 3 is the state, field 22
    # the start.
    fields = text.rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else (None, None)


def _boot_id() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink(PROC / "self/ns/pid")
    except OSError:
        return ""
