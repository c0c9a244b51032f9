"""Sensors of this provider. All of them are deferrable: they take no worker while they wait."""

from airflow_dpone.sensors.custody import CustodyClearSensor
from airflow_dpone.sensors.source import SourceSettledSensor
from airflow_dpone.sensors.windows import WindowDeliveredSensor, WindowsCoveredSensor

__all__ = ["CustodyClearSensor", "SourceSettledSensor", "WindowDeliveredSensor", "WindowsCoveredSensor"]
