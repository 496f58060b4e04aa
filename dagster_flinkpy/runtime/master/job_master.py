"""The master of a job: one thread that tells the job's state what happens, and has lanes do what it says.

Flink: ``JobMaster``. All decisions are those of :class:`~dagster_flinkpy.runtime.master.job_state.JobState`. The master
runs on the thread that iterates over :meth:`JobMaster.run`. It never waits for Spark, the store or a sink.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from dagster_flinkpy.checkpoint.coordinator import instructions
from dagster_flinkpy.checkpoint.coordinator.stimuli import Stimulus
from dagster_flinkpy.checkpoint.metadata import CheckpointMetadata
from dagster_flinkpy.runtime.master import job_messages
from dagster_flinkpy.runtime.master.commits.checkpoint_steps import CheckpointSteps
from dagster_flinkpy.runtime.master.epoch_request import Completion, EpochRequest
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.mailbox import Done, Lane, Mailbox, Work
from dagster_flinkpy.runtime.master.regions.region_runner import JobRunner
from dagster_flinkpy.runtime.master.requests.request_desk import RequestDesk
from dagster_flinkpy.spark.user_logs import print_line

__all__ = ["JobMaster"]


class JobMaster:
    """Drives the state of an execution attempt, and has its instructions carried out."""

    def __init__(
        self,
        state: JobState,
        runners: Sequence[JobRunner],
        steps: CheckpointSteps,
        mailbox: Mailbox,
        desk: RequestDesk,
        *,
        on_completed: Callable[[CheckpointMetadata], object],
        on_aborted: Callable[[], object],
        discard_read: Callable[[Mapping[str, Collection[int]], Collection[str]], object],
        progress: Callable[[str], object],
        records: Callable[[], int],
    ) -> None:
        self.state = state
        self._runners, self._steps, self._mailbox, self._desk = tuple(runners), steps, mailbox, desk
        self._on_completed, self._on_aborted = on_completed, on_aborted
        self._discard_read, self._now, self._progress = discard_read, steps.now, progress
        self._records = records
        self._asked: dict[Work, instructions.Instruction] = {}
        """What the lanes are carrying out."""
        self._reported = False
        self._triggered: dict[int, float] = {}
        """When checkpoints were triggered that are neither aborted nor handed to the caller."""
        self._completed: deque[Completion] = deque()

    @property
    def error(self) -> BaseException | None:
        """The first error of the attempt, or None."""
        return self.state.error

    # --- what callers do ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Schedules all regions, and tells the coordinator that the job is running."""
        self._handle(job_messages.JobStarted(self._now()))

    def run(self, request: EpochRequest) -> Iterator[Completion]:
        """Runs epochs and yields their checkpoints, each when it is committed.

        If the caller ends the iteration early, the current epoch still runs to its end; :meth:`settle` waits for it.

        Raises:
            CheckpointError: A checkpoint was not completed.
            FlinkPyError: The attempt has failed for another reason.
        """
        self.settle()
        try:
            self._handle(job_messages.EpochsAsked(self._now(), request))
            while not self._quiet():
                while self._completed:
                    yield self._completed.popleft()
                self._step()
            while self._completed:
                yield self._completed.popleft()
        finally:
            self.state.epochs.enough = True  # an epoch that is under way is still that of the request
        self.report()

    def settle(self) -> None:
        """Waits until nothing is running, without starting another epoch.

        Raises:
            FlinkPyError: The attempt has failed meanwhile.
        """
        self._handle(job_messages.Resumed(self._now()))
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
        return self._completion(self.state.chain.outputs.publish(metadata))

    def interrupt(self) -> None:
        """Ends what is running, because the caller has failed or was interrupted."""
        self.state.epochs.enough = True
        for runner in self._runners:
            runner.session.interrupt()
        self._desk.interrupt()
        self._steps.watchdog.interrupt()
        for lane in (Lane.TRIGGER, Lane.STORE, Lane.REQUESTS):
            self._mailbox.drain(lane)

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _quiet(self) -> bool:
        """Returns True if nothing is running or waits to be started."""
        if (told := self._mailbox.termination) is not None and not self.state.terminated:
            self._handle(job_messages.Terminated(self._now(), told))
        busy = self._mailbox.busy
        # A run that is terminated does not wait for Spark, nor for a region that is stuck.
        working = busy.total() if self._mailbox.termination is None else busy[Lane.STORE] + busy[Lane.TRIGGER]
        under_way = self.state.under_way or self._desk.appearing or working > 0
        if under_way:
            return False
        before = busy.total()
        # Who has asked after the last epoch is served with its checkpoint.
        self._handle(job_messages.Quieted(self._now()))
        return busy.total() == before

    def pause(self, until_ms: int, *, listens: bool) -> None:
        """Waits until the job restarts. Nothing is running.

        Args:
            until_ms: The time, in milliseconds since 1970.
            listens: Whether to take requests meanwhile. Only the leader may.

        Raises:
            JobCancelledError: Somebody asked for the job to be cancelled.
            BaseException: The run was terminated.
        """
        before, requests = self._now(), self.state.requests
        while (now := self._now()) < until_ms or self._mailbox.busy[Lane.REQUESTS]:
            before, until_ms = now, until_ms - max(before - now, 0)  # a clock that is set back prolongs nothing
            if (termination := self._mailbox.termination) is not None:
                raise termination
            timers = [until_ms]
            if listens and now < until_ms:
                if requests.look(now):
                    self._perform(job_messages.LookForRequests())
                timers += [] if requests.due_ms is None else [requests.due_ms]
            done = self._mailbox.take(min(timers) if now < until_ms else None)
            stimulus = None if done is None else self._stimulus(done)
            if isinstance(stimulus, job_messages.RequestsTaken):
                told, cancelled = requests.take(stimulus)
                for instruction in told:
                    self._perform(instruction)
                if cancelled is not None:
                    raise cancelled
            elif isinstance(stimulus, job_messages.StepFailed) and done is not None and done.lane == Lane.REQUESTS:
                raise stimulus.error

    def _step(self) -> None:
        """Waits for the next event, and handles it."""
        done = self._mailbox.take(self.state.next_timer)
        while self._mailbox.news:
            self._handle(self._mailbox.news.popleft())
        if done is not None:
            self._handle(self._stimulus(done))
            return
        now = self._now()
        self._handle(job_messages.TimePassed(now, self._records() if self.state.expires(now) else 0))

    def _handle(self, stimulus: Stimulus) -> None:
        try:
            for instruction in self.state.handle(stimulus):
                self._perform(instruction)
        except BaseException as error:  # an impossible stimulus; nothing must come after it
            self.state.fail(error)
            self._reported = True
            raise

    def _stimulus(self, done: Done) -> Stimulus:
        """Returns what a lane has done, as the state knows it."""
        now, instruction, result = self._now(), self._asked.pop(done.work, None), done.result
        if done.error is not None:
            return job_messages.StepFailed(now, instruction, done.error)
        return result if isinstance(result, Stimulus) else job_messages.Resumed(now)

    # --- instructions ------------------------------------------------------------------------------------------------

    def _submit(self, lane: Lane, instruction: instructions.Instruction, work: Work) -> None:
        self._asked[work] = instruction
        self._mailbox.submit(lane, work)

    def _perform(self, instruction: instructions.Instruction) -> None:
        if isinstance(instruction, job_messages.RegionInstruction):
            self._perform_in_region(instruction, self._runners[instruction.region])
            return
        steps, store = self._steps, partial(self._submit, Lane.STORE, instruction)
        match instruction:
            case job_messages.Say(line=line):
                self._progress(line)
            case job_messages.LookForRequests():
                self._submit(Lane.REQUESTS, instruction, self._desk.look)
                if self._desk.lease_ends:
                    self._submit(Lane.TRIGGER, instruction, self._desk.renew)
            case job_messages.AnswerRequest():
                self._submit(Lane.REQUESTS, instruction, self._desk.answer(instruction))
            case job_messages.WriteSavepoint():
                self._submit(Lane.SAVEPOINT, instruction, self._desk.copy(instruction))
            case job_messages.GiveUpSavepoints():
                self._desk.give_up()
            # A checkpoint, from its trigger to its end.
            case instructions.AssignCheckpointId():
                self._submit(Lane.TRIGGER, instruction, steps.assign_checkpoint_id)
            case job_messages.ReserveCheckpointIds(number=number):
                self._submit(Lane.TRIGGER, instruction, partial(steps.reserve_checkpoint_ids, number))
            case instructions.ArmTimeout(checkpoint_id=checkpoint_id):
                self._triggered[checkpoint_id] = time.monotonic()
            case instructions.TriggerMasterHooks(checkpoint_id=checkpoint_id, timestamp_ms=timestamp):
                for identifier in instruction.identifiers:
                    hook = partial(steps.trigger_hook, identifier, checkpoint_id, timestamp)
                    self._submit(Lane.TRIGGER, instruction, hook)
            case job_messages.WriteCheckpoint(metadata=metadata):
                store(partial(steps.write_metadata, metadata))
            case job_messages.CompleteCheckpoint(metadata=metadata):
                partition = self.state.contents.partition_end(metadata)
                store(partial(steps.replace_head, metadata, partition))
            case job_messages.CommitCheckpoint(metadata=metadata):
                self._on_completed(metadata)
                store(partial(steps.commit_checkpoint, metadata))
            case job_messages.HandOut():
                self._completed.append(self._completion(instruction))
            case instructions.NotifyAborted(checkpoint_id=checkpoint_id):
                self._triggered.pop(checkpoint_id, None)
                store(partial(steps.tell_aborted, checkpoint_id))
                self._on_aborted()
            case instructions.NotifySubsumed(checkpoint_id=checkpoint_id):
                store(partial(steps.tell, "notify_checkpoint_subsumed", checkpoint_id))
            # What is not needed any more.
            case instructions.DiscardState(files=files):
                store(partial(steps.discard, files))
            case job_messages.DiscardRead(written=written, named=named):
                store(partial(self._discard_read, written, named))
            case job_messages.Subsume(checkpoint_ids=checkpoint_ids):
                store(partial(steps.subsume, checkpoint_ids))
            case job_messages.AbortLingering(region=region):
                abort = steps.transactions.abort_after_failure
                self._submit(Lane.STORE if region is None else Lane.region(region), instruction, abort)
            case _:
                raise AssertionError(f"unknown instruction {instruction!r}")

    def _perform_in_region(self, instruction: job_messages.RegionInstruction, runner: JobRunner) -> None:
        submit = partial(self._submit, Lane.region(instruction.region), instruction)
        match instruction:
            case job_messages.LookForInput():
                runner.begin_look()
                submit(runner.look)
            case job_messages.NotifySources(checkpoint_id=checkpoint_id):
                runner.planner.splits.news.append(checkpoint_id)  # an open epoch tells it before the lane is free
                submit(partial(runner.tell_news))  # two in the lane are not the same work
            case job_messages.BeginEpoch(checkpoint_id=checkpoint_id):
                runner.begin(checkpoint_id)
            case job_messages.PlanEpoch(checkpoint_id=checkpoint_id, inputs=inputs, drain=drain):
                submit(partial(runner.plan, checkpoint_id, inputs, drain=drain))
            case job_messages.RunEpoch(epoch=epoch, restarts=restarts, rewritten=rewritten, was_read=was_read):
                open_epoch = runner.open(epoch.checkpoint_id) if epoch.open else None
                run = partial(runner.run, epoch, restarts, rewritten=rewritten, was_read=was_read)
                submit(partial(run, open_epoch=open_epoch))
            case job_messages.CloseEpoch(following=following):
                runner.close(following)
            case job_messages.RepeatState(checkpoint_id=checkpoint_id, restarts=restarts):
                submit(partial(runner.repeat, checkpoint_id, restarts))
            case job_messages.InterruptRegion():
                runner.session.interrupt()
            case _:
                raise AssertionError(f"unknown instruction {instruction!r}")

    def _completion(self, handed_out: job_messages.HandOut) -> Completion:
        """Prints what has become visible with a checkpoint, and returns the rest of it."""
        if handed_out.printed:
            print_line("\n".join(handed_out.printed))
        metadata = handed_out.metadata
        duration_ms = round((time.monotonic() - self._triggered.pop(metadata.checkpoint_id)) * 1000)
        epochs = self.state.epochs.count(handed_out.checkpoint_ids)
        return Completion(metadata, duration_ms, handed_out.collected, epochs)
