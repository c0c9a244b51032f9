"""Every ClickHouse statement of the product, and the one way to quote a name.

Values of rows never become text here, and window bounds are integers: no zone and no parser of dates can
touch them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_dpone.delivery.records import SourceQuery, SourceTable
from airflow_dpone.delivery.window import Window
from airflow_dpone.errors import ConfigurationError, Problem
from airflow_dpone.wire.source_type import parse_source_type
from airflow_dpone.wire.types import RawForm, TypePair, WireLayout

ROWS = "dpone_rows"
"""Alias of the source table. Columns are named through it, since ``c0`` alone could mean our own alias."""

PART = "dpone_part"
"""Alias of the part that a row came from."""

# Settings that differ from the defaults or have one of these names, each as five hex texts: name, value,
# whether it is changed, whether it is fixed, bounds. One row, so that no limit of a profile can cut it.
SETTINGS = (
    "SELECT arrayStringConcat(groupArray(concat(hex(name), '.', hex(toString(value)), '.',"
    " hex(toString(changed)), '.', hex(toString(readonly)), '.', hex(ifNull(toString(min), '')), '.',"
    " hex(ifNull(toString(max), '')))), ' ') FROM system.settings WHERE changed OR name IN ({names})"
)

# Names of the user's settings profiles.
PROFILES = "SELECT arrayStringConcat(arrayMap(name -> concat('\\'', name, '\\''), currentProfiles()), ', ')"

# Who answers.
SERVER_ID = "SELECT toString(serverUUID())"

# The database's engine; no row: it does not exist.
DATABASE = "SELECT engine FROM system.databases WHERE name = {database}"

# Databases, for close names.
DATABASE_NAMES = "SELECT name FROM system.databases ORDER BY name LIMIT 10000"

# Identity and engine of the table; no row: it does not exist.
TABLE = (
    "SELECT toString(uuid), engine, engine_full FROM system.tables"
    " WHERE database = {database} AND name = {table}"
)

# Tables of the database, for close names.
TABLE_NAMES = "SELECT name FROM system.tables WHERE database = {database} ORDER BY name LIMIT 10000"

# The columns in order. DEFAULT is an ordinary column: its values are stored.
COLUMNS = (
    "SELECT name, type, if(default_kind = 'DEFAULT', '', default_kind) FROM system.columns"
    " WHERE database = {database} AND table = {table} ORDER BY position"
)

# Column TTLs, which no system table shows.
COLUMN_TTLS = "DESCRIBE TABLE {quoted}"

# Mutations that exist; the second column says whether it is finished.
MUTATIONS = (
    "SELECT mutation_id, toString(is_done) FROM system.mutations"
    " WHERE database = {database} AND table = {table} ORDER BY mutation_id"
)

# Lightweight updates that are not merged into their parts yet.
PATCH_PARTS = (
    "SELECT name FROM system.parts WHERE database = {database} AND table = {table} AND active"
    " AND startsWith(partition_id, 'patch-') ORDER BY name"
)

# Row policies on the table, on its whole database or on everything.
ROW_POLICIES = (
    "SELECT short_name FROM system.row_policies WHERE database IN ({database}, '', '*')"
    " AND table IN ({table}, '', '*') ORDER BY short_name"
)

# Rows of the table as its parts count them.
ROW_ESTIMATE = (
    "SELECT toString(sum(rows)) FROM system.parts WHERE database = {database} AND table = {table} AND active"
    " AND NOT startsWith(partition_id, 'patch-')"
)

# Uncompressed bytes of a row on average, over all columns.
ROW_BYTES = (
    "SELECT toString(intDiv(sum(data_uncompressed_bytes), greatest(sum(rows), 1))) FROM system.parts"
    " WHERE database = {database} AND table = {table} AND active"
)

# Active parts of the partitions with rows of the window.
WINDOW_PARTS = (
    "SELECT name, partition_id, toString(rows), toString(min_block_number), toString(max_block_number)"
    " FROM system.parts WHERE database = {database} AND table = {table} AND active"
    " AND NOT startsWith(partition_id, 'patch-') AND partition_id IN"
    " (SELECT DISTINCT _partition_id FROM {quoted} AS {alias}{where}) ORDER BY name"
)

# Per part of the window the moment of its first TTL as seconds since 1970, and whether it has any TTL at all.
WINDOW_TTL = (
    "SELECT name, toString(toUInt32(arrayMin(arrayFilter(at -> at > toDateTime(0, 'UTC'), arrayConcat("
    "[delete_ttl_info_min], `rows_where_ttl_info.min`, `group_by_ttl_info.min`))))),"
    " toString(notEmpty(`move_ttl_info.min`) OR notEmpty(`recompression_ttl_info.min`))"
    " FROM system.parts WHERE database = {database} AND table = {table} AND active"
    " AND NOT startsWith(partition_id, 'patch-') AND partition_id IN"
    " (SELECT DISTINCT _partition_id FROM {quoted} AS {alias}{where}) ORDER BY name"
)

# Rows of the window by part, as the parts are now.
PART_ROWS = "SELECT _part, toString(count()) FROM {quoted} AS {alias}{where} GROUP BY _part"

# The newest block of each partition: parts that hold a newer one hold rows that were inserted later.
NEWEST_BLOCKS = (
    "SELECT partition_id, toString(max(max_block_number)) FROM system.parts WHERE database = {database}"
    " AND table = {table} AND active GROUP BY partition_id"
)

# Per partition with rows of the window, and per partition of lightweight updates: its newest block, and the
# seconds since the first part that held it was written. Merges and mutations keep the numbers of blocks, so
# an age can only be too short: the part that the block came in may be gone.
NEWEST_INSERTS = (
    "SELECT partition_id, toString(max_block_number),"
    " toString(dateDiff('second', min(modification_time), now()))"
    " FROM system.parts WHERE database = {database} AND table = {table}"
    " AND (startsWith(partition_id, 'patch-') OR partition_id IN"
    " (SELECT DISTINCT _partition_id FROM {quoted} AS {alias}{where}))"
    " GROUP BY partition_id, max_block_number ORDER BY partition_id, max_block_number DESC"
    " LIMIT 1 BY partition_id"
)

# Asks for nothing, but as the read will: rights, names and types.
PROBE = "SELECT toString(count()) FROM (\n{text}\nLIMIT 0\n)"

# Ends a query of ours.
KILL = "KILL QUERY WHERE query_id = {query_id} ASYNC"

# Reads the window, once.
READ = "SELECT {projection}\nFROM {quoted} AS {alias}{where}"

# Counts the rows that a data error means; a person runs it.
FIND_ROWS = "SELECT {what} FROM {quoted} AS {alias} WHERE {condition}"


def quote_name(name: str) -> str:
    """An identifier in backticks."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quote_text(text: str) -> str:
    """A string literal. Names and settings only, never a value of a row or a window bound."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_table(database: str, table: str) -> str:
    """``database.table``, quoted."""
    return f"{quote_name(database)}.{quote_name(table)}"


def column_of_rows(name: str) -> str:
    """A column of the source table inside a statement over :data:`ROWS`."""
    return f"{ROWS}.{quote_name(name)}"


def render(template: str, **names: str) -> str:
    """A template with ``database`` and ``table`` as literals and ``quoted`` as the table's full name."""
    texts = {key: quote_text(value) for key, value in names.items()}
    if "database" in names and "table" in names:
        texts["quoted"] = quote_table(names["database"], names["table"])
    return template.format(**texts)


def settings_of(names: Sequence[str]) -> str:
    """:data:`SETTINGS` for these names."""
    return SETTINGS.format(names=", ".join(quote_text(name) for name in names))


def window_parts(query: SourceQuery) -> str:
    """:data:`WINDOW_PARTS` for the window of a query."""
    return _of_window(WINDOW_PARTS, query)


def window_ttl(query: SourceQuery) -> str:
    """:data:`WINDOW_TTL` for the window of a query."""
    return _of_window(WINDOW_TTL, query)


def newest_inserts(table: SourceTable, window_column: str | None, window: Window) -> str:
    """:data:`NEWEST_INSERTS` for a window that is not compiled."""
    return NEWEST_INSERTS.format(
        database=quote_text(table.database),
        table=quote_text(table.table),
        quoted=quote_table(table.database, table.table),
        alias=ROWS,
        where=_where("" if window.is_full else _window_predicate(table, window_column, window)),
    )


def part_rows(query: SourceQuery) -> str:
    """:data:`PART_ROWS` for the window of a query."""
    return _of_window(PART_ROWS, query)


def _of_window(template: str, query: SourceQuery) -> str:
    return template.format(
        database=quote_text(query.database),
        table=quote_text(query.table),
        quoted=quote_table(query.database, query.table),
        alias=ROWS,
        where=_where(query.predicate),
    )


def with_part(query: SourceQuery) -> str | None:
    """The statement of a query with the part of each row as its last column; None if it is no statement of
    :func:`compile_query`. It is added here, so that a plan stays what it was."""
    head = f"SELECT {query.projection}"
    if not query.text.startswith(f"{head}\nFROM "):
        return None
    return f"{head},\n       {ROWS}._part AS {PART}{query.text[len(head) :]}"


def with_settings(statement: str, settings: Mapping[str, str]) -> str:
    """The statement with a SETTINGS clause. Numbers and maps go in as they are, everything else as text."""
    values = ", ".join(f"{name} = {_setting_value(value)}" for name, value in settings.items())
    return f"{statement}\nSETTINGS {values}" if values else statement


def _setting_value(value: str) -> str:
    is_number = value.isdigit() and len(value) < 20  # a nonce may be all digits, and is a text
    return value if is_number or value == "{}" else quote_text(value)


def _where(predicate: str) -> str:
    return f"\nWHERE {predicate}" if predicate else ""


def compile_query(
    table: SourceTable,
    layout: WireLayout,
    source_columns: Sequence[str],
    window_column: str | None,
    window: Window,
) -> SourceQuery:
    """The statement that reads the window: raw projection, integer bounds.

    :param source_columns: the source column of each column of ``layout``, in order.
    :raises ConfigurationError: a column is missing, or the window column cannot take the bounds exactly.
    """
    names = {column.name for column in table.columns}
    problems = [
        Problem("dpone.source.column", name, f"{table.database}.{table.table} has no such column")
        for name in dict.fromkeys((*source_columns, *([window_column] if window_column else [])))
        if name not in names
    ]
    if problems:
        raise ConfigurationError.of(problems)
    if len(source_columns) != len(layout.columns):
        raise ValueError("one source column for each column of the layout")
    projection = ",\n       ".join(
        part
        for ordinal, (name, column) in enumerate(zip(source_columns, layout.columns, strict=True))
        for part in projection_of(ordinal, name, column.pair)
    )
    predicate = "" if window.is_full else _window_predicate(table, window_column, window)
    text = READ.format(
        projection=projection,
        quoted=quote_table(table.database, table.table),
        alias=ROWS,
        where=_where(predicate),
    )
    return SourceQuery(table.database, table.table, projection, predicate, text)


_EXPRESSIONS: dict[RawForm, tuple[str, ...]] = {
    RawForm.PLAIN: ("{c}",),
    RawForm.BOOL: ("toUInt8({c})",),
    RawForm.TICKS: ("reinterpretAsInt64({c})",),
    RawForm.EPOCH_SECONDS: ("toUInt32({c})",),
    RawForm.DAYS: ("toUInt16({c})",),
    RawForm.DAYS32: ("toInt32({c})",),
    RawForm.DECIMAL32: ("reinterpretAsInt32({c})",),
    RawForm.DECIMAL64: ("reinterpretAsInt64({c})",),
    RawForm.DECIMAL128: (
        "reinterpretAsUInt64(reinterpretAsInt128({c}))",
        "toInt64(bitShiftRight(reinterpretAsInt128({c}), 64))",
    ),
    RawForm.TEXT: ("{c}",),
    RawForm.BYTES: ("substring({c}, 1, {size})",),
    RawForm.UUID_BYTES: ("substring(UUIDToNum({c}), 1, 16)",),
    RawForm.LABEL: ("toString({c})",),
}


def projection_of(ordinal: int, name: str, pair: TypePair) -> list[str]:
    """The raw columns of one source column: ``c3``, then ``c3_hi`` of a wide decimal, then ``c3_null``."""
    column = column_of_rows(name)
    inner = f"assumeNotNull({column})" if pair.source_nullable else column
    size = str(pair.source.numbers[0]) if pair.raw_form is RawForm.BYTES else ""
    made = [text.format(c=inner, size=size) for text in _EXPRESSIONS[pair.raw_form]]
    if pair.raw_form is RawForm.LABEL and pair.source_nullable:
        # What stands under a NULL may be no number of the Enum; toString of the Nullable leaves it alone.
        made = [f"ifNull(toString({column}), '')"]
    if pair.source_nullable:
        made.append(f"isNull({column})")
    aliases = [field.name for field in pair.raw_arrow_fields(ordinal)]
    return [f"{text} AS {alias}" for text, alias in zip(made, aliases, strict=True)]


_DAY_US, _SECOND_US = 86_400_000_000, 1_000_000
_BOUNDS: dict[str, tuple[int, int, int, str, str]] = {
    # unit in microseconds, smallest and greatest bound that the constant can say, constant, unit in words
    "Date": (_DAY_US, 0, 65_535, "toDate({n})", "midnight UTC"),
    "Date32": (_DAY_US, -25_567, 120_529, "toDate32({n})", "midnight UTC"),
    "DateTime": (_SECOND_US, 0, 2**32 - 1, "toDateTime({n}, 'UTC')", "a whole second"),
}


def _window_predicate(table: SourceTable, window_column: str | None, window: Window) -> str:
    if window_column is None:
        text = "is needed to cut an interval; only Window.full() goes without"
        raise ConfigurationError.of([Problem("dpone.config.window", "window_column", text)])
    type_text = next(column.type for column in table.columns if column.name == window_column)
    source = parse_source_type(type_text)
    if isinstance(source, str) or source.name not in (*_BOUNDS, "DateTime64"):
        text = f"is {type_text}; a window is cut by Date, Date32, DateTime or DateTime64(0..6)"
        raise ConfigurationError.of([Problem("dpone.source.window_type", window_column, text)])
    scale = source.numbers[0] if source.name == "DateTime64" else None
    bounds, problems = [], []
    for where, bound in zip(("window.start", "window.end"), window.bounds_us, strict=True):
        made = _bound(source.name, scale, bound)
        if made is None:
            problems.append(_bound_problem(where, window_column, type_text, source.name, scale))
        else:
            bounds.append(made)
    if problems:
        raise ConfigurationError.of(problems)
    column = column_of_rows(window_column)
    return f"{column} >= {bounds[0]} AND {column} < {bounds[1]}"


def _bound(type_name: str, scale: int | None, bound_us: int) -> str | None:
    """The constant of a bound, or None if the type cannot say it exactly."""
    if scale is not None:
        exact = bound_us % 10 ** (6 - scale) == 0
        return f"fromUnixTimestamp64Micro(toInt64({bound_us}), 'UTC')" if exact else None
    unit, least, greatest, constant, _ = _BOUNDS[type_name]
    number, rest = divmod(bound_us, unit)
    return constant.format(n=number) if rest == 0 and least <= number <= greatest else None


def _bound_problem(where: str, column: str, type_text: str, type_name: str, scale: int | None) -> Problem:
    if scale is not None:
        text = f"must be a multiple of 10^-{scale} seconds"
    else:
        text = f"must be {_BOUNDS[type_name][4]} inside the type's range"
    return Problem("dpone.source.window_bound", where, f"{text}, because {column!r} is {type_text}")


_UNITS = "lengthUTF8({c}) + countMatches({c}, '[\\\\x{{10000}}-\\\\x{{10FFFF}}]')"
_SMALLEST = "if(toTypeName({c}) LIKE '%Float32%', 1.1754943508222875e-38, 2.2250738585072014e-308)"
_FINDERS: dict[str, tuple[str, str]] = {
    "dpone.source.nan": ("count()", "isNaN({c})"),
    "dpone.source.infinite": ("count()", "isInfinite({c})"),
    "dpone.source.subnormal": ("count()", "{c} != 0 AND abs({c}) < " + _SMALLEST),
    "dpone.source.utf8": ("count()", "NOT isValidUTF8({c})"),
    "dpone.source.too_long": (f"max({_UNITS}) AS utf16_units", "isNotNull({c})"),
    "dpone.source.decimal": ("max(length(toString(abs({c})))) AS characters", "isNotNull({c})"),
    "dpone.source.range": ("min(toYear({c})), max(toYear({c}))", "isNotNull({c})"),
    "dpone.types.nullability": ("count()", "isNull({c})"),
    "dpone.source.null": ("count()", "isNull({c})"),
}


def find_rows(query: SourceQuery, column: str, code: str) -> str:
    """A query that counts, or measures, the rows that a data error of a source column means; '' for
    others."""
    if code not in _FINDERS:
        return ""
    what, condition = _FINDERS[code]
    named = column_of_rows(column)
    terms = [query.predicate, condition.format(c=named)]
    return FIND_ROWS.format(
        what=what.format(c=named),
        quoted=quote_table(query.database, query.table),
        alias=ROWS,
        condition=" AND ".join(term for term in terms if term),
    )
