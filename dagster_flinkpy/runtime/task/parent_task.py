"""What operators need of the task that they are in."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from dagster_flinkpy.runtime.record_counts import TaskCount
from dagster_flinkpy.runtime.task.acknowledgement import Acknowledgement
from dagster_flinkpy.runtime.task.task_times import TaskTimes

__all__ = ["ParentTask"]


class ParentTask(Protocol):
    """What operators need of the task that they are in."""

    times: TaskTimes
    """Where the task's time goes."""

    count: TaskCount
    """Counts the records that the task reads."""

    @property
    def output_digest(self) -> str:
        """Returns a digest of everything that the task has sent so far."""

    def enter(self, uid: str) -> None:
        """An operator starts, perhaps inside another one."""

    def leave(self) -> None:
        """The operator that started last ends."""

    def acknowledge(self, ack: Acknowledgement) -> None:
        """Takes the acknowledgement of an operator's snapshot, which is sent when its asynchronous part is done."""

    def send_event(self, message: dict[str, Any]) -> None:
        """Sends what an operator says to its coordinator."""

    def collect(self, column: pa.Array, name: str, position: int) -> None:
        """Sends a column to the driver. ``position`` is the number of barriers before it."""

    def take_queue_metrics(self, uid: str) -> dict[str, float]:
        """Returns how full the queue before an operator was since the last call, if it is the first one of a chain."""
