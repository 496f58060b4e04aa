"""Decides what restarts after a failure, and whether a restart can help (Flink: ``ExecutionFailureHandler``).

A failover strategy says which regions run again and from where; a restart strategy says whether and when
(:mod:`~dagster_flinkpy.common.restart_strategies`). Both are pure functions of what the master knows.

Flink restarts a region's consumers whenever it restarts the region, because a region has one result, and its consumers
may have read some of it. Here a region has a result per epoch, which its consumers read once the region has
acknowledged the epoch. So nobody has read the result of an epoch that failed, and only the region itself runs it again.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart, NoRestart, RestartStrategy, restart_strategy_of
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    ExecutorLostError,
    FencedError,
    PythonWorkerLostError,
    SlotLostError,
    SparkUnavailableError,
    SplitLostError,
    ThrowableType,
)
from dagster_flinkpy.runtime.throwables import throwable_type

__all__ = [
    "ExecutionFailureHandler",
    "FailoverConfig",
    "FailoverStrategy",
    "FailureHandlingResult",
    "RegionFailure",
    "RestartAllStrategy",
    "RestartIndividualStrategy",
    "RestartPipelinedRegionStrategy",
    "cause_rank",
    "failover_strategy_of",
]

_OPTION = "jobmanager.execution.failover-strategy"
_LOST_WORKERS = (PythonWorkerLostError, ExecutorLostError, SlotLostError, SparkUnavailableError)


# --- errors -----------------------------------------------------------------------------------------------------------


def cause_rank(error: BaseException) -> int:
    """Returns a number that is lower for errors that cause others, and higher for their consequences."""
    if isinstance(error, FencedError):
        return 0  # whoever took over may have deleted what others miss
    if isinstance(error, _LOST_WORKERS):
        return 1  # tasks downstream of a lost worker miss its output
    # A missing barrier, a missing acknowledgement and a canceled Spark job follow from an error elsewhere.
    return 3 if isinstance(error, CheckpointError) else 2


# --- who restarts -----------------------------------------------------------------------------------------------------


BlockingEdges = Mapping[str, tuple[int, int]]
"""The producer and the consumer of each blocking edge, by the edge's uid (Flink: ``SchedulingTopology``)."""


@dataclass(frozen=True)
class RegionFailure:
    """The failure of a region, and what the master knows about the epochs of all regions.

    An epoch is identified by its checkpoint.
    """

    region: int
    """The region that failed."""
    epoch: int
    """The epoch of its Spark job."""
    begun: Mapping[str, int]
    """The last epoch of each blocking edge that its consumer has begun to read. Edges that nobody reads are missing."""
    lost: Mapping[str, Iterable[int]] = field(default_factory=dict)
    """The epochs whose segments are gone, by the uid of their blocking edge."""


class FailoverStrategy(ABC):
    """A rule that decides which regions restart (Flink: ``FailoverStrategy``); immutable."""

    retries_tasks: ClassVar[bool] = False
    """Whether Spark runs a single task again whose function raised, before the region counts as failed."""

    @abstractmethod
    def plan(self, edges: BlockingEdges, failure: RegionFailure) -> Mapping[int, int]:
        """Returns the first epoch that each region runs again; nothing if all go back to the last checkpoint."""


class RestartAllStrategy(FailoverStrategy):
    """All regions go back to the last completed checkpoint (Flink: ``RestartAllFailoverStrategy``)."""

    def plan(self, edges: BlockingEdges, failure: RegionFailure) -> Mapping[int, int]:
        return {}


class RestartPipelinedRegionStrategy(FailoverStrategy):
    """Restarts the region that failed, and others as necessary (Flink: ``RestartPipelinedRegionFailoverStrategy``).

    1. The region that failed runs its epoch again.
    2. If it needs a segment that is gone, the producer runs again from the epoch of that segment on. So does the
       producer of a lost segment that this producer needs, and so on.
    3. A region that has begun to read what a producer writes anew runs again from the same epoch.
    """

    def plan(self, edges: BlockingEdges, failure: RegionFailure) -> Mapping[int, int]:
        epochs: dict[int, int] = {}
        to_visit = deque([(failure.region, failure.epoch)])
        while to_visit:
            region, epoch = to_visit.popleft()
            if epochs.get(region, epoch + 1) <= epoch:
                continue
            epochs[region] = epoch
            for uid, (producer, consumer) in edges.items():
                # What barriers have overtaken is read in a later epoch than that in which it was written.
                needed = [lost for lost in failure.lost.get(uid, ()) if lost >= epoch or region == failure.region]
                if consumer == region and needed:
                    to_visit.append((producer, min(needed)))
                if producer == region and failure.begun.get(uid, epoch - 1) >= epoch:
                    to_visit.append((consumer, epoch))
        return epochs


class RestartIndividualStrategy(RestartPipelinedRegionStrategy):
    """Spark runs a task again whose function or source raised; if that does not help, its region restarts.

    Flink: ``RestartIndividualStrategy``. Spark tries a task ``spark.task.maxFailures`` times, without delay.
    """

    retries_tasks = True


_STRATEGIES: Mapping[str, type[FailoverStrategy]] = {
    "full": RestartAllStrategy,
    "full-local": RestartAllStrategy,  # Flink: LocalRestartAllStrategy, whose tasks prefer where they ran
    "region": RestartPipelinedRegionStrategy,
    "individual": RestartIndividualStrategy,
}


def failover_strategy_of(configuration: Configuration) -> FailoverStrategy:
    """Returns the strategy that a program sets with ``jobmanager.execution.failover-strategy``. Default: ``region``.

    Raises:
        ConfigurationError: There is no such strategy.
    """
    name = configuration.get_string(_OPTION, "region").lower()
    if name not in _STRATEGIES:
        raise ConfigurationError(f"{_OPTION} is {name!r}; write {', '.join(map(repr, _STRATEGIES))}")
    if name == "full-local":
        no_effect(f"option {_OPTION!r} = {name!r}", "Spark decides where tasks run, so it is the same as 'full'")
    return _STRATEGIES[name]()


@dataclass(frozen=True)
class FailoverConfig:
    """What happens inside a run after a failure."""

    restart: RestartStrategy = field(default_factory=NoRestart)
    """Whether and when to restart. Default: a failure ends the attempt."""
    failover: FailoverStrategy = field(default_factory=RestartPipelinedRegionStrategy)
    """What restarts. Default: the region that failed."""
    only_lost_workers: bool = False
    """Whether only the loss of a Python worker, of an executor or of Spark leads to a restart. Default: any failure
    that a restart may mend does."""

    @staticmethod
    def of_script(options: Configuration, *, checkpointing: bool) -> FailoverConfig:
        """Returns what a program sets that runs by itself, with Flink's defaults.

        Args:
            options: The options of the program.
            checkpointing: Whether the program sets a checkpoint interval. If so, the default is exponential delay.

        Raises:
            ConfigurationError: An option is wrong.
        """
        return FailoverConfig(restart_strategy_of(options, checkpointing=checkpointing), failover_strategy_of(options))

    @staticmethod
    def of_scheduled_run(options: Configuration) -> FailoverConfig:
        """Returns what a program sets whose runs an orchestrator starts.

        Flink's default would try a function that always raises again for ever, and the run would never fail. So unless
        the program sets a strategy, only lost workers and executors lead to a restart, once in a row: Spark has tried
        the task several times by then. For other failures there are the retries of the orchestrator and the restart
        sensor.

        Raises:
            ConfigurationError: An option is wrong.
        """
        failover = failover_strategy_of(options)
        if any(key.startswith("restart-strategy") for key in options.key_set()):
            return FailoverConfig(restart_strategy_of(options, checkpointing=True), failover)
        return FailoverConfig(FixedDelayRestart(), failover, only_lost_workers=True)


# --- what to do -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailureHandlingResult:
    """What to do about a failure (Flink: ``FailureHandlingResult``)."""

    error: BaseException
    """The failure."""
    plan: Mapping[int, int] | None
    """The first epoch that each region runs again. Empty: all go back to the last completed checkpoint. None: the job
    fails for good."""
    at_ms: int
    """The time of the restart, in milliseconds since 1970."""
    reason: str
    """The number of the restart, or why there is none, for people."""
    gave_up: bool = False
    """Whether the restart strategy that the program sets allows no more restarts."""


class ExecutionFailureHandler:
    """Applies the failover strategy and the restart strategy of a job to its failures."""

    def __init__(self, edges: BlockingEdges, config: FailoverConfig, seed: str = "") -> None:
        self._edges, self._config, self._seed = edges, config, seed
        self._failures_ms: list[int] = []
        self._failed_epoch = 0
        """The last epoch that has failed in a region."""

    def handle(self, error: BaseException, failure: RegionFailure | None, now_ms: int) -> FailureHandlingResult:
        """Decides about a failure of a region, or of the job as a whole if there is none."""
        if throwable_type(error) is not ThrowableType.RECOVERABLE_ERROR:
            return FailureHandlingResult(error, None, now_ms, f"no restart mends a {type(error).__name__}")
        if self._config.only_lost_workers and not isinstance(error, _LOST_WORKERS):
            return FailureHandlingResult(error, None, now_ms, "the program sets no restart strategy")
        self._failures_ms.append(now_ms)
        self._failed_epoch = max(self._failed_epoch, 0 if failure is None else failure.epoch)
        # The same random numbers for the same failures, because a strategy goes through all of them each time.
        decision = self._config.restart.decide(self._failures_ms, random=random.Random(self._seed).random)
        if not decision.restart:
            gave_up = not self._config.only_lost_workers and not isinstance(self._config.restart, NoRestart)
            return FailureHandlingResult(error, None, now_ms, decision.reason, gave_up)
        plan: Mapping[int, int] = {}
        if failure is not None and not isinstance(error, SplitLostError):  # a region reads the same splits again
            plan = self._config.failover.plan(self._edges, failure)
        return FailureHandlingResult(error, plan, decision.at_ms, decision.reason)

    def succeeded(self, checkpoint_id: int) -> None:
        """Notes that a checkpoint is complete, which ends a series of failures for strategies that count in a row.

        An acknowledged epoch does not: what the next region reads or what the checkpoint names may fail each time. Nor
        does a checkpoint from before the epoch that has failed.
        """
        if self._config.restart.success_ends_series and checkpoint_id >= self._failed_epoch:
            self._failures_ms.clear()
