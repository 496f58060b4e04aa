"""The files of a local folder that a source reads. Links are followed, and what cannot be read is not skipped."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from dagster_flinkpy.errors import InputChangedError
from dagster_flinkpy.storage.local_files import HIDDEN, translated

__all__ = ["walk_input"]

_ADVICE = "Remove it, or give it a name that begins with '_'"


def walk_input(
    directory: Path, folder: str, start: str, selects: Callable[[str], bool]
) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the files below a directory that are selected, with their keys, in key order.

    Args:
        directory: The directory.
        folder: Its key, with a slash unless it is the root.
        start: What the names in the directory begin with.
        selects: Tells by a key whether a file is read, or, with a slash at the end, whether a folder is looked into.

    Raises:
        StorageError: A folder cannot be listed.
        InputChangedError: A link leads nowhere or back, a file is a pipe or something like it, or two names are the
            same file because of a link.
    """
    names: dict[tuple[int, int], tuple[str, bool]] = {}
    for key, status, linked in _walk(directory, folder, start, selects, ()):
        identity = status.st_dev, status.st_ino
        other, other_linked = names.setdefault(identity, (key, linked))
        if other != key and (linked or other_linked):
            raise InputChangedError(
                f"{other!r} and {key!r} are the same file, because of a link: its records would be read twice. Remove "
                "one of them, or give the link a name that begins with '_'"
            )
        yield key, status


def _walk(
    directory: Path, folder: str, start: str, selects: Callable[[str], bool], behind: tuple[str, ...]
) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yields keys and files, and whether a link led there.

    ``behind`` are the real paths of the folders whose links were followed.
    """
    for name, status, link in _entries(directory, folder, selects):
        if not name.startswith(start) or not selects(folder + name):
            continue
        path = directory / name
        if not name.endswith("/"):
            if not stat.S_ISREG(status.st_mode):
                raise InputChangedError(f"{path} is a pipe, a socket or a device, not a file. {_ADVICE}")
            yield folder + name, status, link or bool(behind)
        elif link:
            passed, target = (*behind, os.path.realpath(directory)), os.path.realpath(path)
            if any(each == target or each.startswith(target.rstrip("/") + "/") for each in passed):
                raise InputChangedError(f"{path} is a link that leads back to {target}, which it is in. {_ADVICE}")
            yield from _walk(path, folder + name, "", selects, passed)
        else:
            yield from _walk(path, folder + name, "", selects, behind)


def _entries(directory: Path, folder: str, selects: Callable[[str], bool]) -> list[tuple[str, os.stat_result, bool]]:
    """Returns what is in a directory, in key order: the name, with a slash for folders, and whether it is a link."""
    found = []
    with translated(f"list {directory}"):
        try:
            entries = list(os.scandir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []
        for entry in entries:
            if entry.name == HIDDEN:
                continue
            link = entry.is_symlink()
            try:
                status = entry.stat()
            except OSError as error:
                if link and (selects(folder + entry.name) or selects(f"{folder}{entry.name}/")):
                    raise InputChangedError(f"{entry.path} is a link that leads nowhere. {_ADVICE}") from error
                continue  # deleted in the meantime, or not selected
            found.append((f"{entry.name}/" if stat.S_ISDIR(status.st_mode) else entry.name, status, link))
    return sorted(found, key=lambda each: each[0])
