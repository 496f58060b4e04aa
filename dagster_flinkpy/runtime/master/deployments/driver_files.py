"""Files of tasks whose workers have no way to the store: they come and go as rows of the Spark job, by the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_flinkpy.datastream.connectors.spark import SparkSource, SparkTransform
from dagster_flinkpy.datastream.operator_specs import BlockingEdgeSourceSpec, SparkSourceSpec, SparkTransformSpec
from dagster_flinkpy.errors import ObjectNotFoundError, UnsupportedEnvironmentError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.shuffle.wire import MAX_PAYLOAD, NO_EDGE, Kind, TaskOutput, WireRow
from dagster_flinkpy.spark.versions import data_frame
from dagster_flinkpy.storage import StorageLocation
from dagster_flinkpy.storage.driver_store import Names, StoreRequest, task_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dagster_flinkpy.datastream.program.job_graph import JobVertex
    from dagster_flinkpy.runtime.task.task import StageTask

__all__ = ["SentFiles", "run_with_files", "store_files"]

_FIRST = -(1 << 62)
"""The position of the first file, which comes before all other rows of a task."""
_THREADS = 8


class SentFiles:
    """The files that the tasks of an epoch read, as rows for each stage.

    Raises:
        StorageError: A file cannot be read.
        UnsupportedEnvironmentError: A file is too large for a row.
    """

    def __init__(self, job: EpochJob) -> None:
        paths = [list(_paths(job, stage)) for stage in range(job.graph.number_of_stages)]
        wanted = list(dict.fromkeys(path for stage in paths for _, path in stage))
        store, url = job.job_storage.open(), job.job_storage.url

        def read(path: str) -> bytes:
            try:
                data, there = store.get(path)[0], True
            except ObjectNotFoundError:
                data, there = b"", False  # the task says what that means
            _check_size(f"{url}/{path}", data)
            return json.dumps({"url": f"{url}/{path}", "there": there}).encode() + b"\n" + data

        with ThreadPoolExecutor(_THREADS, "sent") as threads:
            files = dict(zip(wanted, threads.map(read, wanted), strict=True))
        widths = map(job.graph.stage_parallelism, range(len(paths)))
        self._stages = [_rows(stage, width, files) for stage, width in zip(paths, widths, strict=True)]
        self.bytes = sum(batch.nbytes for batches in self._stages for batch in batches)

    def frame(self, spark: SparkSession, stage: int) -> DataFrame:
        """Returns the rows of a stage."""
        return data_frame(spark, pa.Table.from_batches(self._stages[stage]))


def _check_size(file: str, data: bytes) -> None:
    if len(data) >= MAX_PAYLOAD >> 1:
        raise UnsupportedEnvironmentError(
            f"{file} has {len(data)} bytes: that is too much to go through the driver. Give workers the directory "
            "(path_on_workers) or a network to the store, or raise the parallelism"
        )


def _rows(paths: Sequence[tuple[int, str]], width: int, files: Mapping[str, bytes]) -> list[pa.RecordBatch]:
    output = TaskOutput()
    for subtask in range(width):  # Spark would not run the tasks of an empty DataFrame
        output.add(subtask, NO_EDGE, 0, _FIRST - 1, Kind.FILE)
    for number, (subtask, path) in enumerate(paths):
        output.add(subtask, NO_EDGE, 0, _FIRST + number, Kind.FILE, files[path])
    return list(output.drain())


def _paths(job: EpochJob, stage: int) -> Iterator[tuple[int, str]]:
    """Yields the subtasks of a stage with the paths of what they read, relative to the prefix of the job."""
    for vertex in job.graph.vertices:
        if job.graph.stages[vertex.uid] == stage:
            for subtask in range(vertex.parallelism):
                read = [*sorted(job.input(vertex.uid, subtask).files()), *_segments(job, vertex, subtask)]
                yield from ((subtask, path) for path in read)


def _segments(job: EpochJob, vertex: JobVertex, subtask: int) -> Iterator[str]:
    if not isinstance(vertex.spec, BlockingEdgeSourceSpec | SparkSourceSpec | SparkTransformSpec):
        return
    source = vertex.spec.source
    folder = source.uid if isinstance(source, SparkSource | SparkTransform) else source.sink_uid
    for split in job.epoch.splits.get((vertex.uid, subtask), ()):
        for segment in split.properties["segments"]:
            yield f"{source.location.name}/{folder}/{segment['key']}"


# --- in a Python worker -----------------------------------------------------------------------------------------------


def run_with_files(task: StageTask, rows: Iterator[WireRow]) -> Iterator[pa.RecordBatch]:
    """Runs a task that reads what was sent to it, and yields what it has written after its other rows.

    Raises:
        UnsupportedEnvironmentError: It has written a file that no later task could be sent.
    """
    sent: dict[str, bytes | None] = {}
    for row in rows:
        if row.kind is not Kind.FILE or row.seq >= 0:
            rows = chain([row], rows)
            break
        if row.payload.size:
            fields, _, data = row.payload.to_pybytes().partition(b"\n")
            what = json.loads(fields)
            sent[what["url"]] = data if what["there"] else None
    with task_files(sent) as files:
        yield from task.run(rows)
        output = TaskOutput()
        for number, request in enumerate(files.requests()):
            _check_size(request.fields["key"], request.data)
            output.add(task.index, NO_EDGE, task.index, number, Kind.FILE, request.to_bytes())
            if output.ready:
                yield from output.drain()
        yield from output.drain()


# --- on the driver ----------------------------------------------------------------------------------------------------


def store_files(rows: Sequence[WireRow]) -> list[WireRow]:
    """Stores what the tasks of an epoch have written, and returns their other rows. Of a failed one, nothing is stored.

    Raises:
        StorageError: The store failed.
    """
    others = [row for row in rows if row.kind is not Kind.FILE]
    if any(row.kind is Kind.FAILURE for row in others):
        return others
    names = Names()

    def named(row: WireRow) -> WireRow:
        return replace(row, payload=pa.py_buffer(names.replaced(row.payload.to_pybytes())))

    def store(written: list[WireRow]) -> None:
        for row in written:
            request = StoreRequest.from_bytes(row.payload.to_pybytes())
            names.carry_out(request, StorageLocation(**request.fields["store"]).open())

    files = sorted((row for row in rows if row.kind is Kind.FILE), key=lambda row: (row.channel, row.seq))
    tasks = [list(group) for _, group in groupby(files, lambda row: row.channel)]
    with ThreadPoolExecutor(_THREADS, "stored") as threads:
        for done in [threads.submit(store, each) for each in tasks]:
            done.result()
    return [named(row) if row.kind is Kind.ACK else row for row in others]
