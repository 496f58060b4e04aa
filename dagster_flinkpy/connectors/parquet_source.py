"""A folder of Parquet files as a source: one split per file, read again from any row."""

from __future__ import annotations

import copy
import fnmatch
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.ranged_file import RangedFile
from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.errors import ConfigurationError, SourceReadError, StorageError
from dagster_flinkpy.storage import ObjectInfo, ObjectStore, StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["ParquetSource"]


class ParquetSource(PartitionedSource):
    """Reads the Parquet files below a location, in the order of their names.

    **Files must arrive in the order of their names** (such as ``2013-02-01.parquet``): the source remembers the last
    name it handed out, not all of them, so its state stays small for ever. A file that turns up before that name is a
    :class:`SourceReadError`, for it would never be read. Files that were read may be deleted.

    File ``n`` is read by subtask ``n % parallelism``. A name with a part that starts with ``_`` or ``.`` is left out.

    Args:
        location: A folder on S3 or a local one.
        pattern: Which files, by their path below the location; ``*`` crosses folders.
        row_type: Columns to read, by name, with the types to cast them to. Default: all columns of the first file.
        bounded: Whether the input ends with the files that are there when an epoch is planned.
        since: Path of the first file to read, inclusive. Default: none.
        until: Path of the last file to read, inclusive; the input ends there whether ``bounded`` or not. Default: none.
        max_files_per_epoch: At most so many files between two barriers: 1 gives a checkpoint per daily file.
            Default: all that are there.
        partition_format: For a job with a time-window ``partitions_def``: what the names of a partition's files start
            with, in the words of ``strftime``, such as ``%Y-%m-%d`` or ``year=%Y/month=%m/``. A partition reads the
            files whose names are not before its start, and before its end, written so.
        batch_rows: At most so many records in one batch.

    Raises:
        ConfigurationError: A number is not positive.
    """

    def __init__(
        self,
        location: StorageLocation | str,
        *,
        pattern: str = "*.parquet",
        row_type: RowTypeInfo | None = None,
        bounded: bool = True,
        since: str | None = None,
        until: str | None = None,
        max_files_per_epoch: int | None = None,
        partition_format: str | None = None,
        batch_rows: int = 8192,
    ) -> None:
        if batch_rows < 1 or (max_files_per_epoch is not None and max_files_per_epoch < 1):
            raise ConfigurationError(
                f"batch_rows={batch_rows} and max_files_per_epoch={max_files_per_epoch} must be at least 1"
            )
        self.location = StorageLocation(location) if isinstance(location, str) else location
        self.pattern = pattern
        self.bounded = bounded
        self.since = since
        self.until = until
        self.max_files_per_epoch = max_files_per_epoch
        self.partition_format = partition_format
        self.batch_rows = batch_rows
        self._row_type = row_type
        self._before: str | None = None

    def for_partition(self, partition: TimePartition) -> ParquetSource:
        if self.partition_format is None:
            raise ConfigurationError(
                f"the Parquet source {self.location.url} does not know which files belong to partition "
                f"{partition.key}: give it partition_format=..., such as '%Y-%m-%d'"
            )
        since, before = (when.strftime(self.partition_format) for when in (partition.start, partition.end))
        if since >= before:
            raise ConfigurationError(
                f"partition_format={self.partition_format!r} writes start and end of partition {partition.key} as "
                f"{since!r} and {before!r}; it must be as fine as the partitions, with the larger units first"
            )
        part = copy.copy(self)
        part.bounded, part.max_files_per_epoch = True, None
        part.since, part._before = max(since, self.since or since), before
        return part

    @cached_property
    def produced_type(self) -> RowTypeInfo:
        """Type of the records.

        Raises:
            SourceReadError: It was to be read from the first file, and there is none, or it is no Parquet file.
        """
        if self._row_type is not None:
            return self._row_type
        from dagster_flinkpy.connectors.arrow_types import row_type_of

        store = self.location.open()
        first = next(iter(self.files(store)), None)
        if first is None:
            raise SourceReadError(
                f"no file {self.pattern!r} in {store.url} to take the columns from; give row_type=..."
            )
        with _naming(store, first.key), _open(store, first.key, first.size) as file:
            return row_type_of(file.schema_arrow)

    def files(self, store: ObjectStore) -> list[ObjectInfo]:
        """The files of this source that are in the store now, sorted by name.

        Raises:
            SourceReadError: They cannot be listed.
        """
        literal = re.split(r"[*?\[]", self.pattern, maxsplit=1)[0]
        try:
            return [info for info in store.list(literal) if self._selects(info.key)]
        except StorageError as error:
            raise SourceReadError(f"cannot list {self.pattern!r} in {store.url}: {error}") from error

    def _selects(self, key: str) -> bool:
        if (self.since is not None and key < self.since) or (self.until is not None and key > self.until):
            return False
        if self._before is not None and key >= self._before:
            return False
        hidden = any(part[0] in "_." for part in key.split("/"))
        return not hidden and fnmatch.fnmatchcase(key, self.pattern)

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return _ParquetEnumerator(self, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        store, key, row_type = self.location.open(), split.split_id, self.produced_type
        size = split.properties["size"]
        with _naming(store, key):
            now = next((info for info in store.list(key) if info.key == key), None)
            if now is None:
                raise SourceReadError("it was deleted after it was planned")
            if (now.size, _version(now)) != (size, split.properties["version"]):
                raise SourceReadError(
                    f"it was changed after it was planned, from {size} bytes (version {split.properties['version']}) "
                    f"to {now.size} bytes (version {_version(now)}); put it back, and write new data to a new file"
                )
            with _open(store, key, size) as file:
                self._check_columns(file.schema_arrow, row_type)
                yield from self._batches(file, row_type, split.offset)

    def _batches(self, file: pq.ParquetFile, row_type: RowTypeInfo, offset: int) -> Iterator[tuple[pa.Array, int]]:
        if offset > file.metadata.num_rows:
            raise SourceReadError(f"row {offset} was read already, but there are only {file.metadata.num_rows} rows")
        end = 0
        for group in range(file.num_row_groups):
            start, end = end, end + file.metadata.row_group(group).num_rows
            if end <= offset:
                continue
            # One row group at a time: Arrow keeps what it has fetched until the next call.
            batches = file.iter_batches(self.batch_rows, row_groups=[group], columns=list(row_type.field_names))
            for batch in batches:
                start, rows = start + batch.num_rows, batch.slice(min(max(offset - start, 0), batch.num_rows))
                if rows.num_rows:
                    yield _struct(rows, row_type), start

    def _check_columns(self, schema: pa.Schema, row_type: RowTypeInfo) -> None:
        missing = [name for name in row_type.field_names if name not in schema.names]
        if missing:
            raise SourceReadError(f"it has no column {', '.join(map(repr, missing))}, only {schema.names}")

    def kinds(self) -> set[str]:
        return {"parquet"}


class _ParquetEnumerator(SplitEnumerator):
    """State: the last name handed out, how many names there are up to it, and the splits not yet read to their end."""

    def __init__(self, source: ParquetSource, restored: Json | None) -> None:
        state = restored or {"last": None, "present": 0, "planned": 0, "open": []}
        self._source = source
        self._store = source.location.open()
        self._last: str | None = state["last"]
        self._present: int = state["present"]
        self._planned: int = state["planned"]
        self._open = {split.split_id: split for split in map(SourceSplit.from_json, state["open"])}
        self._exhausted = False

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        files = self._source.files(self._store)
        new = self._after_last(files)
        limit = self._source.max_files_per_epoch
        taken = new if limit is None else new[: max(limit - len(self._open), 0)]
        for info in taken:
            properties = {"number": self._planned, "size": info.size, "version": _version(info)}
            self._open[info.key] = SourceSplit(info.key, properties)
            self._planned += 1
            self._last = info.key
        self._present = len(files) - len(new) + len(taken)
        until = self._source.until
        ends = self._source.bounded or (until is not None and self._last is not None and self._last >= until)
        self._exhausted = ends and len(taken) == len(new)

        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        for split in self._open.values():
            shares[split.properties["number"] % parallelism].append(split)
        return shares

    def _after_last(self, files: list[ObjectInfo]) -> list[ObjectInfo]:
        last = self._last
        if last is None:
            return files
        old = [info for info in files if info.key <= last]
        if len(old) > self._present:
            newest = max(old, key=lambda info: info.last_modified).key
            raise SourceReadError(
                f"{len(old) - self._present} file(s) were added to {self._store.url} before {last!r}, the last one "
                f"read (most recently written: {newest!r}). They would never be read: give them names after {last!r}."
            )
        return files[len(old) :]

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            if split.finished:
                self._open.pop(split.split_id, None)
            else:
                self._open[split.split_id] = split

    @property
    def exhausted(self) -> bool:
        return self._exhausted

    def snapshot_state(self) -> Json:
        return {
            "last": self._last,
            "present": self._present,
            "planned": self._planned,
            "open": [split.to_json() for split in self._open.values()],
        }


@contextmanager
def _naming(store: ObjectStore, key: str) -> Iterator[None]:
    """Turns what goes wrong with one file into a SourceReadError that names it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, StorageError, SourceReadError, ConfigurationError) as error:
        raise SourceReadError(f"cannot read {store.url}/{key}: {error}") from error


def _open(store: ObjectStore, key: str, size: int) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    return pq.ParquetFile(RangedFile(store, key, size), pre_buffer=True)


def _version(info: ObjectInfo) -> str:
    """What changes when the file does. A local store's listing has no ETags."""
    return info.etag or info.last_modified.isoformat()


def _struct(batch: pa.RecordBatch, row_type: RowTypeInfo) -> pa.Array:
    import pyarrow as pa

    fields = list(row_type.arrow_type)
    columns = []
    for field in fields:
        try:
            columns.append(batch.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise SourceReadError(f"column {field.name!r} does not fit {field.type}: {error}") from error
    return pa.StructArray.from_arrays(columns, fields=fields)
