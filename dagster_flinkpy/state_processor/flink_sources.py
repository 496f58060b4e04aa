"""The positions of sources of Flink as those of sources here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dagster_flinkpy.datastream.connectors.file_system import FileSource
from dagster_flinkpy.datastream.connectors.number_seq import NumberSequenceSource
from dagster_flinkpy.errors import UnsupportedSavepointError
from dagster_flinkpy.flink_savepoint.source_positions import found_files, number_splits
from dagster_flinkpy.storage import StorageLocation

__all__ = ["position_of"]


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
    raise UnsupportedSavepointError(
        f"{what} is a {type(source).__name__}; positions of a FileSource and a NumberSequenceSource are imported"
    )


def _of_files(source: FileSource, coordinator: bytes, splits: Sequence[bytes], what: str) -> dict[str, Any]:
    found = found_files(coordinator, what)
    if found.pending or splits:
        raise UnsupportedSavepointError(
            f"{what} is about to read, or reads, {found.pending + len(splits)} parts of files, and only files that are "
            "read to the end are known. Take the savepoint when it has read all files, and before it finds new ones"
        )
    roots = [StorageLocation(each if isinstance(each, str) else each.url) for each in source.paths]
    names = [_name(path, roots, what) for path in found.paths]
    # Flink does not keep versions of files, so they are known by name only.
    return {"found": names, "open": [], "listed": True, "ended": False}


def _name(path: str, roots: Sequence[StorageLocation], what: str) -> str:
    """Returns what a file is called in the position of a source here."""
    local = re.sub(r"^file:/+", "/", path)
    url = re.sub(r"^s3[an]://", "s3://", path)
    for root in roots:
        if root.local_path is not None and local.startswith("/"):
            file = Path(local)
            if file.is_relative_to(root.local_path):
                parent = root if file != root.local_path else StorageLocation(str(file.parent))
                assert parent.local_path is not None
                return f"{parent.url}/{file.relative_to(parent.local_path).as_posix()}"
        elif url.startswith(f"{root.url}/") or url == root.url:
            return url
    raise UnsupportedSavepointError(
        f"{what} has read {path}, which is in none of the paths of the program's source: "
        f"{', '.join(root.url for root in roots)}. If files were moved they would be read again; let the source read "
        "them where they were"
    )


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
