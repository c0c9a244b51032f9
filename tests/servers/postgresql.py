"""A PostgreSQL server of the tests' own: started, restarted, crashed and thrown away with its directory.

    python -m tests.servers.postgresql      # exit code 0, or it says what is missing here

It listens on 127.0.0.1 only, on a free port, with passwords. The server's programs refuse to run as root; for
root they run as ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
from sqlalchemy import URL

from airflow_dpone.journal.tables import metadata

ADMIN, ROLE = "admin", "dpone"
PASSWORDS = {ADMIN: "admin", ROLE: "p@ss:w/rd %41?"}
"""The role owns its databases and is no superuser. Its password needs every kind of quoting."""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "log_min_messages": "warning",
}
START_SEC = 60.0


def programs() -> Path | None:
    """The directory of the newest server: by pg_config, by PATH, or where Debian and Red Hat put it."""
    asked = shutil.which("pg_config")
    told = ""
    if asked is not None:
        told = subprocess.run([asked, "--bindir"], capture_output=True, text=True, check=False).stdout.strip()
    found = [*Path("/usr").glob("lib/postgresql/*/bin"), *Path("/usr").glob("pgsql-*/bin")]
    found.sort(key=lambda path: float(path.parent.name.rpartition("-")[2]), reverse=True)
    candidates = [*([Path(told)] if told else []), *found]
    candidates += [Path(name) for name in os.environ.get("PATH", "").split(os.pathsep) if name]
    for folder in candidates:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres", "psql")):
            return folder
    return None


def missing() -> str | None:
    """What keeps a server from running here, or None."""
    if programs() is None:
        return "the programs initdb, postgres and psql of PostgreSQL 13 or newer"
    if os.geteuid() == 0 and _other_user() is None:
        return "a user besides root, which PostgreSQL refuses"
    return None


class PostgresqlServer:
    """A server with a data directory of its own. It runs when it was made, and is gone after the ``with``.

    :param settings: of the server, over ``SETTINGS``.
    :param data: a data directory to run on, instead of a new one; it becomes this server's own.
    """

    def __init__(self, settings: dict[str, str] | None = None, *, data: Path | None = None) -> None:
        self._settings = SETTINGS | (settings or {})
        self._user = _other_user() if os.geteuid() == 0 else None
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._template: str | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="dpone-postgresql-"))
        self.log = self.folder / "log"
        self.data = self.folder / "data"
        self.port = _free_port()
        try:
            if data is None:
                self._initdb()
            else:
                shutil.copytree(data, self.data)
            self._give_away()
            self.start()
            if data is None:
                self.admin(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORDS[ROLE]}'")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PostgresqlServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- the server ----------------------------------------------------------------------------------------

    def start(self, **settings: str) -> None:
        """Starts it and waits until it answers, also after a crash. ``settings`` hold until it stops."""
        chosen = self._settings | {"port": str(self.port)} | settings
        words = [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
        command = [str(_here() / "postgres"), "-D", str(self.data), *words]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **self._as_user()
            )
        deadline = time.monotonic() + START_SEC
        while True:
            try:
                self.connect(autocommit=True).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL did not start: {self.log.read_text()[-2000:]}") from None
                time.sleep(0.05)

    def stop(self) -> None:
        """The orderly way, without waiting for clients: their transactions are rolled back."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """No goodbye and no checkpoint: ``pg_ctl stop -m immediate``."""
        self._end(signal.SIGQUIT)

    def restart(self, **settings: str) -> None:
        """Stops and starts it, on the same port."""
        self.stop()
        self.start(**settings)

    def close(self) -> None:
        """Ends the server and removes its directory."""
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)

    def standby(self) -> PostgresqlServer:
        """A second server, made of a cold copy, that only follows: it answers, but takes no writes."""
        self.stop()
        try:
            copy = self.folder / "copy"
            shutil.copytree(self.data, copy)
            (copy / "standby.signal").touch()
            return PostgresqlServer(self._settings, data=copy)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
            self.start()

    # ---- databases -----------------------------------------------------------------------------------------

    def new_database(self, *, migrated: bool = True) -> str:
        """The URL of a new database, password included; ``migrated`` ones are copies of one journal."""
        if not migrated:
            return self._create("")
        if self._template is None:
            from airflow_dpone.journal.migrate import migrate

            url = self._create("")
            migrate(url)
            self._template = url.rpartition("/")[2]
        return self._create(f"TEMPLATE {self._template}")

    def url(self, database: str, *, user: str = ROLE, password: str | None = None, **more: Any) -> str:
        """A SQLAlchemy URL; without ``password`` the right one."""
        made = URL.create(
            "postgresql",
            user,
            PASSWORDS[user] if password is None else password,
            "127.0.0.1",
            self.port,
            database,
            more,
        )
        return made.render_as_string(hide_password=False)

    def connect(self, database: str = "postgres", user: str = ADMIN, **more: Any) -> psycopg.Connection[Any]:
        """A connection of the driver itself."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            dbname=database,
            user=user,
            password=PASSWORDS[user],
            connect_timeout=5,
            **more,
        )

    def admin(self, statement: str, database: str = "postgres") -> list[Any]:
        """One statement of the superuser, committed; its rows."""
        with contextlib.closing(self.connect(database, autocommit=True)) as connection:
            cursor = connection.execute(statement)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def empty(self, url: str) -> None:
        """The journal of a URL as if nothing had been written yet, whoever is connected to it."""
        database = url.rpartition("/")[2]
        mine = f"datname = '{database}' AND pid <> pg_backend_pid()"
        self.admin(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")
        written = [table.name for table in metadata.sorted_tables if table.name != "dpone_journal"]
        self.admin(f"TRUNCATE {', '.join(written)}", database)

    def drop(self, url: str) -> None:
        """Drops the database of a URL, whoever is connected to it."""
        self.admin(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def _create(self, rest: str) -> str:
        name = f"journal_{next(self._names)}"
        self.admin(f"CREATE DATABASE {name} OWNER {ROLE} {rest}")
        return self.url(name)

    # ---- its process ---------------------------------------------------------------------------------------

    def _initdb(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORDS[ADMIN])
        self._give_away()
        command = [str(_here() / "initdb"), "-D", str(self.data), "-U", ADMIN, f"--pwfile={secret}"]
        command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd="/", check=False, **self._as_user()
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr}")

    def _give_away(self) -> None:
        if self._user is not None:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, self._user.pw_uid, self._user.pw_gid)

    def _as_user(self) -> dict[str, Any]:
        environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}
        if self._user is None:
            return {"env": environment}
        return {
            "env": environment,
            "user": self._user.pw_uid,
            "group": self._user.pw_gid,
            "extra_groups": [],
        }

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None


def _here() -> Path:
    folder = programs()
    if folder is None:
        raise RuntimeError(f"missing: {missing()}")
    return folder


def _other_user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    if (lack := missing()) is not None:
        sys.exit(lack)
