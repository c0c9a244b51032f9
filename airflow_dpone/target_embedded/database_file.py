"""Opens a DuckDB file behind our own lock: one process at a time, and a sentence for whoever has to wait."""

from __future__ import annotations

import fcntl
import os

from airflow_dpone.embedded_lock import EmbeddedLock, EmbeddedLockBusy
from airflow_dpone.errors import ConfigurationError, DponeError, TargetBusy
from airflow_dpone.target_embedded.engine import duckdb
from airflow_dpone.target_embedded.error_map import mapped
from airflow_dpone.target_embedded.session import Session

_MAGIC = slice(8, 12)


class DatabaseFile:
    """The open file and its session.

    :param path: the file. :param lock_wait_sec: how long to wait for another process.
    :raises ConfigurationError: the file is missing, or is no DuckDB database that can be written.
    :raises TargetBusy: ``dpone.target.locked``: another process has it open.
    """

    def __init__(self, path: str, lock_wait_sec: float) -> None:
        if not os.path.isfile(path):
            raise ConfigurationError(
                "dpone.target.file_missing",
                f"There is no file {path}; a target is not created by a delivery.",
                path=path,
            )
        # The real path: two names of one file must meet at one lock.
        self._lock = EmbeddedLock(f"{os.path.realpath(path)}.dpone.lock", lock_wait_sec)
        _acquire(self._lock, path)
        try:
            self.session = _open_session(path)
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Closes file and lock; an open transaction is rolled back."""
        try:
            with mapped("closing the file"):
                self.session.close()
        finally:
            self._lock.release()


def _acquire(lock: EmbeddedLock, path: str) -> None:
    try:
        lock.__enter__()
    except EmbeddedLockBusy as busy:
        raise TargetBusy(
            "dpone.target.locked",
            f"{path} is in use by {busy.holder}; waited {lock.wait_sec:g} s.",
            path=path,
            holder=busy.holder_pid,
        ) from None
    except OSError as error:
        raise ConfigurationError(
            "dpone.target.file_unusable",
            f"The lock file beside {path} cannot be opened (error {error.errno}).",
            path=path,
        ) from None


def _open_session(path: str) -> Session:
    try:
        connection = duckdb.connect(path)
    except duckdb.ConnectionException:
        text = f"{path} is open in this process, by code that is not ours, with other settings."
        raise TargetBusy("dpone.target.locked", text, path=path, holder=os.getpid()) from None
    except duckdb.Error:
        raise _why_not_open(path) from None
    with mapped(f"setting up the session on {path}"):
        return Session.pinned(connection)


def _why_not_open(path: str) -> DponeError:
    """DuckDB has one class for all of it, so the file itself is asked.

    Only after a failed open: closing a second handle of a file gives up all locks that this process has on
    it.
    """
    try:
        with open(path, "r+b") as file:
            if file.read(12)[_MAGIC] != b"DUCK":
                return ConfigurationError(
                    "dpone.target.not_a_database", f"{path} is no DuckDB database.", path=path
                )
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = f"{path} is open in a process that does not take our lock."
        return TargetBusy("dpone.target.locked", text, path=path, holder=None)
    except OSError as error:
        text = f"{path} cannot be opened for writing (error {error.errno})."
        return ConfigurationError("dpone.target.file_unusable", text, path=path)
    text = f"DuckDB {duckdb.__version__} cannot open {path}: it is damaged, or of another version."
    return ConfigurationError("dpone.target.file_unusable", text, path=path)
