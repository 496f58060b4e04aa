"""What the folder of a savepoint contains (Flink: ``SavepointFormatType``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["SavepointFormatType"]


class SavepointFormatType(str, Enum):
    """What the folder of a savepoint contains."""

    CANONICAL = "CANONICAL"
    """All of its files, so the folder can be moved on its own. They are Parquet, whatever the state backend."""
    NATIVE = "NATIVE"
    """The ``_metadata`` only, which names files of the job's checkpoints: quick, whatever the size of the state. It is
    below the job's prefix, keeps these files from being deleted, and is moved by copying the job's folder."""
