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

    @property
    def discards_on_finish(self) -> bool:
        """Whether checkpoints go when all input has been read. Unlike in Flink they stay if told to retain them."""
        return self is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION

    @property
    def discards_on_cancellation(self) -> bool:
        """Whether they go when a run is cancelled."""
        return self is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION

    @property
    def discards_on_failure(self) -> bool:
        """Whether they go when a run fails."""
        return self is ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
