"""One ODBC connection: which driver, and the text that says where, with every value escaped."""

from __future__ import annotations

import platform
import struct
from importlib.resources import files
from pathlib import Path

import pyodbc

from airflow_dpone.errors import ConfigurationError
from airflow_dpone.target_sqlserver.connection import FORCED, SqlServerConnection

# A pooled session keeps application locks and settings of whoever had it before; must be said before the
# first connection of the process.
pyodbc.pooling = False

_ACCESS_TOKEN = 1256
"""SQL_COPT_SS_ACCESS_TOKEN of Microsoft's driver."""
_DRIVERS = ("ODBC Driver 18 for SQL Server", "ODBC Driver 17 for SQL Server")


def connect(where: SqlServerConnection, *, application: str, login_timeout_sec: int) -> pyodbc.Connection:
    """A new connection, autocommit on: transactions are inside our batches and nowhere else.

    Raises pyodbc.Error, or ConfigurationError ``dpone.target.driver_missing``.
    """
    attributes = {_ACCESS_TOKEN: _token(where.access_token)} if where.access_token else {}
    return pyodbc.connect(
        connection_string(where, driver=where.driver or find_driver(), application=application),
        autocommit=True,
        timeout=login_timeout_sec,
        attrs_before=attributes,
    )


def connection_string(where: SqlServerConnection, *, driver: str, application: str) -> str:
    """ODBC's text for a connection; our own options stand last and once."""
    parts = {
        "DRIVER": driver,
        "SERVER": f"tcp:{where.address}",
        "DATABASE": where.database,
        "Encrypt": where.encrypt,
        "TrustServerCertificate": "yes" if where.trust_server_certificate else "no",
        "APP": application[:128],
    }
    if not where.access_token:
        parts |= {"UID": where.user, "PWD": where.password}
    if where.host_name_in_certificate:
        parts["HostNameInCertificate"] = where.host_name_in_certificate
    return ";".join(f"{name}={escaped(value)}" for name, value in (parts | dict(FORCED)).items())


def escaped(value: str) -> str:
    """A value in braces, in which only ``}`` has a meaning.

    :raises ConfigurationError: ``dpone.config.connection``: NUL, which no ODBC text can hold.
    """
    if "\0" in value:
        raise ConfigurationError("dpone.config.connection", "The connection holds a NUL character.")
    return "{" + value.replace("}", "}}") + "}"


def find_driver() -> str:
    """An installed driver of Microsoft's, else the one in the wheel ``mssql-python-odbc``, by its path.

    :raises ConfigurationError: ``dpone.target.driver_missing``: there is neither.
    """
    installed = set(pyodbc.drivers())
    for name in _DRIVERS:
        if name in installed:
            return name
    found = _driver_of_the_wheel()
    if found is None:
        raise ConfigurationError(
            "dpone.target.driver_missing",
            "There is no ODBC driver for SQL Server on this machine, and mssql-python-odbc is not installed.",
        )
    return str(found)


def _driver_of_the_wheel() -> Path | None:
    """The library for this machine; the wheel has one per family of Linux, and the C library decides."""
    try:
        root = Path(str(files("mssql_python_odbc"))) / "libs"
    except ModuleNotFoundError:
        return None
    found = sorted(root.glob(f"{_family()}/{platform.machine()}/lib/libmsodbcsql-*.so*"))
    return found[-1] if found else None


def _family() -> str:
    if Path("/etc/alpine-release").exists():
        return "linux/alpine"
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "linux/debian_ubuntu"
    like = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".split()
    if "suse" in like or "sles" in like:
        return "linux/suse"
    return "linux/rhel" if {"rhel", "fedora", "centos"} & set(like) else "linux/debian_ubuntu"


def _token(token: str) -> bytes:
    """A token as the driver takes it: its UTF-16LE text behind its length."""
    text = token.encode("utf-16-le")
    return struct.pack(f"<I{len(text)}s", len(text), text)
