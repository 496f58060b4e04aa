"""Two streams for one function (``pyflink.datastream.data_stream.ConnectedStreams``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from dagster_flinkpy.datastream.operators import CoProcessSpec, KeyedCoProcessSpec, Selector
from dagster_flinkpy.errors import ConfigurationError, JobGraphError

if TYPE_CHECKING:
    from dagster_flinkpy.datastream.data_stream import DataStream
    from dagster_flinkpy.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["ConnectedStreams"]


class ConnectedStreams:
    """Two streams for one function."""

    def __init__(self, env: StreamExecutionEnvironment, first: DataStream, second: DataStream) -> None:
        self._env, self._first, self._second = env, first, second

    def key_by(
        self, key_selector1: Selector, key_selector2: Selector, key_type: TypeInformation | None = None
    ) -> ConnectedStreams:
        """Gives the records of both streams keys of one type."""
        return ConnectedStreams(
            self._env, self._first.key_by(key_selector1, key_type), self._second.key_by(key_selector2, key_type)
        )

    @property
    def _keyed(self) -> bool:
        return self._first.is_keyed and self._second.is_keyed

    def map(self, func: CoMapFunction, output_type: TypeInformation | None = None) -> DataStream:
        """One record of either stream to one; with keyed state where both are keyed."""
        if not isinstance(func, CoMapFunction):
            raise ConfigurationError(f"map() of connected streams needs a CoMapFunction, not {func!r}")
        adapter = KeyedCoMapAdapter(func) if self._keyed else CoMapAdapter(func)
        return self.process(adapter, output_type).name("Co-Map")

    def flat_map(self, func: CoFlatMapFunction, output_type: TypeInformation | None = None) -> DataStream:
        """One record of either stream to any number; with keyed state where both are keyed."""
        if not isinstance(func, CoFlatMapFunction):
            raise ConfigurationError(f"flat_map() of connected streams needs a CoFlatMapFunction, not {func!r}")
        adapter = KeyedCoFlatMapAdapter(func) if self._keyed else CoFlatMapAdapter(func)
        return self.process(adapter, output_type).name("Co-Flat-Map")

    def process(
        self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """A function of both streams; with keyed state and timers where both are keyed."""
        inputs = [self._first._inputs, self._second._inputs]
        if isinstance(func, CoProcessFunction) and self._keyed:
            func = KeyedCoProcessAdapter(func)
        if isinstance(func, KeyedCoProcessFunction):
            if not self._keyed:
                raise JobGraphError("a KeyedCoProcessFunction needs two keyed streams; call key_by() on both")
            return self._env._add("KeyedCoProcess", KeyedCoProcessSpec(func), inputs, output_type)
        if isinstance(func, CoProcessFunction):
            return self._env._add("CoProcess", CoProcessSpec(func), inputs, output_type)
        raise ConfigurationError(f"process() needs a CoProcessFunction or a KeyedCoProcessFunction, not {func!r}")
