"""Sessions of bulk writers on the server: who is there, and the end of exactly one of them."""

from __future__ import annotations

import pyodbc

from airflow_dpone.delivery.lost_writers import WriterSession, WriterSessions
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.target_sqlserver import error_map
from airflow_dpone.target_sqlserver import session_statements as sql
from airflow_dpone.target_sqlserver.quoting import quoted
from airflow_dpone.target_sqlserver.session import Session

_NOT_ACTIVE = 6106
"""The session ended between the comparison and KILL."""
_MAY_NOT = 6102
"""The login may not use KILL."""


def find(session: Session) -> WriterSessions:
    """Every writer's session of the server.

    :raises ConfigurationError: ``dpone.recovery.sessions_hidden``: the login sees no session but its own, so
        that finding none would mean nothing.
    """
    login, sees, may_end = session.row(sql.RIGHTS) or ("", 0, 0)
    if not sees:
        raise ConfigurationError(
            "dpone.recovery.sessions_hidden",
            f"The login {login} does not see the sessions of others on this server.",
            next_action=f"Let an administrator run GRANT VIEW SERVER STATE TO {quoted(login)};, or name a "
            "connection with --target whose login has the right, and repeat the command.",
        )
    rows = session.rows(sql.WRITERS, sql.WRITER_PROGRAM)
    return WriterSessions(str(login), bool(may_end), tuple(_session(*row) for row in rows))


def end(session: Session, seen: WriterSession) -> None:
    """Ends the session that was seen, and no other one; the server then undoes what it had open.

    :raises ConfigurationError: ``dpone.recovery.session_changed``: it is not that session any more;
        ``dpone.target.permission``: the login may not. Nothing was ended then.
    """
    values = (seen.login_time, bytes.fromhex(seen.context_info), seen.program_name)
    try:
        session.execute(sql.end_session(seen.session_id), *values)
    except pyodbc.Error as error:
        known = _why_not(error, seen.session_id)
        if known is None:
            raise
        raise known from None


def _why_not(error: pyodbc.Error, session_id: int) -> ConfigurationError | None:
    numbers = error_map.numbers_of(error)
    if _MAY_NOT in numbers:
        text = f"The login of the connection may not end session {session_id}."
        grant = (
            "Let an administrator GRANT it ALTER ANY CONNECTION, name a connection with --target whose login "
            "has it, or let an administrator run the KILL."
        )
        return ConfigurationError("dpone.target.permission", text, next_action=grant)
    if sql.SESSION_CHANGED in numbers or _NOT_ACTIVE in numbers:
        text = f"Session {session_id} is not the one any more that was seen, and was not ended."
        return ConfigurationError("dpone.recovery.session_changed", text, session_id=session_id)
    return None


def _session(
    session_id: int,
    login_time: str,
    context: bytes,
    program: str,
    host: str | None,
    login: str | None,
    status: str | None,
) -> WriterSession:
    return WriterSession(
        session_id=int(session_id),
        login_time=login_time,
        context_info=bytes(context).hex(),
        program_name=program,
        host_name=host or "",
        login_name=login or "",
        status=status or "",
        kill=sql.kill(session_id),
    )
