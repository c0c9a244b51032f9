"""The spool on a local file system: sealed chunk files of extractions.

``<spool>/<invocation_key>/<extraction_epoch>/<ordinal>.<sha256>.arrow``, directories 0700, files 0600. Native
rows end in ``.native``, with their format file ``.fmt`` beside them. A file has its final name only after its
bytes are on the disk; until then it is a ``.part``, which nobody reads. What survives a crash: sealed chunks,
and ``.part`` files, which the next writer of that chunk or a discard removes.

Every step below the spool's own directory goes through directory handles that follow no symbolic link.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType

import pyarrow as pa

from airflow_dpone.delivery.ports import ChunkSink, effect
from airflow_dpone.delivery.records import SealedChunk
from airflow_dpone.errors import DponeError, SpoolError
from airflow_dpone.host_identity import host_id as this_host
from airflow_dpone.spool.addresses import checked, sealed_files, sealed_name
from airflow_dpone.spool.chunk_file import NEW_FILE, ChunkFile, free_bytes, spool_error
from airflow_dpone.wire.chunk_format import ChunkFormat, read_chunk
from airflow_dpone.wire.types import WireLayout

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalSpool(AbstractContextManager["LocalSpool"]):
    """A :class:`~airflow_dpone.delivery.ports.SpoolPort` in one directory, which is made when it is needed.

    :param path: the spool's directory.
    :param host_id: who this host is; default: :func:`airflow_dpone.host_identity.host_id`.

    Two processes may use one spool: chunks of different epochs never share a name.
    """

    def __init__(self, path: str, *, host_id: str | None = None) -> None:
        self.path = os.path.abspath(path)
        self.host_id = host_id or this_host()

    def __enter__(self) -> LocalSpool:
        with self._root():
            return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def free_bytes(self) -> int:
        """Free space for an unprivileged user, of the file system that the spool is or will be on."""
        place = self.path
        while not os.path.isdir(place) and place != os.path.dirname(place):
            place = os.path.dirname(place)
        return free_bytes(place)

    @effect
    def begin(
        self,
        invocation_key: str,
        extraction_epoch: int,
        ordinal: int,
        layout: WireLayout,
        chunk_format: ChunkFormat = "arrow_ipc",
    ) -> ChunkSink:
        """Opens a new chunk; a ``.part`` that a dead process left behind is removed first."""
        path = self._epoch_path(invocation_key, extraction_epoch)
        with self._epoch_made(invocation_key, extraction_epoch) as epoch:
            return ChunkFile(os.dup(epoch), path, ordinal, layout, chunk_format)

    def verify(self, invocation_key: str, chunk: SealedChunk) -> None:
        """Hashes the sealed file again, and its format file.

        :raises SpoolError: it is missing, or not the bytes that were sealed; with ``path`` and ``ordinal``.
        """
        for name, file_bytes, sha256 in sealed_files(chunk):
            path = self.path_of(invocation_key, chunk, name)
            with self._opened(invocation_key, chunk, name) as fd, os.fdopen(os.dup(fd), "rb") as file:
                try:
                    size = os.fstat(fd).st_size
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                except OSError as error:
                    raise spool_error(error, path, ordinal=chunk.ordinal) from error
            if file_bytes is not None and size != file_bytes:
                raise damaged(path, chunk, f"has {size} bytes, {file_bytes} were sealed")
            if found != sha256:
                raise damaged(path, chunk, f"has the SHA-256 {found[:12]}..., {sha256[:12]}... was sealed")

    def read(self, invocation_key: str, chunk: SealedChunk, layout: WireLayout) -> Iterator[pa.RecordBatch]:
        """The chunk's batches. A broken form is a SpoolError; changed values only :meth:`verify` sees."""
        name = sealed_name(chunk)
        path = self.path_of(invocation_key, chunk, name)
        with self._opened(invocation_key, chunk, name) as fd, os.fdopen(os.dup(fd), "rb") as file:
            try:
                yield from read_chunk(chunk.chunk_format, file, layout, rows=chunk.rows)
            except SpoolError as error:
                fields = {**error.fields, "path": path, "ordinal": chunk.ordinal}
                raise SpoolError(error.code, f"{error.message} The file is {path}.", **fields) from error

    def adopt(self, invocation_key: str, chunk: SealedChunk, name: str, blocks: Iterable[bytes]) -> None:
        """Writes a copy of one file of a chunk that was sealed elsewhere; :meth:`verify` proves it."""
        path = self._epoch_path(invocation_key, chunk.extraction_epoch)
        with self._epoch_made(invocation_key, chunk.extraction_epoch) as epoch:
            part = f"{name}.{secrets.token_hex(8)}.part"
            try:
                with os.fdopen(os.open(part, NEW_FILE, 0o600, dir_fd=epoch), "wb") as file:
                    for block in blocks:
                        file.write(block)
                os.rename(part, name, src_dir_fd=epoch, dst_dir_fd=epoch)
            except FileNotFoundError:
                raise  # the blocks': there is nothing to copy
            except OSError as error:
                raise spool_error(error, os.path.join(path, part), ordinal=chunk.ordinal) from error
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=epoch)

    def drop(self, invocation_key: str, chunk: SealedChunk) -> None:
        """Removes the files of one chunk; gone already is fine."""
        path = self._epoch_path(invocation_key, chunk.extraction_epoch)
        with self._root() as root, self._errors(path), suppress(FileNotFoundError):
            with (
                _opened_directory(root, invocation_key) as invocation,
                _opened_directory(invocation, str(chunk.extraction_epoch)) as epoch,
            ):
                for name, _, _ in sealed_files(chunk):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=epoch)

    def path_of(self, invocation_key: str, chunk: SealedChunk, name: str) -> str:
        """Where one file of a chunk is."""
        return os.path.join(self._epoch_path(invocation_key, chunk.extraction_epoch), name)

    @effect
    def discard_epoch(self, invocation_key: str, extraction_epoch: int) -> None:
        """Removes every file of one extraction epoch; gone already is fine."""
        path = self._epoch_path(invocation_key, extraction_epoch)
        with self._root() as root, self._errors(path), suppress(FileNotFoundError):
            with _opened_directory(root, checked(invocation_key)) as invocation:
                _remove(invocation, str(int(extraction_epoch)))

    @effect
    def discard(self, invocation_key: str) -> None:
        """Removes every file of the invocation; gone already is fine."""
        with self._root() as root, self._errors(os.path.join(self.path, invocation_key)):
            _remove(root, checked(invocation_key))

    # ---- paths ------------------------------------------------------------------------------------------

    def _epoch_path(self, invocation_key: str, extraction_epoch: int) -> str:
        return os.path.join(self.path, checked(invocation_key), str(int(extraction_epoch)))

    @contextmanager
    def _root(self) -> Iterator[int]:
        """A handle of the spool's directory, which is made if it is not there."""
        with self._errors(self.path):
            os.makedirs(self.path, mode=0o700, exist_ok=True)
            root = os.open(self.path, _DIRECTORY)
            writable = bool(os.fstat(root).st_mode & stat.S_IWOTH)
        try:
            if writable:
                raise SpoolError(
                    "dpone.spool.unusable", f"Everybody may write to the spool {self.path!r}.", path=self.path
                )
            yield root
        finally:
            os.close(root)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise spool_error(error, path) from error

    @contextmanager
    def _epoch_made(self, invocation_key: str, extraction_epoch: int) -> Iterator[int]:
        """A handle of an epoch's directory, which is made if it is not there."""
        with self._root() as root, self._errors(self._epoch_path(invocation_key, extraction_epoch)):
            with _made(root, invocation_key) as invocation, _made(invocation, str(extraction_epoch)) as epoch:
                yield epoch

    @contextmanager
    def _opened(self, invocation_key: str, chunk: SealedChunk, name: str) -> Iterator[int]:
        """A handle of a sealed file."""
        path = self.path_of(invocation_key, chunk, name)
        try:
            with (
                self._root() as root,
                _opened_directory(root, invocation_key) as invocation,
                _opened_directory(invocation, str(chunk.extraction_epoch)) as epoch,
            ):
                fd = os.open(name, _OPEN_FILE, dir_fd=epoch)
        except FileNotFoundError:
            raise missing(path, chunk) from None
        except OSError as error:
            raise spool_error(error, path, ordinal=chunk.ordinal) from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise damaged(path, chunk, "is no ordinary file")
            yield fd
        finally:
            os.close(fd)


@contextmanager
def _opened_directory(parent: int, name: str) -> Iterator[int]:
    fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _made(parent: int, name: str) -> Iterator[int]:
    """A directory that is made if it is not there, and is on the disk before anything is put into it."""
    with suppress(FileExistsError):
        os.mkdir(checked(name), mode=0o700, dir_fd=parent)
        os.fsync(parent)
    with _opened_directory(parent, name) as fd:
        yield fd


def _remove(parent: int, name: str) -> None:
    """Removes a directory and what is in it, never what a link in it points to."""
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        shutil.rmtree(name, dir_fd=parent)
        os.fsync(parent)


def missing(path: str, chunk: SealedChunk) -> DponeError:
    """The error of a chunk that is not where it was sealed."""
    text = f"Sealed chunk {chunk.ordinal} is not there: {path}."
    return SpoolError("dpone.spool.missing", text, path=path, ordinal=chunk.ordinal)


def damaged(path: str, chunk: SealedChunk, what: str) -> DponeError:
    """The error of a chunk that is not the one that was sealed."""
    text = f"Sealed chunk {chunk.ordinal} {what}: {path}."
    return SpoolError("dpone.spool.damaged", text, path=path, ordinal=chunk.ordinal)
