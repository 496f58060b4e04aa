"""Executes :class:`~dagster_flinkpy.datastream.connectors.file_system.FileSource`: reads text files line by line."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa

from dagster_flinkpy.connectors.known_files import KnownFiles, check_unchanged, some_of, version_of
from dagster_flinkpy.connectors.ranged_file import RangedFile
from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit, SplitEnumerator, position_field
from dagster_flinkpy.datastream.connectors.file_system import FileSource
from dagster_flinkpy.errors import SourceReadError, StorageError
from dagster_flinkpy.storage import ObjectInfo, StorageLocation

__all__ = ["FileEnumerator", "read_lines"]

_BATCH_LINES = 8192
_BUFFER_BYTES = 1 << 20


class FileEnumerator(SplitEnumerator):
    """Finds files; each becomes one split, whatever its name.

    A file with an unknown name is new. If the size or version of a known file differs, it was changed after it was
    read, which is an error. A known file that was deleted is forgotten, so a later file with its name is new.

    State: the known files that still exist, and the splits that are not yet read to the end.

    Args:
        source: What to read.
        restored: State of an earlier enumerator.
    """

    def __init__(self, source: FileSource, restored: Json | None) -> None:
        self._source = source
        self._known = KnownFiles()
        self._names: frozenset[str] = frozenset()
        """Names of all files ever found, if an earlier release stored the position. Otherwise empty."""
        self._open: dict[str, SourceSplit] = {}
        self._bounded = source.bounded is not False
        self._listed = self._ended = False
        if restored is not None:
            self._restore(restored)

    def _restore(self, position: Json) -> None:
        for split in map(SourceSplit.from_json, position_field(position, "open", list)):
            for name, kind in (("root", str), ("key", str), ("size", int)):
                position_field(split.properties, name, kind)
            self._open[split.split_id] = split
        self._listed = position_field(position, "listed", bool)
        # A position that an earlier release stored does not say so.
        self._ended = position.get("ended", self._bounded and self._listed) is True
        if "files" in position:
            self._known = KnownFiles.from_json(position_field(position, "files", str))
        else:
            self._names = frozenset(str(name) for name in position_field(position, "found", list))

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if not self._ended:
            self._find()
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        for number, split in enumerate(self._open.values()):
            shares[number % parallelism].append(split)
        return shares

    def _find(self) -> None:
        files = self._files(needed=self._bounded)
        for name in self._names & files.keys():
            self._known.add(name, files[name][1])
        self._names = frozenset()
        if changed := [n for n, (_, info) in files.items() if n in self._known and self._known.has_changed(n, info)]:
            raise SourceReadError(
                f"{some_of(changed)} changed after the source had read them. Their new content would never be read. "
                "Move them away, and write new data to new files. To read them again, start from a checkpoint before "
                "them, or from empty state."
            )
        self._known.retain(files)
        for name, (root, info) in files.items():
            if name not in self._known:
                self._known.add(name, info)
                properties = {"root": root.url, "key": info.key, "size": info.size, "version": version_of(info)}
                self._open[name] = SourceSplit(name, properties)
        self._listed, self._ended = True, self._bounded

    def _files(self, *, needed: bool, gone: bool = False) -> dict[str, tuple[StorageLocation, ObjectInfo]]:
        return {
            f"{root.url}/{info.key}": (root, info)
            for path in self._source.paths
            for root, info in _files(path, needed=needed, gone=gone)
        }

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            if split.finished:
                self._open.pop(split.split_id, None)
            else:
                self._open[split.split_id] = split

    @property
    def exhausted(self) -> bool:
        return self._ended

    def unread(self) -> Sequence[str]:
        files = self._files(needed=False, gone=True)  # files that were read may be deleted
        known, names = self._known, self._names
        return [n for n, (_, i) in files.items() if n not in names and (n not in known or known.has_changed(n, i))]

    def snapshot_state(self) -> Json:
        position: Json = {
            "open": [split.to_json() for split in self._open.values()],
            "listed": self._listed,
            "ended": self._ended,
        }
        # If there are names, nothing has been listed since the position of an earlier release was restored.
        return position | ({"found": sorted(self._names)} if self._names else {"files": self._known.to_json()})


def _files(path: str, *, needed: bool, gone: bool = False) -> list[tuple[StorageLocation, ObjectInfo]]:
    """Lists the files at a path: the file itself, or those below the folder.

    Args:
        path: A file or a folder.
        needed: Whether it is an error if there are no files.
        gone: Whether the folder may be missing.
    """
    location = StorageLocation(path)
    parent, _, name = path.rstrip("/").rpartition("/")
    try:
        if name and not parent.endswith(":/"):
            folder = StorageLocation(parent or "/")
            info = next((info for info in folder.open().list(name) if info.key == name), None)
            if info is not None:
                return [(folder, info)]
        store = location.open()
        found = [(location, info) for info in store.list() if not _hidden(info.key)]
    except StorageError as error:
        raise SourceReadError(f"cannot list {path}: {error}") from error
    if not found and not gone and (needed or not store.root_exists()):
        raise SourceReadError(
            f"there is no file {path}, and no folder of this name with files in it. Check the path. If the first file "
            "is still to come, make the folder and declare monitor_continuously()"
        )
    return found


def _hidden(key: str) -> bool:
    return any(part.startswith((".", "_")) for part in key.split("/"))


def read_lines(source: FileSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
    """Yields the lines of a file from an offset on, batch by batch.

    Raises:
        SourceReadError: The file cannot be read; the message names it.
    """
    properties, offset = split.properties, split.offset
    charset = source.stream_format.charset_name
    store, key = StorageLocation(properties["root"]).open(), properties["key"]
    try:
        check_unchanged(store, key, properties["size"], properties.get("version"))
        raw = RangedFile(store, key, properties["size"])
        with io.TextIOWrapper(io.BufferedReader(raw, _BUFFER_BYTES), encoding=charset) as text:
            lines = (line.rstrip("\n") for line in islice(text, offset, None))
            while batch := list(islice(lines, _BATCH_LINES)):
                offset += len(batch)
                yield pa.array(batch, type=pa.string()), offset
    except (StorageError, OSError, UnicodeError, SourceReadError) as error:
        raise SourceReadError(f"cannot read {split.split_id}: {error}") from error
