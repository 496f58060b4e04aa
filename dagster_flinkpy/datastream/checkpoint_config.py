"""Checkpoint settings of a program (``pyflink.datastream.checkpoint_config``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from dagster_flinkpy.common.time import Duration
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.datastream.master_hook import MasterTriggerRestoreHook
from dagster_flinkpy.datastream.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["CheckpointConfig"]

_MAX_INT = 2**31 - 1


@dataclass
class CheckpointConfig:
    """Checkpoint settings of a program; all times are in milliseconds in the methods."""

    interval: timedelta | None = None
    """Time between two checkpoints; None: no periodic trigger."""
    storage_dir: str | None = None
    """Where checkpoints go: a directory or ``s3://bucket/prefix``."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    timeout: timedelta = timedelta(minutes=10)
    """A checkpoint that takes longer is aborted."""
    min_pause: timedelta = timedelta(0)
    """Time from the end of a checkpoint to the next periodic one."""
    max_concurrent: int = 1
    tolerable_failed: int = 0
    """Checkpoints in a row that may fail before the job does."""
    barriers_per_job: int = 1
    """Checkpoints that one Spark job takes, one after the other."""
    unaligned: bool = False
    """Whether a gate that aligns for too long takes its snapshot with the input that has not passed."""
    aligned_timeout: timedelta = timedelta(0)
    """If unaligned: how long is too long."""
    retention: ExternalizedCheckpointRetention = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    """What becomes of checkpoints when a run ends."""
    claim_mode: RecoveryClaimMode = RecoveryClaimMode.NO_CLAIM
    """Whose a restored checkpoint or savepoint is."""
    state_backend: StateBackendType = StateBackendType.COLUMNAR
    """Where keyed state is while a task works with it."""
    master_hooks: list[MasterTriggerRestoreHook] = field(default_factory=list)
    """Called on the driver at each checkpoint and restore."""

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        """Sets where checkpoints go."""
        self.storage_dir = checkpoint_path
        return self

    def is_checkpointing_enabled(self) -> bool:
        """Whether there is a periodic trigger."""
        return self.interval is not None

    def get_checkpoint_interval(self) -> int:
        """Milliseconds between two checkpoints; -1: there is no periodic trigger."""
        return -1 if self.interval is None else _millis(self.interval)

    def set_checkpoint_interval(self, checkpoint_interval: int) -> CheckpointConfig:
        """Sets the milliseconds between two checkpoints.

        Raises:
            ConfigurationError: They are less than 10.
        """
        if checkpoint_interval < 10:
            raise ConfigurationError(f"checkpoint interval must be at least 10 ms, not {checkpoint_interval}")
        self.interval = timedelta(milliseconds=checkpoint_interval)
        return self

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """What a record counts for after a failure."""
        return self.mode

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        """Sets what a record counts for after a failure."""
        self.mode = checkpointing_mode
        return self

    def get_checkpoint_timeout(self) -> int:
        """Milliseconds after which a checkpoint is aborted."""
        return _millis(self.timeout)

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> CheckpointConfig:
        """Sets the milliseconds after which a checkpoint is aborted."""
        self.timeout = timedelta(milliseconds=checkpoint_timeout)
        return self

    def get_min_pause_between_checkpoints(self) -> int:
        """Milliseconds from the end of a checkpoint to the next periodic one."""
        return _millis(self.min_pause)

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> CheckpointConfig:
        """Sets the milliseconds from the end of a checkpoint to the next periodic one."""
        self.min_pause = timedelta(milliseconds=min_pause_between_checkpoints)
        return self

    def get_max_concurrent_checkpoints(self) -> int:
        """How many checkpoints may be pending at once."""
        return self.max_concurrent

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        """Sets how many checkpoints may be pending at once."""
        self.max_concurrent = max_concurrent_checkpoints
        return self

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """What :meth:`set_tolerable_checkpoint_failure_number` set; 0 by default."""
        return self.tolerable_failed

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> CheckpointConfig:
        """Accepted, and without effect: here checkpoint and epoch are one, so one that fails ends the attempt.

        The next attempt reads the same input again from the last completed checkpoint. How often that is tried is up to
        the step's retry policy, the restart sensor and the checkpoint sensor.
        """
        self.tolerable_failed = tolerable_checkpoint_failure_number
        return self

    def get_barriers_per_job(self) -> int:
        """How many checkpoints one Spark job takes."""
        return self.barriers_per_job

    def set_barriers_per_job(self, barriers_per_job: int) -> CheckpointConfig:
        """Sets how many checkpoints one Spark job takes, one after the other; 1 by default; not in PyFlink.

        Each has its own epoch of input. It saves the fixed cost of a Spark job where epochs are small; a failure fails
        all of them.

        Raises:
            ConfigurationError: They are less than 1.
        """
        if barriers_per_job < 1:
            raise ConfigurationError(f"a Spark job takes at least 1 checkpoint, not {barriers_per_job}")
        self.barriers_per_job = barriers_per_job
        return self

    def is_fail_on_checkpointing_errors(self) -> bool:
        """What :meth:`set_fail_on_checkpointing_errors` set; true by default."""
        return self.tolerable_failed == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> CheckpointConfig:
        """Without effect, as :meth:`set_tolerable_checkpoint_failure_number`: a failed checkpoint ends the attempt."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail_on_checkpointing_errors else _MAX_INT)

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """What becomes of checkpoints when a run ends."""
        return self.retention

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Whether there is a way for a run to end that keeps checkpoints."""
        return self.retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        """Sets what becomes of checkpoints when a run ends. They are kept by default, for the next run."""
        self.retention = retention_mode
        return self

    def set_recovery_claim_mode(self, claim_mode: RecoveryClaimMode) -> CheckpointConfig:
        """Sets whose a checkpoint or savepoint is after a run was told to restore it."""
        self.claim_mode = claim_mode
        return self

    def add_master_hook(self, hook: MasterTriggerRestoreHook) -> CheckpointConfig:
        """Has a hook called on the driver at each checkpoint and restore."""
        self.master_hooks.append(hook)
        return self

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Whether a gate that aligns for too long takes its snapshot with the input that has not passed."""
        return self.unaligned

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Lets a gate that aligns for too long take its snapshot with the input that has not passed."""
        self.unaligned = enabled
        return self

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        """Has gates wait for all barriers; the default."""
        return self.enable_unaligned_checkpoints(False)

    def get_aligned_checkpoint_timeout(self) -> Duration:
        """If unaligned: how long a gate aligns."""
        return Duration(_millis(self.aligned_timeout))

    def set_aligned_checkpoint_timeout(self, alignment_timeout: Duration) -> CheckpointConfig:
        """Sets how long a gate aligns, if checkpoints may be unaligned; 0: not at all."""
        self.aligned_timeout = timedelta(milliseconds=alignment_timeout.millis)
        return self


def _millis(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)
