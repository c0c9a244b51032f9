"""Airflow's simple auth manager, but for one thing: ``bob`` may not see the DAG ``secret``."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

DENIED = "secret"


class TwoUsers(SimpleAuthManager):
    """The simple one knows roles, but no difference between DAGs."""

    def is_authorized_dag(
        self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None
    ) -> bool:
        """As the simple one, except for bob and his DAG."""
        if user.get_name() == "bob" and details is not None and details.id == DENIED:
            return False
        return bool(
            super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
        )
