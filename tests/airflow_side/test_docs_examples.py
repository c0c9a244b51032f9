"""The DAGs of the pages are DAGs, with one delivery in each."""

from __future__ import annotations

from typing import Any

import pytest

from tests.docs_examples import block_with


@pytest.mark.parametrize("page", ["README.md", "docs/sql-server.md"])
def test_a_dag_of_a_page_has_its_delivery(page: str) -> None:
    from airflow.sdk import DAG

    text = block_with(page, "python", 'with DAG("orders"')
    names: dict[str, Any] = {}
    exec(compile(text.replace("catchup=False):", "catchup=False) as dag:"), page, "exec"), names)
    dag = names["dag"]
    assert isinstance(dag, DAG)
    assert dag.task_ids == ["deliver"]
    assert dag.get_task("deliver").retries == 3
