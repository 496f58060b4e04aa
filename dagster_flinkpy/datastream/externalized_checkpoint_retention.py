"""What happens to checkpoints when a job ends (``pyflink.datastream.externalized_checkpoint_retention``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["ExternalizedCheckpointRetention"]


class ExternalizedCheckpointRetention(Enum):
    """Whether the completed checkpoints of a job are deleted when a run of it ends."""

    DELETE_ON_CANCELLATION = 0
    """They are deleted when the job finishes or the run is cancelled, and kept when it fails."""
    RETAIN_ON_CANCELLATION = 1
    """They are kept however the run ends."""
    NO_EXTERNALIZED_CHECKPOINTS = 2
    """They are deleted when the job finishes, and when the run is cancelled or fails."""

    @property
    def discards_on_finish(self) -> bool:
        """Whether checkpoints are deleted when all input has been read. Unlike in Flink, RETAIN keeps them."""
        return self is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION

    @property
    def discards_on_cancellation(self) -> bool:
        """Whether checkpoints are deleted when a run is cancelled."""
        return self is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION

    @property
    def discards_on_failure(self) -> bool:
        """Whether checkpoints are deleted when a run fails."""
        return self is ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
