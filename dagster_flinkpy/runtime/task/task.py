"""The task that runs a stage in a Spark job: rows in, rows out, in a Python worker.

A single loop on one thread does everything, like Flink's mailbox: it takes the next row, passes it to the operator of
its channel, and gives Spark what the operators send.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import pyarrow as pa

from dagster_flinkpy.errors import FlinkPyError, SourceReadError, StorageError, ThrowableType, UserFunctionError
from dagster_flinkpy.runtime.epoch import EpochJob
from dagster_flinkpy.runtime.exchange.places import output_channels
from dagster_flinkpy.runtime.failure import error_to_json
from dagster_flinkpy.runtime.shuffle.wire import NO_EDGE, Kind, TaskOutput, WireRow
from dagster_flinkpy.runtime.task.acknowledgement import Acknowledgement
from dagster_flinkpy.runtime.task.breadcrumb import end_forked_process
from dagster_flinkpy.runtime.task.operator_task import Cancelled
from dagster_flinkpy.runtime.task.stream_task import StreamTask
from dagster_flinkpy.runtime.throwables import throwable_type
from dagster_flinkpy.spark.user_logs import UserLogs

__all__ = ["StageTask"]


class StageTask(StreamTask):
    """Runs the operators of one stage at one subtask index for the epoch of a Spark job.

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
        self._output = TaskOutput()
        super().__init__(job, stage, index, self._output)
        self._may_fail = may_fail
        self._logs = UserLogs(lambda: (self.current, index, job.checkpoint_id)) if capture_logs else None
        self._acks: list[Acknowledgement] = []
        graph = job.graph
        self._here = {e.id for e in graph.edges if graph.stages[e.target] == stage and not graph.is_chained(e)}

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
        if (payload := self._logs.payload()) is not None:
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
                for _ in self._read(self.job.epoch) if self.stage == 0 else self._read_rows(rows):
                    if self._output.ready:
                        yield from self._drain()
                self.close()
            except BaseException as e:
                if os.getpid() != self._pid:
                    end_forked_process(self.current, e)
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
                self._output.add(self.index, NO_EDGE, self.index, 0, Kind.ACK, ack.to_json())
        yield from self._drain()

    def _drain(self) -> Iterator[pa.RecordBatch]:
        return self.times.given(self._output.drain())

    # --- life --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the functions, and waits until everything that the snapshots refer to is stored.

        Raises:
            StorageError: A file could not be written.
        """
        self.close_functions()
        for ack in self._acks:
            self._set_current(ack.uid)
            ack.wait()

    def acknowledge(self, ack: Acknowledgement) -> None:
        """Takes an operator's acknowledgement, which is sent when the task is done."""
        self._acks.append(ack)

    def _cancel(self, rows: Iterable[WireRow], error: FlinkPyError | None) -> Iterator[pa.RecordBatch]:
        """Ends a failed epoch: aborts what was prepared, cancels later stages, and sends the error to the driver."""
        self._abort()
        if error is not None:
            payload = error_to_json(error, self.current, self.index)
            self._output.add(self.index, NO_EDGE, self.index, 0, Kind.FAILURE, payload)
        for edge, target in output_channels(self.job.graph, self._vertices, self.index):
            # Sorts before everything else of the channel.
            self._output.add(target, edge.id, self.index, -1, Kind.CANCEL_BARRIER)
        for row in rows:
            if row.edge not in self._here:
                self._relay(row)
                if self._output.ready:
                    yield from self._output.drain()

    # --- input -------------------------------------------------------------------------------------------------------

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
        if row.edge in self._here:
            self._take(row)
        else:
            self._relay(row)
