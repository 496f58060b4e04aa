"""Typed config of a job's runs."""

from dagster import Config
from pydantic import Field

__all__ = ["FlinkRunConfig"]


class FlinkRunConfig(Config):
    """What a run does; the launchpad shows it."""

    epochs: int = Field(
        default=1, ge=0, description="Checkpoints to take, one after each epoch. 0: until the input ends."
    )
    barriers: int | None = Field(
        default=None,
        ge=1,
        description="Checkpoints that one Spark job takes, each with its own epoch. Default: as the program says.",
    )
    parallelism: int | None = Field(
        default=None, ge=1, description="Subtasks per operator. Default: as in the last checkpoint, else the program's."
    )
    restore_from: str | None = Field(
        default=None,
        description="Savepoint or chk-n folder to start from. Default: the latest checkpoint; for a partition, the end "
        "state of the one before.",
    )
    start_empty: bool = Field(default=False, description="Start from empty state, although there are checkpoints.")
    allow_non_restored_state: bool = Field(
        default=False, description="Leave behind state whose operator the program no longer has."
    )
    allow_pickled_state: bool = Field(
        default=False, description="Restore pickled state of a foreign savepoint; whoever wrote it can run code here."
    )
