"""The two ends of a blocking edge: a sink at the end of one pipelined region, and a source at the start of another.

They mirror Flink's ``BoundedBlockingSubpartition``, which is written once and read any number of times. The registry
names the code that executes them. The place of the segments is only known when the job runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster_flinkpy.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from dagster_flinkpy.datastream.connectors.base import (
    CommittingSinkWriter,
    Json,
    Sink,
    Source,
    SourceSplit,
    SplitEnumerator,
    WriterInitContext,
)
from dagster_flinkpy.errors import JobGraphError
from dagster_flinkpy.registry import call_registered

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BlockingEdgeSink", "BlockingEdgeSource", "check_blocking"]


def check_blocking(type_info: TypeInformation, retain: timedelta | None, *, keyed: bool) -> None:
    """Checks what is to go over a blocking edge.

    Args:
        type_info: Type of the records.
        retain: How long segments are kept, or None.
        keyed: Whether the stream is keyed.

    Raises:
        JobGraphError: The stream is keyed, its records have no type, or ``retain`` is no span of time above 0.
    """
    if keyed:
        raise JobGraphError("call blocking() before key_by(): the records are partitioned after they are read again")
    if isinstance(type_info, PickledBytesTypeInfo):
        raise JobGraphError(
            "blocking() stores records, and these have no type: declare output_type=..., such as "
            "Types.ROW_NAMED([...], [...]), on the operator before it"
        )
    if retain is not None and not (isinstance(retain, timedelta) and retain > timedelta(0)):
        raise JobGraphError(f"blocking(retain=...) needs a timedelta above 0, not {retain!r}")


@dataclass(frozen=True)
class BlockingEdgeSink(Sink):
    """Writes a stream, with its timestamps, as segments of each epoch."""

    location: Any = None
    """The storage prefix of the job's segments, a ``StorageLocation``; set when the job runs."""
    retain: timedelta | None = None
    """How long segments are kept after all operators have read them. Default: not at all."""

    def validate(self, type_info: TypeInformation | None) -> None:
        """Accepts records of any type."""

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        return call_registered("blocking_edge_writer", self, context, type_info)


@dataclass(frozen=True)
class BlockingEdgeSource(Source):
    """Reads what the sink of a blocking edge has written, in whole epochs."""

    sink_uid: str
    """The uid of the sink that writes the segments."""
    type_info: TypeInformation
    location: Any = None
    """The storage prefix of the job's segments, a ``StorageLocation``; set when the job runs."""

    @property
    def produced_type(self) -> TypeInformation:
        return self.type_info

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return call_registered("blocking_edge_enumerator", self, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        """Yields structs of ``value`` and ``timestamp``."""
        return call_registered("blocking_edge_reader", self.location, self.sink_uid, split, self.produced_type)
