"""Files of a local store: locks between processes, writes that a crash cannot leave half done, and staged uploads.

The parts of an upload are appended to one file. If they are in order, that file becomes the object, and nothing is
written twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from dagster_flinkpy.errors import AccessDeniedError, StorageError
from dagster_flinkpy.file_lock import LockTimeoutError, file_lock
from dagster_flinkpy.storage.object_store import UploadedPart

__all__ = [
    "HIDDEN",
    "LocalUpload",
    "consists_of",
    "directory_to_disk",
    "locked",
    "make_directory",
    "temporary",
    "to_disk",
    "translated",
]

HIDDEN = ".flinkpy"
"""The folder of a directory that no listing shows."""
_LOCK_TIMEOUT_SECONDS = 60.0
"""No process needs the lock for long; this is far below the default checkpoint timeout."""
_TRIES = 100
_ALL = "all"


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


@dataclass(frozen=True)
class _Stored:
    """What the ETag of a part says.

    It is ``<sha256>-<bytes>-<offset>``, with ``-all`` if the digest is that of all parts up to this one. In version 0.1
    it had no offset.
    """

    sha256: str
    size: int
    offset: int | None
    """Where it begins in the common file, in bytes, or None if it has a file of its own."""
    of_all: bool

    @staticmethod
    def of(part: UploadedPart) -> _Stored | None:
        """Returns None if another store made the ETag."""
        digest, *numbers = part.etag.removesuffix(f"-{_ALL}").split("-")
        if len(numbers) not in (1, 2) or not all(number.isdecimal() for number in numbers):
            return None
        offset = int(numbers[1]) if len(numbers) == 2 else None
        return _Stored(digest, int(numbers[0]), offset, part.etag.endswith(f"-{_ALL}"))


class _Comparison:
    """Compares content, part by part, with what their ETags say."""

    def __init__(self) -> None:
        self._all = hashlib.sha256()

    def fits(self, stored: _Stored, data: bytes) -> bool:
        """Returns whether this is the content of the next part."""
        digest = self._all if stored.of_all else hashlib.sha256()
        digest.update(data)
        return len(data) == stored.size and digest.hexdigest() == stored.sha256


class LocalUpload:
    """The folder of a staged upload.

    Args:
        folder: The folder. Its name is the id of the upload.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._data = folder, folder / "data"

    def create(self) -> None:
        """Creates the folder."""
        make_directory(self._folder)
        self._data.touch(exist_ok=False)
        directory_to_disk(self._folder)

    def exists(self) -> bool:
        """Returns whether it was neither completed nor aborted."""
        return self._folder.is_dir()

    def append(self, number: int, data: bytes | bytearray, sha256_of_all: str | None) -> UploadedPart:
        """Writes a part to the disk.

        Args:
            number: Its number.
            data: Its content.
            sha256_of_all: SHA-256 of all parts up to this one, in hex, if the caller knows it.

        Raises:
            FileNotFoundError: The upload was completed or aborted.
        """
        file = os.open(self._data, os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            status = os.fstat(file)
            if status.st_nlink != 1 or not self._data.exists():  # it has become the object
                raise FileNotFoundError(self._data)
            try:
                _write(file, data, status.st_size)
                os.fsync(file)
            except BaseException:
                os.ftruncate(file, status.st_size)
                raise
        finally:
            os.close(file)
        digest, of_all = (
            (hashlib.sha256(data).hexdigest(), "") if sha256_of_all is None else (sha256_of_all, f"-{_ALL}")
        )
        return UploadedPart(number, f"{digest}-{len(data)}-{status.st_size}{of_all}")

    @contextmanager
    def whole(self, parts: Sequence[UploadedPart]) -> Iterator[Path | None]:
        """Yields the file that consists of these parts, or None if they have to be joined. Nobody appends meanwhile.

        Raises:
            StorageError: Somebody is appending now.
        """
        stored = [_Stored.of(part) for part in parts]
        ends = list(accumulate(0 if each is None else each.size for each in stored))
        in_order = all(s is not None and s.offset == at for s, at in zip(stored, [0, *ends], strict=False))
        if not in_order or not self._data.exists():
            yield None
            return
        with self._data.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(
                    f"cannot complete {self._folder}: another part is being written now. Try again."
                ) from None
            yield self._data if os.fstat(file.fileno()).st_size == ends[-1] else None

    def contents(self, parts: Sequence[UploadedPart]) -> Iterator[bytes | None]:
        """Yields the content of each part, or None if it is not there."""
        comparison = _Comparison()
        for part in parts:
            stored = _Stored.of(part)
            data = None if stored is None else self._read(part.number, stored)
            yield data if stored is not None and data is not None and comparison.fits(stored, data) else None

    def _read(self, number: int, stored: _Stored) -> bytes | None:
        path = self._folder / str(number) if stored.offset is None else self._data
        try:
            with path.open("rb") as file:
                file.seek(stored.offset or 0)
                return file.read(-1 if stored.offset is None else stored.size)
        except FileNotFoundError:
            return None

    def remove(self) -> None:
        """Deletes the folder, and those above it that are empty then."""
        shutil.rmtree(self._folder)
        for folder in (self._folder.parent, self._folder.parent.parent):
            try:
                folder.rmdir()
            except OSError:  # not empty: other uploads
                return


def consists_of(file: BinaryIO, parts: Sequence[UploadedPart]) -> bool:
    """Returns whether the content of a file is exactly these parts."""
    comparison = _Comparison()
    for stored in map(_Stored.of, parts):
        if stored is None or not comparison.fits(stored, file.read(stored.size)):
            return False
    return not file.read(1)


def _write(file: int, data: bytes | bytearray, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, offset)
        left, offset = left[written:], offset + written
