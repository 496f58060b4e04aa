"""What the folder of a savepoint contains (Flink: ``SavepointFormatType``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["SavepointFormatType"]


class SavepointFormatType(str, Enum):
    """What the folder of a savepoint contains."""

    CANONICAL = "CANONICAL"
    """All files, so the folder can be moved. The files are Parquet, whatever the state backend."""
    NATIVE = "NATIVE"
    """Only ``_metadata``, which names files of the job's checkpoints. Quick, whatever the size of the state. It is
    below the job's prefix and keeps these files from being deleted. To move it, copy the job's folder."""
