"""The widest table that is admitted: its proof and its publication compile and are right."""

from __future__ import annotations

import os
from itertools import cycle, islice

from airflow_dpone.delivery.ports import Deadline
from airflow_dpone.target_sqlserver.digest_statements import CERTIFIED_COLUMNS
from tests.contract.target_cases import EXTREMES, ID, TS, Column, Delivery, Row, at, sum_of
from tests.mssql.lab import MssqlLab

KINDS = [(source, kind, values[-1]) for (source, kind), values in EXTREMES.items() if source != "String"]
ON_THE_STANDIN = 60
"""It takes minutes to parse 250; DPONE_TEST_MSSQL_WIDE=1 asks it for all of them."""


def test_the_certified_number_of_columns_of_every_kind_is_proved_and_published(mssql_lab: MssqlLab) -> None:
    """[D7] Compile time and limits of SQL Server itself are UNVERIFIED."""
    fewer = mssql_lab.is_standin and not os.environ.get("DPONE_TEST_MSSQL_WIDE")
    wide = list(islice(cycle(KINDS), (ON_THE_STANDIN if fewer else CERTIFIED_COLUMNS) - 2))
    columns = [ID, TS, *[Column(f"c{i}", source, kind) for i, (source, kind, _) in enumerate(wide)]]
    mssql_lab.create_table("wide", columns)
    rows: list[Row] = [(number, at(2, number), *[value for *_, value in wide]) for number in range(3)]
    with mssql_lab.open() as target:
        delivery = Delivery(target, columns, "wide")
        delivery.claim()
        stage = delivery.create()
        delivery.grant(stage)
        delivery.write(stage, rows)
        digest = sum_of(rows, delivery.layout).digest
        seen = target.verify_stage(stage, delivery.layout, 3, digest, deadline=Deadline.after(600))
        assert seen.rows == 3
        delivery.chunks.append(stage)
        prepared, seen = delivery.build(*delivery.names("prepared"), delivery.chunks, 3)
        request = delivery.request(prepared, rows)
        assert seen.proves(request.expected)
        assert target.publish(request).kind == "committed"
    assert mssql_lab.run("SELECT COUNT(*) FROM [shop].[wide]") == [(3,)]
