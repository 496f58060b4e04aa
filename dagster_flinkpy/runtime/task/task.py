"""The task: runs the operators of one stage at one subtask index, in a Python worker.

A single loop on one thread does everything, like Flink's mailbox: it takes the next row, passes it to the operator of
its channel, and gives Spark what the operators send. All stages of all jobs run this kind of task.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from dagster_flinkpy.errors import FlinkPyError, SourceReadError, StorageError, UserFunctionError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS, error_to_json
from dagster_flinkpy.runtime.operators.source_operator import SourceOperator
from dagster_flinkpy.runtime.record_counts import TaskCount
from dagster_flinkpy.runtime.shuffle.channel_selectors import downstream_subtasks
from dagster_flinkpy.runtime.shuffle.record_writer import BufferPool, RecordWriter
from dagster_flinkpy.runtime.shuffle.wire import (
    NO_EDGE,
    SEQ_BITS,
    Kind,
    TaskOutput,
    WireRow,
    encode_buffer,
)
from dagster_flinkpy.runtime.task.breadcrumb import Breadcrumb, end_forked_process
from dagster_flinkpy.runtime.task.combining_output import writer_output
from dagster_flinkpy.runtime.task.latency import LatencyMarker, LatencyTimer
from dagster_flinkpy.runtime.task.operator_task import Cancelled, ChainingOutput, OperatorTask
from dagster_flinkpy.runtime.task.task_times import TaskTimes
from dagster_flinkpy.runtime.throwables import ThrowableType, throwable_type
from dagster_flinkpy.runtime.user_logs import UserLogs

__all__ = ["StageTask"]


class StageTask:
    """Runs the operators of one stage at one subtask index for one epoch.

    Args:
        job: What the tasks do.
        stage: Number of the stage.
        index: Index of the subtask, which is that of the Spark partition.
        capture_logs: Whether to send what user functions log and print to the driver. Default: False.
        may_fail: Whether Spark tries the task again if it fails. Then an error of a user function or a source fails it.
            Default: False; the error is sent to the driver.
    """

    def __init__(
        self, job: EpochJob, stage: int, index: int, *, capture_logs: bool = False, may_fail: bool = False
    ) -> None:
        self.job, self.stage, self.index = job, stage, index
        self._may_fail = may_fail
        self.execution = uuid.uuid4().hex[:16]
        self._output = TaskOutput()
        self._logs = UserLogs(lambda: self.current, index, job.checkpoint_id) if capture_logs else None
        self._acks: list[dict[str, Any]] = []
        self._collected = 0
        self._pool = BufferPool()
        graph = job.graph
        self._vertices = [v for v in graph.stage_vertices(stage) if index < v.parallelism]
        self._tasks: dict[str, OperatorTask] = {}
        self._pid = os.getpid()
        self._breadcrumb = Breadcrumb(index)
        self.count = TaskCount(job.counts, stage, index)
        """Counts the records that the task reads."""
        self.times = TaskTimes()
        """Where the task's time goes."""
        self._current: str = self._vertices[0].uid
        self._here = {e.id for e in graph.edges if graph.stages[e.target] == stage and not graph.is_chained(e)}

    @property
    def current(self) -> str:
        """Uid of the running operator, or of the last one."""
        return self._current

    def enter(self, uid: str) -> None:
        """An operator starts, perhaps inside another one. If it raises, it stays the current one."""
        self.times.enter(uid)
        self._set_current(uid)

    def leave(self) -> None:
        """The current operator ends."""
        self.times.leave()
        if self.times.running:
            self._set_current(self.times.running[-1])

    def _set_current(self, uid: str) -> None:
        if os.getpid() != self._pid:
            end_forked_process(self._current)
        self._current = uid
        self._breadcrumb.leave(uid)

    @property
    def output_digest(self) -> str:
        """Returns a digest of everything that was sent so far."""
        return f"{self._output.digest:08x}"

    def run(self, rows: Iterable[WireRow]) -> Iterator[pa.RecordBatch]:
        """Takes the rows of the previous stage, and yields rows for the next stage or for the driver.

        Raises:
            StorageError: The store failed. Spark may try the task again, because nothing was acknowledged.
        """
        if self._logs is None:
            yield from self._run(rows)
            return
        with self._logs.captured():
            yield from self._run(rows)
        payload = self._logs.payload()
        if payload is not None:
            self._output.add(self.index, NO_EDGE, self.index, 0, Kind.LOG, payload)
            yield from self._output.drain()

    def _run(self, rows: Iterable[WireRow]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._process(rows)
        finally:
            self._breadcrumb.clear()
            self.count.close()

    def _process(self, rows: Iterable[WireRow]) -> Iterator[pa.RecordBatch]:
        rows = iter(rows)  # what is not read when the task fails is relayed
        try:
            try:
                self.open()
                for _ in self._read_sources() if self.stage == 0 else self._read_rows(rows):
                    if self._output.ready:
                        yield from self._drain()
                self.close()
            except BaseException as e:
                if os.getpid() != self._pid:
                    end_forked_process(self._current, e)
                raise
        except Cancelled:
            yield from self._cancel(rows, None)
        except StorageError:
            self._abort()
            raise
        except FlinkPyError as e:
            may_help = throwable_type(e) is ThrowableType.RECOVERABLE_ERROR
            if self._may_fail and may_help and isinstance(e, (SourceReadError, UserFunctionError)):
                self._abort()
                raise
            yield from self._cancel(rows, e)
        else:
            for ack in self._acks:
                self._output.add(self.index, NO_EDGE, self.index, 0, Kind.ACK, json.dumps(ack).encode())
        yield from self._drain()

    def _drain(self) -> Iterator[pa.RecordBatch]:
        return self.times.given(self._output.drain())

    # --- life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Creates the operators and opens their functions."""
        graph = self.job.graph
        for vertex in self._vertices:
            self.enter(vertex.uid)
            self._tasks[vertex.uid] = OperatorTask(self, vertex, self.job, self.index, self.execution)
            self.leave()
        for task in self._tasks.values():
            for edge in graph.outputs(task.vertex.uid):
                if graph.is_chained(edge):
                    task.outputs.append(ChainingOutput(edge, self._tasks[edge.target]))
                else:
                    target = graph.vertex(edge.target)
                    writer = RecordWriter(
                        edge,
                        self.index,
                        target.parallelism,
                        target.max_parallelism,
                        self._output,
                        channels=task.vertex.parallelism,
                        replay=(self.job.job_id, self.job.checkpoint_id),
                        pool=self._pool,
                    )
                    task.outputs.append(writer_output(edge, writer, self.job))
        for task in self._entered(self._tasks.values()):
            task.operator.open()
        for task in self._entered(self._tasks.values()):
            task.resume()
        # Downstream operators come first: their own in-flight data precedes what upstream in-flight data produces.
        for task in self._entered(reversed(self._tasks.values())):
            task.replay()
        for task in self._entered(self._tasks.values()):
            task.on_processing_time()

    def _entered(self, tasks: Iterable[OperatorTask]) -> Iterator[OperatorTask]:
        """Yields operators, each of which is the current one until the next is asked for."""
        for task in tasks:
            self.enter(task.vertex.uid)
            yield task
            self.leave()

    def close(self) -> None:
        """Closes the functions, and waits until everything that the snapshots refer to is stored."""
        for task in self._entered(self._tasks.values()):
            task.operator.close()
        waited = dict[str, int]()
        for task in self._entered(self._tasks.values()):
            started = time.perf_counter_ns()
            task.operator.finish()
            waited[task.vertex.uid] = (time.perf_counter_ns() - started) // 1_000
        for ack in self._acks:
            if ack["checkpoint_id"] == self.job.epochs[-1].checkpoint_id:
                ack["state"].setdefault("metrics", {})["async_us"] = waited[ack["uid"]]

    def _abort(self) -> None:
        for task in self._tasks.values():
            with suppress(USER_EXCEPTIONS):  # the next attempt aborts what remains
                task.operator.abort()

    def _cancel(self, rows: Iterable[WireRow], error: FlinkPyError | None) -> Iterator[pa.RecordBatch]:
        """Ends a failed epoch: aborts what was prepared, cancels later stages, and sends the error to the driver."""
        self._abort()
        if error is not None:
            payload = error_to_json(error, self.current, self.index)
            self._output.add(self.index, NO_EDGE, self.index, 0, Kind.FAILURE, payload)
        graph = self.job.graph
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
        timers = {task.vertex.uid: LatencyTimer(self.job.latency_interval) for task, _ in sources}
        for epoch in self.job.epochs:
            for task, source in sources:
                uid = task.vertex.uid
                self.enter(uid)
                task.send_status(uid, source.is_idle(epoch))
                for watermark in source.run(epoch):
                    task.send_watermark(uid, watermark)
                    now = self.job.clock.now()
                    if timers[uid].due(now):
                        task.send_latency_marker(LatencyMarker(uid, self.index, now))
                    yield
                if source.is_idle_when_read(epoch):
                    task.send_status(uid, idle=True)
                self.leave()
            for task in self._entered(task for task, _ in sources):
                task.trigger(epoch.checkpoint_id)

    def _read_rows(self, rows: Iterable[WireRow]) -> Iterator[None]:
        for row in rows:
            self.receive(row)
            yield
        for task in self._entered(self._tasks.values()):
            task.check_complete()

    def _relay(self, row: WireRow) -> None:
        """Forwards a row for a later stage or for the driver."""
        self._output.add(row.target, row.edge, row.channel, row.seq, row.kind, row.payload)

    def receive(self, row: WireRow) -> None:
        """Takes a row of the previous stage."""
        if row.edge not in self._here:
            self._relay(row)
            return
        task = self._tasks[self.job.graph.edges[row.edge].target]
        channel = (row.edge, row.channel)
        if row.kind is Kind.BARRIER:
            task.receive_barrier(channel, row.payload)
        elif row.kind is Kind.CANCEL_BARRIER:
            task.cancel(channel)
        else:
            task.receive(channel, row.kind, row.payload, row.seq >> SEQ_BITS)
        if self.job.alignment_timeout is not None:
            for each in self._tasks.values():
                each.check_timeout()

    # --- output ------------------------------------------------------------------------------------------------------

    def acknowledge(self, ack: dict[str, Any]) -> None:
        """Takes an operator's acknowledgement, which is sent when the task is done."""
        self._acks.append(ack)

    def collect(self, column: pa.Array, name: str, position: int) -> None:
        """Sends a column to the driver.

        Args:
            column: Records, or lines to print.
            name: The name of the column; see ``shuffle.wire``.
            position: The number of barriers of this Spark job before it.
        """
        payload = encode_buffer(pa.RecordBatch.from_arrays([column], names=[name]))
        seq = (position << SEQ_BITS) + self._collected
        self._output.add(self.index, NO_EDGE, self.index, seq, Kind.COLLECT, payload)
        self._collected += 1
