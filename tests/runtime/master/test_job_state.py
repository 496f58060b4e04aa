"""The state of a job is a pure machine: a test types what happens, and reads what is to be done."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_flinkpy.checkpoint.coordinator.checkpoint_contents import CheckpointContents
from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
from dagster_flinkpy.checkpoint.coordinator.instructions import DiscardState, Instruction, NotifyAborted, Rejected
from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.coordinator.stimuli import (
    CheckpointIdAssigned,
    CommitFinished,
    HeadReplaced,
    MetadataWritten,
)
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER, SubtaskState
from dagster_flinkpy.checkpoint.requests import Order, Request, RequestKind
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.common.restart_strategies import FixedDelayRestart
from dagster_flinkpy.errors import (
    CheckpointError,
    FlinkPyError,
    IllegalStateTransitionError,
    JobCancelledError,
    PythonWorkerLostError,
    SegmentLostError,
    StorageError,
)
from dagster_flinkpy.runtime.blocking.blocking_edge import EdgeOutput
from dagster_flinkpy.runtime.blocking.segments import bind_blocking_edges
from dagster_flinkpy.runtime.epoch import EpochInput
from dagster_flinkpy.runtime.master.commits.checkpoint_steps import Outcome
from dagster_flinkpy.runtime.master.epoch_request import EpochRequest
from dagster_flinkpy.runtime.master.epoch_schedule import EpochSchedule
from dagster_flinkpy.runtime.master.failover import FailoverConfig
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.job_messages import (
    EpochsAsked,
    HandOut,
    JobStarted,
    PlanEpoch,
    RequestsTaken,
    RunEpoch,
    Say,
    StepFailed,
    TimePassed,
)
from dagster_flinkpy.runtime.master.job_session import SharedSession
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.regions import region_state
from dagster_flinkpy.runtime.master.regions.job_regions import JobRegions
from dagster_flinkpy.runtime.master.regions.region_epoch import Phase, Turn
from dagster_flinkpy.runtime.master.regions.region_runner import EpochPlanned, InputLooked, RegionEnded
from dagster_flinkpy.runtime.master.regions.region_state import RegionState
from dagster_flinkpy.runtime.master.requests.taken_requests import TakenRequests
from dagster_flinkpy.runtime.master.results import EpochResults, TaskFailure
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from dagster_flinkpy.storage import StorageLocation
from tests.checkpoint.samples import keyed
from tests.runtime.harness import collect_graph
from tests.runtime.programs import COUNTED, CountPerKey, environment, events

DELAY_MS = 1000


class Job:
    """A job of two regions whose events a test types; ``told`` has what it was told to do last."""

    def __init__(self, folder: Path, **checkpointing: Any) -> None:
        stream = events(environment(1), [("a", 1, 2), ("b", 2, 3)], per_epoch=1).blocking()
        graph = collect_graph(stream.key_by("key").process(CountPerKey(), COUNTED).uid("counts")).split()
        storage = StorageLocation(str(folder))
        graph = bind_blocking_edges(graph, storage.child("job").child(EXCHANGE_FOLDER))
        restart = FixedDelayRestart(3, timedelta(milliseconds=DELAY_MS))
        self.config = JobConfig(
            "job", storage, checkpointing=CoordinatorConfig(**checkpointing), failover=FailoverConfig(restart)
        )
        self.now, turn = 0, Turn()
        session = SharedSession(self.config.spark, print)
        self.made = JobRegions(graph, self.config, 1, None, None, None, session, Watchdog(timedelta(minutes=1)), print)
        self.failover = JobFailover(self.made.graphs, self.made.edges, self.config, lambda: self.now, print)
        self.contents = CheckpointContents(graph, "job", 1, None)
        coordinator = CheckpointCoordinator("job", 1, self.made.checkpoint_plan((), ()), self.config.checkpointing)
        regions, requests = self.made.states(self.failover.graph, turn), TakenRequests(10**6)
        self.state = JobState(
            coordinator,
            regions,
            self.failover,
            requests,
            self.contents,
            turn,
            EpochSchedule(
                regions,
                coordinator,
                requests,
                self.contents,
                turn,
                owner="test",
                can_open_epochs=lambda: False,
            ),
            create_metadata=lambda write: self.contents.metadata(write, (), ended=False, properties={}),
        )
        self.told: list[Instruction] = []
        self.does(JobStarted(0))

    def does(self, stimulus: Any) -> list[str]:
        self.told = self.state.handle(stimulus)
        return [type(each).__name__ for each in self.told]

    def step(self, stimulus: Any) -> list[str]:
        return self.does(Outcome(self.now, stimulus))

    def planned(self) -> list[str]:
        (plan,) = (each for each in self.told if isinstance(each, PlanEpoch))
        return self.does(EpochPlanned(self.now, plan.region, EpochInput(plan.checkpoint_id, {}, frozenset())))

    def ran(self, declined: FlinkPyError | None = None) -> list[str]:
        (run,) = (each for each in self.told if isinstance(each, RunEpoch))
        ended = self.ended(run.region, run.epoch.checkpoint_id)
        if declined is not None:
            task = self.made.planners[run.region].tasks[0]
            ended.results.declined = TaskFailure(task, declined)
        return self.does(ended)

    def ended(self, region: int, checkpoint_id: int) -> RegionEnded:
        """All tasks of a region have acknowledged an epoch, in which it has written one segment to each edge."""
        planner = self.made.planners[region]
        results = EpochResults({t: SubtaskState(t.subtask) for t in planner.tasks})
        segment = {"subtask": 0, "key": f"segment-{checkpoint_id}", "bytes": 1, "rows": 1}
        outputs = {uid: EdgeOutput(checkpoint_id, (segment,), None, False) for uid in planner.edge_sinks}
        for uid in planner.splits.uids:  # as the lane does it
            planner.splits._states[checkpoint_id] = {uid: None}
        return RegionEnded(self.now, region, checkpoint_id, results, outputs=outputs)

    def failed(self, region: int, checkpoint_id: int, error: Any) -> list[str]:
        return self.does(RegionEnded(self.now, region, checkpoint_id, EpochResults(), error))


def test_a_checkpoint_of_two_regions_from_its_trigger_to_its_end(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.does(EpochsAsked(0, EpochRequest(limit=1))) == ["AssignCheckpointId"]
    assert job.step(CheckpointIdAssigned(0, 1)) == ["ArmTimeout", "BeginEpoch", "PlanEpoch"]
    assert job.planned() == ["RunEpoch"], "the second region waits for what the first one writes"
    assert job.ran() == ["BeginEpoch", "PlanEpoch"]
    (plan,) = (each for each in job.told if isinstance(each, PlanEpoch))
    assert (plan.region, [list(outputs) for outputs in plan.inputs]) == (1, [["events.exchange"]])
    assert job.planned() == ["RunEpoch"]
    assert job.ran() == ["WriteCheckpoint"]
    assert job.step(MetadataWritten(0, 1)) == ["CompleteCheckpoint"]
    assert job.step(HeadReplaced(0, 1)) == ["CommitCheckpoint"]
    assert job.contents.parent is not None
    told = job.step(CommitFinished(0, 1))
    assert told == ["HandOut", "DiscardRead", "NotifySources", "NotifySources"]
    assert not job.state.under_way


@pytest.mark.parametrize("most", [1, 2])
def test_periodic_checkpoints_are_pending_only_as_many_as_may_be(tmp_path: Path, most: int) -> None:
    """Their epochs are closed: they begin with the trigger."""
    job = Job(tmp_path, interval=timedelta(milliseconds=10), max_concurrent=most)
    job.does(EpochsAsked(0, EpochRequest(limit=None, periodic=True)))
    for number in range(1, most + 1):
        job.now += 10
        assert "AssignCheckpointId" in job.does(TimePassed(job.now))
        job.step(CheckpointIdAssigned(job.now, number))
        assert [each.region for each in job.told if isinstance(each, PlanEpoch)] == [0]
        job.does(EpochPlanned(job.now, 0, EpochInput(number, {}, frozenset())))
        assert job.does(job.ended(0, number)) == (["BeginEpoch", "PlanEpoch"] if number == 1 else [])
    job.now += 10
    assert job.does(TimePassed(job.now)) == [], "the second region still has all of them to do"
    assert job.state.coordinator.pending == tuple(range(1, most + 1))
    job.does(EpochPlanned(job.now, 1, EpochInput(1, {}, frozenset())))
    assert "WriteCheckpoint" in job.does(job.ended(1, 1))
    assert "AssignCheckpointId" not in job.step(MetadataWritten(job.now, 1))
    assert "AssignCheckpointId" in job.step(HeadReplaced(job.now, 1)), "the first one is complete"


def test_a_checkpoint_whose_snapshots_a_task_cannot_store_is_taken_over_by_the_next_one(tmp_path: Path) -> None:
    job = Job(tmp_path, tolerable_failed=1)
    job.does(EpochsAsked(0, EpochRequest(limit=2)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    job.ran(declined=StorageError("503"))
    (plan,) = (each for each in job.told if isinstance(each, PlanEpoch))
    assert plan.region == 1, "the other region goes on to its barrier: the next checkpoint has its rows, too"
    job.planned()
    told = job.ran()
    assert [name for name in told if name in ("WriteCheckpoint", "NotifyAborted", "CancelSparkJob")] == [
        "NotifyAborted"
    ]
    (aborted,) = (each for each in job.told if isinstance(each, NotifyAborted))
    assert (aborted.reason, aborted.tolerated) == (CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION, True)
    assert job.state.takes_over
    assert (job.failover.graph.restarts, job.state.error) == (0, None)


def test_a_region_cannot_restart_from_a_state_that_is_not_in_the_store(tmp_path: Path) -> None:
    job = Job(tmp_path, tolerable_failed=1)
    job.does(EpochsAsked(0, EpochRequest(limit=2)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    job.ran(declined=StorageError("503"))
    job.planned()
    job.ran()
    source, counts = job.state.regions
    assert isinstance(source.unwritten_before(2), StorageError)
    assert counts.unwritten_before(2) is None
    assert source.unwritten_before(1) is None, "it can run the first epoch again"
    with pytest.raises(CheckpointError, match="from checkpoint 1, because it has failed: 503"):
        source.planner.job([EpochInput(2, {})]).check_start()
    counts.planner.job([EpochInput(2, {})]).check_start()


def test_the_job_restarts_if_more_checkpoints_are_declined_than_tolerated(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.does(EpochsAsked(0, EpochRequest(limit=2)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    job.ran(declined=(error := StorageError("503")))
    job.planned()
    assert "WriteCheckpoint" not in job.ran()
    assert job.state.error is error
    assert job.failover.restart_all_at(error) == DELAY_MS


def test_what_the_first_checkpoint_waits_for_is_told_once(tmp_path: Path) -> None:
    """A job whose tasks took minutes to start had a line for each second of it in its log."""
    job = Job(tmp_path)
    assert job.state.coordinator.running
    for what in ("counts[0]", "counts[0]", "counts[1]"):
        reason = CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
        job.state._on_rejected(Rejected("1", reason, f"triggering task {what} is not running"))
    said = [each.line for each in job.state._turn.instructions if isinstance(each, Say)]
    assert said == [f"no checkpoint is triggered yet: triggering task counts[{n}] is not running" for n in (0, 1)]


def test_what_a_checkpoint_waits_for_is_told_again_after_another_one(tmp_path: Path) -> None:
    """Such as after a restart: else nothing would say why checkpoints no longer come."""
    job = Job(tmp_path)
    waits = Rejected("1", CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, "task counts[0] is not running")
    job.does(EpochsAsked(0, EpochRequest(limit=1)))
    job.state._on_rejected(waits)
    job.step(CheckpointIdAssigned(0, 1))
    for _ in job.made.planners:
        job.planned()
        job.ran()
    for outcome in (MetadataWritten(0, 1), HeadReplaced(0, 1), CommitFinished(0, 1)):
        job.step(outcome)
    assert not any(isinstance(each, Say) for each in job.state._turn.instructions)
    job.state._on_rejected(waits)
    assert [each.line for each in job.state._turn.instructions if isinstance(each, Say)] == [
        "no checkpoint is triggered yet: task counts[0] is not running"
    ]


def test_epochs_go_on_while_a_checkpoint_completes(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.does(EpochsAsked(0, EpochRequest(limit=3)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    assert job.ran() == ["AssignCheckpointId", "BeginEpoch", "PlanEpoch"], "the first region is free again"
    assert job.step(CheckpointIdAssigned(0, 2)) == ["ArmTimeout", "BeginEpoch", "PlanEpoch"]
    assert not job.state.coordinator.triggering, "two checkpoints are incomplete, as many as may be"


def test_a_lost_worker_restarts_its_region_alone_and_after_the_delay(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.does(EpochsAsked(0, EpochRequest(limit=1)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    job.ran()
    job.planned()
    assert job.failed(1, 1, PythonWorkerLostError("killed", operator="counts", subtask=0)) == []
    assert (job.state.next_timer, job.failover.graph.status) == (DELAY_MS, JobStatus.RESTARTING)
    job.now = DELAY_MS
    assert job.does(TimePassed(job.now)) == ["BeginEpoch", "RunEpoch"], "it runs what it had planned"
    (run,) = (each for each in job.told if isinstance(each, RunEpoch))
    assert (run.region, run.restarts, job.failover.graph.attempt(0)) == (1, 1, 0)
    assert job.ran() == ["WriteCheckpoint"]


def test_a_lost_segment_restarts_who_has_written_it_and_what_it_does_meanwhile_is_in_vain(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.does(EpochsAsked(0, EpochRequest(limit=2)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    job.ran()
    plan = next(each for each in job.told if isinstance(each, PlanEpoch))
    job.step(CheckpointIdAssigned(0, 2))
    first = next(each for each in job.told if isinstance(each, PlanEpoch))
    job.does(EpochPlanned(0, first.region, EpochInput(first.checkpoint_id, {}, frozenset())))
    job.does(EpochPlanned(0, plan.region, EpochInput(plan.checkpoint_id, {}, frozenset())))
    lost = SegmentLostError("gone", edge="events.exchange", key="segment-1")
    assert job.failed(1, 1, lost) == ["InterruptRegion"], "the first region runs epoch 2"
    assert job.failover.next_restart() is None, "nothing is due as long as that runs"
    job.now = 2 * DELAY_MS
    assert job.does(TimePassed(job.now)) == [], "its Spark job has not ended yet"
    assert job.does(job.ended(0, 2)) == ["BeginEpoch", "RunEpoch"]
    (run,) = (each for each in job.told if isinstance(each, RunEpoch))
    assert (run.epoch.checkpoint_id, run.was_read) == (1, True)
    assert job.failover.graph.restarts == 1


def test_a_region_that_looks_for_input_holds_up_no_restart(tmp_path: Path) -> None:
    """It has nothing that must end before it can run again."""
    job = Job(tmp_path)
    source, counts = job.state.regions
    source.look()
    job.failover.graph.deploy(0)
    job.failover.graph.switch_to_running(0)
    job.failover._restart_later([source, counts], 7)
    assert not source.canceling
    assert job.failover.next_restart() == 7
    job.does(TimePassed(7))
    assert job.failover.graph.status is JobStatus.RUNNING
    job.does(InputLooked(8, 0, False))
    assert source.phase is Phase.IDLE


def test_an_error_ends_the_attempt_when_older_checkpoints_are_through(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.does(EpochsAsked(0, EpochRequest(limit=2)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    job.ran()
    (plan,) = (each for each in job.told if isinstance(each, PlanEpoch))
    job.step(CheckpointIdAssigned(0, 2))
    (ahead,) = (each for each in job.told if isinstance(each, PlanEpoch))
    error = ValueError("the enumerator raised")
    job.does(StepFailed(0, ahead, error))
    assert job.state.coordinator.running, "checkpoint 1 may still complete"
    job.does(EpochPlanned(0, plan.region, EpochInput(1, {}, frozenset())))
    assert "WriteCheckpoint" in job.ran()
    assert not job.state.coordinator.running
    job.step(MetadataWritten(0, 1))
    job.step(HeadReplaced(0, 1))
    assert "HandOut" in job.step(CommitFinished(0, 1))
    assert job.state.error is error


def test_what_tasks_store_for_a_checkpoint_that_has_expired_is_deleted(tmp_path: Path) -> None:
    job = Job(tmp_path, timeout=timedelta(seconds=5))
    job.does(EpochsAsked(0, EpochRequest(limit=1)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    (run,) = (each for each in job.told if isinstance(each, RunEpoch))
    job.now = 5000
    assert "InterruptRegion" in job.does(TimePassed(job.now)), "but its tasks have acknowledged just now"
    late = job.ended(run.region, 1)
    late.results.states = {t: SubtaskState(t.subtask, keyed("late")) for t in late.results.states}
    job.does(late)
    (discarded,) = (each for each in job.told if isinstance(each, DiscardState))
    assert discarded.files == frozenset(keyed("late").files())


def test_a_checkpoint_does_not_expire_while_its_input_is_read(tmp_path: Path) -> None:
    job = Job(tmp_path, timeout=timedelta(seconds=5))
    job.does(EpochsAsked(0, EpochRequest(limit=1)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    for seconds, records in ((5, 10), (10, 20), (15, 3)):
        job.now = seconds * 1000
        assert not job.state.expires(job.now - 1)
        assert job.state.expires(job.now)
        assert job.does(TimePassed(job.now, records)) == [], "tasks have read records; after a restart they count anew"
    job.now = 20_000
    assert "InterruptRegion" in job.does(TimePassed(job.now, 3)), "they have read nothing more"


def test_a_checkpoint_does_not_expire_because_the_clock_was_set_forward(tmp_path: Path) -> None:
    """As after the machine slept: the run failed, and the error said that no task had answered for the timeout."""
    job = Job(tmp_path, timeout=timedelta(seconds=5))
    job.does(EpochsAsked(0, EpochRequest(limit=1)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    job.now = 3_600_000
    assert "InterruptRegion" not in job.does(TimePassed(job.now))
    job.now += 5000
    assert "InterruptRegion" in job.does(TimePassed(job.now))


def test_of_checkpoints_that_are_read_side_by_side_none_expires(tmp_path: Path) -> None:
    """The regions are at different ones, whose timeouts pass together, or one soon after the other."""
    job = Job(tmp_path, interval=timedelta(milliseconds=10), timeout=timedelta(seconds=5), max_concurrent=2)
    job.does(EpochsAsked(0, EpochRequest(limit=None, periodic=True)))
    for number in (1, 2):
        job.now += 10
        job.does(TimePassed(job.now))
        job.step(CheckpointIdAssigned(job.now, number))
        job.does(EpochPlanned(job.now, 0, EpochInput(number, {}, frozenset())))
        if number == 1:
            job.does(job.ended(0, 1))
    assert [each.epoch and each.epoch.checkpoint_id for each in job.state.regions] == [2, 1]
    for job.now, records in ((5010, 10), (5020, 10), (10_020, 20)):
        assert "InterruptRegion" not in job.does(TimePassed(job.now, records))
        assert job.state.coordinator.pending == (1, 2)


def test_the_next_checkpoint_takes_over_from_one_that_has_expired(tmp_path: Path) -> None:
    job = Job(tmp_path, timeout=timedelta(seconds=5), tolerable_failed=2)
    job.does(EpochsAsked(0, EpochRequest(limit=1)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    assert job.ran().count("PlanEpoch") == 1, "the region behind it follows"
    job.planned()
    (run,) = (each for each in job.told if isinstance(each, RunEpoch))
    job.now = 5000
    assert "InterruptRegion" not in job.does(TimePassed(job.now)), "its tasks go on"
    assert job.state.next_timer == 6000
    job.now = 6000
    assert job.does(TimePassed(job.now)) == [], "tasks have not acknowledged it"
    assert job.does(job.ended(run.region, 1)) == ["AssignCheckpointId"], "no input is left, and one takes over"
    assert "RepeatState" in job.step(CheckpointIdAssigned(job.now, 2))
    for number, planner in enumerate(job.made.planners):
        ended = job.ended(number, 2)
        planner.repeat(2)
        job.does(ended)
    job.step(MetadataWritten(job.now, 2))
    job.step(HeadReplaced(job.now, 2))
    job.step(CommitFinished(job.now, 2))
    (handed_out,) = (each for each in job.told if isinstance(each, HandOut))
    assert handed_out.checkpoint_ids == (1, 2)


def test_an_expired_checkpoint_whose_tasks_hang_fails_the_job_after_more_timeouts(tmp_path: Path) -> None:
    job = Job(tmp_path, timeout=timedelta(seconds=5), tolerable_failed=1)
    job.does(EpochsAsked(0, EpochRequest(limit=1)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    job.now = 5000
    assert "InterruptRegion" not in job.does(TimePassed(job.now))
    job.now = 10_000
    assert "InterruptRegion" in job.does(TimePassed(job.now))
    assert "no checkpoint is possible: 0 of" in str(job.state.error)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Phase, Phase)))
def test_a_region_makes_only_the_transitions_of_the_table(tmp_path: Path, before: Phase, after: Phase) -> None:
    region: Any = RegionState.__new__(RegionState)
    region.phase, region.number, region._epochs = before, 3, []
    if (before, after) not in region_state._TRANSITIONS:
        with pytest.raises(IllegalStateTransitionError, match=f"region 3 cannot go from {before.name} to {after.name}"):
            region._to(after)
        assert region.phase is before


def test_an_impossible_stimulus_tells_what_came_before_it(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.does(EpochsAsked(0, EpochRequest(limit=1)))
    job.step(CheckpointIdAssigned(0, 1))
    with pytest.raises(AssertionError, match="region 1 has no epoch at hand") as caught:
        job.does(job.ended(1, 1))
    (story,) = caught.value.__notes__
    assert [line.split()[1] for line in story.splitlines()[1:]] == [
        *("JobStarted", "EpochsAsked", "Outcome", "RegionEnded")
    ]


def test_who_asks_in_the_same_moment_as_somebody_cancels_the_job_is_told(tmp_path: Path) -> None:
    job = Job(tmp_path)
    cancel, savepoint = (
        Request(f"{number}-x", Order(kind), "asker", 0)
        for number, kind in enumerate((RequestKind.CANCEL, RequestKind.SAVEPOINT))
    )
    job.does(RequestsTaken(0, ((cancel, None), (savepoint, None))))
    assert isinstance(job.state.error, JobCancelledError)
    assert [*job.state.requests.open.values()] == [cancel, savepoint], "both are answered when the attempt ends"


def test_transactions_are_not_aborted_while_a_region_waits_to_run_again_for_an_older_checkpoint(tmp_path: Path) -> None:
    """The store may be slow, so it would abort what the region has prepared when it runs again."""
    job = Job(tmp_path, timeout=timedelta(milliseconds=DELAY_MS / 2))
    job.does(EpochsAsked(0, EpochRequest(limit=2)))
    job.step(CheckpointIdAssigned(0, 1))
    job.planned()
    job.ran()
    (plan,) = (each for each in job.told if isinstance(each, PlanEpoch))
    job.does(EpochPlanned(0, plan.region, EpochInput(1, {}, frozenset())))
    job.failed(1, 1, PythonWorkerLostError("killed", operator="counts", subtask=0))
    job.step(CheckpointIdAssigned(0, 2))
    job.planned()
    job.ran()
    job.now = DELAY_MS // 2
    assert job.does(TimePassed(job.now))[:2] == ["Say", "NotifyAborted"], "checkpoint 2 has expired"
    assert "AbortLingering" not in [type(each).__name__ for each in job.told]
    job.now = DELAY_MS
    assert job.does(TimePassed(job.now)) == ["BeginEpoch", "RunEpoch"]
    job.ran()
    job.step(MetadataWritten(0, 1))
    job.step(HeadReplaced(0, 1))
    assert "AbortLingering" in job.step(CommitFinished(0, 1))
