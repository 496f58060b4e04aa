"""The task: what runs in a Python worker for one stage of a region and one subtask index.

One loop on one thread does everything (Flink's mailbox): take the next row, hand it to the operator whose channel it
is, and give what the operators send to Spark. Each stage of every job is this same task.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from dagster_flinkpy.errors import FlinkPyError, StorageError
from dagster_flinkpy.runtime.channel_selectors import downstream_subtasks
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.exchange import (
    NO_EDGE,
    SEQ_BITS,
    BufferPool,
    Kind,
    RecordWriter,
    TaskOutput,
    WireRow,
    encode_buffer,
    rows_of,
)
from dagster_flinkpy.runtime.failure import error_to_json
from dagster_flinkpy.runtime.latency import LatencyMarker, LatencyTimer
from dagster_flinkpy.runtime.operator_task import Cancelled, Chained, Exchanged, OperatorTask
from dagster_flinkpy.runtime.operators import SourceOperator

__all__ = ["StageTask"]


class StageTask:
    """Runs the operators of one stage at one subtask index for one epoch.

    Args:
        epoch: What to do.
        stage: Which stage.
        index: Index of the subtask: that of the Spark partition.
    """

    def __init__(self, epoch: Epoch, stage: int, index: int) -> None:
        self.epoch, self.stage, self.index = epoch, stage, index
        self.execution = uuid.uuid4().hex[:16]
        self._output = TaskOutput()
        self._acks: list[dict[str, Any]] = []
        self._collected = 0
        self._pool = BufferPool()
        graph = epoch.graph
        self._vertices = [v for v in graph.stage_vertices(stage) if index < v.parallelism]
        self._tasks: dict[str, OperatorTask] = {}
        self._current = self._vertices[0].uid
        self._here = {e.id for e in graph.edges if graph.stages[e.target] == stage and not graph.is_chained(e)}

    @property
    def output_digest(self) -> str:
        """Digest of all that was sent so far."""
        return f"{self._output.digest:08x}"

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Takes the rows of the stage before and yields those for the stage after, or for the driver.

        Raises:
            StorageError: The store failed; Spark may try the task again, for nothing was acknowledged.
        """
        # What Spark gives the first stage are only numbers.
        rows = iter(()) if self.stage == 0 else (row for batch in batches for row in rows_of(batch))
        try:
            self._open()
            for _ in self._read_sources() if self.stage == 0 else self._read_rows(rows):
                if self._output.ready:
                    yield from self._output.drain()
            self._close()
        except Cancelled:
            yield from self._cancel(rows, None)
        except StorageError:
            self._abort()
            raise
        except FlinkPyError as e:
            yield from self._cancel(rows, e)
        else:
            for ack in self._acks:
                self._output.add(self.index, NO_EDGE, self.index, 0, Kind.ACK, json.dumps(ack).encode())
        yield from self._output.drain()

    # --- life --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        graph = self.epoch.graph
        for vertex in self._vertices:
            self._current = vertex.uid
            self._tasks[vertex.uid] = OperatorTask(self, vertex)
        for task in self._tasks.values():
            for edge in graph.outputs(task.vertex.uid):
                if graph.is_chained(edge):
                    task.outputs.append(Chained(edge, self._tasks[edge.target]))
                else:
                    target = graph.vertex(edge.target)
                    writer = RecordWriter(
                        edge,
                        self.index,
                        target.parallelism,
                        target.max_parallelism,
                        self._output,
                        channels=task.vertex.parallelism,
                        replay=(self.epoch.job_id, self.epoch.checkpoint_id),
                        pool=self._pool,
                    )
                    task.outputs.append(Exchanged(edge, writer))
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.operator.open()
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.resume()
        # What follows from in-flight data comes behind what the operators downstream had in flight themselves.
        for task in reversed(self._tasks.values()):
            self._current = task.vertex.uid
            task.replay()
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.on_processing_time()

    def _close(self) -> None:
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.operator.close()
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.operator.finish()

    def _abort(self) -> None:
        for task in self._tasks.values():
            with suppress(Exception):  # what is left behind is aborted when the next attempt starts
                task.operator.abort()

    def _cancel(self, rows: Iterable[WireRow], error: FlinkPyError | None) -> Iterator[pa.RecordBatch]:
        """Ends a failed epoch: nothing stays prepared, the stages after hear of it, the driver gets the error."""
        self._abort()
        if error is not None:
            payload = error_to_json(error, self._current, self.index)
            self._output.add(self.index, NO_EDGE, self.index, 0, Kind.FAILURE, payload)
        graph = self.epoch.graph
        for vertex in self._vertices:
            for edge in graph.outputs(vertex.uid):
                if not graph.is_chained(edge):
                    targets = graph.vertex(edge.target).parallelism
                    kind = edge.partitioner.kind
                    for target in downstream_subtasks(kind, self.index, vertex.parallelism, targets):
                        # Sorts before everything else of the channel.
                        self._output.add(target, edge.id, self.index, -1, Kind.CANCEL_BARRIER)
        for row in rows:
            if row.edge not in self._here:
                self._relay(row)
                if self._output.ready:
                    yield from self._output.drain()

    # --- input -------------------------------------------------------------------------------------------------------

    def _read_sources(self) -> Iterator[None]:
        sources = [(t, t.operator) for t in self._tasks.values() if isinstance(t.operator, SourceOperator)]
        timers = {task.vertex.uid: LatencyTimer(self.epoch.latency_interval) for task, _ in sources}
        for interval in self.epoch.intervals:
            for task, source in sources:
                self._current = uid = task.vertex.uid
                task.send_status(source.is_idle(interval))
                for watermark in source.run(interval):
                    task.send_watermark(watermark)
                    now = self.epoch.clock.now()
                    if timers[uid].due(now):
                        task.send_latency_marker(LatencyMarker(uid, self.index, now))
                    yield
            for task, _ in sources:
                self._current = task.vertex.uid
                task.trigger(interval.checkpoint_id)

    def _read_rows(self, rows: Iterable[WireRow]) -> Iterator[None]:
        for row in rows:
            self._on_row(row)
            yield
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.check_complete()

    def _relay(self, row: WireRow) -> None:
        """Sends a row on that is for a later stage, or for the driver."""
        self._output.add(row.target, row.edge, row.channel, row.seq, row.kind, row.payload)

    def _on_row(self, row: WireRow) -> None:
        if row.edge not in self._here:
            self._relay(row)
            return
        task = self._tasks[self.epoch.graph.edges[row.edge].target]
        self._current = task.vertex.uid
        channel = (row.edge, row.channel)
        if row.kind is Kind.BARRIER:
            task.receive_barrier(channel, row.payload)
        elif row.kind is Kind.CANCEL_BARRIER:
            task.cancel(channel)
        else:
            task.receive(channel, row.kind, row.payload)
        if self.epoch.alignment_timeout is not None:
            for each in self._tasks.values():
                self._current = each.vertex.uid
                each.check_timeout()

    # --- output ------------------------------------------------------------------------------------------------------

    def acknowledge(self, ack: dict[str, Any]) -> None:
        """Takes an operator's acknowledgement, which is sent when all is done."""
        self._acks.append(ack)

    def collect(self, column: pa.Array, name: str, position: int) -> None:
        """Sends a column to the driver.

        Args:
            column: Records, or lines to print.
            name: Which of them.
            position: Barriers of this job that are behind it.
        """
        payload = encode_buffer(pa.RecordBatch.from_arrays([column], names=[name]))
        seq = (position << SEQ_BITS) + self._collected
        self._output.add(self.index, NO_EDGE, self.index, seq, Kind.COLLECT, payload)
        self._collected += 1
