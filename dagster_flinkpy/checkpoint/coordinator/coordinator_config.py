"""The settings of the checkpoint coordinator: when to take checkpoints, and how many to keep."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from zlib import crc32

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.checkpointing.master_hook import MasterTriggerRestoreHook
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.checkpointing.state_recovery import RecoveryClaimMode
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["DEFAULT_NUM_RETAINED", "CoordinatorConfig"]

DEFAULT_NUM_RETAINED = 3
"""How many completed checkpoints of a job are kept, unless the deployment sets a number. Flink keeps 1."""


@dataclass(frozen=True)
class CoordinatorConfig:
    """When checkpoints are taken and how many are kept (Flink: ``CheckpointCoordinatorConfiguration``)."""

    interval: timedelta | None = None
    """Time between periodic checkpoints; at least 10 ms. Default: None, which takes checkpoints on request only."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    """Whether each record affects state exactly once or at least once. Default: EXACTLY_ONCE."""
    timeout: timedelta = timedelta(minutes=10)
    """A checkpoint that some subtask has not acknowledged by then is aborted; at least 10 ms. Default: 10 minutes."""
    min_pause: timedelta = timedelta(0)
    """Time from the completion of a checkpoint to the next periodic one. Default: 0."""
    max_concurrent: int = 1
    """How many checkpoints may be pending at once. A run reads at most this many epochs ahead. Default: 1."""
    tolerable_failed: int = 0
    """How many checkpoints in a row may fail before the job fails. Default: 0, so the first failure fails the job."""
    unaligned: bool = False
    """Whether an input gate that aligns for too long takes its snapshot without the missing barriers. The input before
    those barriers is stored with the checkpoint. Needs EXACTLY_ONCE. Default: False."""
    aligned_timeout: timedelta = timedelta(0)
    """How long a gate aligns if checkpoints may be unaligned. Default: 0, so gates do not align at all."""
    num_retained: int = 1
    """How many completed checkpoints are kept. Default: 1; for jobs, `of_program` sets 3."""
    retention: ExternalizedCheckpointRetention = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    """What happens to completed checkpoints when a run ends. Default: they are kept for the next run."""
    claim_mode: RecoveryClaimMode = RecoveryClaimMode.NO_CLAIM
    """Who owns a checkpoint or savepoint that a run restores on request. Default: its previous owner."""
    state_backend: StateBackendType = StateBackendType.COLUMNAR
    """How a task holds keyed state while it runs. Default: in columnar runs."""
    managed_memory: int | None = None
    """About how many bytes of keyed state a process holds in memory, in equal shares of the backends in it. Default: a
    backend has at most a million keys and rows."""
    master_hooks: tuple[MasterTriggerRestoreHook, ...] = ()
    """Hooks that are called on the driver at each checkpoint and restore. Default: none."""

    def initial_delay_ms(self, interval_ms: int, seed: str) -> int:
        """Returns a delay between pause and interval, so that jobs that start together do not trigger together.

        Flink: ``CheckpointCoordinator.getRandomInitDelay``; here it follows from the seed.
        """
        pause_ms = to_millis(self.min_pause)
        return pause_ms + crc32(seed.encode()) % (interval_ms - pause_ms + 1)

    @staticmethod
    def of_program(declared: CheckpointConfig, *, num_retained: int = DEFAULT_NUM_RETAINED) -> CoordinatorConfig:
        """Returns the settings that a program declares with ``env.get_checkpoint_config()``.

        Args:
            declared: The settings of the program.
            num_retained: How many completed checkpoints are kept. The deployment sets it, not the program. Default: 3.
        """
        return CoordinatorConfig(
            interval=declared.interval,
            mode=declared.mode,
            timeout=declared.timeout,
            min_pause=declared.min_pause,
            max_concurrent=declared.max_concurrent,
            tolerable_failed=declared.tolerable_failed,
            unaligned=declared.unaligned,
            aligned_timeout=declared.aligned_timeout,
            num_retained=num_retained,
            retention=declared.retention,
            claim_mode=declared.claim_mode,
            state_backend=declared.state_backend,
            managed_memory=declared.managed_memory,
            master_hooks=tuple(declared.master_hooks),
        )

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ConfigurationError: A value is out of range; the message names the option and the limit.
        """
        shortest = timedelta(milliseconds=10)
        if self.interval is not None and self.interval < shortest:
            raise ConfigurationError(f"checkpoint interval must be at least 10 ms, not {to_millis(self.interval)}")
        if self.timeout < shortest:
            raise ConfigurationError(f"checkpoint timeout must be at least 10 ms, not {to_millis(self.timeout)}")
        if self.min_pause < timedelta(0):
            raise ConfigurationError(
                f"min_pause between checkpoints must not be negative, not {to_millis(self.min_pause)} ms"
            )
        if self.unaligned and self.mode is not CheckpointingMode.EXACTLY_ONCE:
            raise ConfigurationError(f"unaligned checkpoints need mode EXACTLY_ONCE, not {self.mode.name}")
        if self.aligned_timeout < timedelta(0):
            raise ConfigurationError(f"aligned_timeout must not be negative, not {to_millis(self.aligned_timeout)} ms")
        if self.max_concurrent < 1:
            raise ConfigurationError(f"max_concurrent checkpoints must be at least 1, not {self.max_concurrent}")
        if self.tolerable_failed < 0:
            raise ConfigurationError(f"tolerable_failed checkpoints must not be negative, not {self.tolerable_failed}")
        if self.num_retained < 1:
            raise ConfigurationError(f"num_retained checkpoints must be at least 1, not {self.num_retained}")
        if self.managed_memory is not None and self.managed_memory < 1:
            raise ConfigurationError(f"managed memory must be at least one byte, not {self.managed_memory}")
        if self.managed_memory is not None and self.state_backend is StateBackendType.HASHMAP:
            raise ConfigurationError(
                "state.backend.type hashmap holds all state in memory, so taskmanager.memory.managed.size cannot limit "
                "it; leave out one of the two"
            )
        identifiers = [hook.get_identifier() for hook in self.master_hooks]
        for identifier in identifiers:
            if identifiers.count(identifier) > 1:
                raise ConfigurationError(f"two master hooks have the identifier {identifier!r}; make them unique")
