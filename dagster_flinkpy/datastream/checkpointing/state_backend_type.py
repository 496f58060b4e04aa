"""The keyed state backend that a program selects (Flink: option ``state.backend.type``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["StateBackendType"]


class StateBackendType(Enum):
    """How a task holds keyed state while it runs. All types write the same snapshots, so a restore may switch."""

    COLUMNAR = "columnar"
    """In sorted runs on the executor's disk. A checkpoint writes what changed. For state of any size."""
    HASHMAP = "hashmap"
    """Entirely in memory. A checkpoint writes all of it if it changed. For state of a few thousand keys."""
