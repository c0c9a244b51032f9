"""Where a server is: URIs and Airflow connections, read by name."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from airflow_dpone.connections import AirflowConnection
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.source_clickhouse.address import ServerAddress


def connection(**changes: Any) -> AirflowConnection:
    fields: dict[str, Any] = {
        "conn_id": "shop_ch",
        "conn_type": "clickhouse",
        "host": "db.example",
        "port": 9000,
        "login": "reader",
        "password": "hunter2",
        "schema": "shop",
        "extra": {},
    }
    return AirflowConnection(**{**fields, **changes})


def refused(source: str | AirflowConnection) -> list[str]:
    """What is wrong, one line each; the password is in none."""
    read = ServerAddress.of_uri if isinstance(source, str) else ServerAddress.of_connection
    with pytest.raises(ConfigurationError) as caught:
        read(source)  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value) + repr(caught.value) + repr(caught.value.fields)
    return [f"{problem.where}: {problem.message}" for problem in caught.value.problems]


def test_a_uri_says_host_user_database_and_options() -> None:
    found = ServerAddress.of_uri(
        "clickhouse://reader@db.example:9001/shop?secure=true&verify=false&ca_certs=/etc/ca.pem&compression=lz4"
        "&connect_timeout=3&send_receive_timeout=60.5&client_name=orders&server_hostname=ch"
    )
    assert found == ServerAddress(
        host="db.example",
        port=9001,
        user="reader",
        database="shop",
        secure=True,
        verify=False,
        ca_certs="/etc/ca.pem",
        compression="lz4",
        connect_timeout=3.0,
        send_receive_timeout=60.5,
        client_name="orders",
        server_hostname="ch",
    )


@pytest.mark.parametrize(
    ("uri", "port", "text"),
    [
        ("clickhouse://db", 9000, "db:9000"),
        ("clickhouse://db?secure=1", 9440, "db:9440"),
        ("clickhouse://db:1234/?secure=yes", 1234, "db:1234"),
        ("clickhouse://[::1]:9000", 9000, "::1:9000"),
    ],
)
def test_the_native_ports_are_the_defaults(uri: str, port: int, text: str) -> None:
    found = ServerAddress.of_uri(uri)
    assert (found.real_port, str(found), found.user, found.database) == (port, text, "default", "")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("clickhouse://me:hunter2@db", "carries a password"),
        ("clickhouse://a,b:9000", "several hosts"),
        ("clickhouse://db:8123", "HTTP interface"),
        ("clickhouse://db:8443?secure=true", "HTTP interface"),
        ("clickhouse://db:99999", "no number"),
        ("clickhouse://:9000", "names no host"),
        ("clickhouse://db/shop/orders", "use clickhouse://"),
        ("clickhouse://db#x", "use clickhouse://"),
        ("clickhouse://db?secur=true", "secur: is not known; there are secure, verify"),
        ("clickhouse://db?secure=maybe", "must be true or false"),
        ("clickhouse://db?connect_timeout=0", "must be a number of seconds"),
        ("clickhouse://db?connect_timeout=soon", "must be a number of seconds"),
        ("clickhouse://db?compression=brotli", "lz4 or lz4hc"),
        ("clickhouse://db?alt_hosts=b:9000", "one host only"),
        ("clickhouse://db?settings=x", "closed list of settings"),
        ("clickhouse://db?ca_certs=", "must be a text"),
    ],
)
def test_a_uri_that_is_refused(uri: str, says: str) -> None:
    found = refused(uri)
    assert len(found) == 1
    assert says in found[0]


def test_all_problems_of_a_uri_come_at_once() -> None:
    assert len(refused("clickhouse://a,b:8123/?secure=maybe&x=1")) == 4


def test_a_connection_is_an_address_and_its_password_is_not_shown() -> None:
    extra = {"secure": True, "verify": False, "compress": True, "connect_timeout": 10, "client_name": "etl"}
    found = ServerAddress.of_connection(connection(port=None, extra=extra))
    assert (found.host, found.real_port, found.user, found.password, found.database) == (
        "db.example",
        9440,
        "reader",
        "hunter2",
        "shop",
    )
    assert (found.verify, found.compression, found.connect_timeout, found.client_name) == (
        False,
        "lz4",
        10.0,
        "etl",
    )
    assert "hunter2" not in repr(found) + str(found) + repr(connection())
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize("value", [True, "true", "1", 1, "Yes"])
def test_flags_of_a_connection_may_be_texts(value: Any) -> None:
    """Airflow's forms store what a person typed."""
    assert ServerAddress.of_connection(connection(extra={"secure": value})).secure


def test_the_http_port_of_a_connection_is_explained() -> None:
    """The official provider's connections name it."""
    for port in (8123, 8443):
        (problem,) = refused(connection(port=port))
        assert problem.startswith("connection shop_ch:")
        assert "native_port" in problem
    found = ServerAddress.of_connection(connection(port=8123, extra={"native_port": "9000"}))
    assert found.real_port == 9000


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"conn_type": "postgres"}, "type is 'postgres'"),
        ({"host": ""}, "names no host"),
        ({"host": "a,b"}, "several hosts"),
        ({"host": "clickhouse://db"}, "a name or an address alone"),
        ({"extra": {"native_port": "x"}}, "must be a number in 1..65535"),
        ({"extra": {"sesion": 1}}, "sesion: is not known"),
        ({"extra": {"session_settings": {"max_threads": 1}}}, "closed list of settings"),
        ({"extra": {"client_kwargs": {}}}, "HTTP client"),
        ({"extra": {"password": "hunter2"}}, "password field"),
        ({"extra": {"client_name": 5}}, "must be a text"),
        ({"extra": {"send_receive_timeout": None}}, "number of seconds"),
    ],
)
def test_a_connection_that_is_refused(changes: dict[str, Any], says: str) -> None:
    found = refused(connection(**changes))
    assert len(found) == 1
    assert says in found[0]
