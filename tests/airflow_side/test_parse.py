"""What Airflow does with the operator before it runs: parse, copy, serialise. No driver, no journal, no
Arrow."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The same DAG shapes with an operator of nobody, so that only what our package adds is left over.
BASELINE = """
from airflow.sdk import DAG, BaseOperator, BaseOperatorLink, CronDataIntervalTimetable, RetryPolicy
class Nothing(BaseOperator):
    def execute(self, context): ...
with DAG("a", schedule=CronDataIntervalTimetable("@daily", timezone="UTC"), catchup=False):
    Nothing(task_id="x")
with DAG("b", schedule=None):
    Nothing(task_id="x")
"""
LISTING = "\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
HEAVY = (
    "pyarrow",
    "numpy",
    "pandas",
    "alembic",
    "chdb",
    "duckdb",
    "jsonschema_rs",
    "clickhouse_driver",
    "pyodbc",
    "mssql_python",
)
INNER = ("journal", "wire", "wiring", "delivery", "spool", "source_clickhouse", "target_embedded")


def loaded_by(code: str) -> set[str]:
    """Modules that a new process has after running the code."""
    done = subprocess.run(
        [sys.executable, "-c", code + LISTING], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_parsing_the_example_dags_loads_nothing_that_airflow_does_not_load_itself() -> None:
    added = loaded_by("import dags_examples.deliver_orders") - loaded_by(BASELINE)
    assert {name for name in added if not name.startswith(("airflow_dpone", "dags_examples"))} == set()
    assert {name for name in added if name.split(".")[0] in HEAVY} == set()
    assert {
        name for name in added if name.startswith(tuple(f"airflow_dpone.{part}" for part in INNER))
    } == set()


def test_importing_the_package_itself_loads_nothing() -> None:
    added = loaded_by("import airflow_dpone") - loaded_by("import __future__, typing")
    assert added == {"airflow_dpone"}


def test_the_plugin_that_every_process_loads_loads_no_page() -> None:
    added = loaded_by("import airflow_dpone.ui.plugin") - loaded_by("import airflow.plugins_manager")
    assert added - {"airflow_dpone"} == {"airflow_dpone.ui", "airflow_dpone.ui.plugin"}


def test_the_operator_can_be_copied_and_serialised_and_comes_back_with_its_fields() -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    from dags_examples import deliver_orders

    task = deliver_orders.deliver_orders_dag.get_task("deliver")
    twin = copy.deepcopy(task)
    assert {name: getattr(twin, name) for name in twin.template_fields} == {
        name: getattr(task, name) for name in task.template_fields
    }
    stored = json.loads(json.dumps(DagSerialization.to_dict(deliver_orders.deliver_orders_dag)))
    again = DagSerialization.from_dict(stored).get_task("deliver")
    assert again.task_type == "DeliverWindowOperator"
    assert again.window_start is None
    assert list(again.source_table) == ["shop", "orders"]


def test_wrong_parameters_do_not_break_the_parse() -> None:
    """Templates are not rendered yet when a DAG file is read; everything is checked in execute."""
    from airflow_dpone.operators import DeliverWindowOperator

    DeliverWindowOperator(
        task_id="x", source="nonsense://{{ x }}", source_table="a.b", target="", target_table=("c",)
    )


def test_the_group_serialises_with_its_seven_operators() -> None:
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_dpone.operators import Rolling, deliver_window, target_asset

    with DAG("seven", schedule=None) as dag:
        deliver_window(
            "orders",
            source="chdb:///a",
            source_table=("a", "b"),
            target="warehouse",
            target_table=("c", "d"),
            window_column="t",
            rolling=Rolling("run_after", timedelta(days=1)),
            outlets=[target_asset("warehouse", ("c", "d"))],
        )
    again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    for phase in ("admit", "extract", "stage", "verify", "publish", "evidence", "checkpoint"):
        assert again.get_task(f"orders.{phase}").task_type == f"{phase.capitalize()}WindowOperator"
    assert [asset.uri for asset in again.get_task("orders.checkpoint").outlets] == ["dpone://warehouse/c/d"]
    assert again.get_task("orders.admit").outlets == []
    assert all(task.has_retry_policy for task in again.tasks)


def test_importing_every_operator_loads_nothing_of_ours_that_works() -> None:
    code = "import airflow_dpone.operators as o; [getattr(o, name) for name in o.__all__]"
    base = BASELINE + "\nfrom airflow.sdk import Asset, TaskGroup, chain"
    added = loaded_by(code) - loaded_by(base)
    assert {name for name in added if not name.startswith("airflow_dpone")} == set()
    assert not [name for name in added if name.split(".")[1:2] in ([part] for part in (*INNER, "errors"))]


def test_a_mapped_operator_serialises() -> None:
    """B85: also with as many windows as a month has."""
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    from airflow_dpone.operators import DeliverWindowOperator, Rolling

    with DAG("mapped", schedule=None) as dag:
        DeliverWindowOperator.partial(
            task_id="rolling", rolling=Rolling("run_after", timedelta(days=1)), source="chdb:///a",
            source_table=("a", "b"), target="duckdb:///b", window_column="t",
        ).expand(target_table=[("c", "d"), ("c", "e")])  # fmt: skip
        DeliverWindowOperator.partial(
            task_id="deliver",
            source="chdb:///a",
            source_table=("a", "b"),
            target="duckdb:///b",
            target_table=("c", "d"),
            window_column="t",
        ).expand_kwargs([{"window_start": f"2026-03-{day:02d}T00:00:00Z"} for day in range(1, 29)])
    assert "deliver" in DagSerialization.from_dict(DagSerialization.to_dict(dag)).task_ids
