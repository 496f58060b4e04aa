"""Runs the tasks of an epoch job in this process, one after the other, without Spark.

The tasks are the same, and get their rows in the order in which Spark's shuffle would deliver them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.master.shipping import dump_job, loaded_job
from dagster_flinkpy.runtime.shuffle.wire import WIRE_SCHEMA, WireRow, rows_of
from dagster_flinkpy.runtime.task.garbage import collecting_rarely
from dagster_flinkpy.runtime.task.task import StageTask

__all__ = ["Shuffle", "run_in_process", "shuffled"]

_ROWS_AT_ONCE = 1024

Shuffle = Callable[[int, pa.Table, int], list[list[pa.RecordBatch]]]
"""Distributes rows over the tasks of a stage. Takes the stage, the rows and the number of tasks; returns each task's
batches."""


def shuffled(stage: int, rows: pa.Table, width: int) -> list[list[pa.RecordBatch]]:
    """Distributes and sorts rows like the Spark shuffle."""
    ordered = rows.sort_by([("seq", "ascending"), ("edge", "ascending"), ("channel", "ascending")])
    targets = ordered.column("target").to_numpy() % width
    return [
        ordered.filter(pa.array(targets == i)).combine_chunks().to_batches(max_chunksize=_ROWS_AT_ONCE)
        for i in range(width)
    ]


def run_in_process(job: EpochJob, shuffle: Shuffle = shuffled) -> Iterator[WireRow]:
    """Runs all stages of an epoch job, and yields the rows for the driver.

    Each task unpickles the job, as on Spark, so the user functions of two subtasks share no objects.

    Args:
        job: What the tasks do.
        shuffle: Distributes the rows of one stage over the tasks of the next.

    Raises:
        ConfigurationError: A user function cannot be pickled.
        StorageError: The store failed.
    """
    graph, program = job.graph, dump_job(job)
    rows = _run_stage(program, 0, [[] for _ in range(graph.stage_parallelism(0))])
    for stage in range(1, graph.number_of_stages):
        rows = _run_stage(program, stage, shuffle(stage, rows, graph.stage_parallelism(stage)))
    for batch in rows.to_batches():
        yield from rows_of(batch)


def _run_stage(program: bytes, stage: int, inputs: Iterable[Iterable[pa.RecordBatch]]) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    for i, rows in enumerate(inputs):
        with collecting_rarely(), loaded_job(program) as job:
            batches += StageTask(job, stage, i).run(iter(rows))
    return pa.Table.from_batches(batches, WIRE_SCHEMA).combine_chunks()
