"""DuckDB's errors by exception class, never by text.

DuckDB puts values into its messages (the duplicate key, the text that could not be converted), so a message
never goes on: our errors name the class and what was being done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_dpone.errors import CapacityError, DponeError, Incident, TargetBusy, TargetRejected
from airflow_dpone.target_embedded.engine import duckdb

NOT_NULL_NUMBER = 515
CHECK_NUMBER = 547
UNIQUE_NUMBER = 2627
"""Numbers that SQL Server gives the same faults; DuckDB has one class for all of them."""

_MAP: tuple[tuple[tuple[type[duckdb.Error], ...], type[DponeError], str], ...] = (
    ((duckdb.OutOfMemoryException,), CapacityError, "dpone.target.memory"),
    ((duckdb.IOException,), TargetBusy, "dpone.target.io"),
    ((duckdb.TransactionException,), TargetBusy, "dpone.target.conflict"),
    (
        (
            duckdb.ConstraintException,
            duckdb.ConversionException,
            duckdb.OutOfRangeException,
            duckdb.TypeMismatchException,
        ),
        TargetRejected,
        "dpone.target.rejected",
    ),
    ((duckdb.CatalogException, duckdb.BinderException), Incident, "dpone.target.changed"),
)


def of_duckdb(error: duckdb.Error, action: str) -> DponeError:
    """Our error for one of DuckDB's, outside of a publication.

    :param action: what was being done, for the sentence "... while <action>".
    """
    name = type(error).__name__
    for classes, ours, code in _MAP:
        if isinstance(error, classes):
            return ours(code, f"DuckDB said {name} while {action}.", duckdb_error=name)
    return TargetBusy("dpone.target.failed", f"DuckDB said {name} while {action}.", duckdb_error=name)


@contextmanager
def mapped(action: str) -> Iterator[None]:
    """Lets no error of DuckDB out."""
    try:
        yield
    except duckdb.Error as error:
        raise of_duckdb(error, action) from None
