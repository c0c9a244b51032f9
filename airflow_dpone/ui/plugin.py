"""What Airflow's plugin manager loads, in every process: names only. The pages are loaded by the server that
serves them."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin


class _Pages:
    """The list of web applications, made when Airflow's API server asks for it."""

    def __get__(self, plugin: object, owner: type | None = None) -> list[dict[str, Any]]:
        from airflow_dpone.links.delivery import PAGES
        from airflow_dpone.ui.app import app

        return [{"app": app, "url_prefix": PAGES, "name": "dpone"}]


class DponePlugin(AirflowPlugin):
    """Registered by the entry point ``airflow.plugins``: a provider's own list of plugins is not read by
    default."""

    name = "dpone"
    fastapi_apps: Any = _Pages()
