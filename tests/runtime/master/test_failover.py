"""Failover strategies restart what Flink's restart.

The facts are those of ``RestartPipelinedRegionFailoverStrategyTest`` and ``ExecutionFailureHandlerTest``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common import no_effect
from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.restart_strategies import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
)
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    CorruptStateError,
    ExecutorLostError,
    FencedError,
    JobGraphError,
    NoEffectWarning,
    PythonWorkerLostError,
    SourceReadError,
    SparkUnavailableError,
    SplitLostError,
    StorageError,
    UserFunctionError,
)
from dagster_flinkpy.runtime.master.failover import (
    ExecutionFailureHandler,
    FailoverConfig,
    FailoverStrategy,
    RegionFailure,
    RestartAllStrategy,
    RestartIndividualStrategy,
    RestartPipelinedRegionStrategy,
    cause_rank,
    failover_strategy_of,
)

# Two producers, each read by two consumers, and beside them one producer with one consumer.
CROSSED = {"14": (0, 3), "15": (0, 4), "24": (1, 3), "25": (1, 4), "36": (2, 5)}
CHAIN = {"ab": (0, 1), "bc": (1, 2)}
JOIN = {"rp1": (0, 2), "rp2": (1, 2)}
ALL_BEGUN = dict.fromkeys(range(6), 1)


def restarts(
    topology: Mapping[str, tuple[int, int]],
    region: int,
    lost: dict[str, list[int]] | None = None,
    *,
    epoch: int = 1,
    begun: dict[int, int] = ALL_BEGUN,
) -> dict[int, int]:
    read = {uid: begun[consumer] for uid, (_, consumer) in topology.items()}
    failure = RegionFailure(region, epoch, read, lost or {})
    return dict(RestartPipelinedRegionStrategy().plan(topology, failure))


def regions(*args: object, **others: object) -> set[int]:
    return set(restarts(*args, **others))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failed", "restarted"), [(0, {0, 3, 4}), (1, {1, 3, 4}), (2, {2, 5}), (3, {3}), (4, {4}), (5, {5})]
)
def test_a_region_restarts_with_those_that_have_read_its_result(failed: int, restarted: set[int]) -> None:
    assert regions(CROSSED, failed) == restarted


@pytest.mark.parametrize(
    ("failed", "lost", "restarted"),
    [
        (3, "14", {0, 3, 4}),
        (3, "24", {1, 3, 4}),
        (4, "15", {0, 3, 4}),
        (4, "25", {1, 3, 4}),
        (5, "36", {2, 5}),
    ],
)
def test_the_producer_of_a_lost_segment_restarts(failed: int, lost: str, restarted: set[int]) -> None:
    assert regions(CROSSED, failed, {lost: [1]}) == restarted


@pytest.mark.parametrize(
    ("lost", "restarted"),
    [
        ([], [{0, 2}, {1, 2}, {2}]),
        (["rp1"], [{0, 2}, {0, 1, 2}, {0, 2}]),
        (["rp2"], [{0, 1, 2}, {1, 2}, {1, 2}]),
        (["rp1", "rp2"], [{0, 1, 2}, {0, 1, 2}, {0, 1, 2}]),
    ],
)
def test_every_combination_of_lost_results(lost: list[str], restarted: list[set[int]]) -> None:
    found = [regions(JOIN, failed, {uid: [1] for uid in lost}) for failed in range(3)]
    assert found == restarted


def test_a_chain_of_regions() -> None:
    assert regions(CHAIN, 1) == {1, 2}
    assert regions(CHAIN, 1, {"ab": [1]}) == {0, 1, 2}


def test_nobody_has_read_the_result_of_an_epoch_that_failed() -> None:
    """What Flink does not have: region 0 is an epoch ahead, and fails in it."""
    assert restarts(CHAIN, 0, epoch=8, begun={0: 8, 1: 7, 2: 6}) == {0: 8}
    assert restarts(CHAIN, 1, epoch=7, begun={0: 8, 1: 7, 2: 6}) == {1: 7}


def test_a_producer_writes_again_from_the_lost_segment_on() -> None:
    assert restarts(CHAIN, 2, {"bc": [6]}, epoch=6, begun={0: 8, 1: 7, 2: 6}) == {1: 6, 2: 6}
    assert restarts(CHAIN, 2, {"bc": [6], "ab": [6, 7]}, epoch=6, begun={0: 8, 1: 7, 2: 6}) == {0: 6, 1: 6, 2: 6}
    assert restarts(CHAIN, 2, {"bc": [5]}, epoch=6, begun={0: 8, 1: 7, 2: 6}) == {1: 5, 2: 5}, "barriers overtake"


@given(st.data())
def test_restarts_are_closed(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)).filter(lambda p: p[0] < p[1])
    edges = data.draw(st.lists(pairs, unique=True, max_size=8)) if size > 1 else []
    topology = {f"{a}-{b}": (a, b) for a, b in edges}
    begun = {region: data.draw(st.integers(0, 5)) for region in range(size)}
    lost = {uid: data.draw(st.lists(st.integers(1, 5), max_size=2)) for uid in topology}
    failed = data.draw(st.integers(0, size - 1))
    epoch = data.draw(st.integers(1, 5))
    plan = restarts(topology, failed, lost, epoch=epoch, begun=begun)
    assert plan[failed] <= epoch
    for uid, (producer, consumer) in topology.items():
        if consumer in plan:
            assert all(plan.get(producer, 9) <= e for e in lost[uid] if e >= plan[consumer]), "all its input is there"
        if producer in plan and begun[consumer] >= plan[producer]:
            assert plan[consumer] <= plan[producer], "nobody keeps what is written anew"
    reached = {failed}
    for _ in range(size):
        reached |= {c for uid, (p, c) in topology.items() if p in reached}
        reached |= {p for uid, (p, c) in topology.items() if c in reached and lost[uid]}
    assert plan.keys() <= reached, "nobody restarts without a reason"


def test_restart_all_goes_back_to_the_last_completed_checkpoint() -> None:
    failure = RegionFailure(0, 1, {})
    assert RestartAllStrategy().plan(CHAIN, failure) == {}
    assert RestartIndividualStrategy().retries_tasks
    assert RestartIndividualStrategy().plan(CHAIN, failure)


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        (None, RestartPipelinedRegionStrategy),
        ("region", RestartPipelinedRegionStrategy),
        ("full", RestartAllStrategy),
        ("individual", RestartIndividualStrategy),
    ],
)
def test_the_option_of_the_program(name: str | None, strategy: type[FailoverStrategy]) -> None:
    options = Configuration()
    if name is not None:
        options.set_string("jobmanager.execution.failover-strategy", name)
    assert type(failover_strategy_of(options)) is strategy


def test_local_restart_all_warns_that_spark_places_tasks() -> None:
    options = Configuration().set_string("jobmanager.execution.failover-strategy", "full-local")
    no_effect._warned_of.clear()
    with pytest.warns(NoEffectWarning, match="Spark decides where tasks run"):
        assert type(failover_strategy_of(options)) is RestartAllStrategy


def test_an_unknown_strategy_is_refused() -> None:
    options = Configuration().set_string("jobmanager.execution.failover-strategy", "none")
    with pytest.raises(ConfigurationError, match="'full', 'full-local', 'region', 'individual'"):
        failover_strategy_of(options)


# --- which errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        (CheckpointError("a barrier is missing"), UserFunctionError("it raised"), 1),
        (UserFunctionError("it raised"), CheckpointError("a barrier is missing"), 0),
        (UserFunctionError("it raised"), SourceReadError("no file"), 0),
        (SourceReadError("no file"), UserFunctionError("it raised"), 0),
        (CheckpointError("the Spark job was canceled"), PythonWorkerLostError("a worker died"), 1),
        (SourceReadError("gone"), ExecutorLostError("an executor died"), 1),
        (StorageError("interrupted"), SparkUnavailableError("the server ended"), 1),
        (CorruptStateError("a file is gone"), FencedError("a newer attempt"), 1),
    ],
)
def test_the_root_cause_is_reported(first: Exception, second: Exception, cause: int) -> None:
    assert min([first, second], key=cause_rank) is (first, second)[cause]


# --- the decision -----------------------------------------------------------------------------------------------------


def handler_of(restart: RestartStrategy, **config: Any) -> ExecutionFailureHandler:
    return ExecutionFailureHandler(CHAIN, FailoverConfig(restart, **config))


def test_a_recoverable_failure_restarts_after_the_delay() -> None:
    handler = handler_of(FixedDelayRestart(1, timedelta(seconds=3)))
    error = UserFunctionError("it raised")
    found = handler.handle(error, RegionFailure(1, 4, {0: 4, 1: 4}), 1000)
    assert found.plan is not None
    assert (dict(found.plan), found.at_ms, found.error) == ({1: 4}, 4000, error)
    found = handler.handle(error, RegionFailure(0, 5, {0: 5, 1: 4}), 9000)
    assert found.plan is None, "the strategy counts the failures of all regions"
    assert found.reason == "all 1 restarts of the fixed-delay strategy are used up"


def test_a_failure_of_the_whole_job_restarts_all() -> None:
    handler = handler_of(FixedDelayRestart(1))
    found = handler.handle(CheckpointError("too many checkpoints failed"), None, 0)
    assert found.plan == {}


def test_a_region_that_has_lost_its_splits_restarts_all() -> None:
    handler = handler_of(FixedDelayRestart(1))
    assert handler.handle(SplitLostError("gone"), RegionFailure(0, 1, {}), 0).plan == {}


def test_what_cannot_be_mended_is_not_tried_and_not_counted() -> None:
    handler = handler_of(FailureRateRestart(1))
    for error in (JobGraphError("x"), CorruptStateError("x"), FencedError("x"), KeyboardInterrupt()):
        assert handler.handle(error, RegionFailure(0, 1, {}), 0).plan is None
    assert handler.handle(StorageError("x"), RegionFailure(0, 1, {}), 0).plan is not None


def test_without_a_restart_strategy_a_failure_is_final() -> None:
    handler = handler_of(NoRestart())
    assert handler.handle(StorageError("x"), RegionFailure(0, 1, {}), 0).plan is None


def test_without_an_option_a_scheduled_run_restarts_only_after_a_lost_worker() -> None:
    config = FailoverConfig.of_scheduled_run(Configuration())
    handler = ExecutionFailureHandler(CHAIN, config)
    found = handler.handle(UserFunctionError("it raised"), RegionFailure(0, 1, {}), 0)
    assert (found.plan, found.reason) == (None, "the program sets no restart strategy")
    lost = PythonWorkerLostError("a worker died"), ExecutorLostError("an executor died")
    plans = [handler.handle(lost[n], RegionFailure(0, 1, {}), n).plan for n in range(2)]
    assert [plan is not None for plan in plans] == [True, False]
    handler.succeeded(1)
    assert handler.handle(lost[1], RegionFailure(0, 2, {}), 2).plan is not None


def test_a_checkpoint_from_before_the_failure_does_not_end_the_series() -> None:
    handler, error = handler_of(FixedDelayRestart(1)), StorageError("x")
    assert handler.handle(error, RegionFailure(0, 2, {}), 0).plan is not None
    handler.succeeded(1)  # it was being completed when epoch 2 failed
    assert handler.handle(error, RegionFailure(0, 2, {}), 10).plan is None


def test_a_complete_checkpoint_ends_a_series_of_failures() -> None:
    handler, error = handler_of(FixedDelayRestart(1)), StorageError("x")
    for now in (0, 10):
        assert handler.handle(error, RegionFailure(0, 1, {}), now).plan is not None
        handler.succeeded(1)
    rated = handler_of(FailureRateRestart(1))
    assert rated.handle(error, RegionFailure(0, 1, {}), 0).plan is not None
    rated.succeeded(1)
    assert rated.handle(error, RegionFailure(0, 1, {}), 1).plan is None, "this strategy counts per interval"


def test_the_strategies_of_a_program() -> None:
    options = Configuration().set_string("restart-strategy.type", "failure-rate")
    options.set_string("jobmanager.execution.failover-strategy", "full")
    for config in (FailoverConfig.of_scheduled_run(options), FailoverConfig.of_script(options, checkpointing=False)):
        assert config == FailoverConfig(FailureRateRestart(), config.failover)
        assert type(config.failover) is RestartAllStrategy
    assert FailoverConfig.of_script(Configuration(), checkpointing=False).restart == NoRestart()
    assert FailoverConfig.of_script(Configuration(), checkpointing=True).restart == ExponentialDelayRestart()
