"""Decides whether and when a failed job is restarted (Flink: ``RestartBackoffTimeStrategy``).

A strategy is a pure function of the history of failures and a random number. So the same rules serve a loop that waits
and a sensor that runs every 30 seconds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar

from dagster_flinkpy.common.arguments import check_settings
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.common.configuration import Configuration, parse_duration
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "ExponentialDelayRestart",
    "FailureRateRestart",
    "FixedDelayRestart",
    "NoRestart",
    "RestartDecision",
    "RestartStrategy",
    "restart_strategy_of",
]

_PREFIX = "restart-strategy"


@dataclass(frozen=True)
class RestartDecision:
    """What a strategy decides after a failure."""

    restart: bool
    """Whether the job is restarted."""
    at_ms: int
    """The earliest time of the restart, in milliseconds since 1970."""
    attempt: int
    """Number of the restart, counted from 1 and again from 1 when the strategy forgets failures."""
    reason: str
    """The reason, for the log and the UI."""


class RestartStrategy(ABC):
    """A rule that decides about restarts; immutable."""

    success_ends_series: ClassVar[bool] = False
    """Whether a successful run resets the count of failures."""

    @abstractmethod
    def decide(self, failures_ms: Sequence[int], *, random: Callable[[], float]) -> RestartDecision:
        """Decides whether and when the job restarts after the last of its failures.

        Args:
            failures_ms: The times of the failures, at least one, oldest first, in milliseconds since 1970.
            random: Returns a number from 0 to 1, for the jitter. For a repeatable decision it must return the same
                numbers for the same history.
        """


@dataclass(frozen=True)
class NoRestart(RestartStrategy):
    """A failure is final (Flink: ``NoRestartBackoffTimeStrategy``)."""

    def decide(self, failures_ms: Sequence[int], *, random: Callable[[], float]) -> RestartDecision:
        return RestartDecision(False, failures_ms[-1], 0, "the restart strategy is 'none'")


@dataclass(frozen=True)
class FixedDelayRestart(RestartStrategy):
    """A fixed number of restarts in a row (Flink: ``FixedDelayRestartBackoffTimeStrategy``, which counts all restarts).

    Example:
        >>> strategy = FixedDelayRestart(attempts=2, delay=timedelta(seconds=5))
        >>> strategy.decide([1_000], random=lambda: 0.5)
        RestartDecision(restart=True, at_ms=6000, attempt=1, reason='restart 1 of 2 after 5 s')
        >>> strategy.decide([1_000, 7_000, 13_000], random=lambda: 0.5).restart
        False
    """

    success_ends_series: ClassVar[bool] = True
    attempts: int = 1
    """The maximum number of restarts; at least 0. Default: 1."""
    delay: timedelta = timedelta(seconds=1)
    """The time from a failure to the restart. Default: 1 s."""

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ConfigurationError: A value is out of range.
        """
        check_settings(self)
        _require(self.attempts >= 0, f"fixed-delay attempts must be at least 0, not {self.attempts}")
        _require(self.delay >= timedelta(0), f"fixed-delay delay must not be negative, not {self.delay}")

    def decide(self, failures_ms: Sequence[int], *, random: Callable[[], float]) -> RestartDecision:
        attempt = len(failures_ms)
        reason = f"restart {attempt} of {self.attempts} after {_span(self.delay)}"
        if attempt > self.attempts:
            reason = f"all {self.attempts} restarts of the fixed-delay strategy are used up"
        return RestartDecision(attempt <= self.attempts, failures_ms[-1] + to_millis(self.delay), attempt, reason)


@dataclass(frozen=True)
class FailureRateRestart(RestartStrategy):
    """Restarts unless failures are too frequent (Flink: ``FailureRateRestartBackoffTimeStrategy``)."""

    max_failures_per_interval: int = 1
    """The maximum number of failures in an interval; at least 1. Default: 1."""
    interval: timedelta = timedelta(minutes=1)
    """The interval in which failures are counted. Default: 1 min."""
    delay: timedelta = timedelta(seconds=1)
    """The time from a failure to the restart. Default: 1 s."""

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ConfigurationError: A value is out of range.
        """
        check_settings(self)
        most = self.max_failures_per_interval
        _require(most > 0, f"failure-rate max-failures-per-interval must be at least 1, not {most}")
        _require(self.interval > timedelta(0), f"failure-rate interval must be positive, not {self.interval}")
        _require(self.delay >= timedelta(0), f"failure-rate delay must not be negative, not {self.delay}")

    def decide(self, failures_ms: Sequence[int], *, random: Callable[[], float]) -> RestartDecision:
        now, most = failures_ms[-1], self.max_failures_per_interval
        # Flink remembers one failure more than it allows, and gives up if the oldest of them is in the interval.
        exceeded = len(failures_ms) > most and now - failures_ms[-most - 1] <= to_millis(self.interval)
        allowed = f"{most} in {_span(self.interval)}"
        if exceeded:
            reason = f"more failures than the failure-rate strategy allows: {allowed}"
        else:
            reason = f"restart {len(failures_ms)} after {_span(self.delay)}; allowed: {allowed}"
        return RestartDecision(not exceeded, now + to_millis(self.delay), len(failures_ms), reason)


@dataclass(frozen=True)
class ExponentialDelayRestart(RestartStrategy):
    """Waits longer after each failure (Flink: ``ExponentialDelayRestartBackoffTimeStrategy``, FLIP-364)."""

    initial_backoff: timedelta = timedelta(seconds=1)
    """The wait before the first restart; at least 1 ms. Default: 1 s."""
    max_backoff: timedelta = timedelta(minutes=1)
    """The longest wait. Default: 1 min."""
    backoff_multiplier: float = 1.5
    """The factor between one wait and the next; above 1. Default: 1.5."""
    jitter_factor: float = 0.1
    """The maximum share by which a wait is made longer or shorter at random; 0 to 1. Default: 0.1."""
    reset_backoff_threshold: timedelta = timedelta(hours=1)
    """If the job has run for this long, the next failure counts as the first. Default: 1 h."""
    attempts_before_reset_backoff: int | None = None
    """The maximum number of restarts until then. Default: no limit."""

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ConfigurationError: A value is out of range.
        """
        check_settings(self)
        least, name = timedelta(milliseconds=1), "exponential-delay"
        _require(self.initial_backoff >= least, f"{name} initial-backoff must be at least 1 ms: {self.initial_backoff}")
        _require(
            self.initial_backoff <= self.max_backoff,
            f"{name} initial-backoff {self.initial_backoff} is longer than max-backoff {self.max_backoff}",
        )
        _require(self.backoff_multiplier > 1, f"{name} backoff-multiplier must be above 1: {self.backoff_multiplier}")
        _require(0 <= self.jitter_factor <= 1, f"{name} jitter-factor must be from 0 to 1: {self.jitter_factor}")
        _require(
            self.reset_backoff_threshold >= least,
            f"{name} reset-backoff-threshold must be at least 1 ms: {self.reset_backoff_threshold}",
        )
        most = self.attempts_before_reset_backoff
        _require(most is None or most >= 1, f"{name} attempts-before-reset-backoff must be at least 1: {most}")

    def decide(self, failures_ms: Sequence[int], *, random: Callable[[], float]) -> RestartDecision:
        attempt, restart_at = 0, None
        for now in failures_ms:
            if restart_at is not None and now <= restart_at:
                continue  # before the restart, so it is the same failure: several tasks may fail together
            if restart_at is None or now - restart_at >= to_millis(self.reset_backoff_threshold):
                attempt = 0
            restart_at = now + self._backoff_ms(attempt, random)
            attempt += 1
        assert restart_at is not None  # there is a failure
        most = self.attempts_before_reset_backoff
        wait = _span(timedelta(milliseconds=max(restart_at - failures_ms[-1], 0)))
        if most is not None and attempt > most:
            return RestartDecision(False, restart_at, attempt, f"all {most} restarts before a reset are used up")
        return RestartDecision(True, restart_at, attempt, f"restart {attempt} after {wait}")

    def _backoff_ms(self, attempt: int, random: Callable[[], float]) -> int:
        least, most = to_millis(self.initial_backoff), to_millis(self.max_backoff)
        # A power that is too large for a float is above any limit.
        exponent = min(attempt, 1000 / math.log2(self.backoff_multiplier))
        backoff = int(min(least * self.backoff_multiplier**exponent, 2.0**62))
        jitter = int(backoff * self.jitter_factor)
        offset = min(int(random() * (2 * jitter + 1)), 2 * jitter) - jitter
        return max(least, min(backoff + offset, most))


def restart_strategy_of(options: Configuration, *, checkpointing: bool) -> RestartStrategy:
    """Returns the strategy that the options of a program set: Flink's ``restart-strategy.type`` and its options.

    Args:
        options: The options of the program.
        checkpointing: Whether the program takes checkpoints. If no option is set, this selects exponential delay, or
            else no restart.

    Raises:
        ConfigurationError: The type is unknown, or an option is out of range.
    """
    default = "exponential-delay" if checkpointing else "none"
    kind = options.get_string(f"{_PREFIX}.type", options.get_string(_PREFIX, default)).lower()
    known = _TYPES.get(kind.replace("-", "").removesuffix("delay").replace("failurerate", "rate"))
    if known is None:
        raise ConfigurationError(
            f"{_PREFIX}.type is {kind!r}; write 'none', 'fixed-delay', 'failure-rate' or 'exponential-delay'"
        )
    name, strategy = known
    given: dict[str, Any] = {}
    for field in fields(strategy):
        key = f"{_PREFIX}.{name}.{_OPTIONS.get(field.name) or field.name.replace('_', '-')}"
        if options.contains_key(key):
            given[field.name] = _read(options, key, field.default)
    made: RestartStrategy = strategy(**given)
    return made


# Flink accepts each name with and without dashes, and 'off' and 'disable' for 'none'.
_TYPES: Mapping[str, tuple[str, Any]] = {
    "none": ("none", NoRestart),
    "off": ("none", NoRestart),
    "disable": ("none", NoRestart),
    "fixed": ("fixed-delay", FixedDelayRestart),
    "rate": ("failure-rate", FailureRateRestart),
    "exponential": ("exponential-delay", ExponentialDelayRestart),
}
_OPTIONS = {"interval": "failure-rate-interval"}
"""The options that do not have the name of their field."""


def _read(options: Configuration, key: str, default: Any) -> Any:
    if isinstance(default, timedelta):
        return parse_duration(options.get_string(key, ""), key)
    return options.get_float(key, default) if isinstance(default, float) else options.get_integer(key, 1)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigurationError(message)


def _span(duration: timedelta) -> str:
    milliseconds = to_millis(duration)
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:g} s"
