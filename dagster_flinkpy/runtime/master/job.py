"""An execution attempt of a job: takes the leadership, restores state, runs epochs, and releases the leadership.

The master drives what runs (:mod:`~dagster_flinkpy.runtime.master.job_master`).
:mod:`~dagster_flinkpy.checkpoint.starting_point` finds what to restore,
:mod:`~dagster_flinkpy.runtime.master.epochs.epoch_planner` plans what each epoch reads, and
:mod:`~dagster_flinkpy.runtime.master.attempt_runs` runs what callers ask for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

from dagster_flinkpy.checkpoint.attempt import Attempt
from dagster_flinkpy.checkpoint.coordinator.checkpoint_contents import CheckpointContents
from dagster_flinkpy.checkpoint.coordinator.coordinator import CheckpointCoordinator
from dagster_flinkpy.checkpoint.coordinator.instructions import WriteMetadata
from dagster_flinkpy.checkpoint.coordinator.statistics import CheckpointStatistics
from dagster_flinkpy.checkpoint.coordinator.timeline import CheckpointTimeline
from dagster_flinkpy.checkpoint.forks.fork_sinks import refuse_sinks_of_origins
from dagster_flinkpy.checkpoint.locations.input_conflicts import check_input_conflicts
from dagster_flinkpy.checkpoint.locations.savepoint_target import check_job
from dagster_flinkpy.checkpoint.metadata import STOPPED, CheckpointMetadata
from dagster_flinkpy.checkpoint.operator_program import operator_folders
from dagster_flinkpy.checkpoint.operator_states import EXCHANGE_FOLDER
from dagster_flinkpy.checkpoint.partitions import PartitionEnd
from dagster_flinkpy.checkpoint.recomputation import Recomputation
from dagster_flinkpy.checkpoint.reports.execution_report import ExecutionReport
from dagster_flinkpy.checkpoint.restore import RestorePlan
from dagster_flinkpy.checkpoint.starting_point import Restore
from dagster_flinkpy.checkpoint.store import CompletedCheckpointStore
from dagster_flinkpy.common.clock import current_millis, steady_millis
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState, RecoveryClaimMode
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import FlinkPyError, shorten
from dagster_flinkpy.runtime.blocking.segments import bind_blocking_edges
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.attempt_runs import AttemptRuns
from dagster_flinkpy.runtime.master.commits.checkpoint_steps import CheckpointSteps
from dagster_flinkpy.runtime.master.commits.committers import Committers
from dagster_flinkpy.runtime.master.commits.master_hooks import MasterHooks
from dagster_flinkpy.runtime.master.commits.transactions import Transactions
from dagster_flinkpy.runtime.master.deployed_job import DeployedJob
from dagster_flinkpy.runtime.master.deployments.job_exchange import JobExchange
from dagster_flinkpy.runtime.master.epoch_schedule import EpochSchedule
from dagster_flinkpy.runtime.master.epochs.open_epoch import OpenEpoch
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.job_failover import JobFailover
from dagster_flinkpy.runtime.master.job_master import JobMaster
from dagster_flinkpy.runtime.master.job_reporter import JobReporter
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.runtime.master.job_state import JobState
from dagster_flinkpy.runtime.master.lease_keeper import LeaseKeeper, await_leadership
from dagster_flinkpy.runtime.master.mailbox import InlineMailbox, Mailbox, ThreadMailbox
from dagster_flinkpy.runtime.master.regions.job_regions import JobRegions
from dagster_flinkpy.runtime.master.regions.region_epoch import Turn
from dagster_flinkpy.runtime.master.regions.region_runner import JobRunner
from dagster_flinkpy.runtime.master.requests.request_desk import RequestDesk
from dagster_flinkpy.runtime.master.requests.savepoints import JobSavepoints
from dagster_flinkpy.runtime.master.results import EpochResults
from dagster_flinkpy.runtime.master.slots.job_slots import JobSlots
from dagster_flinkpy.runtime.master.watchdog import Watchdog
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.spark.user_logs import LogEntry, LogRelay, log_here

__all__ = ["JobAttempt", "JobConfig"]

_LEASE = timedelta(seconds=15)
"""How long another run waits for one that has died. The lease is renewed when less than half of it is left."""
_LINE_CHARACTERS = 2_000


class JobAttempt(AttemptRuns):
    """One execution attempt of a job; a context manager.

    On entry it takes the leadership with a greater fencing token, restores the last completed checkpoint, commits what
    that checkpoint has not committed yet, and aborts what dead attempts left open.

    Args:
        graph: The program.
        config: Where the job runs.
        owner: Who runs the attempt, in a form that people understand, such as a Dagster run id.
        led_by: Id of the run that the attempt belongs to, for other runs of the job. Default: unknown.
        take_over: Whether to fence another run that is working on the job, instead of waiting for its end. An earlier
            try of the same run is always fenced. Default: True; but runs in Dagster and scripts wait.
        start_empty: Whether to start from empty state, even if there are checkpoints.
        start_over: Whether the attempt may begin even if HEAD or the latest checkpoint is lost or damaged. Default:
            True if ``start_empty`` or ``restore_from`` is given.
        parallelism: Parallelism of the operators that do not set their own. Default: the one that the restored
            checkpoint was rescaled to, or else that of the program.
        restore_from: A savepoint (its folder, as a path or URL), a checkpoint of this job (``chk-7``), or this job's
            own folder, which stands for its latest checkpoint. Default: the last completed checkpoint.
        choose_start: Returns ``restore_from``, or None for empty state, once the attempt leads the job. Default: none.
        claim_mode: Who owns ``restore_from`` after the restore. Default: what the program sets, or else ``NO_CLAIM``.
        allow_non_restored_state: Whether to leave behind state whose operator or master hook is gone: True for any
            state, or a list of uids.
        allow_pickled_state: Whether a savepoint outside the job's own prefix may contain pickled state. Whoever wrote
            it can run code here.
        recomputation: Which operators start empty, and read their input again. Default: none.
        run_id: Identifies the run; all its tries have the same one. Once a try has completed a checkpoint, later tries
            continue from there. They neither restore ``restore_from`` nor start from empty state again, which would
            commit the same rows twice, nor read a DataFrame again.
        require_uids: Whether stateful operators must have a uid. Not needed if the state is thrown away afterwards.
        on_progress: Takes one-line progress messages.
        on_log: Takes what user functions log and print on the workers. Default: logs and prints it in this process.

    Raises:
        MissingUidError: A stateful operator has no uid.
        ConfigurationError: A source or sink has its files in the folder of the job, or the other way round.
        ConditionalWritesUnsupportedError: The store does not support the conditional writes that fencing needs.
        RestoreError: The state does not fit the program.
        CommittableLostError: Something that the last checkpoint has to commit is gone, and nothing else is restored.
        NoResourceAvailableError: The job must have all slots at once, and Spark has fewer.
        HeadLostError: The job has run before, but its HEAD is missing.
        CorruptMetadataError: The checkpoint cannot be read.
    """

    stopped = False
    """Whether the job was stopped with a savepoint, and nobody has restored one since."""

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        *,
        owner: str,
        led_by: str = "",
        take_over: bool = True,
        start_empty: bool = False,
        start_over: bool | None = None,
        parallelism: int | None = None,
        restore_from: str | None = None,
        choose_start: Callable[[Attempt], str | None] | None = None,
        claim_mode: RecoveryClaimMode | None = None,
        allow_non_restored_state: NonRestoredState = False,
        allow_pickled_state: bool = False,
        recomputation: Recomputation | None = None,
        run_id: str | None = None,
        require_uids: bool = True,
        on_progress: Callable[[str], None] | None = None,
        on_log: Callable[[LogEntry], None] = log_here,
    ) -> None:
        super().__init__(config)
        if require_uids:
            graph.require_uids()
        graph.regions()  # checks that blocking edges separate the program
        self._location = config.storage.child(config.job_id)
        self._folders = tuple(url for v in graph.vertices for url in operator_folders(v.spec))  # read or written
        check_job(self._location, self._folders)
        check_input_conflicts(graph, config.job_id)
        self._program = graph = bind_blocking_edges(graph.split(), self._location.child(EXCHANGE_FOLDER))
        self.graph = graph if parallelism is None else graph.with_parallelism(parallelism)
        self.committed_on_recovery = 0
        """How many committables of the last checkpoint this attempt had to commit when it began."""
        self.aborted_lingering = 0
        """How many open transactions of dead attempts were aborted."""
        self._owner, self._led_by, self._takes_over = owner, led_by, take_over
        self._start_over = start_empty or restore_from is not None if start_over is None else start_over
        self._on_progress, self._on_log, self._logs = on_progress, on_log, LogRelay(on_log)
        self._restore = Restore(
            path=restore_from,
            start_empty=start_empty,
            parallelism=parallelism,
            claim_mode=claim_mode or config.checkpointing.claim_mode,
            allow_non_restored_state=allow_non_restored_state,
            allow_pickled_state=allow_pickled_state,
            choose=choose_start,
            recomputation=recomputation,
            run_id=run_id,
            progress=self._progress,
        )
        self._spark = SharedSession(config.spark, self._progress)
        self._exchange = self._create_exchange(graph)
        self._keeper, self._mailbox = self._create_lease_keeper(), self._create_mailbox()
        self._watchdog = Watchdog(config.checkpointing.timeout)
        self._hooks = MasterHooks(config.checkpointing.master_hooks, self._watchdog)
        self._reporter = JobReporter(
            config, lambda: self._deployed, self._mailbox, self._watchdog, _now, self._progress
        )

    def _progress(self, line: str) -> None:
        if self._on_progress is not None:
            self._on_progress(shorten(line, _LINE_CHARACTERS))

    # --- life --------------------------------------------------------------------------------------------------------

    def __enter__(self) -> JobAttempt:
        try:
            self._require_slots(self.graph)
            self._watchdog.run(
                "looking at what it was forked from", refuse_sinks_of_origins, self._location, self.graph
            )
            what = f"taking over job {self.config.job_id!r}"
            self._attempt: Attempt = await_leadership(
                lambda: self._watchdog.run(what, self._take_over), self._location, _wall, self._progress
            )
        except BaseException:
            self._watchdog.close()
            raise
        try:
            self._keeper.keep(self._store, self._attempt)
            former = self._attempt.former
            if former is not None and former.alive(_wall()):
                still = "which may still be running but can no longer complete a checkpoint"
                self._progress(f"took over from {former.owner!r}, {still}")
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def _require_slots(self, graph: JobGraph) -> None:
        if self.config.require_all_slots and not self.config.in_process:
            self._slots(graph).require_all(JobSession(self._spark))

    def _slots(self, graph: JobGraph) -> JobSlots:
        return JobSlots(self.config.job_id, graph, self.config.spark, self._progress)

    def _take_over(self, after: Attempt | None = None) -> Attempt:
        job_store = self._location.open()
        self.config.storage.open().probe()
        self._store = CompletedCheckpointStore(job_store, self.config.checkpointing.num_retained)
        return self._store.begin_attempt(
            self._owner,
            _wall(),
            self._keeper.lease,
            start_over=self._start_over,
            led_by=self._led_by,
            after=after,
            take_over=self._takes_over,
        )

    def _begin(self) -> None:
        latest = self._attempt.latest
        if self._attempt.left_behind:
            self._progress(f"starting over and leaving behind: {self._attempt.left_behind}")
        self._restore.settle(self._attempt, self._location, self.graph)
        session = JobSession(self._spark)
        ancestors = self._watchdog.run("reading what is restored", self._restore.ancestors, self._location, latest)
        committers = Committers(self.graph, self.config.job_id, self.token, self._watchdog, session, ancestors)
        self._transactions = Transactions(
            self._store, self._attempt, committers, self._restore, self._watchdog, self._progress
        )
        committed, self.aborted_lingering = self._transactions.recover(
            lambda metadata: self._commit(metadata), start_over=self._start_over
        )
        self.committed_on_recovery = committed or self.committed_on_recovery
        load = partial(self._restore.load, self._location, self.graph, self._store, self._attempt)
        self.restored = committers.check_to_replace(self._watchdog.run("loading the state to restore", load))
        # From the first checkpoint of a fork on, it is to write elsewhere.
        if self.restored and self._restore.path is None and not (ancestors and self.restored.parent_id is None):
            for text in committers.moved(self.restored):
                self._on_log(LogEntry("", 0, self.restored.checkpoint_id, logging.WARNING, __name__, text))
        self.stopped = self.restored is not None and self.restored.stopped and self._restore.path is None
        self.finished = self.restored is not None and (self.restored.end_of_input or self.stopped)
        self._hooks.restore(self.restored, allow_non_restored_state=self._restore.allow_non_restored_state)
        self._savepoints = JobSavepoints(
            self._location,
            self._store,
            self._transactions.check_leader,
            self.config.checkpointing.timeout,
            self._folders,
        )
        lease = self._keeper.lease
        self._desk = RequestDesk(
            self._store, self._attempt, self._watchdog, self._savepoints, lease, _now, _wall, self._progress
        )
        statistics = self._watchdog.run("loading the statistics", self._store.load_statistics, self._attempt)
        self._deploy(self.restored, statistics)

    def _deploy(self, start: CheckpointMetadata | None, statistics: CheckpointStatistics) -> None:
        """Creates the master of a job that continues from a checkpoint, at the parallelism to restore it with.

        All is created before anything is replaced, because other threads use what is there, and it may fail.
        """
        plan: RestorePlan | None = None
        graph = self._restore.settle_parallelism(self._program, start)
        if start is not None:
            graph, plan = self._restore.assign(graph, start)
            self._require_slots(graph)  # the parallelism may be another one
        slots = self._slots(graph)
        config, run_id = self.config, self._restore.run_id
        regions = JobRegions(
            graph, config, self.token, run_id, start, plan, self._spark, self._watchdog, self._progress
        )
        regions.discard_lingering(partial(self._store.unnamed, self._attempt))
        contents = CheckpointContents(graph, self.config.job_id, self.token, start)
        coordinator = CheckpointCoordinator(
            self.config.job_id,
            self._attempt.token,
            regions.checkpoint_plan(self._transactions.committers.uids, self._hooks.identifiers),
            self.config.checkpointing,
            restored=start,
            retained=self._attempt.head.retained,
            statistics=statistics,
        )
        failover = self._deploy_executions(regions)
        master = self._create_master(slots, regions, contents, coordinator, failover)
        if self._reporter.tokens:
            self._deployed.regions.close()
        self._deployed = DeployedJob(
            self._attempt,
            slots,
            regions,
            contents,
            coordinator,
            failover,
            self._transactions,
            self._savepoints,
            self._desk,
            master,
        )
        self.graph = graph
        self._reporter.tokens.add(self.token)
        master.start()

    def _deploy_executions(self, regions: JobRegions) -> JobFailover:
        """Returns the executions of the job: new ones, or those of its former deployment with other subtasks."""
        if self._reporter.tokens:
            former = self._deployed.failover
            failover = former.deployed(regions.graphs)
            if failover is former:
                return former
        else:
            self._reporter.open(self._store)
            self._started_from = None if self.restored is None else self.restored.checkpoint_id
            failover = JobFailover(regions.graphs, regions.edges, self.config, _now, self._progress)
        failover.graph.add_listener(self._reporter.on_status)
        return failover

    def _create_master(
        self,
        slots: JobSlots,
        regions: JobRegions,
        contents: CheckpointContents,
        coordinator: CheckpointCoordinator,
        failover: JobFailover,
    ) -> JobMaster:
        turn, timeline, requests = Turn(), CheckpointTimeline(_now), self._desk.requests
        states = regions.states(failover.graph, turn)
        schedule = EpochSchedule(
            states,
            coordinator,
            requests,
            contents,
            turn,
            owner=self._owner,
            can_open_epochs=lambda: self._mailbox.has_threads and self._exchange.can_open_epochs(slots),
        )
        state = JobState(
            coordinator,
            states,
            failover,
            requests,
            contents,
            turn,
            schedule,
            create_metadata=lambda write: self._create_metadata(write),
        )
        return JobMaster(
            state,
            self._create_runners(regions, timeline),
            self._create_steps(timeline),
            self._mailbox,
            self._desk,
            on_completed=self._on_completed,
            on_aborted=self._reporter.aborted,
            discard_read=regions.discard_read,
            progress=self._progress,
            records=lambda: self._exchange.records_read(),
        )

    def _create_runners(self, regions: JobRegions, timeline: CheckpointTimeline) -> list[JobRunner]:
        return [
            JobRunner(
                planner,
                session,
                self._watchdog,
                run_job=lambda job, *open_epoch: self._on_spark(job, *open_epoch),
                on_results=self._on_results,
                check_leader=self._transactions.check_leader,
                progress=self._progress,
                timeline=timeline,
                now=_now,
                tell=self._mailbox.tell,
            )
            for planner, session in zip(regions.planners, regions.sessions, strict=True)
        ]

    def _create_steps(self, timeline: CheckpointTimeline) -> CheckpointSteps:
        return CheckpointSteps(
            self._store,
            self._attempt,
            self._watchdog,
            self._hooks,
            self._transactions,
            self._keeper.lease,
            self.config.partition_retention,
            self._started_from,
            _now,
            _wall,
            commit=lambda metadata: self._commit(metadata),
            after_commit=self._after_commit,
            timeline=timeline,
            tell_tasks=self._exchange.notify,
        )

    def _create_exchange(self, graph: JobGraph) -> JobExchange:
        return JobExchange(
            self.config,
            self._spark,
            self._progress,
            lambda: self._transactions.check_leader(),
            graph,
            lambda region: self._deployed.regions.planners[region].coordinators,
            self._logs.hear,
        )

    def _create_lease_keeper(self) -> LeaseKeeper:
        return LeaseKeeper(_LEASE, _wall)

    def _create_mailbox(self) -> Mailbox:
        return ThreadMailbox(_now) if self._exchange.needs_threads else InlineMailbox(now=_now)

    def _on_completed(self, metadata: CheckpointMetadata) -> None:
        self.finished = metadata.end_of_input or metadata.stopped
        self._reporter.completed()

    def _after_commit(self) -> None:
        if self._deployed.contents.partition is None:  # otherwise another try begins with the first partition again
            self._restore.dispose_claimed(self._owner, _wall())
        self._reporter.write()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        found: BaseException | None = None
        try:
            self._deployed.master.settle() if error is None else self._deployed.master.interrupt()
        except BaseException as late:  # the error of an epoch that the caller did not wait for; or a second Ctrl-C
            error = found = late
        try:
            found = self._end_exchange(error) or found
        except BaseException as late:  # a second Ctrl-C; the process may go on, as that of a notebook does
            error = found = late
        try:
            self._deployed.regions.close()
            self._spark.close()
            # If this attempt was fenced or cannot reach the store, the next one tidies up.
            with suppress(FlinkPyError):
                if error is None and self._deployed.master.error is None:
                    self._transactions.abort_left_open()
                    if not found and self.latest is not None and self.latest.fencing_token in self._reporter.tokens:
                        self._watchdog.run("deleting a savepoint", self._restore.dispose_claimed, self._owner, _wall())
            with suppress(FlinkPyError):
                retention = self.config.checkpointing.retention
                if self._attempt.discards_checkpoints(retention, error, finished=self.finished):
                    self._watchdog.run("deleting checkpoints", self._store.delete_checkpoints, self._attempt)
            with suppress(FlinkPyError):
                self._desk.close(error or self._deployed.master.error)
            self._deployed.failover.close(error or self._deployed.master.error, finished=self.finished)
            with suppress(FlinkPyError):
                self._reporter.ended(error or self._deployed.master.error)
        finally:
            self._end()
        if found is not None:
            raise found

    def _end_exchange(self, error: BaseException | None) -> BaseException | None:
        """Ends the tasks. Returns what a function has raised that was to be closed."""
        try:
            if error is None and self._deployed.master.error is None:
                last = 0 if self.latest is None else self.latest.checkpoint_id
                results = EpochResults.of(self._exchange.finish(), last)
                self._logs.end(0, results.logs, results.missing_logs, last)
                if results.failure is not None:
                    return results.failure.error
        except FlinkPyError as late:
            return late
        finally:
            self._exchange.close()
        return None

    def _end(self) -> None:
        self._mailbox.close()
        self._keeper.close()
        self._reporter.close()
        self._hooks.close()
        with suppress(FlinkPyError):  # a lease that is not released expires
            self._watchdog.run("releasing the leadership", self._store.end_run, self._attempt, _wall())
        self._watchdog.close()

    @property
    def execution(self) -> ExecutionReport | None:
        """How the attempt is executed, or was: states, restarts and failures. None if it has not begun."""
        return self._reporter.execution

    @property
    def status(self) -> JobStatus:
        """The state of the job. Any thread may ask."""
        return self._deployed.failover.graph.status

    @property
    def partition_ends(self) -> tuple[PartitionEnd, ...]:
        """The end states of time partitions that the job keeps, in order of time."""
        return self._attempt.head.partitions

    @property
    def latest(self) -> CheckpointMetadata | None:
        """The last completed checkpoint."""
        return self._attempt.latest

    def renumber_partitions(self, renumber: Callable[[tuple[PartitionEnd, ...]], tuple[PartitionEnd, ...]]) -> None:
        """Changes the ordinals of the kept end states; the next checkpoint stores them."""
        head = self._attempt.head
        self._attempt.head = replace(head, partitions=renumber(head.partitions))

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._attempt.token

    # --- epochs ------------------------------------------------------------------------------------------------------

    def terminate(self, error: BaseException) -> None:
        """Makes the iteration over :meth:`run_epochs` raise an error soon, without losing completed work.

        The running epoch is abandoned. Checkpoints that all tasks have acknowledged are completed and yielded first.
        Any thread may call it, and a signal handler.
        """
        self._mailbox.terminate(error)

    def refuse_input_after_end(self) -> None:
        """Checks that a finished job has no new input.

        Raises:
            InputAfterEndError: A source has input that came after its end. The message names both.
            SourceReadError: Input cannot be listed.
        """
        if self.finished and not self.stopped:
            for planner in self._deployed.regions.planners:
                planner.splits.refuse_input_after_end(all_ended=True)

    def _rescale(self, parallelism: int) -> None:
        kept, self._restore.parallelism = self._restore.parallelism, parallelism
        try:
            self._deploy(self._deployed.contents.parent, self._deployed.coordinator.statistics)
        except BaseException:
            self._restore.parallelism = kept
            raise

    def _restart(self) -> None:
        """Begins again with a greater token, if this attempt still leads."""
        latest, tokens = self._attempt.latest, self._reporter.tokens
        self._start_over = self._start_over and (latest is None or latest.fencing_token not in tokens)
        self._attempt = self._watchdog.run("restarting the job", self._take_over, self._attempt)
        self._keeper.keep(self._store, self._attempt)
        self._reporter.save_statistics()  # those of the attempt that has failed
        latest = self._attempt.latest  # it may be the one of which it was not known whether HEAD names it
        if latest is not None and latest.fencing_token in tokens:
            self._restore.continue_run()
        self._deployed.failover.restart_all()
        self._begin()

    # --- what the lanes do -------------------------------------------------------------------------------------------

    def _on_results(self, results: EpochResults, job: EpochJob) -> None:
        self._logs.end(job.region, results.logs, results.missing_logs, job.checkpoint_id)

    def _on_spark(self, job: EpochJob, open_epoch: OpenEpoch | None = None) -> Sequence[WireRow]:
        """Runs the tasks of a region for an epoch, where and as the exchange says."""
        deployed = self._deployed
        return self._exchange.run(job, deployed.regions.sessions[job.region], deployed.slots, open_epoch)

    def _commit(self, metadata: CheckpointMetadata) -> int:
        return self._transactions.commit(metadata)

    def _create_metadata(self, write: WriteMetadata) -> CheckpointMetadata:
        deployed, stopped = self._deployed, True if self._stopping or self.stopped else None
        written = [each for region in deployed.master.state.regions for each in region.outputs[write.checkpoint_id]]
        ended = all(planner.ended[write.checkpoint_id] for planner in deployed.regions.planners)
        properties = {**self._restore.properties, STOPPED: stopped}
        return deployed.contents.metadata(write, written, ended=ended, properties=properties)


def _now() -> int:
    """Tells the time for what waits in this run."""
    return steady_millis()


def _wall() -> int:
    """Tells the time for what other machines read, such as the lease."""
    return current_millis()
