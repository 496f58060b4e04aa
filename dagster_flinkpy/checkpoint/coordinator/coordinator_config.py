"""The settings of the checkpoint coordinator: when to take checkpoints, and how many to keep."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from zlib import crc32

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["DEFAULT_NUM_RETAINED", "CoordinatorConfig"]

DEFAULT_NUM_RETAINED = 3
"""How many completed checkpoints of a job are kept, unless the deployment sets a number. Flink keeps 1."""


@dataclass
class CoordinatorConfig(CheckpointConfig):
    """When checkpoints are taken and how many are kept (Flink: ``CheckpointCoordinatorConfiguration``).

    A program declares all of it but how many are kept, which its deployment says. Nobody changes it.
    """

    num_retained: int = 1
    """How many completed checkpoints are kept. Default: 1; for jobs, `of_program` sets 3."""

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
        given = {field.name: getattr(declared, field.name) for field in fields(CheckpointConfig)}
        given["master_hooks"] = list(declared.master_hooks)
        return CoordinatorConfig(**given, num_retained=num_retained)

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
