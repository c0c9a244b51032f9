"""One place in an object store through Airflow's ``ObjectStoragePath``: put, look, read, remove.

The only module of the spool that imports Airflow, and only when a store is opened. It works on the path's
file system and not with ``ObjectStoragePath.open``, which reports every read and write as an asset of the
task: sealed chunks are nobody's lineage.

Tried on ``file://`` (a mounted directory) and in memory; other stores are UNVERIFIED.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_dpone.errors import DponeError, SpoolError
from airflow_dpone.spool.addresses import FILE_SCHEMES
from airflow_dpone.spool.chunk_file import NOT_OURS, spool_error

_BLOCK_BYTES = 1 << 20


class ObjectStore:
    """Objects below one URL.

    :param url: checked before, without a slash at the end. :param conn_id: the Airflow connection that holds
        the credentials; None for what the machine itself may do.
    :raises SpoolError: ``dpone.spool.unusable``: no provider for the scheme, no such connection, or a
        directory that everybody may write to; ``dpone.spool.store_failed``: the store did not answer.
    """

    def __init__(self, url: str, conn_id: str | None) -> None:
        self._url = url
        self._is_file = url.partition("://")[0] in FILE_SCHEMES
        self._fs, self._root = self._open(conn_id)
        if self._is_file:
            with self.errors(url):
                self._make_private()

    def _open(self, conn_id: str | None) -> tuple[Any, str]:
        from airflow.sdk import ObjectStoragePath
        from airflow.sdk.exceptions import AirflowNotFoundException

        try:
            base = ObjectStoragePath(self._url, conn_id=conn_id)
            return base.fs, str(base.path).rstrip("/")
        except (ValueError, ImportError, AirflowNotFoundException) as error:
            what = f"cannot be opened with the connection {conn_id!r}" if conn_id else "cannot be opened"
            hint = "; is the Airflow provider of its scheme installed?" if not self._is_file else ""
            text = f"The spool {self._url} {what} ({type(error).__name__}){hint}"
            raise SpoolError("dpone.spool.unusable", text, path=self._url) from error
        except Exception as error:
            raise _store_failed(self._url, error) from error

    def _make_private(self) -> None:
        try:
            os.makedirs(self._root, mode=0o700, exist_ok=True)
        except FileNotFoundError as error:
            raise spool_error(error, self._root) from error
        if os.stat(self._root).st_mode & stat.S_IWOTH:
            text = f"Everybody may write to the spool {self._url}."
            raise SpoolError("dpone.spool.unusable", text, path=self._url)

    def url_of(self, *names: str) -> str:
        """The address of an object, for messages."""
        return "/".join([self._url, *names])

    def put(self, local: str, *names: str) -> None:
        """One PUT of a whole local file. An object of that name is replaced."""
        with self.errors(self.url_of(*names)):
            key = self._key(names)
            if self._is_file:
                # Each by itself: os.makedirs gives its mode to the last one only.
                for depth in range(1, len(names)):
                    os.makedirs(self._key(names[:depth]), mode=0o700, exist_ok=True)
            try:
                self._fs.put_file(local, key)
            except FileNotFoundError as error:
                if not os.path.exists(local):
                    raise spool_error(OSError(errno.EIO, "x"), local) from error
                # No store has directories to miss: the bucket itself is not there.
                text = f"The bucket or directory of {self._url} does not exist."
                raise SpoolError("dpone.spool.unusable", text, path=self._url) from error
            if self._is_file:
                _make_durable(key)

    def size(self, *names: str) -> int:
        """Bytes of an object, by the store's own account.

        :raises FileNotFoundError: it is not there.
        """
        with self.errors(self.url_of(*names)):
            self._fs.invalidate_cache()
            return int(self._fs.info(self._key(names))["size"])

    def blocks(self, *names: str) -> Iterator[bytes]:
        """The bytes of an object.

        :raises FileNotFoundError: it is not there.
        """
        with self.errors(self.url_of(*names)), self._fs.open(self._key(names), "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield bytes(block)

    def remove(self, *names: str) -> None:
        """Removes everything below; gone already is fine."""
        with self.errors(self.url_of(*names)):
            self._fs.invalidate_cache()
            try:
                self._fs.rm(self._key(names), recursive=True)
            except FileNotFoundError:
                return

    def _key(self, names: tuple[str, ...]) -> str:
        return "/".join([self._root, *names])

    @contextmanager
    def errors(self, path: str) -> Iterator[None]:
        """Turns what a store's client raises into errors of ours. A missing object stays what it is."""
        place = path.partition("://")[2] if self._is_file else path
        try:
            yield
        except (DponeError, FileNotFoundError):
            raise
        except PermissionError as error:
            raise spool_error(_with_number(error), place) from error
        except OSError as error:
            known = self._is_file or error.errno in NOT_OURS
            raise (spool_error(error, place) if known else _store_failed(path, error)) from error
        except Exception as error:
            raise _store_failed(path, error) from error


def _with_number(error: PermissionError) -> OSError:
    """Clients of object stores raise it without a number."""
    return error if error.errno else PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _store_failed(path: str, error: Exception) -> DponeError:
    # The kind only: a client's own text may hold a signed URL or a key id.
    text = f"The object store did not do what was asked for {path} ({type(error).__name__})."
    return SpoolError("dpone.spool.store_failed", text, path=path)


def _make_durable(path: str) -> None:
    """A mounted directory is no store that answers when the bytes are safe."""
    os.chmod(path, 0o600)
    for place in (path, os.path.dirname(path)):
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
