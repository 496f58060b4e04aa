"""Runs the tasks of an epoch job in this process, one after the other, without Spark.

The tasks are the same, and get their rows in the order in which Spark's shuffle would deliver them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.shipping import copies
from dagster_flinkpy.runtime.shuffle.wire import WireRow, rows_of
from dagster_flinkpy.runtime.task.garbage import collecting_rarely
from dagster_flinkpy.runtime.task.task import StageTask

__all__ = ["Shuffle", "run_in_process", "shuffled"]

Shuffle = Callable[[int, list[WireRow], int], list[list[WireRow]]]
"""Distributes rows over the tasks of a stage. Takes the stage, the rows and the number of tasks; returns each task's
rows."""


def shuffled(stage: int, rows: list[WireRow], width: int) -> list[list[WireRow]]:
    """Distributes and sorts rows like the Spark shuffle. Payloads stay where they are."""
    tasks: list[list[WireRow]] = [[] for _ in range(width)]
    for row in sorted(rows, key=attrgetter("seq", "edge", "channel")):
        tasks[row.target % width].append(row)
    return tasks


def run_in_process(job: EpochJob, shuffle: Shuffle = shuffled) -> Iterator[WireRow]:
    """Runs all stages of an epoch job, and yields the rows for the driver.

    Each task has a copy of the job, as on Spark, so the user functions of two subtasks share no objects.

    Raises:
        ConfigurationError: A user function cannot be pickled.
        StorageError: The store failed.
    """
    graph = job.graph
    with copies(job) as copy:
        rows = _run_stage(copy, 0, [[] for _ in range(graph.stage_parallelism(0))])
        for stage in range(1, graph.number_of_stages):
            rows = _run_stage(copy, stage, shuffle(stage, rows, graph.stage_parallelism(stage)))
    yield from rows


def _run_stage(copy: Callable[[], EpochJob], stage: int, inputs: Iterable[Iterable[WireRow]]) -> list[WireRow]:
    sent: list[WireRow] = []
    for i, rows in enumerate(inputs):
        with collecting_rarely():
            for batch in StageTask(copy(), stage, i).run(rows):
                sent += rows_of(batch)
    return sent
