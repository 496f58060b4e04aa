"""When checkpoints are taken and how many are kept (Flink: ``CheckpointConfig``)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig as DeclaredCheckpointConfig
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.datastream.master_hook import MasterTriggerRestoreHook
from dagster_flinkpy.datastream.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["CheckpointConfig", "CheckpointingMode"]


class CheckpointingMode(str, Enum):
    """What a restored job guarantees for its state."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    """Barriers are aligned: every record counts once."""
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    """Barriers are only counted: a record may count again after a restore."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Policy of the checkpoint coordinator."""

    interval: timedelta | None = None
    """Time between periodic checkpoints; at least 10 ms. Default: none, checkpoints are only taken when asked for."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    """Default: EXACTLY_ONCE."""
    timeout: timedelta = timedelta(minutes=10)
    """A checkpoint that is not acknowledged by all after this long is aborted; at least 10 ms. Default: 10 minutes."""
    min_pause: timedelta = timedelta(0)
    """Time from the completion of a checkpoint to the next periodic one. Default: 0."""
    max_concurrent: int = 1
    """How many checkpoints may be pending at once. Default: 1."""
    tolerable_failed: int = 0
    """How many checkpoints in a row may fail before the job does. Default: 0, the first failure fails the job."""
    unaligned: bool = False
    """EXACTLY_ONCE only: whether a gate that aligns for too long takes its snapshot without the missing barriers;
    what comes before these is stored with the checkpoint, and the parallelism cannot change when it is restored.
    Default: no."""
    aligned_timeout: timedelta = timedelta(0)
    """If unaligned: how long is too long. Default: 0, gates do not align at all."""
    num_retained: int = 1
    """How many completed checkpoints are kept. Default: 1."""
    retention: ExternalizedCheckpointRetention = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    """What becomes of them when a run ends. Default: they are kept, for the next run to go on from."""
    claim_mode: RecoveryClaimMode = RecoveryClaimMode.NO_CLAIM
    """Whose a checkpoint or savepoint is after somebody has asked to restore it. Default: still its owner's."""
    state_backend: StateBackendType = StateBackendType.COLUMNAR
    """Where keyed state is while a task works with it. Default: in columnar runs."""
    master_hooks: tuple[MasterTriggerRestoreHook, ...] = ()
    """Called on the driver at each checkpoint and restore. Default: none."""

    @staticmethod
    def of_program(declared: DeclaredCheckpointConfig, *, num_retained: int = 1) -> CheckpointConfig:
        """What a program declares with ``env.get_checkpoint_config()``.

        Args:
            declared: its settings.
            num_retained: how many completed checkpoints are kept, which is for the deployment to say.
        """
        return CheckpointConfig(
            interval=declared.interval,
            mode=CheckpointingMode(declared.mode.name),
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
            master_hooks=tuple(declared.master_hooks),
        )

    def __post_init__(self) -> None:
        """Check the ranges (Flink: ``CheckpointConfig`` and ``CheckpointCoordinatorConfiguration``).

        Raises:
            ConfigurationError: a value is out of range; names the option and the limit.
        """
        shortest = timedelta(milliseconds=10)
        if self.interval is not None and self.interval < shortest:
            raise ConfigurationError(f"checkpoint interval must be at least 10 ms, not {self.interval}")
        if self.timeout < shortest:
            raise ConfigurationError(f"checkpoint timeout must be at least 10 ms, not {self.timeout}")
        if self.min_pause < timedelta(0):
            raise ConfigurationError(f"min_pause between checkpoints must not be negative, not {self.min_pause}")
        if self.unaligned and self.mode is not CheckpointingMode.EXACTLY_ONCE:
            raise ConfigurationError(f"unaligned checkpoints need mode EXACTLY_ONCE, not {self.mode.value}")
        if self.aligned_timeout < timedelta(0):
            raise ConfigurationError(f"aligned_timeout must not be negative, not {self.aligned_timeout}")
        if self.max_concurrent < 1:
            raise ConfigurationError(f"max_concurrent checkpoints must be at least 1, not {self.max_concurrent}")
        if self.tolerable_failed < 0:
            raise ConfigurationError(f"tolerable_failed checkpoints must not be negative, not {self.tolerable_failed}")
        if self.num_retained < 1:
            raise ConfigurationError(f"num_retained checkpoints must be at least 1, not {self.num_retained}")
        identifiers = [hook.get_identifier() for hook in self.master_hooks]
        for identifier in identifiers:
            if identifiers.count(identifier) > 1:
                raise ConfigurationError(f"two master hooks have the identifier {identifier!r}; give each its own")
