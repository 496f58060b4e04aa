"""Broadcast streams, and streams connected to them (``pyflink.datastream.data_stream``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from dagster_flinkpy.datastream.operator_specs import (
    BroadcastProcessSpec,
    KeyedBroadcastProcessSpec,
    OperatorSpec,
    shown,
)
from dagster_flinkpy.datastream.program.program import Upstream
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.errors import ConfigurationError

__all__ = ["BroadcastConnectedStream", "BroadcastStream"]

S = TypeVar("S")


class BroadcastStream(Generic[S]):
    """A stream whose records go to every subtask, which keeps them in broadcast state. ``broadcast()`` creates it.

    It can only be connected to another stream.
    """

    def __init__(self, upstream: Upstream[S], broadcast_state_descriptors: Sequence[MapStateDescriptor]) -> None:
        for descriptor in broadcast_state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise ConfigurationError(f"broadcast() needs MapStateDescriptors, not {descriptor!r}")
        self._upstream = upstream
        self.broadcast_state_descriptors = list(broadcast_state_descriptors)


class BroadcastConnectedStream(Generic[S]):
    """A stream and a broadcast stream that one function reads. ``DataStream.connect()`` creates them."""

    def __init__(self, upstream: Upstream[S], broadcast_stream: BroadcastStream[S]) -> None:
        upstream.check_same_program(broadcast_stream._upstream)
        self._upstream = upstream
        self.broadcast_stream = broadcast_stream
        self.broadcast_state_descriptors = broadcast_stream.broadcast_state_descriptors

    def process(
        self,
        func: BroadcastProcessFunction[Any, Any, Any] | KeyedBroadcastProcessFunction[Any, Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> S:
        """Applies a function to both streams.

        Args:
            func: A `KeyedBroadcastProcessFunction` if the stream is keyed, otherwise a `BroadcastProcessFunction`.
            output_type: The type of the records that it yields. Default: they are pickled.
        """
        keyed, declared = self._upstream.keyed, tuple(self.broadcast_state_descriptors)
        if isinstance(func, KeyedBroadcastProcessFunction) and keyed:
            return self._add("Keyed-Co-Process-Broadcast", KeyedBroadcastProcessSpec(func, declared), output_type)
        if isinstance(func, BroadcastProcessFunction) and not keyed:
            return self._add("Co-Process-Broadcast", BroadcastProcessSpec(func, declared), output_type)
        needed = "KeyedBroadcastProcessFunction" if keyed else "BroadcastProcessFunction"
        raise ConfigurationError(
            f"process() of a {'keyed' if keyed else 'non-keyed'} stream needs a {needed}, not {shown(func)}"
        )

    def _add(self, name: str, spec: OperatorSpec, output_type: TypeInformation | None) -> S:
        program = self._upstream.program
        return program.stream(program.add(name, spec, [self._upstream, self.broadcast_stream._upstream], output_type))
