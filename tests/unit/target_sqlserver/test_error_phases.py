"""One error, three phases: what it means before a bulk load, in one, and in a publication. [B54]

``tests/mssql/test_error_phases.py`` shows the third without a sentinel: the outcome is unknown, whatever the
number.
"""

from __future__ import annotations

import pytest

from airflow_dpone.errors import CATALOGUE
from airflow_dpone.target_sqlserver.error_map import compile_code, of_odbc, publication_code
from tests.unit.bulk_writer.test_tds_write import Core, ended, write
from tests.unit.target_sqlserver.test_error_map import error

AGAIN = (
    1205, 1222, 3960, 40613, 40197, 40501, 10928, 10929, 10053, 10054, 10060, 233, 64, -2, 9002, 1105, 701
)  # fmt: skip
"""Tried again by itself before a bulk load: nothing was written. A full disk may have room again."""
NEVER = (4060, 18456, 2627, 547, 245, 8152, 2628, 229)
"""A value, a right, a login: trying again changes nothing."""
A_PERSON = (208,)
"""An object that was there a moment ago: somebody must look."""
ALL = (*AGAIN, *NEVER, *A_PERSON)


@pytest.mark.parametrize("number", ALL)
def test_before_a_bulk_load_the_number_decides(number: int) -> None:
    retry = CATALOGUE[of_odbc(error("42000", number), "creating a staging table").code].retry
    assert retry == ("backoff" if number in AGAIN else "never" if number in NEVER else "after_clear")


@pytest.mark.parametrize("state", ["08S01", "HYT00", "HYT01"])
def test_a_lost_connection_before_a_bulk_load_is_tried_again(state: str) -> None:
    assert CATALOGUE[of_odbc(error(state, 0), "creating a staging table").code].retry == "backoff"


@pytest.mark.parametrize("number", ALL)
@pytest.mark.parametrize("answers", [True, False], ids=["the session answers", "the session is gone"])
def test_in_a_bulk_load_no_number_decides(number: int, answers: bool) -> None:
    """The attempt's stage is given up, or looked at once the session is proved gone: never written again."""

    def fail(core: Core) -> None:
        core.become(is_dead=not answers)
        raise RuntimeError(f"Sql Error: {number}: Class 20: State 1: the message")

    said = write(Core(in_the_load=fail))
    assert ended(said) == (("failure", "load") if answers else ("lost_ack", "session_lost"))
    assert said["input_rows_consumed"] is None


@pytest.mark.parametrize("number", ALL)
def test_in_a_publication_that_is_proved_rolled_back_the_number_says_why(number: int) -> None:
    """Never that it could be sent again as it is: that decides whoever planned it."""
    code = publication_code(number)
    assert CATALOGUE[code].error in ("TargetBusy", "TargetRejected", "ConfigurationError", "CapacityError")


@pytest.mark.parametrize("number", AGAIN)
def test_what_is_tried_again_before_a_bulk_load_is_tried_again_when_the_publication_is_compiled(
    number: int,
) -> None:
    """Nothing was sent to run."""
    assert CATALOGUE[compile_code(number)].retry == "backoff"
