"""SQL Server's errors by number and by what was being done, never by text.

SQL Server puts values into its messages (the duplicate key, the text that could not be converted), so a
message never goes on: our errors name the number and the action.

What a number means for the delivery depends on the phase. Before bulk load a lost connection is tried again;
inside it the attempt's stage is given up; inside a publication it says nothing about the outcome, which only
the sentinel of the batch and the probe do (``publication``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import pyodbc

from airflow_dpone.errors import DponeError, error_of

_NUMBER = re.compile(r"\((-?\d+)\)(?: \(SQL\w+\))?(?=;|$)")
_LOST = ("08", "HYT01")
_TIMEOUT = "HYT00"


class Kind(StrEnum):
    """What a caller does about an error."""

    BUSY = "busy"
    """Another session was in the way: deadlock, lock timeout, write conflict. Try again."""
    UNAVAILABLE = "unavailable"
    """The server or the way to it is gone, or it has no resources now. Try again."""
    SPACE = "space"
    """A disk, a log or the memory of the server is full."""
    DATA = "data"
    """A value or a row that the table does not take. Trying again changes nothing."""
    CONSTRAINT = "constraint"
    """A constraint or a unique index of the table. Likewise."""
    PERMISSION = "permission"
    """The login may not. A person grants it."""
    LOGIN = "login"
    """The server does not let this login into this database."""
    CHANGED = "changed"
    """An object or a column is not there any more."""
    OTHER = "other"
    """Not classified."""


KINDS: dict[int, Kind] = {
    **dict.fromkeys((1205, 1222, 3960, 3961, 5074, 51010), Kind.BUSY),
    **dict.fromkeys((-2, 64, 121, 233, 10053, 10054, 10060, 17142, 6005), Kind.UNAVAILABLE),
    **dict.fromkeys((40197, 40501, 40613, 49918, 49919, 49920, 10928, 10929), Kind.UNAVAILABLE),
    **dict.fromkeys((701, 802, 1105, 9002, 3257, 40544), Kind.SPACE),
    **dict.fromkeys((220, 232, 241, 242, 245, 248, 8114, 8115, 8152, 2628), Kind.DATA),
    **dict.fromkeys((515, 547, 2601, 2627), Kind.CONSTRAINT),
    **dict.fromkeys((229, 230, 262, 297, 300, 2760, 15151, 15247), Kind.PERMISSION),
    **dict.fromkeys((916, 4060, 18452, 18456, 18470, 18486, 18488), Kind.LOGIN),
    **dict.fromkeys((207, 208, 213, 3701, 4902), Kind.CHANGED),
}
"""SQL Server's number to what it means; everything else is OTHER."""

_CODES: dict[Kind, str] = {
    Kind.BUSY: "dpone.target.busy",
    Kind.UNAVAILABLE: "dpone.target.unavailable",
    Kind.SPACE: "dpone.target.no_space",
    Kind.DATA: "dpone.target.rejected",
    Kind.CONSTRAINT: "dpone.target.rejected",
    Kind.PERMISSION: "dpone.target.permission",
    Kind.LOGIN: "dpone.target.login",
    Kind.CHANGED: "dpone.target.changed",
    Kind.OTHER: "dpone.target.failed",
}
_PUBLICATION_CODES: dict[Kind, str] = {
    **_CODES,
    Kind.BUSY: "dpone.publish.failed",
    Kind.UNAVAILABLE: "dpone.publish.failed",
    Kind.CONSTRAINT: "dpone.publish.constraint",
    Kind.CHANGED: "dpone.publish.target_changed",
    Kind.OTHER: "dpone.publish.failed",
}


def numbers_of(error: pyodbc.Error) -> tuple[int, ...]:
    """SQL Server's numbers of an error, first one first. pyodbc writes them behind each message."""
    text = str(error.args[1]) if len(error.args) > 1 else ""
    return tuple(int(found) for found in _NUMBER.findall(text) if int(found) != 0)


def state_of(error: pyodbc.Error) -> str:
    """The five letters of ODBC's SQLSTATE."""
    return str(error.args[0]) if error.args else ""


def kind_of_number(*numbers: int) -> Kind:
    """What numbers of one error mean together.

    40197 says that the service failed; with a 48xx behind it, a row of the bulk load was refused.
    """
    if 40197 in numbers and any(4800 <= number <= 4899 for number in numbers):
        return Kind.DATA
    return next((KINDS[number] for number in numbers if number in KINDS), Kind.OTHER)


def kind_of(error: pyodbc.Error) -> Kind:
    """What an error means: by its numbers, else by its SQLSTATE."""
    found = kind_of_number(*numbers_of(error))
    if found is not Kind.OTHER:
        return found
    state = state_of(error)
    return Kind.UNAVAILABLE if state.startswith(_LOST) or state == _TIMEOUT else Kind.OTHER


def of_odbc(error: pyodbc.Error, action: str) -> DponeError:
    """Our error for one of the server's, outside of a publication.

    :param action: what was being done, for the sentence "... while <action>".
    """
    numbers, state = numbers_of(error), state_of(error)
    name = f"error {numbers[0]}" if numbers else f"SQLSTATE {state}"
    code = _CODES[kind_of(error)]
    if state == _TIMEOUT and not numbers:
        code = "dpone.target.deadline"
    return error_of(
        code, f"SQL Server said {name} while {action}.", error_number=numbers[0] if numbers else None
    )


def publication_code(number: int) -> str:
    """The code of a publication that is proved rolled back because of this number."""
    return _PUBLICATION_CODES[kind_of_number(number)]


_NOT_THE_TEXT = (Kind.BUSY, Kind.UNAVAILABLE, Kind.SPACE, Kind.PERMISSION, Kind.CHANGED)


def compile_code(number: int) -> str:
    """The code of a publication that the server does not compile; nothing of it was sent to run.

    A server without memory, or a right that is missing, says nothing about the text: told as anywhere else.
    """
    if kind_of_number(number) in _NOT_THE_TEXT:
        return publication_code(number)
    return "dpone.publish.not_compiled"


@contextmanager
def mapped(action: str) -> Iterator[None]:
    """Lets no error of the driver out."""
    try:
        yield
    except pyodbc.Error as error:
        raise of_odbc(error, action) from None
