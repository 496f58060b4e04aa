"""Runs the tasks of one pipelined region in this process, row by row."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.datastream.program.job_graph import (
    JobEdge,
    JobGraph,
    JobVertex,
    PartitionerKind,
    StreamPartitioner,
)
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.shipping import copies
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.record_writer import RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import NO_EDGE, Kind, TaskOutput, rows_of
from dagster_flinkpy.runtime.task.operator_task import OperatorTask
from dagster_flinkpy.runtime.task.task import StageTask
from dagster_flinkpy.runtime.task.watermark_valve import WatermarkValve

__all__ = ["LiveRegion", "Recorder"]


@dataclass(frozen=True)
class Recorder:
    """Passes an output of an operator to the test instead of to another operator."""

    bytes_out: ClassVar[int] = 0
    edge: JobEdge
    on_records: Callable[[StreamBatch], None]
    on_watermark: Callable[[int], None]
    valve: WatermarkValve[None]
    """Combines the watermarks of the sources that lead to the output into its event time."""

    @staticmethod
    def of(
        graph: JobGraph,
        vertex: JobVertex,
        tag: str | None,
        on_records: Callable[[StreamBatch], None],
        on_watermark: Callable[[int], None],
    ) -> Recorder:
        """Records the main output of an operator, or a side output.

        Args:
            graph: The program.
            vertex: The operator.
            tag: Id of the side output's tag, or None for the main output.
            on_records: Takes records.
            on_watermark: Takes watermarks.
        """
        forward = StreamPartitioner(PartitionerKind.FORWARD)
        edge = JobEdge(NO_EDGE, vertex.uid, "", 0, forward, vertex.output_type, tag)
        valve = WatermarkValve({None: graph.watermark_origins[vertex.uid]})
        return Recorder(edge, on_records, on_watermark, valve)

    def emit(self, batch: StreamBatch) -> None:
        self.on_records(batch)

    def watermark(self, origin: str, watermark: int) -> None:
        if self.valve.on_watermark(None, origin, watermark, 0):
            self.on_watermark(self.valve.watermark)

    def status(self, origin: str, idle: bool) -> None:
        """Ignores idleness."""

    def latency_marker(self, marker: Any) -> None:
        """Ignores latency markers."""

    def flush(self) -> None:
        """Does nothing: a recorder buffers nothing."""

    def barrier(self, checkpoint_id: int, digest: str, aligned: bool) -> None:
        """Ignores barriers."""


class _LiveTask(StageTask):
    """A task that takes one row at a time, and sends its results on at once.

    Args:
        job: What the tasks do.
        stage: Number of the stage.
        index: Index of the subtask.
        recorders: Recorders of the outputs of operators.
    """

    def __init__(self, job: EpochJob, stage: int, index: int, recorders: list[Recorder]) -> None:
        super().__init__(job, stage, index)
        self._recorders = recorders

    def _connect(self) -> None:
        super()._connect()
        for task in self.operator_tasks:
            own: Any = [r for r in self._recorders if r.edge.source == task.vertex.uid]
            task.outputs += own  # they have the methods of outputs

    @property
    def operator_tasks(self) -> list[OperatorTask]:
        return list(self._tasks.values())

    def send(self) -> TaskOutput:
        for task in self._entered(self._tasks.values()):
            task.process_held()
            for output in task.outputs:
                output.flush()
        return self._output

    def take_acks(self) -> list[dict[str, Any]]:
        acks, self._acks = self._acks, []
        return [json.loads(ack.to_json()) for ack in acks]


class LiveRegion:
    """Runs the tasks of one epoch job. The caller takes the place of the sources.

    Args:
        job: The program, and the state of its operators. Stage 0 holds only sources of parallelism 1.
        recorders: Recorders of the outputs of operators.
    """

    def __init__(self, job: EpochJob, recorders: list[Recorder]) -> None:
        graph = job.graph
        self._job, self._graph = job, graph
        self._output = TaskOutput()
        self._sent: deque[TaskOutput] = deque()
        self._acks: list[dict[str, Any]] = []
        self._inputs = {v.uid: [self._writer(e) for e in graph.outputs(v.uid)] for v in graph.stage_vertices(0)}
        with copies(job) as copy:
            self._tasks = {
                (stage, i): _LiveTask(copy(), stage, i, recorders)
                for stage in range(1, graph.number_of_stages)
                for i in range(graph.stage_parallelism(stage))
            }
        for task in self._tasks.values():
            # A copy of a job has its own functions. Its clock is found again by name.
            task.open()
        self._settle()

    def _writer(self, edge: JobEdge) -> RecordWriter:
        target = self._graph.vertex(edge.target)
        return RecordWriter(edge, 0, target.parallelism, target.max_parallelism, self._output)

    def operator_tasks(self, uid: str) -> list[OperatorTask]:
        """The subtasks of an operator, by index."""
        return [each for task in self._tasks.values() for each in task.operator_tasks if each.vertex.uid == uid]

    def element(self, source: str, value: Any, timestamp: int) -> None:
        """Sends a record from a source."""
        import numpy as np

        type_info = self._graph.vertex(source).output_type
        batch = StreamBatch(type_info, np.array([timestamp], dtype=np.int64), values=[value], producer=source)
        for writer in self._inputs[source]:
            writer.emit(batch)
            writer.flush()
        self._settle()

    def watermark(self, source: str, watermark: int) -> None:
        """Sends a watermark from a source."""
        for writer in self._inputs[source]:
            writer.watermark("", watermark)
        self._settle()

    def processing_time(self, fire_before: int) -> None:
        """Fires the processing-time timers before a time, stage by stage."""
        for task in self._tasks.values():
            for each in task.operator_tasks:
                each.operator.on_processing_time(fire_before)
            self._sent.append(task.send())
            self._settle()

    def checkpoint(self) -> dict[str, list[SubtaskState]]:
        """Sends the barrier of the job's checkpoint from all sources, and ends the epoch.

        Returns:
            The states that the subtasks of each operator acknowledged, by uid.
        """
        for writers in self._inputs.values():
            for writer in writers:
                writer.barrier(self._job.checkpoint_id, "", aligned=False)
        self._settle()
        self.close()
        states: dict[str, list[SubtaskState]] = {}
        for ack in (ack for task in self._tasks.values() for ack in task.take_acks()):
            states.setdefault(ack["uid"], []).append(SubtaskState.from_json(ack["state"]))
        return {uid: sorted(each, key=lambda s: s.index) for uid, each in states.items()}

    def close(self) -> None:
        """Closes the user functions."""
        for task in self._tasks.values():
            task.close()

    def _settle(self) -> None:
        """Passes rows on until none are left."""
        self._sent.append(self._output)
        while self._sent:
            for batch in self._sent.popleft().drain():
                for row in rows_of(batch):
                    if row.edge != NO_EDGE:
                        edge = self._graph.edges[row.edge]
                        task = self._tasks[self._graph.stages[edge.target], row.target]
                        task.receive(row)
                        self._sent.append(task.send())
                    elif row.kind is Kind.COLLECT:
                        for line in _lines(row.payload):
                            print(line)


def _lines(payload: Any) -> Iterator[str]:
    import pyarrow as pa

    with pa.ipc.open_stream(payload) as reader:
        yield from reader.read_next_batch().column(0).to_pylist()
