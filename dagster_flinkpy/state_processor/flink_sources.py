"""The positions of sources of Flink as those of sources here, and the other way round."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dagster_flinkpy.connectors.files.file_source import FileEnumerator
from dagster_flinkpy.datastream.connectors.base import SourceSplit, position_field
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.connectors.kafka_source import KafkaSource
from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource
from dagster_flinkpy.errors import UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.connector_state import (
    file_split,
    files_coordinator,
    found_files,
    kafka_partitions,
    number_splits,
    numbers_coordinator,
)
from dagster_flinkpy.storage import StorageLocation

__all__ = ["coordinator_of", "file_place", "position_of"]


def position_of(source: Any, coordinator: bytes, splits: Sequence[bytes], what: str) -> dict[str, Any]:
    """Returns where a source goes on that has been read in Flink.

    Args:
        source: The source of the program.
        coordinator: The state of its coordinator in Flink.
        splits: The splits of its readers.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: The position cannot be expressed here. The message says why.
        CorruptStateError: The state is damaged.
    """
    if isinstance(source, FileSource):
        return _of_files(source, coordinator, splits, what)
    if isinstance(source, NumberSequenceSource):
        return _of_numbers(source, coordinator, splits, what)
    if isinstance(source, KafkaSource):
        return _of_kafka(source, coordinator, splits, what)
    raise UnsupportedSavepointError(
        f"{what} is a {type(source).__name__}; positions of a FileSource, a NumberSequenceSource and a KafkaSource are "
        "imported"
    )


def coordinator_of(source: Any, position: dict[str, Any], what: str) -> bytes:
    """Returns the state of the coordinator of a source of Flink that goes on at a position of a source here.

    Args:
        source: The source of the program.
        position: Its position.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: The position cannot be expressed in Flink. The message says why.
        SourceReadError: The files of the source cannot be listed.
    """
    if isinstance(source, FileSource):
        enumerator = FileEnumerator(source, position)
        if unread := position_field(position, "open", list):
            raise UnsupportedSavepointError(
                f"{what} is about to read, or reads, {len(unread)} parts of files. Take the savepoint when it has read "
                "all files"
            )
        return files_coordinator([re.sub(r"^file:/+", "file:/", name) for name in enumerator.finished()])
    if isinstance(source, NumberSequenceSource):
        first, last = source.bounds
        return numbers_coordinator(first + position_field(position, "next", int), last)
    raise UnsupportedSavepointError(
        f"{what} is a {type(source).__name__}; positions of a FileSource and a NumberSequenceSource are exported"
    )


def _of_files(source: FileSource, coordinator: bytes, splits: Sequence[bytes], what: str) -> dict[str, Any]:
    found = found_files(coordinator, what)
    unread = [*found.pending, *(file_split(each, what) for each in splits)]
    is_text = type(source.stream_format) is StreamFormat
    if any(each.records and not (is_text and each.is_whole and each.records > 0) for each in unread):
        raise UnsupportedSavepointError(
            f"{what} reads parts of files, and only of files of plain lines it is known which of them were read. Take "
            "the savepoint when it has read all files, and before it finds new ones"
        )
    roots = [StorageLocation(each if isinstance(each, str) else each.url) for each in source.paths]
    # Flink does not keep versions of files, so they are known by name only.
    names = ["/".join(file_place(path, roots, what)) for path in found.paths]
    rest = []
    for split in unread:
        root, key = file_place(split.path, roots, what)
        properties = {"root": root, "key": key, "size": split.size, "lines": split.records}
        rest.append(SourceSplit(f"{root}/{key}", properties).to_json())
    return {"found": names, "open": rest, "listed": True, "ended": False}


def file_place(path: str, roots: Sequence[StorageLocation], what: str) -> tuple[str, str]:
    """Returns the folder of a source here that has a file, and the file's name in it.

    Args:
        path: The file as another system names it.
        roots: The paths of the source.
        what: The operator, for messages.

    Raises:
        UnsupportedSavepointError: The file is in none of them.
    """
    local = re.sub(r"^file:/+", "/", path)
    url = re.sub(r"^s3[an]://", "s3://", path)
    for root in roots:
        if root.local_path is not None and local.startswith("/"):
            file = Path(local)
            if file.is_relative_to(root.local_path):
                parent = root if file != root.local_path else StorageLocation(str(file.parent))
                assert parent.local_path is not None
                return parent.url, file.relative_to(parent.local_path).as_posix()
        elif url.startswith(f"{root.url}/"):
            return root.url, url.removeprefix(f"{root.url}/")
        elif url == root.url:
            folder, _, name = url.rpartition("/")
            return folder, name
    raise UnsupportedSavepointError(
        f"{what} has read {path}, which is in none of the paths of the program's source: "
        f"{', '.join(root.url for root in roots)}. If files were moved they would be read again; let the source read "
        "them where they were"
    )


def _of_kafka(source: KafkaSource, coordinator: bytes, splits: Sequence[bytes], what: str) -> dict[str, Any]:
    found, waiting = kafka_partitions(coordinator, splits, what)
    waiting |= {(each.topic, each.partition) for each in found if each.offset < 0}
    if waiting:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(waiting))
        raise UnsupportedSavepointError(
            f"{what} has partitions that are not being read: {names}. Take the savepoint when it has begun with all, "
            "and before it ends one"
        )
    if any(each.stop is not None for each in found) != source.bounded:
        raise UnsupportedSavepointError(
            f"{what} {'does not end' if source.bounded else 'ends'} in Flink, but the program's source "
            f"{'ends' if source.bounded else 'does not'}"
        )
    stops = [each for each in found if each.stop is not None]
    if any(each.stop is None or each.stop < 0 for each in stops):
        raise UnsupportedSavepointError(f"{what} ends at an offset that Flink has not looked up yet")
    return {
        "next": [[each.topic, each.partition, each.offset] for each in found],
        "stops": [[each.topic, each.partition, each.stop] for each in stops],
        "open": [],
        "ended": False,
    }


def _of_numbers(source: NumberSequenceSource, coordinator: bytes, splits: Sequence[bytes], what: str) -> dict[str, Any]:
    first, last = source.bounds
    unread = number_splits(coordinator, splits, what)
    start = unread[0].next if unread else last + 1
    for split in unread:
        if split.next != start:
            raise UnsupportedSavepointError(
                f"{what} has read numbers in {len(unread)} parts, and the first unread number of each but the first is "
                "not where the part before it ends. Here numbers are read in order; run it with parallelism 1"
            )
        start = split.last + 1
    position = unread[0].next if unread else last + 1
    if start != last + 1 or position < first:
        raise UnsupportedSavepointError(
            f"{what} has numbers to {start - 1} to read, but the program's source has {first} to {last}"
        )
    return {"next": position - first, "ended": position > last}
