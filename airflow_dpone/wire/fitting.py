"""Which target type holds every value of a source type: for a target table that is made by a delivery.

The narrowest exact one, except for text: ClickHouse knows no longest String, so it becomes ``nvarchar(max)``.
"""

from __future__ import annotations

from airflow_dpone.errors import Problem
from airflow_dpone.wire.source_type import SourceType, parse_source_type
from airflow_dpone.wire.sql_type import SqlType

_NAMES = {
    "Int8": "smallint",
    "Int16": "smallint",
    "Int32": "int",
    "Int64": "bigint",
    "UInt8": "tinyint",
    "UInt16": "int",
    "UInt32": "bigint",
    "Float32": "real",
    "Bool": "bit",
    "String": "nvarchar",
    "Enum8": "nvarchar",
    "Enum16": "nvarchar",
    "UUID": "uniqueidentifier",
    "Date": "date",
    "Date32": "date",
}
_LONGEST_BINARY = 8000


def fitting_type(column: str, source_type: str) -> tuple[SqlType, bool] | Problem:
    """The type of a new target column and whether it takes NULL, or why there is none.

    :param column: the source column that a refusal is about. :param source_type: as ClickHouse prints it.
    """
    source = parse_source_type(source_type)
    if isinstance(source, str):
        text = f"{source}. Or leave the column out with `columns`."
        return Problem("dpone.types.unsupported", column, text)
    return _type_of(source), source.nullable


def _type_of(source: SourceType) -> SqlType:
    if source.name == "UInt64":
        return SqlType("decimal", precision=20, scale=0)
    if source.name == "Float64":
        return SqlType("float", precision=53)
    if source.name == "Decimal":
        precision, scale = source.numbers
        return SqlType("decimal", precision=precision, scale=scale)
    if source.name in ("DateTime", "DateTime64"):
        return SqlType("datetime2", scale=source.numbers[0] if source.numbers else 0)
    if source.name == "FixedString":
        (size,) = source.numbers
        return SqlType("binary", length=size) if size <= _LONGEST_BINARY else SqlType("varbinary")
    return SqlType(_NAMES[source.name])
