"""Runs a bounded program from a script or notebook: ``env.execute()`` and ``execute_and_collect()``."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from dagster_flinkpy.checkpoint.config import CheckpointConfig
from dagster_flinkpy.datastream.execution import ExecutionSettings, JobExecutionResult
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.datastream.operators import CollectSpec
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.job import JobAttempt, JobConfig
from dagster_flinkpy.runtime.reports import CompletedEpoch
from dagster_flinkpy.storage import StorageLocation

__all__ = ["LocalExecutor"]


class LocalExecutor:
    """Runs epochs until the input has ended, on the default Spark session.

    Without a checkpoint directory state lives in a folder that is gone afterwards, and operators need no uids.
    """

    def execute(self, graph: JobGraph, settings: ExecutionSettings) -> JobExecutionResult:
        """Runs until all input is read and committed."""
        started = time.monotonic()
        last = None
        for _, epoch in self._epochs(graph, settings):
            last = epoch
        return JobExecutionResult(
            settings.job_name,
            _job_id(settings.job_name),
            None if last is None else last.checkpoint_id,
            int((time.monotonic() - started) * 1000),
        )

    def execute_and_collect(self, graph: JobGraph, settings: ExecutionSettings) -> Iterator[Any]:
        """Runs and brings back the records of the graph's one collect operator, epoch by epoch."""
        for attempt, _ in self._epochs(graph, settings):
            for v in attempt.graph.vertices:
                if isinstance(v.spec, CollectSpec):
                    for column in attempt.collected:
                        yield from v.output_type.from_arrow(column)

    def _epochs(self, graph: JobGraph, settings: ExecutionSettings) -> Iterator[tuple[JobAttempt, CompletedEpoch]]:
        with ExitStack() as stack:
            ephemeral = settings.checkpoint_dir is None
            folder = settings.checkpoint_dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="flinkpy-"))
            regions = graph.regions()
            if settings.savepoint_path is not None and len(regions) > 1:
                raise ConfigurationError(
                    f"program {settings.job_name!r}: a savepoint is of one job, and these are {len(regions)}, for no "
                    "pipelined edge joins them; unset execution.state-recovery.path"
                )
            storage, base_id = StorageLocation(folder), _job_id(settings.job_name)
            for i, region in enumerate(regions):
                job_id = base_id + (f".{i}" if len(regions) > 1 else "")
                attempt = JobAttempt(
                    region,
                    JobConfig(
                        job_id,
                        storage,
                        checkpointing=CheckpointConfig.of_program(settings.checkpointing),
                        latency_tracking_interval=settings.latency_tracking_interval,
                        exchanges=storage.child(base_id).child("exchange"),
                    ),
                    owner="env.execute()",
                    restore_from=settings.savepoint_path,
                    allow_non_restored_state=settings.allow_non_restored_state,
                    require_uids=not ephemeral,
                )
                with attempt:
                    while not attempt.finished:
                        epoch = attempt.run_epoch(settings.checkpointing.barriers_per_job)
                        yield attempt, epoch
                        read = any(s.splits for o in epoch.metadata.operators for s in o.subtasks)
                        if not attempt.finished and not read:
                            raise ConfigurationError(
                                f"job {job_id!r}: there is nothing more to read, but the input does not end; "
                                "run it under Dagster with build_checkpoint_sensor(), or use a bounded source"
                            )


def _job_id(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "flink-job"
