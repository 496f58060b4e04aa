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
Read = Callable[[Configuration, str], Any]
"""Reads the value of the option with this name."""


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


def _program(attribute: str, read: Read) -> Option:
    """Sets an attribute of the program."""
    return lambda p, c, k: setattr(p, attribute, read(c, k))


def _checkpoints(attribute: str, read: Read) -> Option:
    """Sets a checkpoint setting that needs no check."""
    return lambda p, c, k: setattr(p.checkpoint_config, attribute, read(c, k))


def _exchange(attribute: str, read: Read) -> Option:
    """Sets how tasks exchange records."""
    return lambda p, c, k: setattr(p.config, "exchange", replace(p.config.exchange, **{attribute: read(c, k)}))


def _runtime_mode(program: StreamProgram[Any], configuration: Configuration, name: str) -> None:
    program.set_runtime_mode(_member(RuntimeExecutionMode)(configuration, name), stacklevel=6)


def _text(configuration: Configuration, name: str) -> str:
    return configuration.get_string(name, "")


def _flag(configuration: Configuration, name: str) -> bool:
    return configuration.get_boolean(name, False)


def _number(configuration: Configuration, name: str) -> int:
    return configuration.get_integer(name, 1)


def _count(what: str) -> Read:
    """Returns what reads a number of subtasks or key groups."""

    def read(configuration: Configuration, name: str) -> int:
        number = configuration.get_integer(name, 1)
        check_whole_number(what, number)
        return number

    return read


def _duration(configuration: Configuration, name: str) -> timedelta:
    return parse_duration(_text(configuration, name), name)


def _member(kind: type[E]) -> Callable[[Configuration, str], E]:
    """Returns what reads the enum member that an option names, in upper or lower case, with ``-`` or ``_``."""

    def read(configuration: Configuration, option: str) -> E:
        value = _text(configuration, option)
        try:
            return kind[value.strip().upper().replace("-", "_")]
        except KeyError:
            known = ", ".join(member.name.lower() for member in kind)
            hint = (
                "; columnar, the default, has state of any size on disk, as rocksdb has" if value == "rocksdb" else ""
            )
            raise ConfigurationError(f"option {option!r} is {value!r}, and must be one of: {known}{hint}") from None

    return read


_CHECKPOINTING = "execution.checkpointing."

OPTIONS: Mapping[str, Option] = {
    "parallelism.default": _program("parallelism", _count("parallelism")),
    "pipeline.max-parallelism": _program("max_parallelism", _count("max_parallelism")),
    "pipeline.name": _program("job_name", _text),
    "pipeline.global-job-parameters": lambda p, c, k: p.config.set_global_job_parameters(parse_map(_text(c, k), k)),
    "pipeline.strict": lambda p, c, k: p.config.set_strict(_flag(c, k)),
    "metrics.latency.interval": lambda p, c, k: p.config.set_latency_tracking_interval(
        round(_duration(c, k) / timedelta(milliseconds=1))
    ),
    "execution.require-all-slots": lambda p, c, k: p.config.set_require_all_slots(_flag(c, k)),
    "execution.exchange": _exchange("mode", _member(ExchangeMode)),
    "execution.buffer-timeout.interval": _exchange("buffer_timeout", _duration),
    "slot.request.timeout": _exchange("slot_request_timeout", _duration),
    "taskmanager.numberOfTaskSlots": _exchange("task_slots", _number),
    "heartbeat.interval": _exchange("heartbeat_interval", _duration),
    "heartbeat.timeout": _exchange("heartbeat_timeout", _duration),
    "security.ssl.internal.enabled": _exchange("tls", _flag),
    "execution.runtime-mode": _runtime_mode,
    "execution.local": _program("local", _flag),
    "table.exec.mini-batch.enabled": _program("mini_batch", _flag),
    "state.backend.type": _checkpoints("state_backend", _member(StateBackendType)),
    "taskmanager.memory.managed.size": _checkpoints("managed_memory", lambda c, k: parse_memory_size(_text(c, k), k)),
    f"{_CHECKPOINTING}interval": _checkpoints("interval", _duration),
    f"{_CHECKPOINTING}dir": lambda p, c, k: p.checkpoint_config.set_checkpoint_storage_dir(_text(c, k)),
    f"{_CHECKPOINTING}mode": _checkpoints("mode", _member(CheckpointingMode)),
    f"{_CHECKPOINTING}timeout": _checkpoints("timeout", _duration),
    f"{_CHECKPOINTING}min-pause": _checkpoints("min_pause", _duration),
    f"{_CHECKPOINTING}max-concurrent-checkpoints": _checkpoints("max_concurrent", _number),
    f"{_CHECKPOINTING}tolerable-failed-checkpoints": (
        lambda p, c, k: p.checkpoint_config.set_tolerable_checkpoint_failure_number(c.get_integer(k, 0))
    ),
    f"{_CHECKPOINTING}unaligned.enabled": _checkpoints("unaligned", _flag),
    f"{_CHECKPOINTING}aligned-checkpoint-timeout": _checkpoints("aligned_timeout", _duration),
    f"{_CHECKPOINTING}externalized-checkpoint-retention": _checkpoints(
        "retention", _member(ExternalizedCheckpointRetention)
    ),
    "execution.state-recovery.claim-mode": _checkpoints("claim_mode", _member(RecoveryClaimMode)),
    "execution.state-recovery.path": _program("savepoint_path", _text),
    "execution.state-recovery.ignore-unclaimed-state": _program(
        "allow_non_restored_state", lambda c, k: non_restored_state_of(_text(c, k))
    ),
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
