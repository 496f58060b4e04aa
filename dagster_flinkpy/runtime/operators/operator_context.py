"""What an operator knows about its job and task, and what it tells user functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dagster_flinkpy.checkpoint.operator_states import SubtaskState
from dagster_flinkpy.datastream.functions import RuntimeContext
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
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.metrics import MetricGroup
from dagster_flinkpy.runtime.epoch import EpochInput, EpochJob
from dagster_flinkpy.runtime.operators.operator_state_handler import OperatorStateHandler
from dagster_flinkpy.runtime.shuffle.batch import Pace, StreamBatch

__all__ = ["OperatorContext", "TaskRuntimeContext"]

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


T = TypeVar("T")


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
