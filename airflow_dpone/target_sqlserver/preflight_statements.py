"""The T-SQL that asks what stands against a delivery. Reads only; what hides is asked for first."""

from __future__ import annotations

from airflow_dpone.target_sqlserver.quoting import literal, qualified, quoted
from airflow_dpone.target_sqlserver.statements import Schemas

# Version, edition and options of server and database.
SERVER = """
SELECT CAST(SERVERPROPERTY('ProductMajorVersion') AS nvarchar(16)),
       CAST(SERVERPROPERTY('EngineEdition') AS int), CAST(d.compatibility_level AS int),
       CAST(d.delayed_durability AS int),
       CAST(d.is_read_committed_snapshot_on AS int)
  FROM sys.databases AS d WHERE d.database_id = DB_ID();
"""

# Kinds of tables that a publication cannot replace in place. The object id, twice. A column that an older
# version does not know is taken from the row of zeros.
TABLE_KIND = """
SELECT CAST(t.is_external AS int), CAST(t.is_memory_optimized AS int), CAST(t.is_filetable AS int),
       CAST(t.temporal_type AS int), CAST(k.is_node AS int), CAST(k.is_edge AS int),
       CAST(k.ledger_type AS int), CAST(t.is_sync_tran_subscribed AS int),
       CASE WHEN t.is_replicated = 1 OR t.is_merge_published = 1 THEN 1 ELSE 0 END,
       CAST(t.is_tracked_by_cdc AS int),
       CASE WHEN EXISTS (SELECT 1 FROM sys.change_tracking_tables AS c WHERE c.object_id = t.object_id)
            THEN 1 ELSE 0 END
  FROM sys.tables AS t
 CROSS JOIN (SELECT 0 AS is_node, 0 AS is_edge, 0 AS ledger_type) AS older
 CROSS APPLY (SELECT is_node, is_edge, ledger_type FROM sys.tables AS x WHERE x.object_id = t.object_id) AS k
 WHERE t.object_id = ?;
"""

# Columns that an INSERT must name. The object id.
WITHOUT_DEFAULT = """
SELECT c.name FROM sys.columns AS c
 WHERE c.object_id = ? AND c.is_nullable = 0 AND c.default_object_id = 0 ORDER BY c.column_id;
"""

# Foreign keys of other tables (or its own) that point at the table. The object id.
REFERENCING = """
SELECT f.name, OBJECT_SCHEMA_NAME(f.parent_object_id), OBJECT_NAME(f.parent_object_id),
       CAST(f.delete_referential_action_desc AS nvarchar(60))
  FROM sys.foreign_keys AS f WHERE f.referenced_object_id = ? AND f.is_disabled = 0 ORDER BY f.name;
"""

# Enabled row-level security. The object id.
ROW_POLICIES = """
SELECT p.name FROM sys.security_predicates AS s INNER JOIN sys.security_policies AS p
    ON p.object_id = s.object_id
 WHERE s.target_object_id = ? AND p.is_enabled = 1 ORDER BY p.name;
"""

# Enabled triggers. The object id.
TRIGGERS = """
SELECT t.name, CAST(t.is_instead_of_trigger AS int) FROM sys.triggers AS t
 WHERE t.parent_id = ? AND t.is_disabled = 0 ORDER BY t.name;
"""

# Indexes that drop duplicates with a warning. The object id.
DUPLICATES_IGNORED = """
SELECT i.name FROM sys.indexes AS i WHERE i.object_id = ? AND i.ignore_dup_key = 1 ORDER BY i.name;
"""

# Files by kind (0 rows, 1 log), in pages of 8 KiB: allocated, used, the most that they may grow to, and
# whether that is a bound at all. 268435456 pages is what a log says that nobody bounded.
FILES = """
SELECT CAST(f.type AS int), SUM(CAST(f.size AS bigint)),
       SUM(CAST(FILEPROPERTY(f.name, N'SpaceUsed') AS bigint)),
       SUM(CAST(CASE WHEN f.growth = 0 OR f.max_size < f.size THEN f.size ELSE f.max_size END AS bigint)),
       MIN(CASE WHEN f.growth <> 0 AND f.max_size IN (-1, 268435456) THEN 0 ELSE 1 END)
  FROM sys.database_files AS f WHERE f.type IN (0, 1) GROUP BY f.type ORDER BY f.type;
"""

# The log, in pages: all of it, what is used, and why that cannot be used again yet.
LOG_SPACE = """
SELECT u.total_log_size_in_bytes / 8192, u.used_log_space_in_bytes / 8192,
       CAST(d.log_reuse_wait_desc AS nvarchar(60))
  FROM sys.dm_db_log_space_usage AS u CROSS JOIN sys.databases AS d WHERE d.database_id = DB_ID();
"""

# Whether readers see row versions.
READERS = """
SELECT CAST(d.is_read_committed_snapshot_on AS int), CAST(d.snapshot_isolation_state_desc AS nvarchar(60))
  FROM sys.databases AS d WHERE d.database_id = DB_ID();
"""

# What row locks of the table become when there are many. The object id.
LOCK_ESCALATION = (
    "SELECT CAST(t.lock_escalation_desc AS nvarchar(60)) FROM sys.tables AS t WHERE t.object_id = ?;"
)

Right = tuple[str | None, str, str, str]
"""Securable for HAS_PERMS_BY_NAME (None: the database), its class, the permission, the securable in GRANT."""


def rights_to_see(schema: str, table: str) -> list[Right]:
    """Without these the catalog hides obstacles, and nothing that it says means anything."""
    path = qualified(schema, table)
    return [(path, "OBJECT", "VIEW DEFINITION", f"ON {path}"), *rights_to_see_database()]


def rights_to_see_database() -> list[Right]:
    """The same for a table that is not there yet."""
    return [(None, "DATABASE", "VIEW DEFINITION", "")]


def rights_to_deliver(schema: str, table: str, schemas: Schemas) -> list[Right]:
    """What a delivery does, and nothing else. No UPDATE and no DELETE of receipts."""
    target = qualified(schema, table)
    return [
        *((target, "OBJECT", right, f"ON {target}") for right in ("SELECT", "INSERT", "DELETE")),
        *_rights_on_ours(schemas),
    ]


def rights_to_unmask(schema: str, table: str) -> list[Right]:
    """Either is enough; a table's own is there since SQL Server 2022."""
    path = qualified(schema, table)
    return [(None, "DATABASE", "UNMASK", ""), (path, "OBJECT", "UNMASK", f"ON {path}")]


def rights_to_create(schema: str, schemas: Schemas) -> list[Right]:
    """The same, and to make the table: who makes a table does not own it, its schema's owner does."""
    name = quoted(schema)
    return [
        *((name, "SCHEMA", right, f"ON SCHEMA::{name}") for right in ("ALTER", "SELECT", "INSERT", "DELETE")),
        *_rights_on_ours(schemas),
    ]


def _rights_on_ours(schemas: Schemas) -> list[Right]:
    objects = [
        (schemas.installation, ("SELECT",)),
        (schemas.gate, ("SELECT", "INSERT", "UPDATE")),
        (schemas.receipt, ("SELECT", "INSERT")),
    ]
    stage = quoted(schemas.stage)
    return [
        *((path, "OBJECT", right, f"ON {path}") for path, rights in objects for right in rights),
        *((stage, "SCHEMA", right, f"ON SCHEMA::{stage}") for right in ("ALTER", "SELECT", "INSERT")),
        (None, "DATABASE", "CREATE TABLE", ""),
    ]


def create_schema(schema: str) -> str:
    """What an administrator does about a schema that is missing."""
    return f"CREATE SCHEMA {quoted(schema)};"


def held_rights(rights: list[Right]) -> str:
    """Who is asked for, and 1 for each right that is held, in order; NULL is not held."""
    asked = ", ".join(
        f"HAS_PERMS_BY_NAME({'NULL' if name is None else literal(name)}, {literal(kind)}, {literal(right)})"
        for name, kind, right, _ in rights
    )
    return f"SELECT USER_NAME(), {asked};"


def grant_text(right: Right, user: str) -> str:
    """The statement that gives one right."""
    _, _, permission, where = right
    return f"GRANT {permission}{' ' + where if where else ''} TO {quoted(user)};"


def parity(table: str, columns: str, rows: tuple[str, ...], proof: str) -> str:
    """Makes a temporary table, fills it with literals, hashes it and drops it, in one batch."""
    inserts = "\n".join(f"INSERT INTO {table} VALUES ({row});" for row in rows)
    return f"SET NOCOUNT ON;\nCREATE TABLE {table} ({columns});\n{inserts}\n{proof}\nDROP TABLE {table};"
