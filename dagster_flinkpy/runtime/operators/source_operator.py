"""The operator that reads a source."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.clock import to_millis
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK, MIN_WATERMARK
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.operator_specs import SourceSpec
from dagster_flinkpy.errors import FlinkPyError, SourceReadError
from dagster_flinkpy.runtime.epoch import EpochInput, Reached, Stop
from dagster_flinkpy.runtime.failure import USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, OperatorSnapshot, StreamOperator
from dagster_flinkpy.runtime.operators.timestamps_operator import EventTime
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

__all__ = ["SourceOperator"]


@dataclass(slots=True)
class _Way:
    """How far a split is read."""

    split: SourceSplit
    time: EventTime
    """The event time that follows its records."""
    batches: Iterator[Any] | None = None
    """Its next batches. None if it was not begun."""
    rest: Any = None
    """What is left of the current one, if anything."""

    @property
    def has_time(self) -> bool:
        return self.time.watermark != MIN_WATERMARK


def _least(ways: Iterable[_Way]) -> int:
    return min((way.time.watermark for way in ways), default=MIN_WATERMARK)


class SourceOperator(StreamOperator):
    """Reads splits, one batch at a time."""

    def __init__(self, context: OperatorContext, spec: SourceSpec) -> None:
        super().__init__(context)
        self._source = spec.source.for_subtask()
        self._idle_timeout = spec.watermark_strategy.idle_timeout
        self._is_timed = spec.timed_later or spec.watermark_strategy.max_out_of_orderness is not None
        self._strategy, self.alignment = spec.watermark_strategy, spec.watermark_strategy.alignment
        self._time = EventTime(spec.watermark_strategy, self, context.watermark)
        self._splits: dict[str, SourceSplit] = {}
        """What it reads, or has read last, in the current epoch, by id."""
        self._epoch, self._read_any = 0, False
        self.stops = False
        """Whether it is to stop amid the part that it reads."""
        self.stop: Stop | None = None
        """Where it has stopped, or is to stop, amid the part; None if it reads all of it."""
        self._again = False
        """Whether another try has read the part. Nobody would give it what it leaves."""
        self._kept: list[_Way] = []
        """The splits amid which it has stopped."""
        self._begun: list[tuple[int, int, int]] = []
        """Where it has stopped, see :class:`Stop`."""
        self._halts = False
        """Whether it is to stop before the next batch."""
        self.max_watermark = MAX_WATERMARK
        """How far it may be in event time, while others of its group are not further."""
        self.aligns = False
        """Whether it heeds that now, see `may_wait`: not if a barrier follows what it reads."""
        self._was_given = self._ended = False
        """Whether it had something to read in the last part, and whether it ends with that."""
        self._least = MIN_WATERMARK
        """How far the least of the splits is that it reads in turns."""
        # Times, in milliseconds since 1970.
        self._silent_ms = 0
        """For how long nothing had come when the task began to wait."""
        self._waits_from: int | None = None
        """From when on the task waits; None if it does not."""
        self._looked_ms: int | None = None
        """When the last part of an epoch came that had nothing to read; None if it had something."""
        self._is_silent = False
        """Whether nothing has come for longer than the idle timeout, as far as that is known."""

    def open(self) -> None:
        self.context.state.initialize(self._source)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        raise AssertionError("a source has no input")

    @property
    def watermark(self) -> int:
        """How far it is in event time."""
        return self._time.watermark

    def may_wait(self, epoch: EpochInput) -> bool:
        """Returns whether it may wait for others amid a part of an open epoch: what another try has read, it reads."""
        return bool(epoch.splits.get((self.context.vertex.uid, self.context.subtask))) and not epoch.again

    def run(self, epoch: EpochInput) -> Iterator[int]:
        """Reads the splits of an epoch, or of a part of it, and yields the watermark after each batch.

        It stops where the epoch says; or, if `stops` is set, after the current batch. Then `stop` says where that is.
        """
        vertex = self.context.vertex
        task = (vertex.uid, self.context.subtask)
        if epoch.checkpoint_id != self._epoch:
            self._epoch, self._splits, self._read_any = epoch.checkpoint_id, {}, False
        self._read_any |= epoch.reads(vertex.uid)
        given, self.stop, self._again = epoch.splits.get(task, ()), epoch.stops.get(task), epoch.again
        if epoch.watermarks.get(vertex.uid, MIN_WATERMARK) > self._time.watermark:
            self._time.watermark = epoch.watermarks[vertex.uid]
            yield self._time.watermark
        self._least = MIN_WATERMARK
        self._begun, self._halts = [], self._stops_now and self.is_ahead
        self._was_given, self._ended = bool(given), vertex.uid in epoch.ended_sources
        if given:
            kept, self._kept, self._splits = self._kept, [], {}  # of several parts, the checkpoint names the last one
            ways = [next((each for each in kept if each.split == split), None) or self._way(split) for split in given]
            in_turns = self._source.splits_side_by_side and self.alignment is not None and not epoch.again
            yield from self._read_in_turns(ways) if in_turns else self._read_one_by_one(ways)
        if self._ended:
            yield MAX_WATERMARK

    def _way(self, split: SourceSplit) -> _Way:
        own = EventTime(self._strategy, self, MIN_WATERMARK, self._time.unit)
        return _Way(split, own if self._source.splits_side_by_side else self._time)

    def _read_one_by_one(self, ways: Sequence[_Way]) -> Iterator[int]:
        for i, way in enumerate(ways):
            if self.stop is not None and i >= self.stop.splits and self.stop.of(i) is None:
                break
            yield from self._read(i, way)
            yield self._time.watermark
            if self.stop is None and (self._begun or (self._stops_now and i + 1 < len(ways))):
                self.stop = Stop(i if self._begun else i + 1, tuple(self._begun))
        else:
            if self._source.splits_side_by_side:  # a split that waits might have earlier records
                reached = dict[str, int]()
                for i, way in enumerate(ways):  # another try may have read several parts of a split
                    if way.has_time or (self.stop is not None and self.stop.of(i) is not None):
                        split_id = way.split.split_id
                        reached[split_id] = max(reached.get(split_id, MIN_WATERMARK), way.time.watermark)
                self._time.watermark = max(self._time.watermark, min(reached.values(), default=MIN_WATERMARK))
                yield self._time.watermark

    def _read_in_turns(self, ways: Sequence[_Way]) -> Iterator[int]:
        """Reads on in the split that is least far in event time, so that none gets ahead."""
        left = {i: self._read(i, way) for i, way in enumerate(ways)}
        while left and not self._halts:
            first = min(left, key=lambda i: ways[i].time.watermark)
            if next(left[first], None) is None:
                del left[first]
            reached = _least(way for i, way in enumerate(ways) if i in left or way.has_time)
            self._time.watermark, self._least = max(self._time.watermark, reached), _least(ways[i] for i in left)
            yield self._time.watermark
            self._halts = self._stops_now
        if self._halts:
            for read in left.values():
                deque(read, maxlen=0)
            self.stop = Stop(len(ways), tuple(self._begun))

    @property
    def _stops_now(self) -> bool:
        return self.stops and self.stop is None and not self._again and self._source.resumes_splits

    @property
    def is_ahead(self) -> bool:
        """Whether it is further in event time than its group allows."""
        return self.aligns and max(self._time.watermark, self._least) > self.max_watermark

    @property
    def waits(self) -> bool:
        """Whether it must not read on now. If it is to stop and cannot stop amid a split, it does."""
        return self.is_ahead and not self.stops

    def _read(self, index: int, way: _Way) -> Iterator[int]:
        """Reads a split to its end, or up to a stop."""
        split, stop, records = way.split, None if self.stop is None else self.stop.of(index), 0
        while stop is None or records < stop[0]:
            if self._halts:
                stop = records, split.offset
                self._begun.append((index, *stop))
                break
            if way.batches is None:
                way.batches = iter(self._source.read(split))
            found, way.rest = self._next(way.batches, split) if way.rest is None else way.rest, None
            if found is None:
                if stop is not None:
                    raise SourceReadError(
                        f"read() of split {split.split_id!r} of source {self.context.vertex.uid!r} yields {records} "
                        f"record(s) up to a checkpoint, where it had yielded {stop[0]} before: it must yield the "
                        "same ones each time"
                    )
                self._splits[split.split_id] = split.advanced(split.offset, finished=True)
                self._end_split(split)
                return
            column, offset, *times = found
            before, stops_amid = split.offset, self._source.counts_records and offset == split.offset + len(column)
            if stop is not None:
                column, *times = (each[: stop[0] - records] for each in (column, *times))
            watermark = self._time.watermark
            for end in self._emit_parts(column, times, way.time):
                if end < len(column) and not (stops_amid and self.context.pace.is_slow):
                    yield watermark  # others have their turn
                    continue
                yield self._time.watermark
                if self._stops_now:
                    if end < len(column):
                        way.rest = (column[end:], offset, *(each[end:] for each in times))
                        column, offset = column[:end], before + end
                    stop = records + end, offset
                    self._begun.append((index, *stop))
                    break
            records += len(column)
            split = split.advanced(offset, finished=False)
        if split.offset == stop[1]:
            self._kept.append(replace(way, split=split))  # otherwise this try has got other batches
        self._splits[split.split_id] = split.advanced(stop[1], finished=False)

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
        """Returns whether :meth:`is_idle` is known. In an epoch that is or was open, :meth:`hear` says it."""
        uid = self.context.vertex.uid
        nothing_read = not self._read_any or epoch.checkpoint_id != self._epoch
        return epoch.reads(uid) or uid in epoch.ended_sources or (nothing_read and not epoch.timed)

    def is_idle(self, epoch: EpochInput) -> bool:
        """Returns whether event time does not wait for this subtask in an epoch, or in a part of it.

        A subtask without input is idle if other subtasks of its source have input, unless more of the epoch may follow:
        those behind it might hear of the input of others first. It is told how far these are. A source without any
        input holds event time back, unless its strategy has an idle timeout: an epoch without input counts as longer
        than any timeout, unless it is or was open.
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

    def hear(self, epoch: EpochInput, now_ms: int) -> bool:
        """Takes note of what a part of an open epoch has to read, before it is read.

        What comes while the task reads is known only when the next part is there: its enumerator was asked then, except
        for the first part.

        Returns:
            Whether nothing has come for longer than the idle timeout.
        """
        if epoch.splits.get((self.context.vertex.uid, self.context.subtask)):
            self._silent_ms, self._looked_ms, self._waits_from, self._is_silent = 0, None, None, False
            return False
        was_asked = epoch.open and epoch.checkpoint_id == self._epoch
        since = self._looked_ms if was_asked and self._looked_ms is not None else self._waits_from
        self._silent_ms += 0 if since is None else now_ms - since
        self._looked_ms, self._waits_from = now_ms, None
        timeout = self._idle_timeout
        self._is_silent = epoch.timed and timeout is not None and self._silent_ms >= to_millis(timeout)
        return self._is_silent

    def becomes_idle(self, now_ms: int) -> bool:
        """Returns whether nothing has come for longer than the idle timeout, while the task waits for input."""
        if self._idle_timeout is None or self.is_ahead:  # it waits for others, and may have input
            self._waits_from = None
            return False
        if self._waits_from is None:
            self._waits_from = now_ms
        self._is_silent = self._silent_ms + now_ms - self._waits_from >= to_millis(self._idle_timeout)
        return self._is_silent

    def reached(self, *, reads: bool, now_ms: int | None) -> Reached:
        """Returns how far it is, for others of its group.

        Args:
            reads: Whether it has not read all that it was given.
            now_ms: The time if the task waits for input. Otherwise, nobody has asked whether there is any.
        """
        if reads:
            return self.watermark, True, self.waits
        if self._ended or (self._is_silent if now_ms is None else self.becomes_idle(now_ms)):
            return MAX_WATERMARK, False, False
        return self.watermark if self._was_given and self.watermark != MIN_WATERMARK else None, False, False

    def snapshot(self) -> OperatorSnapshot:
        return OperatorSnapshot(splits=tuple(self._splits.values()))
