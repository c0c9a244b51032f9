"""The two batches that decide about a publication: the publication itself, and the probe.

Each is sent whole, with autocommit on, and begins and ends without a transaction. ``?`` stands in the head
only and is never NULL. The last result is one sentinel row; without it nothing is known. Locks are taken in
the same order everywhere: application lock of the target, gate row, receipt key, prepared table, target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_dpone.target_sqlserver import digest_statements as digest
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.quoting import literal, quoted
from airflow_dpone.target_sqlserver.statements import OWNER_PROPERTY, Schemas
from airflow_dpone.wire.types import WireLayout

TARGET_BUSY, FENCED, PREPARED_IDENTITY, DIGEST, TARGET_CHANGED = 51010, 51011, 51012, 51013, 51014
AFTER_IMAGE, OUTSIDE_WINDOW, RECEIPT_REMOVED, RECEIPT_NOT_WRITTEN = 51015, 51016, 51017, 51018
GATE_CHANGED, TRANSACTION_CHANGED, GOVERNED_BY_OTHER, IN_FLIGHT = 51019, 51020, 51022, 51023
GATE_MISSING, RECEIPT_DIFFERS, TRIGGER = 51024, 51025, 51026

DRAFT_TYPES = {
    "operation_id": "binary(32)",
    "target_key": "binary(32)",
    "delivery_key": "binary(32)",
    "generation": "int",
    "invocation_key": "binary(32)",
    "route_scope": "binary(32)",
    "journal_id": "uniqueidentifier",
    "receipt_kind": "varchar(16)",
    "intent_version": "int",
    "intent_sha256": "binary(32)",
    "strategy": "varchar(32)",
    "window_key": "varchar(64)",
    "row_count": "bigint",
    "digest_algorithm": "varchar(64)",
    "digest": "binary(32)",
    "wire_layout_sha256": "binary(32)",
    "fence": "bigint",
    "lock_mode": "varchar(32)",
    "receipt_sha256": "binary(32)",
}
"""The client-known columns of a receipt; each is a variable of the publication."""

GATE_HEAD = {
    "resource": "nvarchar(255)",
    "lock_ms": "int",
    "oid": "int",
    "created": "char(23)",
    "created_stamp": "binary(8)",
}
PREPARED_HEAD = {"prepared_oid": "int", "prepared_created": "char(23)", "mark": "nvarchar(400)"}
LIMBS_HEAD = {f"l{i}": "decimal(38,0)" for i in range(8)}
REHEARSAL_HEAD = {"rehearsal": "bit"}
PLACES = {
    name: place
    for place, name in enumerate(
        [*DRAFT_TYPES, *GATE_HEAD, *PREPARED_HEAD, *LIMBS_HEAD, *REHEARSAL_HEAD],
    )
}
"""Where the parameters of a publication stand; recovery fork and window come behind them."""
FORK = "@fork uniqueidentifier = CONVERT(uniqueidentifier, NULLIF(?, N''))"


@dataclass(frozen=True)
class PublishedTable:
    """What the texts of one publication are about.

    :param target: quoted path. :param columns: the target's columns as the catalog has them now, each
        (id, name, type id, length, precision, scale, nullable, collation).
    :param prepared: quoted path. :param layout: what is inserted.
    :param window: name and type of the window column, or None for a full refresh.
    :param after_image: hash the target's window, too, before it is committed.
    """

    target: str
    columns: Sequence[tuple[object, ...]]
    prepared: str
    layout: WireLayout
    window: tuple[str, str] | None
    schemas: Schemas = field(default_factory=Schemas)
    after_image: bool = False


def publication(what: PublishedTable) -> str:
    """The one transaction that makes a window visible.

    Parameters: receipt (:data:`DRAFT_TYPES`), gate, prepared table, limbs, rehearsal, fork, from, to.
    With ``@rehearsal = 1`` the server compiles the whole batch against the objects as they are, and runs none
    of it: it answers ``compiled`` and takes no lock.
    """
    head = {**DRAFT_TYPES, **GATE_HEAD, **PREPARED_HEAD, **LIMBS_HEAD, **REHEARSAL_HEAD}
    parts = (
        _head(head, [FORK, *_window_head(what.window)]),
        "DECLARE @n bigint, @deleted bigint, @x int, @found int = 0;",
        _BEGIN,
        _REHEARSAL,
        _LOCK,
        _enter_gate(what.schemas, publishing=True),
        _not_yet_published(what),
        _prove_prepared(what),
        _replace(what),
        _write_receipt(what.schemas),
        _END,
    )
    return "\n".join(parts)


def probe(schemas: Schemas) -> str:
    """Raises the gate, then reads receipt and gate: after it, no smaller fence can become effective.

    Parameters: operation, target key, journal, route, fence, then gate. Conclusions only after ``probed``.
    """
    keys = ("operation_id", "target_key", "journal_id", "route_scope", "fence")
    parts = (
        _head({**{name: DRAFT_TYPES[name] for name in keys}, **GATE_HEAD}, []),
        _BEGIN,
        _LOCK,
        _enter_gate(schemas, publishing=False),
        f"""\
  SELECT {sql.receipt_values()}
    FROM {schemas.receipt} WITH (UPDLOCK, HOLDLOCK) WHERE operation_id = @operation_id;
  SELECT last_operation_id, in_flight_operation_id
    FROM {schemas.gate} WITH (UPDLOCK, HOLDLOCK) WHERE target_key = @target_key;
{_SAME_TRANSACTION}""",
        _END.replace("'committed'", "'probed'"),
    )
    return "\n".join(parts)


# ---- head and end ---------------------------------------------------------------------------------


def _head(variables: dict[str, str], more: Sequence[str]) -> str:
    """Refuses an open transaction, sets what must be set in the batch itself, and takes the parameters."""
    declared = ",\n  ".join([*(f"@{name} {kind} = ?" for name, kind in variables.items()), *more])
    required = [f"@{name}" for name in variables] + [
        text.split(" ", 1)[0] for text in more if text is not FORK
    ]
    missing = " OR ".join(f"{name} IS NULL" for name in required)
    return f"""\
IF @@TRANCOUNT <> 0 OR (@@OPTIONS & 2) <> 0 THROW 51001, 'dpone.publish.transaction_open', 1;
SET NOCOUNT ON; SET XACT_ABORT ON; SET ROWCOUNT 0; SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT 600000;
DECLARE
  {declared};
DECLARE @committed bit = 0, @early bit = 0, @err int, @why int, @rc int, @tx bigint;
IF {missing}
  THROW 51002, 'dpone.publish.parameter_missing', 1;"""


def _window_head(window: tuple[str, str] | None) -> list[str]:
    if window is None:
        return []
    kind = window[1]
    return [f"@{name} {kind} = {sql.bound(kind)}" for name in ("from", "to")]


_SAME_TRANSACTION = """\
  IF CURRENT_TRANSACTION_ID() <> @tx OR @@TRANCOUNT <> 1 OR XACT_STATE() <> 1
    THROW 51020, 'dpone.publish.transaction_changed', 1;"""

_BEGIN = """\
BEGIN TRY
  BEGIN TRANSACTION;
  SET @tx = CURRENT_TRANSACTION_ID();"""

# Missing columns, SET options that an index does not admit (1934) and plans that cannot be made show here,
# before anybody waits for the locks of a publication.
_REHEARSAL = """\
  IF @rehearsal = 1
  BEGIN
    ROLLBACK TRANSACTION;
    SELECT 'compiled' AS outcome, CAST(NULL AS int) AS error_number;
    RETURN;
  END;"""

_LOCK = """\
  EXEC @rc = sys.sp_getapplock @Resource = @resource, @LockMode = 'Exclusive', @LockOwner = 'Transaction',
       @LockTimeout = @lock_ms, @DbPrincipal = N'public';
  IF @rc IS NULL OR @rc < 0 THROW 51010, 'dpone.publish.target_busy', 1;"""

# COMMIT is the last statement in TRY that can fail. An error after it, or a transaction that is not ours any
# more, is never called a rollback.
_END = """\
  COMMIT TRANSACTION WITH (DELAYED_DURABILITY = OFF);
  SET @committed = 1;
END TRY
BEGIN CATCH
  SET @err = ERROR_NUMBER();
  IF @committed = 1 OR (@tx IS NOT NULL AND (XACT_STATE() = 0 OR CURRENT_TRANSACTION_ID() <> @tx))
    SET @early = 1;
  IF XACT_STATE() <> 0 ROLLBACK TRANSACTION;
  SELECT CASE WHEN @early = 1 THEN 'ended_early' ELSE 'rolled_back' END AS outcome, @err AS error_number;
  RETURN;
END CATCH;
SELECT CASE WHEN @committed = 1 AND @@TRANCOUNT = 0 THEN 'committed' ELSE 'ended_early' END AS outcome,
       CAST(NULL AS int) AS error_number;"""

# ---- steps ----------------------------------------------------------------------------------------


def _enter_gate(schemas: Schemas, *, publishing: bool) -> str:
    """The gate row first: its lock is the barrier that survives a restart of the server."""
    change = "fence = @fence, in_flight_operation_id = @operation_id" if publishing else "fence = @fence"
    free = " AND in_flight_operation_id IS NULL" if publishing else ""
    return f"""\
  UPDATE {schemas.gate} WITH (ROWLOCK, UPDLOCK, HOLDLOCK) SET {change}
   WHERE target_key = @target_key AND target_object_id = @oid AND target_created = @created_stamp
     AND journal_id = @journal_id AND route_scope = @route_scope AND fence < @fence{free};
  IF ROWCOUNT_BIG() <> 1
  BEGIN
    SET @why = 51024;
    SELECT @why = CASE WHEN target_object_id <> @oid OR target_created <> @created_stamp
                         OR journal_id <> @journal_id OR route_scope <> @route_scope THEN 51022
                       WHEN fence >= @fence THEN 51011 ELSE 51023 END
      FROM {schemas.gate} WITH (UPDLOCK, HOLDLOCK) WHERE target_key = @target_key;
    IF @why = 51024 THROW 51024, 'dpone.publish.gate_missing', 1;
    IF @why = 51022 THROW 51022, 'dpone.publish.gate_governed_by_other', 1;
    IF @why = 51023 THROW 51023, 'dpone.publish.in_flight_committed', 1;
    THROW 51011, 'dpone.publish.fenced', 1;
  END;"""


def _incarnation(what: PublishedTable) -> str:
    return f"""SELECT 1 FROM sys.objects AS o WHERE o.object_id = OBJECT_ID({literal(what.target)}, N'U')
                       AND o.object_id = @oid AND CONVERT(char(23), o.create_date, 121) = @created"""


def _not_yet_published(what: PublishedTable) -> str:
    receipt, gate = what.schemas.receipt, what.schemas.gate
    return f"""\
  SELECT @found = CASE WHEN intent_version = @intent_version AND intent_sha256 = @intent_sha256
                        AND EXISTS ({_incarnation(what)}) THEN 1 ELSE 2 END
    FROM {receipt} WITH (UPDLOCK, HOLDLOCK) WHERE operation_id = @operation_id;
  IF @found = 2 THROW 51025, 'dpone.publish.receipt_differs', 1;
  IF @found = 1
  BEGIN
    ROLLBACK TRANSACTION;
    SELECT 'already' AS outcome, CAST(NULL AS int) AS error_number;
    RETURN;
  END;
  IF EXISTS (SELECT 1 FROM {gate} WITH (UPDLOCK, HOLDLOCK)
              WHERE target_key = @target_key AND last_operation_id = @operation_id)
    THROW 51017, 'dpone.publish.receipt_removed', 1;
  IF EXISTS (SELECT 1 FROM {receipt} WITH (UPDLOCK, HOLDLOCK)
              WHERE delivery_key = @delivery_key AND generation = @generation)
    THROW 51025, 'dpone.publish.receipt_differs', 1;"""


def _prove_prepared(what: PublishedTable) -> str:
    """Lock, then identify, then prove: in this order nobody can change what was proved."""
    text = f"""\
  SELECT TOP (1) @x = 1 FROM {what.prepared} WITH (TABLOCKX, HOLDLOCK);
  IF NOT EXISTS (SELECT 1 FROM sys.objects AS o INNER JOIN sys.extended_properties AS e
                    ON e.class = 1 AND e.major_id = o.object_id AND e.minor_id = 0
                 WHERE o.object_id = OBJECT_ID({literal(what.prepared)}, N'U') AND o.object_id = @prepared_oid
                   AND CONVERT(char(23), o.create_date, 121) = @prepared_created
                   AND e.name = {literal(OWNER_PROPERTY)}
                   AND CAST(e.value AS nvarchar(400)) COLLATE Latin1_General_BIN2
                     = @mark COLLATE Latin1_General_BIN2)
    THROW 51012, 'dpone.publish.prepared_identity', 1;
{_prove(what.prepared, what.layout, "#h", DIGEST, "digest")}"""
    if what.window is None:
        return text
    column = quoted(what.window[0])
    return f"""{text}
  IF EXISTS (SELECT 1 FROM {what.prepared} WHERE {column} < @from OR {column} >= @to OR {column} IS NULL)
    THROW 51016, 'dpone.publish.row_outside_window', 1;"""


def _prove(path: str, layout: WireLayout, into: str, number: int, name: str, where: str = "") -> str:
    """Hashes rows into a temporary table, whose name stands once in a batch, and compares with the plan."""
    sums = ", ".join(f"COALESCE({text}, 0)" for text in digest.limb_sums())
    expected = ", ".join(f"@l{i}" for i in range(8))
    return f"""\
  {digest.hash_rows(path, layout, "@row_count + 1", into, where)}
  IF EXISTS (SELECT @row_count, @row_count, {expected} EXCEPT
             SELECT COUNT_BIG(*), COUNT_BIG(h), {sums} FROM {into})
    THROW {number}, 'dpone.publish.{name}', 1;
  DROP TABLE {into};"""


_NO_TRIGGER = """
  IF EXISTS (SELECT 1 FROM sys.triggers AS g WHERE g.parent_id = @oid AND g.is_disabled = 0)
    THROW 51026, 'dpone.target.trigger', 1;"""


def _replace(what: PublishedTable) -> str:
    """DELETE, then the incarnation behind its lock, INSERT with every column named, and the count."""
    where = "" if what.window is None else f" WHERE {sql.in_window(what.window[0])}"
    columns = sql.names([column.name for column in what.layout.columns])
    proof = _prove(what.target, what.layout, "#t", AFTER_IMAGE, "after_image", where)
    # Behind the lock of the DELETE no trigger can come; one whose changes nobody hashes is not let through.
    unhashed = "" if what.after_image else _NO_TRIGGER
    return f"""\
  DELETE FROM {what.target} WITH (TABLOCKX, HOLDLOCK){where};
  SET @deleted = ROWCOUNT_BIG();
{_SAME_TRANSACTION}
  IF NOT EXISTS ({_incarnation(what)})
     OR (SELECT COUNT_BIG(*) FROM sys.columns AS c WHERE c.object_id = @oid) <> {len(what.columns)}
     OR EXISTS (SELECT c.column_id, c.name COLLATE Latin1_General_BIN2, c.user_type_id,
                       CAST(c.max_length AS int), CAST(c.precision AS int), CAST(c.scale AS int),
                       CAST(c.is_nullable AS int), c.collation_name COLLATE Latin1_General_BIN2
                  FROM sys.columns AS c WHERE c.object_id = @oid
                EXCEPT
                SELECT p.i, p.n COLLATE Latin1_General_BIN2, p.t, p.l, p.pr, p.sc, p.nullable,
                       p.col COLLATE Latin1_General_BIN2
                  FROM (VALUES {_frozen(what.columns)}) AS p(i, n, t, l, pr, sc, nullable, col))
    THROW 51014, 'dpone.publish.target_changed', 1;{unhashed}
  INSERT INTO {what.target} ({columns})
  SELECT {columns} FROM {what.prepared};
  SET @n = ROWCOUNT_BIG();
{_SAME_TRANSACTION}
  IF @n <> @row_count OR (SELECT COUNT_BIG(*) FROM {what.target}{where}) <> @row_count
    THROW 51015, 'dpone.publish.after_image', 1;{chr(10) + proof if what.after_image else ""}"""


def _frozen(columns: Sequence[tuple[object, ...]]) -> str:
    rows = []
    for number, name, kind, length, precision, scale, nullable, collation in columns:
        text = f"CAST({'NULL' if collation is None else literal(str(collation))} AS nvarchar(128))"
        numbers = f"{kind}, {length}, {precision}, {scale}, {nullable}"
        rows.append(f"({number}, {literal(str(name))}, {numbers}, {text})")
    return ",\n                               ".join(rows)


def _write_receipt(schemas: Schemas) -> str:
    columns = ", ".join(DRAFT_TYPES)
    values = ", ".join(f"@{name}" for name in DRAFT_TYPES)
    return f"""\
  INSERT INTO {schemas.receipt}
    ({columns},
     deleted_rows, published_at, recovery_fork_id, durability, transaction_id, session_id)
  VALUES
    ({values},
     @deleted, SYSUTCDATETIME(), @fork, 'full', @tx, @@SPID);
  IF ROWCOUNT_BIG() <> 1 THROW 51018, 'dpone.publish.receipt_not_written', 1;
  UPDATE {schemas.gate}
     SET in_flight_operation_id = NULL, last_operation_id = @operation_id,
         last_intent_sha256 = @intent_sha256, last_receipt_sha256 = @receipt_sha256
   WHERE target_key = @target_key AND fence = @fence AND in_flight_operation_id = @operation_id;
  IF ROWCOUNT_BIG() <> 1 THROW 51019, 'dpone.publish.gate_changed', 1;
{_SAME_TRANSACTION}"""
