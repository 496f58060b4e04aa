"""Several streams for one function (``pyflink.datastream.data_stream.ConnectedStreams``)."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.adapters import (
    CoFlatMapAdapter,
    CoMapAdapter,
    KeyedCoFlatMapAdapter,
    KeyedCoMapAdapter,
    KeyedCoProcessAdapter,
)
from dagster_flinkpy.datastream.batch_function import KeyedMultipleInputBatchFunction
from dagster_flinkpy.datastream.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedMultipleInputProcessFunction,
    MultipleInputProcessFunction,
)
from dagster_flinkpy.datastream.operator_specs import (
    CoProcessSpec,
    InputsSpec,
    KeyedCoProcessSpec,
    KeyedMultipleInputBatchSpec,
    KeyedMultipleInputProcessSpec,
    MultipleInputProcessSpec,
    Selector,
    check_column_type,
    shown,
)
from dagster_flinkpy.datastream.program.program import Upstream
from dagster_flinkpy.errors import ConfigurationError, JobGraphError

__all__ = ["ConnectedStreams", "MultipleConnectedStreams"]

S = TypeVar("S")


class MultipleConnectedStreams(Generic[S]):
    """Streams that one function reads. ``DataStream.connect()`` creates them. They may differ in type.

    Not in PyFlink. Flink's class of this name takes a ``MultipleInputTransformation``.

    Examples:
        >>> from dagster_flinkpy.common import Configuration, Types
        >>> from dagster_flinkpy.datastream import KeyedMultipleInputProcessFunction, StreamExecutionEnvironment
        >>> class Labels(KeyedMultipleInputProcessFunction):
        ...     def get_inputs(self):
        ...         return [self.order, self.payment, self.refund]
        ...     def order(self, customer, ctx):
        ...         yield f"{ctx.get_current_key()} orders"
        ...     def payment(self, payment, ctx):
        ...         yield f"{ctx.get_current_key()} pays {payment[1]}"
        ...     def refund(self, refund, ctx):
        ...         yield f"{ctx.get_current_key()} gets {refund[1]} back"
        >>> configuration = Configuration()
        >>> _ = configuration.set_string("execution.local", "true")
        >>> env = StreamExecutionEnvironment.get_execution_environment(configuration)
        >>> orders = env.from_collection(["ann", "bob"], Types.STRING()).key_by(lambda customer: customer)
        >>> amount = Types.TUPLE([Types.STRING(), Types.DOUBLE()])
        >>> payments = env.from_collection([("ann", 9.5)], amount).key_by(lambda payment: payment[0])
        >>> refunds = env.from_collection([("ann", 0.5)], amount).key_by(lambda refund: refund[0])
        >>> labels = orders.connect(payments, refunds).process(Labels(), Types.STRING()).uid("labels")
        >>> sorted(labels.execute_and_collect())
        ['ann gets 0.5 back', 'ann orders', 'ann pays 9.5', 'bob orders']
    """

    def __init__(self, *streams: Upstream[S]) -> None:
        for other in streams[1:]:
            streams[0].check_same_program(other)
        self._streams = streams

    def process(
        self,
        func: MultipleInputProcessFunction | KeyedMultipleInputProcessFunction,
        output_type: TypeInformation | None = None,
    ) -> S:
        """Applies a function to all streams; a `KeyedMultipleInputProcessFunction` needs all of them keyed.

        Args:
            func: Its ``get_inputs()`` returns a function for each stream.
            output_type: The type of the records they yield. Default: they are pickled.

        Raises:
            JobGraphError: A stream is not keyed, or the numbers of streams and of functions differ.
            ConfigurationError: The function is none of these, or ``get_inputs()`` returns something else.
        """
        if isinstance(func, KeyedMultipleInputProcessFunction):
            self._check_keyed(func)
            return self._add("KeyedMultipleInputProcess", KeyedMultipleInputProcessSpec(func), output_type)
        if isinstance(func, MultipleInputProcessFunction):
            return self._add("MultipleInputProcess", MultipleInputProcessSpec(func), output_type)
        raise ConfigurationError(
            f"process() of {len(self._streams)} streams needs a MultipleInputProcessFunction or a "
            f"KeyedMultipleInputProcessFunction, not {shown(func)}"
        )

    def process_batch(self, func: KeyedMultipleInputBatchFunction, output_type: TypeInformation) -> S:
        """Applies a function with keyed state to batches of records of all streams, as Arrow columns.

        Args:
            func: Its ``get_inputs()`` returns a function for each stream.
            output_type: The type of the records they return.

        Raises:
            JobGraphError: A stream is not keyed, or the numbers of streams and of functions differ.
            ConfigurationError: The function is none of these, ``get_inputs()`` returns something else, or the type is
                not that of a column.
        """
        if not isinstance(func, KeyedMultipleInputBatchFunction):
            raise ConfigurationError(
                f"process_batch() of connected streams needs a KeyedMultipleInputBatchFunction, not {shown(func)}"
            )
        check_column_type(output_type)
        self._check_keyed(func)
        return self._add("MultipleInputProcessBatch", KeyedMultipleInputBatchSpec(func), output_type)

    def _check_keyed(self, func: Any) -> None:
        without = [str(number) for number, stream in enumerate(self._streams, 1) if not stream.keyed]
        if without:
            raise JobGraphError(
                f"{type(func).__name__} has keyed state, so all of its {len(self._streams)} streams need keys; call "
                f"key_by() on number {' and '.join(without)} before connect()"
            )

    def _add(self, name: str, spec: InputsSpec, output_type: TypeInformation | None) -> S:
        functions = len(spec.inputs())
        if functions != len(self._streams):
            raise JobGraphError(
                f"{type(spec.function).__name__} has functions for {functions} inputs, but there are "
                f"{len(self._streams)} connected streams; get_inputs() must return one for each, in their order"
            )
        program = self._streams[0].program
        return program.stream(program.add(name, spec, self._streams, output_type))


class ConnectedStreams(MultipleConnectedStreams[S]):
    """Two streams that one function reads. ``DataStream.connect()`` creates them. They may differ in type."""

    def __init__(self, first: Upstream[S], second: Upstream[S]) -> None:
        super().__init__(first, second)

    def key_by(
        self, key_selector1: Selector, key_selector2: Selector, key_type: TypeInformation | None = None
    ) -> ConnectedStreams[S]:
        """Gives the records of both streams keys of one type."""
        first, second = self._streams
        return ConnectedStreams(first.key_by(key_selector1, key_type), second.key_by(key_selector2, key_type))

    @property
    def _keyed(self) -> bool:
        return all(stream.keyed for stream in self._streams)

    def map(self, func: CoMapFunction, output_type: TypeInformation | None = None) -> S:
        """Turns each record of either stream into one record; with keyed state if both streams are keyed."""
        if not isinstance(func, CoMapFunction):
            raise ConfigurationError(f"map() of connected streams needs a CoMapFunction, not {shown(func)}")
        adapter = KeyedCoMapAdapter(func) if self._keyed else CoMapAdapter(func)
        return self._process("Co-Map", adapter, output_type)

    def flat_map(self, func: CoFlatMapFunction, output_type: TypeInformation | None = None) -> S:
        """Turns each record of either stream into any number of records; with keyed state if both are keyed."""
        if not isinstance(func, CoFlatMapFunction):
            raise ConfigurationError(f"flat_map() of connected streams needs a CoFlatMapFunction, not {shown(func)}")
        adapter = KeyedCoFlatMapAdapter(func) if self._keyed else CoFlatMapAdapter(func)
        return self._process("Co-Flat-Map", adapter, output_type)

    def process(
        self,
        func: CoProcessFunction
        | KeyedCoProcessFunction
        | MultipleInputProcessFunction
        | KeyedMultipleInputProcessFunction,
        output_type: TypeInformation | None = None,
    ) -> S:
        """Applies a function to both streams; with keyed state and timers if both are keyed."""
        if isinstance(func, (MultipleInputProcessFunction, KeyedMultipleInputProcessFunction)):
            return super().process(func, output_type)
        if isinstance(func, CoProcessFunction) and self._keyed:
            func = KeyedCoProcessAdapter(func)
        if isinstance(func, KeyedCoProcessFunction):
            if not self._keyed:
                raise JobGraphError("a KeyedCoProcessFunction needs two keyed streams; call key_by() on both")
            return self._process("KeyedCoProcess", func, output_type)
        if isinstance(func, CoProcessFunction):
            return self._process("CoProcess", func, output_type)
        raise ConfigurationError(f"process() needs a CoProcessFunction or a KeyedCoProcessFunction, not {shown(func)}")

    def _process(
        self, name: str, func: CoProcessFunction | KeyedCoProcessFunction, output_type: TypeInformation | None
    ) -> S:
        keyed = isinstance(func, KeyedCoProcessFunction)
        return self._add(name, KeyedCoProcessSpec(func) if keyed else CoProcessSpec(func), output_type)
