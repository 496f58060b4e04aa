"""Delivery guarantees for state (``pyflink.datastream.checkpointing_mode``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["CheckpointingMode"]


class CheckpointingMode(Enum):
    """How often a record counts in state after a failure."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
