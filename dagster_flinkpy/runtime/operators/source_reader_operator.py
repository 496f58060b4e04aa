"""The operator of a source in Flink's shape: a reader that is polled."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK, WatermarkStrategy
from dagster_flinkpy.connectors.columns.column_casts import fit_column
from dagster_flinkpy.connectors.sources.source_coordinator import Tell, packed, unpacked
from dagster_flinkpy.datastream.checkpointed_function import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from dagster_flinkpy.datastream.checkpointing.checkpoint_listener import CheckpointListener
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.connectors.reader_source import ReaderSource
from dagster_flinkpy.datastream.connectors.source import (
    InputStatus,
    JsonSerializer,
    ReaderOutput,
    SourceOutput,
    SourceReaderContext,
)
from dagster_flinkpy.datastream.operator_specs import SourceSpec
from dagster_flinkpy.datastream.state import ListStateDescriptor
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.runtime.epoch import EpochInput, Reached
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.source_operator import SourceOperator
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, OperatorSnapshot, StreamOperator
from dagster_flinkpy.runtime.operators.timestamps_operator import EventTime, UnitCheck
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

__all__ = ["BatchingOutput", "SourceReaderOperator", "create_source_operator"]


class _SplitOutput(SourceOutput):
    """Keeps the records of a split, or those that belong to none, and follows their event time."""

    def __init__(self, owner: BatchingOutput, time: EventTime) -> None:
        self._owner, self.time = owner, time
        self._batches: list[StreamBatch] = []
        self._values: list[Any] = []
        self._times: list[int] = []

    def collect(self, record: Any, timestamp: int | None = None) -> None:
        self._values.append(record)
        self._times.append(NO_TIMESTAMP if timestamp is None else timestamp)
        self._owner.size += 1

    def collect_column(self, records: pa.Array, timestamps: pa.Array | None = None) -> None:
        vertex = self._owner.operator.context.vertex
        what = f"operator {vertex.uid!r}: collect_column()"
        column = fit_column(records, vertex.output_type, what)
        times = pa.nulls(len(column), pa.int64()) if timestamps is None else timestamps
        if len(times) != len(column):
            raise TypeMismatchError(f"{what} got {len(column)} records and {len(times)} timestamps")
        self._end_batch()
        numbers = pc.fill_null(times.cast(pa.int64()), NO_TIMESTAMP).to_numpy(zero_copy_only=False)
        self._batches.append(StreamBatch(vertex.output_type, numbers, column=column, producer=vertex.uid))
        self._owner.size += len(column)

    def _end_batch(self) -> None:
        if self._values:
            vertex = self._owner.operator.context.vertex
            times: npt.NDArray[np.int64] = np.array(self._times, dtype=np.int64)
            self._batches.append(StreamBatch(vertex.output_type, times, values=self._values, producer=vertex.uid))
            self._values, self._times = [], []

    def take(self) -> Iterator[StreamBatch]:
        """Yields all with their timestamps, and forgets it."""
        self._end_batch()
        taken, self._batches = self._batches, []
        for batch in taken:
            self.time.assign(batch)
            yield batch


class BatchingOutput(ReaderOutput):
    """Keeps what a reader emits until its operator takes it (Flink: ``WatermarkOutputMultiplexer``)."""

    def __init__(self, operator: StreamOperator, strategy: WatermarkStrategy) -> None:
        self.operator, self._strategy = operator, strategy
        context = operator.context
        self._unit = UnitCheck(context.vertex.uid, context.watermark)
        self._main = self._create()
        self._main_used = False
        self._splits: dict[str, _SplitOutput] = {}
        self._released: list[_SplitOutput] = []
        self.size = 0
        """How many records it has."""

    def _create(self) -> _SplitOutput:
        return _SplitOutput(self, EventTime(self._strategy, self.operator, MIN_WATERMARK, self._unit))

    def collect(self, record: Any, timestamp: int | None = None) -> None:
        self._main_used = True
        self._main.collect(record, timestamp)

    def collect_column(self, records: pa.Array, timestamps: pa.Array | None = None) -> None:
        self._main_used = True
        self._main.collect_column(records, timestamps)

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        return self._splits.setdefault(split_id, self._create())

    def release_output_for_split(self, split_id: str) -> None:
        if (output := self._splits.pop(split_id, None)) is not None:
            self._released.append(output)

    def take(self) -> Iterator[StreamBatch]:
        """Yields all with their timestamps, and forgets it."""
        released, self._released, self.size = self._released, [], 0
        for output in (self._main, *released, *self._splits.values()):
            yield from output.take()

    def ahead_of(self, watermark: int) -> set[str]:
        """Returns the splits that are further in event time."""
        return {name for name, output in self._splits.items() if output.time.watermark > watermark}

    @property
    def watermark(self) -> int:
        """The event time up to which all records have come, of those that were taken: the least over the splits."""
        outputs = [*([self._main] if self._main_used else []), *self._splits.values()]
        return min((output.time.watermark for output in outputs), default=MIN_WATERMARK)


_BATCH_RECORDS = 4096
_BATCH_SECONDS = 0.02
"""How long a reader is polled before its records are sent, and barriers may pass."""
_EPOCH_SECONDS = 60.0
"""How long it is polled in an epoch whose end nobody else says, if it always has more."""


def create_source_operator(context: OperatorContext, spec: SourceSpec) -> SourceOperator:
    """Creates the operator of a source."""
    kind = SourceReaderOperator if isinstance(spec.source, ReaderSource) else SourceOperator
    return kind(context, spec)


class SourceReaderOperator(SourceOperator, SourceReaderContext, CheckpointedFunction, CheckpointListener):
    """Polls a reader, whose context it is (Flink: ``SourceOperator``). The splits of the reader are operator state."""

    def __init__(self, context: OperatorContext, spec: SourceSpec) -> None:
        super().__init__(context, spec)
        assert isinstance(spec.source, ReaderSource)
        self._reader_source = spec.source.source
        self._serializer = self._reader_source.get_split_serializer()
        self._output = BatchingOutput(self, spec.watermark_strategy)
        self._messages: list[dict[str, Any]] = [{"host": socket.gethostname()}]
        self._answered: list[dict[str, Any]] = []
        """The messages with the events that the last barrier has told the coordinator."""
        self._status: InputStatus | None = None
        self._answers = False
        self.rests = False
        """Whether there is nothing to read in an open epoch, so that it is polled again later."""
        self._paused: set[str] = set()
        """The splits that are further in event time than the group of the source allows."""
        self.is_called: Callable[[], bool] = lambda: False
        """Returns whether the next part of an open epoch is there."""
        self.on_available: Callable[[], object] = lambda: None
        """Is called by any thread when the reader may have something again."""
        self._awaited: Future[Any] | None = None

    def open(self) -> None:
        self._reader = self.call("create_reader()", self._reader_source.create_reader, self)
        self.context.state.initialize(self)
        self.call("start()", self._reader.start)

    # --- the enumerator ----------------------------------------------------------------------------------------------

    def get_index_of_subtask(self) -> int:
        return self.context.subtask

    def current_parallelism(self) -> int:
        return self.context.vertex.parallelism

    def send_split_request(self) -> None:
        self._messages.append({})

    def send_source_event_to_coordinator(self, event: Any) -> None:
        JsonSerializer().serialize(event)  # checks it
        self._messages.append({"event": event})

    def take_messages(self) -> list[dict[str, Any]]:
        """Returns what the coordinator is to hear, if it can while the reader reads."""
        messages, self._messages = self._messages, []
        return messages

    def _take(self, told: tuple[SourceSplit, ...]) -> set[Tell]:
        for tell, group in groupby(told, lambda each: Tell(each.properties["tell"])):
            values = [each.properties["value"] for each in group]
            if tell is Tell.SPLIT:
                self._add_splits([unpacked(self._serializer, value) for value in values])
            elif tell is Tell.NO_MORE_SPLITS:
                self.call("notify_no_more_splits()", self._reader.notify_no_more_splits)
            elif tell is Tell.EVENT:
                for value in values:
                    self.call("handle_source_events()", self._reader.handle_source_events, value)
            elif tell is Tell.POLL:  # the coordinator has asked for splits itself
                self._messages = [each for each in self._messages if each]
                self._forget_answered()
        self.rests = False
        return {Tell(each.properties["tell"]) for each in told}

    def _forget_answered(self) -> None:
        """Forgets the events that the coordinator has."""
        known, self._answered = {id(each) for each in self._answered}, []
        self._messages = [each for each in self._messages if id(each) not in known]

    def _add_splits(self, splits: list[Any]) -> None:
        self.call("add_splits()", self._reader.add_splits, splits)
        if self._status is InputStatus.END_OF_INPUT:
            self._messages.append({"status": InputStatus.MORE_AVAILABLE.value})
        self._status = None

    # --- reading -----------------------------------------------------------------------------------------------------

    def may_wait(self, epoch: EpochInput) -> bool:
        return True

    def run(self, epoch: EpochInput) -> Iterator[int]:
        vertex = self.context.vertex
        new, self._epoch = epoch.checkpoint_id != self._epoch, epoch.checkpoint_id
        told = self._take(epoch.splits.get((vertex.uid, self.context.subtask), ()))
        self._answers = Tell.POLL in told
        self._pause_splits()
        self._read_any = self._read_any and not new
        if self._status is InputStatus.END_OF_INPUT:
            self.context.send_status(True)
        if epoch.open:
            self._forget_answered()
            while self._goes_on(told):
                self._pause_splits()
                if self.is_ahead and self._status is not InputStatus.END_OF_INPUT:
                    self.context.send_status(False)  # it may have input
                else:
                    self._poll()
                self.rests = (self.is_ahead or self._status is not InputStatus.MORE_AVAILABLE) and self._goes_on(told)
                yield self._time.watermark
        elif Tell.END in told:
            while self._status is not InputStatus.END_OF_INPUT:
                self._poll()
                yield self._time.watermark
        elif Tell.POLL in told:
            ends = time.monotonic() + _EPOCH_SECONDS
            reads = True
            while reads:
                self._poll()
                reads = self._status is InputStatus.MORE_AVAILABLE and time.monotonic() < ends
                yield self._time.watermark
            if not self._read_any and self._idle_timeout is not None:
                self.context.send_status(True)
        if vertex.uid in epoch.ended_sources:
            self.context.send_status(False)
            yield MAX_WATERMARK

    def _goes_on(self, told: set[Tell]) -> bool:
        """Returns whether it is polled on in an open epoch."""
        # If the epoch runs again, the next part is there at once, though readers have not read all yet.
        at_end = Tell.END not in told or self._status is InputStatus.END_OF_INPUT
        return not (self.is_called() and at_end)

    @property
    def waits(self) -> bool:
        return self.rests

    def _pause_splits(self) -> None:
        """Lets the reader leave out splits that are too far in event time."""
        ahead = self._output.ahead_of(self.max_watermark) if self.aligns else set()
        if ahead != self._paused:
            pause, resume = sorted(ahead - self._paused), sorted(self._paused - ahead)
            self._paused = ahead
            self.call("pause_or_resume_splits()", self._reader.pause_or_resume_splits, pause, resume)

    def _poll(self) -> None:
        """Polls the reader for a while, and emits what it has read."""
        if self._status is InputStatus.END_OF_INPUT:
            return
        ends, output = time.monotonic() + _BATCH_SECONDS, self._output
        status = InputStatus.MORE_AVAILABLE
        try:
            while status is InputStatus.MORE_AVAILABLE and output.size < _BATCH_RECORDS:
                status = self._reader.poll_next(output)
                if time.monotonic() >= ends:
                    break
        except USER_EXCEPTIONS as error:
            raise self.user_error(error, "poll_next()") from error
        if not isinstance(status, InputStatus):
            raise self._wrong("poll_next()", status, "an InputStatus")
        self._status = status
        self._emit()
        if status is InputStatus.END_OF_INPUT:
            self._messages.append({"status": status.value})
            self.context.send_status(True)  # event time does not wait for it
        elif status is InputStatus.NOTHING_AVAILABLE:
            self._await_more()

    def _wrong(self, method: str, returned: object, wanted: str) -> TypeMismatchError:
        vertex = self.context.vertex
        where = f"{method} of operator {vertex.uid!r} ({vertex.name})"
        return TypeMismatchError(f"{where} returned {returned!r:.100}, but must return {wanted}")

    def _await_more(self) -> None:
        more: Future[Any] | None = self.call("is_available()", self._reader.is_available)
        if not isinstance(more, Future | None):
            raise self._wrong("is_available()", more, "a concurrent.futures.Future or None")
        if more is not None and more is not self._awaited:  # otherwise one that is done would be asked without end
            self._awaited = more
            more.add_done_callback(lambda _: self.on_available())

    def _emit(self) -> None:
        for batch in self._output.take():
            self._read_any, self._waits_from, self._is_silent = True, None, False
            self.context.send_status(False)
            self.context.emit(None, batch)
        self._time.watermark = max(self._time.watermark, self._output.watermark)

    def reached(self, *, reads: bool, now_ms: int | None) -> Reached:
        if self._status is InputStatus.END_OF_INPUT:
            return MAX_WATERMARK, False, False
        self._was_given = True
        reached, reads, _ = super().reached(reads=reads and (self.is_ahead or not self.rests), now_ms=now_ms)
        return reached, reads, reads and self.is_ahead

    def knows_idleness(self, epoch: EpochInput) -> bool:
        return False  # it says so itself

    def hear(self, epoch: EpochInput, now_ms: int) -> bool:
        return False  # its splits are no records yet

    def snapshot(self) -> OperatorSnapshot:
        if not self._answers:
            return OperatorSnapshot()
        status = (self._status or InputStatus.MORE_AVAILABLE).value
        self._answered = [each for each in self._messages if "event" in each]
        events = [each["event"] for each in self._answered]
        answer = {"tell": Tell.ANSWER, "subtask": self.context.subtask, "status": status, "events": events}
        return OperatorSnapshot(splits=(SourceSplit(f"reader {self.context.subtask}", answer),))

    def close(self) -> None:
        self.call("close()", self._reader.close)

    # --- the splits of the reader ------------------------------------------------------------------------------------

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        descriptor = ListStateDescriptor("SourceReaderState", Types.STRING())
        self._state = context.get_operator_state_store().get_list_state(descriptor)
        if splits := [unpacked(self._serializer, json.loads(stored)) for stored in self._state.get()]:
            self._add_splits(splits)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        splits = self._reader.snapshot_state(context.get_checkpoint_id())
        self._state.update([json.dumps(packed(self._serializer, split)) for split in splits])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._reader.notify_checkpoint_complete(checkpoint_id)
