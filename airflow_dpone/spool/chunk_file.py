"""One chunk file while it is written: hashed on the way, on the disk before it gets its name."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from typing import Any

import pyarrow as pa

from airflow_dpone.errors import CapacityError, DponeError, SpoolError
from airflow_dpone.wire.chunk_format import (
    FORMAT_FILE_SUFFIX,
    SUFFIXES,
    ChunkFormat,
    format_file_of,
    new_writer,
)
from airflow_dpone.wire.types import WireLayout

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NOT_OURS = frozenset(
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
    code = "dpone.spool.unusable" if error.errno in NOT_OURS else "dpone.spool.io"
    return SpoolError(code, f"The spool cannot use {path} ({reason}).", path=path, **fields)


class ChunkFile:
    """A :class:`~airflow_dpone.delivery.ports.ChunkSink`: ``<ordinal>.part`` until :meth:`seal`.

    :param directory: handle of the epoch's directory; this object closes it.
    :param path: the same directory in words, for messages.
    :param chunk_format: what is written; a chunk of native rows gets a format file beside it.
    """

    def __init__(
        self, directory: int, path: str, ordinal: int, layout: WireLayout, chunk_format: ChunkFormat
    ) -> None:
        self._directory, self._fd = directory, -1
        self._ordinal, self._suffix = ordinal, SUFFIXES[chunk_format]
        self._format_file = format_file_of(chunk_format, layout)
        self.format_file_sha256 = _sha256(self._format_file)
        self._part = f"{ordinal:06d}.part"
        self._beside: str | None = None
        self._path = os.path.join(path, self._part)
        try:
            # A writer that died left it, or a fenced one still writes to it: that one keeps its own file.
            with suppress(FileNotFoundError):
                os.unlink(self._part, dir_fd=directory)
            self._fd = os.open(self._part, NEW_FILE, 0o600, dir_fd=directory)
            self._writer = new_writer(chunk_format, _Descriptor(self._fd), layout)
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
            name = f"{self._ordinal:06d}.{sha256}.{self._suffix}"
            if self._format_file is not None:
                # First, so that there is no moment at which a sealed chunk lacks it.
                self._write_beside(f"{self._ordinal:06d}.{sha256}.{FORMAT_FILE_SUFFIX}", self._format_file)
            os.rename(self._part, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            os.fsync(self._directory)
        except OSError as error:
            raise self._error(error) from error
        self._close()
        return self._writer.size_bytes, sha256

    def _write_beside(self, name: str, data: bytes) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._directory)
        fd = os.open(name, NEW_FILE, 0o600, dir_fd=self._directory)
        try:
            self._beside = name
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(data)
            os.fsync(fd)
        finally:
            os.close(fd)

    def discard(self) -> None:
        """Removes what was written; after :meth:`seal`, or a second time, it does nothing."""
        if self._directory < 0:
            return
        try:
            if self._is_ours():
                os.unlink(self._part, dir_fd=self._directory)
                if self._beside is not None:
                    os.unlink(self._beside, dir_fd=self._directory)
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


def _sha256(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()


class _Descriptor:
    """What the writer of a chunk writes to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes | memoryview, /) -> int:
        return os.write(self._fd, data)
