"""What declarations of sources have in common."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dagster_flinkpy.datastream.connectors.base import Json, Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import resolve

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

__all__ = ["DeclaredSource", "names_of_partition"]


class DeclaredSource(Source):
    """A source that says whether it is bounded, and what of the registry executes it."""

    registered: ClassVar[str]
    """How the names of its enumerator and its reader begin in the registry."""
    bounded: bool | None
    """Whether the input ends. None: with ``env.execute()``, but not in Dagster."""

    def continuous(self) -> Self:
        if self.bounded is not None:
            return self
        source = copy.copy(self)
        source.bounded = False
        return source

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        enumerator: SplitEnumerator = resolve(f"{self.registered}_enumerator")(self, restored)
        return enumerator

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int] | tuple[pa.Array, int, pa.Array]]:
        batches: Iterator[tuple[pa.Array, int]] = resolve(f"{self.registered}_reader")(self, split)
        return batches


def names_of_partition(partition: TimePartition, partition_format: str) -> tuple[str, str]:
    """Returns the first name that belongs to a time partition, and the first one after it."""
    since, before = (when.strftime(partition_format) for when in (partition.start, partition.end))
    if since >= before:
        raise ConfigurationError(
            f"{partition_format=!r} formats start and end of partition {partition.key} as {since!r} and {before!r}; it "
            "must be as fine as the partitions, with the larger units first"
        )
    return since, before
