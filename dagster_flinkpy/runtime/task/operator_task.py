"""One operator in a task, with its input gate, outputs and counters."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from dagster_flinkpy.checkpoint.coordinator.messages import CheckpointFailureReason
from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.common.watermark_strategy import MIN_WATERMARK
from dagster_flinkpy.datastream.checkpointing_mode import CheckpointingMode
from dagster_flinkpy.datastream.functions import function_of
from dagster_flinkpy.datastream.input_selection import InputSelectable
from dagster_flinkpy.datastream.operator_specs import SourceSpec, TimestampsSpec
from dagster_flinkpy.datastream.program.job_graph import JobEdge, JobVertex, PartitionerKind
from dagster_flinkpy.errors import CheckpointError
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.operators.operator_factory import create_operator
from dagster_flinkpy.runtime.operators.operator_state_handler import OperatorStateHandler
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, StreamOperator
from dagster_flinkpy.runtime.shuffle.batch import Pace, StreamBatch
from dagster_flinkpy.runtime.shuffle.channel_selectors import upstream_subtasks
from dagster_flinkpy.runtime.shuffle.record_writer import BUFFER_ROWS, BUFFER_SIZE
from dagster_flinkpy.runtime.shuffle.wire import Kind, decode_buffers, decode_event, encode_element, read_buffer
from dagster_flinkpy.runtime.task.acknowledgement import Acknowledgement
from dagster_flinkpy.runtime.task.barrier_handlers import (
    Abort,
    AddToChannelState,
    AlignmentTimeout,
    Barrier,
    BarrierHandler,
    CancelBarrier,
    CheckpointBarrierTracker,
    Complete,
    Deliver,
    Element,
    Event,
    SingleCheckpointBarrierHandler,
    Snapshot,
)
from dagster_flinkpy.runtime.task.channel_state import ChannelStateWriter, InFlightRow, own_records, read_channel_state
from dagster_flinkpy.runtime.task.event_gateway import OperatorEventGateway
from dagster_flinkpy.runtime.task.latency import LatencyMarker
from dagster_flinkpy.runtime.task.outputs import ChainingOutput, Output
from dagster_flinkpy.runtime.task.parent_task import ParentTask
from dagster_flinkpy.runtime.task.selected_inputs import SelectedInputs, Waiting
from dagster_flinkpy.runtime.task.static_first import StaticFirst
from dagster_flinkpy.runtime.task.task_metrics import OperatorIOMetrics
from dagster_flinkpy.runtime.task.watermark_valve import BEFORE, WatermarkValve

__all__ = ["Cancelled", "OperatorTask"]

_JOINED_SIZE, _JOINED_ROWS = 4 * BUFFER_SIZE, BUFFER_ROWS
"""Buffers of fewer bytes and records are processed together: each batch has a cost, and barriers wait for its end."""

Channel = tuple[int, int]
"""Id of the edge and index of the upstream subtask."""


class Cancelled(Exception):
    """The Spark job has failed upstream."""


class OperatorTask:
    """One operator in a task.

    Its input goes through the barrier handler, which decides when the operator gets an element and when the snapshot is
    taken.
    """

    parts: Iterator[None] | None = None
    """Processes the rest of a batch, part by part. It comes before everything else."""

    def __init__(self, task: ParentTask, vertex: JobVertex, job: EpochJob, subtask: int, execution: str) -> None:
        self._task = task
        self.vertex = vertex
        self._job, self._subtask = job, subtask
        graph = job.graph
        given = job.input(vertex.uid, subtask)
        watermark = MIN_WATERMARK if given.watermark is None else given.watermark
        self.context = self._create_context(execution, watermark)
        self.outputs: list[Output] = []
        self._edges = {e.id: e for e in graph.inputs(vertex.uid)}
        channels: dict[Channel, tuple[str, ...]] = {
            (e.id, c): graph.watermark_origins[e.source]
            for e in self._edges.values()
            for c in upstream_subtasks(
                e.partitioner.kind, subtask, graph.vertex(e.source).parallelism, vertex.parallelism
            )
        }
        self._valve = WatermarkValve(channels, watermark)
        static = [e.id for e in graph.static_inputs(vertex.uid)]
        self._first = StaticFirst(channels.keys(), {each for each in channels if each[0] in static})
        self._is_source = isinstance(vertex.spec, SourceSpec)
        self._makes_watermarks = isinstance(vertex.spec, SourceSpec | TimestampsSpec)
        self._barriers = _create_handler(channels, self._edges, job)
        self._aligning_since: tuple[int, int] | None = None
        self._last_aligned = 0
        """The last checkpoint whose barrier overtakes nothing."""
        self._first_barrier: dict[int, int] = {}
        """The processing time at which the first barrier arrived, by checkpoint."""
        self._sent: dict[str, int] = {}
        """The watermarks that were sent, by origin."""
        self._idle: set[str] = set()
        """Origins that were reported downstream as idle until the next barrier."""
        self._metrics = OperatorIOMetrics()
        self._shuffled = {e.id for e in self._edges.values() if not graph.is_chained(e)}
        self._held: list[tuple[JobEdge, pa.RecordBatch]] = []
        """Buffers of one edge that are processed with the next ones."""
        self._held_bytes = self._held_rows = 0
        self._consumed: dict[int, dict[str, str]] = {}
        """Digests of the consumed output, by checkpoint and ``uid/subtask`` of the upstream subtask."""
        self._taken: dict[int, tuple[Acknowledgement, ChannelStateWriter]] = {}
        """The snapshots that have not been acknowledged yet, each with what was in flight."""
        self._position = 0
        """The number of barriers that the operator has passed since the task began."""
        self._next_epochs = deque[EpochInput]()
        """The epochs after the current one, as far as they are known."""
        self._between = False
        """Whether the snapshot of the last known epoch was taken. What arrives afterwards is for the next one."""
        self._kept: list[tuple[Channel, Kind, Any, int]] = []
        """What has arrived between two epochs."""
        self._ahead: list[Element | Barrier] = []
        """What has arrived from channels that are an epoch ahead: the barrier of an epoch that has not begun here, and
        what follows it."""
        self._channels_ahead: set[Channel] = set()
        self.operator: StreamOperator = create_operator(self.context)
        self.events = OperatorEventGateway(self.operator, task.send_event)
        self._selected: SelectedInputs | None = None
        if (function := function_of(vertex.spec, InputSelectable)) is not None:
            inputs = {channel: self._edges[channel[0]].input_index for channel in channels}
            self._selected = SelectedInputs(self.operator, function, inputs, channels, job.graph)

    def _create_context(self, execution: str, watermark: int) -> OperatorContext:
        return OperatorContext(
            vertex=self.vertex,
            subtask=self._subtask,
            job=self._job,
            execution=execution,
            emit=self._emit,
            collect=self._collect,
            watermark=watermark,
            epoch=self._job.epoch,
            state=OperatorStateHandler(self.vertex, self._subtask, self._job),
            send_status=partial(self.send_status, self.vertex.uid),
            pace=Pace(cuts=self._job.pipelined),
            event_times=self._event_times,
        )

    def _emit(self, tag: str | None, batch: StreamBatch) -> None:
        self._metrics.records_out += len(batch)
        if self._is_source:
            self._task.count.add(len(batch))
        outputs = [output for output in self.outputs if output.edge.side_output == tag]
        for output in outputs:
            # A function behind one edge may change the values, and functions behind other edges must not see that.
            alone = output is outputs[-1] or not isinstance(output, ChainingOutput)
            output.emit(batch if alone else batch.apart())

    def _collect(self, column: pa.Array, name: str) -> None:
        self._task.collect(column, name, self._position)

    # --- the gate ----------------------------------------------------------------------------------------------------

    def receive(self, channel: Channel, kind: Kind, value: Any, epoch: int) -> None:
        """Takes an element of a channel, which has delivered so many barriers before (``epoch``).

        The payload is encoded, unless it comes from an operator of the same task.
        """
        self.handle(Element(channel, (kind, value, epoch)))

    def receive_barrier(self, channel: Channel, payload: pa.Buffer) -> None:
        """Takes a barrier that came through a shuffle."""
        barrier = json.loads(payload.to_pybytes())
        name = f"{self._edges[channel[0]].source}/{channel[1]}"
        self._consumed.setdefault(barrier["checkpoint_id"], {})[name] = barrier["digest"]
        self.handle(Barrier(channel, barrier["checkpoint_id"], barrier["aligned"]))

    def cancel(self, channel: Channel) -> None:
        """Takes the message that an upstream task has failed.

        Raises:
            Cancelled: Always, because a Spark job fails as a whole.
        """
        self.handle(CancelBarrier(channel, self._job.checkpoint_id))  # it is sorted before all barriers

    def handle(self, event: Event) -> None:
        """Passes an event to the barrier handler, and carries out the resulting actions.

        Raises:
            Cancelled: An upstream task has failed.
            CheckpointError: A barrier arrived out of order.
        """
        if isinstance(event, Element | Barrier) and (self._first.keeps(event) or self._keeps_ahead(event)):
            return
        self._task.enter(self.vertex.uid)
        if isinstance(event, Barrier):
            self._first_barrier.setdefault(event.checkpoint_id, self._job.clock.now())
            self._last_aligned = event.checkpoint_id if event.aligned else self._last_aligned
        for action in self._barriers.handle(event):
            match action:
                case Deliver(channel=channel, element=(kind, value, epoch)):
                    self._deliver(channel, kind, value, epoch)
                case Snapshot(checkpoint_id=checkpoint_id):
                    self._snapshot(checkpoint_id)
                case Complete(checkpoint_id=checkpoint_id):
                    self._acknowledge(checkpoint_id)
                case AddToChannelState(checkpoint_id=checkpoint_id, channel=channel, element=(kind, value, _)):
                    if kind is Kind.BUFFER:  # event time is sent again, see replay()
                        row = InFlightRow(self._edges[channel[0]], channel[1], kind, encode_element(kind, value))
                        self._taken[checkpoint_id][1].add(row)
                case Abort(reason=CheckpointFailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER):
                    raise Cancelled
                case Abort(checkpoint_id=checkpoint_id, reason=reason):
                    raise CheckpointError(
                        f"operator {self.vertex.uid!r}, subtask {self._subtask}: checkpoint {checkpoint_id}: "
                        f"{reason.value}"
                    )
        self._task.leave()
        if self._first.waiting:
            for each in self._first.release(event, self._valve.is_silent):
                self.handle(each)

    def _keeps_ahead(self, event: Element | Barrier) -> bool:
        """Keeps an event that is for an epoch of which the driver has told others, but not this task yet."""
        if event.channel not in self._channels_ahead:
            if not (self._between and self._job.pipelined and isinstance(event, Barrier)):
                return False
            if event.checkpoint_id <= self.context.checkpoint_id:
                return False
            self._channels_ahead.add(event.channel)
        self._ahead.append(event)
        return True

    @property
    def blocked(self) -> Set[Channel]:
        """The channels that wait: for the barriers of others, for all of static ones, or until they are selected.

        While barriers are missing, all are read up to theirs: the function cannot select what is behind one.
        """
        waiting = self._barriers.blocked | self._first.waiting
        if self._selected is None or self._barriers.awaits_barriers:
            return waiting
        return waiting | self._selected.blocked(self.context.epoch.open)

    @property
    def selects(self) -> bool:
        """Whether its function selects its inputs."""
        return self._selected is not None

    def check_timeout(self) -> None:
        """Makes the checkpoint unaligned if alignment takes too long."""
        timeout, aligning = self._job.alignment_timeout, self._barriers.aligning
        if timeout is None or aligning is None:
            return
        now = self._job.clock.now()
        if self._aligning_since is None or self._aligning_since[0] != aligning:
            self._aligning_since = aligning, now
        elif now - self._aligning_since[1] >= to_millis(timeout):
            self.handle(AlignmentTimeout(aligning))

    def check_complete(self) -> None:
        """Checks that all barriers have arrived by the end of input.

        Raises:
            CheckpointError: The input was not complete.
        """
        if missing := self._barriers.missing(self._job.checkpoint_id):
            raise CheckpointError(
                f"operator {self.vertex.uid!r}, subtask {self._subtask}: barrier {self._job.checkpoint_id} did not "
                f"arrive from {len(missing)} of its channels; the input of the task was incomplete"
            )

    def _deliver(self, channel: Channel, kind: Kind, value: Any, epoch: int) -> None:
        if self._between:
            self._keep(channel, kind, value, epoch)
            return
        encoded = isinstance(value, pa.Buffer)
        if self._selected is not None:
            self._await_selection(self._selected, channel, kind, value, epoch)
        elif kind is Kind.BUFFER and encoded:
            self._hold(self._edges[channel[0]], value)
        else:
            self.process_held()
            self._process(channel, kind, value, epoch)

    def _process(self, channel: Channel, kind: Kind, value: Any, epoch: int) -> None:
        encoded = isinstance(value, pa.Buffer)
        if kind is Kind.BUFFER:
            self._on_records(self._edges[channel[0]].input_index, value)
        elif kind is Kind.LATENCY_MARKER:
            self.on_latency_marker(LatencyMarker.from_text(value.to_pybytes()) if encoded else value)
        else:
            origin, what = decode_event(kind, value.to_pybytes()) if encoded else value
            for each in [origin] if origin else self._job.graph.watermark_origins[self._edges[channel[0]].source]:
                self._on_event_time(channel, kind, each, what, epoch)

    def _await_selection(self, selected: SelectedInputs, channel: Channel, kind: Kind, value: Any, epoch: int) -> None:
        """Takes something of an input that the function may not have selected."""
        edge = self._edges[channel[0]]
        if kind is Kind.BUFFER:
            self._metrics.bytes_in += value.size
            for batch in decode_buffers([read_buffer(value)], edge.type_info):
                batch.producer = edge.source
                self._task.count.add(len(batch))
                selected.put(edge.input_index, Waiting(channel, kind, batch, epoch))
        else:
            if kind is not Kind.LATENCY_MARKER:
                value = decode_event(kind, value.to_pybytes())
            selected.put(edge.input_index, Waiting(channel, kind, value, epoch))
        self._read_selected()

    def _read_selected(self) -> None:
        if self._selected is not None:
            self._selected.work_off(lambda each: self._process(each.channel, each.kind, each.value, each.epoch))

    def _keep(self, channel: Channel, kind: Kind, value: Any, epoch: int) -> None:
        last = self.context.checkpoint_id
        if self._job.pipelined:
            self._kept.append((channel, kind, value, epoch))
        elif channel not in self._barriers.missing(last):  # else it is in flight, and the next Spark job replays it
            raise CheckpointError(
                f"operator {self.vertex.uid!r}, subtask {self._subtask}: channel {channel} delivered data after the "
                f"last barrier, {last}"
            )

    def _hold(self, edge: JobEdge, payload: pa.Buffer) -> None:
        """Takes a buffer. Small ones, as many senders send, wait for those that follow, and are processed as one."""
        if self._held and self._held[0][0] is not edge:
            self.process_held()
        self._held.append((edge, read_buffer(payload)))
        self._held_bytes += payload.size
        self._held_rows += self._held[-1][1].num_rows
        if self._held_bytes >= _JOINED_SIZE or self._held_rows >= min(_JOINED_ROWS, self.context.pace.rows):
            self.process_part()
            if not self._job.pipelined:  # nobody would ask for the other parts
                self.process_held()

    @property
    def holds(self) -> bool:
        """Whether buffers wait for others."""
        return bool(self._held)

    def process_held(self) -> None:
        """Processes what is left of a batch, and the buffers that wait for others."""
        while self._held or self.parts is not None:
            self.process_part()

    def process_part(self) -> None:
        """Processes the next part of a batch, or the first one of the buffers that wait for others."""
        self.parts = self.parts or self._each_part()
        if next(self.parts, True):
            self.parts = None

    def _each_part(self) -> Iterator[None]:
        edge, read = self._held[0][0], [columns for _, columns in self._held]
        if edge.id in self._shuffled:
            self._metrics.bytes_in += self._held_bytes
        self._held, self._held_bytes, self._held_rows = [], 0, 0
        for batch in decode_buffers(read, edge.type_info):
            batch.producer = edge.source
            for end in self.context.pace.process(batch, partial(self._receive, edge)):
                if self._task.is_cut:
                    raise CheckpointError("the task is cancelled")
                if end < len(batch):
                    yield

    def _receive(self, edge: JobEdge, batch: StreamBatch) -> None:
        self._task.count.add(len(batch))
        self._on_records(edge.input_index, batch)

    def _on_records(self, input_index: int, batch: StreamBatch) -> None:
        self._metrics.records_in += len(batch)
        self.operator.process(input_index, batch)
        self.on_processing_time()
        self._send_own_watermark()

    def on_processing_time(self) -> None:
        """Tells the operator the processing time, unless it waits for its next epoch."""
        if not self._between:
            self.operator.on_processing_time(self._job.clock.now())
            self._read_selected()

    def replay(self) -> None:
        """Delivers the in-flight records of the checkpoint that this Spark job starts from.

        Event time that was in flight is left out. Senders begin without the watermarks of their inputs, so they are
        behind what they have sent before, and it would let event time pass before records that they send only now.
        """
        handles = self._job.input(self.vertex.uid, self._subtask).channel_state
        if not handles:
            return
        store = self._job.job_storage.open()
        vertex = self.vertex
        for selector in self._job.graph.selectors(self._edges.values()):
            self.operator.open_function(selector)  # the senders, which have opened theirs, may be elsewhere
        for row in read_channel_state(handles, list(self._edges.values()), store, operator=vertex.uid):
            if row.kind != Kind.BUFFER:  # earlier releases have stored others, too
                continue
            payload = own_records(row, self._subtask, vertex.parallelism, vertex.max_parallelism)
            if payload is not None:
                self._deliver((row.edge.id, row.channel), Kind.BUFFER, payload, BEFORE)
        self.process_held()

    # --- time --------------------------------------------------------------------------------------------------------

    def _on_event_time(self, channel: Channel, kind: Kind, origin: str, what: int, epoch: int) -> None:
        if kind is Kind.WATERMARK:
            risen = self._valve.on_watermark(channel, origin, what, epoch)
        else:
            risen = self._valve.on_status(channel, origin, bool(what), epoch)
        if risen:
            self.on_processing_time()
            self.context.watermark = self._valve.watermark
            self.operator.on_watermark(self._valve.watermark)
        self._send_event_time(origin)

    def _send_event_time(self, origin: str) -> None:
        """Forwards the event time of an origin; an operator that generates watermarks sends its own instead."""
        if self._makes_watermarks:
            self._send_own_watermark()
            self.send_status(self.vertex.uid, self._valve.all_idle_in(self._position))
        else:
            self.send_watermark(origin, self._valve.reached(origin))
            self.send_status(origin, self._valve.idle_in(origin, self._position))

    def _send_own_watermark(self) -> None:
        if (own := self.operator.own_watermark) is not None:
            self.send_watermark(self.vertex.uid, own)

    def send_watermark(self, origin: str, watermark: int) -> None:
        """Sends a watermark downstream if it is greater than the last one."""
        if watermark > self._sent.get(origin, MIN_WATERMARK):
            self._sent[origin] = watermark
            for output in self.outputs:
                output.watermark(origin, watermark)

    def resume(self) -> None:
        """Sends the watermark of the last barrier downstream, because gates start without channel watermarks."""
        if self._makes_watermarks and self.watermark is not None:
            self.send_watermark(self.vertex.uid, self.watermark)

    def send_status(self, origin: str, idle: bool) -> None:
        """Reports downstream whether an origin is idle here until the next barrier, if that has changed."""
        if idle != (origin in self._idle):
            self._idle ^= {origin}
            for output in self.outputs:
                output.status(origin, idle)

    def _event_times(self) -> dict[str, tuple[int, bool]]:
        valve = self._valve
        return {origin: (valve.reached(origin), valve.idle_in(origin, self._position)) for origin in valve.origins}

    def on_latency_marker(self, marker: LatencyMarker) -> None:
        """Measures a marker and forwards it without calling user functions."""
        self._metrics.latency.report(marker, self._job.clock.now())
        self.send_latency_marker(marker)

    def send_latency_marker(self, marker: LatencyMarker) -> None:
        """Sends a latency marker downstream."""
        for output in self.outputs:
            output.latency_marker(marker)

    @property
    def watermark(self) -> int | None:
        """Returns the event time at the barrier, for the checkpoint."""
        own = self.operator.own_watermark
        reached = max(self.context.watermark, self._sent.get(self.vertex.uid, MIN_WATERMARK)) if own is None else own
        return None if reached == MIN_WATERMARK else reached

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def trigger(self, checkpoint_id: int, *, aligned: bool) -> None:
        """Takes the snapshot of a source, whose barriers come from the driver."""
        self._last_aligned = checkpoint_id if aligned else 0
        self._snapshot(checkpoint_id)
        self._acknowledge(checkpoint_id)

    def _snapshot(self, checkpoint_id: int) -> None:
        """Takes the snapshot, then forwards the barrier.

        The barrier carries a digest of everything that the task has sent. With it, consumers can distinguish two
        attempts of a task that sent different records.
        """
        self.process_held()
        self.on_processing_time()
        started = time.perf_counter_ns()
        operator_state, raw_keyed = self.context.state.snapshot(checkpoint_id)
        taken = self.operator.snapshot()
        sync_us = (time.perf_counter_ns() - started) // 1_000
        for output in self.outputs:
            output.flush()
        digest = self._task.output_digest
        self._metrics.bytes_out = sum(output.bytes_out for output in self.outputs)
        state = SubtaskState(
            index=self._subtask,
            operator_state=operator_state,
            raw_keyed=raw_keyed,
            splits=tuple(s.to_json() for s in taken.splits),
            watermark=self.watermark,
            committables=tuple(taken.committables),
            metrics={
                **self._metrics.take(
                    now_ms=self._job.clock.now(), input_watermark=self._valve.watermark, output_watermark=self.watermark
                ),
                **self._task.times.take(self.vertex.uid),
                **self._task.take_queue_metrics(self.vertex.uid),
                "sync_us": sync_us,
                **taken.metrics,
                **self.context.metrics.take(),
            },
        )
        channel_state = ChannelStateWriter(self._job.job_storage.open, self._job.writer_of(checkpoint_id))
        for each in self._selected.left() if self._selected is not None else ():
            payload = encode_element(Kind.BUFFER, each.value.slice(each.read, len(each.value)))
            channel_state.add(InFlightRow(self._edges[each.channel[0]], each.channel[1], Kind.BUFFER, payload))
        marked_ms = {} if self.outputs else self._metrics.latency.take_marked()
        uploads = self.context.state.uploads(state.operator_state_files())
        fields = {
            "checkpoint_id": checkpoint_id,
            "fencing_token": self._job.fencing_token,
            "digest": digest,
            "marked_ms": marked_ms,
        }
        self._taken[checkpoint_id] = (
            Acknowledgement(self.vertex.uid, state, taken.keyed, uploads, fields),
            channel_state,
        )
        self.events.snapshot(checkpoint_id)
        for output in self.outputs:
            output.barrier(checkpoint_id, digest, checkpoint_id == self._last_aligned)
        self._position += 1
        self._between = not self._next_epochs
        if not self._between:
            self._begin(self._next_epochs.popleft())

    def add_epoch(self, epoch: EpochInput) -> None:
        """Takes the epoch after the last known one. It begins at once if the operator has passed all earlier barriers.

        Raises:
            Exception: Whatever the operator raises for elements that have come already.
        """
        if not self._between:
            self._next_epochs.append(epoch)
            return
        self._between = False
        self._begin(epoch)
        kept, self._kept = self._kept, []
        for channel, kind, value, number in kept:
            self._deliver(channel, kind, value, number)
        ahead, self._ahead = self._ahead, []
        self._channels_ahead.clear()
        for event in ahead:
            self.handle(event)

    def _begin(self, epoch: EpochInput) -> None:
        self.context.epoch = epoch
        self._idle.clear()
        for origin in self._valve.origins:  # a source has none, and reports its own status
            self._send_event_time(origin)
        self.operator.begin_checkpoint()

    def _acknowledge(self, checkpoint_id: int) -> None:
        ack, channel_state = self._taken.pop(checkpoint_id)
        now = self._job.clock.now()
        first = self._first_barrier.pop(checkpoint_id, now)
        times = {"barrier_ms": first} | ({"alignment_ms": now - first} if now > first else {})
        ack = replace(
            ack,
            state=replace(ack.state, channel_state=channel_state.parts(), metrics={**ack.state.metrics, **times}),
            uploads=(*ack.uploads, *channel_state.uploads),
            fields={**ack.fields, "consumed": self._consumed.pop(checkpoint_id, {})},
            started=time.perf_counter_ns(),
        )
        self._task.acknowledge(ack)


def _create_handler(channels: Iterable[Channel], edges: Mapping[int, JobEdge], job: EpochJob) -> BarrierHandler:
    if job.mode is CheckpointingMode.AT_LEAST_ONCE:
        return CheckpointBarrierTracker(channels)
    # At another parallelism subtasks get broadcast state of others (Flink: StreamEdge.supportsUnalignedCheckpoints).
    aligned = frozenset(each for each in channels if edges[each[0]].partitioner.kind is PartitionerKind.BROADCAST)
    return SingleCheckpointBarrierHandler(channels, unaligned=job.alignment_timeout == timedelta(0), aligned=aligned)
