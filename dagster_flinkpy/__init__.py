"""Flink's state and fault-tolerance model for PySpark pipelines, run by Dagster."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
