"""The operator that reads a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.operator_specs import SourceSpec
from dagster_flinkpy.errors import FlinkPyError, SourceReadError
from dagster_flinkpy.runtime.epoch import EpochInput, Stop
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext
from dagster_flinkpy.runtime.operators.stream_operator import OperatorSnapshot, StreamOperator
from dagster_flinkpy.runtime.operators.timestamps_operator import EventTime
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

__all__ = ["SourceOperator"]


class SourceOperator(StreamOperator):
    """Reads splits, one batch at a time."""

    def __init__(self, context: OperatorContext, spec: SourceSpec) -> None:
        super().__init__(context)
        self._source = spec.source.for_subtask()
        self._idle_timeout = spec.watermark_strategy.idle_timeout
        self._is_timed = spec.timed_later or spec.watermark_strategy.max_out_of_orderness is not None
        self._strategy = spec.watermark_strategy
        self._time = EventTime(spec.watermark_strategy, self, context.watermark)
        self._splits: list[SourceSplit] = []
        """What it reads, or has read last, in the current epoch."""
        self._epoch, self._read_any = 0, False
        self.stops = False
        """Whether it is to stop amid the part that it reads."""
        self.stop: Stop | None = None
        """Where it has stopped, or is to stop, amid the part; None if it reads all of it."""
        self._kept: tuple[SourceSplit, Iterator[Any], Any] | None = None
        """The split amid which it has stopped, its next batches, and the rest of the current one, if there is one."""
        self._idle_from: int | None = None
        """When it becomes idle if nothing comes, in milliseconds since 1970."""

    def open(self) -> None:
        self.context.state.initialize(self._source)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        raise AssertionError("a source has no input")

    @property
    def watermark(self) -> int:
        """How far it is in event time."""
        return self._time.watermark

    def run(self, epoch: EpochInput) -> Iterator[int]:
        """Reads the splits of an epoch, or of a part of it, and yields the watermark after each batch.

        It stops where the epoch says; or, if `stops` is set, after the current batch. Then `stop` says where that is.
        """
        vertex = self.context.vertex
        task = (vertex.uid, self.context.subtask)
        if epoch.checkpoint_id != self._epoch:
            self._epoch, self._splits, self._read_any = epoch.checkpoint_id, [], False
        self._read_any |= epoch.reads(vertex.uid)
        self._idle_from = None
        given, self.stop = epoch.splits.get(task, ()), epoch.stops.get(task)
        if epoch.watermarks.get(vertex.uid, MIN_WATERMARK) > self._time.watermark:
            self._time.watermark = epoch.watermarks[vertex.uid]
            yield self._time.watermark
        kept = self._kept
        if given:
            self._splits, self._kept = [], None  # of several parts, the checkpoint names the last one
        side_by_side = self._source.splits_side_by_side
        watermarks: list[int] = []
        for i, split in enumerate(given):
            if self.stop is not None and i >= self.stop.splits + (self.stop.records is not None):
                break
            split_time = EventTime(self._strategy, self, MIN_WATERMARK, self._time.unit) if side_by_side else self._time
            if kept is not None and kept[0] == split:
                batches, rest = kept[1:]
            else:
                batches, rest = iter(self._source.read(split)), None
            yield from self._read(i, split, batches, rest, split_time)
            if side_by_side and split_time.watermark != MIN_WATERMARK:
                watermarks.append(split_time.watermark)
            yield self._time.watermark
            if self._stops_now and i + 1 < len(given):
                self.stop = Stop(i + 1)
        if watermarks and len(self._splits) == len(given):  # otherwise those that wait may have earlier records
            self._time.watermark = max(self._time.watermark, min(watermarks))
            yield self._time.watermark
        if vertex.uid in epoch.ended_sources:
            yield MAX_WATERMARK

    @property
    def _stops_now(self) -> bool:
        return self.stops and self.stop is None and self._source.resumes_splits

    def _read(
        self, index: int, split: SourceSplit, batches: Iterator[Any], rest: Any, time: EventTime
    ) -> Iterator[int]:
        """Reads a split to its end, or up to a stop."""
        stop, records = self.stop if self.stop is not None and self.stop.splits == index else None, 0
        while stop is None or records < (stop.records or 0):
            found, rest = self._next(batches, split) if rest is None else rest, None
            if found is None:
                if stop is not None:
                    raise SourceReadError(
                        f"read() of split {split.split_id!r} of source {self.context.vertex.uid!r} yields {records} "
                        f"record(s) up to a checkpoint, where it had yielded {stop.records} before: it must yield the "
                        "same ones each time"
                    )
                self._splits.append(split.advanced(split.offset, finished=True))
                self._end_split(split)
                return
            column, offset, *times = found
            before, stops_amid = split.offset, self._source.counts_records and offset == split.offset + len(column)
            if stop is not None and stop.records is not None:
                column, *times = (each[: stop.records - records] for each in (column, *times))
            watermark = self._time.watermark
            for end in self._emit_parts(column, times, time):
                if end < len(column) and not (stops_amid and self.context.pace.is_slow):
                    yield watermark  # others have their turn
                    continue
                yield self._time.watermark
                if self._stops_now:
                    if end < len(column):
                        rest = (column[end:], offset, *(each[end:] for each in times))
                        column, offset = column[:end], before + end
                    self.stop = stop = Stop(index, records + end, offset)
                    break
            records += len(column)
            split = split.advanced(offset, finished=False)
        if stop is not None and split.offset == stop.offset:
            self._kept = split, batches, rest  # otherwise this try has got other batches
        self._splits.append(split if stop is None else split.advanced(stop.offset, finished=False))

    def _emit_parts(self, column: pa.Array, times: list[pa.Array], time: EventTime) -> Iterator[int]:
        """Emits a batch, and yields how many of its records it has emitted; amid it, too, in tasks that live."""

        def emit(part: StreamBatch) -> None:
            time.assign(part)
            self.context.emit(None, part)

        batch = self._to_batch(column)
        if times:
            batch.timestamps = pc.fill_null(times[0], NO_TIMESTAMP).to_numpy(zero_copy_only=False)
        yield from self.context.pace.process(batch, emit) if len(batch) else (0,)

    def _next(self, batches: Iterator[Any], split: SourceSplit) -> Any:
        """Returns the next batch of a split; None after the last one."""
        uid = self.context.vertex.uid
        try:
            return next(batches, None)
        except FlinkPyError:
            raise
        except OSError as e:
            raise SourceReadError(f"source {uid!r} cannot read split {split.split_id!r}: {e}") from e
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, f"read() of split {split.split_id!r}") from e

    def _to_batch(self, column: pa.Array) -> StreamBatch:
        vertex = self.context.vertex
        timestamps = np.full(len(column), NO_TIMESTAMP, dtype=np.int64)
        return StreamBatch(vertex.output_type, timestamps, column=column, producer=vertex.uid)

    def _end_split(self, split: SourceSplit) -> None:
        """Called at the end of a split."""

    def knows_idleness(self, epoch: EpochInput) -> bool:
        """Returns whether :meth:`is_idle` is known, which it is not while more of an epoch may follow."""
        uid = self.context.vertex.uid
        nothing_read = not self._read_any or epoch.checkpoint_id != self._epoch
        return epoch.reads(uid) or uid in epoch.ended_sources or (nothing_read and not epoch.open)

    def is_idle(self, epoch: EpochInput) -> bool:
        """Returns whether event time does not wait for this subtask in an epoch, or in a part of it.

        A subtask without input is idle if other subtasks of its source have input, unless more of the epoch may follow:
        those behind it might hear of the input of others first. It is told how far these are. A source without any
        input holds event time back, unless its strategy has an idle timeout: an epoch without input counts as longer
        than any timeout.
        """
        uid = self.context.vertex.uid
        if uid in epoch.ended_sources or epoch.splits.get((uid, self.context.subtask)) or epoch.open:
            return False
        return self._idle_timeout is not None or epoch.reads(uid)

    def is_idle_when_read(self, epoch: EpochInput) -> bool:
        """Returns whether event time no longer waits for this subtask when it has read all splits of an epoch.

        That is the case if the strategy has an idle timeout but generates no watermarks, and nor does an operator
        behind it. Then later records have no event time that could be late, and none comes before the barrier.
        """
        uid = self.context.vertex.uid
        return self._idle_timeout is not None and not self._is_timed and uid not in epoch.ended_sources

    @property
    def heeds_time(self) -> bool:
        return self._idle_timeout is not None

    def becomes_idle(self, now_ms: int) -> bool:
        """Returns whether nothing has come for longer than the idle timeout, in an epoch to which more may be added."""
        if self._idle_timeout is None:
            return False
        if self._idle_from is None:
            self._idle_from = now_ms + to_millis(self._idle_timeout)
        return now_ms >= self._idle_from

    def snapshot(self) -> OperatorSnapshot:
        return OperatorSnapshot(splits=tuple(self._splits))
