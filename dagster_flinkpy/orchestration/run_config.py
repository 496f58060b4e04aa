"""Typed run config of a job's runs."""

from typing import Any

from dagster import Config
from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, field_validator, model_validator

from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.checkpointing.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.orchestration.failure import as_failure

__all__ = [
    "DisposeConfig",
    "FlinkRunConfig",
    "ForkConfig",
    "ImportConfig",
    "InspectConfig",
    "RescaleConfig",
    "ResetConfig",
    "RestoreConfig",
    "RollbackConfig",
    "SavepointConfig",
    "StopConfig",
    "SweepConfig",
    "SwitchConfig",
    "UpgradeConfig",
]


class _RangedConfig(Config):
    """Config whose numbers have a range. Dagster checks types only, and its launchpad fills in 0.

    In Python, too, it refuses fields that there are not. Dagster's own config ignores them.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_fields(cls, value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as e:
            wrong = [
                f"there is no field {error['loc'][0]!r}: leave it out"
                if error["type"] == "extra_forbidden"
                else f"{error['loc'][0]} is {error['input']!r}: {error['msg']}"
                for error in e.errors()
            ]
            raise as_failure(ConfigurationError(f"{'; '.join(wrong)}. Correct this, and launch the run again.")) from e


class _LeavingConfig(_RangedConfig):
    """Config of a run that may leave state behind."""

    allow_non_restored_state: Any = Field(  # Dagster has no type for this; see the validator
        default=False,
        description="Leave state behind whose operator is no longer in the program: true for all such state, or a list "
        "of uids.",
    )

    @field_validator("allow_non_restored_state")
    @classmethod
    def _is_true_or_uids(cls, value: Any) -> Any:
        if isinstance(value, bool) or (isinstance(value, list) and all(isinstance(uid, str) for uid in value)):
            return value
        raise ValueError("give true, false or a list of uids")


class _StartConfig(_LeavingConfig):
    """Config of a run that starts from older state."""

    allow_pickled_state: bool = Field(
        default=False, description="Restore pickled state of a foreign savepoint. Whoever wrote it can run code here."
    )


class FlinkRunConfig(_StartConfig):
    """Config of a run that takes checkpoints."""

    epochs: int = Field(
        default=1,
        ge=0,
        description="Number of checkpoints, one after each epoch. 0: until the input ends, or the job is told to end.",
    )
    periodic: bool = Field(
        default=False,
        description="Take a checkpoint at the program's interval. Default: one right after the other.",
    )
    materialize_interval: float = Field(
        default=60.0,
        ge=0,
        description="Seconds between two materializations of the assets while the run goes on. The last checkpoint is "
        "always materialized, also if the run fails. 0: each checkpoint.",
    )
    parallelism: int | None = Field(
        default=None,
        ge=1,
        description="Subtasks per operator from now on, unless the program sets its own number. Default: as the "
        "last rescale set it, otherwise as the program says.",
    )
    restore_from: str | None = Field(
        default=None,
        description="Savepoint or chk-n folder to start from; the job's own folder is its latest checkpoint. Default: "
        "the latest checkpoint; for a partition, the end state of the previous one.",
    )
    claim_mode: RecoveryClaimMode | None = Field(
        default=None,
        description="Who owns that savepoint from now on. CLAIM: the job, which deletes it when it is no longer "
        "needed. NO_CLAIM: still you. Default: set by the program, otherwise NO_CLAIM.",
    )
    start_empty: bool = Field(default=False, description="Start from empty state even if there are checkpoints.")
    take_over: bool = Field(
        default=False,
        description="End another run that is working on the job, also one that this instance does not know. Default: "
        "wait for its end.",
    )


class SavepointConfig(Config):
    """Config of a savepoint job."""

    target: str | None = Field(
        default=None, description="Folder to write the savepoint to. Default: next to the job's checkpoints."
    )
    format_type: SavepointFormatType = Field(
        default=SavepointFormatType.CANONICAL,
        description="CANONICAL: a self-contained folder that can be moved. NATIVE: refers to files of the job's "
        "checkpoints and must stay next to them; quick, whatever the size of the state.",
    )


class StopConfig(SavepointConfig):
    """Config of a stop job."""

    drain: bool = Field(
        default=False, description="Advance event time to its end first, so that all timers and windows fire."
    )


class DisposeConfig(Config):
    """Config of a dispose job."""

    savepoint_path: str = Field(
        description="Savepoint to delete, or a chk-n folder that was restored without being claimed. The name is "
        "enough for a savepoint next to the job's checkpoints."
    )


class ForkConfig(Config):
    """Config of a fork job."""

    name: str = Field(description="Name of the new job. Its folder is beside that of the job.")
    at: str | None = Field(
        default=None,
        description="Checkpoint (chk-7) or savepoint of the job to continue from. Default: the latest checkpoint.",
    )


class _RecomputingConfig(Config):
    """Config of a run that may recompute operators."""

    recompute: list[str] = Field(
        default=[],
        description="Uids of operators that do not keep their state. They and all that follow start empty, read their "
        "input again, and replace their rows.",
    )
    recompute_changed: bool = Field(
        default=False, description="Recompute all operators that have changed since the latest checkpoint, too."
    )
    since: str | None = Field(
        default=None,
        description="The checkpoint (chk-n) after which they read all again. Default: from the beginning of the job.",
    )


class UpgradeConfig(_RangedConfig, _RecomputingConfig):
    """Config of an upgrade job."""

    from_program: str = Field(
        description="The program as the job runs it: package.module:name, or folder/file.py:name of another checkout."
    )
    at: str | None = Field(
        default=None,
        description="Checkpoint (chk-7) or savepoint from which both versions start. Default: the oldest one kept, or "
        "the latest one if operators are recomputed.",
    )
    epochs: int | None = Field(
        default=None, ge=1, description="Epochs that both versions run. Default: those completed since."
    )
    switch_if_same: bool = Field(
        default=False, description="Do what the switch job does, if all rows are the same. No run may be at work then."
    )


class RollbackConfig(Config):
    """Config of a rollback job."""

    kept: str | None = Field(
        default=None, description="Name of the fork that keeps the state of the old version. Default: {job}_before."
    )


class SwitchConfig(RollbackConfig, _RecomputingConfig):
    """Config of a switch job."""


class RestoreConfig(_StartConfig):
    """Config of a restore job."""

    savepoint_path: str = Field(
        description="Savepoint or chk-n folder to restore. The name is enough for a savepoint next to the job's "
        "checkpoints."
    )
    parallelism: int | None = Field(
        default=None,
        ge=1,
        description="Subtasks per operator from now on, unless the program sets its own number. Default: as the "
        "last rescale before the savepoint set it, otherwise as the program says.",
    )
    claim_mode: RecoveryClaimMode = Field(
        default=RecoveryClaimMode.NO_CLAIM,
        description="Who owns the savepoint from now on. CLAIM: the job, which deletes it when it is no longer needed. "
        "NO_CLAIM: still you.",
    )


class ImportConfig(_LeavingConfig):
    """Config of a job that imports a savepoint of Flink, or a checkpoint of Spark."""

    flink_savepoint: str | None = Field(default=None, description="Folder of a canonical savepoint of Flink.")
    spark_checkpoint: str | None = Field(
        default=None,
        description="The checkpointLocation of a stopped Spark streaming query, in place of flink_savepoint. Of its "
        "state, allow_non_restored_state takes the ids of Spark's operators.",
    )
    target: str = Field(description="Folder of the new savepoint, outside of the job's checkpoints.")
    declared: str | None = Field(
        default=None,
        description="MODULE:NAME of descriptors of state that functions do not ask for in open(): a dict of lists by "
        "uid, or a function that returns it.",
    )
    mapping: dict[str, str] = Field(
        default={},
        description="Of a Spark checkpoint: where state goes that is not found by its name, from STATE or "
        "OPERATOR.STATE to UID or UID:STATE, and from sources/N to the uid of a source.",
    )


class RescaleConfig(_RangedConfig):
    """Config of a rescale job."""

    parallelism: int = Field(ge=1, description="Subtasks per operator from now on.")


class ResetConfig(_RangedConfig):
    """Config of a reset job."""

    checkpoint_id: int = Field(
        ge=1, description="A completed checkpoint that is still kept; the job continues from it."
    )


class SweepConfig(_RangedConfig):
    """Config of a sweep job."""

    grace_hours: float = Field(
        default=24.0,
        ge=0,
        description="Age in hours at which unreferenced files are deleted. Must be longer than a savepoint takes.",
    )
    savepoint_days: float | None = Field(
        default=None,
        ge=0,
        description="Age in days at which savepoints next to the checkpoints are deleted. Default: never.",
    )
    keep_savepoints: int = Field(
        default=1, ge=0, description="Number of newest savepoints to keep, whatever their age."
    )
    keep_runs: int | None = Field(
        default=None,
        ge=200,
        description="Number of newest runs of this job that Dagster keeps. Older ones that have ended are deleted with "
        "their logs and events, but not the newest event of an asset or partition. Default: all.",
    )
    dry_run: bool = Field(default=False, description="Delete nothing; only report what would be deleted.")


class InspectConfig(Config):
    """Config of an inspect job."""

    uid: str = Field(description="Uid of the operator.")
    key: str = Field(
        description='The key. Write a string as it is, anything else as JSON: 42, true, or ["a", 1] for a tuple or row.'
    )
    state: str | None = Field(default=None, description="Name of the state. Default: all keyed states and timers.")
    savepoint_path: str | None = Field(
        default=None, description="Savepoint or chk-n folder to look into. Default: the latest checkpoint."
    )
