"""The driver of the simulated job: the library's own, over simulated Spark jobs."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.instructions import Instruction
from dagster_flinkpy.checkpoint.coordinator.messages import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    DeclineCheckpoint,
    Subtask,
)
from dagster_flinkpy.checkpoint.coordinator.stimuli import Acknowledge, Decline, Stimulus, TimerFired
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER, SubtaskState
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.errors import SegmentLostError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.commits.transactions import Transactions
from dagster_flinkpy.runtime.master.epochs.open_epoch import OpenEpoch
from dagster_flinkpy.runtime.master.failover import (
    FailoverConfig,
    RestartAllStrategy,
    RestartPipelinedRegionStrategy,
)
from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.mailbox import Done, Lane, Mailbox, Work
from dagster_flinkpy.runtime.master.regions.region_epoch import Acknowledged
from dagster_flinkpy.runtime.master.regions.region_runner import RegionEnded
from dagster_flinkpy.runtime.master.regions.region_state import RegionState
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from tests.runtime.idle_lease_keeper import IdleLeaseKeeper
from tests.runtime.state_rules import check_state
from tests.simulation.bucket import URL
from tests.simulation.edges import segment_lost
from tests.simulation.epoch_rules import EpochRules
from tests.simulation.live_program import WorldClock, live_program
from tests.simulation.program import (
    JOB,
    Scenario,
    SimulatedLocation,
    here,
    program,
)
from tests.simulation.slots import exchange_options
from tests.simulation.spark_job import SparkJob
from tests.simulation.world import World

__all__ = ["SimulatedAttempt", "SimulatedState", "SimulatedTransactions"]

_TIMEOUT = timedelta(seconds=60)


class _ActorMailbox(Mailbox):
    """A lane with work is an actor of the attempt's process."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self._world, self._name = world, name
        self._inbox: deque[Done | None] = deque()
        self._todo: defaultdict[Lane, deque[Work]] = defaultdict(deque)
        self._at_work: set[Lane] = set()
        self._slow = world.rng.random() < 0.3
        """Whether its lane to the store is slow, so that checkpoints wait for each other."""

    def _submit(self, lane: Lane, work: Work) -> None:
        self._todo[lane].append(work)
        if lane not in self._at_work:
            self._at_work.add(lane)
            process = self._world.current.process
            self._world.spawn(f"{self._name}/{lane}", lambda: self._work_off(lane), process)

    def _work_off(self, lane: Lane) -> None:
        while self._todo[lane]:
            work = self._todo[lane].popleft()
            if self._slow and lane == Lane.STORE:
                self._world.sleep(self._world.rng.choice((0.1, 1, 3)))
            try:
                done = Done(lane, work, work())
            except Exception as error:
                done = Done(lane, work, None, error)
            self._inbox.append(done)
        self._at_work.remove(lane)

    def _take(self, until_ms: int | None) -> Done | None:
        world = self._world
        until = math.inf if until_ms is None else until_ms - world.current.process.skew_ms
        if not world.wait_for(lambda: bool(self._inbox), until):
            return None
        return self._inbox.popleft()

    def wake(self) -> None:
        self._inbox.append(None)


class SimulatedAttempt(JobAttempt):
    """The library's job loop over simulated Spark jobs.

    Args:
        world: The world.
        scenario: How the job is deployed.
        name: Name of its actor.
        width: Parallelism of the program.
        interval: Time between periodic checkpoints, or None for no periodic checkpoints.
        attempt: Further arguments of :class:`JobAttempt`.
    """

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        name: str,
        *,
        width: int,
        interval: timedelta | None = None,
        **attempt: Any,
    ) -> None:
        config = JobConfig(
            JOB,
            SimulatedLocation(URL),
            checkpointing=CoordinatorConfig(
                interval=interval,
                timeout=_TIMEOUT,
                max_concurrent=3,
                num_retained=scenario.num_retained,
                retention=scenario.retention,
                unaligned=scenario.unaligned and world.rng.random() < 0.8,
                aligned_timeout=timedelta(seconds=world.rng.choice((0, 0, 2)) if scenario.unaligned else 0),
                tolerable_failed=world.rng.choice((1, 5)) if world.rng.random() < world.chaos.tolerates else 0,
            ),
            partition_retention=scenario.partition_retention,
            failover=_failover(world),
            cache_dir="/nowhere",
        )
        graph = program(width, scenario.regions)
        if scenario.live:
            config = replace(config, exchange=exchange_options(world))
            shape = {"one_reader": scenario.one_reader, "aligned": scenario.aligned}
            graph = live_program(width, scenario.regions, scenario.source, **shape)
        self._world = world
        self._name = name
        self._live = scenario.live
        super().__init__(graph, config, owner=name, on_progress=world.note, **attempt)

    def _create_mailbox(self) -> Mailbox:
        return _ActorMailbox(self._world, self._name)

    def _create_lease_keeper(self) -> IdleLeaseKeeper:
        return IdleLeaseKeeper(self.config.checkpointing.timeout)

    def _on_spark(self, job: EpochJob, open_epoch: OpenEpoch | None = None) -> Sequence[WireRow]:
        world = self._world
        if self._live:
            world.step(f"tasks read up to checkpoint {job.checkpoint_id}")
            self._deployed.master.state.rules.started(job)
            return super()._on_spark(replace(job, clock=WorldClock()), open_epoch)
        world.step(f"Spark job of checkpoint {job.checkpoint_id}")
        self._deployed.master.state.rules.started(job)
        return SparkJob(
            world,
            job,
            f"{self._name}/{job.checkpoint_id}",
            lambda: self._deployed.regions.sessions[job.region].interrupted,
        ).run()

    @property
    def aborted_open(self) -> bool:
        """Whether nothing failed when it last looked for open uploads."""
        return isinstance(self._transactions, SimulatedTransactions) and self._transactions.aborted_open


class SimulatedTransactions(Transactions):
    """The library's commits and aborts, which also say what they have looked at."""

    aborted_open = False

    def abort_left_open(self) -> None:
        bucket = here().bucket
        bucket.looked_at = bucket.uploads_made
        super().abort_left_open()

    def abort_lingering(self) -> int:
        self.aborted_open = False
        aborted = super().abort_lingering()
        self.aborted_open = True
        return aborted


def _failover(world: World) -> FailoverConfig:
    """Most attempts restart in the run, some of them as a whole."""
    if world.rng.random() > world.chaos.restarts:
        return FailoverConfig()
    delay = timedelta(seconds=world.rng.choice((0, 1, 40, 90)))
    failover = world.rng.choice((RestartPipelinedRegionStrategy(), RestartAllStrategy()))
    return FailoverConfig(FixedDelayRestart(world.rng.choice((1, 3)), delay), failover)


class SimulatedState(JobState):
    """The library's state of a job, to which messages come in any order, and more than were meant for it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._world = here()
        self._strays = False
        self._before: dict[int, dict[Subtask, SubtaskState]] = {}
        """What was acknowledged of the checkpoints so far."""
        self.rules = EpochRules(self.regions, self._world.report)

    @property
    def _token(self) -> int:
        return self.regions[0].planner.fencing_token

    def handle(self, stimulus: Stimulus) -> list[Instruction]:
        if isinstance(stimulus, RegionEnded):
            region, ended = self.regions[stimulus.region], stimulus
            if isinstance(ended.error, SegmentLostError) and not region.canceling:
                segment_lost(ended.error, self._token, region.number, region.restarts)
            if ended.error is None and not region.canceling:
                self.rules.ended(region, ended)
                self._world.bucket.acknowledged |= {
                    f"{JOB}/{EXCHANGE_FOLDER}/{uid}/{segment['key']}"
                    for uid, output in ended.outputs.items()
                    for segment in output.segments
                }
        instructions = super().handle(stimulus)
        check_state(self)
        return instructions

    def _finish(self) -> None:
        metadata = self.chain.current
        super()._finish()
        assert metadata is not None
        self.rules.completed(metadata)

    def _acknowledge(self, region: RegionState, acknowledged: Acknowledged) -> None:
        """Acknowledges in any order, mixed with messages for other checkpoints."""
        rng, chaos, checkpoint_id = self._world.rng, self._world.chaos, acknowledged.checkpoint_id
        self.rules.acknowledged(checkpoint_id, acknowledged.states)
        shuffled = list(acknowledged.states.items())
        rng.shuffle(shuffled)
        self._strays = rng.random() < chaos.stray_messages
        if self._strays:
            self._stray_messages(checkpoint_id, dict(shuffled))
        super()._acknowledge(region, replace(acknowledged, states=dict(shuffled)))
        if self._strays:
            self._late_messages(checkpoint_id, dict(shuffled))
            for earlier in self._before.items():
                if rng.random() < 0.3:
                    self._late_messages(*earlier)
        self._strays = False
        self._before[checkpoint_id] = dict(shuffled)

    def _drive(self, stimulus: Stimulus) -> None:
        super()._drive(stimulus)
        if self._strays and isinstance(stimulus, Acknowledge):
            message = stimulus.message
            again = replace(message, state=SubtaskState(message.subtask))
            super()._drive(Acknowledge(self._world.clock(), again))

    def _stray_messages(self, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        """Sends messages of another attempt, of another job and for an unknown checkpoint, all with wrong state."""
        now = self._world.clock()
        for task in states:
            wrong = SubtaskState(task.subtask)
            for job_id, token, number in (
                (JOB, self._token - 1, checkpoint_id),
                (JOB, self._token + 1, checkpoint_id),
                ("another", self._token, checkpoint_id),
                (JOB, self._token, checkpoint_id + 1000),
                (JOB, self._token, checkpoint_id - 1),
            ):
                message = AcknowledgeCheckpoint(job_id, number, token, task.uid, task.subtask, wrong)
                self._drive(Acknowledge(now, message))
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED
            earlier = [(self._token, each) for each in (checkpoint_id - 1,) if each not in self.coordinator.pending]
            for token, number in ((self._token - 1, checkpoint_id), *earlier):
                decline = DeclineCheckpoint(JOB, number, token, task.uid, task.subtask, reason, {})
                self._drive(Decline(now, decline))

    def _late_messages(self, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        now = self._world.clock()
        for task, state in states.items():
            message = AcknowledgeCheckpoint(JOB, checkpoint_id, self._token, task.uid, task.subtask, state)
            self._drive(Acknowledge(now, message))
        self._drive(TimerFired(now, checkpoint_id))
