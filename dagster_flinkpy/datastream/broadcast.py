"""Broadcast streams and what they are connected to (``pyflink.datastream.data_stream``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from dagster_flinkpy.datastream.operators import BroadcastProcessSpec, KeyedBroadcastProcessSpec
from dagster_flinkpy.datastream.state import MapStateDescriptor
from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    from typing import Any

    from dagster_flinkpy.datastream.data_stream import DataStream

__all__ = ["BroadcastConnectedStream", "BroadcastStream"]


class BroadcastStream:
    """A stream of which every subtask gets all records, to keep them in broadcast state; made by ``broadcast()``.

    It can only be connected to another stream.
    """

    def __init__(self, input_stream: DataStream, broadcast_state_descriptors: list[MapStateDescriptor]) -> None:
        for descriptor in broadcast_state_descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise ConfigurationError(f"broadcast() needs MapStateDescriptors, not {descriptor!r}")
        self.input_stream = input_stream
        self.broadcast_state_descriptors = broadcast_state_descriptors


class BroadcastConnectedStream:
    """A stream and a broadcast one, for one function."""

    def __init__(
        self,
        non_broadcast_stream: DataStream,
        broadcast_stream: BroadcastStream,
        broadcast_state_descriptors: list[MapStateDescriptor],
    ) -> None:
        non_broadcast_stream._check_same_program(broadcast_stream.input_stream)
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream
        self.broadcast_state_descriptors = broadcast_state_descriptors

    def process(
        self,
        func: BroadcastProcessFunction[Any, Any, Any] | KeyedBroadcastProcessFunction[Any, Any, Any, Any],
        output_type: TypeInformation | None = None,
    ) -> DataStream:
        """A function of both streams.

        Args:
            func: A :class:`KeyedBroadcastProcessFunction` where the stream has keys, else a
                :class:`BroadcastProcessFunction`.
            output_type: Type of the records it makes; without one they travel pickled.
        """
        from dagster_flinkpy.datastream.data_stream import KeyedStream

        stream, other = self.non_broadcast_stream, self.broadcast_stream.input_stream
        keyed = isinstance(stream, KeyedStream)
        inputs = [stream._inputs, other._inputs]
        if isinstance(func, KeyedBroadcastProcessFunction) and keyed:
            spec = KeyedBroadcastProcessSpec(func)
            return stream._env._add("Keyed-Co-Process-Broadcast", spec, inputs, output_type)
        if isinstance(func, BroadcastProcessFunction) and not keyed:
            return stream._env._add("Co-Process-Broadcast", BroadcastProcessSpec(func), inputs, output_type)
        needed = "KeyedBroadcastProcessFunction" if keyed else "BroadcastProcessFunction"
        raise ConfigurationError(
            f"process() of a {'keyed' if keyed else 'non-keyed'} stream needs a {needed}, not {func!r}"
        )
