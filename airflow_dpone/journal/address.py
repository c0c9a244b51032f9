"""Where a journal is: a file or a server's database. Whatever is shown of an address holds no password."""

from __future__ import annotations

import logging
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
POSTGRESQL_DRIVERS = ("postgresql", "postgresql+psycopg")
POSTGRESQL_PARAMETERS = frozenset(
    "application_name channel_binding connect_timeout gssencmode host options passfile port require_auth "
    "service sslcert sslcrl sslkey sslmode sslrootcert target_session_attrs".split()
)
"""What a URL or a connection's extras may say to libpq. How a session behaves is not among it: that is the
journal's to decide."""
_SEARCH_PATH = re.compile(r"-c ?search_path=[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True)
class JournalAddress(ABC):
    """A journal's address. ``str()`` is for messages; no form of it shows a password.

    :param conn_id: the Airflow connection that it came from: commands name that instead of the address.
    """

    conn_id: str | None = None

    @staticmethod
    def of(given: str | Path | JournalAddress) -> JournalAddress:
        """Reads a path, or a SQLAlchemy URL (anything with ``://``).

        Raises ConfigurationError: not a URL, another database, a database in memory, or a parameter that is
        not supported. The error never repeats the address.
        """
        if isinstance(given, JournalAddress):
            return given
        text = str(given)
        if "://" not in text:
            return SqliteFile(path=_absolute(text))
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            # Without its cause, which repeats the text.
            raise ConfigurationError("dpone.config.uri", "The journal's URL cannot be read.") from None
        backend = url.get_backend_name()
        if backend == "sqlite":
            return SqliteFile(path=_sqlite_path(url))
        if backend == "postgresql":
            return PostgresqlDatabase.checked(url)
        hint = "a journal is a path on a local disk, sqlite:////PATH or postgresql://HOST/DATABASE"
        raise ConfigurationError("dpone.config.uri", f"A journal on {backend} is not supported: {hint}.")

    @abstractmethod
    def __str__(self) -> str: ...

    def named(self, conn_id: str) -> JournalAddress:
        """The same address, said to come from an Airflow connection."""
        return replace(self, conn_id=conn_id)

    def migrate_command(self) -> str:
        """The command that creates or migrates this journal, for a shell."""
        here = f"--journal {shlex.quote(str(self))}"
        if self.conn_id is not None:
            here = f"--journal-conn-id {shlex.quote(self.conn_id)}"
        return f"python -m airflow_dpone db migrate {here}"


@dataclass(frozen=True, kw_only=True)
class SqliteFile(JournalAddress):
    """A SQLite file of one machine.

    :param path: absolute.
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, kw_only=True)
class PostgresqlDatabase(JournalAddress):
    """A database of a PostgreSQL server. The tables are in the first schema of the search path.

    :param url: host, port, user, database and libpq's parameters; a password that is not here comes from
        libpq: PGPASSFILE, PGPASSWORD, a service.
    """

    url: URL

    @classmethod
    def checked(cls, url: URL, *, conn_id: str | None = None) -> PostgresqlDatabase:
        """Raises ConfigurationError for what a journal cannot use; it names parameters, not their values."""
        if url.drivername not in POSTGRESQL_DRIVERS:
            raise _wrong(f"{url.drivername} is not supported; the driver is psycopg: use postgresql://")
        if "@" in f"{url.host or ''}{url.database or ''}{''.join(map(str, url.query.values()))}":
            raise _wrong("write '@', ':', '/', '?' and '%' inside a user or password percent-encoded")
        unknown = sorted(set(url.query) - POSTGRESQL_PARAMETERS)
        if unknown:
            known = ", ".join(sorted(POSTGRESQL_PARAMETERS))
            raise _wrong(f"the parameter {', '.join(unknown)} is not supported; there are {known}")
        _check_parameters(url)
        if not url.database and "service" not in url.query:
            raise _wrong("it names no database: postgresql://HOST/DATABASE")
        return cls(url=url.set(drivername="postgresql"), conn_id=conn_id)

    def __str__(self) -> str:
        url = self.url
        shown = URL.create(url.drivername, url.username, None, url.host, url.port, url.database, url.query)
        return shown.render_as_string()

    def __repr__(self) -> str:
        return f"PostgresqlDatabase({self})"


def holds_password(text: str) -> bool:
    """Whether a URL carries a password, also one that is refused for something else."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        return False
    return url.password is not None or "password" in url.query


def postgresql_address(
    *,
    host: str | None,
    port: int | None,
    user: str | None,
    password: str | None,
    database: str | None,
    parameters: Mapping[str, object],
    conn_id: str,
) -> PostgresqlDatabase:
    """The address that the fields of an Airflow connection name. Raises ConfigurationError."""
    query = {name: str(value) for name, value in parameters.items()}
    url = URL.create(
        "postgresql", user or None, password or None, host or None, port, database or None, query
    )
    return PostgresqlDatabase.checked(url, conn_id=conn_id)


def _check_parameters(url: URL) -> None:
    for name, value in url.query.items():
        if not isinstance(value, str):
            raise _wrong(f"the parameter {name} is given more than once")
    if (url.host or url.port) and {"host", "port"} & set(url.query):
        raise _wrong("it names host or port twice")
    if not str(url.query.get("host", "/")).startswith("/"):
        raise _wrong("the parameter host is for the directory of a Unix socket")
    if not _SEARCH_PATH.fullmatch(str(url.query.get("options", "-csearch_path=x"))):
        raise _wrong("the parameter options may only be -csearch_path=SCHEMA, one plain name")


def _wrong(text: str) -> ConfigurationError:
    return ConfigurationError("dpone.config.uri", f"The URL of the journal: {text}.")


def _absolute(text: str) -> Path:
    if text in ("", ":memory:"):
        raise ConfigurationError("dpone.config.uri", "A journal is a file: memory forgets.")
    return Path(text).expanduser().absolute()


def _sqlite_path(url: URL) -> Path:
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


def refuse_network_filesystem(file: SqliteFile) -> None:
    """Raises JournalError when the file is on a network file system; warns when that cannot be known."""
    kind = filesystem_of(file.path)
    if kind is None:
        log.warning("the file system of %s is not known: a SQLite journal needs a local disk", file.path)
    elif kind in NETWORK_FILESYSTEMS:
        text = f"The journal {file.path} is on a network file system ({kind}); its locks cannot be trusted."
        raise JournalError("dpone.journal.network_filesystem", text, path=str(file.path), filesystem=kind)
