"""The operators of functions without keyed state: map, filter, flat_map and process functions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from operator import truth
from sys import getrefcount
from typing import Any

import numpy as np

from dagster_flinkpy.common.copies import ALONE, copied, flat_rows, unchanging_types
from dagster_flinkpy.datastream.functions import FilterFunction, FlatMapFunction, MapFunction
from dagster_flinkpy.datastream.operator_specs import FilterSpec, FlatMapSpec, InputsSpec, MapSpec, as_callable
from dagster_flinkpy.datastream.timerservice import TimerService
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.collector import Collector
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, StreamOperator, called
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

__all__ = [
    "FilterOperator",
    "FlatMapOperator",
    "FunctionOperator",
    "MapOperator",
    "ProcessOperator",
    "RecordContext",
    "UnkeyedTimerService",
    "process_each",
]


class FunctionOperator(StreamOperator):
    """An operator around one user function."""

    def __init__(self, context: OperatorContext, spec: Any) -> None:
        super().__init__(context)
        self.function = spec.function
        self.functions = (spec.function,)

    def check_count(self, results: int, function: str, batch: StreamBatch) -> None:
        """Raises an error if there are not as many results as records: a StopIteration only ends Python's ``map``."""
        if results < len(batch):
            error = StopIteration("perhaps of next() without a default")
            raise self.user_error(error, function, value=batch.value_at(results))


class MapOperator(FunctionOperator):
    """Maps each record to another record."""

    def __init__(self, context: OperatorContext, spec: MapSpec) -> None:
        super().__init__(context, spec)
        self._map = as_callable(spec.function, MapFunction, "map")

    def process(self, input_index: int, batch: StreamBatch) -> None:
        vertex = self.context.vertex
        unchanging, flat = unchanging_types(vertex.output_type), flat_rows(vertex.output_type)
        records = batch.let_go()
        records.reverse()
        each = map(records.pop, repeat(-1, len(batch)))  # nobody holds a record that was taken, so it needs no copy
        try:
            values = [
                v if (type(v) in flat and getrefcount(v) <= ALONE) or type(v) in unchanging else copied(v)
                for v in map(self._map, each)
            ]
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "map()", value=batch.value_at(len(batch) - len(records) - 1)) from e
        self.check_count(len(values), "map()", batch)
        self.context.emit(None, StreamBatch(vertex.output_type, batch.timestamps, values=values, producer=vertex.uid))


class FilterOperator(FunctionOperator):
    """Keeps the records for which a function returns true."""

    def __init__(self, context: OperatorContext, spec: FilterSpec) -> None:
        super().__init__(context, spec)
        self._filter = as_callable(spec.function, FilterFunction, "filter")

    def process(self, input_index: int, batch: StreamBatch) -> None:
        kept_ones: list[bool] = []
        try:
            kept_ones.extend(map(truth, map(self._filter, batch.lent(self._filter))))
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "filter()", value=batch.value_at(len(kept_ones))) from e
        self.check_count(len(kept_ones), "filter()", batch)
        mask = np.array(kept_ones, dtype=np.bool_)
        if mask.all():
            self.context.emit(None, batch)
        elif mask.any():
            kept = batch.filter(mask)
            batch.drop_values()  # the next function is to be the only one to hold a record
            self.context.emit(None, kept)


class FlatMapOperator(FunctionOperator):
    """Maps each record to any number of records."""

    def __init__(self, context: OperatorContext, spec: FlatMapSpec) -> None:
        super().__init__(context, spec)
        self._flat_map = as_callable(spec.function, FlatMapFunction, "flat_map")
        self._collector = Collector(context)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        function, collect = self._flat_map, self._collector.collect
        value: Any = UNKNOWN
        try:
            for value, timestamp in zip(batch.values, batch.timestamps.tolist(), strict=True):
                collect(function(value), timestamp)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, "flat_map()", value=value) from e
        self._collector.flush()


class UnkeyedTimerService(TimerService):
    """Tells the time on a stream without keys. It has no timers, because they need a key."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def current_processing_time(self) -> int:
        return self._context.job.clock.now()

    def current_watermark(self) -> int:
        return self._context.watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        raise ConfigurationError(
            f"operator {self._context.vertex.uid!r} registers a timer, but its stream has no keys: "
            "call key_by() first, or pass key_by=... to the test harness"
        )

    register_processing_time_timer = register_event_time_timer
    delete_processing_time_timer = delete_event_time_timer = register_event_time_timer


class RecordContext:
    """The context of a record; one object is used for all records."""

    __slots__ = ("_timer_service", "time")

    def __init__(self, timer_service: TimerService) -> None:
        self._timer_service = timer_service
        self.time = NO_TIMESTAMP

    def timestamp(self) -> int:
        """Returns the event time of the record in milliseconds; if it has none, ``Long.MIN_VALUE`` as in Flink."""
        return self.time

    def timer_service(self) -> TimerService:
        """Returns the timer service."""
        return self._timer_service


class ProcessOperator(FunctionOperator):
    """A process function of one or several inputs, without keyed state."""

    def __init__(self, context: OperatorContext, spec: InputsSpec) -> None:
        super().__init__(context, spec)
        self._collector = Collector(context)
        self._record = RecordContext(UnkeyedTimerService(context))

    def process(self, input_index: int, batch: StreamBatch) -> None:
        process_each(self, self.inputs[input_index], batch, self._record, self._collector)


def process_each(
    operator: StreamOperator,
    function: Callable[[Any, Any], Any],
    batch: StreamBatch,
    record: RecordContext,
    collector: Collector,
) -> None:
    """Calls a function with each record of a batch and its context, and sends what it returns."""
    collect = collector.collect
    value: Any = UNKNOWN
    try:
        for value, timestamp in zip(batch.values, batch.timestamps.tolist(), strict=True):
            record.time = timestamp
            collect(function(value, record), timestamp)
    except USER_EXCEPTIONS as e:
        raise operator.user_error(e, called(function), value=value) from e
    collector.flush()
