"""Delivery into state (``pyflink.datastream.checkpointing_mode``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["CheckpointingMode"]


class CheckpointingMode(Enum):
    """What a record counts for in state after a failure."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
