"""What executes :class:`~dagster_flinkpy.datastream.connectors.file_system.FileSource`: text files, line by line."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import islice

import pyarrow as pa

from dagster_flinkpy.connectors.ranged_file import RangedFile
from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit, SplitEnumerator
from dagster_flinkpy.datastream.connectors.file_system import FileSource
from dagster_flinkpy.errors import SourceReadError, StorageError
from dagster_flinkpy.storage import ObjectInfo, StorageLocation

__all__ = ["FileEnumerator", "read_lines"]

_BATCH_LINES = 8192
_BUFFER_BYTES = 1 << 20


class FileEnumerator(SplitEnumerator):
    """Finds files; each becomes one split. State: the names of all files found, and the splits not read to their end.

    Args:
        source: What to read.
        restored: State of an earlier one.
    """

    def __init__(self, source: FileSource, restored: Json | None) -> None:
        state = restored or {"found": [], "open": [], "listed": False}
        self._source = source
        self._found: dict[str, None] = dict.fromkeys(state["found"])
        self._open = {split.split_id: split for split in map(SourceSplit.from_json, state["open"])}
        self._listed: bool = state["listed"]

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if not (self._source.bounded and self._listed):
            for path in self._source.paths:
                for root, info in _files(path):
                    split_id = f"{root.url}/{info.key}"
                    if split_id not in self._found:
                        self._found[split_id] = None
                        properties = {"root": root.url, "key": info.key, "size": info.size}
                        self._open[split_id] = SourceSplit(split_id, properties)
            self._listed = True
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        for number, split in enumerate(self._open.values()):
            shares[number % parallelism].append(split)
        return shares

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        for split in splits:
            if split.finished:
                self._open.pop(split.split_id, None)
            else:
                self._open[split.split_id] = split

    @property
    def exhausted(self) -> bool:
        return self._source.bounded and self._listed

    def snapshot_state(self) -> Json:
        return {
            "found": list(self._found),
            "open": [split.to_json() for split in self._open.values()],
            "listed": self._listed,
        }


def _files(path: str) -> list[tuple[StorageLocation, ObjectInfo]]:
    """The files of a path: itself, or those below it."""
    location = StorageLocation(path)
    parent, _, name = path.rstrip("/").rpartition("/")
    try:
        if name and not parent.endswith(":/"):
            folder = StorageLocation(parent or "/")
            info = folder.open().head(name)
            if info is not None:
                return [(folder, info)]
        found = [(location, info) for info in location.open().list() if not _hidden(info.key)]
    except StorageError as error:
        raise SourceReadError(f"cannot list {path}: {error}") from error
    if not found:
        raise SourceReadError(f"there is no file {path}, and no folder with files of this name")
    return found


def _hidden(key: str) -> bool:
    return any(part.startswith((".", "_")) for part in key.split("/"))


def read_lines(source: FileSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
    """The lines of a file from an offset on, batch by batch.

    Raises:
        SourceReadError: It cannot be read; names the file.
    """
    properties, offset = split.properties, split.offset
    charset = source.stream_format.charset_name
    try:
        raw = RangedFile(StorageLocation(properties["root"]).open(), properties["key"], properties["size"])
        with io.TextIOWrapper(io.BufferedReader(raw, _BUFFER_BYTES), encoding=charset) as text:
            lines = (line.rstrip("\n") for line in islice(text, offset, None))
            while batch := list(islice(lines, _BATCH_LINES)):
                offset += len(batch)
                yield pa.array(batch, type=pa.string()), offset
    except (StorageError, OSError, UnicodeError) as error:
        raise SourceReadError(f"cannot read {split.split_id}: {error}") from error
