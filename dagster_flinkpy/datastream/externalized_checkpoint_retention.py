"""What becomes of checkpoints when a job ends (``pyflink.datastream.externalized_checkpoint_retention``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["ExternalizedCheckpointRetention"]


class ExternalizedCheckpointRetention(Enum):
    """Whether the completed checkpoints of a job are deleted when a run of it ends."""

    DELETE_ON_CANCELLATION = 0
    """Deleted when the job has finished or the run was cancelled; kept when it has failed."""
    RETAIN_ON_CANCELLATION = 1
    """Kept however the run ends."""
    NO_EXTERNALIZED_CHECKPOINTS = 2
    """Deleted when the job has finished, and when the run was cancelled or has failed."""
