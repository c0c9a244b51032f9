"""What Alembic runs for each command.

Online, the caller has opened the transaction: all migrations or none. Offline, a script for PostgreSQL is
printed, which opens its own.
"""

from __future__ import annotations

from typing import Any

from alembic import context

from airflow_dpone.journal.tables import VERSION_TABLE, metadata

database: dict[str, Any]
if context.is_offline_mode():
    database = {"dialect_name": "postgresql", "literal_binds": True}
else:
    database = {"connection": context.config.attributes["connection"]}
context.configure(**database, target_metadata=metadata, version_table=VERSION_TABLE, transactional_ddl=True)
with context.begin_transaction():
    if context.is_offline_mode():
        context.execute("SET LOCAL synchronous_commit = on")
    context.run_migrations()
