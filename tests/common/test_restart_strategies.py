"""Restart strategies behave like Flink 2.3's ``RestartBackoffTimeStrategy`` classes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
    restart_strategy_of,
)
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.datastream.program.program_options import FAILOVER_OPTIONS
from dagster_flinkpy.errors import ConfigurationError, NoEffectWarning

SECOND = 1000
HOUR = 3_600_000


def middle() -> float:
    return 0.5


def restarts(strategy: RestartStrategy, *failures_ms: int) -> bool:
    return strategy.decide(failures_ms, random=middle).restart


def wait(strategy: RestartStrategy, *failures_ms: int) -> int:
    return strategy.decide(failures_ms, random=middle).at_ms - failures_ms[-1]


def test_none_never_restarts() -> None:
    assert not restarts(NoRestart(), 5)


def test_fixed_delay_restarts_so_many_times() -> None:
    strategy = FixedDelayRestart(2, timedelta(seconds=3))
    assert [restarts(strategy, *range(n)) for n in (1, 2, 3)] == [True, True, False]
    assert wait(strategy, 10, 20) == 3 * SECOND


def test_fixed_delay_without_attempts_is_none() -> None:
    assert not restarts(FixedDelayRestart(0), 1)


def test_failure_rate_counts_the_failures_of_an_interval() -> None:
    strategy = FailureRateRestart(2, timedelta(milliseconds=100), timedelta(milliseconds=7))
    assert restarts(strategy, 0)
    assert restarts(strategy, 0, 1)
    assert not restarts(strategy, 0, 1, 100), "the third failure, 100 ms after the first: not more than the interval"
    assert restarts(strategy, 0, 1, 101)
    assert not restarts(strategy, 0, 1, 101, 101)
    assert wait(strategy, 0) == 7


def test_exponential_delay_grows_to_its_limit() -> None:
    strategy = ExponentialDelayRestart(timedelta(milliseconds=4), timedelta(milliseconds=30), 2.0, jitter_factor=0.0)
    failures: list[int] = []
    waits = []
    now = 0
    for _ in range(6):
        failures.append(now)
        waits.append(wait(strategy, *failures))
        now += waits[-1] + 1
    assert waits == [4, 8, 16, 30, 30, 30]


def test_exponential_delay_forgets_after_running_well() -> None:
    strategy = ExponentialDelayRestart(jitter_factor=0.0)
    assert wait(strategy, 0) == SECOND
    assert wait(strategy, 0, 5 * SECOND) == 1500
    restart_at = 5 * SECOND + 1500
    assert wait(strategy, 0, 5 * SECOND, restart_at + HOUR - 1) == 2250
    assert wait(strategy, 0, 5 * SECOND, restart_at + HOUR) == SECOND


def test_exponential_delay_takes_failures_before_the_restart_for_one() -> None:
    strategy = ExponentialDelayRestart(jitter_factor=0.0)
    decision = strategy.decide([0, 10, SECOND], random=middle)
    assert (decision.at_ms, decision.attempt) == (SECOND, 1)
    assert strategy.decide([0, 10, SECOND + 1], random=middle).attempt == 2


def test_exponential_delay_has_a_limit_of_attempts_until_it_resets() -> None:
    strategy = ExponentialDelayRestart(jitter_factor=0.0, attempts_before_reset_backoff=1)
    assert restarts(strategy, 0)
    assert not restarts(strategy, 0, 2 * SECOND)
    assert restarts(strategy, 0, SECOND + HOUR)


def test_jitter_does_not_shorten_the_first_wait() -> None:
    strategy = ExponentialDelayRestart()
    assert strategy.decide([0], random=lambda: 0.0).at_ms == SECOND
    assert strategy.decide([0], random=lambda: 1.0).at_ms == 1100
    assert strategy.decide([0, 2 * SECOND], random=lambda: 0.0).at_ms - 2 * SECOND == 1350


@given(
    gaps=st.lists(st.integers(0, 2 * HOUR), min_size=1, max_size=300),
    multiplier=st.floats(1.0001, 100),
    jitter=st.floats(0, 1),
    share=st.floats(0, 1),
)
def test_a_wait_stays_within_its_limits(gaps: list[int], multiplier: float, jitter: float, share: float) -> None:
    strategy = ExponentialDelayRestart(backoff_multiplier=multiplier, jitter_factor=jitter)
    failures = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    decision = strategy.decide(failures, random=lambda: share)
    assert decision.restart
    assert 1 <= decision.attempt <= len(failures)
    started = [t for t in failures if SECOND <= decision.at_ms - t <= 60 * SECOND]
    assert started, "it is a wait after one of the failures, of 1 s to 1 min"


@pytest.mark.parametrize(
    ("options", "checkpointing", "expected"),
    [
        ({}, False, NoRestart()),
        ({}, True, ExponentialDelayRestart()),
        ({"restart-strategy.type": "off"}, True, NoRestart()),
        ({"restart-strategy": "fixeddelay"}, False, FixedDelayRestart(1, timedelta(seconds=1))),
        (
            {
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": "3",
                "restart-strategy.fixed-delay.delay": "10 s",
            },
            True,
            FixedDelayRestart(3, timedelta(seconds=10)),
        ),
        (
            {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": "2",
                "restart-strategy.failure-rate.failure-rate-interval": "5 min",
                "restart-strategy.failure-rate.delay": "2 s",
            },
            True,
            FailureRateRestart(2, timedelta(minutes=5), timedelta(seconds=2)),
        ),
        (
            {
                "restart-strategy.type": "exponentialdelay",
                "restart-strategy.exponential-delay.backoff-multiplier": "2",
                "restart-strategy.exponential-delay.attempts-before-reset-backoff": "7",
            },
            False,
            ExponentialDelayRestart(backoff_multiplier=2.0, attempts_before_reset_backoff=7),
        ),
    ],
)
def test_options_name_a_strategy(options: dict[str, str], checkpointing: bool, expected: RestartStrategy) -> None:
    assert restart_strategy_of(Configuration.from_dict(options), checkpointing=checkpointing) == expected


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"restart-strategy.type": "sometimes"}, "sometimes"),
        ({"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "-1"}, "attempts"),
        ({"restart-strategy.type": "failure-rate", "restart-strategy.failure-rate.delay": "soon"}, "soon"),
        (
            {
                "restart-strategy.type": "exponential-delay",
                "restart-strategy.exponential-delay.initial-backoff": "2 min",
            },
            "longer than max-backoff",
        ),
    ],
)
def test_bad_options_are_said(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        restart_strategy_of(Configuration.from_dict(options), checkpointing=True)


class _Read(Configuration):
    """Remembers which options are asked for."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.set_string("restart-strategy.type", kind)
        self.asked: set[str] = set()

    def contains_key(self, key: str) -> bool:
        self.asked.add(key)
        return super().contains_key(key)

    def get_string(self, key: str, default_value: str) -> str:
        self.asked.add(key)
        return super().get_string(key, default_value)

    def get_integer(self, key: str, default_value: int) -> int:
        self.asked.add(key)
        return default_value

    def get_float(self, key: str, default_value: float) -> float:
        self.asked.add(key)
        return default_value


def test_a_program_may_set_exactly_the_options_that_are_read() -> None:
    asked = {"jobmanager.execution.failover-strategy"}
    for kind in ("none", "fixed-delay", "failure-rate", "exponential-delay"):
        options = _Read(kind)
        restart_strategy_of(options, checkpointing=True)
        asked |= options.asked
    assert asked == set(FAILOVER_OPTIONS)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("restart-strategy.fixed-delay.atempts", "restart-strategy.fixed-delay.attempts"),
        ("restart-strategy.typ", "restart-strategy.type"),
        ("jobmanager.execution.failover-stratgy", "jobmanager.execution.failover-strategy"),
        ("execution.checkpointing.intervall", "execution.checkpointing.interval"),
    ],
)
def test_a_misspelled_option_is_pointed_out(name: str, near: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.warns(NoEffectWarning, match=f"option '{name}' has no effect.*did you mean '{near}'"):
        env.configure(Configuration().set_string(name, "3"))
