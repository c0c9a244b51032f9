"""One chunk file while it is written: hashed on the way, on the disk before it gets its name."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Any

import pyarrow as pa

from airflow_dpone.errors import CapacityError, DponeError, SpoolError
from airflow_dpone.wire.sealed import SealedWriter
from airflow_dpone.wire.types import WireLayout

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_OURS = frozenset(
    {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST}
)


def free_bytes(path: str) -> int:
    """Free space for an unprivileged user on the file system of a path."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def spool_error(error: OSError, path: str, **fields: Any) -> DponeError:
    """The error of ours for an error of the file system, by its number."""
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.errno in _NO_ROOM:
        free = -1
        with suppress(OSError):
            free = free_bytes(path if os.path.isdir(path) else os.path.dirname(path))
        text = f"No room for {path} ({reason}); its file system has {free} bytes free."
        return CapacityError("dpone.spool.full", text, path=path, free_bytes=free, **fields)
    code = "dpone.spool.unusable" if error.errno in _NOT_OURS else "dpone.spool.io"
    return SpoolError(code, f"The spool cannot use {path} ({reason}).", path=path, **fields)


class ChunkFile:
    """A :class:`~airflow_dpone.delivery.ports.ChunkSink`: ``<ordinal>.part`` until :meth:`seal`.

    :param directory: handle of the epoch's directory; this object closes it.
    :param path: the same directory in words, for messages.
    """

    def __init__(self, directory: int, path: str, ordinal: int, layout: WireLayout) -> None:
        self._directory, self._fd = directory, -1
        self._ordinal = ordinal
        self._part = f"{ordinal:06d}.part"
        self._path = os.path.join(path, self._part)
        try:
            # A writer that died left it, or a fenced one still writes to it: that one keeps its own file.
            with suppress(FileNotFoundError):
                os.unlink(self._part, dir_fd=directory)
            self._fd = os.open(self._part, _NEW_FILE, 0o600, dir_fd=directory)
            self._writer = SealedWriter(_Descriptor(self._fd), layout)
        except OSError as error:
            self._close()
            raise self._error(error) from error
        except BaseException:
            self._close()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows. A full disk is a CapacityError; after any error only :meth:`discard` is left."""
        try:
            self._writer.write(batch)
        except OSError as error:
            raise self._error(error) from error

    def seal(self) -> tuple[int, str]:
        """Ends the file, syncs it and its directory, gives it its name.

        :return: bytes and hex SHA-256 of the file.
        :raises SpoolError: somebody else took the ``.part`` meanwhile; nothing was renamed.
        """
        try:
            self._writer.close()
            os.fsync(self._fd)
            self._check_still_ours()
            sha256 = self._writer.sha256
            name = f"{self._ordinal:06d}.{sha256}.arrow"
            os.rename(self._part, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            os.fsync(self._directory)
        except OSError as error:
            raise self._error(error) from error
        self._close()
        return self._writer.size_bytes, sha256

    def discard(self) -> None:
        """Removes what was written; after :meth:`seal`, or a second time, it does nothing."""
        if self._directory < 0:
            return
        try:
            if self._is_ours():
                os.unlink(self._part, dir_fd=self._directory)
        except OSError as error:
            raise self._error(error) from error
        finally:
            self._close()

    def _is_ours(self) -> bool:
        try:
            found = os.stat(self._part, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._fd))

    def _check_still_ours(self) -> None:
        if not self._is_ours():
            raise SpoolError(
                "dpone.spool.io",
                f"Another process took {self._path} while this one wrote it.",
                path=self._path,
                ordinal=self._ordinal,
            )

    def _error(self, error: OSError) -> DponeError:
        return spool_error(error, self._path, ordinal=self._ordinal)

    def _close(self) -> None:
        for fd in (self._fd, self._directory):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        self._fd = self._directory = -1

    def __del__(self) -> None:
        self._close()


class _Descriptor:
    """What :class:`~airflow_dpone.wire.sealed.SealedWriter` writes to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes | memoryview, /) -> int:
        return os.write(self._fd, data)
