"""What makes a database ready: two schemas, three tables, one identity. What is there stays.

``target init`` runs these batches, or prints them for an administrator; ``permissions`` prints what the
login of a delivery needs afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_dpone.target_sqlserver.quoting import literal, qualified, quoted
from airflow_dpone.target_sqlserver.statements import Schemas

LAYOUT_VERSION = 1


def _schema(name: str) -> str:
    create = literal(f"CREATE SCHEMA {quoted(name)}")
    return f"IF SCHEMA_ID({literal(name)}) IS NULL EXEC ({create});"


def _table(path: str, body: str) -> str:
    return f"IF OBJECT_ID({literal(path)}, N'U') IS NULL\nCREATE TABLE {path} (\n{body});"


_INSTALLATION = """\
  only_row bit NOT NULL PRIMARY KEY CHECK (only_row = 1),
  installation_id uniqueidentifier NOT NULL,
  layout_version int NOT NULL,
  created_at datetime2(6) NOT NULL"""

_GATE = """\
  target_key binary(32) NOT NULL PRIMARY KEY,
  schema_name nvarchar(128) NOT NULL,
  table_name nvarchar(128) NOT NULL,
  target_object_id int NOT NULL,
  target_created binary(8) NOT NULL,
  journal_id uniqueidentifier NOT NULL,
  route_scope binary(32) NOT NULL,
  fence bigint NOT NULL,
  in_flight_operation_id binary(32) NULL,
  last_operation_id binary(32) NULL,
  last_intent_sha256 binary(32) NULL,
  last_receipt_sha256 binary(32) NULL,
  cycle_id binary(32) NULL,
  cycle_fence bigint NULL,
  frontier_sequence bigint NULL"""

_RECEIPT = """\
  operation_id binary(32) NOT NULL PRIMARY KEY,
  target_key binary(32) NOT NULL,
  delivery_key binary(32) NOT NULL,
  generation int NOT NULL,
  invocation_key binary(32) NOT NULL,
  route_scope binary(32) NOT NULL,
  journal_id uniqueidentifier NOT NULL,
  receipt_kind varchar(16) NOT NULL,
  intent_version int NOT NULL,
  intent_sha256 binary(32) NOT NULL,
  strategy varchar(32) NOT NULL,
  window_key varchar(64) NOT NULL,
  row_count bigint NOT NULL,
  digest_algorithm varchar(64) NOT NULL,
  digest binary(32) NOT NULL,
  wire_layout_sha256 binary(32) NOT NULL,
  fence bigint NOT NULL,
  lock_mode varchar(32) NOT NULL,
  receipt_sha256 binary(32) NOT NULL,
  deleted_rows bigint NOT NULL,
  published_at datetime2(6) NOT NULL,
  recovery_fork_id uniqueidentifier NULL,
  durability varchar(16) NOT NULL,
  transaction_id bigint NOT NULL,
  session_id int NOT NULL,
  UNIQUE (delivery_key, generation)"""


def install(schemas: Schemas) -> Sequence[str]:
    """The batches, in order. The identity is made inside the database, once: a copied script gives each
    database its own."""
    installed = schemas.installation
    return (
        _schema(schemas.control),
        _schema(schemas.stage),
        _table(installed, _INSTALLATION),
        _table(schemas.gate, _GATE),
        _table(schemas.receipt, _RECEIPT),
        f"IF NOT EXISTS (SELECT 1 FROM {installed} WITH (UPDLOCK, HOLDLOCK))\n"
        f"INSERT INTO {installed} (only_row, installation_id, layout_version, created_at)\n"
        f"VALUES (1, NEWID(), {LAYOUT_VERSION}, SYSUTCDATETIME());",
    )


def install_script(schemas: Schemas) -> str:
    """The same for an administrator's own tool, with the separators that it knows."""
    head = "-- Makes this database ready for deliveries. Run it again at will: what is there stays.\n"
    settings = "SET ANSI_NULLS ON; SET QUOTED_IDENTIFIER ON; SET ANSI_PADDING ON;"
    return head + "".join(f"{batch}\nGO\n" for batch in (settings, *install(schemas)))


def permissions_script(
    schemas: Schemas, targets: Sequence[tuple[str, str]], user: str, *, create_target: bool = False
) -> str:
    """The GRANTs that a delivery needs, and nothing else. :param targets: (schema, table) of each target.

    :param create_target: the delivery makes its tables: rights on their schemas instead. Whoever makes a
        table does not own it, the schema's owner does.

    No UPDATE and no DELETE of receipts: whoever could remove one could make a publication look undone.
    """
    who = quoted(user)
    stage = quoted(schemas.stage)
    lines = [
        f"-- For user {user} of this database: what a delivery needs, and nothing else.".replace("\n", " "),
        "-- Create staging tables, own them, mark them.",
        f"GRANT CREATE TABLE TO {who};",
        f"GRANT ALTER, SELECT, INSERT ON SCHEMA::{stage} TO {who};",
        "-- The identity, the gate, the receipts. Receipts are never changed and never deleted.",
        f"GRANT SELECT ON {schemas.installation} TO {who};",
        f"GRANT SELECT, INSERT, UPDATE ON {schemas.gate} TO {who};",
        f"GRANT SELECT, INSERT ON {schemas.receipt} TO {who};",
        "-- See what could stand in the way of a publication: policies, triggers, foreign keys.",
        f"GRANT VIEW DEFINITION TO {who};",
    ]
    if create_target:
        lines.append("-- Make a missing table, and deliver into it: rights on all tables of its schema.")
        for schema in dict.fromkeys(schema for schema, _ in targets):
            lines.append(f"GRANT ALTER, SELECT, INSERT, DELETE ON SCHEMA::{quoted(schema)} TO {who};")
        return "\n".join(lines) + "\n"
    for schema, table in targets:
        lines.append(f"GRANT SELECT, INSERT, DELETE ON {qualified(schema, table)} TO {who};")
    return "\n".join(lines) + "\n"
