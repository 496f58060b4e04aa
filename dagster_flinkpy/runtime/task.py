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

from dagster_flinkpy.checkpoint.metadata import SubtaskState
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.job_graph import JobEdge, JobVertex, PartitionerKind
from dagster_flinkpy.errors import CheckpointError, FlinkPyError, StorageError
from dagster_flinkpy.runtime.batch import StreamBatch
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.exchange import (
    COLLECTED,
    NO_EDGE,
    Kind,
    RecordWriter,
    TaskOutput,
    WireRow,
    decode_buffer,
    encode_buffer,
    rows_of,
)
from dagster_flinkpy.runtime.failure import error_to_json
from dagster_flinkpy.runtime.gate import BarrierAligner, WatermarkValve
from dagster_flinkpy.runtime.operator_factory import create_operator
from dagster_flinkpy.runtime.operators import OperatorContext, Snapshot, SourceOperator, StreamOperator

__all__ = ["StageTask"]

_IDLE, _ACTIVE = b"\x01", b"\x00"


class _Cancelled(Exception):
    """An epoch that failed upstream."""


class _Chained:
    """An edge inside the task."""

    def __init__(self, edge: JobEdge, target: _OperatorTask) -> None:
        self.edge, self.target = edge, target
        self.channel = (edge.id, target.context.subtask)

    def emit(self, batch: StreamBatch) -> None:
        self.target.on_records(self.channel, self.edge.input_index, batch)

    def watermark(self, watermark: int) -> None:
        self.target.on_watermark(self.channel, watermark)

    def status(self, idle: bool) -> None:
        self.target.on_status(self.channel, idle)

    def flush(self) -> None:
        """Nothing waits inside a task."""

    def barrier(self, barrier: dict[str, Any]) -> None:
        self.target.on_barrier(self.channel, barrier)


class _Exchanged:
    """An edge out of the task."""

    def __init__(self, edge: JobEdge, writer: RecordWriter) -> None:
        self.edge, self.writer = edge, writer

    def emit(self, batch: StreamBatch) -> None:
        self.writer.emit(batch)

    def watermark(self, watermark: int) -> None:
        self.writer.event(Kind.WATERMARK, watermark.to_bytes(8, "big", signed=True))

    def status(self, idle: bool) -> None:
        self.writer.event(Kind.STREAM_STATUS, _IDLE if idle else _ACTIVE)

    def flush(self) -> None:
        self.writer.flush()

    def barrier(self, barrier: dict[str, Any]) -> None:
        self.writer.event(Kind.BARRIER, json.dumps(barrier).encode())


class _OperatorTask:
    """One operator in the task: its gate, its outputs, its counters."""

    def __init__(self, task: StageTask, vertex: JobVertex) -> None:
        self._task = task
        self.vertex = vertex
        epoch, subtask = task.epoch, task.index
        graph = epoch.graph
        restored = epoch.input(vertex.uid, subtask).watermark
        watermark = MIN_WATERMARK if restored is None else restored
        self.context = OperatorContext(vertex, subtask, epoch, task.execution, self._emit, task.collect, watermark)
        self.outputs: list[_Chained | _Exchanged] = []
        self.inputs: dict[int, tuple[int, TypeInformation]] = {
            e.id: (e.input_index, e.type_info) for e in graph.inputs(vertex.uid)
        }
        channels = [c for e in graph.inputs(vertex.uid) for c in self._channels(e)]
        self._valve = WatermarkValve(channels, watermark)
        self.aligner = BarrierAligner(channels, epoch.checkpoint_id)
        self._idle = False
        self._sent_watermark = MIN_WATERMARK
        self.records_in = 0
        self.records_out = 0
        self.consumed: dict[str, str] = {}
        """``uid/subtask`` upstream -> digest of the output that was consumed."""
        self.operator: StreamOperator = create_operator(self.context)

    def _channels(self, edge: JobEdge) -> list[tuple[int, int]]:
        if edge.partitioner.kind is PartitionerKind.FORWARD:
            return [(edge.id, self.context.subtask)]
        return [(edge.id, c) for c in range(self._task.epoch.graph.vertex(edge.source).parallelism)]

    def _emit(self, tag: str | None, batch: StreamBatch) -> None:
        self.records_out += len(batch)
        for output in self.outputs:
            if output.edge.side_output == tag:
                output.emit(batch)

    # --- the gate ----------------------------------------------------------------------------------------------------

    def on_records(self, channel: tuple[int, int], input_index: int, batch: StreamBatch) -> None:
        """Records of a channel."""
        self.records_in += len(batch)
        self.operator.process(input_index, batch)
        self.on_processing_time()
        self._send_own_watermark()

    def on_processing_time(self) -> None:
        """Lets the operator act on the time that has passed."""
        self.operator.on_processing_time(self._task.epoch.clock.now())

    def on_watermark(self, channel: tuple[int, int], watermark: int) -> None:
        """The watermark of a channel."""
        if self._valve.on_watermark(channel, watermark):
            self._advance(self._valve.watermark)
        self._send_status()

    def on_status(self, channel: tuple[int, int], idle: bool) -> None:
        """The status of a channel."""
        if self._valve.on_status(channel, idle):
            self._advance(self._valve.watermark)
        self._send_status()

    def _advance(self, watermark: int) -> None:
        self.on_processing_time()
        self.context.watermark = watermark
        self.operator.on_watermark(watermark)
        if self.operator.own_watermark is None:
            self.send_watermark(watermark)
        else:
            self._send_own_watermark()

    def _send_own_watermark(self) -> None:
        own = self.operator.own_watermark
        if own is not None:
            self.send_watermark(own)

    def send_watermark(self, watermark: int) -> None:
        """Sends a watermark downstream, unless it is not a new one."""
        if watermark > self._sent_watermark:
            self._sent_watermark = watermark
            for output in self.outputs:
                output.watermark(watermark)

    def resume(self) -> None:
        """Says downstream how far event time was at the last barrier: gates remember nothing of their channels."""
        if self.watermark is not None:
            self.send_watermark(self.watermark)

    def _send_status(self) -> None:
        if self._valve.idle != self._idle:
            self.send_status(self._valve.idle)

    def send_status(self, idle: bool) -> None:
        """Says downstream whether this operator is idle."""
        self._idle = idle
        for output in self.outputs:
            output.status(idle)

    def on_barrier(self, channel: tuple[int, int], barrier: dict[str, Any]) -> None:
        """The barrier of a channel; the last one takes the snapshot."""
        if self.aligner.on_barrier(channel, barrier["checkpoint_id"]):
            self.snapshot()

    def snapshot(self) -> None:
        """Takes the snapshot, then sends the barrier on.

        The barrier carries a digest of all that the task has sent: two attempts of a task that sent different records
        can be told apart where their output is consumed.
        """
        self.on_processing_time()
        taken = self.operator.snapshot()
        for output in self.outputs:
            output.flush()
        digest = self._task.output_digest
        self._task.acknowledge(self, taken, digest)
        for output in self.outputs:
            output.barrier({"checkpoint_id": self.context.epoch.checkpoint_id, "digest": digest})

    @property
    def watermark(self) -> int | None:
        """Event time at the barrier, for the checkpoint."""
        own = self.operator.own_watermark
        reached = max(self.context.watermark, self._sent_watermark) if own is None else own
        return None if reached == MIN_WATERMARK else reached


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
        graph = epoch.graph
        self._vertices = [v for v in graph.stage_vertices(stage) if index < v.parallelism]
        self._tasks: dict[str, _OperatorTask] = {}
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
        except _Cancelled:
            self._cancel(rows, None)
        except StorageError:
            self._abort()
            raise
        except FlinkPyError as e:
            self._cancel(rows, e)
        else:
            for ack in self._acks:
                self._output.add(self.index, NO_EDGE, self.index, 0, Kind.ACK, json.dumps(ack).encode())
        yield from self._output.drain()

    # --- life --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        graph = self.epoch.graph
        for vertex in self._vertices:
            self._current = vertex.uid
            self._tasks[vertex.uid] = _OperatorTask(self, vertex)
        for task in self._tasks.values():
            for edge in graph.outputs(task.vertex.uid):
                if graph.is_chained(edge):
                    task.outputs.append(_Chained(edge, self._tasks[edge.target]))
                else:
                    target = graph.vertex(edge.target)
                    writer = RecordWriter(
                        edge,
                        self.index,
                        target.parallelism,
                        target.max_parallelism,
                        self._output,
                        channels=task.vertex.parallelism,
                    )
                    task.outputs.append(_Exchanged(edge, writer))
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.operator.open()
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.resume()
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.on_processing_time()

    def _close(self) -> None:
        for task in self._tasks.values():
            self._current = task.vertex.uid
            task.operator.close()

    def _abort(self) -> None:
        for task in self._tasks.values():
            with suppress(Exception):  # what is left behind is aborted when the next attempt starts
                task.operator.abort()

    def _cancel(self, rows: Iterable[WireRow], error: FlinkPyError | None) -> None:
        """Ends a failed epoch: nothing stays prepared, the stages after hear of it, the driver gets the error."""
        self._abort()
        if error is not None:
            payload = error_to_json(error, self._current, self.index)
            self._output.add(self.index, NO_EDGE, self.index, 0, Kind.FAILURE, payload)
        graph = self.epoch.graph
        for vertex in self._vertices:
            for edge in graph.outputs(vertex.uid):
                if not graph.is_chained(edge):
                    forward = edge.partitioner.kind is PartitionerKind.FORWARD
                    targets = [self.index] if forward else range(graph.vertex(edge.target).parallelism)
                    for target in targets:
                        # Sorts before everything else of the channel.
                        self._output.add(target, edge.id, self.index, -1, Kind.CANCEL_BARRIER)
        for row in rows:
            if row.edge not in self._here:
                self._relay(row)

    # --- input -------------------------------------------------------------------------------------------------------

    def _read_sources(self) -> Iterator[None]:
        sources = [(t, t.operator) for t in self._tasks.values() if isinstance(t.operator, SourceOperator)]
        for task, source in sources:
            self._current = task.vertex.uid
            if source.idle:
                task.send_status(True)
            for watermark in source.run():
                task.send_watermark(watermark)
                yield
        for task, _ in sources:
            self._current = task.vertex.uid
            task.snapshot()

    def _read_rows(self, rows: Iterable[WireRow]) -> Iterator[None]:
        for row in rows:
            self._on_row(row)
            yield
        for task in self._tasks.values():
            if not task.aligner.aligned:
                raise CheckpointError(
                    f"operator {task.vertex.uid!r}, subtask {self.index}: barrier {self.epoch.checkpoint_id} did not "
                    f"come through {len(task.aligner.missing)} of its channels; the input of the task was not complete"
                )

    def _relay(self, row: WireRow) -> None:
        """Sends a row on that is for a later stage, or for the driver."""
        self._output.add(row.target, row.edge, row.channel, row.seq, row.kind, row.payload)

    def _on_row(self, row: WireRow) -> None:
        if row.edge not in self._here:
            self._relay(row)
            return
        if row.kind is Kind.CANCEL_BARRIER:
            raise _Cancelled
        edge = self.epoch.graph.edges[row.edge]
        task = self._tasks[edge.target]
        self._current = task.vertex.uid
        channel = (row.edge, row.channel)
        if row.kind is Kind.BUFFER:
            task.aligner.check_open(channel)
            batch = decode_buffer(row.payload, edge.type_info)
            batch.producer = edge.source
            task.on_records(channel, edge.input_index, batch)
        elif row.kind is Kind.WATERMARK:
            task.on_watermark(channel, int.from_bytes(row.payload, "big", signed=True))
        elif row.kind is Kind.STREAM_STATUS:
            task.on_status(channel, row.payload.to_pybytes() == _IDLE)
        else:
            barrier = json.loads(row.payload.to_pybytes())
            task.consumed[f"{edge.source}/{row.channel}"] = barrier["digest"]
            task.on_barrier(channel, barrier)

    # --- output ------------------------------------------------------------------------------------------------------

    def acknowledge(self, task: _OperatorTask, snapshot: Snapshot, digest: str) -> None:
        """Adds an operator's snapshot to what the task acknowledges when all is done."""
        state = SubtaskState(
            index=self.index,
            keyed=snapshot.keyed,
            splits=tuple(s.to_json() for s in snapshot.splits),
            watermark=task.watermark,
            committables=tuple(snapshot.committables),
            metrics={"records_in": task.records_in, "records_out": task.records_out, **snapshot.metrics},
        )
        self._acks.append(
            {
                "checkpoint_id": self.epoch.checkpoint_id,
                "attempt": self.epoch.attempt,
                "uid": task.vertex.uid,
                "digest": digest,
                "consumed": task.consumed,
                "state": state.to_json(),
            }
        )

    def collect(self, column: pa.Array, name: str = COLLECTED) -> None:
        """Sends a column to the driver."""
        payload = encode_buffer(pa.RecordBatch.from_arrays([column], names=[name]))
        self._output.add(self.index, NO_EDGE, self.index, self._collected, Kind.COLLECT, payload)
        self._collected += 1
