"""The contract of ``TargetPort`` on SQL Server: the same tests, over this folder's lab."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract import test_target_contract as contract
from tests.contract.test_target_contract import *  # noqa: F403
from tests.mssql.lab import MssqlLab

GAPS = {
    "test_a_constraint_fault_is_a_proved_rollback[CHECK]": "gives error 547 another number",
    "test_a_prepared_table_that_changed_is_not_published[too long for its type]": "",
    "test_a_window_column_with_an_exotic_name": "takes no ] in a name",
    r"test_exotic_table_names_are_delivered_into[\u043a\u043b\u044e\u0447 \U0001f600]": (
        "shows names outside of ASCII as question marks"
    ),
}
"""Cases that this server does not let happen: by name why the stand-in does not, or '' for every server."""


@pytest.fixture
def empty_lab(mssql_lab: MssqlLab, request: pytest.FixtureRequest) -> MssqlLab:
    """Instead of the contract's own labs."""
    why = GAPS.get(request.node.name)
    if why == "":
        pytest.skip("capability gap: the server itself refuses a value that is too long for its type")
    if why and mssql_lab.is_standin:
        pytest.skip(f"capability gap: UNVERIFIED without SQL Server: the stand-in {why}")
    return mssql_lab


@pytest.fixture(autouse=True)
def what_the_standin_holds(mssql_lab: MssqlLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in stores no U+0000 and cuts names that its own database cannot have."""
    if mssql_lab.is_standin:
        kept = {pair: [v for v in values if not _has_nul(v)] for pair, values in contract.EXTREMES.items()}
        monkeypatch.setattr(contract, "EXTREMES", kept)
        monkeypatch.setattr(contract, "EXOTIC", [name for name in contract.EXOTIC if _is_name(name)])


def _has_nul(value: Any) -> bool:
    return isinstance(value, str) and "\0" in value


def _is_name(name: str) -> bool:
    return name.isascii() and "]" not in name and len(name) < 60 and name.strip() != ""
