"""One operator in a task: its gate, its outputs, its counters."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.config import CheckpointingMode
from dagster_flinkpy.checkpoint.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.metadata import SubtaskState
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.job_graph import JobEdge, JobVertex
from dagster_flinkpy.errors import CheckpointError
from dagster_flinkpy.runtime.barrier_handlers import (
    Abort,
    AddToChannelState,
    AlignmentTimeout,
    Barrier,
    BarrierHandler,
    Block,
    CancelBarrier,
    CheckpointBarrierTracker,
    Complete,
    Deliver,
    Element,
    Event,
    SingleCheckpointBarrierHandler,
    Snapshot,
    Unblock,
)
from dagster_flinkpy.runtime.batch import StreamBatch
from dagster_flinkpy.runtime.channel_selectors import upstream_subtasks
from dagster_flinkpy.runtime.channel_state import ChannelStateWriter, InFlight, read_channel_state
from dagster_flinkpy.runtime.epoch import Epoch
from dagster_flinkpy.runtime.exchange import COLLECTED, Kind, RecordWriter, decode_buffer, encode_buffer
from dagster_flinkpy.runtime.latency import LatencyMarker, LatencyStats
from dagster_flinkpy.runtime.operator_factory import create_operator
from dagster_flinkpy.runtime.operators import OperatorContext, StreamOperator
from dagster_flinkpy.runtime.watermark_valve import WatermarkValve

if TYPE_CHECKING:
    from dagster_flinkpy.runtime.task import StageTask

__all__ = ["Cancelled", "Chained", "Exchanged", "OperatorTask"]

_IDLE, _ACTIVE = b"\x01", b"\x00"

Channel = tuple[int, int]
"""Id of the edge and index of the subtask upstream."""


class Cancelled(Exception):
    """The Spark job has failed upstream."""


class Chained:
    """An edge inside the task: what it carries is given on as it is."""

    def __init__(self, edge: JobEdge, target: OperatorTask) -> None:
        self.edge, self.target = edge, target
        self.channel = (edge.id, target.context.subtask)

    def emit(self, batch: StreamBatch) -> None:
        self.target.receive(self.channel, Kind.BUFFER, batch)

    def watermark(self, watermark: int) -> None:
        self.target.receive(self.channel, Kind.WATERMARK, watermark)

    def status(self, idle: bool) -> None:
        self.target.receive(self.channel, Kind.STREAM_STATUS, idle)

    def latency_marker(self, marker: LatencyMarker) -> None:
        self.target.receive(self.channel, Kind.LATENCY_MARKER, marker)

    def flush(self) -> None:
        """Nothing waits inside a task."""

    def barrier(self, checkpoint_id: int, digest: str) -> None:
        self.target.handle(Barrier(self.channel, checkpoint_id))


class Exchanged:
    """An edge out of the task."""

    def __init__(self, edge: JobEdge, writer: RecordWriter) -> None:
        self.edge, self.writer = edge, writer

    def emit(self, batch: StreamBatch) -> None:
        self.writer.emit(batch)

    def watermark(self, watermark: int) -> None:
        self.writer.event(Kind.WATERMARK, _encode(Kind.WATERMARK, watermark))

    def status(self, idle: bool) -> None:
        self.writer.event(Kind.STREAM_STATUS, _encode(Kind.STREAM_STATUS, idle))

    def latency_marker(self, marker: LatencyMarker) -> None:
        self.writer.latency_marker(marker.to_bytes())

    def flush(self) -> None:
        self.writer.flush()

    def barrier(self, checkpoint_id: int, digest: str) -> None:
        self.writer.barrier(json.dumps({"checkpoint_id": checkpoint_id, "digest": digest}).encode())


def _encode(kind: Kind, value: Any) -> Any:
    """What an element is in an exchange and in channel state."""
    if isinstance(value, pa.Buffer):
        return value
    if kind is Kind.BUFFER:
        columns = [value.column, pa.array(value.timestamps)]
        return encode_buffer(pa.RecordBatch.from_arrays(columns, names=["value", "timestamp"]))
    if kind is Kind.WATERMARK:
        return value.to_bytes(8, "big", signed=True)
    return _IDLE if value else _ACTIVE


@dataclass
class _Taken:
    """A snapshot that is not acknowledged yet."""

    state: SubtaskState
    digest: str
    channel_state: ChannelStateWriter


class OperatorTask:
    """One operator in the task.

    What comes through its channels goes through the barrier handler, which says when the operator gets it and when the
    snapshot is taken.

    Args:
        task: Which it is part of.
        vertex: The operator.
    """

    def __init__(self, task: StageTask, vertex: JobVertex) -> None:
        self._task = task
        self.vertex = vertex
        self._epoch = epoch = task.epoch
        self._subtask = subtask = task.index
        graph = epoch.graph
        given = epoch.input(vertex.uid, subtask)
        watermark = MIN_WATERMARK if given.watermark is None else given.watermark
        self._checkpoints = [interval.checkpoint_id for interval in epoch.intervals]
        self.context = OperatorContext(
            vertex, subtask, epoch, task.execution, self._emit, self._collect, watermark, self._checkpoints[0]
        )
        self.outputs: list[Chained | Exchanged] = []
        self._edges = {e.id: e for e in graph.inputs(vertex.uid)}
        channels: list[Channel] = [
            (e.id, c)
            for e in self._edges.values()
            for c in upstream_subtasks(
                e.partitioner.kind, subtask, graph.vertex(e.source).parallelism, vertex.parallelism
            )
        ]
        self._valve = WatermarkValve(channels, watermark)
        self._barriers = _create_handler(channels, epoch)
        self._aligning_since: tuple[int, int] | None = None
        self._first_barrier: dict[int, int] = {}
        """By checkpoint, when its first barrier came; in milliseconds."""
        """Which checkpoint, and the processing time at which its first barrier came."""
        self._sent_watermark = MIN_WATERMARK
        self._records_in = 0
        self._records_out = 0
        self._latency = LatencyStats()
        self._consumed: dict[int, dict[str, str]] = {}
        """By checkpoint: ``uid/subtask`` upstream -> digest of the output that was consumed."""
        self._taken: dict[int, _Taken] = {}
        self._position = 0
        """Barriers of this job that are behind it."""
        self._over = False
        """Whether the last snapshot was taken: what comes is for the next Spark job."""
        self.operator: StreamOperator = create_operator(self.context)

    def _emit(self, tag: str | None, batch: StreamBatch) -> None:
        self._records_out += len(batch)
        outputs = [output for output in self.outputs if output.edge.side_output == tag]
        for output in outputs:
            # A function behind one edge may change the values; those behind the others are not to see it.
            alone = output is outputs[-1] or isinstance(output, Exchanged)
            output.emit(batch if alone else batch.apart())

    def _collect(self, column: pa.Array, name: str = COLLECTED) -> None:
        self._task.collect(column, name, self._position)

    # --- the gate ----------------------------------------------------------------------------------------------------

    def receive(self, channel: Channel, kind: Kind, value: Any) -> None:
        """Takes what comes through a channel: a payload, or inside the task what it would decode to."""
        self.handle(Element(channel, (kind, value)))

    def receive_barrier(self, channel: Channel, payload: pa.Buffer) -> None:
        """Takes a barrier of an exchange."""
        barrier = json.loads(payload.to_pybytes())
        name = f"{self._edges[channel[0]].source}/{channel[1]}"
        self._consumed.setdefault(barrier["checkpoint_id"], {})[name] = barrier["digest"]
        self.handle(Barrier(channel, barrier["checkpoint_id"]))

    def cancel(self, channel: Channel) -> None:
        """Takes the news that a task upstream has failed.

        Raises:
            Cancelled: Always: a Spark job fails as a whole.
        """
        self.handle(CancelBarrier(channel, self._checkpoints[0]))  # it is sorted before all barriers

    def handle(self, event: Event) -> None:
        """Does what the barrier handler says.

        Raises:
            Cancelled: A task upstream has failed.
            CheckpointError: A barrier came out of turn.
        """
        if isinstance(event, Barrier):
            self._first_barrier.setdefault(event.checkpoint_id, self._epoch.clock.now())
        for action in self._barriers.handle(event):
            match action:
                case Deliver(channel=channel, element=(kind, value)):
                    self._deliver(channel, kind, value)
                case Snapshot(checkpoint_id=checkpoint_id):
                    self._snapshot(checkpoint_id)
                case Complete(checkpoint_id=checkpoint_id):
                    self._acknowledge(checkpoint_id)
                case AddToChannelState(checkpoint_id=checkpoint_id, channel=channel, element=(kind, value)):
                    if kind is not Kind.LATENCY_MARKER:
                        row = InFlight(self._edges[channel[0]], channel[1], kind, _encode(kind, value))
                        self._taken[checkpoint_id].channel_state.add(row)
                case Abort(reason=CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER):
                    raise Cancelled
                case Abort(checkpoint_id=checkpoint_id, reason=reason):
                    raise CheckpointError(
                        f"operator {self.vertex.uid!r}, subtask {self._subtask}: checkpoint {checkpoint_id}: "
                        f"{reason.value}"
                    )
                case Block() | Unblock():
                    pass  # the handler keeps what a blocked channel brings

    def check_timeout(self) -> None:
        """Goes over to an unaligned checkpoint when alignment takes too long."""
        timeout, aligning = self._epoch.alignment_timeout, self._barriers.aligning
        if timeout is None or aligning is None:
            return
        now = self._epoch.clock.now()
        if self._aligning_since is None or self._aligning_since[0] != aligning:
            self._aligning_since = aligning, now
        elif now - self._aligning_since[1] >= timeout // timedelta(milliseconds=1):
            self.handle(AlignmentTimeout(aligning))

    def check_complete(self) -> None:
        """Refuses the end of input before all barriers have come.

        Raises:
            CheckpointError: The input was not complete.
        """
        for checkpoint_id in self._checkpoints:
            if missing := self._barriers.missing(checkpoint_id):
                raise CheckpointError(
                    f"operator {self.vertex.uid!r}, subtask {self._subtask}: barrier {checkpoint_id} did not come "
                    f"through {len(missing)} of its channels; the input of the task was not complete"
                )

    def _deliver(self, channel: Channel, kind: Kind, value: Any) -> None:
        if self._over:
            last = self._checkpoints[-1]
            if channel in self._barriers.missing(last):
                return  # in flight: part of the checkpoint, and replayed by the next Spark job
            raise CheckpointError(
                f"operator {self.vertex.uid!r}, subtask {self._subtask}: channel {channel} brought data behind "
                f"barrier {last}, the last one"
            )
        encoded = isinstance(value, pa.Buffer)
        if kind is Kind.BUFFER:
            edge = self._edges[channel[0]]
            if encoded:
                value = decode_buffer(value, edge.type_info)
                value.producer = edge.source
            self._on_records(edge.input_index, value)
        elif kind is Kind.WATERMARK:
            watermark = int.from_bytes(value, "big", signed=True) if encoded else value
            if self._valve.on_watermark(channel, watermark):
                self._advance(self._valve.watermark)
            self._send_status()
        elif kind is Kind.STREAM_STATUS:
            if self._valve.on_status(channel, value.to_pybytes() == _IDLE if encoded else value):
                self._advance(self._valve.watermark)
            self._send_status()
        else:
            self.on_latency_marker(LatencyMarker.from_bytes(value.to_pybytes()) if encoded else value)

    def _on_records(self, input_index: int, batch: StreamBatch) -> None:
        self._records_in += len(batch)
        self.operator.process(input_index, batch)
        self.on_processing_time()
        self._send_own_watermark()

    def on_processing_time(self) -> None:
        """Lets the operator act on the time that has passed."""
        self.operator.on_processing_time(self._epoch.clock.now())

    def replay(self) -> None:
        """Delivers what was on its way when the checkpoint was taken that this epoch starts from."""
        handles = self._epoch.input(self.vertex.uid, self._subtask).channel_state
        if not handles:
            return
        store = self._epoch.job_storage.open()
        for row in read_channel_state(handles, list(self._edges.values()), store, operator=self.vertex.uid):
            self._deliver((row.edge.id, row.channel), Kind(row.kind), row.payload)

    # --- time --------------------------------------------------------------------------------------------------------

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
        self.send_status(self._valve.idle)

    def send_status(self, idle: bool) -> None:
        """Says downstream whether this operator is idle, unless it has said so."""
        if idle != self.context.idle:
            self.context.idle = idle
            for output in self.outputs:
                output.status(idle)

    def on_latency_marker(self, marker: LatencyMarker) -> None:
        """Measures, and hands on; the user's functions do not see it."""
        self._latency.report(marker, self._epoch.clock.now())
        self.send_latency_marker(marker)

    def send_latency_marker(self, marker: LatencyMarker) -> None:
        """Sends a latency marker downstream."""
        for output in self.outputs:
            output.latency_marker(marker)

    @property
    def watermark(self) -> int | None:
        """Event time at the barrier, for the checkpoint."""
        own = self.operator.own_watermark
        reached = max(self.context.watermark, self._sent_watermark) if own is None else own
        return None if reached == MIN_WATERMARK else reached

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def trigger(self, checkpoint_id: int) -> None:
        """Takes the snapshot of a source, whose barriers come from the driver."""
        self._snapshot(checkpoint_id)
        self._acknowledge(checkpoint_id)

    def _snapshot(self, checkpoint_id: int) -> None:
        """Takes the snapshot, then sends the barrier on.

        The barrier carries a digest of all that the task has sent: two attempts of a task that sent different records
        can be told apart where their output is consumed.
        """
        self.on_processing_time()
        operator_state, raw_keyed = self.context.state.snapshot()
        taken = self.operator.snapshot()
        for output in self.outputs:
            output.flush()
        digest = self._task.output_digest
        state = SubtaskState(
            index=self._subtask,
            keyed=taken.keyed,
            operator_state=operator_state,
            raw_keyed=raw_keyed,
            splits=tuple(s.to_json() for s in taken.splits),
            watermark=self.watermark,
            committables=tuple(taken.committables),
            metrics={
                "records_in": self._records_in,
                "records_out": self._records_out,
                **self._latency.take(),
                **taken.metrics,
                **self.context.metrics.values(),
            },
        )
        self._records_in = self._records_out = 0
        channel_state = ChannelStateWriter(self._epoch.job_storage.open, self._epoch.written_by)
        self._taken[checkpoint_id] = _Taken(state, digest, channel_state)
        for output in self.outputs:
            output.barrier(checkpoint_id, digest)
        position = self._checkpoints.index(checkpoint_id) + 1
        self._position = position
        self._over = position == len(self._checkpoints)
        if not self._over:
            self.context.checkpoint_id = self._checkpoints[position]
            self.operator.begin_checkpoint()

    def _acknowledge(self, checkpoint_id: int) -> None:
        taken = self._taken.pop(checkpoint_id)
        state = replace(taken.state, channel_state=taken.channel_state.parts())
        now = self._epoch.clock.now()
        if (waited := now - self._first_barrier.pop(checkpoint_id, now)) > 0:
            state = replace(state, metrics={**state.metrics, "alignment_ms": waited})
        self._task.acknowledge(
            {
                "checkpoint_id": checkpoint_id,
                "attempt": self._epoch.attempt,
                "uid": self.vertex.uid,
                "digest": taken.digest,
                "consumed": self._consumed.pop(checkpoint_id, {}),
                "state": state.to_json(),
            }
        )


def _create_handler(channels: list[Channel], epoch: Epoch) -> BarrierHandler:
    if epoch.mode is CheckpointingMode.AT_LEAST_ONCE:
        return CheckpointBarrierTracker(channels)
    return SingleCheckpointBarrierHandler(channels, unaligned=epoch.alignment_timeout == timedelta(0))
