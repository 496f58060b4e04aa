"""A checkpoint as a listing of a job's prefix shows it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

__all__ = ["CheckpointEntry", "EntryStatus"]


class EntryStatus(str, Enum):
    """What ``HEAD`` says about a checkpoint."""

    LATEST = "latest"
    RETAINED = "retained"
    ORPHAN = "orphan"
    """It was never completed, or is subsumed."""
    UNCLAIMED = "unclaimed"
    """The job was restored from it and does not own it; it is kept until someone disposes of it."""


@dataclass(frozen=True)
class CheckpointEntry:
    """A checkpoint as a listing shows it."""

    checkpoint_id: int
    path: str
    """The path of its ``_metadata``, relative to the job's prefix."""
    size: int
    """The size of its ``_metadata`` in bytes."""
    last_modified: datetime
    status: EntryStatus
