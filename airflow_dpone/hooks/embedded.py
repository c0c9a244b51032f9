"""The button that tries an embedded engine: in a process of its own, since an engine stays in the one that
loads it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from airflow.sdk import BaseHook

from airflow_dpone.connections import EMBEDDED_TYPE, embedded_path, read_connection
from airflow_dpone.errors import ConfigurationError
from airflow_dpone.wire.child_process import child_environment

TRY_SEC = 60.0


class EmbeddedHook(BaseHook):
    """A chDB directory or a DuckDB file, for trying the product and for tests.

    :param embedded_conn_id: of type ``dponeembedded``.
    """

    conn_name_attr = "embedded_conn_id"
    default_conn_name = "dpone_embedded"
    conn_type = EMBEDDED_TYPE
    hook_name = "dpone embedded engine"

    def __init__(self, embedded_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.embedded_conn_id = embedded_conn_id

    def get_conn(self) -> str:
        """The path; whoever opens it takes our lock first. Raises ConfigurationError."""
        return self._place()[1]

    def test_connection(self) -> tuple[bool, str]:
        """Whether a delivery on this machine could open it now, and why not."""
        try:
            engine, path = self._place()
        except ConfigurationError as error:
            return False, " ".join(f"{problem}." for problem in error.problems)
        command = [sys.executable, "-m", "airflow_dpone.hooks.engine_probe", engine, path]
        try:
            done = subprocess.run(
                command,
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TRY_SEC,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"The engine did not answer within {TRY_SEC:g} s."
        said = done.stdout.strip().splitlines()
        if done.returncode in (0, 1) and said:
            return done.returncode == 0, said[-1]
        return False, f"The engine ended its process with exit code {done.returncode}."

    def _place(self) -> tuple[str, str]:
        found = read_connection(self.embedded_conn_id, self.conn_name_attr)
        engine = str(found.extra.get("engine"))
        return engine, embedded_path(found, engine)
