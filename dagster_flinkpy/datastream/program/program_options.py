"""The options of a program that ``env.configure()`` knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeVar

from dagster_flinkpy.common.configuration import Configuration, parse_duration, parse_map, parse_memory_size
from dagster_flinkpy.common.exchange_options import ExchangeMode
from dagster_flinkpy.common.metric_options import is_reporter_option, metric_reporters_of
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.checkpointing.state_recovery import RecoveryClaimMode, non_restored_state_of
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.execution_mode import RuntimeExecutionMode
from dagster_flinkpy.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from dagster_flinkpy.datastream.program.program import StreamProgram
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.key_groups import check_whole_number

__all__ = ["FAILOVER_OPTIONS", "OPTIONS", "apply_options"]

E = TypeVar("E", bound=Enum)

Option = Callable[[StreamProgram[Any], Configuration, str], object]
"""Sets something of a program to the value of the option with this name."""


def apply_options(program: StreamProgram[Any], configuration: Configuration) -> None:
    """Applies the options that this library knows, and issues a `NoEffectWarning` for each other one.

    Args:
        program: The program to change.
        configuration: The options.

    Raises:
        ConfigurationError: The value of an option is invalid, or the option was removed.
    """
    if any(map(is_reporter_option, configuration.key_set())):
        program.config.metric_reporters = metric_reporters_of(configuration)
    for name in configuration.to_dict():
        if is_reporter_option(name):
            continue
        if name in OPTIONS:
            OPTIONS[name](program, configuration, name)
        elif name in FAILOVER_OPTIONS:
            program.config.failover_options.set_string(name, configuration.get_string(name, ""))
        elif name in _REMOVED:
            raise ConfigurationError(f"option {name!r} was removed: {_REMOVED[name]}")
        else:
            near = get_close_matches(name, [*OPTIONS, *FAILOVER_OPTIONS], n=1, cutoff=0.9)
            because = "this library does not have it" + (f"; did you mean {near[0]!r}?" if near else "")
            no_effect(f"option {name!r}", because, stacklevel=4)


def _parallelism(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    parallelism = configuration.get_integer(name, 1)
    check_whole_number("parallelism", parallelism)
    program.parallelism = parallelism


def _max_parallelism(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    max_parallelism = configuration.get_integer(name, 1)
    check_whole_number("max_parallelism", max_parallelism)
    program.max_parallelism = max_parallelism


def _name(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.job_name = configuration.get_string(name, "")


def _runtime_mode(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.set_runtime_mode(_member(RuntimeExecutionMode, configuration, name), stacklevel=6)


def _interval(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.checkpoint_config.interval = _duration(configuration, name)


def _local(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.local = configuration.get_boolean(name, False)


def _mini_batch(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.mini_batch = configuration.get_boolean(name, False)


def _savepoint_path(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.savepoint_path = configuration.get_string(name, "")


def _non_restored_state(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.allow_non_restored_state = non_restored_state_of(configuration.get_string(name, ""))


def _state_backend(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.checkpoint_config.state_backend = _member(StateBackendType, configuration, name)


def _managed_memory(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.checkpoint_config.managed_memory = parse_memory_size(configuration.get_string(name, ""), name)


def _aligned_timeout(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.checkpoint_config.aligned_timeout = _duration(configuration, name)


def _timeout(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.checkpoint_config.timeout = _duration(configuration, name)


def _min_pause(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.checkpoint_config.min_pause = _duration(configuration, name)


def _exchange(program: StreamProgram[Any], **changed: Any) -> None:
    program.config.exchange = replace(program.config.exchange, **changed)


def _duration(configuration: Configuration, name: str) -> timedelta:
    return parse_duration(configuration.get_string(name, ""), name)


def _member(kind: type[E], configuration: Configuration, option: str) -> E:
    """Returns the enum member that an option names, in upper or lower case, with ``-`` or ``_``."""
    value = configuration.get_string(option, "")
    try:
        return kind[value.strip().upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(member.name.lower() for member in kind)
        hint = "; columnar, the default, has state of any size on disk, as rocksdb has" if value == "rocksdb" else ""
        raise ConfigurationError(f"option {option!r} is {value!r}, and must be one of: {known}{hint}") from None


_CHECKPOINTING = "execution.checkpointing."

OPTIONS: Mapping[str, Option] = {
    "parallelism.default": _parallelism,
    "pipeline.max-parallelism": _max_parallelism,
    "pipeline.name": _name,
    "pipeline.global-job-parameters": lambda p, c, k: p.config.set_global_job_parameters(
        parse_map(c.get_string(k, ""), k)
    ),
    "pipeline.strict": lambda p, c, k: p.config.set_strict(c.get_boolean(k, False)),
    "metrics.latency.interval": lambda p, c, k: p.config.set_latency_tracking_interval(
        round(_duration(c, k) / timedelta(milliseconds=1))
    ),
    "execution.require-all-slots": lambda p, c, k: p.config.set_require_all_slots(c.get_boolean(k, False)),
    "execution.exchange": lambda p, c, k: _exchange(p, mode=_member(ExchangeMode, c, k)),
    "execution.buffer-timeout.interval": lambda p, c, k: _exchange(p, buffer_timeout=_duration(c, k)),
    "slot.request.timeout": lambda p, c, k: _exchange(p, slot_request_timeout=_duration(c, k)),
    "taskmanager.numberOfTaskSlots": lambda p, c, k: _exchange(p, task_slots=c.get_integer(k, 1)),
    "heartbeat.interval": lambda p, c, k: _exchange(p, heartbeat_interval=_duration(c, k)),
    "heartbeat.timeout": lambda p, c, k: _exchange(p, heartbeat_timeout=_duration(c, k)),
    "security.ssl.internal.enabled": lambda p, c, k: _exchange(p, tls=c.get_boolean(k, False)),
    "execution.runtime-mode": _runtime_mode,
    "execution.local": _local,
    "table.exec.mini-batch.enabled": _mini_batch,
    "state.backend.type": _state_backend,
    "taskmanager.memory.managed.size": _managed_memory,
    f"{_CHECKPOINTING}interval": _interval,
    f"{_CHECKPOINTING}dir": lambda p, c, k: p.checkpoint_config.set_checkpoint_storage_dir(c.get_string(k, "")),
    f"{_CHECKPOINTING}mode": lambda p, c, k: p.checkpoint_config.set_checkpointing_mode(
        _member(CheckpointingMode, c, k)
    ),
    f"{_CHECKPOINTING}timeout": _timeout,
    f"{_CHECKPOINTING}min-pause": _min_pause,
    f"{_CHECKPOINTING}max-concurrent-checkpoints": lambda p, c, k: p.checkpoint_config.set_max_concurrent_checkpoints(
        c.get_integer(k, 1)
    ),
    f"{_CHECKPOINTING}tolerable-failed-checkpoints": (
        lambda p, c, k: p.checkpoint_config.set_tolerable_checkpoint_failure_number(c.get_integer(k, 0))
    ),
    f"{_CHECKPOINTING}unaligned.enabled": lambda p, c, k: p.checkpoint_config.enable_unaligned_checkpoints(
        c.get_boolean(k, False)
    ),
    f"{_CHECKPOINTING}aligned-checkpoint-timeout": _aligned_timeout,
    f"{_CHECKPOINTING}externalized-checkpoint-retention": (
        lambda p, c, k: p.checkpoint_config.set_externalized_checkpoint_retention(
            _member(ExternalizedCheckpointRetention, c, k)
        )
    ),
    "execution.state-recovery.claim-mode": lambda p, c, k: p.checkpoint_config.set_recovery_claim_mode(
        _member(RecoveryClaimMode, c, k)
    ),
    "execution.state-recovery.path": _savepoint_path,
    "execution.state-recovery.ignore-unclaimed-state": _non_restored_state,
}
"""What each option sets, by its name."""

_REMOVED: Mapping[str, str] = {
    f"{_CHECKPOINTING}barriers-per-job": "leave it out. Tasks that live (execution.exchange) read epoch after epoch, "
    "and no checkpoint needs a Spark job of its own",
}
"""The options of earlier versions, each with what to do instead."""

_FIXED, _RATE = "restart-strategy.fixed-delay", "restart-strategy.failure-rate"
_EXPONENTIAL = "restart-strategy.exponential-delay"

FAILOVER_OPTIONS = (
    "jobmanager.execution.failover-strategy",
    "restart-strategy",
    "restart-strategy.type",
    f"{_FIXED}.attempts",
    f"{_FIXED}.delay",
    f"{_RATE}.delay",
    f"{_RATE}.failure-rate-interval",
    f"{_RATE}.max-failures-per-interval",
    f"{_EXPONENTIAL}.attempts-before-reset-backoff",
    f"{_EXPONENTIAL}.backoff-multiplier",
    f"{_EXPONENTIAL}.initial-backoff",
    f"{_EXPONENTIAL}.jitter-factor",
    f"{_EXPONENTIAL}.max-backoff",
    f"{_EXPONENTIAL}.reset-backoff-threshold",
)
"""The options that the job's master reads."""
