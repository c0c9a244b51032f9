"""Names and texts in T-SQL: the one place where something becomes part of a statement.

Values travel as parameters. Names cannot, and neither can the few constants that stand inside a batch; they
enter through here, and never through anything else.
"""

from __future__ import annotations

MAX_NAME = 128


def quoted(name: str) -> str:
    """An identifier, exactly as it is; ``]`` is the only sign that needs help."""
    if not name or "\0" in name:
        raise ValueError("a name in SQL Server has at least one character, and no NUL")
    return "[" + name.replace("]", "]]") + "]"


def qualified(schema: str, table: str) -> str:
    """Schema and table; names are never split or joined on dots."""
    return f"{quoted(schema)}.{quoted(table)}"


def literal(text: str) -> str:
    """A Unicode string literal."""
    return "N'" + text.replace("'", "''") + "'"
