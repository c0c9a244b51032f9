"""Where a SQL Server database is and how it is spoken to: from a URI, or from an Airflow connection.

SQL logins and access tokens only. Options that the protocol depends on are ours (:data:`FORCED`), whatever an
extra says. A URI holds no password; a connection's password is in no message and in no ``repr``.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_dpone.connections import AirflowConnection
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.target_sqlserver.quoting import MAX_NAME
from airflow_dpone.target_sqlserver.statements import Schemas

log = logging.getLogger(__name__)

Encrypt = Literal["yes", "strict", "no"]
PORT = 1433
CONNECTION_TYPES = ("mssql", "odbc")
FORM = "mssql://user@host:1433/database"

FORCED: Mapping[str, str] = {
    # A restored session has no application lock, and nobody would notice.
    "ConnectRetryCount": "0",
    # With several active results a lock could be held by a request that nobody reads.
    "MARS_Connection": "no",
    # A readable secondary would answer from the past.
    "ApplicationIntent": "ReadWrite",
}
"""Sent with every connection, after everything that a person may say."""

_WORDS: Mapping[str, bool] = {
    **dict.fromkeys(("yes", "true", "1", "on", "mandatory"), True),
    **dict.fromkeys(("no", "false", "0", "off", "optional"), False),
}
_OTHER_METHODS: Mapping[str, str] = {
    "activedirectorypassword": "sends a person's password to Microsoft Entra ID",
    "activedirectoryintegrated": "needs the Kerberos ticket of a person",
    "activedirectoryinteractive": "opens a browser",
    "activedirectorymsi": "asks the machine's managed identity",
    "activedirectoryserviceprincipal": "signs in as an application",
    "activedirectorydefault": "tries one method after another",
    "activedirectorydevicecode": "waits for a person with a browser",
}


@dataclass(frozen=True)
class SqlServerConnection:
    """One database of one server, and one login.

    :param server: host name, address, or ``host\\instance``. :param port: None for a named instance.
    :param access_token: a Microsoft Entra token instead of user and password.
    :param encrypt: ``yes``, ``strict`` (TDS 8), or ``no``: only on this machine, or with
        ``allow_unencrypted``.
    :param trust_server_certificate: do not check the certificate: for tests.
    :param host_name_in_certificate: the name that the certificate must have, if it is not the host.
    :param driver: path or name of an ODBC driver; default: the installed one, else the wheel's.
    :param login_timeout_sec: for a new session.
    :param control_schema: where ``target init`` made identity, gate and receipts.
    :param stage_schema: where staging tables are made.
    """

    server: str
    database: str
    port: int | None = PORT
    user: str = ""
    password: str = field(default="", repr=False)
    access_token: str = field(default="", repr=False)
    encrypt: Encrypt = "yes"
    trust_server_certificate: bool = False
    host_name_in_certificate: str = ""
    driver: str = ""
    login_timeout_sec: int = 15
    control_schema: str = "dpone"
    stage_schema: str = "dpone_stage"

    @property
    def schemas(self) -> Schemas:
        """Where our own tables are in this database."""
        return Schemas(self.control_schema, self.stage_schema)

    @property
    def address(self) -> str:
        """``host,port``, as SQL Server writes it."""
        return self.server if self.port is None else f"{self.server},{self.port}"

    def __str__(self) -> str:
        return f"{self.address}/{self.database}"

    @classmethod
    def of_uri(cls, uri: str) -> SqlServerConnection:
        """``mssql://user@host[:port]/database[?encrypt=yes&...]``, for a login without a password.

        :raises ConfigurationError: every problem of it.
        """
        parts = urlsplit(uri)
        problems: list[Problem] = []

        def wrong(text: str) -> None:
            problems.append(Problem("dpone.config.uri", "target", text))

        try:
            port = parts.port
        except ValueError:
            port = None
            wrong("its port is no number in 1..65535")
        if parts.password:
            text = "the URI carries a password; put it into an Airflow connection and name that"
            problems.append(Problem("dpone.config.secret_in_uri", "target", text))
        if parts.fragment or parts.path.count("/") > 1:
            wrong(f"use {FORM}")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if _key("access_token") in map(_key, options):
            text = "the URI carries an access token; put it into an Airflow connection and name that"
            problems.append(Problem("dpone.config.secret_in_uri", "target", text))
        place = {
            "server": unquote(parts.hostname or ""),
            "port": port,
            "database": unquote(parts.path[1:]),
            "user": unquote(parts.username or ""),
        }
        return _made(place, options, "target", "dpone.config.uri", problems, known_only=True)

    @classmethod
    def of_connection(cls, found: AirflowConnection) -> SqlServerConnection:
        """An Airflow connection of type ``mssql`` or ``odbc``; extras are read by name.

        :raises ConfigurationError: every problem of it.
        """
        where = f"connection {found.conn_id}"
        problems: list[Problem] = []
        if found.conn_type not in CONNECTION_TYPES:
            text = f"its type is {found.conn_type!r}; the target needs one of type 'mssql' or 'odbc'"
            problems.append(Problem("dpone.config.connection", where, text))
        place = {
            "server": found.host,
            "port": found.port,
            "database": found.schema,
            "user": found.login,
            "password": found.password,
        }
        return _made(place, dict(found.extra), where, "dpone.config.connection", problems, known_only=False)


def _made(
    place: dict[str, Any],
    extras: Mapping[str, Any],
    where: str,
    code: str,
    problems: list[Problem],
    *,
    known_only: bool,
) -> SqlServerConnection:
    """One connection out of where it is and what its options say. :param known_only: an option that is not
    ours is a mistake (in a URI), or somebody else's (in an Airflow connection)."""
    options, allow_unencrypted = _options(extras, where, code, problems, known_only=known_only)
    problems += [Problem(code, where, text) for text in _place_problems(place, options)]
    if options.get("encrypt") == "no" and not allow_unencrypted and not _is_loopback(place["server"]):
        text = "encryption is off and the server is another machine; remove it, or set allow_unencrypted"
        problems.append(Problem(code, f"{where}, encrypt", text))
    if problems:
        raise ConfigurationError.of(problems)
    if "\\" not in place["server"] and place["port"] is None:
        place["port"] = PORT
    return SqlServerConnection(**place, **options)


def _options(
    extras: Mapping[str, Any], where: str, code: str, problems: list[Problem], *, known_only: bool
) -> tuple[dict[str, Any], bool]:
    """Fields of a connection, and whether it may go without encryption; what is wrong joins ``problems``."""
    options: dict[str, Any] = {}
    allow_unencrypted = False
    for name, value in extras.items():
        key = _key(name)
        refused = _refused_method(key, value)
        if refused:
            problems.append(Problem("dpone.config.authentication", f"{where}, {name}", refused))
        elif key in _FORCED_KEYS:
            log.warning("%s: %s is set by the product, what the option says is not used", where, name)
        elif key == "allowunencrypted":
            allow_unencrypted = _WORDS.get(str(value).strip().lower(), False)
        elif key in _READERS:
            option, read = _READERS[key]
            try:
                options[option] = read(value)
            except ValueError as error:
                problems.append(Problem(code, f"{where}, {name}", str(error)))
        elif known_only:
            problems.append(Problem(code, where, f"option {name!r} is not known"))
    return options, allow_unencrypted


def _place_problems(place: Mapping[str, Any], options: Mapping[str, Any]) -> list[str]:
    found = []
    server, port = place["server"], place["port"]
    if not server or any(sign in server for sign in ",;{}\0"):
        found.append("names no server; one host name or address, the port goes into its own field")
    if port is not None and not 0 < int(port) < 65_536:
        found.append("its port is no number in 1..65535")
    if port is not None and "\\" in server:
        found.append("has a port and an instance name; give one of them")
    if not place["database"]:
        found.append("names no database")
    if not place["user"] and not options.get("access_token"):
        found.append("has no login and no access token; other ways to sign in are not supported")
    if options.get("access_token") and place.get("password"):
        found.append("has an access token and a password; give one of them")
    return found


def _refused_method(key: str, value: object) -> str | None:
    """Why a way to sign in is not taken; all of these were never tried."""
    if key == "authentication":
        word = _key(str(value))
        if word == "sqlpassword":
            return None
        what = _OTHER_METHODS.get(word, "is not known here")
        return (
            f"{value} {what}: not supported (UNVERIFIED); use a SQL login, or fetch a token and give it as "
            "access_token"
        )
    if key == "trustedconnection" and _WORDS.get(str(value).strip().lower(), True):
        return "Windows authentication needs Kerberos: not supported (UNVERIFIED); use a SQL login"
    if key in ("dsn", "filedsn"):
        return "a DSN holds options that nobody sees here; give server, database and login instead"
    return None


def _key(name: str) -> str:
    """How names of options are compared: ODBC's and Airflow's spellings are the same."""
    return name.lower().replace("_", "").replace(" ", "").replace("-", "")


def _flag(value: object) -> bool:
    found = _WORDS.get(str(value).strip().lower())
    if found is None:
        raise ValueError("must be yes or no")
    return found


def _encrypt(value: object) -> Encrypt:
    if str(value).strip().lower() == "strict":
        return "strict"
    if str(value).strip().lower() not in _WORDS:
        raise ValueError("must be yes, strict or no")
    return "yes" if _flag(value) else "no"


def _seconds(value: object) -> int:
    text = str(value).strip()
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 600:
        raise ValueError("must be a number of seconds in 1..600")
    return int(text)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("must be a text")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if len(text) > MAX_NAME:
        raise ValueError(f"must be a name of at most {MAX_NAME} characters")
    return text


def _driver(value: object) -> str:
    text = _text(value).strip().removeprefix("{").removesuffix("}")
    if not text or any(sign in text for sign in "{};"):
        raise ValueError("must be the name or the path of an ODBC driver")
    return text


_FORCED_KEYS = frozenset(_key(name) for name in FORCED)
_READERS: Mapping[str, tuple[str, Callable[[object], Any]]] = {
    "encrypt": ("encrypt", _encrypt),
    "trustservercertificate": ("trust_server_certificate", _flag),
    "hostnameincertificate": ("host_name_in_certificate", _text),
    "driver": ("driver", _driver),
    "logintimeoutsec": ("login_timeout_sec", _seconds),
    "logintimeout": ("login_timeout_sec", _seconds),
    "accesstoken": ("access_token", _text),
    "controlschema": ("control_schema", _name),
    "stageschema": ("stage_schema", _name),
}


def _is_loopback(server: str) -> bool:
    host = server.partition("\\")[0].lower()
    if host in ("localhost", "."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
