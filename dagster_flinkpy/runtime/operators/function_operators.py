"""The operators of functions without keyed state, and the collector of what any function returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from operator import truth
from sys import getrefcount
from types import GeneratorType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.copies import ALONE, PASSED, copied, flat_rows, plain_row, unchanging_types
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from dagster_flinkpy.common.types import Row, row_class, rows_of
from dagster_flinkpy.datastream.functions import FilterFunction, FlatMapFunction, MapFunction
from dagster_flinkpy.datastream.operator_specs import FilterSpec, FlatMapSpec, InputsSpec, MapSpec, as_callable
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.timerservice import TimerService
from dagster_flinkpy.errors import ConfigurationError, TypeMismatchError, shorten
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS
from dagster_flinkpy.runtime.operators.stream_operator import OperatorContext, StreamOperator, called
from dagster_flinkpy.runtime.shuffle.batch import NO_TIMESTAMP, StreamBatch

__all__ = [
    "Collector",
    "FilterOperator",
    "FlatMapOperator",
    "FunctionOperator",
    "MapOperator",
    "ProcessOperator",
    "RecordContext",
    "UnkeyedTimerService",
    "process_each",
]

_SINGLE = (Row, str, bytes, dict)
"""Types whose values can be iterated but are one record each."""
_SEVERAL = frozenset({GeneratorType, list})
"""Types whose values are records for certain."""
_log = logging.getLogger(__name__)


class Collector:
    """Gathers the records that user functions yield and sends them in batches.

    Mutable values are copied, because a function may yield a value that it keeps in state and changes with the next
    record. Of rows with fields that cannot change, only the fields are kept.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        vertex = context.vertex
        self._types: dict[str | None, TypeInformation] = {None: vertex.output_type, **dict(vertex.side_outputs)}
        self._values: dict[str | None, list[Any]] = {tag: [] for tag in self._types}
        self._timestamps: dict[str | None, list[int]] = {tag: [] for tag in self._types}
        self._main = self._values[None]
        self._unread: set[str] = set()
        self._unchanging, self._flat = unchanging_types(vertex.output_type), flat_rows(vertex.output_type)
        structs = isinstance(vertex.output_type, RowTypeInfo | TupleTypeInfo)
        self._first = (str, int, float, OutputTag) if structs else OutputTag
        """Types of the first of several values that are one record: of a side output, or where they are structs."""
        self.timestamps = self._timestamps[None]
        """The timestamps of the main output. Who adds to ``fields`` adds one per row."""
        self.fields: list[Any] = []
        """The fields of the last rows of the main output, row by row."""
        self.rows: frozenset[type] = frozenset()
        """The classes of rows of which only the fields are kept."""
        self.fields_of: Callable[[Any], Iterable[Any]] = iter
        """Returns the fields of such a row."""
        plain = plain_row(vertex.output_type)
        if plain is not None and plain._width:
            self.rows = frozenset({plain, row_class(None, plain._width)})
            self.fields_of = cast("property", plain._values).fget  # type: ignore[assignment]

    def collect(self, results: Iterable[Any] | None, timestamp: int) -> None:
        """Takes records, or pairs of output tag and record for side outputs. All get the same timestamp."""
        if results is None:
            return
        for result in results if type(results) in _SEVERAL else self._each(results):
            if type(result) in self.rows:
                self.fields.extend(self.fields_of(result))
                self.timestamps.append(timestamp)
            else:
                self.collect_one(result, timestamp)

    def _each(self, results: Iterable[Any]) -> Iterable[Any]:
        """Returns the records that a function returned."""
        try:
            if isinstance(results, _SINGLE) or (
                type(results) is tuple and results and isinstance(results[0], self._first)
            ):
                raise TypeError("a record, not several")
            return iter(results)
        except TypeError:
            uid = self._context.vertex.uid
            raise TypeMismatchError(
                f"a function of operator {uid!r} returned {shorten(repr(results), 200)}, of type "
                f"{type(results).__name__}, instead of records: `yield` them, or return a list of them"
            ) from None

    def collect_each(self, results: Iterable[Any], timestamps: Sequence[int]) -> None:
        """Takes records, or pairs of output tag and record, each with its own timestamp; None is no record."""
        rows, fields_of, take = self.rows, self.fields_of, self.fields.extend
        taken = 0  # Up to here, the timestamps are taken.
        for i, result in enumerate(results):
            if type(result) in rows:
                take(fields_of(result))
            else:
                self.timestamps += timestamps[taken:i]
                taken = i + 1
                if result is not None:
                    self.collect_one(result, timestamps[i])
        self.timestamps += timestamps[taken:]

    def collect_one(self, result: Any, timestamp: int) -> None:
        """Takes a record, or a pair of output tag and record."""
        kind = type(result)
        if kind is tuple and len(result) == 2 and isinstance(result[0], OutputTag):
            self.collect_side(result[0].tag_id, result[1], timestamp)
            return
        alone = kind in self._unchanging or (kind in self._flat and getrefcount(result) <= PASSED)
        self.add(result if alone else copied(result))
        self.timestamps.append(timestamp)

    def add(self, result: Any) -> None:
        """Takes a record of the main output that nothing changes any more, without its timestamp."""
        if self.fields:
            self._make_rows()
        self._main.append(result)

    def _make_rows(self) -> None:
        """Turns the fields into rows, because records of another kind follow them."""
        kind = cast("RowTypeInfo", self._types[None])
        width = len(kind.field_types)
        columns = [self.fields[i::width] for i in range(width)]
        self._main.extend(rows_of(kind.field_names, columns, len(columns[0])))
        self.fields.clear()

    def collect_side(self, tag: str, value: Any, timestamp: int) -> None:
        """Takes a record for a side output; drops it if nothing reads that output."""
        if tag in self._types:
            self._values[tag].append(copied(value))
            self._timestamps[tag].append(timestamp)
        elif tag not in self._unread:
            self._unread.add(tag)
            _log.warning(
                "Operator %r sends records to side output %r, which nothing reads, so they are dropped. Read it with "
                "get_side_output().",
                self._context.vertex.uid,
                tag,
            )

    def flush(self) -> None:
        """Sends all gathered records."""
        for tag, times in self._timestamps.items():
            if times:
                timestamps = np.array(times, dtype=np.int64)
                times.clear()
                self._send(tag, timestamps)

    def flush_at(self, timestamps: npt.NDArray[np.int64], columns: Sequence[Any] | None = None) -> None:
        """Sends the records of the main output, taken without timestamps; ``columns`` may be their fields in arrays."""
        if len(timestamps):
            self._send(None, timestamps, columns)

    def columns_from(self, first: int) -> list[list[Any]] | None:
        """Returns the fields of the rows from one on, in columns; None if there are other records, too, or no rows."""
        if self._main or not self.fields:
            return None
        width = len(cast("RowTypeInfo", self._types[None]).field_types)
        return [self.fields[first * width + i :: width] for i in range(width)]

    def _send(self, tag: str | None, timestamps: npt.NDArray[np.int64], columns: Sequence[Any] | None = None) -> None:
        kind, producer = self._types[tag], self._context.vertex.uid
        column = self._take_column(columns) if tag is None and self.fields else None
        if column is not None:
            batch = StreamBatch(kind, timestamps, column=column, producer=producer)
        else:
            values = self._values[tag]
            batch = StreamBatch(kind, timestamps, values=list(values), producer=producer)
            values.clear()
        self._context.emit(tag, batch)

    def _take_column(self, columns: Sequence[Any] | None) -> pa.Array | None:
        """Returns the rows as a column, or None if there are other records, too, or a field has another type."""
        columns = columns or self.columns_from(0)
        if columns is not None:
            with suppress(TypeMismatchError):  # whoever reads the rows raises it
                column = cast("RowTypeInfo", self._types[None]).of_columns(columns)
                self.fields.clear()
                return column
        self._make_rows()
        return None


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
