"""What an error of the file system becomes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from airflow_dpone.errors import CapacityError, SpoolError
from airflow_dpone.spool.chunk_file import spool_error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_no_room_names_the_free_bytes(tmp_path: Path, number: int) -> None:
    """[settled 2.22] A quota and a size limit are no room as well."""
    error = spool_error(OSError(number, "x"), str(tmp_path / "000000.part"), ordinal=4)
    assert isinstance(error, CapacityError)
    assert (error.code, error.retry) == ("dpone.spool.full", "backoff")
    assert f"{error.fields['free_bytes']} bytes free" in str(error)
    assert (error.fields["free_bytes"] > 0, error.fields["ordinal"]) == (True, 4)


def test_no_room_is_said_even_where_nothing_can_be_asked() -> None:
    assert spool_error(OSError(errno.ENOSPC, "x"), "/no/such/place/x").code == "dpone.spool.full"


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EIO, "dpone.spool.io"),
        (errno.ESTALE, "dpone.spool.io"),
        (errno.ELOOP, "dpone.spool.unusable"),
        (errno.EACCES, "dpone.spool.unusable"),
        (errno.EROFS, "dpone.spool.unusable"),
    ],
)
def test_the_rest_by_number(number: int, code: str) -> None:
    error = spool_error(OSError(number, "x"), "/spool/x")
    assert isinstance(error, SpoolError)
    assert error.code == code
    assert error.fields["path"] == "/spool/x"
