"""The T-SQL that hashes rows inside the server, as ``native_rows v1`` writes them.

Only ``+`` on varbinary and ``SUBSTRING`` per byte: CONCAT turns bytes into text and NULL into nothing, and
REVERSE works on characters. ``varbinary(n) + varbinary(n)`` is cut at 8,000 bytes without an error, so
every sum that could be longer starts with a ``varbinary(max)``.
Sums are balanced: SQL Server nests only so deep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_dpone.target_sqlserver.quoting import quoted
from airflow_dpone.wire.sql_type import SqlType
from airflow_dpone.wire.types import WireLayout

CERTIFIED_COLUMNS = 250
"""The widest table whose digest statement is known to compile; more are refused at admission."""

GROUP_CELLS = 8
_CUT = 8_000
_HEAD = "CAST(0x AS varbinary(max))"
_LIMBS = 8


@dataclass(frozen=True)
class _Bytes:
    """An expression of bytes. :param most: its longest value; None: it is a ``varbinary(max)``."""

    text: str
    most: int | None

    def __add__(self, other: _Bytes) -> _Bytes:
        if self.most is None or other.most is None:
            return _Bytes(f"({self.text} + {other.text})", None)
        if self.most + other.most > _CUT:
            return _Bytes(f"(({_HEAD} + {self.text}) + {other.text})", None)
        return _Bytes(f"({self.text} + {other.text})", self.most + other.most)


def row_bytes(layout: WireLayout) -> str:
    """The bytes of one row of table ``s``, always a ``varbinary(max)``."""
    cells = [cell_bytes(c.name, c.pair.sql_type, c.pair.target_nullable) for c in layout.columns]
    groups = [_sum(cells[i : i + GROUP_CELLS]) for i in range(0, len(cells), GROUP_CELLS)]
    whole = _sum([_Bytes(_HEAD, None) + groups[0], *groups[1:]])
    return whole.text


def _sum(parts: Sequence[_Bytes]) -> _Bytes:
    """A balanced sum, in order."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return _sum(parts[:half]) + _sum(parts[half:])


def row_hash(layout: WireLayout) -> str:
    """The hash of one row of table ``s``."""
    return f"CAST(HASHBYTES('SHA2_256', {row_bytes(layout)}) AS binary(32))"


def hash_rows(path: str, layout: WireLayout, limit: str, into: str = "#h", where: str = "") -> str:
    """One hash per row into a temporary table. :param limit: for TOP; it stands in the same SELECT as
    HASHBYTES, or the hash would be computed once per limb.

    The name of the temporary table is used once per batch: a second SELECT INTO of one name does not compile.
    """
    return (
        f"SELECT TOP ({limit}) {row_hash(layout)} AS h\n"
        f"  INTO {into} FROM {path} AS s WITH (TABLOCKX, HOLDLOCK){where};"
    )


def limb_sums(of: str = "h") -> list[str]:
    """The sums of the eight 32-bit limbs, most significant first; over no rows they are NULL."""
    return [
        f"SUM(CAST(CAST(SUBSTRING({of}, {1 + 4 * i}, 4) AS bigint) AS decimal(38,0)))" for i in range(_LIMBS)
    ]


def observe(path: str, layout: WireLayout, expected_rows: int) -> str:
    """The whole proof of a table in one batch: one row of ten values comes back, and no business row."""
    sums = ", ".join(f"{text} AS l{i}" for i, text in enumerate(limb_sums()))
    return (
        f"SET NOCOUNT ON;\n{hash_rows(path, layout, str(int(expected_rows) + 1))}\n"
        f"SELECT COUNT_BIG(*) AS n, COUNT_BIG(h) AS nh, {sums} FROM #h;\nDROP TABLE #h;"
    )


# ---- cells ----------------------------------------------------------------------------------------


def cell_bytes(name: str, kind: SqlType, nullable: bool) -> _Bytes:
    """The bytes of one cell: prefix and payload, or the prefix of NULL."""
    c = f"s.{quoted(name)}"
    if kind.name in ("nvarchar", "binary", "varbinary"):
        return _varying(c, kind, nullable)
    if kind.name == "bit":
        value = f"WHEN {c} = 1 THEN CAST(0x0101 AS varbinary(2)) ELSE CAST(0x0100 AS varbinary(2)) END"
        null = f"WHEN {c} IS NULL THEN CAST(0xFF AS varbinary(2)) " if nullable else ""
        return _Bytes(f"CASE {null}{value}", 2)
    if kind.name == "decimal":
        return _nullable(c, _decimal(c, kind), 20, nullable)
    if kind.name == "uniqueidentifier":
        return _nullable(c, f"CAST(0x10 + CAST({c} AS binary(16)) AS varbinary(17))", 17, nullable)
    payload, size = _fixed(c, kind)
    if not nullable:
        return _Bytes(f"CAST({payload} AS varbinary({size}))", size)
    return _nullable(c, f"CAST(0x{size:02X} + {payload} AS varbinary({size + 1}))", size + 1, nullable)


def _nullable(c: str, value: str, size: int, nullable: bool) -> _Bytes:
    if not nullable:
        return _Bytes(value, size)
    return _Bytes(f"CASE WHEN {c} IS NULL THEN CAST(0xFF AS varbinary({size})) ELSE {value} END", size)


def _fixed(c: str, kind: SqlType) -> tuple[str, int]:
    """Payload and size of a type whose values all have one size and no prefix of their own."""
    if kind.name == "datetime2":
        return f"SUBSTRING(CAST(CAST({c} AS datetime2(7)) AS binary(9)), 2, 8)", 8
    if kind.name == "date":
        return f"CAST({c} AS binary(3))", 3
    size = {"bigint": 8, "float": 8, "int": 4, "real": 4, "smallint": 2, "tinyint": 1}[kind.name]
    return _little_endian(f"CAST({c} AS binary({size}))", size), size


def _little_endian(b: str, size: int) -> str:
    """The bytes of a big-endian value from its last to its first."""
    if size == 1:
        return b
    return "(" + " + ".join(f"SUBSTRING({b}, {i}, 1)" for i in range(size, 0, -1)) + ")"


def _decimal(c: str, kind: SqlType) -> str:
    """Precision, scale, sign, 16 bytes of magnitude; CAST gives only as many groups as the value needs."""
    zero = f"CAST(0 AS {kind})"
    return (
        f"CAST(0x13{kind.precision:02X}{kind.scale:02X} + CASE WHEN {c} < {zero} THEN 0x00 ELSE 0x01 END"
        f" + CAST(SUBSTRING(CAST({c} AS varbinary(20)), 5, 16) AS binary(16)) AS varbinary(20))"
    )


def _varying(c: str, kind: SqlType, nullable: bool) -> _Bytes:
    """Length prefix and bytes: 8 bytes of length for (max), else 2."""
    if kind.is_max:
        length = _little_endian(f"CAST(CAST(DATALENGTH({c}) AS bigint) AS binary(8))", 8)
        value = f"CAST({length} AS varbinary(max)) + CAST({c} AS varbinary(max))"
        return _or_null(c, value, f"0x{'FF' * 8}", None, nullable)
    most = (kind.length or 0) * (2 if kind.name == "nvarchar" else 1) + 2
    length = _little_endian(f"CAST(CAST(DATALENGTH({c}) AS smallint) AS binary(2))", 2)
    if most > _CUT:
        value = f"CAST({length} AS varbinary(max)) + CAST({c} AS varbinary(max))"
        return _or_null(c, value, "0xFFFF", None, nullable)
    return _or_null(c, f"{length} + CAST({c} AS varbinary(8000))", "0xFFFF", most, nullable)


def _or_null(c: str, value: str, null: str, most: int | None, nullable: bool) -> _Bytes:
    if not nullable:
        return _Bytes(f"({value})", most)
    size = "max" if most is None else "8000"
    return _Bytes(f"CASE WHEN {c} IS NULL THEN CAST({null} AS varbinary({size})) ELSE {value} END", most)
