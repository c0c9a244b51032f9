"""Where a ClickHouse server is and how it is spoken to: from a URI, or from an Airflow connection.

One host, never a list: plain MergeTree tables of one name on two servers are different data. A URI holds no
password; a connection's password is in no message and in no ``repr``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_dpone.connections import AirflowConnection
from airflow_dpone.errors import ConfigurationError, Problem

NATIVE_PORT, NATIVE_TLS_PORT = 9000, 9440
HTTP_PORTS = (8123, 8443)
CONNECTION_TYPES = ("clickhouse", "generic")


@dataclass(frozen=True)
class ServerAddress:
    """One server and one user of it.

    :param port: of the native protocol. :param database: of the session; statements name theirs.
    :param secure: TLS. :param verify: check the server's certificate and name.
    :param ca_certs: file of the certificates to trust; default: the system's.
    :param certfile: client certificate. :param keyfile: its key.
    :param server_hostname: the name that the certificate must have, if it is not the host.
    :param compression: of the stream: ``lz4``, ``lz4hc`` or '' for none.
    :param connect_timeout: seconds for a new connection.
    :param send_receive_timeout: seconds without a byte until a connection counts as broken.
    :param client_name: is added to ours in ``system.query_log``.
    """

    host: str
    port: int = 0
    user: str = "default"
    password: str = field(default="", repr=False)
    database: str = ""
    secure: bool = False
    verify: bool = True
    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    server_hostname: str | None = None
    compression: str = ""
    connect_timeout: float = 10.0
    send_receive_timeout: float = 300.0
    client_name: str = ""

    @property
    def real_port(self) -> int:
        """The port, or the native protocol's own."""
        return self.port or (NATIVE_TLS_PORT if self.secure else NATIVE_PORT)

    def __str__(self) -> str:
        return f"{self.host}:{self.real_port}"

    @classmethod
    def of_uri(cls, uri: str) -> ServerAddress:
        """``clickhouse://[user@]host[:port][/database][?secure=true&...]``.

        :raises ConfigurationError: every problem of it.
        """
        parts = urlsplit(uri)
        problems: list[Problem] = []
        options, unknown = _options(dict(parse_qsl(parts.query, keep_blank_values=True)), "source")
        problems += unknown
        try:
            port = parts.port
        except ValueError:
            port = None
            problems.append(Problem("dpone.config.uri", "source", "its port is no number in 1..65535"))
        if parts.password:
            text = "the URI carries a password; put it into an Airflow connection and name that"
            problems.append(Problem("dpone.config.secret_in_uri", "source", text))
        host = unquote(parts.hostname or "")
        problems += _place_problems(host, port, parts.netloc, "source", "dpone.config.uri")
        if parts.fragment or parts.path.count("/") > 1:
            text = "use clickhouse://[user@]host[:port][/database][?secure=true]"
            problems.append(Problem("dpone.config.uri", "source", text))
        if problems:
            raise ConfigurationError.of(problems)
        user = unquote(parts.username or "") or "default"
        database = unquote(parts.path[1:])
        return cls(host=host, port=port or 0, user=user, database=database, **options)

    @classmethod
    def of_connection(cls, found: AirflowConnection) -> ServerAddress:
        """An Airflow connection of type ``clickhouse``; extras are read by name.

        :raises ConfigurationError: every problem of it.
        """
        where, code = f"connection {found.conn_id}", "dpone.config.connection"
        problems: list[Problem] = []
        if found.conn_type not in CONNECTION_TYPES:
            text = f"its type is {found.conn_type!r}; the source needs one of type 'clickhouse'"
            problems.append(Problem(code, where, text))
        extra = dict(found.extra)
        port = extra.pop("native_port", found.port)
        options, unknown = _options(extra, where)
        problems += unknown
        if port is not None and not (str(port).isdigit() and 0 < int(port) < 65_536):
            problems.append(Problem(code, f"{where}, native_port", "must be a number in 1..65535"))
            port = None
        port = None if port is None else int(port)
        problems += _place_problems(found.host, port, found.host, where, code)
        if problems:
            raise ConfigurationError.of(problems)
        return cls(
            host=found.host,
            port=port or 0,
            user=found.login or "default",
            password=found.password,
            database=found.schema,
            **options,
        )


def _place_problems(host: str, port: int | None, named: str, where: str, code: str) -> list[Problem]:
    problems = []
    if not host:
        problems.append(Problem(code, where, "names no host"))
    if "," in named:
        text = "names several hosts: tables of one name on two servers are different data; name one"
        problems.append(Problem(code, where, text))
    if "://" in host or "/" in host:
        problems.append(Problem(code, where, "its host must be a name or an address alone"))
    if port in HTTP_PORTS:
        text = (
            f"port {port} is ClickHouse's HTTP interface; this product speaks the native protocol: port"
            f" {NATIVE_PORT}, or {NATIVE_TLS_PORT} with TLS. A connection that serves HTTP clients too may"
            " keep its port and name this one in the extra native_port"
        )
        problems.append(Problem(code, where, text))
    return problems


def _flag(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise ValueError("must be true or false")


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 < seconds <= 86_400:
        raise ValueError("must be a number of seconds in 1..86400")
    return seconds


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text")
    return value.strip()


def _compression(value: Any) -> str:
    if str(value).lower() in ("lz4", "lz4hc"):
        return str(value).lower()
    try:
        return "lz4" if _flag(value) else ""
    except ValueError:
        raise ValueError("must be true, false, lz4 or lz4hc") from None


_READ: dict[str, tuple[str, Callable[[Any], Any]]] = {
    # what a person writes -> field, how it is read
    "secure": ("secure", _flag),
    "verify": ("verify", _flag),
    "ca_certs": ("ca_certs", _text),
    "ca_cert": ("ca_certs", _text),
    "certfile": ("certfile", _text),
    "keyfile": ("keyfile", _text),
    "server_hostname": ("server_hostname", _text),
    "compression": ("compression", _compression),
    "compress": ("compression", _compression),
    "connect_timeout": ("connect_timeout", _seconds),
    "send_receive_timeout": ("send_receive_timeout", _seconds),
    "client_name": ("client_name", _text),
}
OPTIONS = tuple(_READ)
"""Names of the parameters of a URI, and of the extras of a connection beside ``native_port``."""
_REFUSED = {
    "alt_hosts": "one host only: tables of one name on two servers are different data",
    "round_robin": "one host only: tables of one name on two servers are different data",
    "session_settings": "the product sends its own closed list of settings, and no other",
    "settings": "the product sends its own closed list of settings, and no other",
    "client_kwargs": "is of the HTTP client; say what you need by one of the known names",
    "password": "belongs into the connection's password field",
}


def _options(given: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[Problem]]:
    code = "dpone.config.uri" if where == "source" else "dpone.config.connection"
    options: dict[str, Any] = {}
    problems = []
    for name, value in given.items():
        if name not in _READ:
            why = _REFUSED.get(name, f"is not known; there are {', '.join(OPTIONS)}")
            problems.append(Problem(code, f"{where}, {name}", why))
            continue
        target, read = _READ[name]
        try:
            options[target] = read(value)
        except (TypeError, ValueError) as error:
            text = str(error) if str(error).startswith("must") else "must be a number of seconds in 1..86400"
            problems.append(Problem(code, f"{where}, {name}", text))
    return options, problems
