"""The starting side of a writer process: it is fed, watched by one deadline, and always reaped.

A new interpreter in a process group of its own, as for encoding (``wire.encoder_process``). It inherits four
pipes and nothing else. What it prints is bounded: of its answer a frame's bytes, of its standard error
nothing is kept. The thread that makes a :class:`WriterProcess` ends it before it goes on, so it outlives it:
the kernel ends a child when the *thread* that started it ends.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from typing import IO, cast

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.wire.child_process import child_environment

TERM_SEC, KILL_SEC = 1.0, 5.0
"""How long a process has to go after SIGTERM, and after SIGKILL; this much a call may pass its deadline."""

_POLL_SEC = 0.2  # how soon a cancelled work is noticed
_BLOCK_BYTES = 1 << 16


class OutOfTime(Exception):
    """The deadline passed."""


class ProcessLost(Exception):
    """It does not take what it is sent any more."""


class TooMuchSaid(Exception):
    """It said more than an answer can have."""


class WriterProcess:
    """One process ``python -m module PID SECRET ROWS``; SECRET and ROWS are the numbers of two pipes.

    :param module: what runs there.
    :param answer_bytes: the longest answer.
    :raises OSError: it could not be started.
    """

    def __init__(self, module: str, *, answer_bytes: int, deadline: Deadline) -> None:
        self._deadline, self._answer_bytes = deadline, answer_bytes
        self._answer = bytearray()
        secret, self._secret = os.pipe()
        rows, self._rows = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(os.getpid()), str(secret), str(rows)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(secret, rows),
                env=child_environment(),
                start_new_session=True,
                bufsize=0,
            )
        except OSError:
            self._close(self._secret, self._rows)
            raise
        finally:
            self._close(secret, rows)
        self._request, self._out, self._err = (
            cast("IO[bytes]", pipe).fileno()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
        )
        self._reading = {self._out, self._err}
        self._exit = -1
        try:
            self._exit = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            self._close_all()
            raise
        for pipe in (self._request, self._secret, self._rows, self._out, self._err):
            os.set_blocking(pipe, False)

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        return self._process.pid

    def request(self, data: bytes) -> None:
        """Sends the whole of its standard input, and ends it. Raises as :meth:`rows`."""
        self._send(self._request, data)
        self._process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        self._request = -1

    def secret(self, data: bytes) -> None:
        """Sends the whole of the secret pipe, and ends it. Raises as :meth:`rows`."""
        self._send(self._secret, data)
        self._close(self._secret)
        self._secret = -1

    def rows(self, data: bytes | memoryview) -> None:
        """Sends bytes of the rows; waits as long as it does not take them.

        :raises OutOfTime: the deadline passed. :raises ProcessLost: it has closed the pipe, or ended.
        :raises TooMuchSaid: it said more than an answer can have.
        :raises DponeError: the work was cancelled.
        """
        self._send(self._rows, data)

    def answer(self) -> bytes:
        """Ends the rows, waits until it has ended, and gives what it said; b"" if it did not end well.

        :raises OutOfTime: :raises TooMuchSaid: :raises DponeError: as :meth:`rows`.
        """
        self._close(self._rows)
        self._rows = -1
        while self._out in self._reading or not self._has_ended(0.0):
            self._turn()
        ended = os.waitid(os.P_PIDFD, self._exit, os.WEXITED | os.WNOWAIT)
        well = ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)
        return bytes(self._answer) if well else b""

    def end(self) -> bool:
        """Ends its whole group and reaps it; False if it does not go. May be called twice."""
        if self._exit < 0:
            return self._process.returncode is not None
        for number, patience in ((signal.SIGTERM, TERM_SEC), (signal.SIGKILL, KILL_SEC)):
            if not self._has_ended(0.0):
                self._signal(number)
                self._has_ended(patience)
        gone = self._has_ended(0.0)
        self._signal(signal.SIGKILL)  # what it may have started; the group is there until it is reaped
        if gone:
            self._process.wait()
        self._close_all()
        return gone

    def _close_all(self) -> None:
        self._close(self._secret, self._rows, self._exit)
        self._secret = self._rows = self._exit = -1
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            with suppress(OSError):
                cast("IO[bytes]", pipe).close()

    def _send(self, pipe: int, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            if pipe not in self._turn(pipe):
                continue
            try:
                rest = rest[os.write(pipe, rest[:_BLOCK_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise ProcessLost from None

    def _turn(self, writing: int | None = None) -> set[int]:
        """Waits a moment for any of its pipes or its end, and takes what it says; gives what is ready."""
        remaining = self._deadline.remaining_sec()
        if remaining <= 0:
            raise OutOfTime
        waiting = select.poll()
        for pipe in self._reading:
            waiting.register(pipe, select.POLLIN)
        if writing is None:
            waiting.register(self._exit, select.POLLIN)
        else:
            waiting.register(writing, select.POLLOUT)
        ready = {pipe for pipe, _ in waiting.poll(min(remaining, _POLL_SEC) * 1000)}
        for pipe in ready & self._reading:
            self._take(pipe)
        if writing is None and self._exit in ready and not ready & self._reading:
            self._reading.clear()  # it has ended; somebody else holds its output open
        return ready

    def _take(self, pipe: int) -> None:
        data = os.read(pipe, _BLOCK_BYTES)
        if not data:
            self._reading.discard(pipe)
        elif pipe == self._out:
            self._answer += data
            if len(self._answer) > self._answer_bytes:
                raise TooMuchSaid

    def _has_ended(self, patience: float) -> bool:
        waiting = select.poll()
        waiting.register(self._exit, select.POLLIN)
        return bool(waiting.poll(patience * 1000))

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    @staticmethod
    def _close(*pipes: int) -> None:
        for pipe in pipes:
            if pipe >= 0:
                os.close(pipe)
