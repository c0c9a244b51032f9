"""The public API: exactly these names, found where they live, loaded when they are used."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module

import pytest

import airflow_dpone
from tests.architecture.package_source import ROOT

PUBLIC = [
    "DeliveryResult",
    "DponeError",
    "Limits",
    "Options",
    "Plan",
    "Requester",
    "Route",
    "Window",
    "deliver",
    "plan",
]


def test_the_public_names_are_these() -> None:
    """Taking one away or adding one is a decision: change the list, the README and the changelog together."""
    assert airflow_dpone.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(airflow_dpone))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_the_one_of_its_module(name: str) -> None:
    value = getattr(airflow_dpone, name)
    assert getattr(import_module(value.__module__), name) is value
    assert value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        airflow_dpone.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_one_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert airflow_dpone.__version__ == project["version"]


def test_settings_load_no_engine_and_no_framework() -> None:
    """A DAG file names a Route and a Window at every parse."""
    code = "import sys; from airflow_dpone import Route, Limits, Options, DponeError; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "airflow",
        "alembic",
        "chdb",
        "clickhouse_driver",
        "duckdb",
        "jsonschema_rs",
        "numpy",
        "pandas",
        "pyarrow",
        "sqlalchemy",
    }
    assert heavy & set(run.stdout.split()) == set()
