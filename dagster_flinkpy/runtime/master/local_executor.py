"""Runs a bounded program from a script or notebook: ``env.execute()`` and ``execute_and_collect()``."""

from __future__ import annotations

import logging
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.clock import elapsed_millis
from dagster_flinkpy.common.job_client import JobClient
from dagster_flinkpy.datastream.program.execution import ExecutionSettings, JobExecutionResult
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.spark.sessions import start_server

if TYPE_CHECKING:
    from dagster_flinkpy.checkpoint.reports.completed_epoch import CompletedEpoch
    from dagster_flinkpy.runtime.master.async_execution import BackgroundJob
    from dagster_flinkpy.runtime.master.job import JobAttempt

__all__ = ["LocalExecutor"]

_log = logging.getLogger(__name__)


class LocalExecutor:
    """Runs epochs on the default Spark session until the input has ended, or somebody stops or cancels the job.

    If no checkpoint directory is set, state is in a temporary folder, and operators need no uids.
    """

    def execute(self, graph: JobGraph, settings: ExecutionSettings) -> JobExecutionResult:
        """Runs the program until all input is read and committed."""
        return self._execute(graph, settings, None)

    def execute_async(self, graph: JobGraph, settings: ExecutionSettings) -> JobClient:
        """Runs the program on a thread of this process."""
        from dagster_flinkpy.runtime.master.async_execution import BackgroundJob

        job = BackgroundJob(partial(self._execute, graph, settings), ephemeral=settings.checkpoint_dir is None)
        return JobClient(_job_id(settings.job_name), job)

    def _execute(
        self, graph: JobGraph, settings: ExecutionSettings, background: BackgroundJob | None
    ) -> JobExecutionResult:
        started = time.monotonic()
        last = None
        for _, epoch in self._epochs(graph, settings, background):
            last = epoch
        return JobExecutionResult(
            settings.job_name,
            _job_id(settings.job_name),
            None if last is None else last.checkpoint_id,
            elapsed_millis(started),
        )

    def execute_and_collect(self, graph: JobGraph, settings: ExecutionSettings) -> Iterator[tuple[str, Any]]:
        """Runs the program, and yields the records of collect operators, each with the operator's uid."""
        for attempt, _ in self._epochs(graph, settings, None):
            for uid, columns in attempt.collected.items():
                for column in columns:
                    for record in attempt.graph.vertex(uid).output_type.from_arrow(column):
                        yield uid, record

    def _epochs(
        self, graph: JobGraph, settings: ExecutionSettings, background: BackgroundJob | None
    ) -> Iterator[tuple[JobAttempt, CompletedEpoch]]:
        dropped = Counter[str]()
        try:
            for attempt, epoch in self._run(graph, settings, background):
                dropped.update({each.uid: each.late_records_dropped or 0 for each in epoch.operators})
                yield attempt, epoch
        finally:
            for uid, number in (+dropped).items():
                _log.warning(
                    f"windows of operator {uid!r} have dropped {number:,} late records: their results lack them. "
                    "allowed_lateness() waits for such records, side_output_late_data() keeps them"
                )

    def _run(
        self, graph: JobGraph, settings: ExecutionSettings, background: BackgroundJob | None
    ) -> Iterator[tuple[JobAttempt, CompletedEpoch]]:
        settings.warn_of_no_effect()
        if not settings.local:
            start_server()
        # Java starts while this process imports the job loop.
        from dagster_flinkpy.checkpoint.coordinator.coordinator_config import CoordinatorConfig
        from dagster_flinkpy.checkpoint.former_jobs import refuse_former_jobs
        from dagster_flinkpy.runtime.master.failover import FailoverConfig
        from dagster_flinkpy.runtime.master.job import JobAttempt, JobConfig
        from dagster_flinkpy.storage import StorageLocation

        config, checkpointing = settings.config, settings.checkpointing.interval is not None
        failover = FailoverConfig.of_script(config.failover_options, checkpointing=checkpointing)
        with ExitStack() as stack:
            ephemeral = settings.checkpoint_dir is None
            folder = settings.checkpoint_dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="flinkpy-"))
            if background is not None:
                stack.callback(background.wait_until_answered)
            show = stack.enter_context(_shown())
            storage, job_id = StorageLocation(folder), _job_id(settings.job_name)
            former = [f"{job_id}.{n}" for n in range(max(len(graph.regions()), len(graph.parts())))]
            if len(former) > 1 and not ephemeral and settings.savepoint_path is None:
                refuse_former_jobs(storage, job_id, graph, former)
            attempt = JobAttempt(
                graph,
                JobConfig(
                    job_id,
                    storage,
                    checkpointing=CoordinatorConfig.of_program(settings.checkpointing),
                    latency_tracking_interval=timedelta(milliseconds=config.get_latency_tracking_interval()),
                    require_all_slots=config.is_require_all_slots(),
                    exchange=config.exchange,
                    failover=failover,
                    metric_reporters=config.metric_reporters,
                    in_process=settings.local,
                ),
                owner="env.execute()",
                take_over=False,
                on_progress=show,
                start_over=True if ephemeral else None,
                restore_from=settings.savepoint_path,
                allow_non_restored_state=settings.allow_non_restored_state,
                require_uids=not ephemeral,
            )
            with attempt:
                if background is not None:
                    background.began(storage.child(job_id), lambda: attempt.status)
                attempt.refuse_input_after_end()
                if attempt.finished:
                    _log.warning(_why_there_is_nothing_to_do(attempt))
                    return
                for epoch in attempt.run_epochs(goes_on=True):
                    yield attempt, epoch
                if not attempt.finished:
                    for epoch in attempt.run_epochs(continuous=True):
                        yield attempt, epoch


def _why_there_is_nothing_to_do(attempt: JobAttempt) -> str:
    job_id, latest = attempt.config.job_id, "" if attempt.restored is None else attempt.restored.checkpoint_id
    if not attempt.stopped:
        return f"the input of job {job_id!r} has ended, and its last checkpoint has all of it: there is nothing to do"
    return (
        f"job {job_id!r} was stopped with a savepoint, so this run does nothing. To continue the job, set "
        f"'execution.state-recovery.path' to the savepoint, or to 'chk-{latest}', its last checkpoint, for one run"
    )


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """Shows the latest progress message on one line; if standard error is not a terminal, messages are only logged."""
    if not sys.stderr.isatty():
        yield _log.info
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:

        def show(line: str) -> None:
            _log.info(line)
            status.update(line)

        yield show


def _job_id(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "flink-job"
