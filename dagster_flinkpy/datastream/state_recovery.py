"""Whose a checkpoint or savepoint is after it was restored (Flink: ``RecoveryClaimMode``)."""

from __future__ import annotations

from enum import Enum

__all__ = ["RecoveryClaimMode"]


class RecoveryClaimMode(Enum):
    """Whose the restored checkpoint or savepoint is afterwards."""

    CLAIM = "CLAIM"
    """The job's: it is deleted as soon as a checkpoint of the job has completed that does not need it any more."""
    NO_CLAIM = "NO_CLAIM"
    """Still its owner's, who may delete it once the job has completed a checkpoint."""
    LEGACY = "LEGACY"
    """Still its owner's. In Flink later checkpoints may need its files; here it is the same as NO_CLAIM."""
