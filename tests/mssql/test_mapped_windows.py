"""Many windows of one target at once, by four workers of a real Airflow, each with sessions of its own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from airflow_dpone.target_sqlserver.target import SqlServerTarget
from tests.mssql.dags.mapped import WINDOWS
from tests.mssql.server import OwnDatabase, airflow_connection
from tests.standalone.airflow_server import Standalone
from tests.standalone.world import Home

START = datetime(2026, 3, 1, 20)
TABLE = """CREATE TABLE [sales].[orders] (id bigint NOT NULL, ordered datetime2(6) NULL,
    [key] uniqueidentifier NULL, amount decimal(18,4) NOT NULL, discount float NULL, items int NOT NULL,
    paid bit NOT NULL, day date NOT NULL, note nvarchar(max) NULL)"""


@pytest.fixture
def airflow(tmp_path: Path, database: OwnDatabase) -> Iterator[Standalone]:
    """With the connection ``warehouse`` in its environment."""
    server = Standalone(tmp_path / "airflow", dags=Path(__file__).parent / "dags")
    server.environment["AIRFLOW_CONN_WAREHOUSE"] = airflow_connection(database.where)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.timeout(3000)
def test_many_mapped_windows_end_exact(airflow: Standalone, database: OwnDatabase, tmp_path: Path) -> None:
    """[B83, B85] One receipt for each window, nothing left behind. DPONE_TEST_MSSQL_WINDOWS says how many."""
    connection = database.connection()
    for text in ("CREATE SCHEMA [sales]", TABLE):
        connection.execute(text)
    with SqlServerTarget(database.where) as target:
        target.initialise()
    home = Home.of_engines(tmp_path / "home")
    run = airflow.trigger("mapped", "mapped", home=str(home.path))
    assert run.wait(patience_sec=2700) == "success"
    results = [run.xcom(map_index=number) for number in range(WINDOWS)]
    assert {(result["state"], result["generation"]) for result in results} == {("COMPLETED", 1)}
    end = START + timedelta(hours=WINDOWS)
    source = [(number, START + timedelta(hours=2 * number)) for number in (*range(6), 5, *range(7, 20))]
    expected = sorted(row for row in source if row[1] < end)
    found = connection.execute("SELECT id, ordered FROM [sales].[orders]").fetchall()
    assert sorted((row[0], row[1]) for row in found) == expected
    receipts = connection.execute("SELECT generation FROM [dpone].[delivery_receipt]").fetchall()
    assert [row[0] for row in receipts] == [1] * WINDOWS
    stages = connection.execute(
        "SELECT COUNT(*) FROM sys.tables AS t WHERE t.schema_id = SCHEMA_ID(N'dpone_stage')"
    ).fetchall()
    assert stages[0][0] == 0
