"""One user at a time for an embedded engine: an advisory lock on a file beside its data.

The lock is the kernel's (``flock``): it ends with the process that holds it, however that process ends, so it
never has to be cleaned up. Children do not inherit it. The file stays; it holds the process id of its
newest holder, for messages only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from contextlib import AbstractContextManager, suppress
from types import TracebackType

_POLL_SEC = 0.02
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_held: dict[tuple[int, int], EmbeddedLock] = {}


class EmbeddedLockBusy(OSError):
    """The lock is held by somebody else.

    :param path: the lock file.
    :param holder_pid: the holder as far as the file tells, or None; our own id when this process holds it.
    """

    def __init__(self, path: str, holder_pid: int | None) -> None:
        self.path = path
        self.holder_pid = holder_pid
        super().__init__(errno.EWOULDBLOCK, f"the lock is held by {self.holder}", path)

    @property
    def is_own(self) -> bool:
        """Whether the holder is this very process."""
        return self.holder_pid == os.getpid()

    @property
    def holder(self) -> str:
        """The holder in words, for a message."""
        if self.is_own:
            return f"this process ({self.holder_pid})"
        return "a process of unknown id" if self.holder_pid is None else f"process {self.holder_pid}"

    def __reduce__(self) -> tuple[type[EmbeddedLockBusy], tuple[str, int | None]]:
        return EmbeddedLockBusy, (self.path, self.holder_pid)


class EmbeddedLock(AbstractContextManager["EmbeddedLock"]):
    """Holds ``path`` exclusively inside ``with``; the file is made with mode 0600, its directory must exist.

    :param path: the lock file, e.g. ``<engine's directory>/dpone.lock``.
    :param wait_sec: how long to wait for another holder; 0 asks once.
    :raises EmbeddedLockBusy: still held after that time; at once if the calling thread is the holder itself.
    :raises OSError: the file cannot be opened.

    One object may be entered again after it was left, not while it is held.
    """

    def __init__(self, path: str, wait_sec: float) -> None:
        self.path = path
        self.wait_sec = wait_sec
        self._fd: int | None = None
        self._key: tuple[int, int] | None = None
        self._thread: int | None = None

    def __enter__(self) -> EmbeddedLock:
        if self._fd is not None:
            raise EmbeddedLockBusy(self.path, os.getpid())
        give_up = time.monotonic() + self.wait_sec
        while not self._try():
            if self._is_own_thread() or time.monotonic() >= give_up:
                raise EmbeddedLockBusy(self.path, self._holder_pid())
            time.sleep(min(_POLL_SEC, max(0.0, give_up - time.monotonic())))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Gives the lock back; doing so twice is fine."""
        fd, self._fd = self._fd, None
        if fd is None:
            return
        if self._key is not None:
            _held.pop(self._key, None)
        with suppress(OSError):
            os.ftruncate(fd, 0)
        fcntl.flock(fd, fcntl.LOCK_UN)  # closing alone would wait for a child that was forked meanwhile
        os.close(fd)

    def _try(self) -> bool:
        fd = os.open(self.path, _FLAGS, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = self._is_current(fd)
        except BlockingIOError:
            locked = False
        except BaseException:
            os.close(fd)
            raise
        if not locked:
            os.close(fd)
            return False
        self._take(fd)
        return True

    def _is_current(self, fd: int) -> bool:
        """Whether the path still means this file: somebody may have removed it while we opened it."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _take(self, fd: int) -> None:
        status = os.fstat(fd)
        self._fd, self._key = fd, (status.st_dev, status.st_ino)
        self._thread = threading.get_ident()
        _held[self._key] = self
        with suppress(OSError):  # the id is a courtesy: a full disk must not refuse the lock
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def _is_own_thread(self) -> bool:
        holder = self._own_holder()
        return holder is not None and holder._thread == threading.get_ident()

    def _own_holder(self) -> EmbeddedLock | None:
        try:
            status = os.lstat(self.path)
        except OSError:
            return None
        return _held.get((status.st_dev, status.st_ino))

    def _holder_pid(self) -> int | None:
        if self._own_holder() is not None:
            return os.getpid()
        try:
            with open(self.path, "rb") as file:
                text = file.read(32).strip()
        except OSError:
            return None
        return int(text) if text.isdigit() else None


def _forget_in_child() -> None:
    """After a fork the child closes its copies, or the lock would live as long as the child does."""
    for lock in _held.values():
        fd, lock._fd = lock._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)
