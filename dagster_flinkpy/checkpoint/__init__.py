"""Floor 4: when a checkpoint is taken, what it says, where it is kept and how it is given back."""

from dagster_flinkpy.checkpoint.config import CheckpointConfig, CheckpointingMode

__all__ = ["CheckpointConfig", "CheckpointingMode"]
