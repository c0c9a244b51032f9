"""What Airflow learns about this package from its entry point, without importing anything else of it."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """The provider's description, in the form that Airflow's providers manager validates.

    ``package-name`` must equal the distribution's name, or Airflow refuses the provider.
    """
    return {
        "package-name": "airflow-dpone",
        "name": "dpone",
        "description": "Delivers windows from ClickHouse to SQL Server, with proof.",
    }
