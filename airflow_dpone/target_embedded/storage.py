"""T-SQL types on DuckDB columns: what a column means, and what a column of that meaning is stored as."""

from __future__ import annotations

import re

from airflow_dpone.wire.sql_type import REFUSED_TARGETS, SqlType, parse_sql_type
from airflow_dpone.wire.types import WireLayout

Columns = tuple[tuple[str, str, bool], ...]
"""Name, DuckDB type, nullable."""

_LOOKS_LIKE_A_TYPE = re.compile(r"[a-z_]\w*\s*\(\s*(\d+|max)\s*(,\s*\d+\s*)?\)(\s+(not\s+)?null)?")
_ALSO_WORDS = {"text", "time", "image", "money", "timestamp", "vector", "geography", "geometry"}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_DEFAULTS = {
    "BIGINT": "bigint",
    "INTEGER": "int",
    "SMALLINT": "smallint",
    "UTINYINT": "tinyint",
    "FLOAT": "real",
    "DOUBLE": "float(53)",
    "BOOLEAN": "bit",
    "DATE": "date",
    "TIMESTAMP_S": "datetime2(0)",
    "TIMESTAMP_MS": "datetime2(3)",
    "TIMESTAMP": "datetime2(6)",
    "VARCHAR": "nvarchar(max)",
    "BLOB": "varbinary(max)",
    "UUID": "uniqueidentifier",
}
_HOLDERS = {
    "bigint": ("BIGINT", "HUGEINT"),
    "int": ("INTEGER", "BIGINT", "HUGEINT"),
    "smallint": ("SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
    "tinyint": (
        "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"
    ),
    "bit": ("BOOLEAN",),
    "real": ("FLOAT", "DOUBLE"),
    "float": ("DOUBLE",),
    "date": ("DATE",),
    "nvarchar": ("VARCHAR",),
    "binary": ("BLOB",),
    "varbinary": ("BLOB",),
    "uniqueidentifier": ("UUID",),
}  # fmt: skip
_TIMES = (("TIMESTAMP_S", 0), ("TIMESTAMP_MS", 3), ("TIMESTAMP", 6))
TEMPORAL = ("date", "datetime2")


def default_type(stored: str) -> str:
    """The T-SQL type of a column without a comment; a text that no type matrix admits when there is none."""
    decimal = _DECIMAL.fullmatch(stored)
    if decimal:
        return f"decimal({decimal[1]},{decimal[2]})"
    return _DEFAULTS.get(stored, f"DuckDB {stored}")


def type_in_comment(comment: str | None) -> SqlType | None:
    """The T-SQL type that a column's comment names, or None when it names none."""
    found = parse_sql_type(comment) if comment else None
    return found if isinstance(found, SqlType) else None


def misread_comment(comment: str | None) -> str | None:
    """Why a comment that looks like a type is none; None for a type and for any other text.

    ``nvarchr(10)`` and ``varchar(10)`` would otherwise be taken for a remark, and their length be lost.
    """
    found = parse_sql_type(comment) if comment else None
    if not isinstance(found, str) or comment is None:
        return None
    text = comment.strip().lower()
    looks = _LOOKS_LIKE_A_TYPE.fullmatch(text) or text in set(REFUSED_TARGETS) - _ALSO_WORDS
    return found if looks else None


def holds(stored: str, sql_type: SqlType) -> bool:
    """Whether a DuckDB type holds every value of the T-SQL type, exactly."""
    if sql_type.name == "decimal":
        decimal = _DECIMAL.fullmatch(stored)
        if decimal is None:
            return False
        return int(decimal[2]) == sql_type.scale and int(decimal[1]) >= (sql_type.precision or 0)
    if sql_type.name == "datetime2":
        return stored in [name for name, scale in _TIMES if scale >= (sql_type.scale or 0)]
    return stored in _HOLDERS[sql_type.name]


def stored_as(sql_type: SqlType) -> str:
    """The DuckDB type of a staging column."""
    if sql_type.name == "decimal":
        return f"DECIMAL({sql_type.precision},{sql_type.scale})"
    if sql_type.name == "datetime2":
        return next((name for name, scale in _TIMES if scale >= (sql_type.scale or 0)), "TIMESTAMP")
    return _HOLDERS[sql_type.name][0]


def stage_columns(layout: WireLayout) -> Columns:
    """The columns of a staging table of this layout, nullable like the target's."""
    return tuple((c.name, stored_as(c.pair.sql_type), c.pair.target_nullable) for c in layout.columns)
