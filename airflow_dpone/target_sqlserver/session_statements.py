"""The T-SQL about sessions of bulk writers: which there are, what this login may do, and how one is ended."""

from __future__ import annotations

WRITER_PROGRAM = "airflow-dpone writer"
"""What a writer's session calls itself; its ``CONTEXT_INFO`` is the digest of its grant."""

SESSION_CHANGED = 51030
"""The number by which :func:`end_session` says that the session is not the one that was seen."""

# The login, whether it sees sessions of others (the narrower right is there since SQL Server 2022), and
# whether it may end them. Without the first the view shows the asking session alone, and says nothing of it.
RIGHTS = """
SELECT SUSER_SNAME(),
       CASE WHEN 1 IN (HAS_PERMS_BY_NAME(NULL, NULL, 'VIEW SERVER STATE'),
                       HAS_PERMS_BY_NAME(NULL, NULL, 'VIEW SERVER PERFORMANCE STATE')) THEN 1 ELSE 0 END,
       CASE WHEN HAS_PERMS_BY_NAME(NULL, NULL, 'ALTER ANY CONNECTION') = 1 THEN 1 ELSE 0 END;
"""

# Sessions of bulk writers, of whatever delivery and database. The program's name.
WRITERS = """
SELECT s.session_id, CONVERT(nvarchar(40), s.login_time, 126), s.context_info, s.program_name, s.host_name,
       s.login_name, s.status
  FROM sys.dm_exec_sessions AS s
 WHERE s.program_name = ? AND s.context_info IS NOT NULL ORDER BY s.session_id;
"""


def kill(session_id: int) -> str:
    """Ends a session. KILL takes a number and no variable, and no transaction may be open."""
    return f"KILL {int(session_id)};"


def end_session(session_id: int) -> str:
    """Ends a session if it is still the one that was seen, in one batch; else it throws and ends nothing.

    A number is given to the next session as soon as it is free, so all four are compared. Login time,
    context, program.
    """
    return f"""
SET NOCOUNT ON;
DECLARE @login_time nvarchar(40) = ?, @context varbinary(128) = ?, @program nvarchar(128) = ?;
IF NOT EXISTS (SELECT 1 FROM sys.dm_exec_sessions AS s
                WHERE s.session_id = {int(session_id)}
                  AND CONVERT(nvarchar(40), s.login_time, 126) = @login_time
                  AND s.context_info = @context AND s.program_name = @program)
  THROW {SESSION_CHANGED}, 'dpone.recovery.session_changed', 1;
EXEC (N'{kill(session_id)}');
"""
