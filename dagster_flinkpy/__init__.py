"""Flink's state and fault-tolerance model for PySpark pipelines, run by Dagster."""

from __future__ import annotations

from dagster_flinkpy.registry import register

__version__ = "0.1.0"

__all__ = ["__version__"]

register("executor", "dagster_flinkpy.runtime.local_executor:LocalExecutor")
