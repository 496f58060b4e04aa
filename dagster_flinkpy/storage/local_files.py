"""Files of a local store: locks between processes, and writes that a crash cannot leave half done."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dagster_flinkpy.errors import AccessDeniedError, StorageError
from dagster_flinkpy.file_lock import LockTimeoutError, file_lock

__all__ = ["HIDDEN", "directory_to_disk", "locked", "make_directory", "temporary", "to_disk", "translated"]

HIDDEN = ".flinkpy"
"""The folder of a directory that no listing shows."""
_LOCK_TIMEOUT_SECONDS = 60.0
"""No process needs the lock for long; this is far below the default checkpoint timeout."""
_TRIES = 100


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raises errors of the file system as ``StorageError``.

    Args:
        what: What is done, after "cannot".
    """
    try:
        yield
    except LockTimeoutError as error:
        raise StorageError(f"cannot {what}: {error}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
        raise kind(f"cannot {what}: {reason}. Check the path, its permissions and the free space.") from error


@contextmanager
def temporary(directory: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yields a new file on the file system of ``directory`` that no listing shows, and removes it at the end."""
    path = directory / HIDDEN / f"tmp-{uuid.uuid4().hex}"
    with os.fdopen(_open_below(directory, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        try:
            yield path, file
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keeps all other threads and processes from changing the objects of one directory.

    Raises:
        LockTimeoutError: Another process does not release the lock.
    """
    with ExitStack() as held:
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):  # the folder was pruned in the meantime
                make_directory(directory / HIDDEN)
                held.enter_context(file_lock(directory / HIDDEN / "lock", timeout=_LOCK_TIMEOUT_SECONDS))
                break
        else:
            raise _no_folder(directory)
        yield


def _open_below(directory: Path, path: Path, flags: int) -> int:
    """Opens a file in ``directory``'s hidden folder, which another process may prune before it is opened."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            make_directory(directory / HIDDEN)
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
    raise _no_folder(directory)


def _no_folder(directory: Path) -> StorageError:
    return StorageError(
        f"cannot write in {directory}: a folder that is created there disappears at once. Either this file system does "
        "not allow folders, or another process deletes them. Choose another path, or stop that process."
    )


def make_directory(directory: Path) -> None:
    """Creates a directory and those above it, on disk.

    Raises:
        StorageError: A file or a broken link is in its place.
        FileNotFoundError: Another process has deleted one of them.
    """
    if not directory.is_dir():
        make_directory(directory.parent)
        try:
            directory.mkdir(exist_ok=True)
        except FileExistsError:  # also of a folder that was there, and is gone: FileNotFoundError
            if not stat.S_ISDIR(directory.lstat().st_mode):
                raise StorageError(
                    f"cannot write in {directory}: it is a file or a broken link, not a folder. Choose another path, "
                    "or move it away."
                ) from None
        directory_to_disk(directory.parent)


def to_disk(file: BinaryIO) -> None:
    """Waits until what was written to a file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def directory_to_disk(directory: Path) -> None:
    """Waits until the names in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
