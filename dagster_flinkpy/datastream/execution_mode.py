"""Streaming or batch (``pyflink.datastream.execution_mode``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """How a program treats its input."""

    STREAMING = 0
    """Results are updated with each record; watermarks follow the records."""
    BATCH = 1
    """Input is read to its end first. There are no watermarks until then, and ``reduce`` emits once per key."""
    AUTOMATIC = 2
    """In Flink, BATCH if all sources are bounded. Here it is the same as STREAMING."""
