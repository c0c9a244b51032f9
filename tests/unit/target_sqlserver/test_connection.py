"""Where a SQL Server is: what a URI and an Airflow connection may say, and what reaches the driver."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_dpone.connections import AirflowConnection
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.target_sqlserver import odbc
from airflow_dpone.target_sqlserver.connection import FORCED, SqlServerConnection


def airflow(**changes: Any) -> AirflowConnection:
    fields: dict[str, Any] = {
        "conn_id": "warehouse",
        "conn_type": "mssql",
        "host": "sql.example",
        "login": "loader",
        "password": "hunter2",
        "schema": "dwh",
    }
    return AirflowConnection(**{**fields, **changes})


def problems(call: Any) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        call()
    assert "hunter2" not in str(caught.value)
    return {problem.where: problem.code for problem in caught.value.problems}


# ---- a URI ------------------------------------------------------------------------------------------------


def test_a_uri_names_server_login_and_database() -> None:
    found = SqlServerConnection.of_uri("mssql://lo%40der@sql.example:1444/my%20dwh?encrypt=strict")
    assert (found.server, found.port, found.database, found.user) == ("sql.example", 1444, "my dwh", "lo@der")
    assert (found.encrypt, found.trust_server_certificate, found.address) == (
        "strict",
        False,
        "sql.example,1444",
    )
    assert str(found) == "sql.example,1444/my dwh"


def test_encryption_and_port_have_defaults() -> None:
    found = SqlServerConnection.of_uri("mssql://loader@sql.example/dwh")
    assert (found.encrypt, found.port, found.schemas.control, found.schemas.stage) == (
        "yes",
        1433,
        "dpone",
        "dpone_stage",
    )


@pytest.mark.parametrize(
    ("uri", "code"),
    [
        ("mssql://loader:hunter2@sql.example/dwh", "dpone.config.secret_in_uri"),
        ("mssql://sql.example/dwh?access_token=hunter2", "dpone.config.secret_in_uri"),
        ("mssql://loader@sql.example:99999/dwh", "dpone.config.uri"),
        ("mssql://loader@sql.example", "dpone.config.uri"),
        ("mssql://sql.example/dwh", "dpone.config.uri"),
        ("mssql://loader@/dwh", "dpone.config.uri"),
        ("mssql://loader@sql.example/dwh/more", "dpone.config.uri"),
        ("mssql://loader@sql.example/dwh?encrypt=maybe", "dpone.config.uri"),
        ("mssql://loader@sql.example/dwh?colour=red", "dpone.config.uri"),
        ("mssql://loader@sql.example/dwh?encrypt=no", "dpone.config.uri"),
        ("mssql://loader@sql.example/dwh?Trusted_Connection=yes", "dpone.config.authentication"),
    ],
)
def test_a_uri_that_is_not_opened(uri: str, code: str) -> None:
    assert code in problems(lambda: SqlServerConnection.of_uri(uri)).values()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"])
def test_without_encryption_only_this_machine(host: str) -> None:
    assert SqlServerConnection.of_uri(f"mssql://loader@{host}/dwh?encrypt=no").encrypt == "no"


def test_without_encryption_another_machine_when_somebody_says_so() -> None:
    uri = "mssql://loader@sql.example/dwh?encrypt=no&allow_unencrypted=yes"
    assert SqlServerConnection.of_uri(uri).encrypt == "no"


# ---- an Airflow connection --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mssql", "odbc"])
def test_a_connection_names_everything(kind: str) -> None:
    extra = {
        "Encrypt": "strict",
        "TrustServerCertificate": "no",
        "hostname_in_certificate": "other.example",
        "Driver": "{ODBC Driver 18 for SQL Server}",
        "login_timeout": "7",
        "control_schema": "ctl",
        "stage_schema": "stg",
        "somebody_elses": 1,
    }
    found = SqlServerConnection.of_connection(airflow(conn_type=kind, port=1444, extra=extra))
    assert found == SqlServerConnection(
        server="sql.example",
        database="dwh",
        port=1444,
        user="loader",
        password="hunter2",
        encrypt="strict",
        host_name_in_certificate="other.example",
        driver="ODBC Driver 18 for SQL Server",
        login_timeout_sec=7,
        control_schema="ctl",
        stage_schema="stg",
    )


def test_an_access_token_stands_for_login_and_password() -> None:
    extra = {"access_token": "hunter2"}
    found = SqlServerConnection.of_connection(airflow(login="", password="", extra=extra))
    assert found.access_token == "hunter2"
    text = odbc.connection_string(found, driver="d", application="a")
    assert "UID" not in text
    assert "hunter2" not in text
    assert problems(lambda: SqlServerConnection.of_connection(airflow(extra=extra))) == {
        "connection warehouse": "dpone.config.connection"
    }


def test_a_named_instance_has_no_port() -> None:
    found = SqlServerConnection.of_connection(airflow(host="sql.example\\prod"))
    assert (found.port, found.address) == (None, "sql.example\\prod")
    refused = problems(lambda: SqlServerConnection.of_connection(airflow(host="h\\prod", port=1433)))
    assert refused == {"connection warehouse": "dpone.config.connection"}


METHODS = [
    "ActiveDirectoryPassword",
    "ActiveDirectoryIntegrated",
    "ActiveDirectoryInteractive",
    "ActiveDirectoryMSI",
    "ActiveDirectoryServicePrincipal",
    "ActiveDirectoryDefault",
    "ActiveDirectoryDeviceCode",
    "Something",
]


@pytest.mark.parametrize("method", METHODS)
def test_every_other_way_to_sign_in_has_a_message_of_its_own(method: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SqlServerConnection.of_connection(airflow(extra={"Authentication": method}))
    (problem,) = caught.value.problems
    assert problem.code == "dpone.config.authentication"
    assert method in problem.message
    assert "UNVERIFIED" in problem.message


def test_the_messages_differ() -> None:
    texts = set()
    for method in METHODS:
        with pytest.raises(ConfigurationError) as caught:
            SqlServerConnection.of_connection(airflow(extra={"authentication": method}))
        texts.add(caught.value.problems[0].message.removeprefix(method))
    assert len(texts) == len(METHODS)


@pytest.mark.parametrize("extra", [{"Trusted_Connection": "yes"}, {"dsn": "prod"}, {"FILEDSN": "/x"}])
def test_what_hides_options_or_needs_kerberos_is_refused(extra: dict[str, str]) -> None:
    found = problems(lambda: SqlServerConnection.of_connection(airflow(extra=extra)))
    assert set(found.values()) == {"dpone.config.authentication"}


def test_everything_that_is_wrong_is_said_at_once() -> None:
    wrong = airflow(conn_type="http", host="", schema="", login="", extra={"encrypt": "perhaps"})
    with pytest.raises(ConfigurationError) as caught:
        SqlServerConnection.of_connection(wrong)
    assert len(caught.value.problems) == 5


# ---- what reaches the driver ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["ConnectRetryCount", "connect_retry_count", "MARS_Connection", "ApplicationIntent"]
)
def test_options_of_ours_win_and_say_so(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """[A11]"""
    with caplog.at_level(logging.WARNING):
        found = SqlServerConnection.of_connection(airflow(extra={name: "ReadOnly"}))
    assert name in caplog.text
    text = odbc.connection_string(found, driver="d", application="a")
    assert parsed(text)[-3:] == [(key, value) for key, value in FORCED.items()]
    assert "ReadOnly" not in text


def test_a_secret_is_in_no_text() -> None:
    found = SqlServerConnection.of_connection(airflow())
    for text in (str(found), repr(found), repr(airflow())):
        assert "hunter2" not in text


def parsed(text: str) -> list[tuple[str, str]]:
    """A reader of ODBC connection strings, written from the documented grammar: in braces only ``}`` has a
    meaning, and two of them are one."""
    found, i = [], 0
    while i < len(text):
        end = text.index("=", i)
        name, i = text[i:end], end + 1
        assert text[i] == "{"
        value, i = "", i + 1
        while True:
            if text[i] == "}" and text[i : i + 2] == "}}":
                value, i = value + "}", i + 2
            elif text[i] == "}":
                break
            else:
                value, i = value + text[i], i + 1
        i += 1
        assert text[i : i + 1] in ("", ";")
        found.append((name, value))
        i += 1
    return found


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)


@given(
    database=TEXTS, user=TEXTS, password=TEXTS | st.sampled_from(["}", "};PWD={x", " a;b ", "'\"{}}=", "{}"])
)
def test_no_value_becomes_an_option(database: str, user: str, password: str) -> None:
    where = SqlServerConnection("h", database, user=user, password=password)
    found = dict(parsed(odbc.connection_string(where, driver="d", application="a")))
    assert (found["DATABASE"], found["UID"], found["PWD"]) == (database, user, password)
    assert len(found) == 11


def test_a_nul_is_refused_without_showing_the_value() -> None:
    where = SqlServerConnection("h", "d", user="u", password="hunter2\0")
    with pytest.raises(ConfigurationError) as caught:
        odbc.connection_string(where, driver="d", application="a")
    assert "hunter2" not in str(caught.value)


def test_pooling_is_off_and_a_driver_is_found() -> None:
    import pyodbc

    assert pyodbc.pooling is False
    assert odbc.find_driver()
