"""What Alembic runs for each command.

Online, the caller has opened the transaction: all migrations or none.
"""

from __future__ import annotations

from alembic import context

from airflow_dpone.journal.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
