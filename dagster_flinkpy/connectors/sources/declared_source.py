"""What declarations of sources have in common."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar

from dagster_flinkpy.common.arguments import check_argument, check_count, check_interval
from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation, Types
from dagster_flinkpy.connectors.sources.split_enumerators import ResumedRows
from dagster_flinkpy.datastream.connectors.base import Json, Source, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.epoch_limits import EpochLimits
from dagster_flinkpy.datastream.connectors.partitions import TimePartition
from dagster_flinkpy.errors import ConfigurationError, SourceReadError
from dagster_flinkpy.registry import call_registered

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

__all__ = ["DeclaredSource", "RowSource", "names_of_partition"]


class DeclaredSource(Source):
    """A source that says whether it is bounded, and what of the registry executes it."""

    registered: ClassVar[str]
    """How the names of its enumerator and its reader begin in the registry."""
    dagster_kind: ClassVar[str]
    bounded: bool | None
    """Whether the input ends. None: with ``env.execute()``, but not in Dagster."""

    def continuous(self) -> Self:
        if self.bounded is not None:
            return self
        source = copy.copy(self)
        source.bounded = False
        return source

    def kinds(self) -> set[str]:
        return {self.dagster_kind}

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return call_registered(f"{self.registered}_enumerator", self, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int] | tuple[pa.Array, int, pa.Array]]:
        return call_registered(f"{self.registered}_reader", self, split)


class RowSource(DeclaredSource):
    """A source of rows, whose columns are declared as ``row_type``, or else are those of what it reads."""

    _added: Mapping[str, TypeInformation] = {}
    """Columns that the source adds to them."""
    _when_added: ClassVar[str] = ""
    _resumed: ResumedRows | None = None
    """Keeps rows from one epoch to the next, if this is the source of a subtask."""

    def for_subtask(self) -> Self:
        own = copy.copy(self)
        own._resumed = ResumedRows()
        return own

    def resumed(
        self, split: SourceSplit, read: Callable[[SourceSplit], Iterator[tuple[pa.Array, int]]]
    ) -> Iterator[tuple[pa.Array, int]]:
        """Yields the rows of a split up to its stop; see :meth:`ResumedRows.read`."""
        return (self._resumed or ResumedRows()).read(split, read)

    def _declare(
        self,
        row_type: RowTypeInfo | None,
        bounded: bool | None,
        max_records_per_epoch: int | None,
        max_bytes_per_epoch: int | None,
        batch_rows: int = 8192,
        discovery_interval: timedelta = Source.discovery_interval,
    ) -> None:
        """Takes the arguments that all such sources have, after a check."""
        call = f"{type(self).__name__}()"
        check_argument(f"row_type of {call}", row_type, (RowTypeInfo, type(None)), "Types.ROW_NAMED(...)")
        self._row_type = None if row_type is None else self._checked(row_type)
        check_interval(call, discovery_interval)
        check_count(call, "batch_rows", batch_rows, "rows")
        self.bounded, self.batch_rows, self.discovery_interval = bounded, batch_rows, discovery_interval
        self.limits = EpochLimits.checked(call, max_records_per_epoch, max_bytes_per_epoch)

    def _part(self) -> Self:
        """Returns a copy for a time partition: its input ends, and is read in one epoch."""
        part = copy.copy(self)
        part.bounded, part.limits = True, EpochLimits()
        return part

    def _checked(self, columns: RowTypeInfo) -> RowTypeInfo:
        if twice := [name for name in self._added if name in columns.field_names]:
            raise ConfigurationError(
                f"{type(self).__name__}() {self._when_added}adds a column {twice[0]!r} itself: leave it out, with a "
                "row_type without it"
            )
        return columns

    @cached_property
    def table_type(self) -> RowTypeInfo:
        """The columns that are read. Those that are not declared are looked up, once.

        Raises:
            SourceReadError: They cannot be read.
            ConfigurationError: A column has a type that no ``Types.*`` corresponds to.
        """
        if self._row_type is not None:
            return self._row_type
        try:
            return self._checked(self._find_type())
        except SourceReadError as error:
            how = "To declare the program before its input is there, pass row_type=..."
            raise type(error)(f"{str(error).removesuffix('.')}. {how}") from error

    def _find_type(self) -> RowTypeInfo:
        return call_registered(f"{self.registered}_row_type", self)

    @property
    def produced_type(self) -> RowTypeInfo:
        """The type of the records: these columns, and those that the source adds, if any."""
        columns, added = self.table_type, self._added
        if not added:
            return columns
        return Types.ROW_NAMED([*columns.field_names, *added], [*columns.field_types, *added.values()])


@lru_cache(64)  # tables ask for each file
def names_of_partition(partition: TimePartition, partition_format: str) -> tuple[str, str]:
    """Returns the first name that belongs to a time partition, and the first one after it.

    Raises:
        ConfigurationError: The names of times are not in the order of the times, so a partition would read the files of
            others.
    """
    since, before = (when.strftime(partition_format) for when in (partition.start, partition.end))
    needed = "it must be as fine as the partitions, with the larger units first, and each with all of its digits"
    if since >= before:
        raise ConfigurationError(
            f"{partition_format=!r} formats start and end of partition {partition.key} as {since!r} and {before!r}; "
            f"{needed}"
        )
    days, width, last = timedelta(2), partition.end - partition.start, before
    after = [number * width for number in range(1, days // width)] + [timedelta(number) for number in range(1, 401)]
    later = sorted(each + time for time in after for each in (partition.start, partition.end))
    for when in (each for each in later if each >= partition.end):
        if (name := when.strftime(partition_format)) < last:
            raise ConfigurationError(
                f"{partition_format=!r} formats {when} as {name!r}, which is before {last!r}, as it formats an earlier "
                f"time: a partition would read files of others; {needed}"
            )
        last = name
    return since, before
