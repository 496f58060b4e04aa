"""Local copies of runs as Arrow files, memory-mapped and found by content hash (Flink: local recovery).

Any number of processes may share a directory. A file appears under its name complete or not at all. It has a checksum
that each process verifies at first use, and it is rebuilt from the store if it is missing or damaged.
"""

from __future__ import annotations

import copy
import errno
import os
import shutil
import struct
import time
import uuid
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import StorageError
from dagster_flinkpy.state.files.packed_columns import (
    ColumnReader,
    SortKeyColumn,
    gather,
    pack_rows,
    packing_of,
    reader_of,
)
from dagster_flinkpy.state.files.run_file import read_run
from dagster_flinkpy.state.handles import RunHandle
from dagster_flinkpy.state.layout import SortKeys
from dagster_flinkpy.state.schema_evolution import evolve
from dagster_flinkpy.storage import ObjectStore

__all__ = ["MAX_TIME", "MIN_TIME", "Rows", "Run", "RunCache", "TimedRun", "make_time_order", "take_all"]

_TRAILER = struct.Struct("<8sQI")
"""The magic number, the number of bytes before the trailer, and their checksum."""
_MAGIC = b"FLNKRUN3"
_PAGE = 4096
_PACKED = 1 << 20
"""Copies of at least this many bytes are packed."""
_ABANDONED_AFTER = 3600.0
"""A temporary file that is older than this many seconds was left by a killed process."""

_verified: set[tuple[str, int, int]] = set()
"""Path, inode and modification time of the files that this process has verified or written."""
_MOST_VERIFIED = 1 << 14
"""How many files are remembered. If there are more, all are forgotten, and each is verified again at its next use."""

_LOOK_AFTER = 1 << 26
"""After how many written bytes a process looks for files to delete: looking at all takes longer than writing one."""
_written: dict[Path, int] = {}
"""How many bytes this process has written to each directory since it last looked."""

Indices = npt.NDArray[np.int64]


class Rows:
    """Rows of a file: memory-mapped, or in memory if they are part of the metadata."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.packings = {field.name: packing for field in batch.schema if (packing := packing_of(field.type))}
        """How columns are packed."""
        kinds = {name: packing.kind for name, packing in self.packings.items()}
        self.schema = pa.schema([f.with_type(kinds.get(f.name, f.type)) for f in batch.schema])
        """The schema of the rows when they are not packed."""
        self.batch = batch
        self.sort_keys = SortKeyColumn(batch.column("sort_key"))
        self._readers: dict[str, ColumnReader | None] = {}

    def slice(self, name: str, start: int, stop: int) -> pa.Array[Any]:
        """Returns a column of consecutive rows: a view, unless it is packed."""
        column, packing = self.batch.column(name).slice(start, stop - start), self.packings.get(name)
        return column if packing is None else packing.unpack(column)

    def reader(self, name: str) -> ColumnReader | None:
        """Returns what reads a column, or None if only :meth:`take` does."""
        if name not in self._readers:
            self._readers[name] = reader_of(self.batch.column(name), self.packings.get(name))
        return self._readers[name]

    def take(self, name: str, rows: Indices) -> pa.Array[Any]:
        """Returns a column of some rows."""
        taken, packing = self.batch.column(name).take(pa.array(rows)), self.packings.get(name)
        return taken if packing is None else packing.unpack(taken)


class Run:
    """The rows of a handle. They stay in place, and are copied only when they are requested."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.start, self.stop = 0, len(rows.sort_keys)
        self._value_types: Sequence[TypeInformation] = ()
        self.time_order: Indices | None = None
        """The order of timers by time; None until :meth:`RunCache.time_order` sets it."""

    @property
    def sort_keys(self) -> SortKeys:
        """The sort keys, in ascending order."""
        sort_keys: SortKeys = self.column("sort_key").to_numpy()
        return sort_keys

    @property
    def span(self) -> range:
        """The sort keys from the first row to the last."""
        if self.start == self.stop:
            return range(0)
        return range(self._rows.sort_keys[self.start], self._rows.sort_keys[self.stop - 1] + 1)

    @property
    def nbytes(self) -> int:
        """The bytes of the rows where they are."""
        return int(self._rows.batch.slice(self.start, len(self)).nbytes)

    def below(self, sort_key: int) -> int:
        """Returns how many rows have a smaller sort key."""
        return self._rows.sort_keys.place(sort_key, self.start, self.stop) - self.start

    def within(self, span: range) -> Run:
        """Returns the rows whose sort keys are in a range, in place."""
        run = copy.copy(self)
        run.time_order = None
        run.start, run.stop = (self.start + self.below(bound) for bound in (span.start, span.stop))
        return run

    def evolved(self, value_types: Sequence[TypeInformation]) -> Run:
        """Returns the run with values of another type, which are converted when they are requested.

        Args:
            value_types: The declared types, from the type of the stored values to the type of the table.
        """
        run = copy.copy(self)
        run._value_types = value_types
        return run

    @staticmethod
    def of(table: pa.Table) -> Run:
        """Returns the rows of a table, held in memory."""
        (batch,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        return Run(Rows(batch))

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def schema(self) -> pa.Schema:
        """The schema of the stored rows."""
        return self._rows.schema

    def find(self, sort_keys: SortKeys) -> tuple[Indices, Indices]:
        """Finds the rows with given sort keys.

        Returns:
            Pairs of an index into ``sort_keys`` and a row of the run.
        """
        return self._rows.sort_keys.find(sort_keys, self.start, self.stop)

    def column(self, name: str) -> pa.Array[Any]:
        """Returns a column, as a view if it is stored as it is."""
        return self._evolve(name, self._rows.slice(name, self.start, self.stop))

    def take(self, name: str, rows: Indices) -> pa.Array[Any]:
        """Returns the values of a column in some rows."""
        return take_all([(self, rows)], name)

    def value(self, name: str, row: int) -> Any:
        """Returns the value of a column in one row, and looks at no other one."""
        at = self.start + row
        return self._evolve(name, self._rows.slice(name, at, at + 1))[0].as_py()

    def _reader(self, name: str) -> ColumnReader | None:
        return None if self._value_types and name == "value" else self._rows.reader(name)

    def rows(self, rows: Indices) -> pa.Table:
        """Returns some rows, as a table."""
        return self._table([self.take(name, rows) for name in self.schema.names])

    def table(self) -> pa.Table:
        """Returns all rows."""
        return self._table([self.column(name) for name in self.schema.names])

    def _table(self, columns: list[pa.Array[Any]]) -> pa.Table:
        schema = self.schema
        if self._value_types:
            schema = pa.schema([field.with_type(each.type) for field, each in zip(schema, columns, strict=True)])
        return pa.table(columns, schema=schema)

    def _evolve(self, name: str, column: pa.Array[Any]) -> pa.Array[Any]:
        return evolve(column, self._value_types) if self._value_types and name == "value" else column


def take_all(found: Sequence[tuple[Run, Indices]], name: str) -> pa.Array[Any]:
    """Returns the values of a column in some rows of each of several runs, run by run.

    Args:
        found: The runs of a table, at least one, with their rows.
        name: The column.
    """
    parts = []
    for fast, group in groupby(found, lambda each: each[0]._reader(name) is not None):
        own = [(run, rows + run.start) for run, rows in group]
        if fast:
            readers, rows = [run._reader(name) for run, _ in own], [rows for _, rows in own]
            parts.append(gather(readers, rows, own[0][0].schema.field(name).type))
        else:
            # Not from the slice: Arrow would count its nulls, which takes time proportional to the run.
            parts += [run._evolve(name, run._rows.take(name, rows)) for run, rows in own]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


class RunCache:
    """Keeps runs by content hash in a local directory, and drops the least recently used ones first.

    It keeps as much as the disk then still has free. The last written run always stays. Each process may briefly exceed
    the limit.

    Args:
        directory: The directory, which processes may share. It is created if it does not exist.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()
        self.hits = 0
        """Runs found in the cache."""
        self.misses = 0
        """Runs read from the store."""

    def open(self, handle: RunHandle, store: ObjectStore) -> Run:
        """Returns the rows of a handle; reads them from the store if they are not in the cache.

        Raises:
            CorruptStateError: The file in the store is missing or damaged.
            StorageError: The store or the local directory cannot be used.
        """
        if handle.data is not None:
            return Run.of(read_run(handle, store)[0]).within(handle.span)
        parts = _file_name(handle, whole=False)
        for name in dict.fromkeys((_file_name(handle, whole=True), parts)):
            batch = self._map(self.directory / name)
            if batch is not None:
                self.hits += 1
                return Run(Rows(batch)).within(handle.span)
        self.misses += 1
        table, whole = read_run(handle, store)
        return Run(self._keep(_file_name(handle, whole=whole), table)).within(handle.span)

    def put(self, handle: RunHandle, table: pa.Table) -> Run:
        """Keeps a run that was just written to the store.

        Args:
            handle: The handle of the whole run.
            table: The rows of the run, with ``local_schema``.
        """
        path = self.directory / _file_name(handle, whole=True)
        batch = self._map(path)
        return Run(self._keep(path.name, table) if batch is None else Rows(batch))

    def time_order(self, handle: RunHandle, run: Run) -> Indices:
        """Returns the rows of a run of timers in order of time; see :func:`make_time_order`. Caches them with the run.

        Raises:
            StorageError: The local directory cannot be written.
        """
        if run.time_order is None and handle.data is not None:
            run.time_order = make_time_order(run)
        elif run.time_order is None:
            name = _name_by_time(_file_name(handle, whole=False))
            batch = self._map(self.directory / name)
            if batch is None:
                made = pa.RecordBatch.from_arrays([pa.array(make_time_order(run))], names=["row"])
                batch = self._write(name, made)
            run.time_order = batch.column("row").to_numpy()
        return run.time_order

    def drop(self, handle: RunHandle) -> None:
        """Deletes the copies of a run. Processes that have mapped them keep their mapping."""
        for name in dict.fromkeys(_file_name(handle, whole=whole) for whole in (True, False)):
            for each in (name, _name_by_time(name)):
                with suppress(OSError):
                    (self.directory / each).unlink()

    def _keep(self, name: str, table: pa.Table) -> Rows:
        """Writes a copy, and returns its rows."""
        batches = table.combine_chunks().to_batches()
        if len(batches) != 1:
            raise StorageError(
                f"state run {name} has {len(batches)} record batches instead of one, because a string column is above "
                "2 GiB"
            )
        is_large = batches[0].nbytes >= _PACKED
        return Rows(self._write(name, pack_rows(batches[0]) if is_large else batches[0]))

    def _map(self, path: Path) -> pa.RecordBatch | None:
        """Memory-maps a file. If it is damaged, deletes it and returns None."""
        try:
            with pa.memory_map(str(path)) as source:
                buffer = source.read_buffer()
            stat = path.stat()
            identity = (str(path), stat.st_ino, stat.st_mtime_ns)
            if len(buffer) < _TRAILER.size:
                raise ValueError("truncated")
            body = buffer.slice(0, len(buffer) - _TRAILER.size)
            magic, size, checksum = _TRAILER.unpack(buffer.slice(len(body)).to_pybytes())
            if (magic, size) != (_MAGIC, len(body)):
                raise ValueError("truncated")
            if identity not in _verified and _checksum(body) != checksum:
                raise ValueError("damaged")
            batch = pa.ipc.open_file(pa.BufferReader(body)).get_batch(0)
            os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))  # The access time orders the eviction.
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            with suppress(OSError):
                path.unlink()
            return None
        _remember(identity)
        return batch

    def _write(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            try:
                return self._write_file(name, batch)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                self._evict(name)  # which nobody has done since others have filled the disk
                return self._write_file(name, batch)
        except OSError as error:
            raise StorageError(
                f"the state cache {self.directory} cannot be written: {error}. Make room there, or set TMPDIR where "
                "Dagster runs to a folder that all workers can write to"
            ) from error

    def _write_file(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        path = self.directory / name
        temporary = path.with_name(f"{name}.{uuid.uuid4().hex}.tmp")
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
                writer.write_batch(batch)
            with pa.memory_map(str(temporary)) as source:
                body = source.read_buffer()
            trailer = _TRAILER.pack(_MAGIC, len(body), _checksum(body))
            with temporary.open("ab") as file:
                file.write(trailer)
            stat = temporary.stat()
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        _remember((str(path), stat.st_ino, stat.st_mtime_ns))
        written = _written.get(self.directory, _LOOK_AFTER) + stat.st_size
        _written[self.directory] = written if written < _LOOK_AFTER else 0
        if written >= _LOOK_AFTER:
            self._evict(name)
        return pa.ipc.open_file(pa.BufferReader(body)).get_batch(0)

    def _evict(self, keep: str) -> None:
        """Deletes abandoned files, and the least recently used ones, which stay mapped where they are.

        Args:
            keep: The file that was just written.
        """
        files = []
        for entry in os.scandir(self.directory):
            with suppress(FileNotFoundError):  # Another process may be evicting too.
                stat = entry.stat()
                if entry.name.endswith(".tmp") and time.time() - stat.st_mtime > _ABANDONED_AFTER:
                    os.unlink(entry.path)
                elif entry.name.endswith(".arrow"):
                    files.append((stat.st_atime_ns, stat.st_size, entry.path, entry.name))
        excess = (sum(size for _, size, _, _ in files) - shutil.disk_usage(self.directory).free) // 2
        for _, size, path, name in sorted(files):
            if excess <= 0:
                return
            if name != keep:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                excess -= size


def _remember(identity: tuple[str, int, int]) -> None:
    if len(_verified) >= _MOST_VERIFIED:
        _verified.clear()
    _verified.add(identity)


def make_time_order(run: Run) -> Indices:
    """Returns the rows of a run of timers: first the live timers by time, then the tombstones by time."""
    # times: int64, deleted: bool, one a row of the run.
    times = run.column("time").to_numpy()
    deleted = run.column("deleted").to_numpy(zero_copy_only=False)
    kinds = (np.flatnonzero(~deleted), np.flatnonzero(deleted))
    return np.concatenate([rows[np.argsort(times[rows])] for rows in kinds])


def _checksum(body: pa.Buffer) -> int:
    """Returns a CRC-32 of the sums of all pages. A damaged, lost or moved page changes it. As fast as memory."""
    # words: uint64, a row for each whole page. sums: uint64, one a page.
    pages = len(body) // _PAGE
    words = np.frombuffer(body, dtype=np.uint64, count=pages * _PAGE // 8).reshape(pages, _PAGE // 8)
    sums = words.sum(axis=1, dtype=np.uint64)
    return zlib.crc32(memoryview(body)[pages * _PAGE :], zlib.crc32(sums))


def _name_by_time(name: str) -> str:
    return f"{name.removesuffix('.arrow')}-by-time.arrow"


def _file_name(handle: RunHandle, *, whole: bool) -> str:
    if whole or handle.is_whole:
        return f"{handle.sha256}.arrow"
    return f"{handle.sha256}-{handle.key_groups.start}-{handle.key_groups.end}.arrow"


MIN_TIME, MAX_TIME = -(1 << 63), (1 << 63) - 1
"""The least and the greatest time, in milliseconds."""


@dataclass(frozen=True)
class TimedRun:
    """A run whose rows are found by time, with a binary search that reads few other rows."""

    run: Run
    order: Indices
    """The rows in order: first the live timers by time, then the tombstones by time."""
    fired_before: int
    """The timers before this time, in milliseconds, have fired or were deleted."""

    def rows(self, start: int, stop: int, *, deleted: bool = False) -> Indices:
        """Returns the rows in a range of times.

        Args:
            start: The first time, in milliseconds; timers that have fired are left out.
            stop: The last time, in milliseconds, inclusive.
            deleted: Whether to return the tombstones instead of the timers. Default: False.
        """
        if not deleted:
            start = max(start, self.fired_before)
        first = self._from(deleted, start)
        last = bisect_right(self.order, (deleted, stop), lo=first, key=self._at)
        return self.order[first:last]

    def next_time(self, start: int) -> int:
        """Returns the time of the first unfired timer at or after a time, or more than ``MAX_TIME`` if none."""
        first = self._from(False, max(start, self.fired_before))
        deleted, time = self._at(self.order[first]) if first < len(self.order) else (True, 0)
        return MAX_TIME + 1 if deleted else time

    def _from(self, deleted: bool, start: int) -> int:
        return bisect_left(self.order, (deleted, start), key=self._at)

    def _at(self, row: np.int64) -> tuple[bool, int]:
        return self.run.value("deleted", int(row)), self.run.value("time", int(row))
