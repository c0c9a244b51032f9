"""SQL Server column types as values, and how ``native_rows v1`` frames a cell of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from airflow_dpone.errors import ConfigurationError, Problem

_TEXT = re.compile(r"([a-z][a-z0-9_ ]*?)\s*(?:\(\s*([0-9]+|max)\s*(?:,\s*([0-9]+)\s*)?\))?", re.IGNORECASE)
_SYNONYMS = {
    "integer": "int",
    "numeric": "decimal",
    "dec": "decimal",
    "double precision": "float",
    "national character varying": "nvarchar",
    "binary varying": "varbinary",
}
_PLAIN = ("bigint", "int", "smallint", "tinyint", "bit", "real", "date", "uniqueidentifier")
_MAX_LENGTH = {"nvarchar": 4000, "binary": 8000, "varbinary": 8000}

_LEGACY_TIME = "rounds to its own tick; use datetime2(n)"
_CODE_PAGE = "stores text in a code page that cannot hold every character; use nvarchar(n) or nvarchar(max)"
_OLD_LOB = "is deprecated and has no exact comparison; use {}"
_NOT_WRITTEN = "is produced by SQL Server and never written; deliver into a table without it"

REFUSED_TARGETS: dict[str, str] = {
    "datetime": f"{_LEGACY_TIME} (1/300 second here)",
    "smalldatetime": f"{_LEGACY_TIME} (one minute here)",
    "datetimeoffset": "keeps an offset that the source does not have; use datetime2(n), which holds UTC",
    "time": "has no ClickHouse column type with the same values; use datetime2(n)",
    "money": "rounds to four digits in arithmetic; use decimal(19,4)",
    "smallmoney": "rounds to four digits in arithmetic; use decimal(10,4)",
    "varchar": _CODE_PAGE,
    "char": _CODE_PAGE,
    "nchar": "pads with blanks, so the value that is read is not the value that was sent; use nvarchar(n)",
    "text": _OLD_LOB.format("nvarchar(max)"),
    "ntext": _OLD_LOB.format("nvarchar(max)"),
    "image": _OLD_LOB.format("varbinary(max)"),
    "xml": "rewrites what it stores (white space, entities); use nvarchar(max)",
    "json": "rewrites what it stores; use nvarchar(max)",
    "sql_variant": "has a type per value; use a column of one type",
    "hierarchyid": "is a CLR type; use nvarchar(n) or varbinary(n)",
    "geometry": "is a CLR type; use varbinary(max) or nvarchar(max)",
    "geography": "is a CLR type; use varbinary(max) or nvarchar(max)",
    "rowversion": _NOT_WRITTEN,
    "timestamp": _NOT_WRITTEN,
    "vector": "holds approximate numbers only; use varbinary(n)",
    "sysname": "is an alias type; declare the column as nvarchar(128)",
}


@dataclass(frozen=True)
class SqlType:
    """A SQL Server column type.

    :param name: the type's name in lower case, without synonyms (``numeric`` is ``decimal``).
    :param length: ``nvarchar``: UTF-16 units, ``binary``/``varbinary``: bytes; None is ``max`` for these
        three and "has no length" for all others.
    :param precision: decimal digits of ``decimal``; 53 for ``float``.
    :param scale: digits after the point of ``decimal``, of the second of ``datetime2``.
    """

    name: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None

    @classmethod
    def parse(cls, text: str) -> SqlType:
        """The type that a T-SQL text such as ``nvarchar(20)`` names.

        :raises ConfigurationError: ``dpone.types.unsupported`` with what to use instead.
        """
        found = parse_sql_type(text)
        if isinstance(found, SqlType):
            return found
        raise ConfigurationError.of([Problem("dpone.types.unsupported", text, found)])

    @property
    def is_max(self) -> bool:
        """True for ``nvarchar(max)`` and ``varbinary(max)``."""
        return self.name in _MAX_LENGTH and self.length is None

    @property
    def framing(self) -> Framing:
        """The row of the framing table for this type."""
        if self.name in _MAX_LENGTH:
            return FRAMING[f"{self.name}({'max' if self.length is None else 'n'})"]
        return FRAMING[self.name]

    def prefix_bytes(self, nullable: bool) -> int:
        """Bytes of the length prefix in front of the payload, 0 if there is none."""
        return self.framing.prefix_nullable if nullable else self.framing.prefix_not_null

    @property
    def payload_bytes(self) -> int | None:
        """Bytes of the payload of every value that is not NULL; None if it varies by value."""
        return self.framing.payload_bytes

    def __str__(self) -> str:
        if self.name in _MAX_LENGTH:
            return f"{self.name}({'max' if self.length is None else self.length})"
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.name == "datetime2":
            return f"datetime2({self.scale})"
        return "float(53)" if self.name == "float" else self.name


@dataclass(frozen=True)
class Framing:
    """How ``native_rows v1`` writes a cell: prefix (payload length, all FF for NULL), then payload."""

    payload: str
    payload_bytes: int | None
    prefix_nullable: int
    prefix_not_null: int


FRAMING: dict[str, Framing] = {
    "bigint": Framing("signed integer, little-endian", 8, 1, 0),
    "int": Framing("signed integer, little-endian", 4, 1, 0),
    "smallint": Framing("signed integer, little-endian", 2, 1, 0),
    "tinyint": Framing("unsigned integer", 1, 1, 0),
    "bit": Framing("00 or 01", 1, 1, 1),
    "real": Framing("IEEE 754 binary32, little-endian", 4, 1, 0),
    "float": Framing("IEEE 754 binary64, little-endian", 8, 1, 0),
    "decimal": Framing("precision, scale, sign (1 if >= 0), magnitude 16 bytes little-endian", 19, 1, 1),
    "date": Framing("days since 0001-01-01, little-endian", 3, 1, 0),
    "datetime2": Framing(
        "100 ns since midnight 5 bytes, days since 0001-01-01 3 bytes, both little-endian", 8, 1, 0
    ),
    "nvarchar(n)": Framing("UTF-16LE", None, 2, 2),
    "nvarchar(max)": Framing("UTF-16LE", None, 8, 8),
    "binary(n)": Framing("bytes", None, 2, 2),
    "varbinary(n)": Framing("bytes", None, 2, 2),
    "varbinary(max)": Framing("bytes", None, 8, 8),
    "uniqueidentifier": Framing("first three fields little-endian, last eight bytes as written", 16, 1, 1),
}


def framing_as_data() -> dict[str, object]:
    """The framing table as JSON data, a part of every layout's identity."""
    rows = [
        [name, row.payload, row.payload_bytes, row.prefix_nullable, row.prefix_not_null]
        for name, row in sorted(FRAMING.items())
    ]
    return {
        "head": ["type", "payload", "payload_bytes", "prefix_nullable", "prefix_not_null"],
        "rows": rows,
        "prefix": "payload length in bytes, unsigned little-endian",
        "null": "all prefix bytes FF, no payload",
    }


@lru_cache(maxsize=4096)
def parse_sql_type(text: str) -> SqlType | str:
    """Like :meth:`SqlType.parse`, but a refusal is returned as its message."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        return f"{text!r} is not a SQL Server type; write it as in CREATE TABLE, e.g. nvarchar(20)"
    name = " ".join(match[1].lower().split())
    name = _SYNONYMS.get(name, name)
    if name in REFUSED_TARGETS:
        return f"the target type {name} {REFUSED_TARGETS[name]}"
    first, second = match[2], match[3]
    if name in _PLAIN:
        return SqlType(name) if first is None else f"{name} takes no length, found {text.strip()!r}"
    if name in _MAX_LENGTH:
        return _with_length(name, first, second)
    if name == "decimal":
        return _decimal(first, second)
    if name == "datetime2":
        return _datetime2(first, second)
    if name == "float":
        return _float(first, second)
    return f"{name} is not a target type of this product; see `python -m airflow_dpone types`"


def _with_length(name: str, length: str | None, second: str | None) -> SqlType | str:
    limit = _MAX_LENGTH[name]
    if length is None or second is not None:
        return f"{name} needs one length, such as {name}(20)"
    if length.lower() == "max":
        return SqlType(name) if name != "binary" else "binary(max) does not exist; use varbinary(max)"
    if not 1 <= int(length) <= limit:
        return f"the length of {name} is 1..{limit}, not {int(length)}"
    return SqlType(name, length=int(length))


def _decimal(precision: str | None, scale: str | None) -> SqlType | str:
    if precision is not None and not precision.isdigit():
        return "decimal(max) does not exist; use decimal(p,s)"
    p, s = int(precision or 18), int(scale or 0)
    if not 1 <= p <= 38 or not s <= p:
        return f"decimal(p,s) needs 1 <= p <= 38 and 0 <= s <= p, not ({p},{s})"
    return SqlType("decimal", precision=p, scale=s)


def _datetime2(scale: str | None, second: str | None) -> SqlType | str:
    if second is not None or (scale is not None and (not scale.isdigit() or int(scale) > 7)):
        return "datetime2 takes one scale of 0..7"
    return SqlType("datetime2", scale=7 if scale is None else int(scale))


def _float(bits: str | None, second: str | None) -> SqlType | str:
    if second is not None or (bits is not None and (not bits.isdigit() or not 1 <= int(bits) <= 53)):
        return "float takes one number of bits of 1..53"
    # SQL Server knows two sizes only: 1..24 bits are stored as real, 25..53 as float(53).
    return SqlType("real") if bits is not None and int(bits) <= 24 else SqlType("float", precision=53)
