"""How much room data and log have, and how readers will fare: observed, never reserved.

What a login may not see is said to be unknown. Nothing is refused because of it: a window that does not fit
ends in a publication that is rolled back (9002, 1105).
"""

from __future__ import annotations

from collections.abc import Callable

import pyodbc

from airflow_dpone.target_sqlserver import error_map
from airflow_dpone.target_sqlserver import preflight_statements as sql
from airflow_dpone.target_sqlserver.session import Row, Session

_PAGES_PER_MIB = 128
_LOG = 1


def observe(session: Session, object_id: int | None) -> tuple[str, ...]:
    """One sentence for each thing seen. :param object_id: the target's, None if it is not there yet."""
    found = [
        *_asked(session, "data files and log", sql.FILES, _files),
        *_asked(session, "used part of the log", sql.LOG_SPACE, _log),
        *_asked(session, "readers", sql.READERS, _readers),
    ]
    if object_id is not None:
        found += _asked(session, "lock escalation", sql.LOCK_ESCALATION, _escalation, object_id)
    return tuple(found)


def _asked(
    session: Session, what: str, text: str, told: Callable[[Row], str], *parameters: object
) -> list[str]:
    """What an answer means; one that is refused or empty means nothing."""
    try:
        rows = session.rows(text, *parameters)
    except pyodbc.Error as error:
        numbers = error_map.numbers_of(error)
        why = f"error {numbers[0]}" if numbers else f"SQLSTATE {error_map.state_of(error)}"
        return [f"{what}: unknown, the server does not tell this login ({why})"]
    return [told(row) for row in rows] or [f"{what}: unknown, the catalog shows nothing"]


def _files(row: Row) -> str:
    kind, size, used, most, is_bounded = row
    what = "log" if kind == _LOG else "data files"
    text = f"{what}: {_mib(size)} allocated"
    if used is not None and kind != _LOG:
        text += f", {_mib(size - used)} of it free"
    if not is_bounded:
        return f"{text}; may grow until the disk is full"
    return f"{text}; may grow to {_mib(most)}" if most > size else f"{text}; may not grow"


def _log(row: Row) -> str:
    total, used, waits_for = row
    text = f"used part of the log: {_mib(used)} of {_mib(total)}"
    return text if waits_for == "NOTHING" else f"{text}; what is used waits for {waits_for}"


def _readers(row: Row) -> str:
    snapshot, allowed = row
    if snapshot:
        text = "under READ COMMITTED they see the old rows until a publication commits"
    else:
        text = "under READ COMMITTED they wait for a publication"
    return f"readers: {text} (READ_COMMITTED_SNAPSHOT {'ON' if snapshot else 'OFF'}, snapshots {allowed})"


def _escalation(row: Row) -> str:
    return f"lock escalation: {row[0]}"


def _mib(pages: int) -> str:
    return f"{int(pages) / _PAGES_PER_MIB:,.1f} MiB"
