"""One session on an open DuckDB file. A statement that fails raises DuckDB's error; callers map it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from airflow_dpone.target_embedded import statements as sql
from airflow_dpone.target_embedded.engine import duckdb

Parameters = Mapping[str, object]


class Session:
    """Statements and transactions on one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    @classmethod
    def pinned(cls, connection: duckdb.DuckDBPyConnection) -> Session:
        """A session with our settings; DuckDB keeps some of them per connection."""
        session = cls(connection)
        try:
            for statement in sql.SESSION_SETTINGS:
                session.execute(statement)
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """Ends the session; an open transaction is rolled back."""
        self._connection.close()

    def execute(self, text: str, parameters: Parameters | None = None) -> duckdb.DuckDBPyConnection:
        """Runs one statement."""
        return self._connection.execute(text, dict(parameters) if parameters else None)

    def rows(self, text: str, parameters: Parameters | None = None) -> list[tuple[Any, ...]]:
        """All rows of a small answer."""
        return self.execute(text, parameters).fetchall()

    def row(self, text: str, parameters: Parameters | None = None) -> tuple[Any, ...] | None:
        """The first row, or None."""
        found = self.rows(text, parameters)
        return found[0] if found else None

    def number(self, text: str, parameters: Parameters | None = None) -> int:
        """The one number of an answer: a count, or how many rows a statement changed."""
        found = self.row(text, parameters)
        return int(found[0]) if found else 0

    def register(self, name: str, data: object) -> None:
        """Shows an Arrow object as a temporary view, replacing the one before."""
        self._connection.register(name, data)

    def unregister(self, name: str) -> None:
        """Removes it; gone already is fine. Not inside a transaction, which may have failed."""
        with suppress(duckdb.Error):
            self._connection.unregister(name)

    def rollback(self) -> None:
        """Undoes the open transaction; raises when that cannot be confirmed."""
        self.execute(sql.ROLLBACK)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """BEGIN and COMMIT around a block, ROLLBACK when it raises."""
        self.execute(sql.BEGIN)
        try:
            yield
        except BaseException:
            with suppress(duckdb.Error):
                self.rollback()
            raise
        self.execute(sql.COMMIT)

    def another(self) -> Session:
        """A second session on the same file: it sees what is committed, and nothing else."""
        return Session.pinned(self._connection.cursor())
