"""Where the TDS stand-in differs from SQL Server, and what the tests do about it: the product knows nothing.

The suite runs unchanged against a real server; then nothing here is used. Every row says which text of ours
the stand-in does not take and why another one proves the same.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pyodbc

REPLACED = (
    # Parses as a PostgreSQL syntax error. Durability is not what these tests are about.
    ("COMMIT TRANSACTION WITH (DELAYED_DURABILITY = OFF)", "COMMIT TRANSACTION"),
    # Says 0 for every binary column; SQL Server says 1 unless ANSI_PADDING was off when the column was made.
    ("CAST(c.is_ansi_padded AS int)", "CAST(1 AS int)"),
    # Has no cast from datetime2 and date to binary, only to varbinary; SQL Server gives both the same bytes.
    (" AS datetime2(7)) AS binary(9))", " AS datetime2(7)) AS varbinary(9))"),
    ("] AS binary(3))", "] AS varbinary(3))"),
    # Calls itself version 12 with compatibility level 120.
    ("CAST(SERVERPROPERTY('ProductMajorVersion') AS nvarchar(16))", "N'16'"),
    ("CAST(d.compatibility_level AS int)", "160"),
    # Has no row-level security: tables of the tests stand for the views, so that the refusal itself runs.
    ("sys.security_predicates", "[dbo].[standin_security_predicates]"),
    ("sys.security_policies", "[dbo].[standin_security_policies]"),
    # Has no log and no files of its own to tell of: tables of the tests stand for the views.
    ("FILEPROPERTY(", "[dbo].[standin_fileproperty]("),
    ("sys.database_files", "[dbo].[standin_database_files]"),
    ("sys.dm_db_log_space_usage", "[dbo].[standin_log_space]"),
    # Knows few permissions and says NULL or 0 for the rest: a table of what is denied stands for it.
    ("HAS_PERMS_BY_NAME(", "[dbo].[standin_has_perms]("),
)

PREPARED = (
    "CREATE TABLE [dbo].[standin_security_predicates] (object_id int, target_object_id int)",
    "CREATE TABLE [dbo].[standin_security_policies] (object_id int, name nvarchar(128), is_enabled bit)",
    "CREATE TABLE [dbo].[standin_database_files] "
    "(type int, name nvarchar(128), size int, max_size int, growth int)",
    "INSERT INTO [dbo].[standin_database_files] VALUES (0, N'one', 12800, -1, 128), "
    "(1, N'log', 25600, 268435456, 10)",
    "CREATE TABLE [dbo].[standin_log_space] (total_log_size_in_bytes bigint, used_log_space_in_bytes bigint)",
    "INSERT INTO [dbo].[standin_log_space] VALUES (209715200, 1048576)",
    """CREATE FUNCTION [dbo].[standin_fileproperty] (@name nvarchar(128), @what nvarchar(60)) RETURNS int AS
       BEGIN RETURN 1280; END""",
    "CREATE TABLE [dbo].[standin_denied] (permission nvarchar(60))",
    """CREATE FUNCTION [dbo].[standin_has_perms] (@securable nvarchar(400), @class nvarchar(60),
           @permission nvarchar(60)) RETURNS int AS
       BEGIN
         DECLARE @denied int = 0;
         SELECT @denied = COUNT(*) FROM [dbo].[standin_denied] WHERE permission = @permission;
         RETURN CASE WHEN @denied > 0 THEN 0 ELSE 1 END;
       END""",
)
"""What a database of the tests needs for the rows above."""

# Sessions of the product, whatever delivery they work for: one pool holds them all.
DELIVERY = re.compile(r";APP=\{airflow_dpone[^}]*\};")

# Counts the bytes of nvarchar as UTF-8.
DATALENGTH = re.compile(r"DATALENGTH\((s\.\[(?:[^\]]|\]\])+\])\)")


class Cursor:
    """A cursor that sends what the stand-in understands."""

    def __init__(self, cursor: pyodbc.Cursor) -> None:
        self._cursor = cursor

    def execute(self, text: str, *parameters: object) -> Cursor:
        for ours, theirs in REPLACED:
            text = text.replace(ours, theirs)
        text = DATALENGTH.sub(r"DATALENGTH(CAST(\1 AS varbinary(max)))", text)
        self._cursor.execute(text, *parameters)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


class Connection:
    """A connection whose cursors are :class:`Cursor`. :param pooled: see :data:`POOL`."""

    def __init__(self, connection: pyodbc.Connection, pooled: str | None) -> None:
        self.__dict__.update(_connection=connection, _pooled=pooled)

    def cursor(self) -> Cursor:
        return Cursor(self._connection.cursor())

    def close(self) -> None:
        pooled, self.__dict__["_pooled"] = self.__dict__["_pooled"], None
        if pooled is None or not _is_clean(self._connection):
            self._connection.close()
        else:
            POOL.setdefault(pooled, []).append(self._connection)
            self.__dict__["_connection"] = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_connection"], name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._connection, name, value)


POOL: dict[str, list[pyodbc.Connection]] = {}
"""Sessions of the product that were closed without a transaction. A new session costs the stand-in seconds of
work for its first statements; one that has nothing open is as good as new, since the product takes no lock
and makes no table that outlives its transaction. Tests of broken sessions call :func:`close_all` first."""


def _is_clean(connection: pyodbc.Connection) -> bool:
    try:
        connection.timeout = 0
        return bool(connection.execute("SELECT @@TRANCOUNT").fetchone()[0] == 0)
    except pyodbc.Error:
        return False


def close_all() -> None:
    """Ends every pooled session."""
    for connections in POOL.values():
        while connections:
            connections.pop().close()


def connect(text: str, **options: Any) -> Connection:
    """Instead of ``pyodbc.connect``."""
    pooled = DELIVERY.sub(";APP={airflow_dpone};", text) if DELIVERY.search(text) else None
    while pooled and (waiting := POOL.get(pooled)):
        with suppress(IndexError):  # another thread was faster
            found = waiting.pop()
            if _is_clean(found):
                return Connection(found, pooled)
            found.close()
    return Connection(pyodbc.connect(text, **options), pooled)
