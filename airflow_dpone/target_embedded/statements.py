"""All SQL that is sent to DuckDB, by name, each with its purpose.

Identifiers enter through :func:`quoted` only, values as ``$name`` parameters only. The one exception is the
text of a comment, which DuckDB takes as a literal (:func:`literal`).
"""

from __future__ import annotations

from collections.abc import Sequence

CONTROL_SCHEMA = "dpone"
STAGE_SCHEMA = "dpone_stage"
BATCH_VIEW = "dpone_batch"


def quoted(name: str) -> str:
    """An identifier, exactly as it is."""
    return '"' + name.replace('"', '""') + '"'


def qualified(schema: str, table: str) -> str:
    """Schema and table; names are never split or joined on dots."""
    return f"{quoted(schema)}.{quoted(table)}"


def literal(text: str) -> str:
    """A string literal, for comments."""
    return "'" + text.replace("'", "''") + "'"


def stage_path(name: str) -> str:
    """A staging table."""
    return qualified(STAGE_SCHEMA, name)


# ---- session --------------------------------------------------------------------------------------

SESSION_SETTINGS = (
    # Nothing but the file may answer: no download, no Python variable that happens to be named like a table.
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    # No value of ours has a zone; a cast that someone adds later must not depend on the machine's.
    "SET TimeZone = 'UTC'",
)
BEGIN = "BEGIN TRANSACTION"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"

# ---- catalog --------------------------------------------------------------------------------------

# Every ordinary table of the file with its comment.
TABLES = """
SELECT schema_name, table_name, comment FROM duckdb_tables()
 WHERE database_name = current_database() AND NOT temporary AND NOT internal
"""

# Every schema of the file.
SCHEMAS = "SELECT schema_name FROM duckdb_schemas() WHERE database_name = current_database()"

# Every view of the file.
VIEWS = """
SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = current_database() AND NOT internal
"""

# One table's comment; no row when the table is not there.
TABLE_COMMENT = """
SELECT comment FROM duckdb_tables()
 WHERE database_name = current_database() AND schema_name = $schema AND table_name = $table
"""

# One table's columns in order.
COLUMNS = """
SELECT column_name, data_type, is_nullable, comment, is_generated, column_default IS NOT NULL
  FROM duckdb_columns()
 WHERE database_name = current_database() AND schema_name = $schema AND table_name = $table
 ORDER BY column_index
"""

# Foreign keys that reference one table; DuckDB has them inside one schema only.
REFERENCING = """
SELECT DISTINCT table_name FROM duckdb_constraints()
 WHERE database_name = current_database() AND schema_name = $schema
   AND constraint_type = 'FOREIGN KEY' AND lower(referenced_table) = lower($table)
 ORDER BY table_name
"""

# One table's constraints: kind and columns.
CONSTRAINTS = """
SELECT constraint_type, constraint_column_names FROM duckdb_constraints()
 WHERE database_name = current_database() AND schema_name = $schema AND table_name = $table
"""

# How many unique indexes one table has besides its constraints.
UNIQUE_INDEXES = """
SELECT count(*) FROM duckdb_indexes()
 WHERE database_name = current_database() AND schema_name = $schema AND table_name = $table AND is_unique
"""


def comment_on_column(path: str, column: str, text: str) -> str:
    """Sets a column's comment: the T-SQL type that it holds."""
    return f"COMMENT ON COLUMN {path}.{quoted(column)} IS {literal(text)}"


def comment_on_table(path: str, text: str) -> str:
    """Sets a table's comment: our mark on a staging table, the incarnation of a target."""
    return f"COMMENT ON TABLE {path} IS {literal(text)}"


# ---- installation ---------------------------------------------------------------------------------

# Everything that the first admission creates in a file, in order; each is harmless when it is there.
INSTALL = (
    f"CREATE SCHEMA IF NOT EXISTS {quoted(CONTROL_SCHEMA)}",
    f"CREATE SCHEMA IF NOT EXISTS {quoted(STAGE_SCHEMA)}",
    """
CREATE TABLE IF NOT EXISTS dpone.installation (
  only_row BOOLEAN PRIMARY KEY CHECK (only_row), installation_id UUID NOT NULL,
  layout_version INTEGER NOT NULL, created_at TIMESTAMP NOT NULL)
""",
    """
CREATE TABLE IF NOT EXISTS dpone.target_gate (
  target_key BLOB PRIMARY KEY, schema_name VARCHAR NOT NULL, table_name VARCHAR NOT NULL,
  target_object_id BIGINT NOT NULL, target_created BLOB NOT NULL, journal_id UUID NOT NULL,
  route_scope BLOB NOT NULL, fence BIGINT NOT NULL, in_flight_operation_id BLOB, last_operation_id BLOB,
  last_receipt_sha256 BLOB, cycle_id BLOB, cycle_fence BIGINT, frontier_sequence BIGINT)
""",
    """
CREATE TABLE IF NOT EXISTS dpone.delivery_receipt (
  operation_id BLOB PRIMARY KEY, target_key BLOB NOT NULL, delivery_key BLOB NOT NULL,
  generation INTEGER NOT NULL, invocation_key BLOB NOT NULL, route_scope BLOB NOT NULL,
  journal_id UUID NOT NULL, receipt_kind VARCHAR NOT NULL, intent_version INTEGER NOT NULL,
  intent_sha256 BLOB NOT NULL, strategy VARCHAR NOT NULL, window_key VARCHAR NOT NULL,
  row_count BIGINT NOT NULL, digest_algorithm VARCHAR NOT NULL, digest BLOB NOT NULL,
  wire_layout_sha256 BLOB NOT NULL, fence BIGINT NOT NULL, lock_mode VARCHAR NOT NULL,
  receipt_sha256 BLOB NOT NULL, deleted_rows BIGINT NOT NULL, published_at TIMESTAMP NOT NULL,
  recovery_fork_id UUID, durability VARCHAR NOT NULL, UNIQUE (delivery_key, generation))
""",
)

# Whether the file was initialised.
HAS_INSTALLATION = """
SELECT count(*) FROM duckdb_tables()
 WHERE database_name = current_database() AND schema_name = 'dpone' AND table_name = 'installation'
"""

# The file's identity; target keys are made of it.
INSTALLATION = "SELECT installation_id, layout_version FROM dpone.installation"

# Gives a file its identity, once.
INSERT_INSTALLATION = """
INSERT INTO dpone.installation (only_row, installation_id, layout_version, created_at)
VALUES (true, $installation_id, $layout_version, $created_at)
"""

# ---- gate -----------------------------------------------------------------------------------------

# The gate of one target.
GATE = """
SELECT target_key, target_object_id, target_created, journal_id, route_scope, fence,
       in_flight_operation_id, last_operation_id, last_receipt_sha256
  FROM dpone.target_gate WHERE target_key = $target_key
"""

# The first claim of a target.
INSERT_GATE = """
INSERT INTO dpone.target_gate (target_key, schema_name, table_name, target_object_id, target_created,
                               journal_id, route_scope, fence)
VALUES ($target_key, $schema, $table, $object_id, $created, $journal_id, $route_scope, $fence)
"""

# A later claim: only upward, only for the same journal, never over a committed in-flight mark.
CLAIM_GATE = """
UPDATE dpone.target_gate
   SET fence = $fence, route_scope = $route_scope, target_object_id = $object_id, target_created = $created
 WHERE target_key = $target_key AND journal_id = $journal_id AND fence < $fence
   AND in_flight_operation_id IS NULL
"""

# First step of a publication: this send's fence and its in-flight mark, or nothing.
PUBLISH_GATE = """
UPDATE dpone.target_gate SET fence = $fence, in_flight_operation_id = $operation_id
 WHERE target_key = $target_key AND target_object_id = $object_id AND target_created = $created
   AND journal_id = $journal_id AND route_scope = $route_scope AND fence < $fence
   AND in_flight_operation_id IS NULL
"""

# First step of a probe: raises the fence, so that no older send can become effective.
PROBE_GATE = """
UPDATE dpone.target_gate SET fence = $fence
 WHERE target_key = $target_key AND target_object_id = $object_id AND target_created = $created
   AND journal_id = $journal_id AND route_scope = $route_scope AND fence < $fence
"""

# Last step of a publication: the mark goes, the gate remembers operation and receipt.
ADOPT_GATE = """
UPDATE dpone.target_gate SET journal_id = $journal_id, fence = $fence, in_flight_operation_id = NULL
 WHERE target_key = $target_key AND fence < $fence
"""

FINISH_GATE = """
UPDATE dpone.target_gate
   SET in_flight_operation_id = NULL, last_operation_id = $operation_id, last_receipt_sha256 = $receipt_sha256
 WHERE target_key = $target_key AND fence = $fence AND in_flight_operation_id = $operation_id
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

# One receipt.
RECEIPT = (
    f"SELECT {', '.join(RECEIPT_COLUMNS)} FROM dpone.delivery_receipt WHERE operation_id = $operation_id"
)

# Some receipts.
RECEIPTS = (
    f"SELECT {', '.join(RECEIPT_COLUMNS)} FROM dpone.delivery_receipt "
    "WHERE operation_id IN (SELECT unnest($operation_ids::BLOB[]))"
)

# Whether this requester's generation has a receipt already, whatever its operation.
RECEIPT_OF_GENERATION = """
SELECT count(*) FROM dpone.delivery_receipt WHERE delivery_key = $delivery_key AND generation = $generation
"""

# The highest generation of a requester, whichever journal and table it was for.
NEWEST_GENERATION = """
SELECT coalesce(max(generation), 0) FROM dpone.delivery_receipt WHERE delivery_key = $delivery_key
"""

# The proof of a publication, written inside it.
INSERT_RECEIPT = (
    f"INSERT INTO dpone.delivery_receipt ({', '.join(RECEIPT_COLUMNS)}) "
    f"VALUES ({', '.join('$' + name for name in RECEIPT_COLUMNS)})"
)

# ---- staging --------------------------------------------------------------------------------------


def create_stage(name: str, columns: Sequence[tuple[str, str, bool]]) -> str:
    """Creates an empty staging table."""
    return create_table(stage_path(name), columns)


def create_table(path: str, columns: Sequence[tuple[str, str, bool]]) -> str:
    """Creates an empty table. :param columns: name, DuckDB type, nullable."""
    body = ", ".join(
        f"{quoted(column)} {kind}{'' if nullable else ' NOT NULL'}" for column, kind, nullable in columns
    )
    return f"CREATE TABLE {path} ({body})"


def drop_stage(name: str) -> str:
    """Drops a staging table."""
    return f"DROP TABLE {stage_path(name)}"


def write_batch(name: str, columns: Sequence[tuple[str, str, bool]]) -> str:
    """Puts one registered Arrow batch, whose columns are c0, c1, ..., into a raw table."""
    casts = ", ".join(f"CAST(c{i} AS {kind})" for i, (_, kind, _) in enumerate(columns))
    return f"INSERT INTO {stage_path(name)} ({_list(columns)}) SELECT {casts} FROM temp.main.{BATCH_VIEW}"


def copy_stage(name: str, raw: str, columns: Sequence[tuple[str, str, bool]]) -> str:
    """Appends one proved raw table to the prepared table."""
    return f"INSERT INTO {stage_path(name)} ({_list(columns)}) SELECT {_list(columns)} FROM {stage_path(raw)}"


def read_rows(path: str, columns: Sequence[str], window_column: str | None = None) -> str:
    """Reads rows back for the proof, at most one more than there should be."""
    where = "" if window_column is None else f" WHERE {in_window(window_column)}"
    return f"SELECT {_names(columns)} FROM {path}{where} LIMIT $limit"


def count_infinite(path: str, columns: Sequence[str], window_column: str | None = None) -> str:
    """Counts infinite dates and times: Python shows them as the last day there is, so reading cannot tell."""
    some = " OR ".join(f"NOT isfinite({quoted(c)})" for c in columns)
    inside = "" if window_column is None else f" AND {in_window(window_column)}"
    return f"SELECT count(*) FROM {path} WHERE ({some}){inside}"


def count_rows(path: str) -> str:
    """Counts all rows of a table."""
    return f"SELECT count(*) FROM {path}"


def count_null_rows(path: str, column: str) -> str:
    """Counts the rows without a value in a column."""
    return f"SELECT count(*) - count({quoted(column)}) FROM {path}"


def count_repeated_keys(path: str, columns: Sequence[str]) -> str:
    """Counts the rows that repeat the key of another row; a row with a NULL in its key is not asked."""
    some = " AND ".join(f"{quoted(column)} IS NOT NULL" for column in columns)
    return f"SELECT count(*) - count(DISTINCT ({_names(columns)})) FROM {path} WHERE {some}"


def count_beyond(path: str, column: str, kind: str, *, below: bool) -> str:
    """Counts the values below, or above, $threshold, a text. :param kind: DuckDB type of the column."""
    sign = "<" if below else ">"
    return f"SELECT count(*) FROM {path} WHERE {quoted(column)} {sign} CAST($threshold AS {kind})"


# ---- publication ----------------------------------------------------------------------------------


def in_window(column: str) -> str:
    """The half-open window; NULL keys are outside."""
    name = quoted(column)
    return f"{name} >= CAST($from_ts AS TIMESTAMP) AND {name} < CAST($to_ts AS TIMESTAMP)"


def outside_window(column: str) -> str:
    """Everything else, NULL keys included."""
    name = quoted(column)
    return f"({name} < CAST($from_ts AS TIMESTAMP) OR {name} >= CAST($to_ts AS TIMESTAMP) OR {name} IS NULL)"


def count_window(path: str, column: str) -> str:
    """Counts the rows of the window."""
    return f"{count_rows(path)} WHERE {in_window(column)}"


def count_outside(path: str, column: str) -> str:
    """Counts rows that must not be published: they would survive the next delivery of their true window."""
    return f"{count_rows(path)} WHERE {outside_window(column)}"


def delete_rows(path: str, column: str | None) -> str:
    """Deletes the window, or every row for a full refresh."""
    return f"DELETE FROM {path}" + ("" if column is None else f" WHERE {in_window(column)}")


def insert_rows(path: str, columns: Sequence[str], prepared: str) -> str:
    """Puts the prepared rows into the target, every column named."""
    return f"INSERT INTO {path} ({_names(columns)}) SELECT {_names(columns)} FROM {prepared}"


def duplicate_keys(path: str, keys: Sequence[str], prepared: str, column: str | None) -> str:
    """After a rolled back publication: keys that are twice in what the target would have held."""
    names = _names(keys)
    kept = "" if column is None else f" UNION ALL SELECT {names} FROM {path} WHERE {outside_window(column)}"
    some = " AND ".join(f"{quoted(key)} IS NOT NULL" for key in keys)
    held = f"SELECT {names} FROM {prepared}{kept}"
    groups = f"SELECT 1 FROM ({held}) WHERE {some} GROUP BY {names} HAVING count(*) > 1"
    return f"SELECT count(*) FROM ({groups})"


def _names(columns: Sequence[str]) -> str:
    return ", ".join(quoted(column) for column in columns)


def _list(columns: Sequence[tuple[str, str, bool]]) -> str:
    return _names([name for name, _, _ in columns])
