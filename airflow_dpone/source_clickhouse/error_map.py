"""What a ClickHouse error means for a delivery: by its number only, never by its text.

The text of a ClickHouse error may quote values of rows, so none of it is kept: a message of ours has the
number and ClickHouse's constant name for it. A number that is not listed is not tried again by itself.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_dpone.errors import (
    CATALOGUE,
    ConfigurationError,
    DponeError,
    Problem,
    SourceDataError,
    SourceMoved,
    SourceUnavailable,
)

_TRANSPORT, _LIMIT, _STOPPED = "dpone.source.unavailable", "dpone.source.limit", "dpone.source.stopped"
_GONE, _ACCESS, _CORRUPT = "dpone.source.gone", "dpone.source.access", "dpone.source.corrupt"
_SETTING, _UNKNOWN = "dpone.source.setting", "dpone.source.failed"
_PROTOCOL = "dpone.source.protocol"

UNKNOWN_SETTING, READONLY, CONSTRAINT, ACCESS_DENIED = 115, 164, 452, 497

ERROR_CODES: dict[int, str] = {
    # The data on the server's disk cannot be read; asking again reads the same bytes.
    **dict.fromkeys((32, 33, 40, 246, 271, 354, 432, 740), _CORRUPT),
    # The table is not the one that was planned any more.
    **dict.fromkeys((8, 10, 16, 47, 60, 81, 218, 369), _GONE),
    # A bound of the server: memory, time, rows, result, concurrency, disk.
    **dict.fromkeys((158, 159, 160, 173, 202, 203, 241, 243, 290, 307, 396, 439, 745), _LIMIT),
    # Somebody ended the query.
    **dict.fromkeys((236, 394, 734), _STOPPED),
    # The way to the server, or the server's own storage and coordination.
    **dict.fromkeys(
        (3, 74, 75, 76, 95, 101, 198, 201, 209, 210, 225, 242, 279, 319, 425, 499, 999), _TRANSPORT
    ),
    # Who we are and what we may do or set.
    **dict.fromkeys((192, 193, 194, 195, 291, 492, 495, ACCESS_DENIED, 516), _ACCESS),
    **dict.fromkeys((UNKNOWN_SETTING, READONLY, CONSTRAINT), _SETTING),
    217: _PROTOCOL,
}
"""ClickHouse's error number -> our code. The names are in ClickHouse's ErrorCodes.cpp."""

_CLASSES: dict[str, type[DponeError]] = {
    kind.__name__: kind for kind in (SourceDataError, SourceMoved, SourceUnavailable)
}
_NUMBER = re.compile(r"\bCode: (\d{1,5})\b")
# At the end only: what stands in parentheses before it may be a value of a row.
_NAME = re.compile(r"\(([A-Z][A-Z0-9_]{2,80})\)(?: \(version [^()]*(?:\([^()]*\))?[^()]*\))?[.\s]*\Z")


def number_of(text: str) -> int | None:
    """The error number that an engine's exception text starts with, or None if it has none."""
    match = _NUMBER.search(text)
    return int(match[1]) if match else None


def error_of(text: str, doing: str) -> DponeError:
    """The error to raise for an engine's exception.

    :param text: the exception's text; only the number and the constant name are taken from it.
    :param doing: what was being done, for the message: ``reading the window``.
    """
    name = _NAME.search(text)
    return answered(number_of(text), name[1] if name else None, doing)


def answered(number: int | None, name: str | None, doing: str, **fields: Any) -> DponeError:
    """The error to raise for a number that ClickHouse answered, with its constant name if that is known.

    :param doing: as for :func:`error_of`. :param fields: ids for the error, such as ``query_id``.
    """
    label = f"error {number}" if number is not None else "an error without a number"
    if number is not None and name is not None:
        label += f" ({name})"
    told = "".join(f", {key} {value}" for key, value in fields.items())
    return error_by_number(number, f"ClickHouse answered {label} while {doing}{told}.", **fields)


def error_by_number(number: int | None, message: str, **fields: Any) -> DponeError:
    """The error of our catalogue for ClickHouse's number; an unknown number is never retried."""
    code = _UNKNOWN if number is None else ERROR_CODES.get(number, _UNKNOWN)
    name = CATALOGUE[code].error
    if name == ConfigurationError.__name__:
        found = (Problem(code, "source", message),)
        return ConfigurationError(code, message, problems=found, clickhouse_code=number, **fields)
    return _CLASSES[name](code, message, clickhouse_code=number, **fields)
