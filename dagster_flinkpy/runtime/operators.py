"""The operators as a task runs them, a batch at a time; Python per record is the user's function only.

Mirrors Flink's ``StreamOperator`` and its implementations (``ProcessOperator``, ``KeyedProcessOperator``, ...).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from sys import getrefcount
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.common.watermark_strategy import (
    MAX_WATERMARK,
    TimestampAssigner,
    WatermarkStrategy,
)
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    MapFunction,
    RuntimeContext,
)
from dagster_flinkpy.datastream.job_graph import JobVertex
from dagster_flinkpy.datastream.operators import (
    CoProcessSpec,
    FilterSpec,
    FlatMapSpec,
    MapSpec,
    ProcessSpec,
    SourceSpec,
    TimestampsSpec,
    as_callable,
)
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from dagster_flinkpy.datastream.timerservice import TimerService
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError, SourceReadError, TypeMismatchError
from dagster_flinkpy.metrics import MetricGroup
from dagster_flinkpy.runtime.batch import NO_TIMESTAMP, StreamBatch
from dagster_flinkpy.runtime.copies import ALONE, copied, flat_rows, unchanging_types
from dagster_flinkpy.runtime.epoch import Epoch, Interval, SubtaskInput
from dagster_flinkpy.runtime.failure import user_error
from dagster_flinkpy.runtime.operator_state import OperatorStates
from dagster_flinkpy.state.handles import KeyedSnapshot

__all__ = [
    "CoProcessOperator",
    "Collector",
    "FilterOperator",
    "FlatMapOperator",
    "FunctionOperator",
    "MapOperator",
    "OperatorContext",
    "ProcessOperator",
    "RecordContext",
    "Snapshot",
    "SourceOperator",
    "StreamOperator",
    "TaskRuntimeContext",
    "TimestampsOperator",
]

Emit = Callable[[str | None, StreamBatch], None]


@dataclass
class OperatorContext:
    """Where an operator runs."""

    vertex: JobVertex
    subtask: int
    epoch: Epoch
    execution: str
    """Unique for this try of the task."""
    emit: Emit
    """Sends a batch to the main output (None) or a side output (its tag)."""
    collect: Callable[..., None]
    """Sends a column, and its name, to the driver."""
    watermark: int
    """Event time of the operator; the task advances it."""
    checkpoint_id: int
    """Of the barrier that comes next; the task advances it."""

    idle: bool = False
    """Whether event time does not wait for it; the task keeps it."""
    metrics: MetricGroup = field(default_factory=lambda: MetricGroup(("user",)))
    """Of the user's functions."""

    def __post_init__(self) -> None:
        self.state = OperatorStates(self)
        """The state without keys."""

    @property
    def input(self) -> SubtaskInput:
        """What the subtask starts from."""
        return self.epoch.input(self.vertex.uid, self.subtask)


@dataclass
class Snapshot:
    """What an operator hands over at the barrier."""

    keyed: KeyedSnapshot | None = None
    splits: tuple[SourceSplit, ...] = ()
    committables: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, int | float] = field(default_factory=dict)
    """Since the snapshot before."""


class Collector:
    """Gathers what user functions yield and sends it on in batches.

    What can be changed is copied: a function may yield a value that it keeps in state, and change it with the next
    record.

    Args:
        context: Where the operator runs.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        vertex = context.vertex
        self._types: dict[str | None, TypeInformation] = {None: vertex.output_type, **dict(vertex.side_outputs)}
        self._values: dict[str | None, list[Any]] = {tag: [] for tag in self._types}
        self._timestamps: dict[str | None, list[int]] = {tag: [] for tag in self._types}
        self._main, self._main_timestamps = self._values[None], self._timestamps[None]
        self._unchanging, self._flat = unchanging_types(vertex.output_type), flat_rows(vertex.output_type)

    def collect(self, results: Iterable[Any] | None, timestamp: int) -> None:
        """Takes records, or ``(output_tag, record)`` pairs for side outputs; all get this timestamp."""
        if results is None:
            return
        for result in results:
            if type(result) is tuple and len(result) == 2 and isinstance(result[0], OutputTag):
                self.collect_side(result[0].tag_id, result[1], timestamp)
            else:
                kind = type(result)
                alone = kind in self._unchanging or (kind in self._flat and getrefcount(result) <= ALONE)
                self._main.append(result if alone else copied(result))
                self._main_timestamps.append(timestamp)

    def collect_side(self, tag: str, value: Any, timestamp: int) -> None:
        """Takes a record for a side output; one that nobody reads is dropped."""
        if tag in self._types:
            self._values[tag].append(copied(value))
            self._timestamps[tag].append(timestamp)

    def flush(self) -> None:
        """Sends what was gathered."""
        for tag, values in self._values.items():
            if values:
                timestamps = np.array(self._timestamps[tag], dtype=np.int64)
                batch = StreamBatch(
                    self._types[tag], timestamps, values=list(values), producer=self._context.vertex.uid
                )
                values.clear()
                self._timestamps[tag].clear()
                self._context.emit(tag, batch)


class StreamOperator(ABC):
    """One subtask of an operator."""

    def __init__(self, context: OperatorContext) -> None:
        self.context = context

    def open(self) -> None:  # noqa: B027 - most operators have nothing to open
        """Called before the first batch."""

    @abstractmethod
    def process(self, input_index: int, batch: StreamBatch) -> None:
        """Takes a batch of one input."""

    def on_watermark(self, watermark: int) -> None:  # noqa: B027
        """Called when event time has advanced; `context.watermark` is the new one already."""

    def on_processing_time(self, now: int) -> None:  # noqa: B027
        """Called at the start of the epoch, after each batch, at watermarks and before the barrier.

        Args:
            now: Milliseconds since 1970; timers of an earlier time are due (Flink: ``ProcessingTimeServiceUtil``).
        """

    @property
    def own_watermark(self) -> int | None:
        """Event time of the output, where the operator makes it itself; None: that of the input."""
        return None

    def snapshot(self) -> Snapshot:
        """Called at the barrier, when all records before it have been processed."""
        return Snapshot()

    def begin_checkpoint(self) -> None:  # noqa: B027
        """Called behind a barrier, if records of a next checkpoint follow; `context.checkpoint_id` is that one's."""

    def abort(self) -> None:  # noqa: B027
        """Called instead of the snapshot when the epoch failed."""

    def close(self) -> None:  # noqa: B027
        """Called behind the last barrier."""

    def finish(self) -> None:  # noqa: B027
        """Called last, before what the snapshots say is acknowledged: waits until it is on the store.

        Raises:
            StorageError: it could not be written.
        """

    def user_error(self, error: Exception, function: str, *, key: Any = None, keyed: bool = False) -> FlinkPyError:
        """What to raise for an exception of a user function; errors of ours pass."""
        if isinstance(error, FlinkPyError):
            return error
        vertex = self.context.vertex
        what = f"{function} of operator {vertex.uid!r} ({vertex.name})"
        return user_error(error, what=what, operator=vertex.uid, subtask=self.context.subtask, key=key, keyed=keyed)


# --- stateless functions ----------------------------------------------------------------------------------------------


class TaskRuntimeContext(RuntimeContext):
    """What user functions see of their task.

    Args:
        context: Where the operator runs.
        get_state: Makes keyed state; None where the stream has no keys.
    """

    def __init__(self, context: OperatorContext, get_state: Callable[[StateDescriptor], Any] | None = None) -> None:
        self._context = context
        self._get_state = get_state

    def get_task_name(self) -> str:
        return self._context.vertex.name

    def get_index_of_this_subtask(self) -> int:
        return self._context.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        return self._context.vertex.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._context.vertex.max_parallelism

    def get_attempt_number(self) -> int:
        return self._context.epoch.attempt - 1

    def get_task_name_with_subtasks(self) -> str:
        vertex = self._context.vertex
        return f"{vertex.name} ({self._context.subtask + 1}/{vertex.parallelism})"

    def get_job_parameter(self, key: str, default_value: str) -> str:
        return dict(self._context.vertex.job_parameters).get(key, default_value)

    def get_metrics_group(self) -> MetricGroup:
        return self._context.metrics

    def _state(self, descriptor: StateDescriptor, expected: type[StateDescriptor]) -> Any:
        if not isinstance(descriptor, expected):
            raise ConfigurationError(
                f"operator {self._context.vertex.uid!r}: this state needs a {expected.__name__}, not {descriptor!r}"
            )
        if self._get_state is None:
            raise ConfigurationError(
                f"operator {self._context.vertex.uid!r} asks for keyed state {descriptor.name!r}, "
                "but its stream has no keys; call key_by() first"
            )
        return self._get_state(descriptor)

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        state: ValueState[Any] = self._state(state_descriptor, ValueStateDescriptor)
        return state

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        state: ListState[Any] = self._state(state_descriptor, ListStateDescriptor)
        return state

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        state: MapState[Any, Any] = self._state(state_descriptor, MapStateDescriptor)
        return state

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        state: ReducingState[Any] = self._state(state_descriptor, ReducingStateDescriptor)
        return state

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        state: AggregatingState[Any, Any] = self._state(state_descriptor, AggregatingStateDescriptor)
        return state


class FunctionOperator(StreamOperator):
    """An operator around one user function."""

    function: Any

    def open(self) -> None:
        self.context.state.initialize(self.function)
        if isinstance(self.function, Function):
            try:
                self.function.open(self.runtime_context())
            except Exception as e:
                raise self.user_error(e, "open()") from e

    def runtime_context(self) -> RuntimeContext:
        """What the function sees of its task."""
        return TaskRuntimeContext(self.context)

    def close(self) -> None:
        if isinstance(self.function, Function):
            try:
                self.function.close()
            except Exception as e:
                raise self.user_error(e, "close()") from e


class MapOperator(FunctionOperator):
    """One record to one."""

    def __init__(self, context: OperatorContext, spec: MapSpec) -> None:
        super().__init__(context)
        self.function = spec.function
        self._map = as_callable(spec.function, MapFunction, "map")

    def process(self, input_index: int, batch: StreamBatch) -> None:
        vertex = self.context.vertex
        unchanging, flat = unchanging_types(vertex.output_type), flat_rows(vertex.output_type)
        try:
            values = [
                v if type(v) in unchanging or (type(v) in flat and getrefcount(v) <= ALONE) else copied(v)
                for v in map(self._map, batch.values)
            ]
        except Exception as e:
            raise self.user_error(e, "map()") from e
        self.context.emit(None, StreamBatch(vertex.output_type, batch.timestamps, values=values, producer=vertex.uid))


class FilterOperator(FunctionOperator):
    """Keeps or drops records."""

    def __init__(self, context: OperatorContext, spec: FilterSpec) -> None:
        super().__init__(context)
        self.function = spec.function
        self._filter = as_callable(spec.function, FilterFunction, "filter")

    def process(self, input_index: int, batch: StreamBatch) -> None:
        function = self._filter
        try:
            mask = np.fromiter((bool(function(v)) for v in batch.values), dtype=np.bool_, count=len(batch))
        except Exception as e:
            raise self.user_error(e, "filter()") from e
        if mask.any():
            self.context.emit(None, batch if mask.all() else batch.filter(mask))


class FlatMapOperator(FunctionOperator):
    """One record to any number."""

    def __init__(self, context: OperatorContext, spec: FlatMapSpec) -> None:
        super().__init__(context)
        self.function = spec.function
        self._flat_map = as_callable(spec.function, FlatMapFunction, "flat_map")
        self._collector = Collector(context)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        function, collect = self._flat_map, self._collector.collect
        try:
            for value, timestamp in zip(batch.values, batch.timestamps.tolist(), strict=True):
                collect(function(value), timestamp)
        except Exception as e:
            raise self.user_error(e, "flat_map()") from e
        self._collector.flush()


class UnkeyedTimerService(TimerService):
    """Time, where there are no timers."""

    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def current_processing_time(self) -> int:
        """Milliseconds since the epoch."""
        return self._context.epoch.clock.now()

    def current_watermark(self) -> int:
        """Event time in milliseconds."""
        return self._context.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Refused: timers need a key."""
        self.register_event_time_timer(timestamp)

    def register_event_time_timer(self, timestamp: int) -> None:
        """Refused likewise."""
        raise ConfigurationError(
            f"operator {self._context.vertex.uid!r} registers a timer, but its stream has no keys; call key_by() first"
        )

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Refused likewise."""
        self.register_event_time_timer(timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Refused likewise."""
        self.register_event_time_timer(timestamp)


class RecordContext:
    """Where and when a record is; one object, moved from record to record."""

    __slots__ = ("_timer_service", "time")

    def __init__(self, timer_service: Any) -> None:
        self._timer_service = timer_service
        self.time = NO_TIMESTAMP

    def timestamp(self) -> int:
        """Event time of the record in milliseconds; the least long where it has none, as in Flink."""
        return self.time

    def timer_service(self) -> Any:
        """Time and timers."""
        return self._timer_service


class ProcessOperator(FunctionOperator):
    """A process function without keyed state."""

    def __init__(self, context: OperatorContext, spec: ProcessSpec | CoProcessSpec) -> None:
        super().__init__(context)
        self.function = spec.function
        self._collector = Collector(context)
        self._record = RecordContext(UnkeyedTimerService(context))

    def process(self, input_index: int, batch: StreamBatch) -> None:
        self._each(batch, self.function.process_element)

    def _each(self, batch: StreamBatch, function: Callable[[Any, Any], Any]) -> None:
        collect, record = self._collector.collect, self._record
        try:
            for value, timestamp in zip(batch.values, batch.timestamps.tolist(), strict=True):
                record.time = timestamp
                collect(function(value, record), timestamp)
        except Exception as e:
            raise self.user_error(e, f"{function.__name__}()") from e
        self._collector.flush()


class CoProcessOperator(ProcessOperator):
    """A process function of two inputs without keyed state."""

    def process(self, input_index: int, batch: StreamBatch) -> None:
        self._each(batch, self.function.process_element1 if input_index == 0 else self.function.process_element2)


# --- time -------------------------------------------------------------------------------------------------------------


class _EventTime:
    """Timestamps and watermarks of one stream (Flink: ``TimestampsAndWatermarksOperator``)."""

    def __init__(self, strategy: WatermarkStrategy, operator: StreamOperator, watermark: int) -> None:
        self._assigner = strategy.timestamp_assigner
        bound = strategy.max_out_of_orderness
        self._bound = None if bound is None else bound.millis
        self._operator = operator
        self.watermark = watermark

    def assign(self, batch: StreamBatch) -> None:
        """Sets the timestamps of a batch and advances the watermark."""
        if self._assigner is not None:
            batch.timestamps = self._timestamps(batch)
        if self._bound is not None and len(batch):
            newest = int(batch.timestamps.max())
            if newest != NO_TIMESTAMP:
                self.watermark = max(self.watermark, newest - self._bound - 1)

    def _timestamps(self, batch: StreamBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
        if isinstance(self._assigner, TimestampAssigner):
            extract = self._assigner.extract_timestamp
            pairs = zip(batch.values, batch.timestamps.tolist(), strict=True)
            try:
                return np.fromiter((extract(v, t) for v, t in pairs), dtype=np.int64, count=len(batch))
            except Exception as e:
                raise self._operator.user_error(e, "extract_timestamp()") from e
        uid = self._operator.context.vertex.uid
        try:
            column = pc.struct_field(batch.column, self._assigner)
        except (pa.ArrowException, TypeError) as e:
            raise TypeMismatchError(
                f"operator {uid!r}: no timestamp field {self._assigner!r} in {batch.type_info}"
            ) from e
        if not pa.types.is_integer(column.type):
            raise TypeMismatchError(
                f"operator {uid!r}: timestamp field {self._assigner!r} is {column.type}; it must be int milliseconds"
            )
        filled: np.ndarray[Any, Any] = pc.fill_null(column.cast(pa.int64()), NO_TIMESTAMP).to_numpy()
        return filled


class TimestampsOperator(StreamOperator):
    """Gives records event time in the midst of a stream; watermarks from upstream but the last are replaced."""

    def __init__(self, context: OperatorContext, spec: TimestampsSpec) -> None:
        super().__init__(context)
        self._time = _EventTime(spec.watermark_strategy, self, context.watermark)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        batch = batch.copy()  # others may read the same batch, with the timestamps it has
        self._time.assign(batch)
        self.context.emit(None, batch)

    def on_watermark(self, watermark: int) -> None:
        if watermark == MAX_WATERMARK:
            self._time.watermark = watermark

    @property
    def own_watermark(self) -> int | None:
        return self._time.watermark


class SourceOperator(StreamOperator):
    """Reads splits; the task asks it for the next batch."""

    def __init__(self, context: OperatorContext, spec: SourceSpec) -> None:
        super().__init__(context)
        self._source = spec.source
        self._idle_timeout = spec.watermark_strategy.idle_timeout
        self._time = _EventTime(spec.watermark_strategy, self, context.watermark)
        self._splits: list[SourceSplit] = []

    def open(self) -> None:
        self.context.state.initialize(self._source)

    def process(self, input_index: int, batch: StreamBatch) -> None:
        raise AssertionError("a source has no input")

    def run(self, interval: Interval) -> Iterator[int]:
        """Reads all splits up to the next barrier; after each batch it gives the watermark."""
        vertex = self.context.vertex
        self._splits = list(interval.splits.get((vertex.uid, self.context.subtask), ()))
        for i, split in enumerate(self._splits):
            batches = iter(self._source.read(split))
            while True:
                try:
                    column, offset = next(batches)
                except StopIteration:
                    break
                except FlinkPyError:
                    raise
                except OSError as e:
                    raise SourceReadError(f"source {vertex.uid!r} cannot read split {split.split_id!r}: {e}") from e
                except Exception as e:
                    raise self.user_error(e, f"read() of split {split.split_id!r}") from e
                split = split.advanced(offset, finished=False)
                batch = self._to_batch(column)
                self._time.assign(batch)
                self.context.emit(None, batch)
                yield self._time.watermark
            self._splits[i] = split.advanced(split.offset, finished=True)
            self._end_split(split)
            yield self._time.watermark
        if vertex.uid in interval.ended_sources:
            yield MAX_WATERMARK

    def _to_batch(self, column: pa.Array) -> StreamBatch:
        vertex = self.context.vertex
        timestamps = np.full(len(column), NO_TIMESTAMP, dtype=np.int64)
        return StreamBatch(vertex.output_type, timestamps, column=column, producer=vertex.uid)

    def _end_split(self, split: SourceSplit) -> None:
        """Called when a split has been read to its end."""

    def is_idle(self, interval: Interval) -> bool:
        """Whether event time is not to wait for this subtask up to the next barrier.

        A subtask without input is idle where others of its source have some. A source that has none at all holds event
        time back, unless its strategy has an idle timeout: an epoch without input counts as longer than any.
        """
        uid = self.context.vertex.uid
        if uid in interval.ended_sources or interval.splits.get((uid, self.context.subtask)):
            return False
        return self._idle_timeout is not None or interval.reads(uid)

    def snapshot(self) -> Snapshot:
        return Snapshot(splits=tuple(self._splits))
