"""Section ``[dpone]``: what Airflow shows of it, and what the product reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_dpone import airflow_config
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.provider_info import get_provider_info
from tests.conftest import AIRFLOW_HOME

OPTIONS = get_provider_info()["config"]["dpone"]["options"]


def test_without_a_word_the_defaults_are_those_that_airflow_shows() -> None:
    assert airflow_config.journal_conn_id() == OPTIONS["journal_conn_id"]["default"] == "dpone_journal"
    assert airflow_config.lease_ttl_sec() == float(OPTIONS["lease_ttl_sec"]["default"]) == 60.0
    assert airflow_config.spool_path() == f"{AIRFLOW_HOME}/dpone/spool"
    assert airflow_config.host_id() is None


def test_every_option_is_read() -> None:
    assert set(OPTIONS) == {name for name in dir(airflow_config) if name in OPTIONS}


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("journal_conn_id", "audit", "audit"),
        ("spool_path", "s3://bucket/dpone", "s3://bucket/dpone"),
        ("lease_ttl_sec", "7.5", 7.5),
        ("host_id", "worker-1", "worker-1"),
        ("journal_conn_id", "  ", "dpone_journal"),
        ("lease_ttl_sec", "", 60.0),
    ],
)
def test_the_environment_goes_first_and_nothing_is_no_value(
    option: str, text: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"AIRFLOW__DPONE__{option.upper()}", text)
    assert getattr(airflow_config, option)() == value


def test_a_value_that_is_no_number_is_named_with_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DPONE__LEASE_TTL_SEC", "a minute")
    with pytest.raises(ConfigurationError, match=r"\[dpone\] lease_ttl_sec: must be a number of seconds"):
        airflow_config.lease_ttl_sec()


def test_the_file_of_airflows_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "airflow.cfg").write_text("[dpone]\njournal_conn_id = audit\nlease_ttl_sec = 12\n")
    code = "from airflow_dpone import airflow_config as c; print(c.journal_conn_id(), c.lease_ttl_sec())"
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**plain, "AIRFLOW_HOME": str(tmp_path)},
    )
    assert run.stdout.split() == ["audit", "12.0"]
