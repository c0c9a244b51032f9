"""Everything that stands against delivering into a table, found at once and before anything is written.

The catalog shows only what a login may see: without VIEW DEFINITION no obstacle is no answer, so that right
is asked for first, and nothing is concluded without it.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import Problem
from airflow_dpone.target_sqlserver import catalog, headroom, installation, parity
from airflow_dpone.target_sqlserver import preflight_statements as sql
from airflow_dpone.target_sqlserver.digest_statements import CERTIFIED_COLUMNS
from airflow_dpone.target_sqlserver.quoting import quoted
from airflow_dpone.target_sqlserver.session import Session
from airflow_dpone.target_sqlserver.statements import SCHEMA_ID, Schemas

OLDEST_VERSION, OLDEST_LEVEL = 15, 150
_AZURE = (5, 8)
"""Engine editions of Azure SQL Database and Azure SQL Managed Instance, whose version numbers stand still."""
_FORCED = 2

_KINDS = (
    "an external table, which no local transaction covers",
    "memory-optimized: it has no table locks",
    "a FileTable, whose rows are files",
    "system-versioned: each delivery would double its history",
    "a node table of a graph",
    "an edge table of a graph",
    "a ledger table, which keeps or refuses what is deleted",
    "a subscriber of replication, whose publisher must agree to each change",
)
_EMITTED = ("published by replication", "tracked by change data capture", "tracked by change tracking")


def describe(session: Session, table: catalog.StoredTable, schemas: Schemas) -> tr.TargetTable:
    """Columns with their types; what is refused; what is only worth knowing."""
    columns = catalog.columns_of(session, table.object_id)
    hidden = _right_problems(
        session, sql.rights_to_see(table.schema, table.table), "dpone.target.metadata_hidden"
    )
    if not columns and not hidden:
        text = "the catalog shows no column of it: this login may not see them"
        hidden = [Problem("dpone.target.metadata_hidden", _name(table), text)]
    problems = [*_server_problems(session), *hidden]
    warnings: list[str] = []
    waivers: list[tuple[str, Problem]] = []
    demands: list[tuple[str, Problem]] = []
    if not hidden:
        rights = _of_installed(session, sql.rights_to_deliver(table.schema, table.table, schemas), schemas)
        problems += _right_problems(session, rights, "dpone.target.permission")
        found, waivers, warnings = _table_problems(session, table)
        problems += found
        problems += _column_problems(columns, table)
        demands = _demands(session, columns, table)
        problems += parity.parity_problems(session, str(session.rows("SELECT DB_NAME();")[0][0]))
    seen = headroom.observe(session, table.object_id)
    return tr.TargetTable(
        catalog.described(columns),
        tuple(problems),
        tuple(warnings),
        seen,
        tuple(waivers),
        tuple(demands),
        _must_be_fed(session, columns, table),
    )


def _must_be_fed(
    session: Session, columns: Sequence[catalog.StoredColumn], table: catalog.StoredTable
) -> tuple[str, ...]:
    written = {column.name for column in columns if column.is_written_by_server}
    found = [str(row[0]) for row in session.rows(sql.WITHOUT_DEFAULT, table.object_id)]
    return tuple(name for name in found if name not in written)


def new_table_problems(
    session: Session, schema: str, columns: Sequence[tr.TargetColumn], schemas: Schemas
) -> list[Problem]:
    """What stands against making a table in a schema, and against delivering into it afterwards."""
    found = _server_problems(session)
    if len(columns) > CERTIFIED_COLUMNS:
        text = f"would have {len(columns)} columns; the proof is certified for {CERTIFIED_COLUMNS}"
        found.append(Problem("dpone.target.too_wide", schema, text))
    row = session.row(SCHEMA_ID, schema)
    if row is None or row[0] is None:
        text = f"there is no such schema, or this login may not see it; run: {sql.create_schema(schema)}"
        return [*found, Problem("dpone.target.schema_missing", schema, text)]
    hidden = _right_problems(session, sql.rights_to_see_database(), "dpone.target.metadata_hidden")
    rights = _of_installed(session, sql.rights_to_create(schema, schemas), schemas)
    found += [*hidden, *_right_problems(session, rights, "dpone.target.permission")]
    return [*found, *parity.parity_problems(session, str(session.rows("SELECT DB_NAME();")[0][0]))]


def _of_installed(session: Session, rights: list[sql.Right], schemas: Schemas) -> list[sql.Right]:
    """The rights on what is there: without an installation, `target init` is what is missing, and a plan says
    so by itself."""
    if installation.installation_id(session, schemas) is not None:
        return rights
    return [r for r in rights if r[0] not in (schemas.installation, schemas.gate, schemas.receipt)]


def _name(table: catalog.StoredTable) -> str:
    return f"{table.schema}.{table.table}"


def _right_problems(session: Session, rights: list[sql.Right], code: str) -> list[Problem]:
    """One problem for each right that is not held, with the statement that gives it."""
    row = session.row(sql.held_rights(rights)) or ("", *[None for _ in rights])
    user = str(row[0])
    return [
        Problem(
            code, right[0] or "database", f"the login needs {right[2]}; run: {sql.grant_text(right, user)}"
        )
        for right, held in zip(rights, row[1:], strict=True)
        if held != 1
    ]


def _server_problems(session: Session) -> list[Problem]:
    row = session.row(sql.SERVER)
    if row is None:
        text = "sys.databases does not show this database"
        return [Problem("dpone.target.metadata_hidden", "database", text)]
    version, edition, level, durability, _ = row
    found = []
    if edition not in _AZURE and int(version or 0) < OLDEST_VERSION:
        text = f"its major version is {version}; SQL Server 2019 ({OLDEST_VERSION}) or newer is needed"
        found.append(Problem("dpone.target.server_version", "server", text))
    if level < OLDEST_LEVEL:
        text = f"its compatibility level is {level}, at least {OLDEST_LEVEL} is needed"
        found.append(Problem("dpone.target.server_version", "database", text))
    if durability == _FORCED:
        text = (
            "DELAYED_DURABILITY is FORCED: a commit would be answered before it is on disk; set it to ALLOWED"
        )
        found.append(Problem("dpone.target.delayed_durability", "database", text))
    return found


def _table_problems(
    session: Session, table: catalog.StoredTable
) -> tuple[list[Problem], list[tuple[str, Problem]], list[str]]:
    """Refusals, those of them that an option lets through, and remarks that are none."""
    where = _name(table)
    found: list[Problem] = []
    waivers: list[tuple[str, Problem]] = []

    def refuse(code: str, text: str, option: str | None = None) -> None:
        hint = f", or set options.{option}=True" if option else ""
        found.append(Problem(code, where, text + hint))
        if option:
            waivers.append((option, found[-1]))

    kind = session.row(sql.TABLE_KIND, table.object_id) or ()
    for flag, what in zip(kind, _KINDS, strict=False):
        if flag:
            refuse("dpone.target.table_kind", f"is {what}; deliver into an ordinary table")
    for name, schema, child, action in session.rows(sql.REFERENCING, table.object_id):
        text = f"foreign key {name} of {schema}.{child} references it (ON DELETE {action})"
        harmless = "allow_referenced_target" if action == "NO_ACTION" else None
        text = f"{text}: deleting a window would break or change other rows; drop it"
        refuse("dpone.target.referenced", text, harmless)
    for (name,) in session.rows(sql.ROW_POLICIES, table.object_id):
        text = f"security policy {name} filters its rows: those that are hidden would stay; switch it off"
        refuse("dpone.target.row_policy", text)
    for name, instead in session.rows(sql.TRIGGERS, table.object_id):
        what = "decides what is stored" if instead else "may change, reject or commit what is stored"
        text = f"trigger {name} {what}; disable it"
        refuse("dpone.target.trigger", text, None if instead else "allow_triggers")
    for (name,) in session.rows(sql.DUPLICATES_IGNORED, table.object_id):
        text = f"index {name} has IGNORE_DUP_KEY: duplicates would vanish with a warning; rebuild it without"
        refuse("dpone.target.ignore_dup_key", text)
    emitted = [what for flag, what in zip(kind[len(_KINDS) :], _EMITTED, strict=False) if flag]
    return found, waivers, [f"{where} is {what}: each redelivery sends every row twice" for what in emitted]


def _demands(
    session: Session, columns: tuple[catalog.StoredColumn, ...], table: catalog.StoredTable
) -> list[tuple[str, Problem]]:
    """What only a proof of the after-image needs: to see what a mask hides."""
    masked = [column.name for column in columns if column.is_masked]
    if not masked:
        return []
    row = session.row(sql.held_rights(sql.rights_to_unmask(table.schema, table.table))) or ("",)
    if 1 in row[1:]:
        return []
    text = (
        f"masks hide {', '.join(masked)} from this login: what is stored would be hashed as masks; "
        f"run: GRANT UNMASK TO {quoted(str(row[0]))};"
    )
    return [("proves_after_image", Problem("dpone.target.permission", _name(table), text))]


def _column_problems(columns: tuple[catalog.StoredColumn, ...], table: catalog.StoredTable) -> list[Problem]:
    found = []
    if len(columns) > CERTIFIED_COLUMNS:
        text = f"has {len(columns)} columns; the proof is certified for {CERTIFIED_COLUMNS}"
        found.append(Problem("dpone.target.too_wide", _name(table), text))
    for column in columns:
        if column.is_written_by_server:
            text = "is written by the server (identity, computed ...); name it in options.unmapped_columns"
            found.append(Problem("dpone.target.generated_column", column.name, text))
        if column.encryption_type is not None:
            text = "is encrypted by Always Encrypted: the server cannot prove what it holds"
            found.append(Problem("dpone.target.encrypted_column", column.name, text))
        if column.type_name.lower() in ("binary", "varbinary") and not column.is_ansi_padded:
            text = "was made with ANSI_PADDING OFF, which trims zero bytes; make the column again"
            found.append(Problem("dpone.target.ansi_padding", column.name, text))
    return found
