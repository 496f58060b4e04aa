"""The nodes of a program before it becomes a job graph (Flink: ``Transformation``)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import timedelta

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.datastream.operator_specs import OperatorSpec
from dagster_flinkpy.datastream.output_tag import OutputTag
from dagster_flinkpy.datastream.program.given import Given
from dagster_flinkpy.datastream.program.job_graph import StreamPartitioner
from dagster_flinkpy.datastream.slot_sharing_group import SlotSharingGroup
from dagster_flinkpy.errors import JobGraphError

__all__ = ["Input", "Transformation"]

_LIBRARY = __name__.partition(".")[0]


def _declared_at() -> tuple[str, int] | None:
    """Returns file and line of the user's code that is being run: the nearest caller outside of the library."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] == _LIBRARY:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@dataclass(eq=False)
class Transformation:
    """An operator as the user declares it; mutable until the graph is built."""

    name: str
    given: Given[OperatorSpec]
    """What it does."""
    inputs: list[tuple[Input, ...]]
    """For each input of the operator, the streams that are united in it."""
    output_type: TypeInformation
    description: str = ""
    uid: str | None = None
    parallelism: int | None = None
    default_parallelism: int | None = None
    """Used if ``parallelism`` is not set: the environment's at the time of declaration, or None for its latest."""
    max_parallelism: int | None = None
    slot_sharing_group: SlotSharingGroup | None = None
    """None if it follows from the inputs."""
    side_outputs: dict[str, TypeInformation] = field(default_factory=dict)
    declared_at: tuple[str, int] | None = field(default_factory=_declared_at)
    """File and line of the program; None if they are not known."""

    @property
    def spec(self) -> OperatorSpec:
        """What it does."""
        return self.given.value

    def side_output(self, tag: OutputTag) -> str:
        """Declares that a side output is read, and returns its name.

        Raises:
            JobGraphError: The operator has no side outputs: what is read would always be empty.
        """
        if not self.spec.side_outputs:
            raise JobGraphError(
                f"operator {self.name!r} has no side outputs, so {tag} would be empty: call get_side_output() on the "
                "stream that process() or the window returned, and other transformations after that"
            )
        declared = self.side_outputs.get(tag.tag_id)
        self.side_outputs[tag.tag_id] = tag.type_info or declared or PickledBytesTypeInfo()
        return tag.tag_id


@dataclass(frozen=True)
class Input:
    """An output of a transformation and how it reaches the next one."""

    transformation: Transformation
    given: Given[StreamPartitioner]
    """How it is partitioned."""
    side_output: str | None = None
    blocking: bool = False
    """Whether the output is written to the store, for another pipelined region to read."""
    retain: timedelta | None = None
    """How long it is kept there after it was read."""

    @property
    def partitioner(self) -> StreamPartitioner:
        """How it is partitioned."""
        return self.given.value

    @property
    def type_info(self) -> TypeInformation:
        """The type of the records."""
        if self.side_output is None:
            return self.transformation.output_type
        return self.transformation.side_outputs[self.side_output]
