"""As ``tests.fakes.kill_child``, for a world whose target is SQL Server."""

from __future__ import annotations

import sys

from tests.fakes.kill_child import main
from tests.mssql.world import MssqlWorld

if __name__ == "__main__":
    sys.exit(main(MssqlWorld.open))
