"""What tests of publications share: something in the background, and how a table looks before and after."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from airflow_dpone.errors import OutcomeUnknown
from tests.contract.target_cases import BEFORE, NEW, OUTSIDE, sorted_rows
from tests.mssql.lab import MssqlLab


def in_background(call: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(call)
    finally:
        pool.shutdown(wait=False)


def published(lab: MssqlLab) -> bool:
    return lab.rows("orders") == sorted_rows([*OUTSIDE, *NEW])


def unpublished(lab: MssqlLab) -> bool:
    return lab.rows("orders") == sorted_rows(BEFORE) and lab.count_receipts() == 0


def unknown(call: Callable[[], Any]) -> None:
    with pytest.raises(OutcomeUnknown) as caught:
        call()
    assert caught.value.code == "dpone.publish.outcome_unknown"
