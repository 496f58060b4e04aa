"""Checkpoint settings of a program (``pyflink.datastream.checkpoint_config``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.arguments import check_argument, check_number
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.common.former_names import missing_method
from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.datastream.checkpointing.master_hook import MasterTriggerRestoreHook
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.checkpointing.state_recovery import RecoveryClaimMode
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["CheckpointConfig"]

_MAX_INT = 2**31 - 1


@dataclass
class CheckpointConfig:
    """The checkpoint settings of a program. Its methods take and return milliseconds."""

    interval: timedelta | None = None
    """Time between two checkpoints, or None for no periodic trigger."""
    storage_dir: str | None = None
    """Where checkpoints go: a directory or ``s3://bucket/prefix``."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    timeout: timedelta = timedelta(minutes=10)
    """A checkpoint that takes longer is aborted."""
    min_pause: timedelta = timedelta(0)
    """The least time from the end of a checkpoint to the next periodic one."""
    max_concurrent: int = 1
    tolerable_failed: int = 0
    """The number of consecutive checkpoints that may fail before the job does."""
    unaligned: bool = False
    """Whether an input gate that aligns for too long takes its snapshot early, including the waiting input."""
    aligned_timeout: timedelta = timedelta(0)
    """How long an input gate aligns, if checkpoints may be unaligned."""
    retention: ExternalizedCheckpointRetention = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    """What happens to checkpoints when a run ends."""
    claim_mode: RecoveryClaimMode = RecoveryClaimMode.NO_CLAIM
    """Who owns a restored checkpoint or savepoint."""
    state_backend: StateBackendType = StateBackendType.COLUMNAR
    """How a task holds keyed state while it runs."""
    managed_memory: int | None = None
    """About how many bytes of keyed state a process holds in memory, in equal shares of the backends in it. Default: a
    backend has at most a million keys and rows."""
    master_hooks: list[MasterTriggerRestoreHook] = field(default_factory=list)
    """Called on the driver at each checkpoint and restore."""

    if not TYPE_CHECKING:  # type checkers report a missing attribute themselves

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        """Sets where checkpoints go; a relative path is one of the working directory at this call."""
        check_argument("set_checkpoint_storage_dir()", checkpoint_path, str, "text: a folder, or s3://bucket/prefix")
        is_url = not checkpoint_path.strip() or ":/" in checkpoint_path
        self.storage_dir = checkpoint_path if is_url else str(Path(checkpoint_path).expanduser().absolute())
        return self

    def is_checkpointing_enabled(self) -> bool:
        """Returns whether there is a periodic trigger."""
        return self.interval is not None

    def get_checkpoint_interval(self) -> int:
        """Returns the milliseconds between two checkpoints, or -1 if there is no periodic trigger."""
        return -1 if self.interval is None else to_millis(self.interval)

    def set_checkpoint_interval(self, checkpoint_interval: int) -> CheckpointConfig:
        """Sets the milliseconds between two checkpoints.

        Raises:
            ConfigurationError: It is less than 10.
        """
        check_number("set_checkpoint_interval()", checkpoint_interval, "milliseconds")
        if checkpoint_interval < 10:
            raise ConfigurationError(f"checkpoint interval must be at least 10 ms, not {checkpoint_interval}")
        self.interval = timedelta(milliseconds=checkpoint_interval)
        return self

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Returns the guarantee for records after a failure."""
        return self.mode

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        """Sets the guarantee for records after a failure."""
        wanted = "a CheckpointingMode, such as CheckpointingMode.EXACTLY_ONCE"
        check_argument("set_checkpointing_mode()", checkpointing_mode, CheckpointingMode, wanted)
        self.mode = checkpointing_mode
        return self

    def get_checkpoint_timeout(self) -> int:
        """Returns the milliseconds after which a checkpoint is aborted."""
        return to_millis(self.timeout)

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> CheckpointConfig:
        """Sets the milliseconds after which a checkpoint is aborted."""
        check_number("set_checkpoint_timeout()", checkpoint_timeout, "milliseconds")
        self.timeout = timedelta(milliseconds=checkpoint_timeout)
        return self

    def get_min_pause_between_checkpoints(self) -> int:
        """Returns the milliseconds from the end of a checkpoint to the next periodic one."""
        return to_millis(self.min_pause)

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> CheckpointConfig:
        """Sets the milliseconds from the end of a checkpoint to the next periodic one."""
        check_number("set_min_pause_between_checkpoints()", min_pause_between_checkpoints, "milliseconds")
        self.min_pause = timedelta(milliseconds=min_pause_between_checkpoints)
        return self

    def get_max_concurrent_checkpoints(self) -> int:
        """Returns how many checkpoints may be pending at once."""
        return self.max_concurrent

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        """Sets how many checkpoints may be pending at once.

        The next epoch runs at most this many incomplete checkpoints ahead. Default: 1.
        """
        check_number("set_max_concurrent_checkpoints()", max_concurrent_checkpoints, "checkpoints")
        self.max_concurrent = max_concurrent_checkpoints
        return self

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """Returns how many checkpoints in a row may fail before the attempt ends; 0 by default."""
        return self.tolerable_failed

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> CheckpointConfig:
        """Sets how many checkpoints in a row may fail before the attempt ends; 0 by default.

        It counts failures that lose nothing: no id could be taken, a master hook raised, or the metadata was not
        written. The next checkpoint then takes over, and commits the rows of both. If an epoch fails, the restart
        strategy decides. If nobody knows whether a checkpoint is complete, or a step hangs, the attempt ends, and so it
        does with a checkpoint of a time partition, or one that the job stops with.

        Raises:
            ConfigurationError: It is negative.
        """
        check_number("set_tolerable_checkpoint_failure_number()", tolerable_checkpoint_failure_number, "checkpoints")
        if tolerable_checkpoint_failure_number < 0:
            raise ConfigurationError(f"at least 0 checkpoints may fail, not {tolerable_checkpoint_failure_number}")
        self.tolerable_failed = tolerable_checkpoint_failure_number
        return self

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Returns whether the first failed checkpoint ends the attempt; true by default."""
        return self.tolerable_failed == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> CheckpointConfig:
        """Sets whether the first failed checkpoint ends the attempt; if not, any number in a row is tolerated."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail_on_checkpointing_errors else _MAX_INT)

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """Returns what happens to checkpoints when a run ends."""
        return self.retention

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Returns whether checkpoints are kept in some of the cases in which a run ends."""
        return self.retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        """Sets what happens to checkpoints when a run ends. By default they are kept for the next run."""
        wanted = "an ExternalizedCheckpointRetention, such as ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION"
        check_argument(
            "set_externalized_checkpoint_retention()", retention_mode, ExternalizedCheckpointRetention, wanted
        )
        self.retention = retention_mode
        return self

    def set_recovery_claim_mode(self, claim_mode: RecoveryClaimMode) -> CheckpointConfig:
        """Sets who owns a checkpoint or savepoint that a run restores on request."""
        wanted = "a RecoveryClaimMode, such as RecoveryClaimMode.CLAIM"
        check_argument("set_recovery_claim_mode()", claim_mode, RecoveryClaimMode, wanted)
        self.claim_mode = claim_mode
        return self

    def add_master_hook(self, hook: MasterTriggerRestoreHook) -> CheckpointConfig:
        """Adds a hook that is called on the driver at each checkpoint and restore."""
        self.master_hooks.append(hook)
        return self

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Returns whether an input gate that aligns for too long takes its snapshot early, with the waiting input."""
        return self.unaligned

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Lets an input gate that aligns for too long take its snapshot early, with the waiting input."""
        check_argument("enable_unaligned_checkpoints()", enabled, bool, "True or False")
        self.unaligned = enabled
        return self

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        """Makes input gates wait for all barriers; the default."""
        return self.enable_unaligned_checkpoints(False)

    def get_aligned_checkpoint_timeout(self) -> Duration:
        """Returns how long an input gate aligns, if checkpoints may be unaligned."""
        return Duration(to_millis(self.aligned_timeout))

    def set_aligned_checkpoint_timeout(self, alignment_timeout: Duration) -> CheckpointConfig:
        """Sets how long an input gate aligns, if checkpoints may be unaligned; 0 means not at all."""
        wanted = "a Duration, such as Duration.of_seconds(30)"
        check_argument("set_aligned_checkpoint_timeout()", alignment_timeout, (Duration, Time), wanted)
        self.aligned_timeout = timedelta(milliseconds=alignment_timeout.millis)
        return self
