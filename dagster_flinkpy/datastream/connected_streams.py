"""Two streams for one function (``pyflink.datastream.data_stream.ConnectedStreams``)."""

from __future__ import annotations

from typing import Generic, TypeVar

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.adapters import (
    CoFlatMapAdapter,
    CoMapAdapter,
    KeyedCoFlatMapAdapter,
    KeyedCoMapAdapter,
    KeyedCoProcessAdapter,
)
from dagster_flinkpy.datastream.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from dagster_flinkpy.datastream.operator_specs import CoProcessSpec, KeyedCoProcessSpec, OperatorSpec, Selector, shown
from dagster_flinkpy.datastream.program import Upstream
from dagster_flinkpy.errors import ConfigurationError, JobGraphError

__all__ = ["ConnectedStreams"]

S = TypeVar("S")


class ConnectedStreams(Generic[S]):
    """Two streams that one function reads. ``DataStream.connect()`` creates them. They may differ in type."""

    def __init__(self, first: Upstream[S], second: Upstream[S]) -> None:
        first.check_same_program(second)
        self._first, self._second = first, second

    def key_by(
        self, key_selector1: Selector, key_selector2: Selector, key_type: TypeInformation | None = None
    ) -> ConnectedStreams[S]:
        """Gives the records of both streams keys of one type."""
        return ConnectedStreams(
            self._first.key_by(key_selector1, key_type), self._second.key_by(key_selector2, key_type)
        )

    @property
    def _keyed(self) -> bool:
        return self._first.keyed and self._second.keyed

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
        self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: TypeInformation | None = None
    ) -> S:
        """Applies a function to both streams; with keyed state and timers if both are keyed."""
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
        spec: OperatorSpec = KeyedCoProcessSpec(func) if keyed else CoProcessSpec(func)
        program = self._first.program
        return program.stream(program.add(name, spec, [self._first, self._second], output_type))
