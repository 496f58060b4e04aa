"""Streams whose records are grouped into windows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dagster_flinkpy.common.arguments import check_argument, check_number
from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation, Types
from dagster_flinkpy.datastream.adapters import AccumulateType, Accumulation
from dagster_flinkpy.datastream.aggregations import (
    Aggregation,
    BatchAggregate,
    BuiltInAggregate,
    CountAggregate,
    MeanAggregate,
    WithKeyAndWindow,
    aggregate_of,
    check_field,
    check_is_number,
    result_row,
    type_of_sum,
)
from dagster_flinkpy.datastream.batch_function import BatchAggregateFunction
from dagster_flinkpy.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    Function,
    KeySelector,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from dagster_flinkpy.datastream.operator_specs import WindowSpec, as_callable
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.program.program import ExecutionEnvironment, Upstream
from dagster_flinkpy.datastream.window_assigners import MergingWindowAssigner, WindowAssigner
from dagster_flinkpy.datastream.window_triggers import NeverTrigger, Trigger
from dagster_flinkpy.datastream.window_types import TimeWindowSerializer
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["AllWindowedStream", "NullByteKeySelector", "WindowedStream"]

S = TypeVar("S")
A = TypeVar("A", bound=Function)
P = TypeVar("P", bound=Function)
W = TypeVar("W", bound="_Windowed[Any, Any, Any]")


class _Windowed(Generic[S, A, P]):
    """The common part of windowed streams with and without keys."""

    _apply_function: type[Function]
    """The class with an ``apply`` method."""
    _process_function: type[Function]
    """The class with a ``process`` method."""
    _operator_name: str
    _parallelism: int | None = None

    def __init__(self, upstream: Upstream[S], window_assigner: WindowAssigner[Any, Any]) -> None:
        check_argument("window()", window_assigner, WindowAssigner, "a WindowAssigner")
        self._upstream, self._assigner = upstream, window_assigner
        self._trigger: Trigger[Any, Any] | None = None
        self._lateness = 0
        self._late_tag: OutputTag | None = None

    def get_execution_environment(self) -> ExecutionEnvironment:
        """Returns the environment of the stream."""
        return self._upstream.program.environment

    def get_input_type(self) -> TypeInformation:
        """Returns the type of the records in the windows."""
        return self._upstream.type_info

    def trigger(self: W, trigger: Trigger[Any, Any]) -> W:
        """Sets when windows fire. Default: the trigger of the assigner.

        Raises:
            ConfigurationError: It is no trigger; or windows merge, and its ``can_merge()`` is false.
        """
        check_argument("trigger()", trigger, Trigger, "a Trigger")
        if isinstance(self._assigner, MergingWindowAssigner) and not trigger.can_merge():
            raise ConfigurationError(
                f"windows of {type(self._assigner).__name__} merge, and can_merge() of the trigger "
                f"{type(trigger).__name__} is false: if its on_merge() merges timers and state, let it return True"
            )
        self._trigger = trigger
        return self

    def allowed_lateness(self: W, time_ms: int) -> W:
        """Keeps a window's state for some milliseconds after its end, so that late records make it fire again."""
        check_number("allowed_lateness()", time_ms, "milliseconds")
        if time_ms < 0:
            raise ConfigurationError(f"allowed lateness is negative: {time_ms} ms")
        self._lateness = time_ms
        return self

    def side_output_late_data(self: W, output_tag: OutputTag) -> W:
        """Sends records that arrive too late to a side output. By default they are dropped."""
        wanted = "an OutputTag, such as OutputTag('late', type_info)"
        check_argument("side_output_late_data()", output_tag, OutputTag, wanted)
        self._late_tag = output_tag
        return self

    def reduce(
        self,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        window_function: A | P | None = None,
        output_type: TypeInformation | None = None,
    ) -> S:
        """Reduces the records of each window to one, which is all that is kept as state."""
        as_callable(reduce_function, ReduceFunction, "reduce")
        record_type = self.get_input_type()
        return self._fold("reduce()", window_function, output_type, record_type, record_type, reduce=reduce_function)

    def aggregate(
        self,
        aggregate_function: AggregateFunction | BatchAggregateFunction,
        window_function: A | P | None = None,
        accumulator_type: TypeInformation | list[TypeInformation] | None = None,
        output_type: TypeInformation | None = None,
    ) -> S:
        """Aggregates the records of each window. Only the accumulator is kept as state, pickled if it has no type."""
        if isinstance(aggregate_function, BatchAggregateFunction):
            if accumulator_type is not None:
                raise ConfigurationError("aggregate() takes no accumulator_type: a BatchAggregateFunction has its own")
            function: Any = BatchAggregate(aggregate_function, self.get_input_type())
            accumulator_type, result_type = function.accumulator_type, function.result_type
        else:
            check_argument("aggregate()", aggregate_function, AggregateFunction, "an AggregateFunction")
            function, result_type = aggregate_function, None
        stored = accumulator_type or PickledBytesTypeInfo()
        if isinstance(stored, list):
            stored = RowTypeInfo(stored)
        return self._fold("aggregate()", window_function, output_type, result_type, stored, aggregate=function)

    def _fold(
        self,
        what: str,
        window_function: A | P | None,
        output_type: TypeInformation | None,
        result_type: TypeInformation | None,
        accumulator_type: TypeInformation,
        **how: Any,
    ) -> S:
        """Adds the operator of a function whose result, of ``result_type``, may go to a window function."""
        if window_function is None:
            output_type = output_type or result_type
        else:
            self._check(what, window_function, self._apply_function, self._process_function)
        return self._window(output_type, window_function=window_function, accumulator_type=accumulator_type, **how)

    def apply(self, window_function: A, output_type: TypeInformation | None = None) -> S:
        """Applies a function to all elements of each window, which are kept as state."""
        return self._of_elements("apply()", window_function, self._apply_function, output_type)

    def process(self, process_window_function: P, output_type: TypeInformation | None = None) -> S:
        """Applies a function to all elements of each window, which are kept as state."""
        return self._of_elements("process()", process_window_function, self._process_function, output_type)

    def _of_elements(
        self, what: str, function: A | P, wanted: type[Function], output_type: TypeInformation | None
    ) -> S:
        self._check(what, function, wanted)
        return self._window(output_type, window_function=function)

    @staticmethod
    def _check(what: str, function: object, *classes: type[Function]) -> None:
        check_argument(what, function, classes, f"a {' or '.join(c.__name__ for c in classes)}")

    def _window(self, output_type: TypeInformation | None, **how: Any) -> S:
        trigger = self._trigger or self._assigner.get_default_trigger(self.get_execution_environment())
        if self._trigger is None and isinstance(trigger, NeverTrigger):
            warnings.warn(
                f"windows of {type(self._assigner).__name__} never fire by themselves: set a trigger, such as "
                ".trigger(PurgingTrigger.of(CountTrigger.of(100))), or NeverTrigger() if that is meant",
                stacklevel=4,
            )
        spec = WindowSpec(
            self._assigner,
            self.get_input_type(),
            trigger=trigger,
            allowed_lateness=self._lateness,
            late_tag=None if self._late_tag is None else self._late_tag.tag_id,
            **how,
        )
        program = self._upstream.program
        transformation = program.add(self._operator_name, spec, [self._upstream], output_type)
        transformation.parallelism = self._parallelism
        if self._late_tag is not None:
            transformation.side_outputs[self._late_tag.tag_id] = self.get_input_type()
        return program.stream(transformation)

    def sum(self, field: int | str = 0) -> S:
        """Emits the sum of a field per window. The other fields are those of the window's first record.

        Args:
            field: The index or name of the field; 0 if the records are plain values.
        """
        return self._accumulate("sum", field)

    def min(self, field: int | str = 0) -> S:
        """Emits the least value of a field per window. The other fields are those of the window's first record."""
        return self._accumulate("min", field)

    def max(self, field: int | str = 0) -> S:
        """Emits the greatest value of a field per window. The other fields are those of the window's first record."""
        return self._accumulate("max", field)

    def _accumulate(self, fold: AccumulateType, field: int | str) -> S:
        check_field(self.get_input_type(), field, f"{fold}()")
        record_type = self.get_input_type()
        result_type = type_of_sum(record_type, field) if fold == "sum" else record_type
        return self._window(result_type, reduce=Accumulation(fold, field), accumulator_type=result_type)

    def count(self) -> S:
        """Emits the number of records per window: the key's fields, ``window_start``, ``window_end`` and ``count``.

        Without keys, there are no key fields.
        """
        return self._with_key_and_window(CountAggregate())

    def mean(self, field: int | str = 0) -> S:
        """Emits the mean of a field per window: rows with the key's fields, ``window_start``, ``window_end``, ``mean``.

        Args:
            field: The index or name of the field; 0 if the records are plain values.
        """
        check_is_number(self.get_input_type(), field, "mean()")
        return self._with_key_and_window(MeanAggregate(field))

    def agg(self, function: BatchAggregateFunction | None = None, /, **aggregations: Aggregation) -> S:
        """Emits aggregations per window: the key's fields, ``window_start``, ``window_end``, those of the results.

        Not in PyFlink.

        Args:
            function: An aggregation in columns. Default: built-in ones.
            aggregations: The built-in aggregations, by the name of their field.

        Raises:
            ConfigurationError: An aggregation does not fit the records; or two fields would have one name.
        """
        return self._with_key_and_window(aggregate_of(function, aggregations, self.get_input_type()))

    def _with_key_and_window(self, aggregate: BuiltInAggregate) -> S:
        if not isinstance(self._assigner.get_window_serializer(), TimeWindowSerializer):
            raise ConfigurationError(f"{aggregate.name}() needs windows with a start and an end; use aggregate()")
        names, types, flat = self._key_fields(f"{aggregate.name}()")
        window = dict.fromkeys(("window_start", "window_end"), Types.LONG())
        return self._window(
            result_row([*names, *window], [*types, *window.values()], aggregate.results),
            aggregate=aggregate,
            window_function=WithKeyAndWindow(len(names), flat=flat),
            accumulator_type=aggregate.accumulator_type,
        )

    def _key_fields(self, what: str) -> tuple[list[str], list[TypeInformation], bool]:
        """Returns the names and types of the key's fields in a result, and whether the key is a tuple."""
        return [], [], False


class WindowedStream(_Windowed[S, WindowFunction[Any, Any, Any, Any], ProcessWindowFunction[Any, Any, Any, Any]]):
    """The records of each key, grouped into windows, for a `WindowFunction` or a `ProcessWindowFunction`."""

    _apply_function, _process_function = WindowFunction, ProcessWindowFunction
    _operator_name = "Window"

    def _key_fields(self, what: str) -> tuple[list[str], list[TypeInformation], bool]:
        return self._upstream.key_fields(what)


class NullByteKeySelector(KeySelector):
    """Gives all records the same key, so that an operator with keyed state can process a stream without keys."""

    def get_key(self, value: Any) -> int:
        return 0


class AllWindowedStream(_Windowed[S, AllWindowFunction[Any, Any, Any], ProcessAllWindowFunction[Any, Any, Any]]):
    """All records of a stream without keys, grouped into windows by one subtask.

    Its functions are an `AllWindowFunction` or a `ProcessAllWindowFunction`.
    """

    _apply_function, _process_function = AllWindowFunction, ProcessAllWindowFunction
    _operator_name = "AllWindow"
    _parallelism = 1

    def __init__(self, upstream: Upstream[S], window_assigner: WindowAssigner[Any, Any]) -> None:
        super().__init__(upstream.key_by(NullByteKeySelector(), Types.LONG()), window_assigner)
