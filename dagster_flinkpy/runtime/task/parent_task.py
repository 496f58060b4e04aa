"""What operators need of the task that they are in."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa

from dagster_flinkpy.runtime.shuffle.wire import NO_EDGE, SEQ_BITS, Kind, RowOutput, encode_buffer
from dagster_flinkpy.runtime.task.acknowledgement import Acknowledgement
from dagster_flinkpy.runtime.task.breadcrumb import Breadcrumb, end_forked_process
from dagster_flinkpy.runtime.task.task_metrics import TaskTimes
from dagster_flinkpy.spark.record_counts import TaskCount

__all__ = ["ParentTask"]


class ParentTask(ABC):
    """What operators need of the task that they are in: where its time goes, and the way to the driver."""

    def __init__(self, index: int, output: RowOutput, count: TaskCount, first: str) -> None:
        self.index, self.count = index, count
        self._rows_out, self._collected = output, 0
        self.times = TaskTimes()
        """Where the task's time goes."""
        self.current = first
        """Uid of the running operator, or of the last one; at first of the first one."""
        self.is_cut = False
        """Whether it is cancelled amid what it does. Any thread may say so."""
        self._pid = os.getpid()
        self._breadcrumb = Breadcrumb(index)

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
            end_forked_process(self.current)
        self.current = uid
        self._breadcrumb.leave(uid)

    @property
    def output_digest(self) -> str:
        """Returns a digest of everything that the task has sent so far."""
        return f"{self._rows_out.digest:08x}"

    def take_queue_metrics(self, uid: str) -> dict[str, float]:
        """Returns how full the queue before an operator was since the last call, if it is the first one of a chain."""
        return {}  # Spark has the queues

    @abstractmethod
    def acknowledge(self, ack: Acknowledgement) -> None:
        """Takes the acknowledgement of an operator's snapshot, which is sent when its asynchronous part is done."""

    def send_event(self, message: dict[str, Any]) -> None:
        """Sends what an operator says to its coordinator, which only tasks that live have."""
        raise NotImplementedError

    def collect(self, column: pa.Array, name: str, position: int) -> None:
        """Sends a column of records or printed lines to the driver. ``position`` is the number of barriers before it.

        Its name says what it is, see ``shuffle.wire``.
        """
        payload = encode_buffer(pa.RecordBatch.from_arrays([column], names=[name]))
        seq = (position << SEQ_BITS) + self._collected
        self._rows_out.add(self.index, NO_EDGE, self.index, seq, Kind.COLLECT, payload)
        self._collected += 1
