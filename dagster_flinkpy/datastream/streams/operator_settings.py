"""What is set on every operator: its uid, name and parallelism (``pyflink.datastream.data_stream``)."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from dagster_flinkpy.common.arguments import check_argument, check_name
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.datastream.connectors.reader_source import ReaderSource
from dagster_flinkpy.datastream.operator_specs import SourceSpec, SparkSourceSpec
from dagster_flinkpy.datastream.program.given import Given
from dagster_flinkpy.datastream.program.transformation import Transformation
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.errors import JobGraphError
from dagster_flinkpy.key_groups import check_whole_number

__all__ = ["DataStreamSink", "OperatorSettings", "StreamSettings"]

S = TypeVar("S", bound="OperatorSettings")


class OperatorSettings:
    """The settings that every operator has."""

    def __init__(self, transformation: Transformation) -> None:
        self._transformation = transformation

    @property
    def _operator(self) -> Transformation:
        """The operator that the settings belong to."""
        return self._transformation

    def uid(self: S, uid: str) -> S:
        """Sets the operator's id, under which its state is stored and restored."""
        check_argument("uid()", uid, str, "text")
        self._operator.uid = uid
        return self

    def name(self: S, name: str) -> S:
        """Sets the operator's display name."""
        check_name("name()", name)
        self._operator.name = name
        return self

    def set_parallelism(self: S, parallelism: int) -> S:
        """Sets the number of subtasks."""
        check_whole_number("parallelism", parallelism)
        self._operator.parallelism = parallelism
        return self

    def set_max_parallelism(self: S, max_parallelism: int) -> S:
        """Sets the number of key groups, which no parallelism can exceed."""
        check_whole_number("max_parallelism", max_parallelism)
        self._operator.max_parallelism = max_parallelism
        return self

    def slot_sharing_group(self: S, slot_sharing_group: str | SlotSharingGroup) -> S:
        """Puts the operator into a slot-sharing group, given by name or with its resources.

        Operators of one group share task slots: a group needs as many as its highest parallelism. Without a group, an
        operator is in that of its inputs, or in ``default`` if they differ or there are none.
        """
        if not isinstance(slot_sharing_group, SlotSharingGroup):
            check_name("slot_sharing_group()", slot_sharing_group)
            slot_sharing_group = SlotSharingGroup(slot_sharing_group)
        self._operator.slot_sharing_group = slot_sharing_group
        return self

    def set_description(self: S, description: str) -> S:
        """Sets a longer description than the name. Dagster shows it with the asset."""
        check_argument("set_description()", description, str, "text")
        self._operator.description = description
        return self

    def disable_chaining(self: S) -> S:
        """Has no effect: the edges decide which operators are chained, and chaining does not change results."""
        no_effect("disable_chaining()", "the edges decide which operators are chained")
        return self


class StreamSettings(OperatorSettings):
    """The settings of operators with output."""

    def start_new_chain(self: S) -> S:
        """Has no effect, like `disable_chaining`."""
        no_effect("start_new_chain()", "the edges decide which operators are chained")
        return self

    def set_buffer_timeout(self: S, timeout_millis: int) -> S:
        """Has no effect: the timeout is set for the whole program, with ``env.set_buffer_timeout()``."""
        no_effect("set_buffer_timeout()", "it is set for the whole program, with env.set_buffer_timeout()")
        return self

    def static(self: S) -> S:
        """Makes a source a static input, such as a table of master data; not in Flink.

        All of it is read at the start of a run, if it has changed since the last one. An operator takes what its static
        inputs bring before what its other inputs do. Nobody waits for event time of a static input, and it may have no
        partitions in a job that has.

        Raises:
            JobGraphError: The stream is not a source, or one that cannot be static.
        """
        operator = self._operator
        spec = operator.spec
        if not isinstance(spec, SourceSpec) or type(spec) not in (SourceSpec, SparkSourceSpec):
            raise JobGraphError(f"static() belongs to a source, and operator {operator.name!r} is none: call it first")
        if isinstance(spec.source, ReaderSource):
            raise JobGraphError(f"source {operator.name!r} is read by readers of Flink's kind, which cannot be static")
        if spec.watermark_strategy.max_out_of_orderness is not None:
            raise JobGraphError(
                f"source {operator.name!r} is static, so nobody waits for its event time: give it "
                "WatermarkStrategy.no_watermarks()"
            )
        operator.given = Given(replace(spec, static=True))
        return self

    def force_non_parallel(self: S) -> S:
        """Sets parallelism and max parallelism to 1."""
        self.set_parallelism(1)
        return self.set_max_parallelism(1)


class DataStreamSink(OperatorSettings):
    """The end of a stream."""
