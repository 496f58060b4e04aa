"""Operators with keyed state and timers: process functions, running reductions.

Mirrors Flink's ``KeyedProcessOperator``, ``KeyedCoProcessOperator``, ``MultipleInputStreamOperator`` and
``StreamGroupedReduceOperator``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from sys import getrefcount
from types import GeneratorType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.copies import ALONE, copied, keeper, plain_row, unchanging_types
from dagster_flinkpy.common.typeinfo import TypeInformation, type_from_json
from dagster_flinkpy.common.watermark_strategy import MAX_WATERMARK
from dagster_flinkpy.datastream.checkpointing.state_backend_type import StateBackendType
from dagster_flinkpy.datastream.functions import KeyedStateStore, ReduceFunction, RuntimeContext
from dagster_flinkpy.datastream.operator_specs import InputsSpec, ReduceSpec, RollingAggregateSpec, as_callable
from dagster_flinkpy.datastream.state import ValueStateDescriptor
from dagster_flinkpy.datastream.time_domain import TimeDomain
from dagster_flinkpy.datastream.timerservice import TimerService
from dagster_flinkpy.errors import PastTimerError
from dagster_flinkpy.key_groups import compute_key_group_range_for_operator_index
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.batch_fold import Cells, ColumnFold
from dagster_flinkpy.runtime.operators.folds import aggregating, fields_of, fold_of, spread
from dagster_flinkpy.runtime.operators.function_operators import Collector, RecordContext, UnkeyedTimerService
from dagster_flinkpy.runtime.operators.stream_operator import (
    OperatorContext,
    OperatorSnapshot,
    StreamOperator,
    TaskRuntimeContext,
    called,
)
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, KeyColumn, StreamBatch, each_int
from dagster_flinkpy.state.backend import ColumnarKeyedStateBackend
from dagster_flinkpy.state.columns import NumberColumn, grown
from dagster_flinkpy.state.files.cache import RunCache
from dagster_flinkpy.state.files.compaction import TURNS
from dagster_flinkpy.state.handles import EVENT_TIMERS, PROCESSING_TIMERS, ROLLING
from dagster_flinkpy.state.keys import TouchedKeys, hash_keys
from dagster_flinkpy.state.number_values import Numbers
from dagster_flinkpy.state.timers.timer_queue import TimerQueue

__all__ = [
    "KeyedContext",
    "KeyedOperator",
    "KeyedProcessOperator",
    "KeyedStateOperator",
    "KeyedTimerService",
    "ReduceOperator",
    "RollingAggregateOperator",
    "StrictTimerService",
    "create_reduce_operator",
    "create_rolling_operator",
    "touch_keys",
]


class KeyedTimerService(UnkeyedTimerService):
    """Tells the time and keeps the timers of the current key."""

    def __init__(self, operator: KeyedOperator) -> None:
        super().__init__(operator.context)
        self._operator = operator

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._operator.processing_timers.register(timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        self._operator.timers.register(timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._operator.processing_timers.delete(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._operator.timers.delete(timestamp)


class StrictTimerService(KeyedTimerService):
    """Rejects timers for times that have passed; Flink fires them as soon as possible."""

    def register_processing_time_timer(self, timestamp: int) -> None:
        super().register_processing_time_timer(timestamp)
        if timestamp < (now := self.current_processing_time()):
            raise self._past(f"processing-time timer {timestamp} is before the current time, {now}")

    def register_event_time_timer(self, timestamp: int) -> None:
        super().register_event_time_timer(timestamp)
        if timestamp <= (watermark := self.current_watermark()):
            raise self._past(f"event-time timer {timestamp} is not after the watermark, {watermark}")

    def _past(self, what: str) -> PastTimerError:
        key = self._operator.backend.key_context.current_key()
        return PastTimerError(
            f"operator {self._context.vertex.uid!r}, key {key!r}: {what}; register a later timer, or set "
            "pipeline.strict to false so that it fires as soon as possible"
        )


class KeyedContext(RecordContext):
    """The context of a record or a timer with a key."""

    __slots__ = ("_keys", "domain")

    def __init__(self, timer_service: TimerService, keys: TouchedKeys) -> None:
        super().__init__(timer_service)
        self._keys = keys
        self.domain = TimeDomain.EVENT_TIME

    def get_current_key(self) -> Any:
        """Returns the key."""
        return self._keys.current_key()

    def time_domain(self) -> TimeDomain:
        """Returns the time domain of the timer that fires."""
        return self.domain


def touch_keys(backend: ColumnarKeyedStateBackend, keys: KeyColumn, *, beside: bool = False) -> npt.NDArray[np.int64]:
    """Reads the state of all keys of a batch at once, and returns the seat of each. See ``touch_column``."""
    if (encoded := keys.encoded) is None:
        return backend.touch_column(keys.column, keys.hashes, beside=beside)
    distinct = encoded.dictionary
    seats = backend.touch_column(distinct, hash_keys(keys.type_info, distinct), beside=beside)
    of_rows: npt.NDArray[np.int64] = seats[encoded.indices.to_numpy()]
    return of_rows


class KeyedStateOperator(StreamOperator):
    """Base of operators with keyed state."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        vertex, job = context.vertex, context.job
        restored = context.input.keyed
        options: dict[str, Any] = {
            "operator": vertex.uid,
            "key_groups": compute_key_group_range_for_operator_index(
                vertex.max_parallelism, vertex.parallelism, context.subtask
            ),
            "max_parallelism": vertex.max_parallelism,
            "store": job.job_storage.open(),
            "cache": RunCache(job.cache_dir),
            "restored": restored,
            "now": job.clock.now,
            "written_by": job.writer_of(job.checkpoint_id),
        }
        if job.state_backend is StateBackendType.HASHMAP:
            options |= {"overlay_rows": sys.maxsize, "one_run": True}
        else:
            options |= {"phase": self._phase(), "managed_memory": job.managed_memory}
        self.backend = ColumnarKeyedStateBackend(**options)
        self._has_keys = restored is not None and bool(restored.tables)
        if restored is not None and restored.tables:
            # Restored timers may be due before the first record, and so the first key, arrives.
            self.backend.bind_key_type(type_from_json(restored.tables[0].key))

    def bind(self, batch: StreamBatch) -> KeyColumn:
        """Returns the keys of a batch, and sets the key type of the state."""
        assert batch.keys is not None
        self.backend.bind_key_type(batch.keys.type_info)
        self._has_keys = True
        return batch.keys

    def seats(self, batch: StreamBatch) -> npt.NDArray[np.int64]:
        """Loads the state of the keys of a batch, and returns the seat of each record. There is no current key yet."""
        seats = touch_keys(self.backend, self.bind(batch))
        self.backend.key_context.seat = None
        return seats

    def open_function(self, function: Any, keyed: KeyedStateStore | None = None) -> None:
        super().open_function(function, keyed or self.runtime_context())

    def runtime_context(self) -> RuntimeContext:
        return TaskRuntimeContext(self.context, self.backend.get_state)

    def begin_checkpoint(self) -> None:
        self.backend.begin_checkpoint(self.context.job.writer_of(self.context.checkpoint_id), phase=self._phase())

    def _phase(self) -> int:
        return (self.context.checkpoint_id + self.context.subtask) % TURNS

    def snapshot(self) -> OperatorSnapshot:
        return OperatorSnapshot(keyed=self.backend.begin_snapshot())


class KeyedOperator(KeyedStateOperator):
    """Base of operators with keyed state that process record by record. Those with timers open them."""

    def __init__(self, context: OperatorContext) -> None:
        super().__init__(context)
        self._processing_timers: TimerQueue | None = None
        self.collector = Collector(context)

    def open_timers(self, namespace_type: TypeInformation | None) -> None:
        """Opens the timers, with the type of their namespace, such as the window, or None."""
        self._namespace_type = namespace_type
        self.timers = self.backend.get_timers(EVENT_TIMERS, namespace_type)
        # There may be stored processing-time timers, which may be due before one is registered.
        restored = self.context.input.keyed
        if restored is not None and any(t.name == PROCESSING_TIMERS and t.kind == "TIMER" for t in restored.tables):
            self._processing_timers = self.backend.get_timers(PROCESSING_TIMERS, namespace_type)

    def due(self, until: int, *, event_time: bool) -> Iterable[tuple[int, Any, Any]]:
        """Yields time, key and namespace of the timers up to a time, in order of time, with its key current."""
        timers = self.timers if event_time else self._processing_timers
        return () if timers is None or not self._has_keys else timers.advance_to(until)

    @property
    def processing_timers(self) -> TimerQueue:
        """The processing-time timers, created when first used."""
        if self._processing_timers is None:
            self._processing_timers = self.backend.get_timers(PROCESSING_TIMERS, self._namespace_type)
        return self._processing_timers


class KeyedProcessOperator(KeyedOperator):
    """A process function of one or several inputs, which share keyed state and timers."""

    def __init__(self, context: OperatorContext, spec: InputsSpec) -> None:
        super().__init__(context)
        self.open_timers(None)
        self.function = spec.function
        self.functions = (spec.function,)
        self._timer_service = (StrictTimerService if context.vertex.strict else KeyedTimerService)(self)
        self._record = KeyedContext(self._timer_service, self.backend.key_context)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        function = self.inputs[input_index]
        records = zip(each_int(self.seats(batch)), batch.each_value(), batch.each_timestamp(), strict=True)
        keys, collector, record = self.backend.key_context, self.collector, self._record
        rows, fields_of, take = collector.rows, collector.fields_of, collector.fields.extend
        take_timestamp = collector.timestamps.append
        value: Any = UNKNOWN
        try:
            for keys.seat, value, record.time in records:
                if (results := function(value, record)) is None:
                    continue
                if type(results) is not GeneratorType:
                    collector.collect(results, record.time)
                    continue
                for result in results:
                    if type(result) in rows:
                        take(fields_of(result))
                        take_timestamp(record.time)
                    else:
                        collector.collect_one(result, record.time)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, called(function), key=keys.current_key(), value=value) from e
        self.collector.flush()

    def on_watermark(self, watermark: int) -> None:
        if self._has_keys:
            self._fire(self.timers.times_to(watermark), TimeDomain.EVENT_TIME)

    def on_processing_time(self, now: int) -> None:
        if self._has_keys and self._processing_timers is not None:
            self._fire(self._processing_timers.times_to(now - 1), TimeDomain.PROCESSING_TIME)

    def _fire(self, times: Iterator[int], domain: TimeDomain) -> None:
        on_timer, collect, record = self.function.on_timer, self.collector.collect, self._record
        record.domain = domain
        for record.time in times:
            try:
                if (results := on_timer(record.time, record)) is not None:
                    collect(results, record.time)
            except USER_EXCEPTIONS as e:
                raise self.user_error(e, "on_timer()", key=self.backend.key_context.current_key()) from e
        self.collector.flush()


class ReduceOperator(KeyedOperator):
    """A running reduction per key."""

    def __init__(self, context: OperatorContext, spec: ReduceSpec) -> None:
        super().__init__(context)
        self.open_timers(None)
        self.functions = (spec.function,)
        self._reduce = as_callable(spec.function, ReduceFunction, "reduce")
        self._final_only, self._keep = spec.final_only, keeper(spec.type_info)
        self._table = self.backend.get_cells(ValueStateDescriptor(ROLLING, spec.type_info), column=NumberColumn)
        self._registered: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """Whether the key of each seat has certainly a timer for its only result."""

    def process(self, input_index: int, batch: StreamBatch) -> None:
        if self.backend.is_full:
            self._registered[:] = False  # seats are about to stand for other keys
        seats, table, values = self.seats(batch), self._table, iter(batch.each_value())
        sent: list[Numbers | None] = []

        def numbers(part: slice) -> Numbers | None:
            """Returns what was sent for a part: what it has made of the state, in the columns that are sent."""
            columns = self.collector.columns_from(part.start)
            sent.append(None if columns is None else table.column.numbers(columns))
            return sent[-1]

        table.reserve()
        for part, held, places in table.column.changing(seats, numbers=numbers):
            self._reduce_each(held, zip(seats[part].tolist(), places, values, strict=False))
        table.mark(seats)
        if self._final_only:
            self._register(seats)
        else:
            whole = [] if None in sent else [np.concatenate(parts) for parts in zip(*sent, strict=True)]
            self.collector.flush_at(batch.timestamps, whole)

    def _reduce_each(self, held: list[Any], records: Iterable[tuple[int, int, Any]]) -> None:
        """Reduces records: the seat, the place in what is held, and the value of each."""
        keys, reduce, keep = self.backend.key_context, self._reduce, self._keep
        # A function may change the value that state has, so what is sent is a copy, or its fields alone.
        output_type, collector, sends = self.context.vertex.output_type, self.collector, not self._final_only
        unchanging, row = unchanging_types(output_type), plain_row(output_type)
        fields_of, take = collector.fields_of, collector.fields.extend
        value: Any = UNKNOWN
        try:
            for keys.seat, place, value in records:
                before = held[place]
                reduced = value if before is None else reduce(before, value)
                plain = type(reduced) is row
                if keep is not None and not (plain and (before is None or getrefcount(reduced) <= ALONE)):
                    reduced = keep(reduced, before, value)
                    plain = type(reduced) is row
                held[place] = reduced
                if sends:
                    if plain:
                        take(fields_of(reduced))
                    else:
                        collector.add(reduced if type(reduced) in unchanging else copied(reduced))
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "reduce()", key=keys.current_key(), value=value) from e

    def _register(self, seats: npt.NDArray[np.int64]) -> None:
        """Registers the timers for the results at the end. State that streaming mode has left has none."""
        keys, self._registered = self.backend.key_context, grown(self._registered, int(seats.max(initial=-1)) + 1, 0)
        for keys.seat in np.unique(seats[~self._registered[seats]]).tolist():
            self.timers.register(MAX_WATERMARK)
        self._registered[seats] = True

    def snapshot(self) -> OperatorSnapshot:
        self._registered[:] = False
        return super().snapshot()

    def on_watermark(self, watermark: int) -> None:
        for timestamp, _, _ in self.due(watermark, event_time=True):
            if self._final_only:  # other timers are those of a process function that had this uid
                self.collector.collect((self._table.column.get_one(self.backend.key_context.seat),), timestamp)
        self.collector.flush()


def create_reduce_operator(context: OperatorContext, spec: ReduceSpec) -> StreamOperator:
    """Creates the operator of a reduction: vectorised if it is a built-in aggregation of numbers."""
    fold = None if spec.final_only else fold_of(spec.function, spec.type_info, spec.type_info)
    if fold is None:
        return ReduceOperator(context, spec)
    operator = MiniBatchAggregateOperator if spec.mini_batch else RollingAggregateOperator
    return operator(context, fold, with_key=False, flat=False)


def create_rolling_operator(context: OperatorContext, spec: RollingAggregateSpec) -> StreamOperator:
    """Creates the operator of a running aggregation whose results have names."""
    fold = fold_of(spec.aggregate, spec.record_type, spec.aggregate.accumulator_type, context.vertex.uid)
    assert fold is not None
    operator = MiniBatchAggregateOperator if spec.mini_batch else RollingAggregateOperator
    return operator(context, fold, with_key=True, flat=spec.flat)


class RollingAggregateOperator(KeyedStateOperator):
    """A running aggregation per key, in columns, with a result after each record. Its state is that of a reduction."""

    def __init__(self, context: OperatorContext, fold: ColumnFold, *, with_key: bool, flat: bool) -> None:
        super().__init__(context)
        self._fold, self._with_key, self._flat = fold, with_key, flat
        self._state = self.backend.get_cells(ValueStateDescriptor(ROLLING, fold.state_type))

    def process(self, input_index: int, batch: StreamBatch) -> None:
        keys = self.bind(batch)
        seats = touch_keys(self.backend, keys)
        with aggregating(self.context, batch):
            results = self._fold.running(self._state, seats, self._fold.lift(batch.column), np.arange(len(batch)))
        self._emit_of(keys.column, results, batch.timestamps)

    def _emit_of(self, keys: Any, results: pa.Array[Any], timestamps: Cells) -> None:
        if self._with_key:
            kind: Any = self.context.vertex.output_type
            columns = [*spread(keys, flat=self._flat), *fields_of(results)]
            results = pa.StructArray.from_arrays(columns, fields=list(kind.arrow_type))
        self.emit(results, timestamps)


class MiniBatchAggregateOperator(RollingAggregateOperator):
    """A running aggregation with a result per key and epoch, at the barrier (Flink: ``MiniBatchGroupAggFunction``).

    If state outgrows memory within an epoch, keys so far have their results early, and may have another one.
    """

    def __init__(self, context: OperatorContext, fold: ColumnFold, *, with_key: bool, flat: bool) -> None:
        super().__init__(context, fold, with_key=with_key, flat=flat)
        self._changed: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        """Whether the key of each seat has had records since its last result."""

    def process(self, input_index: int, batch: StreamBatch) -> None:
        if self.backend.is_full:
            self._emit_changed()  # seats are about to stand for other keys
        seats = self.seats(batch)
        with aggregating(self.context, batch):
            accumulators = batch.column if batch.combined else self._fold.lift(batch.column)
            self._fold.add(self._state, seats, accumulators, np.arange(len(batch)))
        self._changed = grown(self._changed, int(seats.max(initial=-1)) + 1, 0)
        self._changed[seats] = True

    def on_watermark(self, watermark: int) -> None:
        if watermark == MAX_WATERMARK:
            self._emit_changed()  # what follows may give its last results at this watermark

    def snapshot(self) -> OperatorSnapshot:
        self._emit_changed()
        return super().snapshot()

    def _emit_changed(self) -> None:
        seats = np.flatnonzero(self._changed)
        self._changed[:] = False
        if len(seats):
            keys = self.backend.key_context.column(seats) if self._with_key else None
            self._emit_of(keys, self._fold.results(self._state, seats), np.full(len(seats), NO_TIMESTAMP))
