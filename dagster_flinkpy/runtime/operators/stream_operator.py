"""The interface between an operator and its task.

Mirrors Flink's ``StreamOperator``. Operators process a batch at a time; only user functions are called per record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.functions import Function, KeyedStateStore, RuntimeContext, function_of
from dagster_flinkpy.datastream.input_selection import InputSelectable
from dagster_flinkpy.datastream.operator_coordinator import CoordinatedFunction
from dagster_flinkpy.datastream.operator_specs import InputsSpec
from dagster_flinkpy.errors import ConfigurationError, FlinkPyError
from dagster_flinkpy.runtime.failure import UNKNOWN, USER_EXCEPTIONS, user_error
from dagster_flinkpy.runtime.operators.operator_context import OperatorContext, TaskRuntimeContext
from dagster_flinkpy.runtime.shuffle.batch import StreamBatch
from dagster_flinkpy.state.keyed_snapshot_future import KeyedSnapshotFuture

__all__ = ["OperatorSnapshot", "StreamOperator", "called"]

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
