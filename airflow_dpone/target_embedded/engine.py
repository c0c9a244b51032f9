"""DuckDB, which is an extra of the package: without it, a sentence instead of a ModuleNotFoundError."""

from __future__ import annotations

from airflow_dpone.errors import ConfigurationError

try:
    import duckdb
except ModuleNotFoundError:
    raise ConfigurationError(
        "dpone.target.duckdb_missing", "The embedded target needs the package duckdb, which is not installed."
    ) from None

__all__ = ["duckdb"]
