"""What a number of SQL Server means, by phase. [B54]"""

from __future__ import annotations

import pyodbc
import pytest

from airflow_dpone.errors import CATALOGUE
from airflow_dpone.target_sqlserver.error_map import (
    Kind,
    kind_of,
    kind_of_number,
    numbers_of,
    of_odbc,
    publication_code,
)

# number, before bulk load, after a proved rollback of the publication
TABLE = [
    (1205, "dpone.target.busy", "dpone.publish.failed"),
    (1222, "dpone.target.busy", "dpone.publish.failed"),
    (3960, "dpone.target.busy", "dpone.publish.failed"),
    (40613, "dpone.target.unavailable", "dpone.publish.failed"),
    (40197, "dpone.target.unavailable", "dpone.publish.failed"),
    (40501, "dpone.target.unavailable", "dpone.publish.failed"),
    (10928, "dpone.target.unavailable", "dpone.publish.failed"),
    (10929, "dpone.target.unavailable", "dpone.publish.failed"),
    (10053, "dpone.target.unavailable", "dpone.publish.failed"),
    (10054, "dpone.target.unavailable", "dpone.publish.failed"),
    (10060, "dpone.target.unavailable", "dpone.publish.failed"),
    (233, "dpone.target.unavailable", "dpone.publish.failed"),
    (64, "dpone.target.unavailable", "dpone.publish.failed"),
    (-2, "dpone.target.unavailable", "dpone.publish.failed"),
    (4060, "dpone.target.login", "dpone.target.login"),
    (18456, "dpone.target.login", "dpone.target.login"),
    (9002, "dpone.target.no_space", "dpone.target.no_space"),
    (1105, "dpone.target.no_space", "dpone.target.no_space"),
    (701, "dpone.target.no_space", "dpone.target.no_space"),
    (2627, "dpone.target.rejected", "dpone.publish.constraint"),
    (2601, "dpone.target.rejected", "dpone.publish.constraint"),
    (547, "dpone.target.rejected", "dpone.publish.constraint"),
    (515, "dpone.target.rejected", "dpone.publish.constraint"),
    (245, "dpone.target.rejected", "dpone.target.rejected"),
    (8152, "dpone.target.rejected", "dpone.target.rejected"),
    (2628, "dpone.target.rejected", "dpone.target.rejected"),
    (208, "dpone.target.changed", "dpone.publish.target_changed"),
    (207, "dpone.target.changed", "dpone.publish.target_changed"),
    (229, "dpone.target.permission", "dpone.target.permission"),
    (1934, "dpone.target.failed", "dpone.publish.failed"),
    (33557097, "dpone.target.failed", "dpone.publish.failed"),
]


def error(state: str, *numbers: int, text: str = "[SQL Server]secret 'x' (5) in the text") -> pyodbc.Error:
    """As pyodbc writes it: the first record with the function behind it, the others without."""
    records = [f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server]{text} ({numbers[0]}) (SQLExecDirectW)"]
    records += [f"[{state}] [Microsoft]{text} ({number})" for number in numbers[1:]]
    return pyodbc.Error(state, "; ".join(records))


@pytest.mark.parametrize(("number", "before_bulk", "publication"), TABLE, ids=lambda v: str(v))
def test_a_number_means_one_thing_in_each_phase(number: int, before_bulk: str, publication: str) -> None:
    found = of_odbc(error("42000", number), "doing something")
    assert found.code == before_bulk
    assert found.fields["error_number"] == number
    assert "secret" not in str(found)
    assert publication_code(number) == publication
    assert publication in CATALOGUE


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("08S01", "dpone.target.unavailable"),
        ("08001", "dpone.target.unavailable"),
        ("HYT01", "dpone.target.unavailable"),
        ("HYT00", "dpone.target.deadline"),
        ("HY000", "dpone.target.failed"),
    ],
)
def test_without_a_number_the_state_decides(state: str, code: str) -> None:
    assert of_odbc(error(state, 0), "doing something").code == code


def test_a_failed_service_with_a_refused_row_behind_it_is_a_data_fault() -> None:
    """[B23] It looks transient, and would be tried for ever."""
    assert kind_of(error("42000", 40197, 4804)) is Kind.DATA
    assert kind_of_number(40197) is Kind.UNAVAILABLE
    assert kind_of_number(40197, 4799) is Kind.UNAVAILABLE


def test_numbers_in_a_message_are_not_the_number() -> None:
    assert numbers_of(error("23000", 2627, text="Violation. The duplicate key value is (515) (x)")) == (2627,)
    assert numbers_of(error("42000", 1205, 3621)) == (1205, 3621)
    assert numbers_of(pyodbc.Error("08S01")) == ()


def test_every_kind_has_a_code_in_each_phase() -> None:
    for number in (1205, 64, 701, 245, 547, 229, 4060, 208, 12345):
        assert publication_code(number) in CATALOGUE
