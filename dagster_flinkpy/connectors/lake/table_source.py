"""What the sources of tables with a log have in common: Delta Lake and Iceberg. A split is a data file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, ClassVar, TypeVar

from dagster_flinkpy.common.arguments import check_count, check_name
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.commit.table_sink import check_folder, checked_location
from dagster_flinkpy.connectors.sources.declared_source import RowSource, names_of_partition
from dagster_flinkpy.connectors.sources.split_enumerators import OpenEnumerator, OpenSplits, RowMeter
from dagster_flinkpy.datastream.connectors.base import Json, SourceLag, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, InputTypeError, TypeMismatchError
from dagster_flinkpy.json_records import Count, JsonRecord
from dagster_flinkpy.registry import call_registered
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableLog", "TableSource", "files_of_partition", "window_at"]

_MOMENT = "%Y-%m-%dT%H:%M:%S.%f"
"""How moments are written, so that their text has their order."""

SourceT = TypeVar("SourceT", bound="TableSource")


class TableLog(ABC):
    """The versions of a table, and the data files that each of them has added."""

    def refresh(self) -> None:  # noqa: B027 - a log that looks each time has nothing to forget
        """Is called before an epoch is planned: from then on the table is as it is now."""

    @abstractmethod
    def latest(self) -> int | None:
        """Returns the latest version, or None if the table has none yet."""

    @abstractmethod
    def after(self, version: int) -> int | None:
        """Returns the version after one, or None if that is the latest.

        Raises:
            InputChangedError: The log does not reach back so far.
        """

    @abstractmethod
    def count_after(self, version: int) -> int:
        """Returns the number of versions after one.

        Raises:
            InputChangedError: The log does not reach back so far.
        """

    def mark(self, version: int) -> str | None:
        """Returns what tells a version from one of another history of the table with the same number.

        None if ids of versions are never used again, or if the log no longer has it.
        """
        return None

    def check_history(self, version: int, mark: str) -> None:  # noqa: B027
        """Checks that a version is still the one that had a mark.

        Raises:
            InputChangedError: The table was made anew, or restored from a backup.
        """

    @abstractmethod
    def all_files(self, version: int) -> list[Json]:
        """Returns all data files of a version, in an order that stays, each with ``path`` and ``size``."""

    @abstractmethod
    def added_files(self, version: int) -> list[Json]:
        """Returns the data files that a version has added to the one before, likewise.

        Raises:
            InputChangedError: It also deletes or changes rows.
        """

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Returns the columns that the table has now."""


class TableSource(RowSource, PartitionedSource):
    """Reads the rows of a table, and then those that are added to it. A subclass describes the arguments."""

    registered: ClassVar[str] = "table_file"
    resumes_splits = counts_records = True
    unreadable: ClassVar[str]
    """A regular expression: what the name of the folder cannot have."""
    log_name: str
    """What is registered to read the log."""

    def __init__(
        self,
        location: StorageLocation | str,
        *,
        row_type: RowTypeInfo | None,
        bounded: bool | None,
        max_files_per_epoch: int | None,
        max_records_per_epoch: int | None,
        max_bytes_per_epoch: int | None,
        skip_changes: bool,
        partition_column: str | None,
        partition_format: str,
        batch_rows: int,
    ) -> None:
        call = f"{type(self).__name__}()"
        self._declare(row_type, bounded, max_records_per_epoch, max_bytes_per_epoch, batch_rows)
        if max_files_per_epoch is not None:
            check_count(call, "max_files_per_epoch", max_files_per_epoch, "files")
        self.location = checked_location(call, location)
        check_folder(call, self.location, self.unreadable)
        self.max_files_per_epoch, self.skip_changes = max_files_per_epoch, skip_changes
        if partition_column is not None:
            check_name(f"{call} as partition_column", partition_column)
        check_name(f"{call} as partition_format", partition_format)
        self.partition_column, self.partition_format = partition_column, partition_format
        self.partition: TimePartition | None = None

    def log(self) -> TableLog:
        """Returns the versions of the table."""
        return call_registered(self.log_name, self)

    @property
    def content_token(self) -> str:
        return json.dumps(self.table_type.to_json())  # files of a table never change

    def folders(self) -> list[str]:
        return [self.location.url]

    @property
    def in_order(self) -> bool:
        """Whether one subtask reads all files, in their order."""
        return False

    def check_partition(self, partition: TimePartition) -> None:
        if self.partition_column is None:
            raise ConfigurationError(
                f"the {type(self).__name__} of {self.location.url} does not know which files belong to partition "
                f"{partition.key}: give it partition_column=..., a column by which the table is partitioned, or call "
                "static() on the stream if each partition needs the whole table"
            )

    def for_partition(self: SourceT, partition: TimePartition) -> SourceT:
        self.check_partition(partition)
        part = self._part()
        part.max_files_per_epoch, part.partition = None, partition
        return part

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return _TableEnumerator(self, restored)


@dataclass
class _Place(JsonRecord):
    """How far the versions of a table are assigned."""

    version: int | None
    whole: bool
    """Whether all files of the version are read, or only those that it has added."""
    complete: bool
    """Whether all of these are assigned."""
    assigned: Count
    """How many of these are."""
    mark: str | None = None
    """What tells the version from one of another table in the same place. Earlier releases have stored none."""


class _TableEnumerator(OpenEnumerator[OpenSplits]):
    """Assigns data files to readers, version by version. A split's number says which subtask reads it."""

    def __init__(self, source: TableSource, restored: Json | None) -> None:
        splits = OpenSplits(source.limits, RowMeter(self._measure), number=int, path=str, size=int)
        super().__init__(source.limits, splits, source.discovery_interval)
        self._rows: dict[str, int] = {}
        """The rows of data files, by the ids of their splits. Footers are read once."""
        self._source, self._log = source, source.log()
        self._at = _Place(None, whole=True, complete=False, assigned=0)
        self._left_over: list[Json] = []
        """Files of the version that the last plan did not open."""
        self._behind: int | None = None
        """Versions after it, as the last plan found them."""
        if restored is not None:
            self._at = _Place.from_json(restored)
            self._restore_open(restored)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        self._log.refresh()
        if not self._ended:
            self._left_over, self._behind = [], 0
            self._take(self._source.max_files_per_epoch)
        if self._source.in_order:
            return [*self._open.shares(1), *([] for _ in range(parallelism - 1))]
        return self._open.shares(parallelism)

    def _take(self, limit: int | None) -> None:
        """Takes new files until there are no more, or as many as allowed."""
        if self._at.version is None:
            self._begin(self._log.latest())
        elif self._at.mark is not None:
            self._log.check_history(self._at.version, self._at.mark)
        while self._at.version is not None:
            if not self._at.complete and not self._assign(self._at.version, limit):
                self._behind = self._log.count_after(self._at.version)
                return
            following = self._log.after(self._at.version)
            if following is None:
                break
            self._begin(following)
            self._at.whole, self._at.complete, self._at.assigned = False, False, 0
        self._ended = self._source.bounded is not False

    def _begin(self, version: int | None) -> None:
        self._at.version, self._at.mark = version, None if version is None else self._log.mark(version)

    def _assign(self, version: int, limit: int | None) -> bool:
        """Takes files of a version. Returns whether these were the last ones."""
        files = self._log.all_files(version) if self._at.whole else self._log.added_files(version)
        if self._source.partition is not None:
            files = files_of_partition(self._source, self._source.partition, files)
        if self._at.assigned < len(files):
            self._check_columns()
        while self._at.assigned < len(files) and not self._open.suffice():
            if limit is not None and len(self._open) >= limit:
                break
            file = files[self._at.assigned]
            self._open.open(str(file.get("id", file["path"])), file)
            self._at.assigned += 1
        self._left_over = files[self._at.assigned :]
        self._at.complete = self._at.assigned == len(files)
        return self._at.complete

    def _check_columns(self) -> None:
        """Checks that the table has all columns: a file without one of them has nulls, because it may be older."""
        from dagster_flinkpy.connectors.columns.column_casts import check_cast

        there, wanted, url = self._log.schema(), self._source.table_type, self._source.location.url
        if missing := [name for name in wanted.field_names if name not in there.names]:
            raise InputChangedError(
                f"the table in {url} has no column {', '.join(map(repr, missing))}, only {there.names}. Was it renamed "
                "or dropped? Declare a row_type with columns of the table, or change it back"
            )
        for name, declared in zip(wanted.field_names, wanted.field_types, strict=True):
            try:
                check_cast(name, there.field(name).type, declared.arrow_type, declared)
            except TypeMismatchError as error:
                raise InputTypeError(f"the table in {url}: {error}") from error

    def _measure(self, split: SourceSplit) -> tuple[int, int]:
        if split.split_id not in self._rows:
            self._rows[split.split_id] = call_registered("table_file_rows", self._source, split)
        return self._rows[split.split_id], split.properties["size"]

    def lag(self) -> SourceLag:
        left = self._open.lag(len(self._open.left()), [file["size"] for file in self._left_over])
        return replace(left, versions=self._behind)

    def unread(self) -> Sequence[str]:
        self._log.refresh()
        after = self._log.latest() if self._at.version is None else self._log.after(self._at.version)
        return [*super().unread(), *([] if after is None else [f"version {after}"])]

    def snapshot_state(self) -> Json:
        return {**self._at.to_json(), **super().snapshot_state()}


def window_at(moment: datetime) -> Json:
    """Returns how a file tells a moment as its partition value. A moment without a time zone is in UTC."""
    utc = moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    return {"window": utc.strftime(_MOMENT), "unit": _MOMENT}


def files_of_partition(source: TableSource, partition: TimePartition, files: list[Json]) -> list[Json]:
    """Returns the files of a table whose partition value is in a time partition.

    A file has its value as ``window``, or None for null. With ``unit``, the format of a unit of time or of a moment,
    the value is in UTC.
    """
    chosen = []
    for file in files:
        if "window" not in file:
            raise InputChangedError(
                f"{file['path']} in {source.location.url} is not partitioned by {source.partition_column!r}: name "
                "another partition_column, or write the table anew with this one"
            )
        if file["window"] is not None:
            since, before = _bounds(source, partition, file.get("unit"))
            if since <= file["window"] < before:
                chosen.append(file)
    return chosen


def _bounds(source: TableSource, partition: TimePartition, unit: str | None) -> tuple[str, str]:
    """Returns the first value of a partition, and the first one after it."""
    if unit is None:
        return names_of_partition(partition, source.partition_format)
    bounds = [when.astimezone(timezone.utc) for when in (partition.start, partition.end)]
    texts = [when.strftime(unit) for when in bounds]
    if any(datetime.strptime(t, unit).replace(tzinfo=timezone.utc) != b for t, b in zip(texts, bounds, strict=True)):
        raise ConfigurationError(
            f"partition {partition.key} begins at {bounds[0]} and ends at {bounds[1]}, amid the values {texts} by "
            f"which the table in {source.location.url} is partitioned: choose partitions of whole units of time in UTC"
        )
    return texts[0], texts[1]
