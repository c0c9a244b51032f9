"""Where a journal is: its URL or path, the machine it belongs to, and the file system under it."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from airflow_dpone.errors import ConfigurationError, JournalError

log = logging.getLogger(__name__)

MOUNTS = Path("/proc/self/mountinfo")
NETWORK_FILESYSTEMS = frozenset(
    "9p afs beegfs ceph cifs glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 smb2 smb3 smbfs "
    "fuse.cephfs fuse.gcsfuse fuse.glusterfs fuse.goofys fuse.juicefs fuse.rclone fuse.s3fs "
    "fuse.sshfs".split()
)


@dataclass(frozen=True)
class JournalAddress:
    """A journal's address. In this version it is always a SQLite file.

    :param path: the absolute path of the file.
    """

    path: Path

    @classmethod
    def of(cls, url_or_path: str | Path) -> JournalAddress:
        """Reads a path, or a SQLAlchemy URL (anything with ``://``).

        Raises ConfigurationError: not a URL, another database, a database in memory, or URL parameters.
        """
        text = str(url_or_path)
        if "://" not in text:
            return cls(_absolute(text))
        try:
            url = make_url(text)
        except ArgumentError as error:
            raise ConfigurationError("dpone.config.uri", "The journal's URL cannot be read.") from error
        return cls(_sqlite_file(url))

    @property
    def shown(self) -> str:
        """For messages and commands: one word of a shell."""
        return shlex.quote(str(self.path))

    def migrate_command(self) -> str:
        """The command that creates or migrates this journal."""
        return f"python -m airflow_dpone db migrate --journal {self.shown}"


def _absolute(text: str) -> Path:
    if text in ("", ":memory:"):
        raise ConfigurationError("dpone.config.uri", "A journal is a file: memory forgets.")
    return Path(text).expanduser().absolute()


def _sqlite_file(url: URL) -> Path:
    if url.get_backend_name() == "postgresql":
        text = "A journal on PostgreSQL comes with a later version; use a path on a local disk."
        raise ConfigurationError("dpone.config.later", text)
    if url.get_backend_name() != "sqlite":
        text = f"A journal on {url.get_backend_name()} is not supported; use a path on a local disk."
        raise ConfigurationError("dpone.config.uri", text)
    if url.query or (url.database or "").startswith("file:"):
        text = (
            "The URL of a SQLite journal takes a path and no parameters: sqlite:////var/lib/dpone/journal.db"
        )
        raise ConfigurationError("dpone.config.uri", text)
    return _absolute(url.database or "")


def filesystem_of(path: Path) -> str | None:
    """The type of the file system that holds the path, by its longest mount point; None where nobody says."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = path.resolve()
    best, kind = -1, None
    for line in lines:
        head, _, tail = line.partition(" - ")
        fields, kinds = head.split(" "), tail.split(" ")
        mount = Path(_unescaped(fields[4])) if len(fields) > 4 else None
        # A later mount at the same point hides the earlier one, hence >=.
        if mount is not None and real.is_relative_to(mount) and len(mount.parts) >= best:
            best, kind = len(mount.parts), kinds[0]
    return kind


def _unescaped(mount: str) -> str:
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        mount = mount.replace(escape, character)
    return mount


def refuse_network_filesystem(address: JournalAddress) -> None:
    """Raises JournalError when the file is on a network file system; warns when that cannot be known."""
    kind = filesystem_of(address.path)
    if kind is None:
        log.warning("the file system of %s is not known: a SQLite journal needs a local disk", address.path)
    elif kind in NETWORK_FILESYSTEMS:
        text = (
            f"The journal {address.path} is on a network file system ({kind}); its locks cannot be trusted."
        )
        raise JournalError("dpone.journal.network_filesystem", text, path=str(address.path), filesystem=kind)
