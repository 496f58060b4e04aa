"""What a task sends to others while all of them run (Flink: ``ResultPartition``, ``PipelinedSubpartition``).

A subpartition sends a buffer only if its receiver has room for it, of which a credit tells. What has no credit waits
here, and the task is not run until it has left: so a full channel stops its producer, and nobody else. Only the thread
of the slot uses these classes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from dagster_flinkpy.runtime.shuffle.record_writer import BUFFER_SIZE
from dagster_flinkpy.runtime.shuffle.wire import NO_EDGE, Kind, WireRow, check_size

__all__ = ["PipelinedSubpartition", "ResultPartition"]

_FIRST_SIZE, _SECONDS = 1 << 10, 0.5
"""The size of the first buffers, in bytes, and how long a receiver may take for a buffer."""

Send = Callable[[WireRow], None]


class PipelinedSubpartition:
    """The rows of one task for one subtask of one edge."""

    def __init__(self, send: Send, credit: int) -> None:
        self._send, self.credit = send, credit
        self._waiting: deque[WireRow] = deque()
        self._sent: deque[tuple[float, int]] = deque()
        """When the buffers were sent whose credits are missing, and their sizes."""
        self._credited = 0.0
        """When the last credit came."""
        self.buffer_size = _FIRST_SIZE
        """The size at which a buffer is sent, in bytes: barriers wait for those before (Flink: buffer debloating)."""

    @property
    def is_available(self) -> bool:
        """Whether nothing waits for a credit."""
        return not self._waiting

    def add(self, row: WireRow) -> None:
        """Sends a row, or keeps it until there is room and everything before it has left."""
        self._waiting.append(row)
        self._send_waiting()

    def add_credit(self, buffers: int) -> None:
        """The receiver has room for more buffers."""
        now, sent = time.monotonic(), [self._sent.popleft() for _ in range(buffers)]
        seconds, self._credited = now - max(self._credited, sent[0][0]), now
        size = sum(each for _, each in sent)
        if size * 8 >= self.buffer_size * buffers:  # small ones tell little
            processed = size * _SECONDS / max(seconds, 1e-6)
            self.buffer_size = max(round(min(processed, self.buffer_size * 2, BUFFER_SIZE)), 1)
        self.credit += buffers
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and (self.credit or self._waiting[0].kind is not Kind.BUFFER):
            row = self._waiting.popleft()
            if row.kind is Kind.BUFFER:
                self.credit -= 1
                self._sent.append((time.monotonic(), row.payload.size))
            self._send(row)


class ResultPartition:
    """Everything that one task sends."""

    digest = 0
    """Nobody compares what was sent: a task that fails is not run again beside tasks that have read it."""

    def __init__(self, subpartitions: Mapping[tuple[int, int], PipelinedSubpartition], to_driver: Send) -> None:
        self.subpartitions = subpartitions
        self._to_driver = to_driver
        self._full: set[PipelinedSubpartition] = set()

    @property
    def is_available(self) -> bool:
        """Whether nothing waits for a credit, so that the task may go on."""
        return not self._full

    def has_room(self, edge: int, target: int) -> bool:
        """Returns whether a buffer for a subtask of an edge would leave at once."""
        return self.subpartitions[edge, target].credit > 0

    def buffer_size(self, edge: int, target: int) -> int:
        return self.subpartitions[edge, target].buffer_size

    def add(self, target: int, edge: int, channel: int, seq: int, kind: Kind, payload: Any = b"") -> None:
        """Takes a row; see :class:`~dagster_flinkpy.runtime.shuffle.wire.WireRow`.

        Raises:
            ConfigurationError: The payload is too large.
        """
        check_size(payload)
        buffer = payload if isinstance(payload, pa.Buffer) else pa.py_buffer(payload)
        row = WireRow(target, edge, channel, seq, kind, buffer)
        if edge == NO_EDGE:
            self._to_driver(row)
            return
        subpartition = self.subpartitions[edge, target]
        subpartition.add(row)
        if not subpartition.is_available:
            self._full.add(subpartition)

    def add_credit(self, edge: int, target: int, buffers: int) -> None:
        """A receiver has room for more buffers."""
        subpartition = self.subpartitions[edge, target]
        subpartition.add_credit(buffers)
        if subpartition.is_available:
            self._full.discard(subpartition)
