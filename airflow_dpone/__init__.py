"""Deliver windows from ClickHouse to SQL Server, with proof.

The public names are listed here and loaded when they are first used: Airflow imports this package in every
process and at every DAG parse, so importing it loads nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_dpone.delivery.records import DeliveryResult, Plan, Requester
    from airflow_dpone.delivery.window import Window
    from airflow_dpone.errors import DponeError
    from airflow_dpone.settings import Limits, Options, Route
    from airflow_dpone.wiring import deliver, plan

    __version__: str

__all__ = [
    "DeliveryResult",
    "DponeError",
    "Limits",
    "Options",
    "Plan",
    "Requester",
    "Route",
    "Window",
    "deliver",
    "plan",
]

_HOME = {
    "DeliveryResult": "airflow_dpone.delivery.records",
    "DponeError": "airflow_dpone.errors",
    "Limits": "airflow_dpone.settings",
    "Options": "airflow_dpone.settings",
    "Plan": "airflow_dpone.delivery.records",
    "Requester": "airflow_dpone.delivery.records",
    "Route": "airflow_dpone.settings",
    "Window": "airflow_dpone.delivery.window",
    "deliver": "airflow_dpone.wiring",
    "plan": "airflow_dpone.wiring",
}


if not TYPE_CHECKING:  # or a type checker would believe that every name exists

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("airflow-dpone")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
