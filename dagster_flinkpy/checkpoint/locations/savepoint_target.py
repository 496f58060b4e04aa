"""Where savepoints and the files of a job may be: nowhere where they would be deleted, or taken for rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dagster_flinkpy.checkpoint.head import HEAD_KEY
from dagster_flinkpy.checkpoint.metadata import METADATA_NAME
from dagster_flinkpy.checkpoint.operator_states import OperatorState
from dagster_flinkpy.datastream.checkpointing.savepoint_format_type import SavepointFormatType
from dagster_flinkpy.errors import AccessDeniedError, ConfigurationError
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.lease import LEADER_KEY
from dagster_flinkpy.storage.local_files import HIDDEN

__all__ = ["check_job", "check_target", "folders_of", "key_below", "overlap"]

_LONGEST_NAME = 255
"""File systems allow no longer name, in bytes."""
_LONGEST_KEY = 1024
"""S3 allows no longer key, in bytes."""
_ROOM = 256
"""How many bytes of a key or path the files of a savepoint need below the target."""
_MOST_LISTED = 1000
_SHOWN = 100


def folders_of(operators: Iterable[OperatorState]) -> tuple[str, ...]:
    """Returns the URLs of the folders that the sources of a job read and its sinks write.

    Args:
        operators: The operators of a checkpoint.
    """
    return tuple(folder for each in operators if each.program is not None for folder in each.program.folders)


def check_target(
    target: StorageLocation,
    job: StorageLocation | None = None,
    format_type: SavepointFormatType = SavepointFormatType.CANONICAL,
    folders: Iterable[str] = (),
) -> None:
    """Checks that a savepoint which is written to a folder would be complete, and would stay so.

    Args:
        target: The folder.
        job: The prefix of the job whose savepoint it is; savepoints may be directly in it. Default: of no job.
        format_type: The format. A native savepoint must be where its files are.
        folders: URLs of folders in which others would take its files for their own: those of sources and sinks.

    Raises:
        ConfigurationError: The folder must not be used; the message says why, and what to do.
        StorageError: The folder cannot be looked at.
    """
    if job is not None and _same(target, job):
        return
    if format_type is SavepointFormatType.NATIVE:
        assert job is not None, "only jobs write native savepoints"
        raise ConfigurationError(
            f"a native savepoint names files below {job.url}, so it cannot be written to {target.url}; leave out the "
            "target, or write a canonical savepoint"
        )
    _check_names(target)
    # A server can have several addresses, so what counts on S3 is the URL.
    owned = [replace(target, url=folder) for folder in folders]
    for place in _with_parents(target):
        if any(_same(place, each) for each in owned):
            raise _refused(target, place, "the folder of a source or sink, in which its files would be taken for rows")
        with suppress(AccessDeniedError):  # whoever may not look cannot know
            if (what := _contents(place.open())) is not None:
                raise _refused(target, place, what)


def check_job(job: StorageLocation, folders: Iterable[str]) -> None:
    """Checks that neither the files of a job are among those of its sources and sinks, nor the other way round.

    Args:
        job: The prefix of the job.
        folders: URLs of the folders that its sources read and its sinks write.

    Raises:
        ConfigurationError: They are; the message names the folders.
    """
    for each in folders:
        folder = replace(job, url=each)
        if any(_same(place, folder) for place in _with_parents(job)):
            raise ConfigurationError(
                f"the folder of the job, {job.url}, is in {folder.url}, which a source reads or a sink writes, so its "
                "files would be taken for rows, or cleaned up with them. Keep the checkpoints in a folder outside of it"
            )
        if any(_same(place, job) for place in _with_parents(folder)):
            raise ConfigurationError(
                f"{folder.url}, which a source reads or a sink writes, is in the folder of the job, {job.url}, which "
                "deletes files that its checkpoints do not need. Choose a folder outside of it for the rows, or for "
                "the checkpoints"
            )


def overlap(like: StorageLocation, one: str, other: str) -> bool:
    """Returns whether two folders are the same, or one is inside the other.

    Args:
        like: How to reach them.
        one: URL of a folder.
        other: URL of another folder.
    """
    here, there = replace(like, url=one), replace(like, url=other)
    return any(_same(place, there) for place in _with_parents(here)) or any(
        _same(place, here) for place in _with_parents(there)
    )


def key_below(folder: StorageLocation, parent: StorageLocation) -> str | None:
    """Returns the path of a folder below another one, empty if it is the same; None if it is outside of it.

    Args:
        folder: The folder.
        parent: The other one.
    """
    if not any(_same(place, parent) for place in _with_parents(folder)):
        return None
    path, above = _local(folder), _local(parent)
    if path is not None and above is not None:
        return "" if path == above else os.path.relpath(path, above)
    return folder.url.removeprefix(parent.url).strip("/")


def _refused(target: StorageLocation, place: StorageLocation, what: str) -> ConfigurationError:
    where = "is" if place.url == target.url else f"is inside {place.url}:"
    return ConfigurationError(
        f"no savepoint can be written to {target.url}, because it {where} {what}. Choose a folder outside of it, or "
        "leave out the target, so that the savepoint is next to the checkpoints of its job"
    )


def _contents(store: ObjectStore) -> str | None:
    """Returns what a folder is, if savepoints must not be inside; else None."""
    if store.head(LEADER_KEY) is not None or store.head(HEAD_KEY) is not None:
        return "the folder of a job, which deletes files that its checkpoints do not need"
    if store.head(METADATA_NAME) is not None:
        return "a savepoint or checkpoint, with which it would be deleted"
    if next(store.list("_delta_log/"), None) is not None:
        return "a Delta Lake table, whose VACUUM deletes the files of others"
    if any(info.key.endswith(".metadata.json") for info in islice(store.list("metadata/"), _MOST_LISTED)):
        return "an Iceberg table, whose clean-up deletes the files of others"
    return None


def _check_names(target: StorageLocation) -> None:
    """Checks what a store would only refuse when the savepoint is written, for which the job may have stopped."""
    if (path := _local(target)) is None:
        key, most = target.url.removeprefix("s3://").partition("/")[2], _LONGEST_KEY
    else:
        key, most = str(path), os.pathconf("/", "PC_PATH_MAX")
        if HIDDEN in path.parts:
            raise ConfigurationError(f"no savepoint can be written to {target.url}: {HIDDEN!r} is a hidden folder")
        if any(len(os.fsencode(name)) > _LONGEST_NAME for name in path.parts):
            raise ConfigurationError(
                f"a name in the savepoint target {target.url[:_SHOWN]}... is too long: file systems allow "
                f"{_LONGEST_NAME} bytes. Choose a shorter one"
            )
    if len(os.fsencode(key)) + _ROOM > most:
        raise ConfigurationError(
            f"the savepoint target {target.url[:_SHOWN]}... is too long: the store allows {most:,} bytes, and the "
            f"files of a savepoint need {_ROOM} of them. Choose a shorter one"
        )


def _local(location: StorageLocation) -> Path | None:
    """Returns the real path of a local folder, or None for one on S3."""
    path = location.local_path
    return None if path is None else Path(os.path.realpath(path))


def _with_parents(location: StorageLocation) -> Iterator[StorageLocation]:
    """Yields a folder and those that contain it."""
    if (path := _local(location)) is not None:
        yield from (replace(location, url=str(each)) for each in (path, *path.parents))
        return
    bucket, _, key = location.url.removeprefix("s3://").partition("/")
    names = key.split("/") if key else []
    for number in range(len(names), -1, -1):
        yield replace(location, url="/".join((f"s3://{bucket}", *names[:number])))


def _same(one: StorageLocation, other: StorageLocation) -> bool:
    path, other_path = _local(one), _local(other)
    if path is None or other_path is None:
        return one.url == other.url and one.endpoint_url == other.endpoint_url
    with suppress(OSError):
        return os.path.samefile(path, other_path)
    return path == other_path  # one of them does not exist
