"""Operators of this provider."""

from airflow_dpone.operators.deliver_window import DeliverWindowOperator

__all__ = ["DeliverWindowOperator"]
