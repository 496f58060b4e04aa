"""Finds files for :class:`~dagster_flinkpy.datastream.connectors.file_system.FileSource`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from dagster_flinkpy.connectors.files.known_files import KnownFiles, PartitionRuns, some_of, version_of
from dagster_flinkpy.connectors.files.text_reader import TextFile, ends_of_records, location_of
from dagster_flinkpy.connectors.sources.input_files import input_files, reading
from dagster_flinkpy.connectors.sources.split_enumerators import (
    SPLITS_PER_SUBTASK,
    OpenEnumerator,
    OpenSplits,
    Quantity,
    SplitMeter,
)
from dagster_flinkpy.datastream.connectors.base import Json, SourceLag, SourceSplit, position_field
from dagster_flinkpy.datastream.connectors.file_system import FileSource
from dagster_flinkpy.errors import InputChangedError, SourceReadError, StorageError
from dagster_flinkpy.storage import ObjectInfo, StorageLocation

__all__ = ["FileEnumerator"]

_SPLIT_BYTES = 4 << 20
"""The smallest part of a file that is worth a split."""

_OPEN_SCANS = 8
"""How many files are kept open between two epochs, because they would have to be unpacked again."""


class FileEnumerator(OpenEnumerator[OpenSplits]):
    """Finds files; each becomes a split, or several, whatever its name.

    A file with an unknown name is new. If the size or version of a known file differs, it was changed after it was
    read, which is an error. A known file that was deleted and comes back as it was is still known; another file with
    its name is new.

    State: the known files, the runs of partitions that some of them are of, and the splits that are not yet read to the
    end.
    """

    def __init__(self, source: FileSource, restored: Json | None) -> None:
        splits = OpenSplits(source.limits, _TextMeter(source), root=str, key=str, size=int)
        super().__init__(source.limits, splits, source.discovery_interval)
        self._source, self._known, self._runs = source, KnownFiles(), PartitionRuns()
        self._names: frozenset[str] = frozenset()
        """Names of all files ever found, if an earlier release stored the position. Otherwise empty."""
        self._unnoted = False
        """Whether known files may be of partitions, because an earlier release stored the position."""
        self._bounded = source.bounded is not False
        self._listed = False
        if restored is not None:
            self._restore(restored)

    def _restore(self, position: Json) -> None:
        # A position that an earlier release stored lacks some parts.
        stored = position_field(position, "open", list)
        if "planned" not in position:
            stored = [_without_lines(split) for split in stored]
        self._listed = position_field(position, "listed", bool)
        ended = position.get("ended", self._bounded and self._listed) is True
        self._restore_open({"planned": 0, **position, "open": stored, "ended": ended})
        if "files" in position:
            self._known, self._runs = KnownFiles.from_json(position), PartitionRuns.from_json(position)
            self._unnoted = "runs" not in position
        else:
            self._names = frozenset(str(name) for name in position_field(position, "found", list))

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if not self._ended:
            self._find(parallelism)
        return self._open.shares(parallelism)

    def _find(self, parallelism: int) -> None:
        files = self._files(needed=self._bounded)
        for name in self._names & files.keys():
            self._known.add(name, files[name][1])
        self._names = frozenset()
        self._known.compare({name: info for name, (_, info) in files.items()})
        if changed := [n for n, (_, info) in files.items() if n in self._known and self._known.has_changed(n, info)]:
            raise InputChangedError(
                f"{some_of(changed)} changed after the source had read them. Their new content would never be read. "
                "Move them away, and write new data to new files. To read them again, start from a checkpoint before "
                "them, or from empty state."
            )
        self._check_runs(files)
        for name, (root, info) in files.items():
            if name not in self._known:
                self._known.add(name, info)
                self._divide(name, root, info, parallelism)
        self._listed, self._ended = True, self._bounded

    def _check_runs(self, files: Iterable[str]) -> None:
        """Checks that new files are of one run of each partition, the one that was read if any was."""
        runs, unnoted, self._unnoted = self._runs.copy(), self._unnoted, False
        for name in files if unnoted else ():
            if name in self._known:
                runs.note(name)
        for name in files:
            if name not in self._known:
                runs.add(name)
        self._runs = runs

    def _divide(self, name: str, root: StorageLocation, info: ObjectInfo, parallelism: int) -> None:
        properties = {"root": root.url, "key": info.key, "size": info.size, "version": version_of(info)}
        count = min(SPLITS_PER_SUBTASK * parallelism, info.size // _SPLIT_BYTES)
        file = TextFile(root.open(), info.key, info.size, self._source.stream_format)
        file.check_name()
        if parallelism == 1 or count < 2 or not file.is_divisible:
            self._open.open(name, properties)
            return
        ends = [info.size * i // count for i in range(count + 1)]
        for start, end in pairwise(ends):
            self._open.open(f"{name}[{start}:{end}]", {**properties, "end": end}, start)

    def _files(self, *, needed: bool, gone: bool = False) -> dict[str, tuple[StorageLocation, ObjectInfo]]:
        return {
            f"{root.url}/{info.key}": (root, info)
            for path in self._source.paths
            for root, info in _files(path, needed=needed, gone=gone)
        }

    def lag(self) -> SourceLag:
        return self._open.lag(len({(s.properties["root"], s.properties["key"]) for s in self._open.left()}))

    def unread(self) -> Sequence[str]:
        files = self._files(needed=False, gone=True)  # files that were read may be deleted
        new = [n for n, (_, i) in files.items() if n not in self._names and not self._known.has_read(n, i)]
        return [*super().unread(), *new]

    def finished(self) -> list[str]:
        """Returns the files that are there and were read to the end, as URLs."""
        open_files = {f"{split.properties['root']}/{split.properties['key']}" for split in self._open.left()}
        found = self._files(needed=False, gone=True)
        read = [n for n, (_, info) in found.items() if n in self._names or self._known.has_read(n, info)]
        return [name for name in read if name not in open_files]

    def snapshot_state(self) -> Json:
        position = {**super().snapshot_state(), "listed": self._listed, **self._runs.to_json()}
        # If there are names, nothing has been listed since the position of an earlier release was restored.
        return position | ({"found": sorted(self._names)} if self._names else self._known.to_json())


def _without_lines(split: Json) -> Json:
    """Converts a split of an earlier release, whose offset is a number of lines."""
    lines = position_field(split, "offset", int)
    return split if not lines else {**split, "properties": {**split["properties"], "lines": lines}, "offset": 0}


def _files(path: Any, *, needed: bool, gone: bool = False) -> list[tuple[StorageLocation, ObjectInfo]]:
    """Lists the files at a path: the file itself, or those below the folder, which may be ``gone``.

    If files are ``needed``, it is an error if there are none.
    """
    location = path if isinstance(path, StorageLocation) else StorageLocation(path)
    if location.url.startswith("s3:"):
        path = location.url
    elif isinstance(path, StorageLocation):
        path = unquote(urlsplit(location.url).path)
    parent, _, name = path.rstrip("/").rpartition("/")
    try:
        if name and not parent.endswith(":/"):
            folder = replace(location, url=parent or "/")
            info = next(iter(folder.open().list(name)), None)  # the shortest key comes first
            if info is not None and info.key == name:
                return [(folder, info)]
        store = location.open()
        found = [(location, info) for info in input_files(store)]
    except StorageError as error:
        raise SourceReadError(f"cannot list {path}: {error}") from error
    if not found and not gone and (needed or not store.root_exists()):
        raise SourceReadError(
            f"there is no file {path}, and no folder of this name with files in it. Check the path"
            + (", which may not be a pattern: name the folder" if set(path) & set("*?") else "")
            + ". If the first file is still to come, make the folder and declare monitor_continuously()"
        )
    return found


class _TextMeter(SplitMeter):
    """Measures splits of text. Their offsets are bytes. Records are counted by reading them."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._scans: OrderedDict[tuple[int, int], _Scan] = OrderedDict()
        """By split and offset."""

    def amount(self, split: SourceSplit) -> Quantity:
        file = self._file(split)
        end = split.properties.get("end", file.size)
        return Quantity(None, end - split.offset if file.is_divisible else file.size)

    def advance(self, split: SourceSplit, offset: int, most: Quantity, least: int) -> tuple[int | None, Quantity]:
        file = self._file(split)
        if file.is_divisible and most.records is None and most.bytes is not None:
            end = split.properties.get("end", file.size)
            stop = min(offset + most.bytes, end)
            return None if stop == end else stop, Quantity(None, stop - offset)
        number = split.properties["number"]
        with reading(f"{split.properties['root']}/{split.properties['key']}"):
            scan = self._scans.pop((number, offset), None) or _Scan(file, offset, split.properties.get("end"))
            ended, used = scan.take(most, least)
        if ended:
            return None, used
        self._scans[number, scan.position] = scan
        if len(self._scans) > _OPEN_SCANS:
            self._scans.popitem(last=False)
        return scan.position, used

    def _file(self, split: SourceSplit) -> TextFile:
        properties = split.properties
        store = location_of(self._source, properties["root"]).open()
        return TextFile(store, properties["key"], properties["size"], self._source.stream_format)


class _Scan:
    """Counts the records of a file from a position on."""

    def __init__(self, file: TextFile, position: int, end: int | None) -> None:
        self.position = position
        self._blocks = file.blocks(position, end)
        self._quote = file.quote
        self._rest = b""

    def take(self, most: Quantity, least: int) -> tuple[bool, Quantity]:
        """Moves on. Returns whether the end was reached, and how much that was."""
        records = size = 0
        while self._rest or self._fetch():
            ends = ends_of_records(self._rest, self._quote)
            if not len(ends) or ends[-1] < len(self._rest):  # the last line of a file needs no end
                ends = np.append(ends, len(self._rest))
            count = len(ends) if most.records is None else min(len(ends), most.records - records)
            if most.bytes is not None:
                count = min(count, sum(1 for end in ends if end <= most.bytes - size))
            count = max(count, 0 if records else least)
            if count:
                length = int(ends[count - 1])
                self._rest = self._rest[length:]
                self.position += length
                records, size = records + count, size + length
            if self._rest:
                return False, Quantity(records, size)
        return True, Quantity(records, size)

    def _fetch(self) -> bool:
        self._rest, end = next(self._blocks, (b"", self.position))
        self.position = end - len(self._rest)
        return bool(self._rest)
