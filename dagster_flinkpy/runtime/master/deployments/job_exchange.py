"""Chooses what carries the records of an attempt, and runs its tasks with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from dagster_flinkpy.common.exchange_options import ExchangeMode
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.datastream.functions import function_of
from dagster_flinkpy.datastream.input_selection import InputSelectable
from dagster_flinkpy.datastream.operator_coordinator import CoordinatedFunction
from dagster_flinkpy.datastream.operator_specs import SourceSpec, SparkSourceSpec, SparkTransformSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    ExecutorLostError,
    FlinkPyError,
    NoResourceAvailableError,
    PythonWorkerLostError,
    SlotLostError,
    UnsupportedEnvironmentError,
    message_of,
    shorten,
)
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.master.deployments.in_process import run_in_process
from dagster_flinkpy.runtime.master.deployments.pipelined_region import PipelinedRegion, places_of, resources_of
from dagster_flinkpy.runtime.master.deployments.region_job import runs_a_task
from dagster_flinkpy.runtime.master.deployments.slot_processes import host_of_driver, start_here, start_on_spark
from dagster_flinkpy.runtime.master.deployments.way_to_store import WayToStore
from dagster_flinkpy.runtime.master.epochs.open_epoch import OpenEpoch
from dagster_flinkpy.runtime.master.epochs.operator_coordinators import OperatorCoordinators
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.runtime.master.slots.job_slots import JobSlots
from dagster_flinkpy.runtime.master.slots.slot_pool import SlotPool
from dagster_flinkpy.runtime.shuffle.wire import WireRow
from dagster_flinkpy.spark.progress import ProgressLines, SparkProgress, watched
from dagster_flinkpy.spark.record_counts import RecordCounts
from dagster_flinkpy.spark.sessions import announce_job, kept_slots

__all__ = ["JobExchange"]

_AUTO_TIMEOUT = timedelta(seconds=20)
"""How long slots may take to start before ``AUTO`` does without them."""
_FREE_SECONDS = 10.0
"""How long a small Spark job may wait for a slot beside those of the job."""
_TAKEN = "no slot would be left to others"
_COPIES = "Spark would start copies of slots, and then end the slots: unset spark.speculation.task.duration.threshold"


class JobExchange:
    """Runs the tasks of a region for an epoch: in slots, in a Spark job, or in this process.

    With `ExchangeMode.AUTO` it begins with slots. If there are too few of them, or they do not reach each other, it
    says so, and goes on with Spark jobs. Nothing has been read by then. As slots are kept until the attempt ends, they
    leave one at least to others, and to Spark jobs of this one. An epoch that loses a slot is run again as a Spark job:
    Spark tries a task whose worker dies several times, and tells why.

    Raises:
        ConfigurationError: The program can only be run by tasks that live, and they are not allowed.
    """

    def __init__(
        self,
        config: JobConfig,
        shared: SharedSession,
        progress: Callable[[str], None],
        check_leader: Callable[[], object],
        graph: JobGraph,
        coordinators_of: Callable[[int], OperatorCoordinators],
        on_logs: Callable[[int, bytes], object],
    ) -> None:
        self._config, self._shared, self._progress = config, shared, progress
        self._coordinators_of, self._on_logs = coordinators_of, on_logs
        self._check_leader = check_leader
        self._mode = config.exchange.mode
        self._needs_live = _reason_for_live(graph)
        if self._needs_live is not None:
            if self._mode is ExchangeMode.SPARK:
                raise ConfigurationError(
                    f"{self._needs_live}, which needs tasks that live: set execution.exchange to 'auto' or 'pipelined'"
                )
            self._mode = ExchangeMode.PIPELINED
        if config.in_process and self._mode is ExchangeMode.AUTO:
            self._mode = ExchangeMode.SPARK  # tasks that take turns in one thread are as good, and give the same order
        self._pool: SlotPool | None = None
        self._regions: dict[int, PipelinedRegion] = {}
        """Those whose tasks live in slots."""
        self._counts: dict[int, RecordCounts] = {}
        """What the last Spark job of a region has read."""
        self._deciding = threading.Lock()
        self._kept = ExitStack()
        """Tells other runs of the slots, until it is closed."""
        self._decided_for: JobSlots | None = None
        """The deployment of the job whose tasks live in slots; another one may have another parallelism."""
        self._on_spark_only: set[int] = set()
        """The regions that have lost slots for which there were no others."""
        self._per_process = 1
        """How many slots share a process."""
        self._way = WayToStore(config.job_id, progress)
        self._said = ""
        self._closed = False
        self.one_epoch = False
        """Whether no more than one epoch is asked for."""

    def _create_pool(self) -> SlotPool:
        config = self._config
        options = config.exchange
        if self._mode is ExchangeMode.AUTO:
            options = replace(options, slot_request_timeout=min(options.slot_request_timeout, _AUTO_TIMEOUT))
        start = start_here if config.in_process else start_on_spark(config.job_id, self._shared)
        host = "127.0.0.1" if config.in_process else host_of_driver(config.spark)
        return SlotPool(start, host, options, self._progress, self._check_leader)

    def can_open_epochs(self, slots: JobSlots) -> bool:
        """Returns whether an epoch can be open, because its tasks live, or because that is not decided."""
        checkpointing = self._config.checkpointing
        if checkpointing.master_hooks and checkpointing.tolerable_failed:
            return False  # a hook that fails would use up the id of the epoch that the tasks read
        if self._mode is ExchangeMode.AUTO and self._decided_for is not slots:
            # Several regions without live tasks may have to take turns, and one would wait for the barrier of all.
            return len(slots.regions) == 1 and not self._is_little(slots)
        if self._mode is ExchangeMode.AUTO:
            return not self._on_spark_only
        return self._mode is ExchangeMode.PIPELINED

    @property
    def needs_threads(self) -> bool:
        """Whether tasks run beside the thread of the master."""
        return self._mode is not ExchangeMode.SPARK or not self._config.in_process

    def run(
        self, job: EpochJob, session: JobSession, slots: JobSlots, open_epoch: OpenEpoch | None = None
    ) -> Sequence[WireRow]:
        """Runs the tasks, and returns what they have sent to the driver.

        Args:
            job: The region and its epoch.
            session: The session of the region. Its interruption ends the epoch.
            slots: The slots of the job.
            open_epoch: Gives out the input of the epoch, if that comes in parts; see :attr:`can_open_epochs`. Default:
                the epoch has it all.

        Raises:
            FlinkPyError: The epoch failed, or it was interrupted.
        """
        aligned = (isinstance(v.spec, SourceSpec) and v.spec.watermark_strategy.alignment for v in job.graph.vertices)
        if open_epoch is None and job.epoch.has_input and any(aligned):
            no_effect("with_watermark_alignment()", "an epoch that is not open reads all of its input at once")
        with self._deciding:
            if self._mode is not ExchangeMode.SPARK and self._decided_for is not slots and not self._is_little(slots):
                self._decide(job, session, slots)
        if self._pool is not None and self._decided_for is slots and job.region not in self._on_spark_only:
            return self._in_slots(self._pool, job, session, slots, open_epoch)
        if open_epoch is not None:
            job = replace(job, epoch=_whole(open_epoch, session))
        if self._config.in_process:
            return list(run_in_process(job))
        return self._on_spark(job, session, slots)

    def _decide(self, job: EpochJob, session: JobSession, slots: JobSlots) -> None:
        auto, asked = self._mode is ExchangeMode.AUTO, self._config.exchange.task_slots
        self._per_process, why = asked or 1, None
        if not self._config.in_process:
            with session.open() as spark:
                slots.look(spark, wait=not auto and asked is None)
            why = _COPIES if slots.copied else None
            self._per_process = asked or slots.slots_per_process(spare=1 if auto else 0)
        if why is not None and not auto:
            raise UnsupportedEnvironmentError(f"tasks cannot live in slots: {why}")
        why = why or (self._reason_for_spark(slots) if auto else None)
        if why is None:
            try:
                why = self._deploy(job, session, slots)
            except (FlinkPyError, OSError) as error:
                if not auto or session.interrupted:
                    raise
                why = shorten(message_of(error), 300)
        if why is None:
            self._decided_for = slots
            self._on_spark_only.clear()
            because = "" if self._needs_live is None else f", because {self._needs_live}"
            shared = "" if self._per_process == 1 else f", {self._per_process} in a process"
            self._say(f"tasks live in slots{shared} (execution.exchange: pipelined){because}")
            return
        self._give_back()
        self._mode, self._pool = ExchangeMode.SPARK, None
        self._regions.clear()
        self._say(f"each epoch is a Spark job (execution.exchange: spark), because {why}")

    def _deploy(self, job: EpochJob, session: JobSession, slots: JobSlots) -> str | None:
        """Asks for the slots of all regions, and deploys the tasks of one, unless it returns why not."""
        auto = self._mode is ExchangeMode.AUTO
        self._announce(slots.needed_to_live(self._per_process))
        most, kept = slots.most, kept_slots(self._config.spark)
        if auto and most is not None and kept is not None and kept >= most:
            return _TAKEN
        if self._pool is None:
            self._pool = self._create_pool()
        if self._closed:  # a lane may go on for a while after the end, and nobody would give the slots back
            raise CheckpointError("the execution attempt has ended")
        needed: dict[str, tuple[SlotSharingGroup, ...]] = {}
        for number, graph in enumerate(slots.regions):
            needed |= resources_of(graph, places_of(graph, number, self._per_process))
        with self._used(self._pool, job, session) as region:
            region.request(needed)
            region.deploy(job)
        self._pool.release(self._pool.names - needed.keys())
        return _TAKEN if auto and kept is None and not self._finds_a_slot(session) else None

    def _is_little(self, slots: JobSlots) -> bool:
        """Returns whether `AUTO` spares an attempt the start of slots, which takes longer than a small Spark job."""
        little = (
            self._mode is ExchangeMode.AUTO
            and self._decided_for is None
            and self.one_epoch
            and all(region.number_of_stages == 1 for region in slots.regions)
        )
        if little:
            why = "the run takes no other one, and exchanges no records"
            self._say(f"the epoch is a Spark job (execution.exchange: spark), because {why}")
        return little

    def _say(self, what: str) -> None:
        if what != self._said:
            self._said = what
            self._progress(f"job {self._config.job_id!r}: {what}")

    def _announce(self, slots: int) -> None:
        """Tells other runs on the same local server how many slots the job keeps."""
        self._kept.close()
        if not self._config.in_process:
            what = f"live tasks of job {self._config.job_id!r}"
            self._kept.enter_context(announce_job(self._config.spark, what, self._shared.owner, slots=slots))

    def _reason_for_spark(self, slots: JobSlots) -> str | None:
        vertices = [vertex for region in slots.regions for vertex in region.vertices]
        if any(isinstance(vertex.spec, SparkSourceSpec | SparkTransformSpec) for vertex in vertices):
            return "Spark DataFrames need the cores that slots would hold"
        if self._config.failover.failover.retries_tasks:
            return "the failover strategy retries single tasks"
        needed = slots.needed_to_live(self._per_process)
        if slots.most is not None and slots.most <= needed:
            return f"live tasks need {needed} slots and leave one to others, and Spark has {slots.most}"
        return None

    def _finds_a_slot(self, session: JobSession) -> bool:
        """Returns whether a small Spark job finds a slot while the job has its own."""
        small = JobSession(self._shared, announced=False)
        small.begin(f"flinkpy-{self._config.job_id}-free", f"a slot beside those of job {self._config.job_id!r}")
        gives_up = threading.Timer(_FREE_SECONDS, small.interrupt)
        gives_up.daemon = True
        gives_up.start()
        try:
            with session.interruptible(small.interrupt):
                return runs_a_task(small)
        finally:
            gives_up.cancel()

    @contextmanager
    def _used(self, pool: SlotPool, job: EpochJob, session: JobSession) -> Iterator[PipelinedRegion]:
        """Provides a region, and lets the interruption of its session end what it does."""
        if (region := self._regions.get(job.region)) is None:
            same_machine = self._config.in_process or self._config.spark.on_this_machine
            region = self._regions[job.region] = PipelinedRegion(pool, self._progress, same_machine=same_machine)
        region.coordinators, region.on_logs = self._coordinators_of(job.region), partial(self._on_logs, job.region)
        region.slots_per_process = self._per_process
        region.resume()
        with session.interruptible(region.interrupt):
            yield region

    def _in_slots(
        self, pool: SlotPool, job: EpochJob, session: JobSession, slots: JobSlots, open_epoch: OpenEpoch | None
    ) -> Sequence[WireRow]:
        try:
            with self._used(pool, job, session) as region:
                return region.run(job, open_epoch)
        except (ExecutorLostError, NoResourceAvailableError, PythonWorkerLostError, SlotLostError) as error:
            # More of its input may come, or only these tasks have their state.
            if self._mode is not ExchangeMode.AUTO or open_epoch is not None or job.unwritten is not None:
                raise
            what = "this epoch"
            if isinstance(error, NoResourceAvailableError):
                what = "each epoch of its region from now on"
                self._on_spark_only.add(job.region)
                self._regions[job.region].give_back()
            self._progress(f"{shorten(str(error), 300)}; {what} is a Spark job")
            return self._on_spark(job, session, slots)

    def _on_spark(self, job: EpochJob, session: JobSession, slots: JobSlots) -> Sequence[WireRow]:
        job.check_start()
        what = f"checkpoint {job.checkpoint_id} of job {job.job_id!r}"
        with session.open() as spark, RecordCounts(self._config.spark.on_this_machine) as counts:
            self._counts[job.region] = counts
            slots.look(spark)
            lines = ProgressLines(what, self._progress)
            with watched(spark, SparkProgress(lines, job.graph.number_of_stages, counts.by_stage)):
                tries = self._shared.task_tries(spark) if self._config.failover.failover.retries_tasks else 1
                return self._way.run(spark, replace(job, counts=counts.folder, task_tries=tries))

    def records_read(self) -> int:
        """Returns how many records the tasks at work have read, as far as that is known."""
        counts = (*self._counts.values(), *(region.counts for region in self._regions.values()))
        return sum(each.total for each in counts)

    def notify(self, news: str, checkpoint_id: int) -> None:
        """Tells all functions of tasks that live how a checkpoint has ended."""
        for region in list(self._regions.values()):
            region.notify(news, checkpoint_id)

    def finish(self) -> list[WireRow]:
        """Closes the functions of tasks that live, at the end of the job, and returns what they have sent.

        Raises:
            SlotLostError: They took longer than the checkpoint timeout, or a process has ended.
        """
        seconds = self._config.checkpointing.timeout.total_seconds()
        return [row for region in self._regions.values() for row in region.finish(seconds)]

    def close(self) -> None:
        """Cancels tasks that are left, gives back the slots, and asks for no others."""
        self._closed = True
        self._give_back()

    def _give_back(self) -> None:
        try:
            for region in self._regions.values():
                region.cancel()
        finally:  # also after a second Ctrl-C: a slot that is not told to end has its place for as long as this process
            if self._pool is not None:
                self._pool.close()
            self._kept.close()


def _reason_for_live(graph: JobGraph) -> str | None:
    """Returns why the tasks of a program must live, or None if they need not."""
    for vertex in graph.vertices:
        if function_of(vertex.spec, CoordinatedFunction) is not None:
            return f"operator {vertex.uid!r} has a coordinator"
        if function_of(vertex.spec, InputSelectable) is not None:
            return f"operator {vertex.uid!r} selects its inputs"
    return None


def _whole(open_epoch: OpenEpoch, session: JobSession) -> EpochInput:
    """Returns what is there when the checkpoint is triggered, because no tasks live that would read it as it comes."""
    changed = threading.Event()
    open_epoch.on_close(changed.set)
    open_epoch.begin()
    with session.interruptible(changed.set):
        if not open_epoch.closed:
            changed.wait()
    if session.interrupted:
        raise CheckpointError("the epoch was interrupted")
    while not open_epoch.complete:
        open_epoch.next()
    return open_epoch.read
