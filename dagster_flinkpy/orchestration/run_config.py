"""Typed config of a job's runs."""

from typing import Any

from dagster import Config
from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator

from dagster_flinkpy.datastream.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.failure import as_failure

__all__ = [
    "DisposeConfig",
    "FlinkRunConfig",
    "RescaleConfig",
    "ResetConfig",
    "RestoreConfig",
    "SavepointConfig",
    "StopConfig",
    "SweepConfig",
]


class _RangedConfig(Config):
    """Config with numbers that have a range: Dagster checks types only, and its launchpad scaffolds 0."""

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_fields(cls, value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as e:
            wrong = [f"{error['loc'][0]} is {error['input']!r}: {error['msg']}" for error in e.errors()]
            raise as_failure(ConfigurationError(f"{'; '.join(wrong)}. Launch the run again with another value.")) from e


class FlinkRunConfig(_RangedConfig):
    """What a run does; the launchpad shows it."""

    epochs: int = Field(
        default=1, ge=0, description="Checkpoints to take, one after each epoch. 0: until the input ends."
    )
    barriers: int | None = Field(
        default=None,
        ge=1,
        description="Checkpoints that one Spark job takes, each with its own epoch. Default: as the program says.",
    )
    periodic: bool = Field(
        default=False,
        description="Take each checkpoint, of one epoch, at the program's interval. Default: one after the other.",
    )
    parallelism: int | None = Field(
        default=None, ge=1, description="Subtasks per operator. Default: as in the last checkpoint, else the program's."
    )
    restore_from: str | None = Field(
        default=None,
        description="Savepoint or chk-n folder to start from. Default: the latest checkpoint; for a partition, the end "
        "state of the one before.",
    )
    claim_mode: RecoveryClaimMode | None = Field(
        default=None,
        description="Whose that savepoint is from now on. CLAIM: the job's, which deletes it. NO_CLAIM: still its "
        "owner's. Default: as the program says, which is NO_CLAIM if it says nothing.",
    )
    start_empty: bool = Field(default=False, description="Start from empty state, although there are checkpoints.")
    allow_non_restored_state: bool = Field(
        default=False, description="Leave behind state whose operator the program no longer has."
    )
    allow_pickled_state: bool = Field(
        default=False, description="Restore pickled state of a foreign savepoint; whoever wrote it can run code here."
    )


class SavepointConfig(Config):
    """Of a savepoint job."""

    target: str | None = Field(
        default=None, description="Folder to put the savepoint into. Default: beside the job's checkpoints."
    )
    format_type: SavepointFormatType = Field(
        default=SavepointFormatType.CANONICAL,
        description="CANONICAL: a folder with all that it names, which can be moved. NATIVE: refers to files of the "
        "job's checkpoints, beside which it must be; quick, whatever the size of the state.",
    )


class StopConfig(SavepointConfig):
    """Of a stop job."""

    drain: bool = Field(
        default=False, description="End event time first, so that all timers and windows fire; then nothing is left."
    )


class DisposeConfig(Config):
    """Of a dispose job."""

    savepoint_path: str = Field(description="Savepoint, or chk-n folder that was left unclaimed, to delete.")


class RestoreConfig(_RangedConfig):
    """Of a restore job."""

    savepoint_path: str = Field(description="Savepoint or chk-n folder to restore.")
    parallelism: int | None = Field(
        default=None, ge=1, description="Subtasks per operator from now on. Default: that of the savepoint."
    )
    claim_mode: RecoveryClaimMode = Field(
        default=RecoveryClaimMode.NO_CLAIM,
        description="CLAIM: the savepoint is the job's from now on, which deletes it. NO_CLAIM: it stays its owner's.",
    )
    allow_non_restored_state: bool = Field(
        default=False, description="Leave behind state whose operator the program no longer has."
    )
    allow_pickled_state: bool = Field(
        default=False, description="Restore pickled state of a foreign savepoint; whoever wrote it can run code here."
    )


class RescaleConfig(_RangedConfig):
    """Of a rescale job."""

    parallelism: int = Field(ge=1, description="Subtasks per operator from now on.")


class ResetConfig(_RangedConfig):
    """Of a reset job."""

    checkpoint_id: int = Field(ge=1, description="A completed checkpoint that is kept; the job goes on from it.")


class SweepConfig(_RangedConfig):
    """Of a sweep job."""

    grace_hours: float = Field(
        default=24.0, ge=0, description="Age at which files that nothing names are deleted; longer than an epoch takes."
    )
    savepoint_days: float | None = Field(
        default=None, ge=0, description="Age at which savepoints beside the checkpoints are deleted. Default: never."
    )
    keep_savepoints: int = Field(default=1, ge=0, description="So many savepoints stay, the newest, however old.")
    dry_run: bool = Field(default=False, description="Delete nothing, only tell what would be.")
