"""Chooses what carries the records of an attempt, and runs its tasks with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from dagster_flinkpy.common.exchange_options import ExchangeMode
from dagster_flinkpy.datastream.checkpoint_listener import CheckpointListener
from dagster_flinkpy.datastream.operator_specs import SparkSourceSpec, SparkTransformSpec
from dagster_flinkpy.errors import NoResourceAvailableError, SlotLostError, shorten
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.in_process import run_in_process
from dagster_flinkpy.runtime.master.job_config import JobConfig
from dagster_flinkpy.runtime.master.job_session import JobSession, SharedSession
from dagster_flinkpy.runtime.master.job_slots import JobSlots
from dagster_flinkpy.runtime.master.pipelined_exchange import (
    PipelinedExchange,
    host_of_driver,
    start_here,
    start_on_spark,
)
from dagster_flinkpy.runtime.master.region_job import run_region
from dagster_flinkpy.runtime.master.spark_progress import SparkProgress, watched
from dagster_flinkpy.runtime.record_counts import RecordCounts
from dagster_flinkpy.runtime.shuffle.wire import WireRow

__all__ = ["JobExchange"]

_AUTO_TIMEOUT = timedelta(seconds=20)
"""How long slots may take to start before ``AUTO`` does without them."""


class JobExchange(CheckpointListener):
    """Runs the tasks of a region for some epochs: in slots, in a Spark job, or in this process.

    With `ExchangeMode.AUTO` it begins with slots. If there are too few of them, or they do not reach each other, it
    says so, and goes on with Spark jobs. Nothing has been read by then.

    Args:
        config: Where the job runs, and how.
        shared: The session of the attempt.
        progress: Takes one-line progress messages.
    """

    def __init__(self, config: JobConfig, shared: SharedSession, progress: Callable[[str], None]) -> None:
        self._config, self._shared, self._progress = config, shared, progress
        self._mode = config.exchange.mode
        if config.in_process and self._mode is ExchangeMode.AUTO:
            self._mode = ExchangeMode.SPARK  # tasks that take turns in one thread are as good, and give the same order
        self._pipelined = None if self._mode is ExchangeMode.SPARK else self._create_pipelined()
        self._deciding = threading.Lock()
        self._lives = False
        """Whether tasks live in slots."""

    def _create_pipelined(self) -> PipelinedExchange:
        config = self._config
        options = config.exchange
        if self._mode is ExchangeMode.AUTO:
            options = replace(options, slot_request_timeout=min(options.slot_request_timeout, _AUTO_TIMEOUT))
        start = start_here if config.in_process else start_on_spark(config.job_id, self._shared)
        host = "127.0.0.1" if config.in_process else host_of_driver(config.spark)
        same_machine = config.in_process or config.spark.on_this_machine
        return PipelinedExchange(start, host, options, self._progress, same_machine=same_machine)

    def run(self, job: EpochJob, session: JobSession, slots: JobSlots) -> Sequence[WireRow]:
        """Runs the tasks, and returns what they have sent to the driver.

        Args:
            job: The region and its epochs.
            session: The session of the region. Its interruption ends the epochs.
            slots: The slots of the job.

        Raises:
            FlinkPyError: The epochs failed, or they were interrupted.
        """
        with self._deciding:
            if self._pipelined is not None and not self._lives:
                self._decide(self._pipelined, job, session, slots)
        if self._pipelined is not None:
            return self._pipelined.run(job, session)
        if self._config.in_process:
            return list(run_in_process(job))
        return self._on_spark(job, session, slots)

    def _decide(self, pipelined: PipelinedExchange, job: EpochJob, session: JobSession, slots: JobSlots) -> None:
        why = self._reason_for_spark(job, session, slots) if self._mode is ExchangeMode.AUTO else None
        if why is None:
            try:
                pipelined.deploy(job, session)
            except (NoResourceAvailableError, SlotLostError) as error:
                if self._mode is not ExchangeMode.AUTO:
                    raise
                why = shorten(str(error), 300)
        name = f"job {self._config.job_id!r}"
        if why is None:
            self._lives = True
            self._progress(f"{name}: tasks live in slots (execution.exchange: pipelined)")
            return
        self._pipelined = None
        self._progress(f"{name}: each epoch is a Spark job (execution.exchange: spark), because {why}")
        pipelined.close()

    def _reason_for_spark(self, job: EpochJob, session: JobSession, slots: JobSlots) -> str | None:
        if any(isinstance(v.spec, SparkSourceSpec | SparkTransformSpec) for v in job.graph.vertices):
            return "Spark DataFrames need the cores that slots would hold"
        with session.open() as spark:
            slots.look(spark)
        if slots.plan is not None and slots.plan.had < slots.plan.needed:
            return f"the job {slots.plan.description}"
        return None

    def _on_spark(self, job: EpochJob, session: JobSession, slots: JobSlots) -> Sequence[WireRow]:
        what = f"checkpoint {job.checkpoint_id} of job {job.job_id!r}"
        with session.open() as spark, RecordCounts(self._config.spark.on_this_machine) as counts:
            slots.look(spark)
            progress = SparkProgress(what, job.graph.number_of_stages, self._progress, records=counts.by_stage)
            with watched(spark, progress):
                tries = self._shared.task_tries(spark) if self._config.failover.failover.retries_tasks else 1
                return list(run_region(spark, replace(job, counts=counts.folder, task_tries=tries)))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._notify("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._notify("notify_checkpoint_aborted", checkpoint_id)

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        self._notify("notify_checkpoint_subsumed", checkpoint_id)

    def _notify(self, news: str, checkpoint_id: int) -> None:
        if self._pipelined is not None:
            self._pipelined.notify(news, checkpoint_id)

    def finish(self) -> list[WireRow]:
        """Closes the functions of tasks that live, at the end of the job, and returns what they have sent.

        Raises:
            SlotLostError: They took longer than the checkpoint timeout, or a process has ended.
        """
        if self._pipelined is None:
            return []
        return self._pipelined.finish(self._config.checkpointing.timeout.total_seconds())

    def close(self) -> None:
        """Cancels tasks that are left, and gives back the slots."""
        if self._pipelined is not None:
            self._pipelined.close()
