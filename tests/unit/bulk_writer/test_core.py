"""The private module that the writer runs on: pinned, and with the calls that we make of it."""

from __future__ import annotations

import inspect
import re
from importlib import metadata

import mssql_py_core
import pytest
from mssql_python import helpers

from airflow_dpone.bulk_writer.child_tds import core_options
from airflow_dpone.bulk_writer.writer import TdsWriter
from airflow_dpone.target_sqlserver.connection import SqlServerConnection
from tests.architecture.package_source import ROOT

PINNED = {"mssql-python": "1.16.0", "mssql-python-rs": "0.3.0"}
WHERE = SqlServerConnection("db.example", "shop", 1433, "dpone", "secret", host_name_in_certificate="db")


@pytest.mark.parametrize("name", PINNED)
def test_the_core_is_pinned_exactly(name: str) -> None:
    exact = re.compile(rf'^\W*{name}=={re.escape(PINNED[name])}"?,?$', re.MULTILINE)
    for file in ("pyproject.toml", "constraints.txt"):
        assert exact.search((ROOT / file).read_text()), file
    assert metadata.version(name) == PINNED[name]


def test_the_public_driver_brings_this_core() -> None:
    """Otherwise an installer may give it another one."""
    wanted = [one.replace(" ", "") for one in metadata.requires("mssql-python") or []]
    assert "mssql-python-rs==0.3.0" in [one.split(";")[0] for one in wanted]


def test_the_versions_go_into_every_attempt() -> None:
    assert TdsWriter(WHERE).versions() == {**PINNED, "pyarrow": metadata.version("pyarrow")}


def parameters(function: object) -> list[str]:
    return [
        f"{one.name}={one.default!r}" if one.default is not one.empty else one.name
        for one in inspect.signature(function).parameters.values()  # type: ignore[arg-type]
        if one.name != "self"
    ]


def test_the_load_takes_the_options_that_we_say() -> None:
    """[B9] these defaults are why every one is said."""
    assert parameters(mssql_py_core.PyCoreCursor.bulkcopy_arrow) == [
        "table_name",
        "source",
        "batch_size=0",
        "timeout=30",
        "column_mappings=None",
        "keep_identity=False",
        "check_constraints=False",
        "table_lock=False",
        "keep_nulls=False",
        "fire_triggers=False",
        "use_internal_transaction=False",
        "python_logger=None",
    ]


def test_the_same_cursor_runs_statements() -> None:
    assert parameters(mssql_py_core.PyCoreConnection) == ["client_context_dict", "python_logger=None"]
    assert parameters(mssql_py_core.PyCoreCursor.execute) == ["query", "params=None"]
    assert parameters(mssql_py_core.PyCoreCursor.fetchall) == []
    assert parameters(mssql_py_core.PyCoreConnection.cursor) == []
    assert parameters(mssql_py_core.PyCoreConnection.close) == []


def test_every_option_of_a_connection_is_one_that_the_core_knows() -> None:
    """It takes a misspelt name, and a text for a number, without a word."""
    known = {
        *helpers._PYCORE_CONNECTION_KEY_MAP.values(),
        "access_token",
        "connect_timeout",
        "application_name",
    }
    options = core_options(WHERE)
    assert set(options) <= known
    for name in helpers._PYCORE_INTEGER_KEYS & set(options):
        assert type(options[name]) is int, name
    assert options["connect_retry_count"] == 0, "a restored session would have no lock"
    assert options["application_intent"] == "ReadWrite"


def test_a_login_and_a_token_exclude_each_other() -> None:
    login = core_options(WHERE)
    token = core_options(SqlServerConnection("db.example", "shop", access_token="t0ken"))
    assert (login["user_name"], login["password"]) == ("dpone", "secret")
    assert "access_token" not in login
    assert token["access_token"] == "t0ken"
    assert not {"user_name", "password", "host_name_in_certificate"} & set(token)


@pytest.mark.parametrize(("encrypt", "trust"), [("yes", False), ("strict", False), ("no", True)])
def test_encryption_is_what_the_connection_says(encrypt: str, trust: bool) -> None:
    where = SqlServerConnection(
        "db.example",
        "shop",
        user="dpone",
        encrypt=encrypt,
        trust_server_certificate=trust,  # type: ignore[arg-type]
    )
    options = core_options(where)
    assert (options["encryption"], options["trust_server_certificate"]) == (encrypt, trust)


def test_a_named_instance_has_no_port() -> None:
    assert core_options(SqlServerConnection("db\\two", "shop", None, "dpone"))["server"] == "db\\two"
    assert core_options(WHERE)["server"] == "db.example,1433"
