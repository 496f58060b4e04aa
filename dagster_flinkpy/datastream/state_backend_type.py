"""Which keyed state backend a program asks for (Flink: option ``state.backend.type``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["StateBackendType"]


class StateBackendType(Enum):
    """Where keyed state is while a task works with it. Snapshots of all types are alike: a restore may change it."""

    COLUMNAR = "columnar"
    """In sorted runs on the executor's disk; a checkpoint writes what changed. For state of any size."""
    HASHMAP = "hashmap"
    """In memory, all of it; a checkpoint writes all of it, if it changed. For state of a few thousand keys."""
