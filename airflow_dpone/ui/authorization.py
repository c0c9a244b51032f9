"""Who may see a delivery: whoever may see the task instances of its DAG.

The one module that touches the inside of Airflow's API server, which is no stable interface; a test calls it
with two users.
"""

from __future__ import annotations

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from fastapi import HTTPException, Request

__all__ = ["GetUserDep", "get_user", "may_see", "refuse_unless_seen"]


def refuse_unless_seen(dag_id: str, request: Request, user: GetUserDep) -> None:
    """Raises HTTPException 403 for a user who may not see this DAG's task instances."""
    requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE, dag_id)(request, user)


def may_see(dag_id: str, request: Request, user: GetUserDep) -> bool:
    """The same as an answer."""
    try:
        refuse_unless_seen(dag_id, request, user)
    except HTTPException:
        return False
    return True
