"""The master of a job, which makes all decisions on one thread; lanes do the work (Flink: ``JobMaster``).

Every event reaches the master as a stimulus: a Spark job, a write or a commit has ended, or a timer is due. Only the
master changes the coordinator. It runs on the thread that iterates over :meth:`JobMaster.run`.

A region runs epoch n + 1 while those behind it run epoch n, and while checkpoint n - 1 is written, completed and
committed. Checkpoints complete one by one, in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from dagster_flinkpy.checkpoint.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.instructions import (
    ArmPeriodic,
    ArmTimeout,
    AssignCheckpointId,
    CancelSparkJob,
    DiscardState,
    DropSubsumed,
    EmitBarriers,
    FailJob,
    Instruction,
    NotifyAborted,
    NotifyComplete,
    NotifySubsumed,
    Rejected,
    ReplaceHead,
    SnapshotCoordinators,
    TriggerMasterHooks,
    WriteMetadata,
)
from dagster_flinkpy.checkpoint.messages import CheckpointFailureReason, Subtask
from dagster_flinkpy.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.checkpoint.stimuli import (
    CommitFinished,
    CoordinatorSnapshotted,
    JobStatusChanged,
    MetadataWriteFailed,
    PeriodicTick,
    Stimulus,
    TimerFired,
    TriggerRequested,
)
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.errors import CheckpointError, CheckpointTimeoutError, FencedError, FlinkPyError, JobCancelledError
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.master.checkpoint_contents import CheckpointContents
from dagster_flinkpy.runtime.master.checkpoint_steps import CheckpointSteps, Outcome
from dagster_flinkpy.runtime.master.completion_chain import CompletionChain
from dagster_flinkpy.runtime.master.edge_barriers import EdgeBarriers
from dagster_flinkpy.runtime.master.epoch_outputs import Published
from dagster_flinkpy.runtime.master.epoch_request import Completion, EpochRequest
from dagster_flinkpy.runtime.master.epoch_sequence import EpochSequence
from dagster_flinkpy.runtime.master.input_watch import InputWatch
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.mailbox import Done, Lane, Mailbox
from dagster_flinkpy.runtime.master.region_execution import EpochKind, RegionExecution
from dagster_flinkpy.runtime.master.region_restarts import RegionRestarts, diagnosed
from dagster_flinkpy.runtime.master.region_runner import InputFound, RegionEnded
from dagster_flinkpy.runtime.master.request_desk import RequestDesk
from dagster_flinkpy.runtime.master.task_messages import acknowledgements, declined

__all__ = ["JobMaster"]

_RETRY_AFTER_MS = 1000
"""How long a job waits after a tolerated failure, so that a store that is down is not asked all the time."""


class JobMaster:
    """Drives the coordinator of an execution attempt, and has its instructions carried out.

    Args:
        coordinator: Decides when checkpoints are taken and completed.
        regions: The regions of the job, each behind those whose output it reads.
        failover: Decides what restarts after a failure.
        steps: Carry out the steps of checkpoints.
        mailbox: Runs the lanes.
        requests: Serves requests to the job.
        contents: Which checkpoint is the last one, and which time partition is read.
        create_metadata: Returns the metadata of a checkpoint that all have acknowledged.
        on_completed: Called with each checkpoint once HEAD names it.
        abort_lingering: Aborts open transactions that no checkpoint names.
        max_ahead: How many checkpoints may be incomplete when the next one is triggered.
        discard_read: Deletes the segments of epochs that a complete checkpoint does not name.
        owner: Who asks for checkpoints, in words for people.
        now: Tells milliseconds since 1970.
        progress: Takes one-line progress messages.
    """

    def __init__(
        self,
        coordinator: CheckpointCoordinator,
        regions: Sequence[RegionExecution],
        failover: JobFailover,
        steps: CheckpointSteps,
        mailbox: Mailbox,
        requests: RequestDesk,
        *,
        contents: CheckpointContents,
        create_metadata: Callable[[WriteMetadata], CheckpointMetadata],
        on_completed: Callable[[CheckpointMetadata], object],
        abort_lingering: Callable[[], object],
        discard_read: Callable[[Mapping[str, Collection[int]], Collection[str]], object],
        max_ahead: int,
        owner: str,
        now: Callable[[], int],
        progress: Callable[[str], object],
    ) -> None:
        self.coordinator = coordinator
        self.error: BaseException | None = None
        """The first error of the attempt, or None."""
        self._regions, self._failover, self._steps, self._mailbox = tuple(regions), failover, steps, mailbox
        self._sources = tuple(region for region in self._regions if not region.before)
        """The regions whose epochs begin when a checkpoint is triggered."""
        self._readers = tuple(region for region in self._regions if region.planner.splits.uids)
        """The regions that read input from outside the job."""
        self._watch = InputWatch(self._readers, now)
        self._restarts = RegionRestarts(self._regions, coordinator, failover, now)
        self._requests, self._contents = requests, contents
        self._abort_lingering, self._discard_read = abort_lingering, discard_read
        self._max_ahead, self._owner, self._now, self._progress = max_ahead, owner, now, progress
        self._epochs = EpochSequence(self._regions)
        self._read_up_to = 0
        """The last checkpoint for which all sources have been read."""
        self._incomplete: set[int] = set()
        """The checkpoints that were triggered, and neither completed nor aborted."""
        self._triggering = False
        """Whether the next checkpoint is getting its id, or its hooks are being called."""
        self._coordinators: dict[int, tuple[str, ...]] = {}
        """The operators whose coordinators take part, by checkpoint."""
        # Timers.
        self._due_ms = 0
        """The time of the next periodic checkpoint, in milliseconds since 1970."""
        self._timeouts: dict[int, int] = {}
        """When each pending checkpoint expires, in milliseconds since 1970."""
        # Completing.
        self._chain = CompletionChain(mailbox, steps, contents, create_metadata, on_completed)
        self._barriers = EdgeBarriers(self._regions, self._epochs, self._chain.outputs)
        self._outcome_unknown = False
        """Whether HEAD may name a checkpoint without this attempt knowing it."""
        self._subsumed: list[int] = []
        self._abort_due = False
        self._failing = self._reported = False
        self._fails_from: int | None = None
        """The first checkpoint that cannot complete because of the error; 0 stands for all."""
        self._causes: dict[int | None, FlinkPyError] = {}
        self._triggered: dict[int, float] = {}
        self._retry_ms = 0
        """When to try again after a checkpoint has failed, in milliseconds since 1970."""
        self._completed: deque[Completion] = deque()

    # --- what callers do ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schedules all regions, and tells the coordinator that the job is running."""
        for index in range(len(self._regions)):
            self._failover.graph.schedule(index)
        self._drive(JobStatusChanged(self._now(), running=True))

    def run(self, request: EpochRequest) -> Iterator[Completion]:
        """Runs epochs and yields their checkpoints, each when it is committed.

        If the caller ends the iteration early, the current epoch still runs to its end; :meth:`settle` waits for it.

        Raises:
            CheckpointError: A checkpoint was not completed.
            FlinkPyError: The attempt has failed for another reason.
        """
        self.settle()
        self._epochs.begin(request, enough=self._requests.ending)
        try:
            while not self._quiet():
                while self._completed:
                    yield self._completed.popleft()
                self._step()
            while self._completed:
                yield self._completed.popleft()
        finally:
            self._epochs.enough = True  # an epoch that is under way is still that of the request
        self.report()

    def settle(self) -> None:
        """Waits until nothing is running, without starting another epoch.

        Raises:
            FlinkPyError: The attempt has failed meanwhile.
        """
        while not self._quiet():
            self._step()
        self._completed.clear()
        self.report()

    def report(self) -> None:
        """Raises the error with which the attempt has ended, unless the caller knows it."""
        if self.error is not None and not self._reported:
            self._reported = True
            raise self.error

    def recovered(self, metadata: CheckpointMetadata) -> Completion | None:
        """Returns a checkpoint that was complete when the attempt failed, and that the next attempt has committed.

        Returns None if this attempt has committed it and handed it to the caller.
        """
        if metadata.checkpoint_id not in self._triggered:
            return None
        return self._completion(metadata, self._chain.outputs.publish(metadata.checkpoint_id))

    def interrupt(self) -> None:
        """Ends what is running, because the caller has failed or was interrupted."""
        self._epochs.enough = True
        self._interrupt_regions()
        self._requests.interrupt()
        self._steps.watchdog.interrupt()
        for lane in (Lane.TRIGGER, Lane.STORE, Lane.REQUESTS):
            self._mailbox.drain(lane)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _quiet(self) -> bool:
        """Starts all that can be started. Returns True if nothing is running or waits to be started."""
        try:
            self._advance()
        except BaseException as error:  # an impossible stimulus; nothing must come after it
            self.error, self._reported = self.error or error, True
            raise
        waits = self._iterating or self._takes_over
        busy = self._mailbox.busy
        # A run that is terminated does not wait for Spark, nor for a region that is stuck.
        working = busy.total() if self._mailbox.termination is None else busy[Lane.STORE] + busy[Lane.TRIGGER]
        completing = self._chain.current is not None or self._requests.appearing
        under_way = completing or working > 0 or self._failover.restarting
        return not (waits or under_way or (self.error is None and self._requests.serve_rest()))

    def _advance(self) -> None:
        self._overtake()
        if (told := self._mailbox.termination) is not None and self.error is None:
            self._fail(told)
            self._interrupt_regions()
        older = any(region.has_before(self._fails_from or 0) for region in self._regions)  # may still complete
        if self.error is not None and not self._failing and not older:
            self._failing, canceled = True, isinstance(self.error, JobCancelledError)
            self.error = diagnosed(self.error, self._contents.parent)
            self._failover.job_failed(self.error, canceled=canceled or told is not None)
            self._drive(JobStatusChanged(self._now(), running=False))
        if self._iterating:
            self._requests.look()
        self._trigger_next()
        if self.error is None and self._epochs.followed():
            self._mailbox.submit(Lane.TRIGGER, self._steps.reserve_checkpoint_id)
        self._proceed()
        self._chain.proceed()
        if not self._chain.idle:
            return
        if self._subsumed and self.error is None and not self._requests.writing:
            # State files are named by content: one that an old checkpoint names and the first of a Spark job does not
            # may be named by the second again. So old checkpoints go when all of the Spark job are complete.
            self._mailbox.submit(Lane.STORE, partial(self._steps.subsume, tuple(self._subsumed)))
            self._subsumed.clear()
        if self._abort_due and not self._takes_over and not any(region.at_work for region in self._regions):
            # What is open may be of an epoch that is running, or of a checkpoint that is being completed.
            self._abort_due = False
            if not self._outcome_unknown:
                self._mailbox.submit(Lane.STORE, self._abort_lingering)

    def _proceed(self) -> None:
        """Submits the work of regions that can begin."""
        overtaken = True
        while overtaken:
            for region in self._regions:
                region.proceed()
            overtaken = self._overtake()

    def _trigger_next(self) -> None:
        request, now = self._epochs.request, self._now()
        if now < self._retry_ms or request is None:
            return
        if self._iterating and self._may_trigger():
            if request.continuous and not (self._requests.waiting or self._takes_over or self._epochs.unread):
                self._watch.look()
            elif not request.periodic or (self._requests.waiting and not self.coordinator.pending):
                self._trigger(request)
            elif self._due_ms <= now:
                self._drive(PeriodicTick(now))
        elif self._takes_over and not self._iterating and not self._incomplete and not self._triggering:
            self._trigger(EpochRequest(EpochKind.REPEAT))  # no other checkpoint follows that could take over

    @property
    def _takes_over(self) -> bool:
        """Whether the next checkpoint takes over what a failed one has prepared."""
        return self._chain.outputs.waiting and self.error is None

    @property
    def _iterating(self) -> bool:
        """Whether another epoch is to follow."""
        return self._epochs.iterating and self.error is None

    def _may_trigger(self) -> bool:
        """Returns whether the next checkpoint can be triggered now. Finds out, too, whether the request has enough."""
        if self._triggering or self._watch.looking or not all(region.idle for region in self._sources):
            return False
        return len(self._incomplete) <= self._max_ahead and self._epochs.has_more()

    def _trigger(self, request: EpochRequest) -> None:
        kind = CheckpointKind.SAVEPOINT if request.stop else CheckpointKind.CHECKPOINT
        self._drive(TriggerRequested(self._now(), kind, forced=True, stop=request.stop, request_id=self._owner))

    def _step(self) -> None:
        """Handles the next event."""
        try:
            done = self._mailbox.take(self._next_timer())
            if done is None:
                self._fire_timeouts()
            else:
                self._handle(done)
            for index in self._failover.restart_due():
                self._restart(index)
        except BaseException as error:
            self.error, self._reported = self.error or error, True
            raise

    def _next_timer(self) -> int | None:
        timers, request = [*self._timeouts.values(), self._failover.next_restart()], self._epochs.request
        if request is not None and self._iterating:
            timers.append(self._requests.due_ms)
            if (request.periodic or request.continuous) and self._may_trigger():
                due_ms = self._due_ms if request.periodic else self._watch.due_ms
                timers.append(None if due_ms is None else max(due_ms, self._retry_ms))
        if self._now() < self._retry_ms:
            timers.append(self._retry_ms)
        return min((at_ms for at_ms in timers if at_ms is not None), default=None)

    def _fire_timeouts(self) -> None:
        now = self._now()
        for checkpoint_id in [each for each, at_ms in self._timeouts.items() if at_ms <= now]:
            del self._timeouts[checkpoint_id]
            self._drive(TimerFired(now, checkpoint_id))

    def _handle(self, done: Done) -> None:
        if done.lane in (Lane.REQUESTS, Lane.SAVEPOINT):
            if (error := self._requests.handle(done)) is not None:
                self._fail(error)
            self._epochs.enough |= self._requests.ending
        elif done.error is not None:
            since = 0
            if (region := self._region_of(done)) is not None:
                since = region.batch.checkpoint_ids[0] if region.batch is not None else 0
                region.on_ended()
                self._failover.stopped(region.lane.number)
            elif done.work is self._chain.step:
                self._chain.end()
            self._fail(done.error, since)
        elif isinstance(done.result, Outcome):
            self._on_outcome(done.result)
        elif (region := self._region_of(done)) is not None:
            if isinstance(done.result, Epoch):
                self._on_planned(region, done.result)
            elif isinstance(done.result, RegionEnded):
                self._on_region_ended(region, done.result)
            elif isinstance(done.result, InputFound):
                found, request = self._watch.on_looked(region, found=done.result.found), self._epochs.request
                if found and self.error is None and request is not None:
                    self._trigger(request)  # even if it has enough: the input is assigned to this epoch

    def _fail(self, error: BaseException, since: int = 0) -> None:
        """Ends the attempt. Checkpoints before ``since`` may still complete."""
        self.error = self.error or error
        self._fails_from = since if self._fails_from is None else min(since, self._fails_from)
        self._epochs.enough = True
        self._requests.give_up()
        for region in self._regions:
            region.drop_from(since)

    # --- the regions -------------------------------------------------------------------------------------------------

    def _deploy(self, checkpoint_id: int) -> None:
        """Lets the regions run up to the barrier of a checkpoint."""
        self._incomplete.add(checkpoint_id)
        takes_over = self._chain.outputs.waiting
        batch = self._epochs.add(checkpoint_id, takes_over=takes_over)
        if batch is None:
            return
        if batch.kind is EpochKind.REPEAT and not takes_over:
            self._contents.repeated = checkpoint_id
        for region in self._regions:
            region.enqueue(batch)

    def _interrupt_regions(self) -> None:
        for region in self._regions:
            region.runner.session.interrupt()

    def _region_of(self, done: Done) -> RegionExecution | None:
        return next((region for region in self._regions if region.lane == done.lane), None)

    def _stopped(self, region: RegionExecution) -> None:
        """Notes that the lane of a region is not at work any more that is to restart."""
        if self._fails_from is not None:
            region.drop_from(self._fails_from)
        self._failover.stopped(region.lane.number)

    def _on_planned(self, region: RegionExecution, epoch: Epoch) -> None:
        if region.batch is None:  # telling it of a checkpoint has failed before it planned, so the attempt ends
            return
        abandoned = region.abandoned
        region.on_planned(epoch)
        if abandoned:
            self._stopped(region)
            return
        if self._fails_from is not None:
            region.drop_from(self._fails_from)
        elif self._epochs.on_planned() and (request := self._epochs.request) is not None:
            self._trigger(request)

    def _on_region_failed(self, region: RegionExecution, ended: RegionEnded, error: FlinkPyError) -> None:
        first = region.next_to_acknowledge if region.works_ahead else ended.checkpoint_ids[0]
        if (restarting := self._restarts.on_failed(region, ended, error)) is not None:
            for checkpoint_id in [number for number in self._timeouts if number >= first]:
                del self._timeouts[checkpoint_id]  # they begin anew with the restart
            for stimulus in restarting:
                self._drive(stimulus)
            return
        region.on_ended()
        self._causes[first] = error
        self._drive(declined(region.planner, first, ended.task, error, self._now()))
        self._fail(error, first)

    def _restart(self, index: int) -> None:
        region, timeout_ms = self._regions[index], to_millis(self._steps.watchdog.timeout)
        for checkpoint_id in self.coordinator.collecting:
            self._timeouts.setdefault(checkpoint_id, self._now() + timeout_ms)
        if len(self._regions) == 1 and not region.idle and self._chain.idle and not self._takes_over:
            # Nothing else has anything open. Otherwise the attempt tidies up when it ends.
            self._mailbox.submit(region.lane, self._abort_lingering)
        region.restart()

    def _on_region_ended(self, region: RegionExecution, ended: RegionEnded) -> None:
        last = ended.checkpoint_ids[-1]
        if region.abandoned:
            region.on_abandoned(ended)
            self._stopped(region)
            return
        if self._fails_from is not None and (region.works_ahead or last >= self._fails_from):
            region.on_ended()
            self._failover.graph.ended(region.lane.number)
            return
        if ended.error is not None:
            self._on_region_failed(region, ended, diagnosed(ended.error, self._contents.parent))
            return
        if region.works_ahead:
            region.on_read_ahead(ended)
            return
        acknowledged = self._barriers.aligned(region, ended)
        if region in self._sources and min(each.acknowledged for each in self._sources) >= last > self._read_up_to:
            self._read_up_to = last
            self._requests.epoch_ended(last)
        for each in acknowledged:
            if self._may_complete(each.checkpoint_id):  # it may have expired just now
                self._acknowledge(region, each.checkpoint_id, each.states)
        for stimulus in self._barriers.settle(self._now()):
            if self._may_complete(stimulus.checkpoint_id):
                self._drive(stimulus)

    def _may_complete(self, checkpoint_id: int) -> bool:
        return self._fails_from is None or checkpoint_id < self._fails_from

    def _overtake(self) -> bool:
        """Lets regions acknowledge checkpoints that do not wait for what they read. Returns whether any did."""
        found = False
        for region, each in self._barriers.overtake(failed=self.error is not None):
            self._acknowledge(region, each.checkpoint_id, each.states)
            for uid, in_flight in each.in_flight:
                self._drive(CoordinatorSnapshotted(self._now(), each.checkpoint_id, uid, in_flight))
            found = True
        return found

    def _acknowledge(self, region: RegionExecution, checkpoint_id: int, states: Mapping[Subtask, SubtaskState]) -> None:
        """Passes the acknowledgements of all tasks and enumerators of a region to the coordinator."""
        coordinators = self._coordinators.get(checkpoint_id, ())
        for stimulus in acknowledgements(region.planner, checkpoint_id, states, coordinators, self._now):
            self._drive(stimulus)

    # --- the coordinator ---------------------------------------------------------------------------------------------

    def _on_outcome(self, outcome: Outcome) -> None:
        stimulus = outcome.stimulus
        if outcome.error is not None:
            self._causes[getattr(stimulus, "checkpoint_id", None)] = outcome.error
        if isinstance(stimulus, MetadataWriteFailed):
            self._outcome_unknown |= stimulus.unknown_outcome and self._chain.replacing_head
        self._drive(stimulus)
        if isinstance(stimulus, MetadataWriteFailed) and self._chain.current is not None:
            self._chain.end()  # it was not handed over
        if isinstance(stimulus, CommitFinished):
            self._finish()

    def _drive(self, stimulus: Stimulus) -> None:
        """Gives the coordinator a stimulus and carries out its instructions, without waiting or calling it again."""
        aborted = None
        for instruction in self.coordinator.handle(stimulus):
            self._perform(instruction)
            if isinstance(instruction, NotifyAborted):
                aborted = instruction
        if aborted is not None and aborted.reason is not CheckpointFailureReason.CHECKPOINT_SUBSUMED:
            number = aborted.checkpoint_id
            cause = self._causes.get(number) or CheckpointError(f"checkpoint {number} was aborted")
            if not aborted.tolerated or not self._tolerate(number, cause):
                self._abort_due = True
                self._fail(cause, number)

    def _tolerate(self, checkpoint_id: int | None, error: FlinkPyError) -> bool:
        """Lets the next checkpoint take over from a failed one. Returns False if the attempt must end."""
        # Sinks replace what earlier checkpoints have committed to a partition. A step that hangs may still do harm.
        if self._contents.partition is not None or isinstance(error, FencedError | CheckpointTimeoutError):
            return False
        self._progress(f"the job tolerates the failure of a checkpoint: {error}")
        self._retry_ms = self._now() + _RETRY_AFTER_MS
        if not self._chain.hand_over(checkpoint_id) and self._epochs.batch is not None:
            self._epochs.batch.closed = True  # its epochs do not wait for the one that was not triggered
        return True

    def _perform(self, instruction: Instruction) -> None:
        submit = partial(self._mailbox.submit, Lane.STORE)
        match instruction:
            case AssignCheckpointId():
                self._triggering = True
                self._mailbox.submit(Lane.TRIGGER, self._steps.assign_checkpoint_id)
            case ArmTimeout(checkpoint_id=checkpoint_id, at_ms=at_ms):
                self._timeouts[checkpoint_id] = at_ms
                self._triggered[checkpoint_id] = time.monotonic()
            case SnapshotCoordinators(checkpoint_id=checkpoint_id, uids=uids):
                self._coordinators[checkpoint_id] = uids
            case TriggerMasterHooks(checkpoint_id=checkpoint_id, timestamp_ms=timestamp, identifiers=identifiers):
                for identifier in identifiers:
                    hook = partial(self._steps.trigger_hook, identifier, checkpoint_id, timestamp)
                    self._mailbox.submit(Lane.TRIGGER, hook)
            case EmitBarriers(checkpoint_id=checkpoint_id):
                self._triggering = False
                if self.error is None:
                    self._deploy(checkpoint_id)
            case CancelSparkJob(checkpoint_id=checkpoint_id):
                for region in self._regions:
                    if checkpoint_id in region.working_for:
                        region.runner.session.interrupt()
            case WriteMetadata():
                self._chain.add(instruction)
            case ReplaceHead(checkpoint_id=checkpoint_id):
                self._requests.completing(checkpoint_id)
                self._chain.replace_head(checkpoint_id)
            case NotifyComplete(checkpoint_id=checkpoint_id):
                self._chain.commit(checkpoint_id)
            case NotifySubsumed(checkpoint_id=checkpoint_id):
                submit(partial(self._steps.tell, "notify_checkpoint_subsumed", checkpoint_id))
            case DropSubsumed(checkpoint_ids=checkpoint_ids):
                self._subsumed += checkpoint_ids
            case DiscardState(files=files):
                submit(partial(self._steps.discard, files))
            case NotifyAborted(checkpoint_id=checkpoint_id, reason=reason):
                self._timeouts.pop(checkpoint_id, None)
                self._triggered.pop(checkpoint_id, None)
                self._coordinators.pop(checkpoint_id, None)
                if checkpoint_id not in self._incomplete:
                    self._triggering = False  # no epoch has begun
                self._incomplete.discard(checkpoint_id)
                self._progress(f"checkpoint {checkpoint_id} was aborted: {reason.value}")
                self._abort_due |= not instruction.tolerated
                submit(partial(self._steps.tell_aborted, checkpoint_id))
            case FailJob(checkpoint_id=checkpoint_id, message=message):
                self._fail(self._causes.get(checkpoint_id) or CheckpointError(message), checkpoint_id or 0)
            case ArmPeriodic(at_ms=at_ms):
                self._due_ms = at_ms
            case Rejected(reason=CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS, message=message):
                self._progress(message)  # it is due again when the pause is over
            case Rejected(reason=CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS):
                pass  # the interval is shorter than the completion of a checkpoint; one is queued already
            case Rejected(tolerated=True) if self._tolerate(None, self._causes[None]):
                self._triggering = False
            case Rejected(message=message):
                self._fail(self._causes.get(None) or CheckpointError(f"no checkpoint was taken: {message}"))
            case _:
                raise AssertionError(f"unknown instruction {instruction!r}")

    def _finish(self) -> None:
        """Hands a committed checkpoint to the caller."""
        metadata, published = self._chain.finish()
        number = metadata.checkpoint_id
        self._timeouts.pop(number, None)
        self._coordinators.pop(number, None)
        self._incomplete.discard(number)
        self._failover.completed(number)
        self._completed.append(self._completion(metadata, published))
        for each in published.checkpoint_ids:
            written = {uid: ids for region in self._regions for uid, ids in region.on_completed(each).items()}
            if len(self._regions) > 1:
                self._mailbox.submit(Lane.STORE, partial(self._discard_read, written, metadata.files()))
        self._requests.completed(metadata, published.checkpoint_ids)

    def _completion(self, metadata: CheckpointMetadata, published: Published) -> Completion:
        duration_ms = round((time.monotonic() - self._triggered.pop(metadata.checkpoint_id)) * 1000)
        epochs = self._epochs.count(published.checkpoint_ids)
        return Completion(metadata, duration_ms, published.collected, epochs)
