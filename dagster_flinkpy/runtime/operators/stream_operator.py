"""The interface between an operator and its task.

Mirrors Flink's ``StreamOperator``. Operators process a batch at a time; only user functions are called per record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.functions import Function, KeyedStateStore, RuntimeContext, function_of
from dagster_flinkpy.datastream.input_selection import InputSelectable
from dagster_flinkpy.datastream.operator_coordinator import CoordinatedFunction
from dagster_flinkpy.datastream.operator_specs import InputsSpec
from dagster_flinkpy.datastream.program.job_graph import JobVertex
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
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError
from dagster_flinkpy.metrics import MetricGroup
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS, user_error
from dagster_flinkpy.runtime.operators.operator_state_handler import OperatorStateHandler
from dagster_flinkpy.runtime.shuffle.batch import Pace, StreamBatch
from dagster_flinkpy.state.keyed_snapshot_future import KeyedSnapshotFuture

__all__ = ["OperatorContext", "OperatorSnapshot", "StreamOperator", "TaskRuntimeContext", "called"]

Emit = Callable[[str | None, StreamBatch], None]


@dataclass
class OperatorContext:
    """The context in which an operator runs."""

    vertex: JobVertex
    subtask: int
    job: EpochJob
    execution: str
    """Identifies this try of the task; unique."""
    emit: Emit
    """Sends a batch to the main output (None) or a side output (its tag)."""
    collect: Callable[..., None]
    """Sends a column with a name to the driver."""
    watermark: int
    """The event time of the operator; the task advances it."""
    epoch: EpochInput
    """The input up to the next barrier; the task advances it."""
    state: OperatorStateHandler
    """Operator state and raw state."""
    send_status: Callable[[bool], None]
    """Reports downstream whether the operator is idle, if it generates watermarks."""

    event_times: Callable[[], Mapping[str, tuple[int, bool]]] = dict
    """Returns the event time of each origin of watermarks at this operator, and whether it is idle. An origin is a
    source, or an operator that assigns timestamps."""
    pace: Pace = field(default_factory=lambda: Pace(cuts=False))
    """Cuts the batches that come from a source or another task."""
    metrics: MetricGroup = field(default_factory=MetricGroup)
    """Metrics of the user functions."""
    send_event: Callable[[Any], object] | None = None
    """Sends an event to the coordinator of the operator, if it has one."""

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint of the next barrier."""
        return self.epoch.checkpoint_id

    @property
    def input(self) -> SubtaskState:
        """The state and splits that the subtask starts from."""
        return self.job.input(self.vertex.uid, self.subtask)


class TaskRuntimeContext(RuntimeContext):
    """Gives user functions access to their task, state and metrics."""

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
        return self._context.job.attempt

    def send_event_to_coordinator(self, event: Any) -> None:
        if self._context.send_event is None:
            super().send_event_to_coordinator(event)
        else:
            self._context.send_event(event)

    def get_task_name_with_subtasks(self) -> str:
        vertex = self._context.vertex
        return f"{vertex.name} ({self._context.subtask + 1}/{vertex.parallelism})"

    def get_job_parameter(self, key: str, default_value: str) -> str:
        return dict(self._context.vertex.job_parameters).get(key, default_value)

    def get_metrics_group(self) -> MetricGroup:
        return self._context.metrics

    def _state(self, descriptor: StateDescriptor, expected: type[StateDescriptor]) -> T:  # type: ignore[type-var]
        if not isinstance(descriptor, expected):
            raise ConfigurationError(
                f"operator {self._context.vertex.uid!r}: this kind of state needs a {expected.__name__}, not "
                f"{descriptor!r}"
            )
        if self._get_state is None:
            raise ConfigurationError(
                f"operator {self._context.vertex.uid!r} asks for keyed state {descriptor.name!r}, "
                "but its stream has no keys: call key_by() first, or pass key_by=... to the test harness"
            )
        state: T = self._get_state(descriptor)
        return state

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        return self._state(state_descriptor, ValueStateDescriptor)

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._state(state_descriptor, ListStateDescriptor)

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        return self._state(state_descriptor, MapStateDescriptor)

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        return self._state(state_descriptor, ReducingStateDescriptor)

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        return self._state(state_descriptor, AggregatingStateDescriptor)


P = ParamSpec("P")
T = TypeVar("T")


def called(function: Callable[..., Any]) -> str:
    """Returns the name of an input's function, for messages."""
    while isinstance(function, partial):
        function = function.func
    return f"{getattr(function, '__name__', type(function).__name__)}()"


@dataclass
class OperatorSnapshot:
    """What an operator returns at the barrier."""

    keyed: KeyedSnapshotFuture | None = None
    splits: tuple[SourceSplit, ...] = ()
    committables: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, int | float] = field(default_factory=dict)
    """Metrics since the previous snapshot."""


class StreamOperator(ABC):
    """One subtask of an operator."""

    functions: Sequence[Any] = ()
    """The user functions, which are opened and closed with it."""
    inputs: Sequence[Callable[..., Any]] = ()
    """What processes the records, or batches, of each input, if it is up to the function."""

    def __init__(self, context: OperatorContext) -> None:
        self.context = context

    def open(self) -> None:
        """Called before the first batch."""
        for function in self.functions:
            self.open_function(function)
        spec = self.context.vertex.spec
        if isinstance(spec, InputsSpec):
            self.inputs = self.call("get_inputs()", spec.inputs)

    @abstractmethod
    def process(self, input_index: int, batch: StreamBatch) -> None:
        """Processes a batch of one input."""

    def on_watermark(self, watermark: int) -> None:  # noqa: B027
        """Called when event time has advanced; `context.watermark` is the new watermark."""

    def on_processing_time(self, now: int) -> None:  # noqa: B027
        """Called at the start of the epoch, after each batch, at watermarks and before the barrier.

        Timers with a time before ``now`` are due (Flink: ``ProcessingTimeServiceUtil``).
        """

    @property
    def heeds_time(self) -> bool:
        """Whether time alone may give it something to do."""
        return type(self).on_processing_time is not StreamOperator.on_processing_time

    @property
    def own_watermark(self) -> int | None:
        """The watermark that the operator generates, or None if it forwards the watermark of its input."""
        return None

    def snapshot(self) -> OperatorSnapshot:
        """Takes the snapshot; called at the barrier, when all records before it have been processed."""
        return OperatorSnapshot()

    def begin_checkpoint(self) -> None:  # noqa: B027
        """Called after a barrier if another epoch follows, which is `context.epoch`."""

    def abort(self) -> None:  # noqa: B027
        """Called instead of `snapshot` when the epoch has failed."""

    def close(self) -> None:
        """Called after the last barrier."""
        for function in self.functions:
            if isinstance(function, Function):
                self.call("close()", function.close)

    def runtime_context(self) -> RuntimeContext:
        """Returns the runtime context for functions."""
        return TaskRuntimeContext(self.context)

    def open_function(self, function: Any, keyed: KeyedStateStore | None = None) -> None:
        """Restores the state of a user function and opens it."""
        vertex = self.context.vertex
        if isinstance(function, CoordinatedFunction) and function_of(vertex.spec, CoordinatedFunction) is not function:
            raise ConfigurationError(
                f"operator {vertex.uid!r} cannot have a coordinator, which {type(function).__name__} asks for: in "
                "process(), map(), flat_map() and filter() one can"
            )
        if isinstance(function, InputSelectable) and function_of(vertex.spec, InputSelectable) is not function:
            raise ConfigurationError(
                f"operator {vertex.uid!r} has no inputs to select, as {type(function).__name__} wants to: functions of "
                "connected streams have"
            )
        self.context.state.initialize(function, keyed)
        if isinstance(function, Function):
            self.call("open()", function.open, self.runtime_context())

    def call(self, what: str, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls something of the user, whose exceptions become errors that name the operator."""
        try:
            return method(*args, **kwargs)
        except USER_EXCEPTIONS as e:
            raise self.user_error(e, what) from e

    def emit(self, column: pa.Array[Any], timestamps: npt.NDArray[np.int64]) -> None:
        """Sends records, as a column, to the main output."""
        vertex = self.context.vertex
        self.context.emit(None, StreamBatch(vertex.output_type, timestamps, column=column, producer=vertex.uid))

    def user_error(
        self, error: BaseException, function: str, *, key: Any = UNKNOWN, value: Any = UNKNOWN
    ) -> FlinkPyError:
        """Returns the error to raise for an exception of a user function. One of this library is returned as it is."""
        if isinstance(error, FlinkPyError):
            return error
        vertex = self.context.vertex
        what = f"{function} of operator {vertex.uid!r} ({vertex.name})"
        return user_error(error, what=what, operator=vertex.uid, subtask=self.context.subtask, key=key, value=value)
