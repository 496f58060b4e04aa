"""The Spark job of one epoch of one pipelined region.

Each stage is a ``mapInArrow`` that runs tasks of the same kind, with a Spark shuffle between stages. The output of the
last stage, which is the result of the Spark action, is the rows for the driver, such as acknowledgements.
"""

from __future__ import annotations

import gc
import re
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_flinkpy.errors import (
    CheckpointError,
    ConfigurationError,
    ExecutorLostError,
    FlinkPyError,
    PythonWorkerLostError,
)
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.failure import error_in_task, reported, unsupported
from dagster_flinkpy.runtime.master.deployments.driver_files import SentFiles, run_with_files
from dagster_flinkpy.runtime.shipping import dump_job, loaded_job
from dagster_flinkpy.runtime.shuffle.wire import SPARK_SCHEMA, WireRow, rows_of
from dagster_flinkpy.runtime.task.breadcrumb import read_breadcrumb
from dagster_flinkpy.runtime.task.garbage import collect_rarely
from dagster_flinkpy.runtime.task.task import StageTask
from dagster_flinkpy.runtime.throwables import refused_by_spark
from dagster_flinkpy.spark.versions import map_in_arrow, to_arrow, with_targets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_flinkpy.runtime.master.job_session import JobSession
    from dagster_flinkpy.spark.server_state import ServerLog

__all__ = ["run_region", "runs_a_task", "translated"]

_WORKER_DIED = "Python worker exited unexpectedly"
_EXECUTOR_LOST = re.compile(
    r"ExecutorLostFailure \(|FetchFailed"
    # Stages are only run again because the output of an earlier stage was on an executor that is gone.
    r"|has (?:failed|been resubmitted for) the maximum allowable number of times"
    r"|has exceeded the maximum allowable total stage attempts"
    r"|cannot rollback the"
)
_TOO_LARGE = re.compile(r"Sent message larger than max|gRPC message exceeds maximum size")
_FATAL = re.compile(r"Fatal Python error: (?:.+\n|\n(?!\tat ))*?(?=\s*\tat |\s*Driver stacktrace|\Z)")


def run_region(spark: SparkSession, job: EpochJob, files: SentFiles | None = None) -> Iterator[WireRow]:
    """Runs a Spark job and yields the rows for the driver.

    Raises:
        PythonWorkerLostError: A Python worker died.
        ExecutorLostError: Spark gave up because it lost executors.
        UnsupportedEnvironmentError: This Spark, or its Python workers, cannot run the job.
        ConfigurationError: The program is too large for a message of Spark Connect.
        CheckpointError: The Spark job failed for another reason.
        NoResourceAvailableError: No executor has the cores and resources that a slot-sharing group asks for.
        FlinkPyError: A task failed with this error.
    """
    from pyspark.errors import PySparkException

    from dagster_flinkpy.runtime.master.slots.stage_profiles import (
        stage_profile,  # here, because workers import this module
    )

    graph, program = job.graph, dump_job(job)
    try:
        rows = spark.range(0, graph.stage_parallelism(0), 1, graph.stage_parallelism(0))
        for stage in range(graph.number_of_stages):
            if files is not None:
                sent = files.frame(spark, stage)
                rows = rows.union(sent) if stage else sent
            if stage or files is not None:
                # Each task gets the rows of its target, by position, so that its channels interleave. A row for a later
                # stage may have a greater target: it goes through the task ``target % width``.
                rows = with_targets(rows, graph.stage_parallelism(stage))
                rows = rows.sortWithinPartitions("seq", "edge", "channel")
            rows = map_in_arrow(
                rows, partial(run_stage, program, stage), SPARK_SCHEMA, stage_profile(spark, graph, stage)
            )
        table = to_arrow(rows)
    except PySparkException as e:
        from dagster_flinkpy.spark.sessions import server_log  # here, because workers import this module, too

        raise translated(
            e, f"the Spark job of checkpoint {job.checkpoint_id} of job {job.job_id!r}", server_log(spark)
        ) from e
    for batch in table.to_batches():
        yield from rows_of(batch)


def runs_a_task(session: JobSession) -> bool:
    """Runs a small Spark job, and returns whether it has ended before the session was interrupted."""
    from pyspark.errors import PySparkException

    with session.open() as spark:
        try:
            spark.range(0, 1, 1, 1).collect()
        except PySparkException:
            return False
    return True


def translated(error: Exception, what: str, log: ServerLog | None) -> FlinkPyError:
    """Returns an exception of PySpark as an error of this library."""
    if _WORKER_DIED in str(error):
        return _lost_worker(str(error), what)
    if (ours := error_in_task(error)) is not None:
        return ours
    lines = [line for line in str(error).splitlines() if line.strip()][:30]
    if log is not None:
        lines.append(log.quote())
    failed, reason = f"{what} failed", "\n".join(lines)
    if _EXECUTOR_LOST.search(str(error)):
        return ExecutorLostError(f"{failed}, because Spark lost an executor: {reason}")
    if _TOO_LARGE.search(str(error)):
        return ConfigurationError(
            f"{what} cannot be sent: the program, with what each of its stages reads in this epoch, is too large for a "
            "message of Spark Connect, by default 128 MB (spark.connect.grpc.maxInboundMessageSize). Read large data "
            f"from files instead, or in open(), or let tasks live (execution.exchange). {reason}"
        )
    if refused_by_spark(error):
        return unsupported(what, reason)
    return CheckpointError(f"{failed}: {reason}")


def _lost_worker(text: str, what: str) -> PythonWorkerLostError:
    at_work = read_breadcrumb(text)
    where = "in an unknown operator"
    if at_work is not None:
        where = f"while it ran subtask {at_work[1]} of operator {at_work[0]!r}"
    # The output of faulthandler comes before Java's stack trace.
    fatal = _FATAL.search(text)
    advice = (
        "A function called os._exit() or crashed in native code, or the machine ran out of memory and killed the "
        "process. In the last case, add memory or lower the parallelism."
    )
    return PythonWorkerLostError(
        f"a Python worker died {where} ({what.removeprefix('the Spark job of ')}). "
        + (f"{fatal[0].rstrip()}" if fatal else advice),
        operator=at_work[0] if at_work else "",
        subtask=at_work[1] if at_work else None,
    )


def run_stage(program: bytes, stage: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs a task in a Python worker."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    collect_rarely()
    with reported(), loaded_job(program) as job:
        last_try = context.attemptNumber() + 1 >= job.task_tries
        task = StageTask(job, stage, context.partitionId(), capture_logs=True, may_fail=not last_try)
        rows = chain.from_iterable(map(rows_of, batches))
        if job.through_driver:
            yield from run_with_files(task, rows)
        else:  # the input of the first stage is only numbers, from which Spark makes tasks
            yield from task.run(() if stage == 0 else rows)
    del job, task
    _freeze_modules(len(sys.modules))
    # Spark keeps a Python worker for the next task only if it has read all of its input.
    deque(batches, maxlen=0)


@cache
def _freeze_modules(number: int) -> None:
    """Takes the modules that a worker has loaded out of garbage collection, unless it was done for this number of them.

    Spark collects garbage after each task. Going through all modules takes ten times as long as a small task.
    """
    gc.collect()
    gc.freeze()
