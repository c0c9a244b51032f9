"""An error instead of the sentinel of a publication: unknown, whatever its number. [B54]"""

from __future__ import annotations

from typing import Any

import pyodbc
import pytest

from airflow_dpone.errors import OutcomeUnknown
from airflow_dpone.target_sqlserver import publication_statements as batches
from airflow_dpone.target_sqlserver.session import Session
from tests.contract.target_cases import NEW, ORDERS, Delivery
from tests.mssql.lab import MssqlLab
from tests.unit.target_sqlserver.test_error_map import error
from tests.unit.target_sqlserver.test_error_phases import ALL


def test_without_a_sentinel_every_number_leaves_the_outcome_unknown(
    mssql_lab: MssqlLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver raises where the batch would have answered: in the midst of it, or of its COMMIT."""
    mssql_lab.create_table("orders", ORDERS)
    faults = [error("42000", number) for number in ALL]
    faults += [error(state, 0) for state in ("08S01", "HYT00", "HYT01")]
    results = Session.results

    with mssql_lab.open() as target:
        delivery = Delivery(target, invocation="phases")
        delivery.claim()
        request = delivery.request(delivery.prepare(NEW), NEW)
        for fault in faults:

            def answer(session: Session, text: str, *parameters: object, why: pyodbc.Error = fault) -> Any:
                if "dpone.publish.fenced" in text and parameters[batches.PLACES["rehearsal"]] == 0:
                    raise why
                return results(session, text, *parameters)

            monkeypatch.setattr(Session, "results", answer)
            with pytest.raises(OutcomeUnknown) as caught:
                target.publish(request)
            assert caught.value.code == "dpone.publish.outcome_unknown"
        monkeypatch.setattr(Session, "results", results)
        assert delivery.probe().receipt is None
        assert delivery.send(request).kind == "committed"
