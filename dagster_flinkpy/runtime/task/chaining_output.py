"""Edges inside a task."""

from __future__ import annotations

from typing import Any, Protocol

from dagster_flinkpy.datastream.program.job_graph import JobEdge
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.runtime.shuffle.wire import Kind
from dagster_flinkpy.runtime.task.barrier_handlers import Barrier, Channel, Event
from dagster_flinkpy.runtime.task.latency import LatencyMarker

__all__ = ["ChainingOutput"]


class _Target(Protocol):
    context: OperatorContext

    def receive(self, channel: Channel, kind: Kind, value: Any, epoch: int) -> None: ...

    def handle(self, event: Event) -> None: ...


class ChainingOutput:
    """An edge inside the task, with the methods of `RecordWriterOutput`; passes everything on without encoding it."""

    def __init__(self, edge: JobEdge, target: _Target) -> None:
        self.edge, self.target = edge, target
        self.channel = (edge.id, target.context.subtask)
        self._epoch = 0

    def emit(self, batch: StreamBatch) -> None:
        self._send(Kind.BUFFER, batch)

    def watermark(self, origin: str, watermark: int) -> None:
        self._send(Kind.WATERMARK, (origin, watermark))

    def status(self, origin: str, idle: bool) -> None:
        self._send(Kind.STREAM_STATUS, (origin, idle))

    def latency_marker(self, marker: LatencyMarker) -> None:
        self._send(Kind.LATENCY_MARKER, marker)

    def flush(self) -> None:
        """Does nothing, because records are not buffered inside a task."""

    def barrier(self, checkpoint_id: int, digest: str, aligned: bool) -> None:
        self._epoch += 1
        self.target.handle(Barrier(self.channel, checkpoint_id, aligned))

    def _send(self, kind: Kind, value: Any) -> None:
        self.target.receive(self.channel, kind, value, self._epoch)
