"""Errors by class, and never with a value in them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from airflow_dpone.errors import CapacityError, DponeError, Incident, TargetBusy, TargetRejected
from airflow_dpone.target_embedded.error_map import mapped, of_duckdb
from tests.contract.target_cases import ID, TS, Column, Delivery, EmbeddedLab, at


@pytest.mark.parametrize(
    ("error", "ours", "code"),
    [
        (duckdb.OutOfMemoryException, CapacityError, "dpone.target.memory"),
        (duckdb.IOException, TargetBusy, "dpone.target.io"),
        (duckdb.TransactionException, TargetBusy, "dpone.target.conflict"),
        (duckdb.ConstraintException, TargetRejected, "dpone.target.rejected"),
        (duckdb.ConversionException, TargetRejected, "dpone.target.rejected"),
        (duckdb.OutOfRangeException, TargetRejected, "dpone.target.rejected"),
        (duckdb.CatalogException, Incident, "dpone.target.changed"),
        (duckdb.BinderException, Incident, "dpone.target.changed"),
        (duckdb.FatalException, TargetBusy, "dpone.target.failed"),
        (duckdb.InternalException, TargetBusy, "dpone.target.failed"),
        (duckdb.Error, TargetBusy, "dpone.target.failed"),
    ],
)
def test_each_class_has_its_code(error: type[duckdb.Error], ours: type[DponeError], code: str) -> None:
    found = of_duckdb(error("Duplicate key 'secret value'"), "working")
    assert (type(found), found.code) == (ours, code)
    assert "secret" not in str(found)
    assert error.__name__ in found.message
    assert pickle.loads(pickle.dumps(found)).code == code


def test_the_original_does_not_travel_along() -> None:
    with pytest.raises(TargetRejected) as caught, mapped("working"):
        raise duckdb.ConstraintException("secret value")
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


def test_other_errors_pass_through() -> None:
    with pytest.raises(KeyError), mapped("working"):
        raise KeyError("x")


@pytest.fixture
def delivery(tmp_path: Path) -> Iterator[Delivery]:
    lab = EmbeddedLab(tmp_path)
    columns = (ID, Column("n", "Int64", "bigint"), TS)
    lab.create_table("orders", columns)
    with lab.open() as target:
        yield Delivery(target, columns)


def test_a_null_where_none_may_be_is_refused_by_the_stage(delivery: Delivery) -> None:
    stage = delivery.create()
    delivery.grant(stage)
    arrays: list[Any] = [
        pa.array([4711]),
        pa.array([None], pa.int64()),
        pa.array([at(2)], pa.timestamp("ms")),
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=delivery.layout.arrow_schema)
    with pytest.raises(TargetRejected) as caught:
        delivery.put(stage, iter([batch]))
    assert caught.value.code == "dpone.target.rejected"
    assert "4711" not in str(caught.value)
    assert delivery.verify(stage, 1).rows == 0
