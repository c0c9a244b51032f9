"""The T-SQL of sessions, gate, receipts and staging tables, by name, each with its purpose.

Identifiers enter through ``quoting`` only, values as ``?`` parameters only, in the order in which they stand.
Texts are shown with schema ``dpone`` and ``dpone_stage``; :class:`Schemas` renders them for others.
The batches of publication and probe are in ``batches``, the digest in ``digest_statements``.
"""

from __future__ import annotations

OWNER_PROPERTY = "dpone.owner"
"""The extended property of a staging table that holds its :class:`~.marks.Mark`."""

SESSION_OPTIONS_MASKED = 22392
"""What ``@@OPTIONS & 30590`` must be after :func:`session_settings`."""


def stage_lock(token_sha256: str) -> str:
    """The application lock that the writer with this grant holds in its own session while it writes."""
    return f"dpone:stage:{token_sha256}"


def target_lock(target_key: str) -> str:
    """The application lock under which a target's gate is moved and its window published."""
    return f"dpone:target:{target_key}"


# ---- session --------------------------------------------------------------------------------------


def session_settings(lock_timeout_ms: int) -> str:
    """First batch of every session, without parameters: with them its SETs would end with the batch.

    It refuses a session that has a transaction open, or that would open one by itself.
    """
    return f"""
IF @@TRANCOUNT <> 0 OR (@@OPTIONS & 2) <> 0 THROW 51001, 'dpone.session.transaction_mode', 1;
SET NOCOUNT ON; SET XACT_ABORT ON; SET ANSI_NULLS ON; SET ANSI_PADDING ON; SET ANSI_WARNINGS ON;
SET ANSI_NULL_DFLT_ON ON; SET ARITHABORT ON; SET CONCAT_NULL_YIELDS_NULL ON; SET QUOTED_IDENTIFIER ON;
SET NUMERIC_ROUNDABORT OFF; SET IMPLICIT_TRANSACTIONS OFF; SET CURSOR_CLOSE_ON_COMMIT OFF;
SET FMTONLY OFF; SET NOEXEC OFF; SET ROWCOUNT 0; SET TEXTSIZE 2147483647; SET LANGUAGE us_english;
SET DATEFORMAT ymd; SET DEADLOCK_PRIORITY NORMAL; SET LOCK_TIMEOUT {int(lock_timeout_ms)};
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
"""


# Second batch of every session: what the client requires of the answer is in ``session_facts``.
SESSION_FACTS = """
SELECT @@OPTIONS & 30590 AS options_masked, @@TRANCOUNT AS trancount, DB_NAME() AS db,
       CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS nvarchar(60)) AS updateability,
       CAST(SESSIONPROPERTY('ANSI_NULLS') AS int) AS ansi_nulls,
       CAST(SESSIONPROPERTY('QUOTED_IDENTIFIER') AS int) AS quoted_identifier,
       @@LOCK_TIMEOUT AS lock_timeout_ms, @@LANGUAGE AS lang,
       s.transaction_isolation_level AS isolation_level, s.session_id AS spid, s.login_time
  FROM sys.dm_exec_sessions AS s WHERE s.session_id = @@SPID;
"""


def session_problems(facts: tuple[object, ...], database: str, lock_timeout_ms: int) -> list[str]:
    """What is wrong with a session, from the one row of :data:`SESSION_FACTS`; its values are safe to show.

    :param database: the database that was asked for, compared as SQL Server's default collation does.
    """
    options, trancount, db, updateability, nulls, quotes, lock_ms, language, isolation = facts[:9]
    wanted: tuple[tuple[str, object, object], ...] = (
        ("options", options, SESSION_OPTIONS_MASKED),
        ("open transactions", trancount, 0),
        ("database", str(db).casefold(), database.casefold()),
        ("updateability", updateability, "READ_WRITE"),
        ("ANSI_NULLS", nulls, 1),
        ("QUOTED_IDENTIFIER", quotes, 1),
        ("lock timeout", lock_ms, lock_timeout_ms),
        ("language", language, "us_english"),
        ("isolation level", isolation, 2),
    )
    return [f"{name} is {found}, not {right}" for name, found, right in wanted if found != right]
