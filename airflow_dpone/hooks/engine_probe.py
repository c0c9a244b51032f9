"""``python -m airflow_dpone.hooks.engine_probe ENGINE PATH``: opens and closes it, as a delivery does.

The last line on stdout says what was found; the exit code is 0 for an engine that opened and 1 for one that
did not.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

from airflow_dpone.errors import ConfigurationError, DponeError


def probe(engine: str, path: str) -> str:
    """What to say of an engine that opened. Raises DponeError."""
    if engine == "chdb":
        from airflow_dpone.source_clickhouse.embedded import EmbeddedSource

        with EmbeddedSource(path, lock_wait_sec=0.0):
            return f"chDB {version('chdb-core')} opened the directory {path}."
    from airflow_dpone.target_embedded.target import EmbeddedTarget

    with EmbeddedTarget(path, lock_wait_sec=0.0):
        return f"DuckDB {version('duckdb')} opened the file {path}."


def main(engine: str, path: str) -> int:
    """The exit code."""
    try:
        said, code = probe(engine, path), 0
    except ConfigurationError as error:
        said, code = " ".join(f"{p.message} [{p.code}]" for p in error.problems) or _line(error), 1
    except DponeError as error:
        said, code = _line(error), 1
    sys.stdout.write(f"{said}\n")
    return code


def _line(error: DponeError) -> str:
    return f"{error.message} [{error.code}]".replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
