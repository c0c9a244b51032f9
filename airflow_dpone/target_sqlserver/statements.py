"""The T-SQL of sessions, catalog, gate, receipts and staging tables, by name, each with its purpose.

Identifiers enter through ``quoting`` only, values as ``?`` parameters only, in the order in which they stand.
Publication and probe, digest, preflight and installation have modules of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_dpone.target_sqlserver.quoting import literal, qualified, quoted

OWNER_PROPERTY = "dpone.owner"
"""The extended property of a staging table that holds its :class:`~.marks.Mark`."""

SESSION_OPTIONS_MASKED = 22392
"""What ``@@OPTIONS & 30590`` must be after :func:`session_settings`."""


@dataclass(frozen=True)
class Schemas:
    """Where our own tables are in the target's database.

    :param control: ``installation``, ``target_gate``, ``delivery_receipt``. :param stage: staging tables.
    """

    control: str = "dpone"
    stage: str = "dpone_stage"

    @property
    def installation(self) -> str:
        """The identity of the database."""
        return qualified(self.control, "installation")

    @property
    def gate(self) -> str:
        """Who may publish."""
        return qualified(self.control, "target_gate")

    @property
    def receipt(self) -> str:
        """What was published."""
        return qualified(self.control, "delivery_receipt")

    def stage_path(self, name: str) -> str:
        """A staging table."""
        return qualified(self.stage, name)


def stage_lock(token_sha256: str) -> str:
    """The application lock that the writer with this grant holds in its own session while it writes."""
    return f"dpone:stage:{token_sha256}"


def mark_lock(name: str) -> str:
    """The application lock under which the mark of a staging table is changed."""
    return f"dpone:mark:{name}"


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


# Second batch of every session: what the client requires of the answer is in ``session_problems``.
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

    :param database: the database that was asked for; case is for the server to judge.
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


BEGIN = "BEGIN TRANSACTION;"
COMMIT = "COMMIT TRANSACTION WITH (DELAYED_DURABILITY = OFF);"
ROLLBACK = "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;"

# An application lock of the open transaction. Resource, timeout in milliseconds; 0 or 1 is granted.
TAKE_LOCK = """
SET NOCOUNT ON;
DECLARE @rc int, @resource nvarchar(255) = ?, @timeout int = ?;
EXEC @rc = sys.sp_getapplock @Resource = @resource, @LockMode = 'Exclusive', @LockOwner = 'Transaction',
     @LockTimeout = @timeout, @DbPrincipal = N'public';
SELECT @rc AS granted;
"""

# ---- catalog --------------------------------------------------------------------------------------

# What a name is now, and how it is stored. The quoted name; no row when there is no such object.
OBJECT = """
SELECT s.name, o.name, RTRIM(o.type), o.object_id, CONVERT(char(23), o.create_date, 121)
  FROM sys.objects AS o INNER JOIN sys.schemas AS s ON s.schema_id = o.schema_id
 WHERE o.object_id = OBJECT_ID(?);
"""

# A schema's id, or NULL. Its name.
SCHEMA_ID = "SELECT SCHEMA_ID(?);"

# A schema's name as it is stored; no row when there is none. Its name in any case that the database takes.
SCHEMA_NAME = "SELECT s.name FROM sys.schemas AS s WHERE s.schema_id = SCHEMA_ID(?);"

# Names of all user tables, for a hint when one is missing.
TABLES = """
SELECT s.name, t.name FROM sys.tables AS t INNER JOIN sys.schemas AS s ON s.schema_id = t.schema_id;
"""

# One table's columns in order, as the catalog has them. The object id.
COLUMNS = """
SELECT c.column_id, c.name, TYPE_NAME(c.user_type_id), c.user_type_id, CAST(c.max_length AS int),
       CAST(c.precision AS int), CAST(c.scale AS int), CAST(c.is_nullable AS int), c.collation_name,
       CAST(c.is_identity AS int), CAST(c.is_computed AS int), CAST(c.generated_always_type AS int),
       CAST(c.is_ansi_padded AS int), CAST(c.encryption_type AS int), CAST(c.is_masked AS int)
  FROM sys.columns AS c WHERE c.object_id = ? ORDER BY c.column_id;
"""

# ---- installation ---------------------------------------------------------------------------------


def installation(schemas: Schemas) -> str:
    """The identity of the database; target keys are made of it."""
    return f"SELECT installation_id, layout_version FROM {schemas.installation};"


# ---- gate -----------------------------------------------------------------------------------------


def gate(schemas: Schemas) -> str:
    """The gate of one target, its row locked until the transaction ends. Target key."""
    return f"""
SELECT target_key, target_object_id, target_created, journal_id, route_scope, fence,
       in_flight_operation_id, last_operation_id, last_receipt_sha256
  FROM {schemas.gate} WITH (UPDLOCK, HOLDLOCK) WHERE target_key = ?;
"""


def gate_as_it_is(schemas: Schemas) -> str:
    """The gate of one target as last committed. Target key."""
    return gate(schemas).replace("UPDLOCK, HOLDLOCK", "READCOMMITTEDLOCK")


def insert_gate(schemas: Schemas) -> str:
    """The first claim. Key, schema, table, object id, created, journal, route, fence."""
    return f"""
INSERT INTO {schemas.gate} (target_key, schema_name, table_name, target_object_id, target_created,
                            journal_id, route_scope, fence)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);
SELECT ROWCOUNT_BIG();
"""


def claim_gate(schemas: Schemas) -> str:
    """A later claim: only upward, only for the same journal, never over a committed in-flight mark.

    Fence, route, object id, created, schema, table, key, journal, fence.
    """
    return f"""
UPDATE {schemas.gate} WITH (ROWLOCK, UPDLOCK, HOLDLOCK)
   SET fence = ?, route_scope = ?, target_object_id = ?, target_created = ?
 WHERE target_key = ? AND journal_id = ? AND fence < ? AND in_flight_operation_id IS NULL;
SELECT ROWCOUNT_BIG();
"""


def adopt_gate(schemas: Schemas) -> str:
    """The gate is this journal's now, with nothing in flight. Journal, fence, key, fence."""
    return f"""
UPDATE {schemas.gate} WITH (ROWLOCK, UPDLOCK, HOLDLOCK)
   SET journal_id = ?, fence = ?, in_flight_operation_id = NULL WHERE target_key = ? AND fence < ?;
SELECT ROWCOUNT_BIG();
"""


# ---- receipts -------------------------------------------------------------------------------------

RECEIPT_COLUMNS = (
    "operation_id",
    "target_key",
    "delivery_key",
    "generation",
    "invocation_key",
    "route_scope",
    "journal_id",
    "receipt_kind",
    "intent_version",
    "intent_sha256",
    "strategy",
    "window_key",
    "row_count",
    "digest_algorithm",
    "digest",
    "wire_layout_sha256",
    "fence",
    "lock_mode",
    "receipt_sha256",
    "deleted_rows",
    "published_at",
    "recovery_fork_id",
    "durability",
)
"""What a receipt says, in the order of the tables; ``transaction_id`` and ``session_id`` are for people."""


def receipt_values(alias: str = "") -> str:
    """The columns of a receipt as they are selected: the time as text, whatever a driver does to times."""
    return ", ".join(
        f"CONVERT(varchar(26), {alias}{name}, 126) AS {name}" if name == "published_at" else f"{alias}{name}"
        for name in RECEIPT_COLUMNS
    )


def receipt(schemas: Schemas) -> str:
    """One receipt as committed. Operation id."""
    return _receipts_where(schemas, "operation_id = ?")


RECEIPTS_AT_ONCE = 100


def receipts(schemas: Schemas) -> str:
    """Some receipts as committed, by their primary key. :data:`RECEIPTS_AT_ONCE` operation ids; fewer are
    filled up with one of them, so that there is one text and one plan."""
    return _receipts_where(schemas, f"operation_id IN ({', '.join('?' * RECEIPTS_AT_ONCE)})")


def _receipts_where(schemas: Schemas, condition: str) -> str:
    return f"SELECT {receipt_values()} FROM {schemas.receipt} WITH (READCOMMITTEDLOCK) WHERE {condition};"


def newest_generation(schemas: Schemas) -> str:
    """The highest generation of a requester, whichever journal and table it was for. Delivery key."""
    return f"SELECT COALESCE(MAX(generation), 0) FROM {schemas.receipt} WHERE delivery_key = ?;"


# The database's point in its own history, for receipts; no row without the right to see it.
RECOVERY_FORK = """
SELECT CONVERT(varchar(36), recovery_fork_guid) FROM sys.database_recovery_status WHERE database_id = DB_ID();
"""

# Who holds an application lock, and how far the undoing of its work is. A pattern of the lock's description;
# needs VIEW SERVER STATE to see other sessions.
LOCK_HOLDER = """
SELECT TOP (1) s.session_id, s.program_name, r.command, CAST(r.percent_complete AS int)
  FROM sys.dm_tran_locks AS l
 INNER JOIN sys.dm_exec_sessions AS s ON s.session_id = l.request_session_id
  LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = l.request_session_id
 WHERE l.resource_type = N'APPLICATION' AND l.resource_database_id = DB_ID() AND l.request_status = N'GRANT'
   AND l.resource_description LIKE ?;
"""


def lock_description(target_key: str) -> str:
    """How the server describes a target's lock: it shows the first 32 characters of a name."""
    return f"%:[[]{target_lock(target_key)[:32]}]:%"


# ---- staging --------------------------------------------------------------------------------------

# What a name in the stage schema is, with its mark. The quoted name; no row when there is nothing.
STAGE = f"""
SELECT RTRIM(o.type), o.object_id, CONVERT(char(23), o.create_date, 121), CAST(e.value AS nvarchar(400))
  FROM sys.objects AS o
  LEFT JOIN sys.extended_properties AS e
    ON e.class = 1 AND e.major_id = o.object_id AND e.minor_id = 0 AND e.name = {literal(OWNER_PROPERTY)}
 WHERE o.object_id = OBJECT_ID(?);
"""


def _property(procedure: str, schemas: Schemas, name: str) -> str:
    return f"""
DECLARE @value nvarchar(400) = ?;
EXEC sys.{procedure} @name = {literal(OWNER_PROPERTY)}, @value = @value, @level0type = N'SCHEMA',
     @level0name = {literal(schemas.stage)}, @level1type = N'TABLE', @level1name = {literal(name)};
"""


def add_mark(schemas: Schemas, name: str) -> str:
    """Gives a staging table its mark. The mark."""
    return _property("sp_addextendedproperty", schemas, name)


def change_mark(schemas: Schemas, name: str) -> str:
    """Changes the mark of a staging table. The mark."""
    return _property("sp_updateextendedproperty", schemas, name)


def create_stage(schemas: Schemas, name: str, columns: Sequence[tuple[str, str, bool]]) -> str:
    """Creates a staging table: a heap without defaults and constraints."""
    return create_table(schemas.stage_path(name), columns)


def create_table(path: str, columns: Sequence[tuple[str, str, bool]]) -> str:
    """Creates an empty heap. :param columns: name, type, nullable."""
    body = ", ".join(
        f"{quoted(column)} {kind} {'NULL' if nullable else 'NOT NULL'}" for column, kind, nullable in columns
    )
    return f"CREATE TABLE {path} ({body});"


def drop_stage(schemas: Schemas, name: str) -> str:
    """Drops a staging table."""
    return f"DROP TABLE {schemas.stage_path(name)};"


def lock_stage(schemas: Schemas, name: str) -> str:
    """The barrier: nobody else reads or writes this table until the transaction ends.

    ``TOP (1)``, never ``TOP (0)``: without an access there is no lock.
    """
    return f"""
DECLARE @x int;
SELECT TOP (1) @x = 1 FROM {schemas.stage_path(name)} WITH (TABLOCKX, HOLDLOCK);
"""


def copy_stage(schemas: Schemas, name: str, raw: str, columns: Sequence[str]) -> str:
    """Appends one proved raw table to the prepared table."""
    listed = names(columns)
    return (
        f"INSERT INTO {schemas.stage_path(name)} WITH (TABLOCK) ({listed}) "
        f"SELECT {listed} FROM {schemas.stage_path(raw)} WITH (TABLOCKX, HOLDLOCK);"
    )


# ---- the window -----------------------------------------------------------------------------------


def bound(kind: str) -> str:
    """One bound of a window in exactly the type of its column, from naive ISO text."""
    style = 23 if kind == "date" else 126
    return f"CONVERT({kind}, ?, {style})"


def in_window(column: str) -> str:
    """The half-open window between the variables @from and @to; NULL keys are outside."""
    return f"{quoted(column)} >= @from AND {quoted(column)} < @to"


def declare_bounds(kind: str) -> str:
    """The variables of a window. From, to."""
    return f"DECLARE @from {kind} = {bound(kind)}, @to {kind} = {bound(kind)};"


def count_window(path: str, column: str, kind: str) -> str:
    """Counts the rows that a publication would delete. From, to."""
    return f"{declare_bounds(kind)}\nSELECT COUNT_BIG(*) FROM {path} WHERE {in_window(column)};"


def count_rows(path: str) -> str:
    """Counts all rows of a table."""
    return f"SELECT COUNT_BIG(*) FROM {path};"


def names(columns: Sequence[str]) -> str:
    """Quoted names in a list."""
    return ", ".join(quoted(column) for column in columns)
