"""Operators of this provider, and what a DAG file needs beside them. Each is loaded when it is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_dpone.operators.assets import target_asset
    from airflow_dpone.operators.one_task import DeliverWindowOperator
    from airflow_dpone.operators.retry_policy import DeliveryRetryPolicy
    from airflow_dpone.operators.seven_tasks import (
        AdmitWindowOperator,
        CheckpointWindowOperator,
        EvidenceWindowOperator,
        ExtractWindowOperator,
        PublishWindowOperator,
        StageWindowOperator,
        VerifyWindowOperator,
        deliver_window,
    )
    from airflow_dpone.operators.windows import Rolling, windows_between

__all__ = [
    "AdmitWindowOperator",
    "CheckpointWindowOperator",
    "DeliverWindowOperator",
    "DeliveryRetryPolicy",
    "EvidenceWindowOperator",
    "ExtractWindowOperator",
    "PublishWindowOperator",
    "Rolling",
    "StageWindowOperator",
    "VerifyWindowOperator",
    "deliver_window",
    "target_asset",
    "windows_between",
]

_HOME = {
    "DeliverWindowOperator": "one_task",
    "DeliveryRetryPolicy": "retry_policy",
    "Rolling": "windows",
    "target_asset": "assets",
    "windows_between": "windows",
}


if not TYPE_CHECKING:  # or a type checker would believe that every name exists

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOME.get(name, 'seven_tasks')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
