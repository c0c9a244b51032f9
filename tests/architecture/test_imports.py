"""The import rule: a part may import the parts below it, never a sibling and never upwards.

It counts every import, also those in functions and those only for types: a type that crosses a layer the
wrong way is a dependency that the next change makes real. Written here instead of with a tool, because the
table is short and the messages can name the line.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.architecture import package_source
from tests.architecture.package_source import PACKAGE, Import, Module, imports, package_modules

# From the bottom up. The names of one row are siblings.
LAYERS = (
    ("errors",),
    ("setting_model",),
    ("quality_settings",),
    ("settings", "embedded_lock", "host_identity", "connections"),
    ("wire",),
    ("delivery",),
    ("journal", "spool", "source_clickhouse", "target_embedded", "target_sqlserver"),
    ("bulk_writer",),
    ("call_checks",),
    ("wiring",),
    ("airflow_config",),
    ("hooks", "links"),
    ("triggers",),
    ("operators", "cli", "ui"),
    ("sensors",),
)
HEIGHT = {part: height for height, row in enumerate(LAYERS) for part in row}

# Outside the layers: what each may import, by module.
ENTRANCES = {
    "__init__": {"errors", "settings", "delivery.records", "delivery.window", "wiring"},  # for types only
    "__main__": {"cli"},
    "provider_info": set[str](),
}

# Which modules may import a driver, an engine or a framework at all.
ALLOWED = {
    # spool.object_store: object stores and their credentials are Airflow's to know (ObjectStoragePath).
    # connections: the one place that reads an Airflow connection.
    "airflow": (
        "operators",
        "sensors",
        "triggers",
        "hooks",
        "links",
        "airflow_config",
        "cli",
        "ui",
        "spool.object_store",
        "connections",
    ),
    "sqlalchemy": ("journal",),
    "alembic": ("journal",),
    "jsonschema_rs": ("journal.schemas", "bulk_writer.messages"),
    "psycopg": ("journal.postgresql_sessions",),
    "chdb": ("source_clickhouse.embedded",),
    "clickhouse_driver": ("source_clickhouse.reader",),
    "duckdb": ("target_embedded",),
    "pyodbc": ("target_sqlserver", "bulk_writer"),
    "mssql_python": ("bulk_writer.child_tds",),
    "mssql_py_core": ("bulk_writer.child_tds",),
    "subprocess": ("bulk_writer.supervisor", "wire.encoder_process", "hooks.embedded"),
    "multiprocessing": ("bulk_writer.supervisor",),
    "pandas": (),
}


def _inside(target: str) -> str | None:
    """``delivery.run`` for ``airflow_dpone.delivery.run``, '' for the root, None for another package."""
    if target == PACKAGE:
        return ""
    return target.removeprefix(f"{PACKAGE}.") if target.startswith(f"{PACKAGE}.") else None


def _belongs(dotted: str, owners: Iterable[str]) -> bool:
    return any(dotted == owner or dotted.startswith(f"{owner}.") for owner in owners)


def layer_fault(found: Import) -> str | None:
    """Why an import breaks the rule, or None."""
    target = _inside(found.target)
    if target is None:
        return None
    own, other = found.module.part, target.split(".")[0]
    if other not in HEIGHT and other not in ENTRANCES:
        return f"{found}: import a public name from the module that defines it"
    if own in ENTRANCES:
        return None if _belongs(target, ENTRANCES[own]) else f"{found}: {own} may not"
    if other in ENTRANCES:
        return f"{found}: nothing imports an entrance"
    if own != other and HEIGHT[other] >= HEIGHT[own]:
        return f"{found}: {own} may import only what is below it"
    return None


def foreign_fault(found: Import) -> str | None:
    """Why an import of a driver, an engine or a framework is in the wrong place, or None."""
    owners = ALLOWED.get(found.target.split(".")[0])
    if owners is None or _belongs(_inside(found.module.name) or "", owners):
        return None
    return f"{found}: only {', '.join(owners) or 'nobody'} may"


def _faults(modules: Iterable[Module]) -> list[str]:
    found = [one for module in modules for one in imports(module)]
    return [fault for one in found for fault in (layer_fault(one), foreign_fault(one)) if fault]


def test_every_part_has_a_place_in_the_table() -> None:
    parts = {module.part for module in package_modules()}
    assert parts <= {*HEIGHT, *ENTRANCES}
    assert parts >= {"errors", "settings", "wire", "delivery", "journal"}, "the package was not found"


def test_a_part_imports_only_what_is_below_it() -> None:
    assert _faults(package_modules()) == []


@pytest.mark.parametrize("package", ["__init__", "delivery"])
def test_an_entrance_runs_no_import(package: str) -> None:
    """Importing ``airflow_dpone`` or ``airflow_dpone.delivery`` happens in every Airflow process."""
    name = PACKAGE if package == "__init__" else f"{PACKAGE}.{package}"
    code = (
        "import sys, typing, __future__; before = set(sys.modules);"
        f"import {name}; print(*(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) <= {PACKAGE, name}


# ---- the tests of the test ----


@pytest.mark.parametrize(
    ("module", "line", "right"),
    [
        ("delivery/run.py", "from airflow_dpone.wire import digest", True),
        ("delivery/run.py", "from airflow_dpone.delivery import states", True),
        ("delivery/run.py", "from .states import MOVES", True),
        ("delivery/run.py", "from ..journal import store", False),
        ("delivery/run.py", "from airflow_dpone.journal.store import Store", False),
        ("delivery/run.py", "def f():\n    from airflow_dpone import journal", False),
        ("delivery/run.py", "if TYPE_CHECKING:\n    import airflow_dpone.wiring", False),
        ("delivery/run.py", "import_module('airflow_dpone.wiring')", False),
        ("delivery/run.py", "from airflow_dpone import Route", False),
        ("delivery/run.py", "import sqlalchemy as sa", False),
        ("delivery/run.py", "import subprocess", False),
        ("delivery/run.py", "from airflow.sdk import BaseHook", False),
        ("spool/object_store.py", "def f():\n    from airflow.sdk import ObjectStoragePath", True),
        ("spool/local.py", "from airflow.sdk import ObjectStoragePath", False),
        ("journal/store.py", "from airflow_dpone.spool import local", False),
        ("journal/store.py", "import sqlalchemy as sa", True),
        ("bulk_writer/child_tds.py", "from airflow_dpone.target_sqlserver import session", True),
        ("target_sqlserver/session.py", "from airflow_dpone.bulk_writer import messages", False),
        ("target_embedded/engine.py", "import duckdb", True),
        ("wiring.py", "import duckdb", False),
        ("source_clickhouse/reader.py", "from clickhouse_driver import Client", True),
        ("source_clickhouse/source.py", "def f():\n    import clickhouse_driver", False),
        ("source_clickhouse/address.py", "from airflow_dpone.connections import AirflowConnection", True),
        ("settings.py", "from airflow_dpone.connections import AirflowConnection", False),
        ("connections.py", "def f():\n    from airflow.sdk import Connection", True),
        ("cli/commands.py", "from airflow_dpone.operators import x", False),
        ("operators/admit.py", "from airflow_dpone.triggers.custody import CustodyClearTrigger", True),
        ("triggers/custody.py", "from airflow_dpone.operators import x", False),
        ("sensors/windows.py", "from airflow_dpone.operators.window_choice import choose_window", True),
        ("__main__.py", "from airflow_dpone.cli import main", True),
        ("__main__.py", "from airflow_dpone.wiring import deliver", False),
        ("cli/commands.py", "import airflow_dpone.__main__", False),
    ],
)
def test_the_rule_tells_right_from_wrong(module: str, line: str, right: bool, tmp_path: Path) -> None:
    path = tmp_path / PACKAGE / module
    path.parent.mkdir(parents=True)
    path.write_text(line)
    faults = _faults([package_source.read(path, tmp_path)])
    assert (not faults) is right, faults
