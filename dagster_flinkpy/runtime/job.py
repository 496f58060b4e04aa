"""The job loop: one execution attempt, epoch by epoch, from the last completed checkpoint on.

The coordinator says what to do; this module has it done: the Spark job, the metadata, the commits of the sinks. What is
restored, and what an epoch is, others know: :mod:`~dagster_flinkpy.runtime.restoring`,
:mod:`~dagster_flinkpy.runtime.epoch_planner`.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import TracebackType

import pyarrow as pa

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
from dagster_flinkpy.checkpoint.messages import AcknowledgeCheckpoint, CheckpointFailureReason, DeclineCheckpoint, Task
from dagster_flinkpy.checkpoint.metadata import (
    METADATA_NAME,
    STOPPED,
    CheckpointKind,
    CheckpointMetadata,
    SubtaskState,
)
from dagster_flinkpy.checkpoint.offline import without_committables
from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.checkpoint.pending import CheckpointPlan
from dagster_flinkpy.checkpoint.restore import RestorePlan
from dagster_flinkpy.checkpoint.savepoint import check_target, write_savepoint
from dagster_flinkpy.checkpoint.stimuli import (
    Acknowledge,
    CheckpointIdAssigned,
    CommitFinished,
    CoordinatorSnapshotted,
    Decline,
    HeadReplaced,
    JobStatusChanged,
    MasterHookFailed,
    MasterStateCollected,
    MetadataWriteFailed,
    MetadataWritten,
    PeriodicTick,
    Stimulus,
    TimerFired,
    TriggerFailed,
    TriggerRequested,
)
from dagster_flinkpy.checkpoint.store import Attempt, CompletedCheckpointStore
from dagster_flinkpy.datastream.checkpoint_listener import CheckpointListener
from dagster_flinkpy.datastream.connectors.base import SplitEnumeratorContext
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.datastream.state_recovery import RecoveryClaimMode
from dagster_flinkpy.errors import (
    CheckpointError,
    CommittableLostError,
    ConfigurationError,
    CorruptStateError,
    FencedError,
    FlinkPyError,
    RestoreError,
    StorageError,
)
from dagster_flinkpy.runtime.committers import Committers
from dagster_flinkpy.runtime.epoch import Epoch, Interval
from dagster_flinkpy.runtime.epoch_planner import EpochPlanner
from dagster_flinkpy.runtime.exchange import WireRow
from dagster_flinkpy.runtime.exchange_operators import bind_exchanges
from dagster_flinkpy.runtime.job_config import JobConfig
from dagster_flinkpy.runtime.job_session import JobSession
from dagster_flinkpy.runtime.master_hooks import MasterHooks
from dagster_flinkpy.runtime.region_job import run_region
from dagster_flinkpy.runtime.reports import CompletedEpoch, operator_reports
from dagster_flinkpy.runtime.restoring import Restore
from dagster_flinkpy.runtime.results import EpochResults
from dagster_flinkpy.storage import StorageLocation

__all__ = ["JobAttempt", "JobConfig"]

_LEASE_MARGIN = timedelta(minutes=1)
"""How much longer than a checkpoint may take an attempt promises to live."""


class JobAttempt:
    """One execution attempt of a job; a context manager.

    Entering takes leadership with a greater fencing token, restores the last completed checkpoint, commits what that
    checkpoint still has to commit and aborts what dead attempts left open.

    Args:
        graph: The program; one pipelined region.
        config: Where it runs.
        owner: Who runs it, for people; e.g. a Dagster run id.
        start_empty: Starts from empty state, although there may be checkpoints.
        parallelism: Of all operators without one of their own; None: that of the restored checkpoint's rescale, if
            there was one, else that of the program.
        restore_from: A savepoint (its folder, a path or URL) or a checkpoint of this job (``chk-7``); None: the last
            completed checkpoint.
        claim_mode: Whose ``restore_from`` is afterwards; None: as the program says, which is ``NO_CLAIM`` by default.
        allow_non_restored_state: Leaves state behind whose operator, or master hook, is gone.
        allow_pickled_state: Restores pickled state of a savepoint outside the job's own prefix, too; whoever wrote it
            can run code here.
        run_id: The same for all tries of one run. A try after one that completed a checkpoint does not restore
            ``restore_from`` again, which would commit the same rows again: it goes on from that checkpoint.
        require_uids: Whether stateful operators must have one; not where the state is thrown away afterwards.
        on_progress: Is told in a line what goes on.

    Raises:
        MissingUidError: A stateful operator has no uid.
        ConditionalWritesUnsupportedError: The store would not fence.
        RestoreError: The state does not fit the program.
        CommittableLostError: What the last checkpoint has to commit is gone, and nothing else is to be restored.
        CorruptMetadataError: The checkpoint cannot be read.
    """

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        *,
        owner: str,
        start_empty: bool = False,
        parallelism: int | None = None,
        restore_from: str | None = None,
        claim_mode: RecoveryClaimMode | None = None,
        allow_non_restored_state: bool = False,
        allow_pickled_state: bool = False,
        run_id: str | None = None,
        require_uids: bool = True,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        if require_uids:
            graph.require_uids()
        if len(graph.regions()) > 1:
            raise ConfigurationError(f"job {config.job_id!r} has several regions; run each as a job of its own")
        self._location = config.storage.child(config.job_id)
        graph = bind_exchanges(graph, config.exchanges or self._location.child("exchange"))
        self.graph = graph if parallelism is None else graph.with_parallelism(parallelism)
        self.config = config
        self.restored: CheckpointMetadata | None = None
        """The checkpoint or savepoint it started from."""
        self.committed_on_recovery = 0
        """Committables of the last checkpoint that were not committed when the attempt began."""
        self.aborted_lingering = 0
        """Open transactions of dead attempts that were aborted."""
        self.finished = False
        """Whether all input has ended and is in the last checkpoint, or the job was stopped with a savepoint."""
        self._owner = owner
        self._progress = on_progress or (lambda line: None)
        self._restore = Restore(
            path=restore_from,
            start_empty=start_empty,
            parallelism=parallelism,
            claim_mode=claim_mode or config.checkpointing.claim_mode,
            allow_non_restored_state=allow_non_restored_state,
            allow_pickled_state=allow_pickled_state,
            run_id=run_id,
            progress=self._progress,
        )
        self._session = JobSession(config.spark, self._progress)
        self._error: BaseException | None = None
        self._failure: FlinkPyError | None = None
        self._barriers = 1
        self._periodic = False
        self._due_ms = 0
        """When the next periodic checkpoint is, in milliseconds since 1970."""
        self._stopped = False
        """Whether the job was stopped before, and nobody has restored a savepoint since."""
        self._stopping = False
        self._draining = False
        self._lease = config.checkpointing.timeout + _LEASE_MARGIN
        self._hooks = MasterHooks(config.checkpointing.master_hooks)
        self._emitted: list[int] | None = None
        """While the barriers of one Spark job are emitted: their checkpoints."""
        self._subsumed: list[int] = []
        """Checkpoints that are to be deleted when the Spark job's are complete."""
        self._printed: list[str] = []
        self.collected: list[pa.Array] = []
        """Columns of the records that the last epoch brought back, for ``execute_and_collect``."""

    # --- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> JobAttempt:
        job_store = self._location.open()
        self.config.storage.open().probe()
        self._store = CompletedCheckpointStore(job_store, self.config.checkpointing.num_retained)
        self._attempt: Attempt = self._store.begin_attempt(self._owner, _now(), self._lease)
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def _begin(self) -> None:
        former = self._attempt.former
        if former is not None and former.alive(_now()):
            self._progress(f"took over from {former.owner!r}, which may still be at work and can complete nothing more")
        latest = self._attempt.latest
        self._restore.skip_if_restored(latest)
        self._committers = Committers(self.graph, self.config.job_id, self.token)
        self._recover(latest)
        self.restored = self._restore.load(self.config, self.graph, self._store, self._attempt)
        plan: RestorePlan | None = None
        if self.restored is not None:
            self.graph, plan = self._restore.assign(self.graph, self.restored)
        context = SplitEnumeratorContext(self.config.job_id, self.token, self._session.open)
        self._epochs = EpochPlanner(self.graph, self.config, context, self.restored, plan)
        self._stopped = self.restored is not None and self.restored.stopped and self._restore.path is None
        self.finished = self.restored is not None and (self.restored.end_of_input or self._stopped)
        self._hooks.restore(self.restored, allow_non_restored_state=self._restore.allow_non_restored_state)
        self._coordinator = CheckpointCoordinator(
            self.config.job_id,
            self._attempt.token,
            self._plan(),
            # A failed epoch leaves nothing to go on from: the next attempt starts at the last checkpoint.
            replace(self.config.checkpointing, tolerable_failed=0),
            restored=self.restored,
            retained=self._attempt.head.retained,
            statistics=self._store.load_statistics(self._attempt),
        )
        self._drive(JobStatusChanged(_now(), running=True))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()
        # What a run leaves that was fenced, or cannot reach the store, is for the next one to tidy up.
        with suppress(FlinkPyError):
            if self._discards_checkpoints(error):
                self._store.delete_checkpoints(self._attempt)
        with suppress(FlinkPyError):
            self._store.save_statistics(self._attempt, self._coordinator.statistics)
        self._end()

    def _end(self) -> None:
        self._hooks.close()
        with suppress(FlinkPyError):  # a lease that is not given back runs out
            self._store.end_attempt(self._attempt)

    def _discards_checkpoints(self, error: BaseException | None) -> bool:
        """Flink: ``CheckpointProperties.discardOnJobFinished`` and its like. A run that merely ends discards none."""
        latest, retention = self._attempt.latest, self.config.checkpointing.retention
        if latest is not None and self._attempt.committed != latest.checkpoint_id:
            return False  # there is something to commit yet
        if latest is not None and latest.stopped:
            return False  # nobody else knows that the job is stopped
        if error is None:
            return retention.discards_on_finish and self.finished
        cancelled = not isinstance(error, Exception)
        return retention.discards_on_cancellation if cancelled else retention.discards_on_failure

    @property
    def stopped(self) -> bool:
        """Whether the job was stopped with a savepoint, and nobody has restored one since."""
        return self._stopped

    @property
    def partition_ends(self) -> tuple[PartitionEnd, ...]:
        """End states of time partitions that are kept, in order of time."""
        return self._attempt.head.partitions

    @property
    def latest(self) -> CheckpointMetadata | None:
        """The last completed checkpoint."""
        return self._attempt.latest

    def renumber_partitions(self, renumber: Callable[[tuple[PartitionEnd, ...]], tuple[PartitionEnd, ...]]) -> None:
        """Gives the kept end states other ordinals, by which they are in order and kept from the next checkpoint on.

        Args:
            renumber: Gets them, and returns them with the ordinals that they have now.
        """
        head = self._attempt.head
        self._attempt.head = replace(head, partitions=renumber(head.partitions))

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._attempt.token

    def _recover(self, latest: CheckpointMetadata | None) -> None:
        """Commits what the last checkpoint prepared, then aborts all else that is open."""
        if latest is not None and self._attempt.committed != latest.checkpoint_id:
            prepared = sum(len(s.committables) for o in latest.operators for s in o.subtasks)
            try:
                self.committed_on_recovery = prepared - self._commit(latest)
                self._attempt.committed = latest.checkpoint_id
            except CommittableLostError as e:
                if self._restore.path is None:
                    raise
                self._progress(f"checkpoint {latest.checkpoint_id}, which is given up: {e}")
            if self.committed_on_recovery:
                self._progress(
                    f"committed {self.committed_on_recovery} committables of checkpoint {latest.checkpoint_id}"
                )
        self.aborted_lingering = self._abort_lingering()

    def _abort_lingering(self) -> int:
        self._store.check_leader(self._attempt)
        return self._committers.abort_lingering(self._attempt.latest)

    def _plan(self) -> CheckpointPlan:
        tasks = {v.uid: tuple(Task(v.uid, i) for i in range(v.parallelism)) for v in self.graph.vertices}
        return CheckpointPlan(
            tasks_to_trigger=tuple(t for uid in self._epochs.splits.uids for t in tasks[uid]),
            tasks_to_wait_for=tuple(t for each in tasks.values() for t in each),
            tasks_to_commit=tuple(t for uid in self._committers.uids for t in tasks[uid]),
            coordinators=self._epochs.splits.uids,
            master_hooks=self._hooks.identifiers,
        )

    # --- epochs ------------------------------------------------------------------------------------------------------

    def run_epoch(self, barriers: int = 1, *, partition: TimePartition | None = None) -> CompletedEpoch:
        """Reads up to the next barrier; returns when the checkpoint is complete and the sinks have committed.

        Args:
            barriers: How many epochs one Spark job reads, each up to a barrier of its own. Their checkpoints complete,
                and their sinks commit, one after the other when the job is done; a failure fails them all. There are
                fewer where the input ends. Default: 1.
            partition: Reads this partition of time, whole, instead of what comes next. The state goes on from where it
                is; the sinks replace what they have committed to the partition before; the checkpoint is kept as the
                partition's end state. The input does not end with it.

        Returns:
            The last of them.

        Raises:
            ConfigurationError: ``barriers`` is below 1, or above it for a partition; or a source or sink cannot be read
                or replaced by partition.
            UserFunctionError: A user function raised; the checkpoint was declined, nothing of the epoch is visible.
            CheckpointError: The checkpoint was not completed.
            FencedError: A newer attempt took over.
            SourceReadError: Input cannot be read.
        """
        if barriers < 1:
            raise ConfigurationError(f"an epoch ends with a barrier; barriers={barriers} must be at least 1")
        if partition is not None:
            if barriers > 1:
                raise ConfigurationError(f"a partition ends with one barrier, not with barriers={barriers}")
            self._committers.check_partitioned()
            self._epochs.read_partition(partition)
        try:
            return self._checkpoint(self._run_spark_job, barriers)
        finally:
            # A checkpoint without this input, such as one to stop with, does not replace its rows.
            self._epochs.partition = None

    def run_periodic_epoch(self) -> CompletedEpoch:
        """Waits for the next periodic checkpoint, as the program's interval and pause say, and runs its epoch.

        The first one comes somewhere between pause and interval after the attempt has begun (Flink:
        ``CheckpointCoordinator.getRandomInitDelay``).

        Raises:
            ConfigurationError: The program has no interval.
            Exception: As :meth:`run_epoch`.
        """
        if self.config.checkpointing.interval is None:
            raise ConfigurationError(
                f"job {self.config.job_id!r} has no checkpoint interval: call env.enable_checkpointing(milliseconds)"
            )
        self._periodic = True
        try:
            return self._checkpoint(self._run_spark_job)
        finally:
            self._periodic = False

    def commit_restored(self) -> CompletedEpoch:
        """Completes a checkpoint of the restored state as it is, without reading input.

        So a restore, or a rescale, is what later attempts start from.

        Raises:
            RestoreError: Nothing was restored.
        """
        if self.restored is None:
            raise RestoreError(
                f"job {self.config.job_id!r} has nothing to restore: no checkpoint and no savepoint given; run it first"
            )
        return self._checkpoint(self._epochs.repeat)

    def stop_with_savepoint(
        self,
        target: str | None = None,
        format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
        *,
        drain: bool = False,
    ) -> str:
        """Completes a last checkpoint, commits it, and keeps it as a savepoint. Further attempts find the job finished.

        It goes on when the savepoint, or another one, is restored by ``restore_from``.

        Args:
            target: The folder that gets the savepoint; None: the job's own prefix, where a native one must be.
            format_type: Whether it is self-contained, or refers to files of the job's checkpoints.
            drain: Ends event time first, so that all timers and windows fire. What is restored from the savepoint is
                then finished, too, whatever its sources have still to read.

        Returns:
            The URL of the savepoint.

        Raises:
            ConfigurationError: A native savepoint is to be outside of the job's prefix.
            CheckpointError: There is no completed checkpoint yet, and nothing to drain.
        """
        check_target(format_type, self._location.url, self._savepoint_location(target).url)
        if self.finished and (self._attempt.latest is None or not drain or self._attempt.latest.end_of_input):
            return self.savepoint(target, format_type)
        if self._epochs.parent is None and not drain:
            raise CheckpointError(f"job {self.config.job_id!r} has no completed checkpoint to stop with")
        self._stopping, self._draining = True, drain
        self._checkpoint(self._run_spark_job if drain else self._epochs.repeat)
        self.finished = True
        return self.savepoint(target, format_type)

    def _checkpoint(self, run: Callable[[int], EpochResults], barriers: int = 1) -> CompletedEpoch:
        if self._error is not None:
            raise CheckpointError("this attempt has failed; start another one") from self._error
        self._run, self._barriers = run, barriers
        started, before = time.monotonic(), self._attempt.latest
        try:
            self._trigger()
        except BaseException as e:
            self._error = e
            raise
        metadata = self._attempt.latest
        if metadata is None or metadata is before:
            self._error = self._failure or CheckpointError("the checkpoint was aborted")
            raise self._error
        self.finished = metadata.end_of_input or metadata.stopped
        return CompletedEpoch(
            checkpoint_id=metadata.checkpoint_id,
            metadata=metadata,
            metadata_path=f"{self._location.url}/chk-{metadata.checkpoint_id}/{METADATA_NAME}",
            digest=hashlib.sha256(metadata.to_bytes()).hexdigest(),
            duration_ms=int((time.monotonic() - started) * 1000),
            operators=operator_reports(metadata, set(self._committers.uids)),
            statistics=self._coordinator.statistics,
        )

    def _trigger(self) -> None:
        latest = self._attempt.latest
        while self._periodic and self._attempt.latest is latest and self._failure is None:
            _wait(max(0, self._due_ms - _now()) / 1000)
            self._drive(PeriodicTick(_now()))
        if self._periodic:
            return
        kind = CheckpointKind.SAVEPOINT if self._stopping else CheckpointKind.CHECKPOINT
        self._drive(TriggerRequested(_now(), kind, forced=True, stop=self._stopping, request_id=self._owner))

    def _drive(self, stimulus: Stimulus) -> None:
        """Carries out what the coordinator wants until it wants nothing more."""
        todo: deque[Instruction] = deque(self._coordinator.handle(stimulus))
        while todo:
            for answer in self._perform(todo.popleft()):
                todo.extend(self._coordinator.handle(answer))

    def _perform(self, instruction: Instruction) -> Iterator[Stimulus]:
        match instruction:
            case AssignCheckpointId():
                yield self._assign_checkpoint_id()
            case TriggerMasterHooks(checkpoint_id=checkpoint_id, timestamp_ms=timestamp, identifiers=identifiers):
                for identifier in identifiers:
                    yield self._trigger_hook(identifier, checkpoint_id, timestamp)
            case EmitBarriers(checkpoint_id=checkpoint_id) if self._emitted is not None:
                self._emitted.append(checkpoint_id)  # of a Spark job that is being planned
            case EmitBarriers(checkpoint_id=checkpoint_id):
                self._run_epoch(checkpoint_id)
            case WriteMetadata(checkpoint_id=checkpoint_id):
                self._metadata = self._create_metadata(instruction)
                yield self._finalize(checkpoint_id, self._write_metadata, MetadataWritten(_now(), checkpoint_id))
            case ReplaceHead(checkpoint_id=checkpoint_id):
                yield self._finalize(checkpoint_id, self._complete, HeadReplaced(_now(), checkpoint_id))
            case NotifyComplete(checkpoint_id=checkpoint_id):
                self._store.check_leader(self._attempt)
                self._commit(self._metadata)
                self._attempt.committed = checkpoint_id
                self._epochs.splits.notify_complete(checkpoint_id)
                for listener in self._listeners():
                    listener.notify_checkpoint_complete(checkpoint_id)
                for line in self._printed:
                    print(line)
                self._epochs.go_on_from(self._metadata)
                self._restore.dispose_claimed(self._owner, _now())
                yield CommitFinished(_now(), checkpoint_id)
            case NotifySubsumed(checkpoint_id=checkpoint_id):
                for listener in self._listeners():
                    listener.notify_checkpoint_subsumed(checkpoint_id)
            case DropSubsumed(checkpoint_ids=checkpoint_ids):
                self._subsumed += checkpoint_ids
            case DiscardState(files=files):
                self._store.discard(self._attempt, files)
            case NotifyAborted(checkpoint_id=checkpoint_id, reason=reason):
                self._progress(f"checkpoint {checkpoint_id} was aborted: {reason.value}")
                # Once fenced it aborts nothing: what is open may be of the attempt that took over.
                with suppress(FencedError, StorageError):
                    self._abort_lingering()
                for listener in self._listeners():
                    listener.notify_checkpoint_aborted(checkpoint_id)
            case FailJob(message=message):
                raise self._failure or CheckpointError(message)
            case ArmPeriodic(at_ms=at_ms):
                self._due_ms = at_ms
            case Rejected(reason=CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS, message=message):
                self._progress(message)  # it is due again when the pause is over
            case Rejected(message=message):
                raise self._failure or CheckpointError(f"no checkpoint was taken: {message}")
            case ArmTimeout() | SnapshotCoordinators() | CancelSparkJob():
                pass  # the timeout runs with the Spark job, which is over when the coordinator hears of its end
            case _:
                raise AssertionError(f"unknown instruction {instruction!r}")

    def _assign_checkpoint_id(self) -> Stimulus:
        self._failure = None
        try:
            self._store.renew(self._attempt, self._lease, _now())
            return CheckpointIdAssigned(_now(), self._store.assign_checkpoint_id(self._attempt))
        except StorageError as e:
            self._failure = e
            return TriggerFailed(_now(), str(e))

    def _trigger_hook(self, identifier: str, checkpoint_id: int, timestamp_ms: int) -> Stimulus:
        try:
            state = self._hooks.trigger(identifier, checkpoint_id, timestamp_ms)
        except CheckpointError as e:
            self._failure = e
            return MasterHookFailed(_now(), checkpoint_id, identifier, str(e))
        return MasterStateCollected(_now(), checkpoint_id, identifier, state)

    def _listeners(self) -> list[CheckpointListener]:
        return [each for each in (*self._committers, *self._hooks) if isinstance(each, CheckpointListener)]

    def _write_metadata(self) -> None:
        self._store.write_metadata(self._attempt, self._metadata)

    def _complete(self) -> None:
        self._store.complete(
            self._attempt,
            self._metadata,
            partition=self._epochs.partition_end(self._metadata, self._attempt.head.partitions),
            partition_retention=self.config.partition_retention,
            started_from=None if self.restored is None else self.restored.checkpoint_id,
        )

    def _finalize(self, checkpoint_id: int, write: Callable[[], None], done: Stimulus) -> Stimulus:
        try:
            write()
        except FlinkPyError as e:
            self._failure = e
            return MetadataWriteFailed(_now(), checkpoint_id, isinstance(e, StorageError), str(e))
        return done

    # --- one epoch ---------------------------------------------------------------------------------------------------

    def _run_epoch(self, checkpoint_id: int) -> None:
        """Runs the epoch and tells the coordinator what came of it."""
        self._failure = None
        tag = f"flinkpy-{self.config.job_id}-{self.token}-{checkpoint_id}"
        self._session.limit(tag, self.config.checkpointing.timeout)
        self._subsumed = []
        try:
            results = self._run(checkpoint_id)
            if results.failure is None:
                results.check_complete(self._epochs.ended, self._plan().tasks_to_wait_for)
                results.check_consistent()
        except FlinkPyError as e:
            if self._session.timed_out:
                self._drive(TimerFired(_now(), checkpoint_id))
                return
            self._failure = cause = self._cause(e)
            self._drive(self._decline(checkpoint_id, None, cause))
            return
        failure = results.failure
        if failure is not None:
            self._failure = cause = self._cause(failure.error)
            self._drive(self._decline(checkpoint_id, failure.task, cause))
            return
        self.collected = results.collected
        for position, (acknowledged_id, states) in enumerate(sorted(results.acknowledged.items())):
            self._printed = results.printed.get(position, [])
            self._acknowledge(acknowledged_id, states)
        # State files are named by content: one that an old checkpoint names and the first of the job does not may be
        # named by the second again. So old checkpoints go when all of the job are complete.
        if self._subsumed:
            self._store.subsume(self._attempt, self._subsumed)

    def _acknowledge(self, checkpoint_id: int, states: Mapping[Task, SubtaskState]) -> None:
        """Hands over what all tasks and enumerators said of a checkpoint; returns when it is complete."""
        for task, state in states.items():
            message = AcknowledgeCheckpoint(
                self.config.job_id, checkpoint_id, self.token, task.uid, task.subtask, state
            )
            self._drive(Acknowledge(_now(), message))
        for uid, state in self._epochs.splits.take_states(checkpoint_id).items():
            self._drive(CoordinatorSnapshotted(_now(), checkpoint_id, uid, state))

    def _cause(self, error: FlinkPyError) -> FlinkPyError:
        """State files that are missing are no damage where a newer attempt has taken over: it has subsumed them."""
        if isinstance(error, CorruptStateError):
            try:
                self._store.check_leader(self._attempt)
            except (FencedError, StorageError) as unclear:  # nobody is told of damage that is not certain
                return unclear
        return error

    def _decline(self, checkpoint_id: int, task: Task | None, error: FlinkPyError) -> Decline:
        where = task or Task(self.graph.vertices[0].uid, 0)
        cause = {"type": type(error).__name__, "message": str(error.args[0] if error.args else error)}
        reason = CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION
        if task is not None:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        message = DeclineCheckpoint(
            self.config.job_id, checkpoint_id, self.token, where.uid, where.subtask, reason, cause
        )
        return Decline(_now(), message)

    def _plan_intervals(self, checkpoint_id: int) -> list[Interval]:
        """Plans what the barriers end that the Spark job is to carry."""
        if self._draining:
            return self._epochs.plan_drain(checkpoint_id)
        return self._epochs.plan(checkpoint_id, self._barriers, self._emit_next)

    def _emit_next(self) -> int:
        """Triggers another checkpoint, whose barrier the Spark job that is being planned carries, too."""
        self._emitted = []
        self._trigger()
        if not self._emitted:
            raise self._failure or CheckpointError("the checkpoint was aborted")
        (later_id,) = self._emitted
        self._emitted = None
        return later_id

    def _run_spark_job(self, checkpoint_id: int) -> EpochResults:
        intervals = self._plan_intervals(checkpoint_id)
        epoch, splits = self._epochs.epoch(intervals), self._epochs.splits
        for interval in intervals:
            self._progress(f"checkpoint {interval.checkpoint_id}: {splits.describe(interval)}")
        results = EpochResults.of(self._on_spark(epoch))
        if results.failure is None:
            splits.was_read(intervals[-1].checkpoint_id, results.states)
        return results

    def _on_spark(self, epoch: Epoch) -> list[WireRow]:
        """Runs the Spark job."""
        with self._session.open() as spark:
            return list(run_region(spark, epoch))

    # --- completing --------------------------------------------------------------------------------------------------

    def _create_metadata(self, write: WriteMetadata) -> CheckpointMetadata:
        stopped = True if self._stopping or self._stopped else None
        return self._epochs.metadata(write, {**self._restore.properties, STOPPED: stopped})

    def _commit(self, metadata: CheckpointMetadata) -> int:
        try:
            return self._committers.commit(metadata)
        except CommittableLostError:
            self._store.check_leader(self._attempt)  # who took over has committed it, and may have replaced it since
            raise

    # --- savepoints --------------------------------------------------------------------------------------------------

    def savepoint(
        self, target: str | None = None, format_type: SavepointFormatType = SavepointFormatType.CANONICAL
    ) -> str:
        """Writes a savepoint of the last completed checkpoint.

        Args:
            target: The folder that gets it; None: the job's own prefix, where a native one must be.
            format_type: Whether it is self-contained, or refers to files of the job's checkpoints.

        Returns:
            Its URL.

        Raises:
            ConfigurationError: A native savepoint is to be outside of the job's prefix.
            CheckpointError: There is no completed checkpoint yet.
            FencedError: A newer attempt took over, and has subsumed it.
        """
        latest = self._attempt.latest
        if latest is None:
            raise CheckpointError(
                f"job {self.config.job_id!r} has no completed checkpoint to make a savepoint of: run it first"
            )
        location = self._savepoint_location(target)
        try:
            folder = write_savepoint(without_committables(latest), self._store.store, location.open(), format_type)
        except CorruptStateError:
            self._store.check_leader(self._attempt)  # a newer attempt may have subsumed the checkpoint meanwhile
            raise
        return f"{location.url}/{folder}"

    def _savepoint_location(self, target: str | None) -> StorageLocation:
        return self._location if target is None else replace(self.config.storage, url=target)


def _wait(seconds: float) -> None:
    time.sleep(seconds)


def _now() -> int:
    return time.time_ns() // 1_000_000
