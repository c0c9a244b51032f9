"""The T-SQL of a writer's session. Texts, because the core takes no parameters in ``execute``.

What enters is an integer, hex digits, or a name through ``quoting``. Every answer begins with the number that
its question was given: after a load in several transactions the core was seen to answer a question with the
result of the one before.
"""

from __future__ import annotations

from airflow_dpone.target_sqlserver.quoting import literal, qualified
from airflow_dpone.target_sqlserver.statements import OWNER_PROPERTY


def take_lock(number: int, resource: str) -> str:
    """The session's lock, now or not at all: who holds it will not leave the stage to this writer."""
    return f"""
DECLARE @granted int;
EXEC @granted = sys.sp_getapplock @Resource = {literal(resource)}, @LockMode = 'Exclusive',
     @LockOwner = 'Session', @LockTimeout = 0, @DbPrincipal = N'public';
SELECT {number} AS question, @granted AS granted;
"""


def name_session(token_sha256: str) -> str:
    """Writes the grant into the session, where an administrator finds it and a restored session has none."""
    return f"DECLARE @grant varbinary(128) = 0x{bytes.fromhex(token_sha256).hex()}; SET CONTEXT_INFO @grant;"


def custody(number: int, resource: str, schema: str, stage: str, object_id: int) -> str:
    """One row: who this session is, what it holds, and what the stage says. Asked before and after a load."""
    return f"""
SELECT {number} AS question, @@SPID AS spid, CONVERT(nvarchar(40), s.login_time, 126) AS login_time,
       SUBSTRING(CONTEXT_INFO(), 1, 32) AS context,
       APPLOCK_MODE('public', {literal(resource)}, 'Session') AS lock_mode,
       OBJECT_ID({literal(qualified(schema, stage))}, N'U') AS object_id,
       (SELECT CAST(p.value AS nvarchar(400)) FROM sys.extended_properties AS p
         WHERE p.class = 1 AND p.minor_id = 0 AND p.major_id = {int(object_id)}
           AND p.name = {literal(OWNER_PROPERTY)}) AS mark
  FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;
"""
