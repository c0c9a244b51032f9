"""The contract of ``TargetPort`` on SQL Server: the same tests, over this folder's lab."""

from __future__ import annotations

import pytest

from tests.contract.test_target_contract import *  # noqa: F403
from tests.mssql.lab import MssqlLab


@pytest.fixture
def empty_lab(mssql_lab: MssqlLab) -> MssqlLab:
    """Instead of the contract's own labs."""
    return mssql_lab
