"""The Spark job of one epoch of one pipelined region.

One stage is one ``mapInArrow`` of the same task; between two stages Spark shuffles the rows by target and sorts them,
so that a replay sees them in the same order. What the last stage leaves are acknowledgements: the result of the action.
"""

from __future__ import annotations

import gc
import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_flinkpy import errors
from dagster_flinkpy.errors import CheckpointError, FlinkPyError
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.exchange import SPARK_SCHEMA, WireRow, rows_of
from dagster_flinkpy.runtime.shipping import dump_epoch, load_epoch
from dagster_flinkpy.runtime.task import StageTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["error_in_task", "run_region"]

_OUR_ERROR = re.compile(r"^dagster_flinkpy\.errors\.(\w+): (.*)$", re.MULTILINE)


def run_region(spark: SparkSession, epoch: Epoch) -> Iterator[WireRow]:
    """Runs an epoch and gives the rows meant for the driver.

    Raises:
        CheckpointError: The Spark job failed.
        FlinkPyError: A task said what it was.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    graph, program = epoch.graph, dump_epoch(epoch)
    rows = spark.range(0, graph.stage_parallelism(0), 1, graph.stage_parallelism(0)).mapInArrow(
        _stage(program, 0), SPARK_SCHEMA
    )
    for stage in range(1, graph.number_of_stages):
        width = graph.stage_parallelism(stage)
        # A row for a later stage may have a target that this one has not.
        rows = (
            rows.repartitionById(width, F.expr(f"pmod(target, {width})"))
            .sortWithinPartitions("seq", "edge", "channel")
            .mapInArrow(_stage(program, stage), SPARK_SCHEMA)
        )
    try:
        table = rows.toArrow()
    except PySparkException as e:
        raise _translated(e, epoch) from e
    for batch in table.to_batches():
        yield from rows_of(batch)


def _translated(error: Exception, epoch: Epoch) -> FlinkPyError:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return error_in_task(error) or CheckpointError(
        f"the Spark job of checkpoint {epoch.checkpoint_id} of job {epoch.job_id!r} failed: " + "\n".join(lines[:30])
    )


def error_in_task(error: Exception) -> FlinkPyError | None:
    """The error of ours that failed a Spark task, if it was one."""
    found = _OUR_ERROR.findall(str(error))
    if not found or found[-1][0] not in errors.__all__:
        return None
    kind, message = found[-1]
    ours: FlinkPyError = getattr(errors, kind)(message)
    return ours


def _stage(program: bytes, stage: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    return partial(run_stage, program, stage)


def run_stage(program: bytes, stage: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a Python worker runs."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    # Records are many small objects without cycles: the default threshold of 700 would scan them over and over.
    gc.set_threshold(200_000, 20, 100)
    yield from StageTask(load_epoch(program), stage, context.partitionId()).run(batches)
    # Spark keeps a Python worker for the next task only if it has read all of its input.
    deque(batches, maxlen=0)
