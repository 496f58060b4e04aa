"""Streaming or batch (``pyflink.datastream.execution_mode``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """How a program treats its input."""

    STREAMING = 0
    """Results are updated with each record; watermarks follow the records."""
    BATCH = 1
    """Input is read to its end first: there are no watermarks before, and ``reduce`` emits once per key."""
    AUTOMATIC = 2
    """Batch where all sources are bounded; here it is the same as STREAMING."""
