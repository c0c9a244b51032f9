"""What the server's catalog says about a table: where it is, what it holds, which incarnation it is."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_dpone.delivery import target_records as tr
from airflow_dpone.errors import ConfigurationError, Incident, Problem
from airflow_dpone.target_sqlserver import statements as sql
from airflow_dpone.target_sqlserver.quoting import MAX_NAME, qualified
from airflow_dpone.target_sqlserver.session import Row, Session

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS = {
    "V": "is a view; name the table that it reads from",
    "SN": "is a synonym; name the table that it stands for",
    "ET": "is an external table, which no local transaction covers; name a table of this database",
}


@dataclass(frozen=True)
class StoredTable:
    """A user table by its names as stored. :param created: ``create_date`` as text, to the 1/300 second."""

    schema: str
    table: str
    object_id: int
    created: str

    @property
    def path(self) -> str:
        """For SQL."""
        return qualified(self.schema, self.table)

    @property
    def is_missing(self) -> bool:
        """Whether there is no such table; no object has the id 0."""
        return self.object_id == 0

    @property
    def stamp(self) -> str:
        """:attr:`created` as :func:`stamp_of` makes it; zeros for a table that is missing."""
        return "0" * 16 if self.is_missing else stamp_of(self.created)


@dataclass(frozen=True)
class StoredColumn:
    """A column as the catalog has it; what the publication compares is in :attr:`frozen`."""

    column_id: int
    name: str
    type_name: str
    user_type_id: int
    max_length: int
    precision: int
    scale: int
    is_nullable: int
    collation: str | None
    is_identity: int
    is_computed: int
    generated_always_type: int | None
    is_ansi_padded: int
    encryption_type: int | None
    is_masked: int | None

    @property
    def type_text(self) -> str:
        """The type as in CREATE TABLE; a column that is never written has no type of ours."""
        name = self.type_name.lower()
        if name in ("nvarchar", "nchar"):
            return f"{name}({'max' if self.max_length < 0 else self.max_length // 2})"
        if name in ("varbinary", "binary", "varchar", "char"):
            return f"{name}({'max' if self.max_length < 0 else self.max_length})"
        if name in ("decimal", "numeric"):
            return f"decimal({self.precision},{self.scale})"
        if name in ("datetime2", "datetimeoffset", "time"):
            return f"{name}({self.scale})"
        return f"float({self.precision})" if name == "float" else name

    @property
    def is_written_by_server(self) -> bool:
        """Identity, computed, generated always, rowversion: the server gives the value."""
        generated = bool(self.is_identity or self.is_computed or self.generated_always_type)
        return generated or self.type_name.lower() in ("timestamp", "rowversion")

    @property
    def frozen(self) -> Row:
        """What must not change between the look before a publication and the publication."""
        return (
            self.column_id,
            self.name,
            self.user_type_id,
            self.max_length,
            self.precision,
            self.scale,
            self.is_nullable,
            self.collation,
        )


def stamp_of(created: str) -> str:
    """A creation date as eight bytes in hex: milliseconds since 1970."""
    moment = datetime.fromisoformat(created).replace(tzinfo=UTC)
    return f"{(moment - _EPOCH) // timedelta(milliseconds=1):016x}"


def created_of(stamp: str) -> str:
    """The reverse of :func:`stamp_of`; '' for a stamp that is no date, which equals no date."""
    try:
        moment = _EPOCH + timedelta(milliseconds=int(stamp, 16))
    except (OverflowError, ValueError):
        return ""
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{moment.microsecond // 1000:03d}"


def find_table(session: Session, schema: str, table: str, schemas: sql.Schemas) -> StoredTable:
    """The user table of that name; the database's collation decides whether names are equal.

    :raises ConfigurationError: there is none, with close names; it is something else; it is one of our own.
    """
    found = find_or_missing(session, schema, table, schemas)
    if found.is_missing:
        where = f"{schema}.{table}"
        hint = "; correct the name, create it, or set options.create_target"
        text = f"there is no such table{_close_names(session, where, schemas)}{hint}"
        raise ConfigurationError.of([Problem("dpone.target.table_missing", where, text)])
    return found


def find_or_missing(session: Session, schema: str, table: str, schemas: sql.Schemas) -> StoredTable:
    """Like :func:`find_table`, but where nothing has that name, the answer is a table that is missing: by the
    names that it will be stored under."""
    where = f"{schema}.{table}"
    if not all(name and "\0" not in name and len(name) <= MAX_NAME for name in (schema, table)):
        return StoredTable(schema, table, 0, "")
    row = session.row(sql.OBJECT, qualified(schema, table))
    if row is None:
        stored = session.row(sql.SCHEMA_NAME, schema)
        return StoredTable(stored[0] if stored else schema, table, 0, "")
    stored_schema, stored_table, kind, object_id, created = row
    if stored_schema.lower() in (schemas.control.lower(), schemas.stage.lower()):
        text = f"schema {stored_schema} belongs to this product; choose another table"
        raise ConfigurationError.of([Problem("dpone.target.not_a_table", where, text)])
    if kind != "U":
        text = _KINDS.get(kind, f"is an object of type {kind}; name a table")
        raise ConfigurationError.of([Problem("dpone.target.not_a_table", where, text)])
    return StoredTable(stored_schema, stored_table, int(object_id), created)


def _close_names(session: Session, where: str, schemas: sql.Schemas) -> str:
    ours = (schemas.control, schemas.stage)
    names = [f"{schema}.{table}" for schema, table in session.rows(sql.TABLES) if schema not in ours]
    near = difflib.get_close_matches(where, names, n=3)
    return f"; close names: {', '.join(near)}" if near else ""


def columns_of(session: Session, object_id: int) -> tuple[StoredColumn, ...]:
    """The columns in order. None at all means that this login may not see them."""
    return tuple(StoredColumn(*row) for row in session.rows(sql.COLUMNS, object_id))


def described(columns: tuple[StoredColumn, ...]) -> tuple[tr.TargetColumn, ...]:
    """Columns with their types; one that the server writes has a type that no mapping admits."""
    return tuple(
        tr.TargetColumn(c.name, "computed" if c.is_written_by_server else c.type_text, bool(c.is_nullable))
        for c in columns
    )


def matching_columns(session: Session, target: tr.TargetRef) -> tuple[StoredColumn, ...] | None:
    """The columns of the table of that name, if it is there with the columns of the plan; else None."""
    row = session.row(sql.OBJECT, qualified(target.schema, target.table))
    if row is None or row[2] != "U":
        return None
    found = columns_of(session, int(row[3]))
    return found if tr.TargetTable(described(found)).fingerprint == target.fingerprint else None


def require_incarnation(session: Session, target: tr.TargetRef) -> None:
    """Raises Incident unless the table of that name is still the one that the plan means."""
    row = session.row(sql.OBJECT, qualified(target.schema, target.table))
    same = row is not None and (int(row[3]), stamp_of(row[4])) == (target.object_id, target.created)
    if not same or matching_columns(session, target) is None:
        raise Incident(
            "dpone.target.incarnation_gone",
            f"{target.schema}.{target.table} was published, and then dropped or changed.",
        )
