"""A folder of Parquet files as a source. A split is a file or some of its row groups, read again from any row."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from dagster_flinkpy.common.arguments import check_count
from dagster_flinkpy.common.decimals import check_has_scale
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.commit.table_sink import checked_location
from dagster_flinkpy.connectors.files.known_files import KnownFiles, PartitionRuns, check_unchanged, some_of, version_of
from dagster_flinkpy.connectors.sources.declared_source import RowSource, names_of_partition
from dagster_flinkpy.connectors.sources.input_files import input_files, open_parquet, reading, rows_from
from dagster_flinkpy.connectors.sources.split_enumerators import (
    SPLITS_PER_SUBTASK,
    OpenEnumerator,
    OpenSplits,
    RowMeter,
)
from dagster_flinkpy.datastream.connectors.base import (
    Json,
    Source,
    SourceLag,
    SourceSplit,
    SplitEnumerator,
    position_field,
)
from dagster_flinkpy.datastream.connectors.partitions import PartitionedSource, TimePartition
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, SourceReadError, StorageError
from dagster_flinkpy.storage import ObjectInfo, ObjectStore, StorageLocation

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["ParquetSource", "row_group_ranges"]

_SPLIT_BYTES = 4 << 20
"""The smallest part of a file that is worth a split: opening one takes some requests."""

_THREADS = 8
"""How many footers are read at the same time."""


class ParquetSource(RowSource, PartitionedSource):
    """Reads the Parquet files below a location, in the order of their names.

    **Files must arrive in the order of their names**, such as ``2013-02-01.parquet``. The source remembers the last
    name it has read, and for each earlier file that still exists a hash of name, size and version (21 bytes). In each
    epoch it lists the folder and compares:

    - A file after the last name is new. It is read once.
    - An unknown file before the last name came too late, even if another file was deleted. It would never be read, so
      the epoch fails with a :class:`SourceReadError` that names it.
    - If the size or version of a known file differs, it was changed after it was read. That is an error, too. (The
      version is the ETag on S3, and the time of the last change in a local folder.)
    - You may delete files that were read, which keeps the position small. If one of the last 10,000 comes back as it
      was, it is still known. Any other file with such a name counts as late.

    A file is one split. A file of 8 MiB or more is several, if it has several row groups and the parallelism is above
    1: neighbouring row groups form splits of at least 4 MiB, up to four for each subtask. Split ``n``, counted over all
    files, is read by subtask ``n % parallelism``. Each subtask reads its splits in order, but only with parallelism 1
    do all records of a large file stay in the order of the file. A file is ignored if a part of its path starts with
    ``_`` or ``.``. Links in a local folder are followed; one that leads nowhere or back, or to a file that is also read
    by another name, is an error.

    Args:
        location: A folder on S3 or a local one.
        pattern: Pattern for the paths of the files below the location. ``*`` also matches slashes.
        row_type: Columns to read, by name, and their types. A column may have a narrower type in a file, such as int32
            for ``Types.LONG()``. Default: all columns of the first file.
        bounded: Whether the input ends with the files that exist when an epoch is planned; files that come later are an
            error. Default: the input ends if ``env.execute()`` runs the program, and continues from run to run in
            Dagster.
        since: Path of the first file to read, inclusive. Default: no limit.
        until: Path of the last file to read, inclusive. The input ends there, whether ``bounded`` or not. Default: no
            limit.
        max_files_per_epoch: Maximum number of files between two barriers. With 1, each daily file gets a checkpoint.
            Default: all files that exist.
        max_records_per_epoch: Maximum number of rows between two barriers, over all subtasks. Default: all that exist.
        max_bytes_per_epoch: Maximum number of bytes of files between two barriers, likewise. With one of the two an
            epoch may end amid a file, and the driver reads the footers of the files of an epoch.
        partition_format: For a job with a time-window ``partitions_def``: the ``strftime`` format with which the names
            of a partition's files start, such as ``%Y-%m-%d`` or ``year=%Y/month=%m/``. A partition reads the files
            whose names are between its start (inclusive) and its end (exclusive) in this format.
        discovery_interval: How long a job that runs on waits before it lists the folder again. Default: 1 second. On
            S3, a listing takes a request for each 1,000 files.
        batch_rows: Maximum number of records in a batch.

    Raises:
        ConfigurationError: A number is not positive, or a decimal has no scale.
    """

    dagster_kind = "parquet"
    resumes_splits = counts_records = True

    def __init__(
        self,
        location: StorageLocation | str,
        *,
        pattern: str = "*.parquet",
        row_type: RowTypeInfo | None = None,
        bounded: bool | None = None,
        since: str | None = None,
        until: str | None = None,
        max_files_per_epoch: int | None = None,
        max_records_per_epoch: int | None = None,
        max_bytes_per_epoch: int | None = None,
        partition_format: str | None = None,
        discovery_interval: timedelta = Source.discovery_interval,
        batch_rows: int = 8192,
    ) -> None:
        self._declare(row_type, bounded, max_records_per_epoch, max_bytes_per_epoch, batch_rows, discovery_interval)
        if max_files_per_epoch is not None:
            check_count("ParquetSource()", "max_files_per_epoch", max_files_per_epoch, "files")
        self.location = checked_location("ParquetSource()", location)
        self.pattern = pattern
        self.since = since
        self.until = until
        self.max_files_per_epoch = max_files_per_epoch
        self.partition_format = partition_format
        if row_type is not None:
            check_has_scale(row_type, f"row_type of the Parquet source {self.location.url}")
        self._before: str | None = None

    def check_partition(self, partition: TimePartition) -> None:
        self._bounds(partition)

    def for_partition(self, partition: TimePartition) -> ParquetSource:
        since, before = self._bounds(partition)
        part = self._part()
        part.max_files_per_epoch, part.since, part._before = None, max(since, self.since or since), before
        return part

    def _bounds(self, partition: TimePartition) -> tuple[str, str]:
        """Returns the first name that belongs to a partition, and the first one after it."""
        if self.partition_format is None:
            raise ConfigurationError(
                f"the Parquet source {self.location.url} does not know which files belong to partition "
                f"{partition.key}: give it partition_format=..., such as '%Y-%m-%d', or call static() on the stream if "
                "each partition needs all files"
            )
        return names_of_partition(partition, self.partition_format)

    def check_format(self, store: ObjectStore) -> None:
        """Checks, for a partition without files, that the files of others have names of the declared format.

        Raises:
            SourceReadError: There are files, and none of them has.
        """
        form, before = self.partition_format, self._before
        if form is None or before is None or not _has_format(before, form):  # some formats cannot be read
            return
        names = [info.key for info in input_files(store, lambda key: fnmatch.fnmatchcase(key, self.pattern))]
        if names and not any(_has_format(name[: len(before)], form) for name in names):
            raise SourceReadError(
                f"no file in {store.url} has a name of partition_format={form!r}, such as {before!r}, but there are "
                f"others: {some_of(names)}. Correct the format, or move them away: no partition would read them"
            )

    def _find_type(self) -> RowTypeInfo:
        from dagster_flinkpy.connectors.columns.column_casts import row_type_of

        store = self.location.open()
        first = next(iter(self.files(store)), None)
        if first is None:
            raise SourceReadError(f"there is no file {self.pattern!r} in {store.url} to take the columns from")
        with reading(f"{store.url}/{first.key}"), open_parquet(store, first.key, first.size) as file:
            _check_unique(file.schema_arrow, file.schema_arrow.names)
            return row_type_of(file.schema_arrow)

    @property
    def content_token(self) -> str:
        return json.dumps(self.produced_type.to_json())  # splits name size and version of a file

    @property
    def is_partition(self) -> bool:
        """Whether the source reads one time partition, which may have no files."""
        return self._before is not None

    def files(self, store: ObjectStore) -> list[ObjectInfo]:
        """Lists the files of this source that are in the store now, sorted by name.

        Raises:
            SourceReadError: The folder does not exist or cannot be listed.
        """
        literal = re.split(r"[*?\[]", self.pattern, maxsplit=1)[0]
        try:
            found = input_files(store, self._selects, literal)
            if not found and not store.root_exists():
                raise SourceReadError(
                    f"there is no folder {store.url}. Check the location. If the first file is still to come, make the "
                    "folder"
                )
        except StorageError as error:
            raise SourceReadError(f"cannot list {self.pattern!r} in {store.url}: {error}") from error
        return found

    def _selects(self, key: str) -> bool:
        if (self.since is not None and key < self.since) or (self.until is not None and key > self.until):
            return False
        if self._before is not None and key >= self._before:
            return False
        return fnmatch.fnmatchcase(key, self.pattern)

    def create_enumerator(self, restored: Json | None) -> SplitEnumerator:
        return _ParquetEnumerator(self, restored)

    def read(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        store, key = self.location.open(), _file_of(split)
        with reading(f"{store.url}/{key}"):
            yield from self.resumed(split, self._rows)

    def _rows(self, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
        """Reads the row groups of a split, from its offset, a row of them, to their end."""
        from dagster_flinkpy.connectors.columns.column_casts import cast_rows

        store, key, row_type, offset = self.location.open(), _file_of(split), self.produced_type, split.offset
        size, version = split.properties["size"], split.properties["version"]
        check = partial(check_unchanged, store, key, size, version)
        with open_parquet(store, key, size, _footer(self.location, key, size, version), check) as file:
            self._check_columns(file.schema_arrow, row_type)
            groups = range(*split.properties.get("row_groups", (0, file.num_row_groups)))
            rows_there = sum(file.metadata.row_group(group).num_rows for group in groups)
            if offset > rows_there:
                raise SourceReadError(f"{offset} rows were read already, but there are only {rows_there}")
            for rows, position in rows_from(file, groups, row_type.field_names, self.batch_rows, offset):
                yield cast_rows(rows, row_type), position

    def _check_columns(self, schema: pa.Schema, row_type: RowTypeInfo) -> None:
        from dagster_flinkpy.connectors.columns.column_casts import check_cast

        _check_unique(schema, row_type.field_names)
        missing = [name for name in row_type.field_names if name not in schema.names]
        if missing:
            raise InputChangedError(f"it has no column {', '.join(map(repr, missing))}, only {schema.names}")
        for field, declared in zip(row_type.arrow_type, row_type.field_types, strict=True):
            check_cast(field.name, schema.field(field.name).type, field.type, declared)

    def folders(self) -> list[str]:
        return [self.location.url]


def _has_format(name: str, form: str) -> bool:
    with suppress(ValueError):
        datetime.strptime(name, form)
        return True
    return False


class _ParquetEnumerator(OpenEnumerator[OpenSplits]):
    """Assigns files, or parts of them, to readers in the order of their names.

    State: the last name assigned, the known files up to it, and the splits that are not read to the end.
    The number of a split says which subtask reads it. The split of a whole file has the file's name as its id. The
    split of a part also has the properties ``file`` and ``row_groups``: the first row group, and the one after the
    last.
    """

    def __init__(self, source: ParquetSource, restored: Json | None) -> None:
        splits = OpenSplits(source.limits, RowMeter(partial(_measure, source)), number=int, size=int, version=str)
        super().__init__(source.limits, splits, source.discovery_interval)
        self._source, self._store = source, source.location.open()
        self._last: str | None = None
        self._known = KnownFiles()
        self._counted: int | None = None
        """Number of files up to the last one, if an earlier release stored the position: it kept no names."""
        self._left_over: list[ObjectInfo] = []
        """Files that the last plan did not open."""
        if restored is not None:
            self._restore(restored)

    def _restore(self, position: Json) -> None:
        planned = position_field(position, "planned", int)
        if position.get("last") is not None:
            self._last = position_field(position, "last", str)
        elif planned:
            raise ValueError(f"{planned} files were planned, but 'last' is missing")
        self._restore_open({**position, "ended": position.get("ended", False) is True})
        for split in self._open:
            if "file" in split.properties:
                position_field(split.properties, "file", str)
                first, stop = position_field(split.properties, "row_groups", list)
                if not 0 <= first < stop:
                    raise ValueError(f"split {split.split_id!r} has no row groups")
        if "files" in position:
            self._known = KnownFiles.from_json(position)
        else:
            self._counted = position_field(position, "present", int)

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        new = [] if self._ended else self._after_last(self._source.files(self._store))
        self._check_runs([info.key for info in new])
        limit = self._source.max_files_per_epoch
        allowed = new if limit is None else new[: max(limit - len(set(map(_file_of, self._open))), 0)]
        opened, at_once = 0, _THREADS if self._source.limits else max(len(allowed), 1)
        while opened < len(allowed) and not self._open.suffice():
            self._open_all(allowed[opened : opened + at_once], parallelism)
            opened += at_once
        self._left_over = new[opened if opened < len(allowed) else len(allowed) :]
        self._ended = self._ended or (self._ends() and not self._left_over)
        return self._open.shares(parallelism)

    def _open_all(self, files: Sequence[ObjectInfo], parallelism: int) -> None:
        with ThreadPoolExecutor(_THREADS) as threads:
            parts = list(threads.map(partial(self._parts, parallelism), files))
        for info, ranges in zip(files, parts, strict=True):
            for first, stop in ranges:
                name, properties = info.key, {"size": info.size, "version": version_of(info)}
                if len(ranges) > 1:
                    name = f"{info.key}[{first}:{stop}]"
                    properties |= {"file": info.key, "row_groups": [first, stop]}
                self._open.open(name, properties)
            self._known.add(info.key, info)
            self._last = info.key

    def lag(self) -> SourceLag:
        return self._open.lag(len(set(map(_file_of, self._open.left()))), [info.size for info in self._left_over])

    def _parts(self, parallelism: int, info: ObjectInfo) -> list[tuple[int, int]]:
        """Returns the row groups of each split of a file. Only the footer of a large file is read."""
        if parallelism == 1 or info.size < 2 * _SPLIT_BYTES:
            return [(0, 0)]  # the whole file, whatever is in it
        with reading(f"{self._store.url}/{info.key}"):
            footer = _footer(self._source.location, info.key, info.size, version_of(info))
        rows = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
        return row_group_ranges(rows, max(_SPLIT_BYTES / info.size, 1 / (SPLITS_PER_SUBTASK * parallelism)))

    def _ends(self) -> bool:
        """Returns whether the input ends with the files that were just listed."""
        source, last = self._source, self._last
        if source.bounded is not False:
            if last is None and not source.is_partition:
                raise SourceReadError(
                    f"there is no file {source.pattern!r} in {self._store.url}, and the input ends with "
                    "the existing files. "
                    "Check the location and the pattern, or declare bounded=False to wait for the first file"
                )
            if last is None:
                source.check_format(self._store)
            return True
        return source.until is not None and last is not None and last >= source.until

    def _after_last(self, files: list[ObjectInfo]) -> list[ObjectInfo]:
        """Returns the files after the last one, if all others are known and have not changed."""
        last = self._last
        if last is None:
            return files
        old = [info for info in files if info.key <= last]
        if self._counted is not None:
            self._adopt(old, self._counted, last)
        self._known.compare({info.key: info for info in old})
        if late := [info.key for info in old if info.key not in self._known]:
            raise InputChangedError(
                f"{some_of(late)} came too late in {self._store.url}: files are read in the order of their names, and "
                f"{last!r} was read already. Late files would never be read. Give them names after {last!r}, or move "
                "them away."
            )
        if changed := [info.key for info in old if self._known.has_changed(info.key, info)]:
            raise InputChangedError(
                f"{some_of(changed)} changed in {self._store.url} after the source had read them. Their new content "
                f"would never be read. Move them away, and write new data to files with names after {last!r}. To read "
                "them again, start from a checkpoint before them, or from empty state."
            )
        return files[len(old) :]

    def _check_runs(self, new: Sequence[str]) -> None:
        """Checks that new files are of one run of each partition: earlier ones than the last are late."""
        runs = PartitionRuns()
        for key in [*([] if self._last is None else [self._last]), *new]:
            runs.add(f"{self._store.url}/{key}")

    def _adopt(self, old: list[ObjectInfo], counted: int, last: str) -> None:
        if len(old) > counted:
            newest = max(old, key=lambda info: info.last_modified).key
            raise InputChangedError(
                f"{len(old) - counted} file(s) were added to {self._store.url} before {last!r}, the last one read "
                f"(most recently written: {newest!r}). They would never be read. Give them names after {last!r}, or "
                "move them away."
            )
        self._progress(
            f"{self._store.url}: an earlier release stored the position of the source. It kept only the number of "
            f"files up to {last!r}, which was {counted}, not their names. The {len(old)} files that exist now are "
            "assumed to have been read."
        )
        for info in old:
            self._known.add(info.key, info)
        self._counted = None

    @property
    def assigns_late(self) -> bool:
        # Looks for files that come would more often find one before the name of the one before it: an error.
        source = self._source
        return source.bounded is not False and not source.limits and source.max_files_per_epoch is None

    def unread(self) -> Sequence[str]:
        rest = list(super().unread())
        if not self._store.root_exists():
            return rest  # files that were read may be deleted
        files = self._source.files(self._store)
        if self._counted is not None:
            return rest + [info.key for info in files if self._last is None or info.key > self._last]
        return rest + [info.key for info in files if not self._known.has_read(info.key, info)]

    def snapshot_state(self) -> Json:
        position: Json = {
            "last": self._last,
            "present": len(self._known),
            **super().snapshot_state(),
            **self._known.to_json(),
        }
        if self._counted is not None:  # nothing has been planned since the restore
            del position["files"]
            position["present"] = self._counted
        return position


def _measure(source: ParquetSource, split: SourceSplit) -> tuple[int, int]:
    """Measures a split by the footer of its file."""
    key, size, version = _file_of(split), split.properties["size"], split.properties["version"]
    with reading(f"{source.location.open().url}/{key}"):
        footer = _footer(source.location, key, size, version)
    first, stop = split.properties.get("row_groups", (0, footer.num_row_groups))
    rows = sum(footer.row_group(group).num_rows for group in range(first, stop))
    return rows, size * rows // max(footer.num_rows, 1)


@lru_cache(maxsize=64)
def _footer(location: StorageLocation, key: str, size: int, version: str) -> pq.FileMetaData:
    """Reads the footer of a file: once in a process, for all splits of the file."""
    store = location.open()
    with open_parquet(store, key, size, check=partial(check_unchanged, store, key, size, version)) as file:
        return file.metadata


def _file_of(split: SourceSplit) -> str:
    """Returns the name of the file that a split is a part of."""
    name: str = split.properties.get("file", split.split_id)
    return name


def row_group_ranges(rows: Sequence[int], share: float) -> list[tuple[int, int]]:
    """Divides row groups into ranges of neighbours, each with at least a share of all rows, between 0 and 1.

    Returns for each range its first row group, and the one after its last. Each row group is in one range, in order.
    """
    least, ranges, first, count = share * sum(rows), [], 0, 0
    for group, more in enumerate(rows):
        count += more
        if count and count >= least:
            ranges.append((first, group + 1))
            first, count = group + 1, 0
    if ranges and first < len(rows):
        ranges[-1] = (ranges[-1][0], len(rows))
    return ranges or [(0, len(rows))]


def _check_unique(schema: pa.Schema, names: Sequence[str]) -> None:
    twice = sorted(name for name in set(names) if schema.names.count(name) > 1)
    if twice:
        raise InputChangedError(
            f"it has column {', '.join(map(repr, twice))} more than once, so the name is ambiguous; "
            "write the file again, with columns of different names"
        )
