"""``python -m airflow_dpone``: the commands, without Airflow."""

from __future__ import annotations

import sys

from airflow_dpone.cli.arguments import main

if __name__ == "__main__":
    sys.exit(main())
